//! The HTTP receivers of a sink. Batches are sent to them in turn; receivers that have failed recently are skipped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use weir_client::{CallError, HttpClient, HttpProtocol, IdleConnections};
use weir_plugin::{AllOf, CollectAll, ConfigError};

use crate::http_service::HttpService;

/// How long a receiver is skipped after it could not be reached, if there is another.
const QUARANTINE: Duration = Duration::from_secs(30);
/// How long an idle connection is kept for the next batch.
const IDLE: Duration = Duration::from_secs(60);
/// The most bytes of an answer, which may have a status for each of many thousand records.
const MOST_BYTES: usize = 16 << 20;

/// The options for calls to receivers.
pub struct ReceiverOptions<'a> {
    /// The name of the option with the URLs, for errors.
    pub option: &'a str,
    pub verify: bool,
    pub timeout: Duration,
}

/// A request to a receiver.
pub struct ReceiverRequest<'a> {
    pub method: Method,
    /// Appended to the path of the receiver's URL.
    pub path: &'a str,
    pub content_type: &'static str,
    /// The body is compressed with gzip.
    pub is_gzip: bool,
    pub body: Vec<u8>,
}

pub struct Receivers {
    services: Vec<HttpService>,
    failed: Vec<Option<Instant>>,
    last: usize,
    pub headers: HeaderMap,
}

/// The fields of an option, for every request.
///
/// # Errors
/// A name or value is not valid in a header field.
pub fn header_fields(fields: &BTreeMap<String, String>, option: &str) -> Result<HeaderMap, ConfigError> {
    let field = |(name, value): (&String, &String)| {
        let wrong = |what: &str| ConfigError::new(format!("{option}.{name}"), format!("is not a header field {what}"));
        let field = HeaderName::try_from(name.as_str()).map_err(|_| wrong("name"));
        (field, HeaderValue::try_from(value.as_str()).map_err(|_| wrong("value"))).all_of()
    };
    fields.iter().map(field).collect_all()
}

/// The value of a header field, from an option.
///
/// # Errors
/// A character is not valid in a header field.
pub fn header_value(value: &str, option: &str) -> Result<HeaderValue, ConfigError> {
    let wrong = |_| ConfigError::new(option, "has a character that is not allowed in a header field");
    HeaderValue::try_from(value).map_err(wrong)
}

/// The same, for a value that is a secret.
///
/// # Errors
/// A character is not valid in a header field.
pub fn secret_header_value(value: &str, option: &str) -> Result<HeaderValue, ConfigError> {
    let mut value = header_value(value, option)?;
    value.set_sensitive(true);
    Ok(value)
}

impl Receivers {
    /// # Errors
    /// There are no URLs, or one is invalid.
    pub fn parse(
        client: &HttpClient,
        urls: &[String],
        options: &ReceiverOptions<'_>,
    ) -> Result<Receivers, ConfigError> {
        if urls.is_empty() {
            return Err(ConfigError::new(options.option, "is needed: write as `[\"http://127.0.0.1:9200\"]`"));
        }
        let idle = IdleConnections { max_per_origin: 1, timeout: IDLE };
        let parse = |(index, url): (usize, &String)| {
            let place = format!("{}[{index}]", options.option);
            HttpService::parse(client, url, options.verify, options.timeout, idle, &place)
        };
        let services = urls.iter().enumerate().map(parse).collect_all::<Vec<_>>()?;
        Ok(Receivers { failed: vec![None; services.len()], services, last: 0, headers: HeaderMap::new() })
    }

    /// A single receiver.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn one(client: &HttpClient, url: &str, options: &ReceiverOptions<'_>) -> Result<Receivers, ConfigError> {
        let idle = IdleConnections { max_per_origin: 1, timeout: IDLE };
        let service = HttpService::parse(client, url, options.verify, options.timeout, idle, options.option)?;
        Ok(Receivers { services: vec![service], failed: vec![None], last: 0, headers: HeaderMap::new() })
    }

    /// The names of all receivers, joined with commas.
    pub fn name(&self) -> String {
        let names: Vec<String> = self.services.iter().map(HttpService::name).collect();
        names.join(",")
    }

    /// Whether a URL has more than a host and a port.
    pub fn have_paths(&self) -> bool {
        self.services.iter().any(|service| &*service.target != "/")
    }

    /// Sends all requests by this version of HTTP.
    pub fn speak(&mut self, protocol: HttpProtocol) {
        self.services.iter_mut().for_each(|service| service.speak(protocol));
    }

    /// Treats the receiver that was asked last as one that has failed.
    pub fn avoid_last(&mut self) {
        self.failed[self.last] = Some(Instant::now());
    }

    /// Sends content to a path below the URL of the next receiver.
    ///
    /// # Errors
    /// The request was not answered.
    pub async fn post(
        &mut self,
        path: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Response<Bytes>, CallError> {
        self.ask(ReceiverRequest { method: Method::POST, path, content_type, is_gzip: false, body }).await
    }

    /// Sends a request to the next receiver.
    ///
    /// # Errors
    /// The request was not answered.
    pub async fn ask(&mut self, asked: ReceiverRequest<'_>) -> Result<Response<Bytes>, CallError> {
        let chosen = self.next();
        let service = &self.services[chosen];
        let mut request = Request::new(Full::new(Bytes::from(asked.body)));
        *request.method_mut() = asked.method;
        let target = format!("{}{}", service.target.trim_end_matches('/'), asked.path);
        *request.uri_mut() = target.parse().map_err(|_| CallError::Request(format!("`{target}` is not a path")))?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(asked.content_type));
        if asked.is_gzip {
            request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        request.headers_mut().extend(self.headers.clone());
        let answer = service.ask(request, MOST_BYTES).await;
        let is_well = answer.as_ref().is_ok_and(|answer| answer.status().as_u16() < 500);
        self.failed[chosen] = (!is_well).then(Instant::now);
        answer
    }

    /// The next receiver in turn that has not failed recently; if all have, the one whose failure is the oldest.
    fn next(&mut self) -> usize {
        let count = self.services.len();
        let order = || (1..=count).map(|step| (self.last + step) % count);
        let is_well = |index: &usize| self.failed[*index].is_none_or(|at| at.elapsed() >= QUARANTINE);
        let chosen = order().find(is_well).or_else(|| order().min_by_key(|index| self.failed[*index]));
        self.last = chosen.unwrap_or_default();
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_is_passed_over() {
        let urls = ["http://a", "http://b", "http://c"].map(str::to_owned);
        let options = ReceiverOptions { option: "endpoint_addrs", verify: true, timeout: Duration::from_secs(1) };
        let mut receivers = Receivers::parse(&HttpClient::default(), &urls, &options).expect("valid");
        let turns = |receivers: &mut Receivers| (0..4).map(|_| receivers.next()).collect::<Vec<_>>();
        assert_eq!(turns(&mut receivers), [1, 2, 0, 1]);
        receivers.failed[2] = Some(Instant::now());
        assert_eq!(turns(&mut receivers), [0, 1, 0, 1]);
        let now = Instant::now();
        receivers.failed = vec![Some(now), Some(now - Duration::from_secs(1)), Some(now)];
        assert_eq!(turns(&mut receivers), [1, 1, 1, 1]);
        assert_eq!(receivers.name(), "http://a:80,http://b:80,http://c:80");
        let error = Receivers::parse(&HttpClient::default(), &[], &options).err().expect("refused").to_string();
        assert!(error.starts_with("endpoint_addrs: is needed"), "{error}");
    }
}
