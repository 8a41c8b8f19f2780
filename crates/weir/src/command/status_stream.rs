//! The stream of exchanges from a running node's status address (`/tail`).

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use weir_client::{AnswerContent, CallSettings, HttpClient, ServiceUrl};

/// A stream of exchanges, each sent when it ends.
pub(crate) struct ExchangeStream {
    content: AnswerContent,
    address: String,
    /// The start of an incomplete line.
    rest: Vec<u8>,
    lines: VecDeque<Value>,
}

impl ExchangeStream {
    /// Opens a stream of the exchanges that an argument selects. If nothing is received for longer than `silence`, the stream
    /// fails.
    ///
    /// # Errors
    /// Why the stream cannot be opened.
    pub(crate) async fn open(
        address: &str,
        argument: Option<(&str, &str)>,
        silence: Duration,
    ) -> Result<ExchangeStream, String> {
        let encoded = |value| utf8_percent_encode(value, NON_ALPHANUMERIC);
        let query = argument.map(|(name, value)| format!("?{name}={}", encoded(value))).unwrap_or_default();
        let url = ServiceUrl::parse(&format!("http://{address}/tail{query}"))
            .map_err(|error| format!("--status: {address}: {error}"))?;
        let settings = CallSettings { timeout: silence, max_content_bytes: usize::MAX, ..CallSettings::default() };
        let request = Request::get(url.target().as_str()).body(Bytes::new());
        let request = request.map_err(|error| format!("the request cannot be built: {error}"))?;
        let answer = HttpClient::default().open(&url, request, &settings).await.map_err(|error| {
            format!("no response from {address}: {error}; `--status` is the setting `status` of the node")
        })?;
        let status = answer.status();
        let mut stream = ExchangeStream {
            content: answer.into_body(),
            address: address.to_owned(),
            rest: Vec::new(),
            lines: VecDeque::new(),
        };
        if status != StatusCode::OK {
            let said = stream.content.next().await.ok().flatten().unwrap_or_default();
            // A node that answers so has no such path: it is another of its addresses, or another program.
            if status == StatusCode::NOT_FOUND || status == StatusCode::METHOD_NOT_ALLOWED {
                let advice = "it is not the status address of a node; `--status` is the setting `status` of the node";
                return Err(format!("{address} answered with {status}; {advice}"));
            }
            return Err(format!("{address} answered with {status}: {}", String::from_utf8_lossy(&said).trim()));
        }
        Ok(stream)
    }

    /// The next exchange; `None` when the node has ended the stream without a reason.
    ///
    /// # Errors
    /// Why the stream has failed.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return match line["ended"].as_str() {
                    Some(why) => Err(format!("{} has ended the stream: {why}", self.address)),
                    None => Ok(Some(line)),
                };
            }
            let piece = self.content.next().await;
            let piece = piece.map_err(|error| format!("the stream from {} has broken: {error}", self.address))?;
            let Some(piece) = piece else { return Ok(None) };
            self.rest.extend_from_slice(&piece);
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let value = serde_json::from_slice(&line);
                self.lines.push_back(
                    value.map_err(|error| format!("{} sent a line that is not JSON: {error}", self.address))?,
                );
            }
        }
    }
}

/// An exchange in one line: time, status, request, duration and further facts.
pub(crate) struct ExchangeSummary<'a>(pub &'a Value);

impl ExchangeSummary<'_> {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().filter(|text| *text != "-").unwrap_or_default()
    }
}

impl fmt::Display for ExchangeSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.text("time");
        let clock = time.split_once('T').map_or(time, |(_, clock)| clock.get(..8).unwrap_or(clock));
        let seconds = self.0["request_time"].as_f64().unwrap_or_default();
        let (method, host, uri) = (self.text("method"), self.text("host"), self.text("uri"));
        let client = self.text("client");
        write!(f, "{clock} {} {client} {method} {host}{uri} {:.0}ms", self.0["status"], seconds * 1e3)?;
        // A plugin may as well give the answer that is wanted.
        let is_refusal = self.0["status"].as_u64().is_none_or(|status| status >= 400);
        for (label, name) in [
            ("route", "route_id"),
            ("upstream", "upstream_addr"),
            ("consumer", "consumer"),
            (if is_refusal { "refused_by" } else { "answered_by" }, "refused_by"),
            ("cause", "error_cause"),
        ] {
            let value = self.text(name);
            if !value.is_empty() {
                write!(f, " {label}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_shows_what_there_is() {
        let exchange = json!({
            "time": "2026-11-23T12:00:01+00:00", "status": 401, "client": "10.0.0.1", "method": "GET", "host": "a",
            "uri": "/x?y", "request_time": 0.012, "route_id": "orders", "refused_by": "key-auth", "upstream_addr": "-",
        });
        let summary = ExchangeSummary(&exchange).to_string();
        assert_eq!(summary, "12:00:01 401 10.0.0.1 GET a/x?y 12ms route=orders refused_by=key-auth");
        let answered = ExchangeSummary(&json!({ "status": 200, "refused_by": "mocking" })).to_string();
        assert!(answered.ends_with(" answered_by=mocking"), "{answered}");
    }
}
