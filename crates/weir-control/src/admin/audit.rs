//! The audit log: one JSON line for each requested change, applied or not, and for each request that was refused because of its
//! sender. No line contains values of members.

use http::request::Parts;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::answer::AdminResponse;
use super::difference::{action, changed_members};
use super::kinds::{self, CREDENTIAL};
use super::query::{Query, decoded_path};
use super::request::{AdminPeer, is_check};
use crate::document::AdminRole;
use crate::stores::resources::{ResourceChange, RevisionRecord};

/// The sink for lines, without line breaks. It neither blocks nor fails.
pub type AuditSink = Box<dyn Fn(String) + Send + Sync>;

/// The sender of a request, passed in an extension of the response.
#[derive(Clone)]
pub(super) struct AuditedCaller {
    pub(super) name: String,
    pub(super) role: AdminRole,
}

/// The reason of a refusal, and the refused caller if known: an extension of responses that are not JSON.
#[derive(Clone)]
pub(super) struct AuditedRefusal {
    pub(super) who: Option<String>,
    pub(super) reason: String,
}

/// The change that was made or, in a dry run, would have been, passed in an extension of the response.
#[derive(Clone)]
pub(super) struct AuditedChange {
    revision: u64,
    message: String,
    /// The effects on resources, without values.
    changes: Value,
    dry_run: bool,
}

/// The files that were written, or in a dry run would have been, passed in an extension of the response.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditedFiles {
    pub(super) written: Vec<Box<str>>,
    /// Those that were to be written as well.
    pub(super) not_written: Vec<Box<str>>,
    /// Those of which it is not known, since the file system has not answered.
    pub(super) unknown: Vec<Box<str>>,
    /// The settings of the node that are others than before.
    pub(super) settings: Vec<String>,
}

impl AuditedFiles {
    /// Adds them to a line.
    fn tell(self, line: &mut Value) {
        let names = |names: &[Box<str>]| names.iter().map(|name| &**name).collect::<Value>();
        line["files"] = names(&self.written);
        for (member, some) in [("not_written", self.not_written), ("unknown", self.unknown)] {
            if !some.is_empty() {
                line[member] = names(&some);
            }
        }
        line["settings"] = self.settings.into();
    }
}

/// What was changed in another environment, or in a dry run would have been, passed in an extension of the response.
#[derive(Clone, Debug)]
pub(super) struct AuditedPromotion {
    pub(super) environment: String,
    /// The keys of the resources.
    pub(super) keys: Vec<String>,
}

impl AuditedPromotion {
    fn tell(self, line: &mut Value) {
        line["environment"] = self.environment.into();
        line["keys"] = self.keys.into();
    }
}

/// The sink that a test record was for, passed in an extension of the response.
#[derive(Clone, Debug)]
struct AuditedSink(String);

/// Passes the sink of a test record on for the audit log.
pub(super) fn audit_test_record(answer: &mut AdminResponse, sink: &str) {
    answer.extensions_mut().insert(AuditedSink(sink.chars().take(MAX_TOLD).collect()));
}

/// Passes the files of a change on for the audit log.
pub(super) fn audit_files(answer: &mut AdminResponse, files: AuditedFiles) {
    answer.extensions_mut().insert(files);
}

/// Passes a change on for the audit log.
pub(super) fn audit_change(answer: &mut AdminResponse, record: &RevisionRecord, dry_run: bool) {
    let RevisionRecord { revision, author, changes, .. } = record;
    let changes = changes.iter().map(told).collect();
    answer.extensions_mut().insert(AuditedChange {
        revision: *revision,
        message: author.message.clone(),
        changes,
        dry_run,
    });
}

/// The facts of a request that are known before it is processed.
pub(super) struct AuditedRequest {
    method: Method,
    path: String,
    address: String,
    user_agent: Option<String>,
    message: Option<String>,
    dry_run: bool,
}

/// The most characters of each field from the client.
const MAX_TOLD: usize = 256;

impl AuditedRequest {
    /// The query is left out, since it may contain a key.
    pub(super) fn of(head: &Parts, peer: AdminPeer) -> AuditedRequest {
        let field = |name: &str| {
            let value = head.headers.get(name).and_then(|value| value.to_str().ok());
            value.map(|value| value.chars().take(MAX_TOLD).collect())
        };
        AuditedRequest {
            method: head.method.clone(),
            path: head.uri.path().chars().take(MAX_TOLD).collect(),
            address: peer.address(),
            user_agent: field("user-agent"),
            message: field("x-weir-message"),
            dry_run: Query::parse(head.uri.query().unwrap_or_default()).is_true("dry_run"),
        }
    }

    /// The line about the request; `None` if it neither changed nor was to change anything.
    pub(super) fn line(self, answer: &mut AdminResponse) -> Option<String> {
        let caller = answer.extensions_mut().remove::<AuditedCaller>();
        let change = answer.extensions_mut().remove::<AuditedChange>();
        let files = answer.extensions_mut().remove::<AuditedFiles>();
        let refusal = answer.extensions_mut().remove::<AuditedRefusal>();
        let status = answer.status();
        if change.is_none() && !self.is_audited(status, caller.is_some()) {
            return None;
        }
        let AuditedRequest { method, path, address, user_agent, message, dry_run } = self;
        let outcome = match status {
            _ if change.is_some() => "accepted",
            status if status.is_success() => "accepted",
            status if status.is_server_error() => "failed",
            _ => "refused",
        };
        let mut line = json!({
            "time": format!("{:.3}", Timestamp::now()),
            "outcome": outcome,
            "status": status.as_u16(),
            "who": caller.as_ref().map(|caller| &caller.name).or(refusal.as_ref().and_then(|refusal| refusal.who.as_ref())),
            "role": caller.as_ref().map(|caller| caller.role.name()),
            "address": address,
            "user_agent": user_agent,
            "method": method.as_str(),
            "path": path,
            "dry_run": change.as_ref().map_or(dry_run, |change| change.dry_run),
            "message": message,
        });
        match change {
            Some(AuditedChange { revision, message, changes, dry_run }) => {
                if !dry_run {
                    line["revision"] = revision.into();
                }
                if !message.is_empty() {
                    line["message"] = message.into();
                }
                line["changes"] = changes;
            }
            None if outcome != "accepted" => {
                line["reason"] = refusal.map_or_else(|| reason(answer), |refusal| refusal.reason.into());
            }
            None => {}
        }
        if let Some(files) = files {
            files.tell(&mut line);
        }
        if let Some(promotion) = answer.extensions_mut().remove::<AuditedPromotion>() {
            promotion.tell(&mut line);
        }
        if let Some(AuditedSink(sink)) = answer.extensions_mut().remove() {
            line["sink"] = sink.into();
        }
        if let Value::Object(members) = &mut line {
            members.retain(|_, value| !value.is_null());
        }
        Some(line.to_string())
    }

    fn is_audited(&self, status: StatusCode, has_caller: bool) -> bool {
        let is_refused =
            matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST);
        let path: Vec<String> =
            self.path.split('/').filter(|part| !part.is_empty()).skip(2).map(decoded_path).collect();
        let changes = !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS) && !is_check(&path);
        is_refused || has_caller && changes
    }
}

/// The effect on a resource, without values.
fn told(change: &ResourceChange) -> Value {
    let kind = match change.key.consumer_of_credential() {
        Some(_) => Some(&CREDENTIAL),
        None => kinds::find(change.key.list()),
    };
    json!({
        "key": change.key,
        "kind": kind.map(|kind| kind.name),
        "id": change.key.id(),
        "action": action(change),
        "members": changed_members(change),
    })
}

/// Why a request was refused. Of an invalid configuration only the paths are logged, since its values may be secrets.
fn reason(answer: &AdminResponse) -> Value {
    let body: Map<String, Value> = serde_json::from_slice(answer.body()).unwrap_or_default();
    if let Some(diagnostics) = body.get("diagnostics").and_then(Value::as_array) {
        let places: Vec<&str> = diagnostics.iter().filter_map(|fault| fault["path"].as_str()).collect();
        return format!("invalid configuration: {}", places.join(", ")).into();
    }
    body.get("description")
        .or_else(|| body.get("error_msg"))
        .or_else(|| body.get("message"))
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};

    use super::super::answer;
    use super::*;
    use crate::stores::resources::{Author, ResourceKey, StoredResource};

    fn line_of(method: &str, target: &str, mut answer: AdminResponse, caller: Option<&str>) -> Option<Value> {
        let request = Request::builder().method(method).uri(target).header("user-agent", "curl/8");
        let (head, ()) = request.body(()).expect("a request").into_parts();
        let address = "10.0.0.7:5000".parse().expect("an address");
        if let Some(name) = caller {
            answer.extensions_mut().insert(AuditedCaller { name: name.to_owned(), role: AdminRole::Editor });
        }
        let line = AuditedRequest::of(&head, AdminPeer::Tcp { local: address, remote: address }).line(&mut answer)?;
        Some(serde_json::from_str(&line).expect("JSON"))
    }

    #[test]
    fn files_of_which_it_is_not_known_whether_they_were_written_are_named() {
        let mut answer = answer::json_of(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error_msg": "it is not known" }));
        audit_files(&mut answer, AuditedFiles { unknown: vec!["weir.yaml".into()], ..AuditedFiles::default() });
        let line = line_of("PUT", "/weir/v1/draft", answer, Some("ann")).expect("a line");
        assert_eq!((&line["files"], &line["unknown"]), (&json!([]), &json!(["weir.yaml"])), "{line}");
        assert_eq!((&line["outcome"], &line["not_written"]), (&json!("failed"), &Value::Null), "{line}");
    }

    fn stored(value: Value) -> Option<StoredResource> {
        Some(StoredResource { json: value.to_string().into(), created: 1, modified: 1, expires_ms: None })
    }

    #[test]
    fn changes_are_told_by_the_names_of_members() {
        let change = ResourceChange {
            key: ResourceKey::new("ssls", "1"),
            before: stored(json!({"key": "before", "snis": ["a"]})),
            after: stored(json!({"key": "after", "snis": ["a"]})),
        };
        let author = Author { message: "renewed".to_owned(), ..Author::default() };
        let record = RevisionRecord { revision: 7, at_ms: 5, author, changes: vec![change] };
        let mut answer = Response::new(bytes::Bytes::new());
        audit_change(&mut answer, &record, false);
        let line = line_of("PUT", "/apisix/admin/ssls/1?api_key=abc", answer, Some("ed")).expect("a line");
        assert_eq!(
            (&line["who"], &line["role"], &line["address"]),
            (&json!("ed"), &json!("editor"), &json!("10.0.0.7"))
        );
        assert_eq!(
            (&line["outcome"], &line["revision"], &line["message"]),
            (&json!("accepted"), &json!(7), &json!("renewed"))
        );
        assert_eq!(line["path"], "/apisix/admin/ssls/1");
        let expected = json!([{"key": "ssls/1", "kind": "ssl", "id": "1", "action": "changed", "members": ["key"]}]);
        assert_eq!(line["changes"], expected);
    }

    #[test]
    fn reads_are_not_told_and_refusals_are() {
        let ok = || answer::text(StatusCode::OK, "{}");
        assert_eq!(line_of("GET", "/apisix/admin/routes", ok(), Some("ed")), None);
        assert_eq!(line_of("POST", "/apisix/admin/configs/validate", ok(), Some("ed")), None);
        let unknown =
            answer::json_of(StatusCode::UNAUTHORIZED, &json!({"error_msg": "failed", "description": "wrong apikey"}));
        let line = line_of("GET", "/apisix/admin/routes", unknown, None).expect("a line");
        assert_eq!(
            (&line["outcome"], &line["reason"], line.get("who")),
            (&json!("refused"), &json!("wrong apikey"), None)
        );
        let told = json!({"error_msg": "`s3cret` is wrong", "diagnostics": [{"path": "routes/r: uri", "problem": "`s3cret` is wrong"}]});
        let wrong = answer::json_of(StatusCode::BAD_REQUEST, &told);
        let line = line_of("PUT", "/apisix/admin/routes/r?dry_run=true", wrong, Some("ed")).expect("a line");
        assert_eq!((&line["reason"], &line["dry_run"]), (&json!("invalid configuration: routes/r: uri"), &json!(true)));
        let failed = line_of("PUT", "/apisix/admin/routes/r", answer::wrong("x"), Some("ed")).expect("a line");
        assert_eq!(failed["outcome"], "refused");
    }
}
