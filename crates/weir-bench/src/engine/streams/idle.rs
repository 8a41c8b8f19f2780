//! Idle connections: opened, and held until the end.

use std::rc::Rc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;

use super::dial::{DialedStream, dial};
use super::{Answered, PreparedStreams, StreamsState, sleep_until};
use crate::engine::clock::now_ns;
use crate::engine::http1::{ResponseParser, ResponseStep};
use crate::engine::job::Job;
use crate::engine::recorder::Cause;
use crate::engine::socket::stream_cause;

pub(super) async fn run(job: Job, first_request: bool) {
    let lobby = PreparedStreams::new(job.prepared.clone());
    let Some(shared) = StreamsState::start(job, lobby) else { return };
    let tasks = (0..shared.clients.len()).map(|client| spawn_local(hold(shared.clone(), client, first_request)));
    let tasks = tasks.collect();
    shared.conclude(tasks).await;
}

/// One connection: opened once, and observed until the run is over.
async fn hold(shared: Rc<StreamsState>, client: usize, first_request: bool) {
    let lobby = shared.lobby().clone();
    tokio::select! {
        () = sleep_until(shared.client_start(client)) => {}
        () = shared.ended() => return,
    }
    let stream = {
        let _turn = lobby.dialing.acquire().await;
        let now = now_ns();
        let Some(request) = shared.due(client, now) else { return };
        let exchange = shared.begin(request, now, false);
        let opening = open(&lobby, shared.clients.start + client, request, first_request);
        let outcome = shared.in_time(opening).await;
        shared.finish(exchange, outcome.as_ref().map(|(_, answered)| *answered).map_err(|cause| *cause));
        match outcome {
            // A connection that succeeds only after the end, while others are closing, does not count: they made room for it.
            Ok(_) if now_ns() >= shared.window.end => return,
            Ok((stream, _)) => {
                lobby.opened(now);
                stream
            }
            Err(cause) => return lobby.refused(cause),
        }
    };
    tokio::select! {
        () = closed(stream) => {
            lobby.closed();
            lobby.connections.borrow_mut().closed_idle += 1;
        }
        () = shared.ended() => {}
    }
}

/// Opens a connection, and completes its first request if `ask` is set.
async fn open(
    lobby: &PreparedStreams,
    client: usize,
    request: usize,
    ask: bool,
) -> Result<(DialedStream, Answered), Cause> {
    let mut stream = dial(lobby, client, request).await?;
    let mut answered = Answered::default();
    if !ask {
        return Ok((stream, answered));
    }
    let request = &lobby.prepared.requests[request];
    stream.write_all(&request.wire).await.map_err(|error| stream_cause(&error))?;
    answered.sent = request.wire.len() as u64;
    let mut reader = ResponseParser::default();
    let mut buffer = Vec::with_capacity(4 * 1024);
    loop {
        buffer.clear();
        let read = stream.read_buf(&mut buffer).await.map_err(|error| stream_cause(&error))?;
        if read == 0 {
            return Err(Cause::Closed);
        }
        answered.received += read as u64;
        if let ResponseStep::Done { .. } = reader.feed(&buffer, request.head_only).map_err(|_| Cause::Protocol)? {
            answered.status = Some(reader.status());
            return Ok((stream, answered));
        }
    }
}

/// Returns when the peer has closed the connection.
async fn closed(mut stream: DialedStream) {
    let mut rest = [0; 64];
    while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}
