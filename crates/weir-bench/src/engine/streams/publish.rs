//! Publications: events that are sent by POST to the server that distributes them.

use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::dial::{DialedStream, dial};
use super::ticker::Ticker;
use super::{PreparedStreams, StreamsState};
use crate::engine::clock::{now_ns, unix_ns};
use crate::engine::http1::{ResponseParser, ResponseStep};
use crate::engine::pacing::Arrivals;
use crate::engine::recorder::Cause;
use crate::engine::socket::stream_cause;

/// The index of the request that publishes events; the one before it subscribes.
pub(super) const EVENTS: usize = 1;

/// Publishes events until the run is over; each is due when one event of every connection is.
pub(super) async fn events(shared: Rc<StreamsState>) {
    let plan = shared.plan();
    let arrivals = Arrivals::new(&plan.pacing, plan.seed, 0, 1).expect("the plan's check asks for an open loop");
    let ticker = Ticker::new().expect("the plan's check left room for a descriptor");
    let limit = Duration::from_millis(plan.timeouts.response_ms);
    let mut connection = None;
    for (number, at) in arrivals.step_by(plan.connections).enumerate() {
        let due = shared.window.start + at;
        tokio::select! {
            () = ticker.until(due, &shared) => {}
            () = shared.ended() => return,
        }
        let request = event(&shared, number, due);
        let answer = ask(shared.lobby(), EVENTS, &request, &mut connection);
        let answer = tokio::select! {
            answer = timeout(limit, answer) => answer.unwrap_or(Err(Cause::Timeout)),
            () = shared.ended() => return,
        };
        match answer {
            Ok(status) if (200..300).contains(&status) => {}
            Ok(_) => shared.lost(Cause::Protocol),
            Err(cause) => shared.lost(cause),
        }
    }
}

/// The request that publishes an event, with its number and the Unix time at which it was due.
fn event(shared: &StreamsState, number: usize, due: u64) -> Vec<u8> {
    let prepared = &shared.prepared;
    let unix = unix_ns().saturating_add_signed(due as i64 - now_ns() as i64);
    let content = String::from_utf8_lossy(&prepared.requests[EVENTS].body);
    let content = content.replace("{number}", &number.to_string()).replace("{time}", &unix.to_string());
    let head = request_head(shared.lobby(), EVENTS, &prepared.requests[EVENTS].target);
    post(head, "text/plain", content.as_bytes())
}

/// The request line and fields of a request of the plan, without those for the body.
pub(super) fn request_head(lobby: &PreparedStreams, request: usize, target: &str) -> String {
    let request = &lobby.prepared.requests[request];
    let authority = &lobby.prepared.origins[request.origin].authority;
    let mut head = format!("POST {target} HTTP/1.1\r\nHost: {authority}\r\n");
    for (name, value) in &request.template.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head
}

pub(super) fn post(mut head: String, kind: &str, content: &[u8]) -> Vec<u8> {
    if !head.to_ascii_lowercase().contains("\r\ncontent-type:") {
        head += &format!("Content-Type: {kind}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", content.len());
    [head.as_bytes(), content].concat()
}

/// Sends a request on the connection, or on a new one, and returns the status of the answer.
pub(super) async fn ask(
    lobby: &PreparedStreams,
    origin_of: usize,
    request: &[u8],
    connection: &mut Option<DialedStream>,
) -> Result<u16, Cause> {
    let mut stream = match connection.take() {
        Some(stream) => stream,
        None => dial(lobby, 0, origin_of).await?,
    };
    stream.write_all(request).await.map_err(|error| stream_cause(&error))?;
    let mut reader = ResponseParser::default();
    let mut buffer = Vec::with_capacity(4 * 1024);
    loop {
        buffer.clear();
        let read = stream.read_buf(&mut buffer).await.map_err(|error| stream_cause(&error))?;
        let done = match read {
            0 if reader.ends_at_close() => true,
            0 => return Err(Cause::Closed),
            _ => matches!(reader.feed(&buffer, false).map_err(|_| Cause::Protocol)?, ResponseStep::Done { .. }),
        };
        if done {
            if reader.keeps_alive() {
                *connection = Some(stream);
            }
            return Ok(reader.status());
        }
    }
}
