//! What a function does: the condition of a `filter_func`, or the actions of a function of `serverless-*-function`.

use serde_json::Value;

use super::LuaObstacle;
use super::meaning::{LuaScope, LuaValue, described};
use super::syntax::{LuaFunction, LuaStatement, LuaStatementKind, LuaTerm, LuaTermKind};

/// What one statement does.
#[derive(Debug)]
pub(super) enum LuaAction {
    RequestField(FieldEdit),
    ResponseField(FieldEdit),
    Path(String),
    Redirect(LuaValue, u16),
    Status(u16),
    /// Text that is written into the response.
    Say(String),
    /// The end of the exchange, with a body if one is given.
    Exit(u16, Option<String>),
    /// A line of the error log, with these variables.
    Log(Vec<String>),
}

/// An edit of a header field.
#[derive(Debug)]
pub(super) struct FieldEdit {
    pub(super) name: String,
    pub(super) kind: FieldEditKind,
}

#[derive(Debug)]
pub(super) enum FieldEditKind {
    Add(LuaValue),
    Set(LuaValue),
    Remove,
}

/// All that a function does.
#[derive(Debug)]
pub(super) struct LuaActions {
    /// The `vars` under which it does something.
    pub(super) condition: Option<Value>,
    /// Not empty; each with its line.
    pub(super) actions: Vec<(usize, LuaAction)>,
}

/// The `vars` that a function of the variables returns.
pub(super) fn filter(function: &LuaFunction) -> Result<Value, LuaObstacle> {
    let mut scope = LuaScope::new();
    if let [vars] = &function.parameters[..] {
        scope.declare(vars, LuaValue::Path("ctx.var".to_owned()));
    }
    for statement in &function.body {
        if scope.takes(statement)? {
            continue;
        }
        return match &statement.kind {
            LuaStatementKind::Return(values) if values.len() == 1 => scope.vars(&values[0]),
            _ => Err(LuaObstacle::new(statement.line, "more than one returned condition")),
        };
    }
    Err(LuaObstacle::new(1, "no returned condition"))
}

pub(super) fn actions(function: &LuaFunction) -> Result<LuaActions, LuaObstacle> {
    let mut scope = LuaScope::new();
    for statement in &function.before {
        scope.takes(statement)?;
    }
    for (place, name) in function.parameters.iter().enumerate() {
        let path = ["conf", "ctx"].get(place).ok_or_else(|| LuaObstacle::new(1, name))?;
        scope.declare(name, LuaValue::Path((*path).to_owned()));
    }
    let mut found = LuaActions { condition: None, actions: Vec::new() };
    for statement in &function.body {
        if scope.takes(statement)? || is_bare_return(statement) {
            continue;
        }
        if found.condition.is_some() {
            return Err(LuaObstacle::new(statement.line, "a statement behind `if`"));
        }
        match &statement.kind {
            LuaStatementKind::If(condition, body) if found.actions.is_empty() => {
                found.condition = Some(scope.vars(condition)?);
                let mut inner = scope.clone();
                for statement in body {
                    if !inner.takes(statement)? && !is_bare_return(statement) {
                        found.actions.extend(action(&inner, statement)?);
                    }
                }
            }
            _ => found.actions.extend(action(&scope, statement)?),
        }
    }
    if found.actions.is_empty() { Err(LuaObstacle::new(1, "no statement with an effect")) } else { Ok(found) }
}

fn is_bare_return(statement: &LuaStatement) -> bool {
    matches!(&statement.kind, LuaStatementKind::Return(values) if values.is_empty())
}

/// What a statement does, which may be several edits of fields.
fn action(scope: &LuaScope, statement: &LuaStatement) -> Result<Vec<(usize, LuaAction)>, LuaObstacle> {
    let line = statement.line;
    let actions = match &statement.kind {
        LuaStatementKind::Call(call) => called(scope, call)?,
        LuaStatementKind::Return(values) => match &values[..] {
            [call] if matches!(call.kind, LuaTermKind::Call(..)) => called(scope, call)?,
            values => {
                let exit = exit(&scope.values(values)?);
                vec![exit.ok_or_else(|| LuaObstacle::new(line, "return"))?]
            }
        },
        LuaStatementKind::Assign(target, value) => vec![assigned(scope, target, value)?],
        LuaStatementKind::If(..) => return Err(LuaObstacle::new(line, "if")),
        LuaStatementKind::Local(name, _) => return Err(LuaObstacle::new(line, name)),
    };
    Ok(actions.into_iter().map(|action| (line, action)).collect())
}

fn assigned(scope: &LuaScope, target: &LuaTerm, value: &LuaTerm) -> Result<LuaAction, LuaObstacle> {
    let obstacle = || LuaObstacle::new(target.line, format!("{} =", described(target)));
    let (LuaValue::Path(path), value) = (scope.value(target)?, scope.value(value)?) else { return Err(obstacle()) };
    if path == "ngx.status" {
        return Ok(LuaAction::Status(status(&value).ok_or_else(obstacle)?));
    }
    // `ngx.header.content_type` is the field `Content-Type`.
    let name = path.strip_prefix("ngx.header.").ok_or_else(obstacle)?.replace('_', "-");
    Ok(LuaAction::ResponseField(field_edit(&name, value, FieldEditKind::Set).ok_or_else(obstacle)?))
}

fn called(scope: &LuaScope, call: &LuaTerm) -> Result<Vec<LuaAction>, LuaObstacle> {
    let obstacle = || LuaObstacle::new(call.line, described(call));
    let LuaTermKind::Call(function, arguments) = &call.kind else { return Err(obstacle()) };
    let LuaValue::Path(function) = scope.value(function)? else { return Err(obstacle()) };
    let arguments = scope.values(arguments)?;
    actions_of_call(&function, &arguments).ok_or_else(obstacle)
}

fn actions_of_call(function: &str, arguments: &[LuaValue]) -> Option<Vec<LuaAction>> {
    // `ctx` was added in front of the arguments of these functions in APISIX 2.
    let behind_ctx = match arguments {
        [LuaValue::Path(path), rest @ ..] if path == "ctx" => rest,
        all => all,
    };
    let one = match (function, arguments) {
        ("ngx.req.set_header", [LuaValue::Text(name), value]) => {
            LuaAction::RequestField(field_edit(name, value.clone(), FieldEditKind::Set)?)
        }
        ("ngx.req.clear_header", [LuaValue::Text(name)]) => {
            LuaAction::RequestField(field_edit(name, LuaValue::Nil, FieldEditKind::Set)?)
        }
        ("core.request.set_header" | "core.request.add_header", _) => {
            let [LuaValue::Text(name), value] = behind_ctx else { return None };
            let is_set = function.ends_with("set_header");
            let kind = if is_set { FieldEditKind::Set } else { FieldEditKind::Add };
            LuaAction::RequestField(field_edit(name, value.clone(), kind)?)
        }
        ("core.response.set_header" | "core.response.add_header", _) => {
            let is_set = function.ends_with("set_header");
            return response_fields(arguments, if is_set { FieldEditKind::Set } else { FieldEditKind::Add });
        }
        ("ngx.req.set_uri", [LuaValue::Text(path)]) => {
            let is_path = path.starts_with('/')
                && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte));
            LuaAction::Path(is_path.then(|| path.clone())?)
        }
        ("ngx.redirect", [to]) => LuaAction::Redirect(to.clone(), 302),
        ("ngx.redirect", [to, code]) => {
            LuaAction::Redirect(to.clone(), status(code).filter(|code| [301, 302, 303, 307, 308].contains(code))?)
        }
        ("ngx.exit", [_]) | ("core.response.exit", [_] | [_, _]) => exit(arguments)?,
        ("ngx.say" | "ngx.print", [LuaValue::Text(text)]) => {
            LuaAction::Say(format!("{text}{}", if function == "ngx.say" { "\n" } else { "" }))
        }
        ("ngx.log", [LuaValue::Path(level), parts @ ..]) if level.starts_with("ngx.") => log(parts)?,
        (
            "core.log.debug" | "core.log.info" | "core.log.notice" | "core.log.warn" | "core.log.error"
            | "core.log.alert" | "core.log.crit" | "core.log.emerg",
            parts,
        ) => log(parts)?,
        _ => return None,
    };
    Some(vec![one])
}

fn response_fields(arguments: &[LuaValue], kind: fn(LuaValue) -> FieldEditKind) -> Option<Vec<LuaAction>> {
    if arguments.is_empty() || !arguments.len().is_multiple_of(2) {
        return None;
    }
    let edit = |pair: &[LuaValue]| {
        let LuaValue::Text(name) = &pair[0] else { return None };
        Some(LuaAction::ResponseField(field_edit(name, pair[1].clone(), kind)?))
    };
    arguments.chunks(2).map(edit).collect()
}

/// The edit that gives a field a value; `nil` removes the field.
fn field_edit(name: &str, value: LuaValue, kind: fn(LuaValue) -> FieldEditKind) -> Option<FieldEdit> {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let kind = match (value, kind(LuaValue::Nil)) {
        (LuaValue::Nil, FieldEditKind::Set(_)) => FieldEditKind::Remove,
        (LuaValue::Nil, _) => return None,
        (value, _) => {
            value.template()?;
            kind(value)
        }
    };
    is_name.then(|| FieldEdit { name: name.to_owned(), kind })
}

/// A status that ends an exchange: 444 and 499 of nginx close the connection without a response.
fn status(value: &LuaValue) -> Option<u16> {
    let LuaValue::Number(number) = value else { return None };
    number.parse().ok().filter(|status| (200..600).contains(status) && ![444, 499].contains(status))
}

fn exit(values: &[LuaValue]) -> Option<LuaAction> {
    let (code, body) = match values {
        [code] => (code, None),
        [code, LuaValue::Text(text)] => (code, Some(text.clone())),
        [code, LuaValue::Table(members)] => (code, Some(format!("{members}\n"))),
        _ => return None,
    };
    Some(LuaAction::Exit(status(code)?, body))
}

fn log(parts: &[LuaValue]) -> Option<LuaAction> {
    let is_written = |part: &LuaValue| {
        matches!(
            part,
            LuaValue::Text(_) | LuaValue::Number(_) | LuaValue::Variable(_) | LuaValue::Joined(_) | LuaValue::Nil
        )
    };
    let variables = parts.iter().flat_map(LuaValue::variables).map(str::to_owned).collect();
    parts.iter().all(is_written).then_some(LuaAction::Log(variables))
}
