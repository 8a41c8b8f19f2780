//! `/weir/v1/draft`: the files of a node whose resources stand in files, changed in the hands of an admin.

mod findings;
mod hidden;
mod operations;
mod put;
mod rights;
mod trees;
mod units;

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use weir_plugin::pattern_budget;

use findings::{PlacesOfWords, refused_with};
use hidden::HiddenTexts;
use operations::EditedDraft;

use super::answer::{self, AdminResponse, Refused, json_of, list_findings, refuse};
use super::context::AdminContext;
use super::hubs::no_such_path;
use super::request::AdminRequest;
use crate::check::check_unopened;
use crate::document::WrittenResource;
use crate::stores::checker::ResourceChecker;
use crate::stores::draft::{DraftFile, DraftFiles, ReadDraft};
use crate::text::diagnostic::Diagnostic;

/// The files of a node, and what checks a draft of them.
struct DraftAccess<'c> {
    files: &'c DraftFiles,
    checker: &'c ResourceChecker,
}

impl DraftAccess<'_> {
    fn of(context: &AdminContext) -> Refused<DraftAccess<'_>> {
        match &context.draft {
            Some(files) => Ok(DraftAccess { files, checker: &context.checker }),
            None => {
                let problem =
                    "this node has no draft: it needs `admin: { store: file, draft: write }`, or `draft: read`";
                Err(Box::new(json_of(StatusCode::CONFLICT, &json!({ "error_msg": problem }))))
            }
        }
    }
}

pub(super) async fn answer(context: &AdminContext, request: &AdminRequest, rest: &[&str]) -> Refused<AdminResponse> {
    request.caller.needs_all("the draft")?;
    match (rest, &request.method) {
        ([], &Method::GET) => shown(context),
        ([], &Method::PUT) => put::answer(context, request).await,
        (["check"], &Method::POST) => check(context, request),
        (["edit"], &Method::POST) => edited(context, request),
        _ => Ok(no_such_path()),
    }
}

fn read(draft: &DraftFiles) -> Refused<ReadDraft> {
    draft.read().map_err(|faults| Box::new(answer::invalid(&faults)))
}

/// What no role may see in the files. A file that cannot be parsed is not shown, since its secrets cannot be found.
fn hidden(read: &ReadDraft) -> Refused<HiddenTexts> {
    HiddenTexts::of(&read.files).map_err(|faults| Box::new(refused_with(StatusCode::CONFLICT, &faults)))
}

fn told(file: &DraftFile) -> Value {
    json!({ "name": file.name, "text": file.text })
}

/// `GET draft`.
fn shown(context: &AdminContext) -> Refused<AdminResponse> {
    let draft = DraftAccess::of(context)?.files;
    let read = read(draft)?;
    let files: Vec<Value> = hidden(&read)?.shown().map(told).collect();
    let places = PlacesOfWords::of(&read.files);
    let findings: Vec<Value> = read.faults.iter().map(|fault| places.told(fault, "error")).collect();
    let body =
        json!({ "files": files, "revision": read.revision(), "writable": draft.may_write(), "findings": findings });
    Ok(json_of(StatusCode::OK, &body))
}

/// Why texts are not taken.
enum RefusedTexts {
    Request(Box<AdminResponse>),
    /// What is wrong with them.
    Texts(Vec<Diagnostic>),
}

impl From<RefusedTexts> for Box<AdminResponse> {
    fn from(refused: RefusedTexts) -> Box<AdminResponse> {
        match refused {
            RefusedTexts::Request(response) => response,
            RefusedTexts::Texts(faults) => Box::new(refused_with(StatusCode::BAD_REQUEST, &faults)),
        }
    }
}

/// What a request sends: texts in place of those of some files.
struct SentDraft {
    body: Map<String, Value>,
    revision: Option<String>,
    files: Vec<DraftFile>,
}

/// All files, with the texts that were sent in place of their own. It is the one list that is checked and written.
struct WholeDraft {
    /// As they are shown.
    shown: Vec<DraftFile>,
    /// With what is hidden in them.
    restored: Vec<DraftFile>,
    hidden: HiddenTexts,
}

impl SentDraft {
    fn of(request: &AdminRequest) -> Refused<SentDraft> {
        let body = match request.json()? {
            Some(Value::Object(members)) => members,
            _ => return refuse("invalid request body: expected a map"),
        };
        let mut files: Vec<DraftFile> = Vec::new();
        let list = match body.get("files") {
            None => &[][..],
            Some(Value::Array(files)) => files,
            Some(_) => return refuse("`files` is no list"),
        };
        for file in list {
            let text = |name: &str| file.get(name).and_then(Value::as_str);
            let (Some(name), Some(text)) = (text("name"), text("text")) else {
                return refuse("a file needs `name` and `text`");
            };
            if files.iter().any(|known| *known.name == *name) {
                return refuse(format!("`{name}` is there twice; send each file once"));
            }
            files.push(DraftFile { name: name.into(), text: text.into() });
        }
        let revision = body.get("revision").and_then(Value::as_str).map(str::to_owned);
        Ok(SentDraft { revision, files, body })
    }

    /// Puts what was sent in place of the texts of the files, if it may stand there.
    fn whole(&self, read: &ReadDraft) -> Result<WholeDraft, RefusedTexts> {
        if let Some(unknown) = self.files.iter().find(|sent| !read.files.iter().any(|file| file.name == sent.name)) {
            let problem = format!("`{}` is not a file that this node has loaded", unknown.name);
            return Err(RefusedTexts::Request(Box::new(answer::wrong(problem))));
        }
        let hidden = hidden(read).map_err(RefusedTexts::Request)?;
        rights::refuse_more(&read.files, &self.files).map_err(RefusedTexts::Texts)?;
        let (mut shown, mut restored) = (Vec::new(), Vec::new());
        for (own, as_shown) in read.files.iter().zip(hidden.shown()) {
            let sent = self.files.iter().find(|sent| sent.name == own.name);
            restored
                .push(sent.map_or_else(|| Ok(own.clone()), |sent| hidden.restored(sent)).map_err(RefusedTexts::Texts)?);
            shown.push(sent.unwrap_or(as_shown).clone());
        }
        Ok(WholeDraft { shown, restored, hidden })
    }
}

/// A draft that would be accepted.
#[derive(Debug)]
struct CheckedDraft {
    warnings: Vec<Diagnostic>,
    resources: Vec<WrittenResource>,
}

/// What `weir check` says of these files, without opening others; and whether their patterns are too costly for that.
fn checked(
    checker: &ResourceChecker,
    request: &AdminRequest,
    files: &[DraftFile],
) -> (Result<CheckedDraft, Vec<Diagnostic>>, bool) {
    let registry = checker.publisher().registry();
    pattern_budget::within(request.pattern_bytes(), || {
        let document = checker.draft(files)?;
        let warnings = check_unopened(&document, &registry)?;
        Ok(CheckedDraft { warnings, resources: document.written_resources() })
    })
}

fn is_too_costly(request: &AdminRequest) -> AdminResponse {
    answer::too_costly(request.pattern_bytes())
}

/// `POST draft/check`: what `weir check` would say.
fn check(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    let DraftAccess { files: draft, checker } = DraftAccess::of(context)?;
    let sent = SentDraft::of(request)?;
    let read = read(draft)?;
    let revision = read.revision();
    let files = match sent.whole(&read) {
        Ok(whole) => whole.restored,
        // Nothing is made of such texts, not even the ends of what is wrong with them.
        Err(RefusedTexts::Texts(faults)) => return Ok(findings(&revision, Err(faults), &PlacesOfWords::of(&[]))),
        Err(RefusedTexts::Request(response)) => return Err(response),
    };
    let (outcome, is_spent) = checked(checker, request, &files);
    if is_spent {
        return Ok(is_too_costly(request));
    }
    Ok(findings(&revision, outcome.map(|checked| checked.warnings), &PlacesOfWords::of(&files)))
}

/// The response with warnings or faults.
fn findings(revision: &str, found: Result<Vec<Diagnostic>, Vec<Diagnostic>>, places: &PlacesOfWords) -> AdminResponse {
    let (severity, is_valid) = if found.is_ok() { ("warning", true) } else { ("error", false) };
    let (Ok(found) | Err(found)) = found;
    let mut body = json!({ "valid": is_valid, "revision": revision });
    list_findings(&mut body, "findings", &found, |one| places.told(one, severity));
    json_of(StatusCode::OK, &body)
}

/// `POST draft/edit`: the texts after operations, those of them that are others than before.
fn edited(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    let sent = SentDraft::of(request)?;
    let read = read(DraftAccess::of(context)?.files)?;
    let WholeDraft { shown: before, hidden, .. } = sent.whole(&read)?;
    let Some(Value::Array(operations)) = sent.body.get("operations") else { return refuse("`operations` is no list") };
    let mut draft = EditedDraft::of(before.clone())?;
    for operation in operations {
        draft.apply(operation)?;
    }
    let mut other = Vec::new();
    for (file, _) in draft.files.iter().zip(&before).filter(|(now, before)| now != before) {
        // What cannot be written is told now.
        let wrong = |faults: Vec<Diagnostic>| Box::new(refused_with(StatusCode::CONFLICT, &faults));
        hidden.restored(file).map_err(wrong)?;
        other.push(told(file));
    }
    Ok(json_of(StatusCode::OK, &json!({ "files": other, "revision": read.revision() })))
}
