//! Conditions for requests: the `vars` of a route and the `_meta.filter` of a plugin.

use weir_plugin::{ExchangePhase, Expression, Variable};

use crate::text::read::NodeReader;

/// Reads a condition that is evaluated at `moment`. Unknown variables cause a warning only, when the document is compiled: in
/// APISIX a plugin may define them.
pub(super) fn read(at: &NodeReader, moment: ExchangePhase) -> Option<Expression> {
    let condition = match Expression::compile(&at.node().to_json()) {
        Ok(condition) => condition,
        Err(error) => {
            at.report_inside(&error.place, error.reason, Some(error.help));
            return None;
        }
    };
    let absent = |variable: &Variable| Some((variable.absence(moment)?, variable.since()));
    let known = condition.variables().into_iter().filter(|variable| variable.is_known());
    let Some((problem, since)) = known.into_iter().find_map(absent) else { return Some(condition) };
    let advice = match since {
        Some(ExchangePhase::Answer) => "use it in the `_meta.filter` of a plugin that runs on the response",
        Some(ExchangePhase::Request) => "use it in the options of a plugin, such as `workflow` or `traffic-split`",
        _ => "use variables of the request head: `arg_NAME`, `http_NAME`, `cookie_NAME`",
    };
    at.report_advising(problem, advice);
    None
}
