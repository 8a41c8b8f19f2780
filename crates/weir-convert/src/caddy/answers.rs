//! `respond`, `error`, `abort` and `redir`: responses of the gateway itself.

use super::path::PathState;
use super::state::{RequestState, TextFault};
use crate::SourcePlace;
use crate::directive::Directive;
use crate::output::Converted;
use crate::pattern::{regex_quoted, whole};
use crate::yaml::{Yaml, YamlMembers};

/// The response of a directive.
pub(super) enum StepAnswer {
    Body {
        status: i64,
        body: String,
        kind: Option<&'static str>,
    },
    /// The options of `redirect`.
    Redirect(Yaml),
    Upstream(YamlMembers),
    /// Access control or a change of requests could not be converted, so requests are refused.
    Closed,
}

/// `respond [BODY] [STATUS]`, also with `body` in its block.
pub(super) fn respond(state: &RequestState, directive: &Directive, arguments: &[String]) -> Result<StepAnswer, String> {
    let is_status = |text: &String| text.len() == 3 && text.parse::<u16>().is_ok();
    let (mut body, status) = match arguments {
        [] => ("", "200"),
        [status] if is_status(status) => ("", status.as_str()),
        [body] => (body.as_str(), "200"),
        [body, status, ..] => (body.as_str(), status.as_str()),
    };
    for line in directive.children() {
        match line.name.as_str() {
            "body" => body = line.argument(0),
            "close" => {}
            _ => return Err(format!("`{}` in `respond`", line.head())),
        }
    }
    let status = status.parse().map_err(|_| format!("`{status}` is not a status"))?;
    if state.captured(body).is_some() {
        return Err("groups of an expression in a body".to_owned());
    }
    let template = state.text(body).map_err(|TextFault(why)| why)?;
    Ok(StepAnswer::Body { status, kind: content_type(body), body: template })
}

/// The content type that Caddy detects for a body.
pub(super) fn content_type(body: &str) -> Option<&'static str> {
    let text = body.trim();
    let is_json = text.starts_with('{') && text.ends_with('}') || text.starts_with('[') && text.ends_with(']');
    match text {
        "" => None,
        _ if is_json => Some("application/json"),
        _ => Some("text/plain; charset=utf-8"),
    }
}

/// `error [MESSAGE] [STATUS]`. The message is only logged.
pub(super) fn error(arguments: &[String]) -> StepAnswer {
    let status = arguments.last().and_then(|status| status.parse().ok()).unwrap_or(500);
    StepAnswer::Body { status, body: String::new(), kind: None }
}

/// `abort`.
pub(super) fn abort(converted: &mut Converted, place: &SourcePlace) -> StepAnswer {
    let text = "`abort`: connections cannot be closed without a response; the response is 403";
    converted.differs(place, text);
    StepAnswer::Body { status: 403, body: String::new(), kind: None }
}

/// `redir TARGET [CODE]`.
pub(super) fn redirect(state: &RequestState, arguments: &[String]) -> Result<StepAnswer, String> {
    let (target, code) = match arguments {
        [target] => (target, 302),
        [target, code, ..] => match code.as_str() {
            "permanent" => (target, 301),
            "temporary" => (target, 302),
            code => (target, code.parse().map_err(|_| format!("`{code}` is not a status of a redirect"))?),
        },
        [] => return Err("`redir` without a target".to_owned()),
    };
    let fault = |TextFault(why): TextFault| why;
    let mut options: YamlMembers = match (state.captured(target), &state.path) {
        (Some(captured), _) => {
            let captured = captured.map_err(fault)?;
            vec![("regex_uri".to_owned(), Yaml::texts([whole(&captured.pattern, false), captured.template]))]
        }
        (None, PathState::Stripped(prefix)) if target.ends_with("{uri}") => {
            let begin = state.text(target.trim_end_matches("{uri}")).map_err(fault)?;
            let pattern = format!("^{}/?(.*)$", regex_quoted(prefix));
            vec![
                ("regex_uri".to_owned(), Yaml::texts([pattern, format!("{begin}/$1")])),
                ("append_query_string".to_owned(), Yaml::Boolean(true)),
            ]
        }
        (None, _) => vec![("uri".to_owned(), Yaml::Text(state.text(target).map_err(fault)?))],
    };
    options.push(("ret_code".to_owned(), Yaml::Integer(code)));
    Ok(StepAnswer::Redirect(Yaml::Map(options)))
}
