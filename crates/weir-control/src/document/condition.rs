//! Conditions for requests: the `vars` of a route and the `_meta.filter` of a plugin.

use weir_plugin::{Expression, Variable};

use crate::read::At;

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
