//! Responses of the Admin API, in the format of Apache APISIX.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::kinds;
use crate::document::RESOURCE_LISTS;
use crate::stores::resources::ResourceKey;
use crate::stores::store::StoreFailure;
use crate::stores::writes::PlanRefusal;
use crate::text::diagnostic::{Diagnostic, FaultCause};

pub(super) type AdminResponse = Response<Bytes>;

/// A result, or a response to return instead.
pub(super) type Refused<T> = Result<T, Box<AdminResponse>>;

/// The store revision that a response refers to.
pub(super) const REVISION: HeaderName = HeaderName::from_static("x-weir-revision");

pub(super) fn json_of(status: StatusCode, value: &Value) -> AdminResponse {
    text(status, value.to_string())
}

/// Plain texts have the media type of JSON as well, as in APISIX.
pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> AdminResponse {
    let mut answer = Response::new(text.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

pub(super) fn wrong(problem: impl Into<String>) -> AdminResponse {
    json_of(StatusCode::BAD_REQUEST, &json!({ "error_msg": problem.into() }))
}

pub(super) fn refuse<T>(problem: impl Into<String>) -> Refused<T> {
    Err(Box::new(wrong(problem)))
}

/// Refuses with a text that clients of APISIX know, and the reason beside it.
pub(super) fn refuse_described<T>(problem: &str, description: &str) -> Refused<T> {
    let body = json!({ "error_msg": problem, "description": description });
    Err(Box::new(json_of(StatusCode::BAD_REQUEST, &body)))
}

pub(super) fn key_not_found() -> AdminResponse {
    json_of(StatusCode::NOT_FOUND, &json!({ "message": "Key not found" }))
}

pub(super) fn not_found() -> AdminResponse {
    let problem = "not found; lists of resources are at `/apisix/admin/{list}`, such as `/apisix/admin/routes`, the state of the node is \
                   at `/weir/v1/status`, and the console at `/console/`";
    json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": problem }))
}

/// A path that is there, asked with a method that it does not have.
pub(super) fn other_method(method: &Method, allowed: &'static str) -> AdminResponse {
    method_not_allowed(&format!("the method {method} is not allowed here; use {allowed}"), allowed)
}

/// `allowed` are the methods that the resource has (RFC 9110 section 15.5.6).
pub(super) fn method_not_allowed(problem: &str, allowed: &'static str) -> AdminResponse {
    let mut answer = json_of(StatusCode::METHOD_NOT_ALLOWED, &json!({ "error_msg": problem }));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

pub(super) fn refused(refusal: &PlanRefusal) -> AdminResponse {
    match refusal {
        PlanRefusal::Missing => key_not_found(),
        PlanRefusal::NoConsumer => json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": "consumer not found" })),
        PlanRefusal::Wrong(problem) => wrong(problem),
        PlanRefusal::TooMuchWork(problem) => json_of(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "error_msg": problem })),
        PlanRefusal::OutOfScope(key) => {
            let problem = format!("the scopes of this key or token do not cover `{key}`");
            json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }))
        }
        PlanRefusal::NameOutOfScope(key, name) => {
            let problem = format!(
                "`{key}`: the name `{name}` covers, or is covered by, a name of `ssls` outside of the scopes of this key or token"
            );
            json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }))
        }
        PlanRefusal::GroupOutOfScope(key, group) => {
            let problem = format!(
                "`{key}`: the group `{group}` of `limit-count` is used outside of the scopes of this key or token; choose another `group`"
            );
            json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }))
        }
        PlanRefusal::NotOfRole(role, key) => {
            let problem = format!("the role {role} may not change {}", key.list());
            json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }))
        }
        PlanRefusal::MovedOn(current) => {
            let problem = "the resource is not at the revision given in `If-Match`; read the resource again";
            precondition_failed(problem, *current)
        }
        PlanRefusal::StoreMovedOn(now) => {
            let problem = format!(
                "the store is at revision {now}, not at the one given in `if_revision`: there were changes since; \
                 read what has changed, and send the request again with `if_revision` {now}"
            );
            precondition_failed(&problem, Some(*now))
        }
        PlanRefusal::Exists(current) => {
            precondition_failed("the resource exists, and `If-None-Match: *` is for a new one", Some(*current))
        }
    }
}

fn precondition_failed(problem: &str, current: Option<u64>) -> AdminResponse {
    let body = json!({ "error_msg": problem, "modifiedIndex": current });
    let mut answer = json_of(StatusCode::PRECONDITION_FAILED, &body);
    if let Some(current) = current {
        tag(&mut answer, current);
    }
    answer
}

pub(super) fn failed(failure: &StoreFailure) -> AdminResponse {
    json_of(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error_msg": failure.to_string() }))
}

/// The response to a change with patterns that are too large together.
pub(super) fn too_costly(bytes: usize) -> AdminResponse {
    let problem = format!(
        "the regular expressions of this request take more than {} MiB when they are compiled; simplify them, or send the \
         resources in several requests",
        bytes >> 20
    );
    json_of(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "error_msg": problem }))
}

/// The most findings in a list of a response; the response says how many more there are.
const MOST_FINDINGS: usize = 1_000;
/// The most bytes of their texts.
const MOST_FINDINGS_BYTES: usize = 512 << 10;

/// Puts findings into a response, each as `told` writes it: the first ones, and the number of the others as `NAME_more`.
pub(super) fn list_findings<T>(body: &mut Value, name: &str, found: &[T], told: impl Fn(&T) -> Value) {
    let mut bytes = 0;
    let has_room = |value: &Value| {
        bytes += value.to_string().len();
        bytes <= MOST_FINDINGS_BYTES
    };
    let listed: Vec<Value> = found.iter().take(MOST_FINDINGS).map(told).take_while(has_room).collect();
    if listed.len() < found.len() {
        body[format!("{name}_more")] = (found.len() - listed.len()).into();
    }
    body[name] = listed.into();
}

/// Adds what is probably not intended in a change that was made or checked, or does not work at the moment.
pub(super) fn warn(body: &mut Value, warnings: &[Diagnostic]) {
    if !warnings.is_empty() {
        list_findings(body, "warnings", warnings, diagnostic);
    }
}

/// A response with the faults; the first one is also in `error_msg`, where clients of APISIX look.
pub(super) fn invalid(diagnostics: &[Diagnostic]) -> AdminResponse {
    let first = diagnostics.first();
    let first = first
        .map_or_else(|| "invalid configuration".to_owned(), |fault| missing(fault).unwrap_or_else(|| message(fault)));
    let mut body = json!({ "error_msg": first });
    list_findings(&mut body, "diagnostics", diagnostics, diagnostic);
    json_of(StatusCode::BAD_REQUEST, &body)
}

/// The message of APISIX for a reference to a resource that is not there.
fn missing(fault: &Diagnostic) -> Option<String> {
    let FaultCause::Missing(missing) = &fault.cause else { return None };
    let (list, id) = missing.key.split_once('/')?;
    let (_, place) = key_and_place(&fault.path);
    let name = kinds::find(list).filter(|_| !place.starts_with("plugins"))?.name;
    Some(format!("failed to fetch {name} info by {name} id [{id}], response code: 404"))
}

/// The message in the form that APISIX has for such a fault, with the path and advice of the diagnostic.
pub(super) fn message(fault: &Diagnostic) -> String {
    let told = match &fault.advice {
        Some(advice) => format!("{}; {advice}", fault.problem),
        None => fault.problem.clone(),
    };
    let (_, place) = key_and_place(&fault.path);
    if let Some(rest) = place.strip_prefix("plugins.") {
        let (plugin, option) = rest.split_once(['.', '[']).unwrap_or((rest, ""));
        if fault.problem.starts_with("this version has no plugin") {
            return format!("unknown plugin [{plugin}]: {told}");
        }
        let place = if option.is_empty() { String::new() } else { format!("property \"{option}\": ") };
        return format!("failed to check the configuration of plugin {plugin} err: {place}{told}");
    }
    match place {
        "" => format!("invalid configuration: {told}"),
        place => format!("invalid configuration: property \"{place}\" validation failed: {told}"),
    }
}

/// The resource that a path begins with, and the place in it: `routes/r: uri` is a member of a resource, `routes/r` the resource as a
/// whole, and `uri` a member of what was sent.
fn key_and_place(path: &str) -> (Option<&str>, &str) {
    let is_resource = |path: &str| ResourceKey::parse(path).is_some_and(|key| RESOURCE_LISTS.contains(&key.list()));
    match path.split_once(": ") {
        Some((key, place)) if is_resource(key) => (Some(key), place),
        _ if is_resource(path) => (Some(path), ""),
        _ => (None, path),
    }
}

pub(super) fn diagnostic(fault: &Diagnostic) -> Value {
    let mut told = json!({ "path": fault.path, "problem": fault.problem });
    let (key, place) = key_and_place(&fault.path);
    told["pointer"] = pointer(place).into();
    if let Some(key) = key {
        told["key"] = key.into();
    }
    if let Some(advice) = &fault.advice {
        told["advice"] = advice.as_str().into();
    }
    told
}

/// The JSON Pointer (RFC 6901) of a path such as `plugins.cors.allow_origins[0]` or `headers["x.y"]`. A path cannot tell whether a
/// number is the index of a list or a quoted key, and a pointer need not.
fn pointer(path: &str) -> String {
    let mut pointer = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        let (key, after) = match rest.strip_prefix("[\"") {
            Some(quoted) => quoted_key(quoted),
            None => {
                let step = rest.trim_start_matches(['.', '[']);
                let end = step.find(['.', '[']).unwrap_or(step.len());
                (step[..end].trim_end_matches(']').to_owned(), &step[end..])
            }
        };
        pointer.push('/');
        pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
        rest = after;
    }
    pointer
}

/// The key at the start of `x.y"] …`, and what follows it.
fn quoted_key(text: &str) -> (String, &str) {
    let (mut key, mut is_escaped) = (String::new(), false);
    for (at, one) in text.char_indices() {
        match one {
            '"' if !is_escaped => return (key, text[at + 1..].strip_prefix(']').unwrap_or_default()),
            '\\' if !is_escaped => is_escaped = true,
            _ => {
                key.push(one);
                is_escaped = false;
            }
        }
    }
    (key, "")
}

/// Sets the `ETag`, which `If-Match` of later requests is compared with.
pub(super) fn tag(answer: &mut AdminResponse, revision: u64) {
    let value = HeaderValue::from_str(&format!("\"{revision}\"")).expect("digits in quotes are a field value");
    answer.headers_mut().insert(ETAG, value);
}

pub(super) fn at_revision(answer: &mut AdminResponse, revision: u64) {
    answer.headers_mut().insert(REVISION, revision.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_pointers() {
        for (path, expected) in [
            ("", ""),
            ("uri", "/uri"),
            ("plugins.jwt-auth.claims_to_verify[0]", "/plugins/jwt-auth/claims_to_verify/0"),
            ("plugins.proxy-rewrite.headers[\"x.y\"].set", "/plugins/proxy-rewrite/headers/x.y/set"),
            ("a[\"b/c~d\"][2]", "/a/b~1c~0d/2"),
            ("a[\"say \\\"hi\\\"]\"].b", "/a/say \"hi\"]/b"),
            ("routes[2].uri", "/routes/2/uri"),
        ] {
            assert_eq!(pointer(path), expected, "{path}");
        }
    }

    #[test]
    fn a_diagnostic_names_its_resource_and_the_place_in_it() {
        let of = |path: &str| {
            diagnostic(&Diagnostic { path: path.to_owned(), ..Diagnostic::of_source(&"s".into(), "wrong") })
        };
        assert_eq!(
            of("routes/r1: upstream.nodes"),
            json!({"path": "routes/r1: upstream.nodes", "problem": "wrong", "pointer": "/upstream/nodes", "key": "routes/r1"})
        );
        assert_eq!((&of("routes/r1")["pointer"], &of("routes/r1")["key"]), (&json!(""), &json!("routes/r1")));
        assert_eq!((&of("routes[0].uri")["pointer"], of("routes[0].uri").get("key")), (&json!("/routes/0/uri"), None));
    }

    #[test]
    fn findings_are_bounded_and_the_rest_is_counted() {
        let listed = |count: usize, text: &str| {
            let mut body = json!({});
            list_findings(&mut body, "errors", &vec![text; count], |text| (*text).into());
            (body["errors"].as_array().map(Vec::len), body.get("errors_more").and_then(Value::as_u64))
        };
        assert_eq!(listed(3, "a"), (Some(3), None));
        assert_eq!(listed(MOST_FINDINGS + 5, "a"), (Some(MOST_FINDINGS), Some(5)));
        let half = "a".repeat(MOST_FINDINGS_BYTES / 2 - 2);
        assert_eq!(listed(3, &half), (Some(2), Some(1)));
    }
}
