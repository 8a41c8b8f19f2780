//! `/tail`: exchanges as they end, one JSON object per line.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use weir_gateway::tail::{Tail, TailFilter};
use weir_plugin::{Expression, form};

/// The filter in the query of a request: `vars` is a condition in the syntax of `vars`, `trace` the name of a trace.
pub fn filter(query: &str) -> Result<TailFilter, String> {
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

/// Parses a condition from JSON.
pub fn condition(text: &str) -> Result<Expression, String> {
    let value = serde_json::from_str(text)
        .map_err(|error| format!("vars: not JSON: {error}; write it as [[\"status\", \">=\", 500]]"))?;
    Expression::compile(&value).map_err(|error| format!("vars{}: {}; {}", error.place, error.reason, error.help))
}

/// A body of lines, until the client disconnects.
pub struct TailBody(pub Tail);

impl Body for TailBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.lines.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line.into()))))
    }
}
