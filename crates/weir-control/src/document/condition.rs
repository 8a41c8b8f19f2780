//! Conditions for requests: the `vars` of a route and the `_meta.filter` of a plugin.

use weir_plugin::{Expression, Variable};

use crate::read::At;

/// A condition by which routes are chosen.
pub(super) fn of_route(at: &At) -> Option<Expression> {
    let condition = read(at)?;
    let find = |absence: fn(&Variable) -> Option<String>| condition.variables().into_iter().find_map(absence);
    let (problem, advice) = match (find(Variable::absence_before_answer), find(Variable::absence_before_route)) {
        (Some(problem), _) => (problem, "a plugin that sees the response may ask for it, in its `_meta.filter`"),
        (None, Some(problem)) => (problem, "a plugin may ask for it, as `workflow`, or `traffic-split`"),
        (None, None) => return Some(condition),
    };
    at.report_advising(problem, advice);
    None
}

/// Its error says where inside. Names that nobody knows are warned of later: in APISIX they may be somebody's.
pub(super) fn read(at: &At) -> Option<Expression> {
    let condition = match Expression::compile(&at.node().to_json()) {
        Ok(condition) => condition,
        Err(error) => {
            at.report_inside(&error.place, error.reason, Some(error.help));
            return None;
        }
    };
    let absent = condition.variables().into_iter().find(|variable| variable.needs_request_body());
    match absent.and_then(Variable::absence) {
        Some(problem) => {
            at.report_advising(problem, "ask for what stands in the head: `arg_NAME`, `http_NAME`, `cookie_NAME`");
            None
        }
        None => Some(condition),
    }
}
