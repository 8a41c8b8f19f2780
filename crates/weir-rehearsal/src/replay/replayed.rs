//! A request of the log, as it is sent to both gateways.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};

use crate::answer::AnswerOutcome;
use crate::findings::ExampleRequest;
use crate::log::RecordedRequest;
use crate::replay::RehearsalPlan;
use crate::secrets::{MASK, is_secret};
use crate::target::GatewayTarget;

/// Fields of the log that are not sent: they belong to its connection, or are written anew.
const UNSENT: [&str; 11] = [
    "host",
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "content-length",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "http2-settings",
];

/// Fields about the client that proxies add: a gateway that trusts the sender would take the address in them for the client's.
const OF_CLIENT: [&str; 8] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-cluster-client-ip",
    "x-original-url",
    "x-rewrite-url",
];

fn is_unsent(name: &str) -> bool {
    UNSENT.contains(&name)
        || OF_CLIENT.contains(&name)
        || name.starts_with("x-forwarded-")
        || name.starts_with("x-envoy-")
}

#[derive(Debug)]
pub(super) struct ReplayedRequest {
    pub(super) method: Method,
    pub(super) host: String,
    pub(super) target: String,
    fields: HeaderMap,
    body: Bytes,
    client: Option<IpAddr>,
}

impl ReplayedRequest {
    /// `None` if it cannot be sent: its method, host or target is not valid in HTTP.
    pub(super) fn of(recorded: RecordedRequest, plan: &RehearsalPlan, usual_host: &str) -> Option<ReplayedRequest> {
        let host = plan.host.clone().or(recorded.host).unwrap_or_else(|| usual_host.to_owned());
        let method = recorded.method.parse().ok()?;
        let target: PathAndQuery = recorded.target.parse().ok()?;
        let mut fields = HeaderMap::new();
        for (name, value) in recorded.fields {
            let is_credential = is_secret(&name);
            // Records of Weir have secrets masked already.
            let is_sent = !is_unsent(&name) && (!is_credential || plan.with_credentials && value != MASK);
            if let (true, Ok(name), Ok(value)) = (is_sent, name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                fields.append(name, value);
            }
        }
        for (name, _) in &plan.fields {
            fields.remove(name);
        }
        for (name, value) in &plan.fields {
            fields.append(name.clone(), value.clone());
        }
        fields.insert(HOST, host.parse().ok()?);
        Some(ReplayedRequest {
            method,
            host,
            target: target.to_string(),
            fields,
            body: recorded.body.into(),
            client: recorded.client,
        })
    }

    /// What makes it another request than those before.
    pub(super) fn identity(&self) -> impl std::hash::Hash {
        let counts = |name: &HeaderName| name != http::header::USER_AGENT && name != http::header::REFERER;
        let mut fields: Vec<(String, Vec<u8>)> = self
            .fields
            .iter()
            .filter(|(name, _)| counts(name))
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect();
        fields.sort_unstable();
        (self.method.clone(), self.target.clone(), fields, self.body.clone())
    }

    pub(super) async fn ask(&self, gateway: &GatewayTarget) -> AnswerOutcome {
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.fields.clone();
        gateway.ask(&self.target, request).await
    }

    pub(super) fn example(&self) -> ExampleRequest {
        let field = |(name, value): (&HeaderName, &HeaderValue)| {
            (name != HOST).then(|| Some(format!("{name}: {}", value.to_str().ok()?))).flatten()
        };
        ExampleRequest {
            method: self.method.to_string(),
            host: self.host.clone(),
            target: self.target.clone(),
            fields: self.fields.iter().filter_map(field).collect(),
            client: self.client,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(with_credentials: bool) -> RehearsalPlan {
        let fields = vec![(HeaderName::from_static("x-test"), HeaderValue::from_static("yes"))];
        RehearsalPlan { with_credentials, fields, ..RehearsalPlan::of_tests() }
    }

    #[test]
    fn fields_about_the_client_are_not_sent_and_given_ones_all() {
        let mut plan = plan(false);
        plan.fields.push((HeaderName::from_static("x-test"), HeaderValue::from_static("also")));
        let mut recorded = recorded();
        for name in ["x-forwarded-for", "X-Forwarded-Host", "forwarded", "x-real-ip"] {
            recorded.fields.push((name.to_ascii_lowercase(), "10.0.0.1".to_owned()));
        }
        let request = ReplayedRequest::of(recorded, &plan, "a").expect("it can be sent");
        let given: Vec<_> = request.fields.get_all("x-test").iter().collect();
        assert_eq!(given, ["yes", "also"]);
        assert_eq!(request.fields.len(), 4, "{:?}", request.fields);
    }

    fn recorded() -> RecordedRequest {
        let fields = [
            ("cookie", "a=b"),
            ("authorization", MASK),
            ("x-api-key", "k"),
            ("accept", "x"),
            ("connection", "close"),
            ("x-test", "no"),
        ];
        RecordedRequest {
            method: "GET".to_owned(),
            target: "/a?b".to_owned(),
            fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..RecordedRequest::default()
        }
    }

    #[test]
    fn credentials_are_sent_only_if_the_plan_says_so() {
        let names = |with: bool| {
            let request = ReplayedRequest::of(recorded(), &plan(with), "old.example").expect("it can be sent");
            assert_eq!(request.fields["x-test"], "yes");
            assert_eq!(request.host, "old.example");
            let mut names: Vec<String> = request.fields.keys().map(|name| name.to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names(false), ["accept", "host", "x-test"]);
        assert_eq!(names(true), ["accept", "cookie", "host", "x-api-key", "x-test"]);
    }

    #[test]
    fn requests_that_are_not_valid_cannot_be_sent() {
        for (method, target) in [("G T", "/"), ("GET", "/a b"), ("GET", "/\u{1}")] {
            let request = RecordedRequest { method: method.to_owned(), target: target.to_owned(), ..recorded() };
            assert!(ReplayedRequest::of(request, &plan(false), "a").is_none(), "{method} {target}");
        }
    }
}
