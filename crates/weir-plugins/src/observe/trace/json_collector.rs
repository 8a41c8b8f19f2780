//! Collectors that take spans over HTTP, as a list of JSON values.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use weir_client::IdleConnections;
use weir_plugin::{Build, ConfigError};
use weir_records::{Batching, Destination, Record, RecordSending, Retries, SendOutcome, SinkOptions};
use weir_services::http_answer;
use weir_services::http_service::HttpService;

use super::span_sink::{SpanFormat, SpanSink};

/// The time-out of a batch, and how long an idle connection is kept for the next one.
const TIMEOUT: Duration = Duration::from_secs(3);
const IDLE: Duration = Duration::from_secs(60);

pub(crate) struct JsonCollector {
    service: HttpService,
    refused: fn(&Response<Bytes>) -> SendOutcome,
}

impl JsonCollector {
    /// The collector at a URL, the value of an option. `refused` says what an answer means that is no success.
    ///
    /// # Errors
    /// The value is no such URL.
    pub(crate) fn parse(
        build: &Build,
        url: &str,
        option: &str,
        refused: fn(&Response<Bytes>) -> SendOutcome,
    ) -> Result<JsonCollector, ConfigError> {
        let idle = IdleConnections { max_per_origin: 1, timeout: IDLE };
        let service = HttpService::parse(build.http(), url, true, TIMEOUT, idle, option)?;
        Ok(JsonCollector { service, refused })
    }

    /// The sink of a plugin for this collector, whose spans all have the same format.
    pub(crate) fn sink<F: SpanFormat>(self, build: &Build, plugin: &str, url: &str, format: F) -> SpanSink<F> {
        let options = SinkOptions {
            name: format!("{plugin} {}", self.service.name()),
            batching: Batching::default(),
            retries: Retries::Always,
            max_pending: None,
            spool: None,
            rejected: None,
            tests: None,
        };
        let open = Box::new(move || Ok(Box::new(self) as Box<dyn Destination>));
        SpanSink::build(build, &format!("{plugin} {url}"), options, format, open)
    }
}

impl Destination for JsonCollector {
    fn send<'a>(&'a mut self, batch: &'a [Record]) -> RecordSending<'a> {
        let body = json_list(batch.iter().map(|record| &*record.payload));
        let bytes = body.len();
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Box::pin(async move {
            match self.service.ask(request, http_answer::MOST_BYTES).await {
                Ok(answer) if answer.status().is_success() => SendOutcome::Taken,
                Ok(answer) => (self.refused)(&answer),
                Err(error) => http_answer::no_answer(&error, bytes),
            }
        })
    }
}

/// The JSON list of a request, from records that are JSON values with a comma behind each.
fn json_list<'a>(records: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut body = vec![b'['];
    records.for_each(|record| body.extend_from_slice(record));
    // Removes the last comma; restores the bracket if the list is empty.
    if body.pop() == Some(b'[') {
        body.push(b'[');
    }
    body.push(b']');
    body
}
