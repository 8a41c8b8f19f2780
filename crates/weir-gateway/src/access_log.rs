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
}

impl LineFormat {
    /// A format that starts with `{` is JSON, so its values are escaped as JSON strings; in any other, as nginx escapes them.
    pub fn new(format: &str) -> LineFormat {
        let style = if format.trim_start().starts_with('{') { TemplateStyle::JSON } else { TemplateStyle::LOG_LINE };
        LineFormat { template: Template::compile(format), style }
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
        let LineFormat { template, style } = &self.format;
        self.sink.borrow_mut().line(now_ns, |out| template.render_as(*style, &LoggedExchange(exchange), out));
    }

    /// Flushes if it is due. Called with every tick, also when there is no traffic.
    pub fn flush_if_due(&self, now_ns: u64) {
        self.sink.borrow_mut().flush_if_due(now_ns);
    }
}
