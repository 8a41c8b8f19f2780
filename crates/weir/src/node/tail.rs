//! `/tail`: exchanges as they end, one JSON object per line.

use std::task::{Context, Poll};

use bytes::Bytes;
use serde_json::json;
use weir_gateway::tail::{Tail, TailFilter};
use weir_plugin::suggest::meant;
use weir_plugin::{ExchangePhase, Expression, form};

use super::server::AnswerStream;
use super::server::bounds::UNREAD;

/// The filter in the query of a request: `vars` is a condition in the syntax of `vars`, `trace` the name of a trace.
pub(crate) fn filter(query: &str) -> Result<TailFilter, String> {
    let mut filter = TailFilter::All;
    for (name, value) in form::pairs(query.as_bytes()) {
        let value = String::from_utf8_lossy(&value).into_owned();
        filter = match &*name {
            b"vars" => TailFilter::Condition(condition(&value)?),
            b"trace" => TailFilter::Trace(value.into()),
            _ => return Err(format!("`{}` is not known; the arguments are vars and trace", name.escape_ascii())),
        };
    }
    Ok(filter)
}

/// Parses a condition from JSON. One with an unknown variable is refused: it would show nothing, and say nothing.
pub(crate) fn condition(text: &str) -> Result<Expression, String> {
    let value = serde_json::from_str(text)
        .map_err(|error| format!("vars: not JSON: {error}; write it as [[\"status\", \">=\", 500]]"))?;
    let condition = Expression::compile(&value)
        .map_err(|error| format!("vars{}: {}; {}", error.place, error.reason, error.help))?;
    for variable in condition.variables() {
        if let Some(reason) = variable.absence(ExchangePhase::Record) {
            let advice = meant(variable).map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
            return Err(format!("vars: {reason}{advice}"));
        }
    }
    Ok(condition)
}

/// The last line of a stream that the server ends, with the reason.
pub(crate) fn ended(reason: &str) -> Bytes {
    Bytes::from(format!("{}\n", json!({ "ended": reason })))
}

/// The last line for a client that does not read.
pub(crate) fn unread() -> Bytes {
    ended(&format!("nothing was read for {} s", UNREAD.as_secs()))
}

/// A stream of lines, until the client disconnects.
pub(crate) struct TailStream(pub Tail);

impl AnswerStream for TailStream {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_line(context).map(|line| line.map(Bytes::from_owner))
    }
}
