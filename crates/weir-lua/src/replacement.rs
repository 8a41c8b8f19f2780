//! The plugin that does what a function does.

use serde_json::{Map, Value, json};
use weir_proto::{Known, field};

use super::function::{FieldEdit, FieldEditKind, LuaAction, LuaActions};
use super::meaning::LuaValue;
use super::{LuaObstacle, is_secret};

/// A plugin in place of a function.
#[derive(Debug)]
pub struct LuaReplacement {
    pub plugin: &'static str,
    /// With `_meta`.
    pub options: Value,
    /// What is different with the plugin, as a part of a sentence.
    pub difference: Option<&'static str>,
}

/// Fields of a request that nginx keeps apart, or that tell about the client.
const OWN_REQUEST_FIELDS: [&str; 3] = ["host", "expect", "x-real-ip"];
/// Fields of a response that nginx has once, whether the upstream or a function sets them.
const SINGLE_RESPONSE_FIELDS: [&str; 10] = [
    "content-type",
    "content-encoding",
    "content-range",
    "server",
    "date",
    "expires",
    "etag",
    "last-modified",
    "location",
    "cache-control",
];

/// When a function runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LuaPhase {
    Rewrite,
    Access,
    BeforeProxy,
    HeaderFilter,
    Other,
}

/// The plugin for these actions of a function. `is_early` for `serverless-pre-function`.
pub(super) fn of(found: &LuaActions, is_early: bool, phase: &str) -> Result<LuaReplacement, LuaObstacle> {
    let phase = match phase {
        "rewrite" => LuaPhase::Rewrite,
        "access" => LuaPhase::Access,
        "before_proxy" => LuaPhase::BeforeProxy,
        "header_filter" => LuaPhase::HeaderFilter,
        _ => LuaPhase::Other,
    };
    let (plugin, mut options) = plugin(&found.actions, phase)?;
    let mut meta = Map::new();
    if let Some(filter) = &found.condition {
        meta.insert("filter".to_owned(), filter.clone());
    }
    let is_of_request = ["proxy-rewrite", "redirect", "fault-injection"].contains(&plugin);
    let priority = match phase {
        // Those of the two plugins in APISIX.
        LuaPhase::Rewrite => Some(if is_early { 10_000 } else { -2_000 }),
        // Behind all other plugins of the stage.
        LuaPhase::Access | LuaPhase::BeforeProxy if plugin == "fault-injection" => Some(1),
        _ => None,
    };
    meta.extend(priority.filter(|_| is_of_request).map(|priority| ("priority".to_owned(), json!(priority))));
    if !meta.is_empty() {
        options["_meta"] = Value::Object(meta);
    }
    let is_late = phase == LuaPhase::BeforeProxy || phase == LuaPhase::Access && !is_early;
    let difference = match plugin {
        "file-logger" => Some("the values are in log records, not in the error log"),
        _ if is_of_request && is_late => Some("it acts before the plugins of the stage `access`"),
        _ => None,
    };
    Ok(LuaReplacement { plugin, options, difference })
}

fn plugin(actions: &[(usize, LuaAction)], phase: LuaPhase) -> Result<(&'static str, Value), LuaObstacle> {
    let is_of_request = matches!(phase, LuaPhase::Rewrite | LuaPhase::Access | LuaPhase::BeforeProxy);
    let line = actions.first().map_or(1, |(line, _)| *line);
    let all: Vec<&LuaAction> = actions.iter().map(|(_, action)| action).collect();
    let unfit = || LuaObstacle::new(line, "statements that no single plugin replaces in this phase");
    match all[..] {
        [LuaAction::RequestField(_), ..] if is_of_request => {
            let headers = headers(actions, |action| match action {
                LuaAction::RequestField(edit) => Some(edit),
                _ => None,
            })?;
            Ok(("proxy-rewrite", json!({ "headers": headers })))
        }
        [LuaAction::ResponseField(_), ..] if is_of_request || phase == LuaPhase::HeaderFilter => {
            let mut headers = headers(actions, |action| match action {
                LuaAction::ResponseField(edit) => Some(edit),
                _ => None,
            })?;
            if is_of_request {
                headers = beside(actions, headers)?;
            }
            Ok(("response-rewrite", json!({ "headers": headers })))
        }
        [LuaAction::Path(path)] if is_of_request => Ok(("proxy-rewrite", json!({ "uri": path }))),
        [LuaAction::Redirect(to, code)] if is_of_request => {
            let to = to.template().ok_or_else(unfit)?;
            Ok(("redirect", json!({ "uri": to, "ret_code": code })))
        }
        [.., LuaAction::Exit(..)] if is_of_request => answer(&all).ok_or_else(unfit),
        [LuaAction::Log(_), ..] if all.iter().all(|action| matches!(action, LuaAction::Log(_))) => {
            let mut format = Map::new();
            for action in all {
                let LuaAction::Log(variables) = action else { continue };
                format.extend(variables.iter().map(|name| (name.clone(), json!(format!("${name}")))));
            }
            let mut options = json!({ "path": "logs/requests.log" });
            if !format.is_empty() {
                options["log_format"] = Value::Object(format);
            }
            Ok(("file-logger", options))
        }
        _ => Err(unfit()),
    }
}

/// The option `headers` for the edits, of which each field may have one.
fn headers(actions: &[(usize, LuaAction)], edit: fn(&LuaAction) -> Option<&FieldEdit>) -> Result<Value, LuaObstacle> {
    let (mut add, mut set, mut remove, mut names) = (Map::new(), Map::new(), Vec::new(), Vec::new());
    for (line, action) in actions {
        let unfit = || LuaObstacle::new(*line, "a statement that does something else than the first one");
        let edit = edit(action).ok_or_else(unfit)?;
        let name = edit.name.to_ascii_lowercase();
        let is_own = OWN_REQUEST_FIELDS.contains(&name.as_str()) || name.starts_with("x-forwarded-");
        let known = Known::parse(name.as_bytes());
        let is_of_framing = known == Known::ContentLength || known.is_hop_by_hop();
        if matches!(action, LuaAction::RequestField(_)) && is_own || is_of_framing || names.contains(&name) {
            return Err(LuaObstacle::new(*line, format!("the field `{}`", edit.name)));
        }
        names.push(name);
        let (target, value) = match &edit.kind {
            FieldEditKind::Add(value) => (&mut add, value),
            FieldEditKind::Set(value) => (&mut set, value),
            FieldEditKind::Remove => {
                remove.push(edit.name.clone());
                continue;
            }
        };
        // A statement before could have changed the field that the variable stands for.
        let is_changed = |name: &str| name.starts_with("http_") || name.starts_with("cookie_");
        if actions.len() > 1 && value.variables().into_iter().any(is_changed) {
            return Err(LuaObstacle::new(*line, "a field of the request among several changes"));
        }
        let is_hidden = matches!(action, LuaAction::RequestField(_)) && is_secret(&edit.name);
        let hidden = is_hidden.then(|| value.without_secrets());
        let text = LuaValue::template(hidden.as_ref().unwrap_or(value))
            .filter(|text| field::is_value(text.as_bytes()))
            .ok_or_else(unfit)?;
        target.insert(edit.name.clone(), json!(text));
    }
    let mut headers = Map::new();
    for (word, fields) in [("add", add), ("set", set)] {
        if !fields.is_empty() {
            headers.insert(word.to_owned(), Value::Object(fields));
        }
    }
    if !remove.is_empty() {
        headers.insert("remove".to_owned(), json!(remove));
    }
    Ok(Value::Object(headers))
}

/// Fields that are set before the upstream answers stand beside those of its response.
fn beside(actions: &[(usize, LuaAction)], headers: Value) -> Result<Value, LuaObstacle> {
    for (line, action) in actions {
        let LuaAction::ResponseField(edit) = action else { continue };
        let is_single = SINGLE_RESPONSE_FIELDS.contains(&edit.name.to_ascii_lowercase().as_str());
        if is_single || matches!(edit.kind, FieldEditKind::Remove) {
            return Err(LuaObstacle::new(*line, format!("the field `{}` of the response in this phase", edit.name)));
        }
    }
    let fields = headers.as_object().into_iter().flatten().filter_map(|(_, fields)| fields.as_object());
    Ok(json!({ "add": fields.flatten().map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>() }))
}

/// A response of the gateway: a status, texts, and the end.
fn answer(actions: &[&LuaAction]) -> Option<(&'static str, Value)> {
    let (LuaAction::Exit(code, body), before) = actions.split_last().map(|(last, before)| (*last, before))? else {
        return None;
    };
    let (status, said) = match before {
        [LuaAction::Status(status), said @ ..] => (Some(*status), said),
        said => (None, said),
    };
    let mut text = body.clone().unwrap_or_default();
    for action in said.iter().rev() {
        let LuaAction::Say(said) = action else { return None };
        text.insert_str(0, said);
    }
    // What has been written has gone out with the status before it.
    let status = match (status, said.is_empty()) {
        (None, true) => *code,
        (Some(status), true) if status == *code => *code,
        (status, false) if body.is_none() && [status.unwrap_or(200), 200].contains(code) => status.unwrap_or(200),
        _ => return None,
    };
    if text.contains('$') {
        return None;
    }
    let mut abort = json!({ "http_status": status });
    if !text.is_empty() {
        abort["body"] = json!(text);
    }
    Some(("fault-injection", json!({ "abort": abort })))
}
