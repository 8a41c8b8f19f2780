//! Requests to compare two configurations by, and the comparison, in JSON.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Map, Value, json};
use weir_gateway::snapshot::Snapshot;
use weir_plugin::Registry;

use super::{OutcomePlugin, RequestDescription, ResourceIndex, RoutingComparison, RoutingOutcome, outcome};
use crate::compile::compile;
use crate::document::CompleteDocument;
use crate::text::diagnostic::Diagnostic;

/// The address of clients whose address is not given.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// `Err` is why a request is malformed, with its description.
pub type ComparedRequest = Result<RoutingComparison, MalformedRequest>;

/// A request that no gateway would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedRequest {
    /// Its method and URL.
    pub request: String,
    pub problem: String,
}

/// How a document handles each request; of a request that is malformed, why.
pub(crate) type RoutingOutcomes = Vec<Result<RoutingOutcome, String>>;

/// A document, compiled once for many requests.
pub struct DocumentRouting<'d> {
    snapshot: Snapshot,
    resources: ResourceIndex<'d>,
    registry: &'d Registry,
}

impl<'d> DocumentRouting<'d> {
    /// # Errors
    /// The faults of the document.
    pub fn of(document: &'d CompleteDocument, registry: &'d Registry) -> Result<DocumentRouting<'d>, Vec<Diagnostic>> {
        let snapshot = compile(document, registry, None)?.snapshot;
        Ok(DocumentRouting { snapshot, resources: ResourceIndex::new(document), registry })
    }

    /// How the document handles a request.
    ///
    /// # Errors
    /// Why the request is malformed.
    pub fn outcome(&self, request: &RequestDescription) -> Result<RoutingOutcome, String> {
        outcome(&self.snapshot, &self.resources, self.registry, request)
    }
}

/// How two documents handle requests.
///
/// # Errors
/// The faults of the first of them that is invalid.
pub fn compare_documents(
    before: &CompleteDocument,
    after: &CompleteDocument,
    registry: &Registry,
    requests: &[RequestDescription],
) -> Result<Vec<ComparedRequest>, Vec<Diagnostic>> {
    let outcomes = |document: &CompleteDocument| -> Result<RoutingOutcomes, Vec<Diagnostic>> {
        let routing = DocumentRouting::of(document, registry)?;
        Ok(requests.iter().map(|request| routing.outcome(request)).collect())
    };
    Ok(compared(requests, outcomes(before)?, outcomes(after)?))
}

/// Pairs the outcomes of requests.
pub(crate) fn compared(
    requests: &[RequestDescription],
    before: RoutingOutcomes,
    after: RoutingOutcomes,
) -> Vec<ComparedRequest> {
    let both = requests.iter().zip(before).zip(after);
    both.map(|((request, before), after)| {
        let malformed = |problem: String| MalformedRequest { request: name(request), problem };
        let (before, after) = (before.map_err(malformed)?, after.map_err(malformed)?);
        Ok(RoutingComparison { request: request.clone(), before, after })
    })
    .collect()
}

/// Reads `GET https://shop.example/orders/1`, or a map with `method`, `url`, `headers` and `from`.
///
/// # Errors
/// What is wrong with it.
pub fn described(item: &Value) -> Result<RequestDescription, String> {
    const FORM: &str = "write a method and a URL, such as `GET https://shop.example/orders/1`";
    match item {
        Value::String(text) => {
            let (method, url) = text.trim().split_once(' ').ok_or(FORM)?;
            let (method, url) = (method.to_owned(), url.trim().to_owned());
            Ok(RequestDescription { method, url, headers: Vec::new(), from: CLIENT, server_name: None })
        }
        Value::Object(members) => {
            let known = ["method", "url", "headers", "from", "server_name"];
            if let Some(unknown) = members.keys().find(|name| !known.contains(&name.as_str())) {
                return Err(format!("unknown member `{unknown}`; known are {}", known.join(", ")));
            }
            let text = |name: &str| members.get(name).map(|value| value.as_str().ok_or(format!("`{name}` is no text")));
            let url = text("url").transpose()?.ok_or("missing `url`")?.to_owned();
            let method = text("method").transpose()?.unwrap_or("GET").to_owned();
            let from = match text("from").transpose()? {
                None => CLIENT,
                Some(from) => from.parse().map_err(|_| format!("`{from}` is not an IP address"))?,
            };
            let server_name = text("server_name").transpose()?.map(str::to_owned);
            Ok(RequestDescription { method, url, headers: fields(members)?, from, server_name })
        }
        _ => Err(FORM.to_owned()),
    }
}

fn fields(members: &Map<String, Value>) -> Result<Vec<String>, String> {
    match members.get("headers") {
        None => Ok(Vec::new()),
        Some(Value::Object(fields)) => {
            let field = |(name, value): (&String, &Value)| {
                let value = value.as_str().ok_or(format!("the header field `{name}` is no text"))?;
                Ok(format!("{name}: {value}"))
            };
            fields.iter().map(field).collect()
        }
        Some(_) => Err("`headers` must be a map".to_owned()),
    }
}

/// A comparison as the Admin API shows it: the number of requests, those that are handled differently, and those that are malformed.
pub fn told(compared: &[ComparedRequest]) -> Value {
    let (mut changed, mut malformed) = (Vec::new(), Vec::new());
    for one in compared {
        match one {
            Ok(comparison) => changed.extend(difference_of(comparison)),
            Err(MalformedRequest { request, problem }) => {
                malformed.push(json!({ "request": request, "problem": problem }));
            }
        }
    }
    json!({ "compared": compared.len(), "changed": changed, "malformed": malformed })
}

/// `None` if the change does not concern the request.
fn difference_of(comparison: &RoutingComparison) -> Option<Value> {
    let differs = comparison.differences();
    let RoutingComparison { request, before, after } = comparison;
    let told =
        || json!({ "request": name(request), "differs": differs, "before": shown(before), "after": shown(after) });
    (!differs.is_empty()).then(told)
}

fn name(request: &RequestDescription) -> String {
    format!("{} {}", request.method, request.url)
}

fn shown(outcome: &RoutingOutcome) -> Value {
    let plugin = |OutcomePlugin { name, source, .. }: &OutcomePlugin| format!("{name} from {source}");
    let plugins: Vec<String> = outcome.plugins.iter().map(plugin).collect();
    let of_plugins: Vec<&String> = outcome.upstreams_of_plugins.iter().map(|(key, _)| key).collect();
    json!({
        "route": outcome.route,
        "plugins": plugins,
        "upstream": outcome.upstream,
        "upstreams_of_plugins": of_plugins,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_texts_or_maps() {
        let read = described(&"GET  https://a/b?c".into()).expect("a request");
        assert_eq!((&*read.method, &*read.url, read.from), ("GET", "https://a/b?c", CLIENT));
        let map = json!({"url": "http://a/", "headers": {"X-Tenant": "b"}, "from": "10.0.0.1"});
        let read = described(&map).expect("a request");
        assert_eq!(
            (&*read.method, read.headers, read.from),
            ("GET", vec!["X-Tenant: b".to_owned()], [10, 0, 0, 1].into())
        );
        for (wrong, problem) in [
            (json!("GET"), "write a method and a URL"),
            (json!(7), "write a method and a URL"),
            (json!({"method": "GET"}), "missing `url`"),
            (json!({"url": 7}), "`url` is no text"),
            (json!({"url": "http://a/", "from": "here"}), "`here` is not an IP address"),
            (json!({"url": "http://a/", "headers": {"a": 1}}), "the header field `a` is no text"),
            (json!({"url": "http://a/", "header": {}}), "unknown member `header`"),
        ] {
            let told = described(&wrong).expect_err("wrong");
            assert!(told.starts_with(problem), "{told}");
        }
    }
}
