//! The access log: one line per exchange, formatted by the worker that served it, written to the file by another thread.

use std::cell::RefCell;

use weir_plugin::template::{Template, TemplateStyle};
use weir_plugin::{Exchange, LoggedExchange};
use weir_telemetry::log_file::LogSink;

/// The format of lines. Shared by all workers.
#[derive(Clone)]
pub struct LineFormat {
    pub template: Template,
    pub style: TemplateStyle,
    /// The lines of streams, which have no request.
    streams: Template,
}

/// A line of a stream: the format of nginx's documentation, with what can be known of the endpoint and the end.
const STREAM_LINE: &str = "$remote_addr [$time_local] $protocol $status $bytes_sent $bytes_received $session_time \
                           \"$upstream_addr\" \"$upstream_bytes_sent\" \"$upstream_bytes_received\" \"$upstream_connect_time\" \
                           \"$ssl_server_name\" \"$route_id\" \"$error_cause\"";
/// The same as JSON.
const STREAM_JSON: &str = concat!(
    r#"{"time":"$time_iso8601","remote_addr":"$remote_addr","remote_port":"$remote_port","server_port":"$server_port","#,
    r#""protocol":"$protocol","status":$status,"bytes_sent":$bytes_sent,"bytes_received":$bytes_received,"#,
    r#""session_time":${session_time ?? 0},"upstream_addr":"$upstream_addr","upstream_error":"$upstream_error","#,
    r#""upstream_connect_time":"$upstream_connect_time","ssl_server_name":"$ssl_server_name","route_id":"$route_id","#,
    r#""refused_by":"$refused_by","error_cause":"$error_cause"}"#
);

impl LineFormat {
    /// A format that starts with `{` is JSON, so its values are escaped as JSON strings; in any other, as nginx escapes them.
    pub fn new(format: &str) -> LineFormat {
        let (style, streams) = match format.trim_start().starts_with('{') {
            true => (TemplateStyle::JSON, STREAM_JSON),
            false => (TemplateStyle::LOG_LINE, STREAM_LINE),
        };
        LineFormat { template: Template::compile(format), style, streams: Template::compile(streams) }
    }
}

/// The access log of one worker.
pub struct AccessLogWriter {
    format: LineFormat,
    sink: RefCell<LogSink>,
}

impl AccessLogWriter {
    pub fn new(format: LineFormat, sink: LogSink) -> AccessLogWriter {
        AccessLogWriter { format, sink: RefCell::new(sink) }
    }

    pub fn record(&self, exchange: &Exchange, now_ns: u64) {
        self.line(&self.format.template, exchange, now_ns);
    }

    /// Writes the line of a stream.
    pub fn record_stream(&self, exchange: &Exchange, now_ns: u64) {
        self.line(&self.format.streams, exchange, now_ns);
    }

    fn line(&self, template: &Template, exchange: &Exchange, now_ns: u64) {
        let style = self.format.style;
        self.sink.borrow_mut().line(now_ns, |out| template.render_as(style, &LoggedExchange(exchange), out));
    }

    /// Flushes if it is due. Called with every tick, also when there is no traffic.
    pub fn flush_if_due(&self, now_ns: u64) {
        self.sink.borrow_mut().flush_if_due(now_ns);
    }
}
