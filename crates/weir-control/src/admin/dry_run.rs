//! Dry runs: what a change would do, to resources and to requests.

use std::net::{IpAddr, Ipv4Addr};

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::answer::{self, AdminResponse, Refused, json_of, refuse};
use super::audit::audit_change;
use super::difference::difference;
use super::request::AdminRequest;
use crate::explain::{OutcomePlugin, RequestDescription, RoutingComparison, RoutingOutcome};
use crate::stores::writes::{ComparedRequest, WriteReceipt};

/// The most requests to compare in one dry run.
const MOST_REQUESTS: usize = 10_000;
/// The address of clients whose address is not given.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The requests to compare: those of the query (`?request=GET https://shop.example/orders/1`, any number of times) and `listed`.
///
/// # Errors
/// A refusal if one cannot be read, there are too many, this is no dry run, or the caller may not see all resources.
pub(super) fn requests(request: &AdminRequest, listed: Option<&Value>) -> Refused<Vec<RequestDescription>> {
    let of_query = request.query.all("request").map(of_text);
    let mut requests = of_query.collect::<Refused<Vec<_>>>()?;
    match listed {
        None => {}
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let read = described(item);
                requests.push(read.or_else(|problem| refuse(format!("requests[{index}]: {problem}")))?);
            }
        }
        Some(_) => return refuse("`requests` must be a list, for example of `GET https://shop.example/orders/1`"),
    }
    if requests.is_empty() {
        return Ok(requests);
    }
    if !request.query.is_true("dry_run") {
        return refuse("requests are compared in a dry run only: add `dry_run=true`");
    }
    if requests.len() > MOST_REQUESTS {
        return refuse(format!("{} requests are more than the limit of {MOST_REQUESTS}", requests.len()));
    }
    request.caller.needs_all("the comparison of requests")?;
    Ok(requests)
}

fn of_text(text: &str) -> Refused<RequestDescription> {
    described(&text.into()).or_else(|problem| refuse(format!("invalid argument request: {problem}")))
}

/// Reads `GET https://shop.example/orders/1`, or a map with `method`, `url`, `headers` and `from`.
pub(super) fn described(item: &Value) -> Result<RequestDescription, String> {
    const FORM: &str = "write a method and a URL, such as `GET https://shop.example/orders/1`";
    match item {
        Value::String(text) => {
            let (method, url) = text.trim().split_once(' ').ok_or(FORM)?;
            let (method, url) = (method.to_owned(), url.trim().to_owned());
            Ok(RequestDescription { method, url, headers: Vec::new(), from: CLIENT })
        }
        Value::Object(members) => {
            let known = ["method", "url", "headers", "from"];
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
            Ok(RequestDescription { method, url, headers: fields(members)?, from })
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

/// The response to a dry run.
pub(super) fn tried(request: &AdminRequest, receipt: &WriteReceipt) -> AdminResponse {
    let WriteReceipt { record, compared, warnings, .. } = receipt;
    let changes: Vec<Value> = record.changes.iter().map(|change| difference(change, request.caller.role)).collect();
    let mut body = json!({ "dry_run": true, "revision": record.revision, "changes": changes });
    answer::warn(&mut body, warnings);
    if !compared.is_empty() {
        body["requests"] = told(compared);
    }
    let mut answer = json_of(StatusCode::OK, &body);
    audit_change(&mut answer, record, true);
    answer
}

fn told(compared: &[ComparedRequest]) -> Value {
    let (mut changed, mut malformed) = (Vec::new(), Vec::new());
    for one in compared {
        match one {
            Ok(comparison) => changed.extend(difference_of(comparison)),
            Err((request, problem)) => malformed.push(json!({ "request": name(request), "problem": problem })),
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
    json!({ "route": outcome.route, "plugins": plugins, "upstream": outcome.upstream })
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
