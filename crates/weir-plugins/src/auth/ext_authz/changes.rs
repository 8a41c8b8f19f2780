//! What a decision does: changes of fields, of the query and of variables, or a refusal. All of it is checked before any of it is
//! done.

use std::fmt;

use weir_plugin::proto::field;
use weir_plugin::{Exchange, Stop};

use super::query;
use crate::envoy::fields::{
    FieldAction, FieldChange, MOST_CHANGED_BYTES, MOST_CHANGES, UnknownAction, apply, is_managed, is_of_gateway,
};
use crate::envoy::metadata::MetadataVariables;

/// The changes of a request that is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub request: Vec<FieldChange>,
    pub removed: Vec<Box<[u8]>>,
    pub response: Vec<FieldChange>,
    pub set_arguments: Vec<(String, String)>,
    pub removed_arguments: Vec<String>,
    pub metadata: Vec<(String, Vec<u8>)>,
}

/// The response to a request that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckRefusal {
    pub status: u16,
    pub fields: Vec<FieldChange>,
    pub body: Vec<u8>,
    pub metadata: Vec<(String, Vec<u8>)>,
}

/// Why an answer is not a decision.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadDecision {
    NotGrpc,
    NoMessage,
    NoDecision,
    Contradiction,
    BadStatus(i64),
    BadAction(UnknownAction),
    BadField(String),
    ForbiddenField(String),
    TooMany(&'static str),
}

impl fmt::Display for BadDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadDecision::NotGrpc => write!(f, "the answer is not one of gRPC; is it the address of a gRPC service?"),
            BadDecision::NoMessage => write!(f, "the answer has no valid CheckResponse"),
            BadDecision::NoDecision => write!(f, "the answer has neither `status` nor `ok_response`"),
            BadDecision::Contradiction => write!(f, "`status` is OK, and there is a response for a refusal"),
            BadDecision::BadStatus(status) => {
                write!(f, "the status of the response is {status}, and must be 200 to 599")
            }
            BadDecision::BadAction(unknown) => unknown.fmt(f),
            BadDecision::BadField(name) => write!(f, "the name or the value of the field {name:?} is not allowed"),
            BadDecision::ForbiddenField(name) => write!(
                f,
                "the service may not set the field {name:?} of requests; `trusted_headers` can only allow those that tell of clients"
            ),
            BadDecision::TooMany(what) => {
                write!(f, "the answer has too many {what}: at most {MOST_CHANGES}, and {MOST_CHANGED_BYTES} bytes")
            }
        }
    }
}

fn quoted(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(64).collect()
}

fn check_size(what: &'static str, count: usize, lengths: impl Iterator<Item = usize>) -> Result<(), BadDecision> {
    let is_within = count <= MOST_CHANGES && lengths.sum::<usize>() <= MOST_CHANGED_BYTES;
    if is_within { Ok(()) } else { Err(BadDecision::TooMany(what)) }
}

/// Checks the form of fields, and their size.
fn check_fields(fields: &[FieldChange]) -> Result<(), BadDecision> {
    check_size("fields", fields.len(), fields.iter().map(|field| field.name.len() + field.value.len()))?;
    match fields.iter().find(|field| !field::is_name(&field.name) || !field::is_value(&field.value)) {
        Some(field) => Err(BadDecision::BadField(quoted(&field.name))),
        None => Ok(()),
    }
}

impl Changes {
    /// Checks all changes. A field that requests may not get is an error, unless it is one of the gateway that the service is trusted
    /// to set.
    pub(super) fn check(mut self, is_trusted: impl Fn(&[u8]) -> bool) -> Result<Changes, BadDecision> {
        check_fields(&self.request)?;
        check_fields(&self.response)?;
        let is_forbidden = |name: &[u8]| is_managed(name) || is_of_gateway(name) && !is_trusted(name);
        if let Some(field) = self.request.iter().find(|field| is_forbidden(&field.name)) {
            return Err(BadDecision::ForbiddenField(quoted(&field.name)));
        }
        // As in Envoy: these cannot be removed, and are ignored.
        self.removed.retain(|name| field::is_name(name) && !is_forbidden(name));
        self.response.retain(|field| !is_managed(&field.name));
        let lengths = self.set_arguments.iter().map(|(name, value)| name.len() + value.len());
        let lengths = lengths.chain(self.removed_arguments.iter().map(String::len));
        check_size("arguments", self.set_arguments.len() + self.removed_arguments.len(), lengths)?;
        check_size("fields to remove", self.removed.len(), self.removed.iter().map(|name| name.len()))?;
        check_metadata(&self.metadata)?;
        Ok(self)
    }

    /// Changes the request. What is for the response is left.
    pub(super) fn apply(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        for change in &self.request {
            apply(change, &mut exchange.request.head)?;
            exchange.mark_personal(&change.name);
        }
        for name in &self.removed {
            exchange.request.head.remove(name);
            exchange.mark_personal(name);
        }
        if !self.set_arguments.is_empty() || !self.removed_arguments.is_empty() {
            let query = exchange.request.query().unwrap_or_default();
            let query = query::edited(query, &self.set_arguments, &self.removed_arguments);
            exchange.request.set_query(&query).map_err(|_| Stop::Internal)?;
        }
        set_variables(&self.metadata, exchange);
        Ok(())
    }
}

fn check_metadata(metadata: &[(String, Vec<u8>)]) -> Result<(), BadDecision> {
    let lengths = metadata.iter().map(|(name, value)| name.len() + value.len());
    check_size("members of metadata", metadata.len(), lengths)
}

fn set_variables(metadata: &[(String, Vec<u8>)], exchange: &mut Exchange) {
    for (name, value) in MetadataVariables::default().of(metadata) {
        exchange.set_authorization_metadata(&name, &value);
    }
}

impl CheckRefusal {
    /// Checks the response; what the gateway manages itself is left out.
    pub(super) fn check(mut self) -> Result<CheckRefusal, BadDecision> {
        check_fields(&self.fields)?;
        check_metadata(&self.metadata)?;
        self.fields.retain(|field| !is_managed(&field.name));
        match self.status {
            200..=599 => Ok(self),
            status => Err(BadDecision::BadStatus(status.into())),
        }
    }

    pub(super) fn send(&self, exchange: &mut Exchange) -> Stop {
        set_variables(&self.metadata, exchange);
        let stop = exchange.respond(self.status, "text/plain; charset=utf-8", &self.body);
        let is_type = |field: &&FieldChange| field.name.eq_ignore_ascii_case(b"content-type");
        if self.fields.iter().any(|field| is_type(&field)) {
            exchange.response.head.remove(b"Content-Type");
        }
        match self.fields.iter().try_for_each(|change| apply_to_response(change, exchange)) {
            Ok(()) => stop,
            Err(stop) => stop,
        }
    }
}

/// Changes a field of the response. A `Set-Cookie` replaces no other one: each is a cookie of its own (RFC 6265 §3).
pub(super) fn apply_to_response(change: &FieldChange, exchange: &mut Exchange) -> Result<(), Stop> {
    let head = &mut exchange.response.head;
    match change.action {
        FieldAction::Overwrite if change.name.eq_ignore_ascii_case(b"set-cookie") => {
            head.add(&change.name, &change.value).map_err(|_| Stop::Internal)
        }
        _ => apply(change, head),
    }
}

/// Writes changes as bytes, a line for each, to keep them until the response.
pub(super) fn write(changes: &[FieldChange], out: &mut Vec<u8>) {
    for FieldChange { name, value, action } in changes {
        out.push(b'0' + *action as u8);
        out.extend_from_slice(&[name, &b":"[..], value, b"\n"].concat());
    }
}

/// Reads what [`write`] has written.
pub(super) fn read(lines: &[u8]) -> impl Iterator<Item = FieldChange> {
    lines.split(|&byte| byte == b'\n').filter_map(|line| {
        let (action, line) = line.split_first()?;
        let colon = line.iter().position(|&byte| byte == b':')?;
        let action = FieldAction::of(i32::from(*action) - i32::from(b'0'))?;
        Some(FieldChange { name: line[..colon].into(), value: line[colon + 1..].into(), action })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{body, exchange, sent};

    fn change(name: &str, value: &str, action: FieldAction) -> FieldChange {
        FieldChange { name: name.as_bytes().into(), value: value.as_bytes().into(), action }
    }

    fn request(fields: Vec<FieldChange>) -> Changes {
        Changes { request: fields, ..Changes::default() }
    }

    #[test]
    fn a_service_does_not_remove_fields_that_the_gateway_sets_about_clients() {
        let changes = Changes {
            removed: vec![b"X-Consumer-Username".as_slice().into(), b"X-Old".as_slice().into()],
            ..Changes::default()
        };
        let names = |changes: Result<Changes, BadDecision>| changes.expect("valid").removed.len();
        assert_eq!(names(changes.clone().check(|_| false)), 1);
        assert_eq!(names(changes.check(|_| true)), 2);
    }

    #[test]
    fn a_member_of_metadata_is_not_replaced_by_one_whose_name_is_like_it() {
        let mut request = exchange("GET / HTTP/1.1\nHost: h");
        let member = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        set_variables(&[member("org_id", "7"), member("org~id", "8"), member("a-b", "9")], &mut request);
        let mut told = Vec::new();
        weir_plugin::Template::compile("$ext_authz_org_id $ext_authz_a_b").render(&request, &mut told);
        assert_eq!(String::from_utf8_lossy(&told), "7 9");
    }

    #[test]
    fn fields_are_added_replaced_and_removed() {
        use FieldAction::{AddIfAbsent, Append, Overwrite, OverwriteIfPresent};
        let changes = Changes {
            removed: vec![b"authorization".as_slice().into(), b"host".as_slice().into(), b":path".as_slice().into()],
            set_arguments: vec![("a".into(), "2".into())],
            metadata: vec![("org.id".into(), b"7".to_vec())],
            ..request(vec![
                change("x-user", "jack", Overwrite),
                change("x-role", "b", Append),
                change("x-a", "2", AddIfAbsent),
                change("x-new", "1", AddIfAbsent),
                change("x-none", "1", OverwriteIfPresent),
                change("x-there", "2", OverwriteIfPresent),
            ])
        };
        let changes = changes.check(|_| false).expect("valid");
        let mut request =
            exchange("GET /?a=1 HTTP/1.1\nHost: h\nX-User: root\nX-Role: a\nX-A: 1\nX-There: 1\nAuthorization: secret");
        changes.apply(&mut request).expect("applied");
        let head = &request.request.head;
        let values =
            |name: &str| head.values(name.as_bytes()).map(String::from_utf8_lossy).collect::<Vec<_>>().join("+");
        let told = ["x-user", "x-role", "x-a", "x-new", "x-none", "x-there", "authorization", "host"].map(values);
        assert_eq!(told, ["jack", "a+b", "1", "1", "", "2", "", "h"]);
        assert_eq!(request.request.query(), Some(&b"a=2"[..]));
        assert_eq!(request.authorization_metadata("org_id"), Some(&b"7"[..]));
        assert_eq!(request.personal_fields().len(), 7, "with the one that was removed");
    }

    #[test]
    fn fields_that_requests_may_not_get_are_errors() {
        let trusts = |name: &[u8]| name == b"X-Real-IP";
        for (name, value, is_valid) in [
            ("x-user", "jack", true),
            ("X-Forwarded-User", "jack", true),
            ("X-Real-IP", "192.0.2.1", true),
            ("X-Forwarded-For", "192.0.2.1", false),
            ("Forwarded", "for=192.0.2.1", false),
            ("X-Original-URL", "/admin", false),
            ("X-Consumer-Username", "root", false),
            ("Host", "inner", false),
            (":path", "/admin", false),
            ("Content-Length", "0", false),
            ("Transfer-Encoding", "chunked", false),
            ("Connection", "close", false),
            ("Expect", "100-continue", false),
            ("x a", "1", false),
            ("", "1", false),
            ("x-a", "1\r\nX-B: 2", false),
        ] {
            let checked = request(vec![change(name, value, FieldAction::Overwrite)]).check(trusts);
            assert_eq!(checked.is_ok(), is_valid, "{name}: {value:?}");
        }
    }

    #[test]
    fn decisions_have_bounds() {
        let none = |_: &[u8]| false;
        let many = |count| request(vec![change("x-a", "1", FieldAction::Append); count]).check(none);
        assert!(many(MOST_CHANGES).is_ok());
        assert_eq!(many(MOST_CHANGES + 1), Err(BadDecision::TooMany("fields")));
        let large = "a".repeat(MOST_CHANGED_BYTES);
        let fields = vec![change("x-a", &large, FieldAction::Append)];
        assert_eq!(request(fields.clone()).check(none), Err(BadDecision::TooMany("fields")));
        let response = Changes { response: fields, ..Changes::default() };
        assert_eq!(response.check(none), Err(BadDecision::TooMany("fields")));
        let arguments = Changes { set_arguments: vec![("a".into(), large.clone())], ..Changes::default() };
        assert_eq!(arguments.check(none), Err(BadDecision::TooMany("arguments")));
        let removed = Changes { removed: vec![b"a".as_slice().into(); MOST_CHANGES + 1], ..Changes::default() };
        assert_eq!(removed.check(none), Err(BadDecision::TooMany("fields to remove")));
        let metadata = Changes { metadata: vec![("a".into(), large.into_bytes())], ..Changes::default() };
        assert_eq!(metadata.check(none), Err(BadDecision::TooMany("members of metadata")));
    }

    #[test]
    fn refusals_have_a_status_fields_and_a_body() {
        let refusal = |status, fields| CheckRefusal { status, fields, body: b"{}".to_vec(), metadata: Vec::new() };
        let fields = vec![
            change("content-type", "application/json", FieldAction::Overwrite),
            change("Set-Cookie", "a=1", FieldAction::Overwrite),
            change("Set-Cookie", "b=2", FieldAction::Overwrite),
            change("Content-Length", "7", FieldAction::Overwrite),
        ];
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h");
        assert_eq!(refusal(401, fields).check().expect("valid").send(&mut exchange), Stop::Answered);
        assert_eq!((exchange.response.status, body(&exchange)), (401, "{}"));
        assert_eq!(
            (sent(&exchange, "Content-Type"), sent(&exchange, "Content-Length")),
            (Some("application/json"), None)
        );
        assert_eq!(exchange.response.head.values(b"set-cookie").count(), 2);
        for status in [0, 100, 199, 600] {
            assert_eq!(refusal(status, Vec::new()).check(), Err(BadDecision::BadStatus(status.into())));
        }
        let broken = vec![change("a", "1\n2", FieldAction::Append)];
        assert_eq!(refusal(403, broken).check(), Err(BadDecision::BadField("a".to_owned())));
    }

    #[test]
    fn changes_of_the_response_are_kept_as_bytes() {
        let all: Vec<FieldChange> = (0..4)
            .map(|number| change("X-A", "a: b", FieldAction::of(number).expect("one of four")))
            .chain([change("B", "", FieldAction::Append)])
            .collect();
        let mut lines = Vec::new();
        write(&all, &mut lines);
        assert_eq!(read(&lines).collect::<Vec<_>>(), all);
        assert_eq!(FieldAction::of(4), None);
    }
}
