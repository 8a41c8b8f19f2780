//! Server-sent events: connections that receive events.

use std::rc::Rc;

use memchr::memchr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::dial::{DialedStream, dial};
use super::{PreparedStreams, RETRY, StreamsState, all, publish, sleep_until};
use crate::chunked::{Chunked, MalformedMessage};
use crate::engine::clock::{now_ns, unix_ns};
use crate::engine::job::Job;
use crate::engine::plan::Pacing;
use crate::engine::recorder::Cause;
use crate::engine::socket::stream_cause;

/// The longest accepted head of a response, in bytes.
const LONGEST_HEAD: usize = 64 * 1024;

pub(super) async fn run(job: Job) {
    let lobby = PreparedStreams::new(job.prepared.clone());
    // Opened before the clock starts: an event that is due while its stream is being opened would count as lost.
    let opened = match job.plan().pacing {
        Pacing::Closed { ramp_up_ms: 1.., .. } => job.clients.clone().map(|_| None).collect(),
        _ => {
            let opened = all(job.clients.clone(), async |client| subscribe(&lobby, client).await.ok()).await;
            lobby.all_tried();
            opened
        }
    };
    let Some(shared) = StreamsState::start(job, lobby) else { return };
    let tasks = opened.into_iter().enumerate();
    let mut tasks: Vec<_> = tasks.map(|(client, opened)| spawn_local(listen(shared.clone(), client, opened))).collect();
    if shared.thread == 0 && shared.publishes() {
        tasks.push(spawn_local(publish::events(shared.clone())));
    }
    shared.conclude(tasks).await;
}

/// One client: receives events until the run is over, and reconnects when the stream ends.
async fn listen(shared: Rc<StreamsState>, client: usize, mut opened: Option<SseSubscription>) {
    let start = shared.client_start(client);
    tokio::select! {
        () = sleep_until(start) => {}
        () = shared.ended() => return,
    }
    let client = shared.clients.start + client;
    loop {
        tokio::select! {
            cause = subscription(&shared, client, opened.take()) => {
                shared.lost(cause);
                tokio::select! {
                    () = sleep(RETRY) => {}
                    () = shared.ended() => return,
                }
            }
            () = shared.ended() => return,
        }
    }
}

/// Opens a subscription; counts it or its failure.
async fn subscribe(lobby: &PreparedStreams, client: usize) -> Result<SseSubscription, Cause> {
    let _turn = lobby.dialing.acquire().await;
    let since = now_ns();
    let limit = std::time::Duration::from_millis(lobby.prepared.plan.timeouts.response_ms);
    let opening = timeout(limit, open(lobby, client)).await.unwrap_or(Err(Cause::Timeout));
    opening.inspect(|_| lobby.opened(since)).inspect_err(|cause| lobby.refused(*cause))
}

/// One subscription, opened already or opened now; returns why it ended.
async fn subscription(shared: &StreamsState, client: usize, opened: Option<SseSubscription>) -> Cause {
    let lobby = shared.lobby();
    let opened = match opened {
        Some(opened) => Ok(opened),
        None => subscribe(lobby, client).await,
    };
    match opened {
        Ok(mut subscription) => {
            let cause = subscription.read(shared).await;
            lobby.closed();
            cause
        }
        Err(cause) => cause,
    }
}

struct SseSubscription {
    stream: DialedStream,
    chunked: Option<Chunked>,
    /// Bytes that were received and not parsed yet.
    buffer: Vec<u8>,
    events: EventSplitter,
}

/// Connects, sends the request, and reads the head of the response.
async fn open(lobby: &PreparedStreams, client: usize) -> Result<SseSubscription, Cause> {
    let mut stream = dial(lobby, client, 0).await?;
    stream.write_all(&lobby.prepared.requests[0].wire).await.map_err(|error| stream_cause(&error))?;
    let mut buffer = Vec::new();
    loop {
        if stream.read_buf(&mut buffer).await.map_err(|error| stream_cause(&error))? == 0 {
            return Err(Cause::Closed);
        }
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        match response.parse(&buffer).map_err(|_| Cause::Protocol)? {
            httparse::Status::Partial if buffer.len() > LONGEST_HEAD => return Err(Cause::Protocol),
            httparse::Status::Partial => {}
            httparse::Status::Complete(length) => {
                let field = |name: &str| response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
                let is_stream = field("content-type")
                    .is_some_and(|kind| kind.value.to_ascii_lowercase().starts_with(b"text/event-stream"));
                if response.code != Some(200) || !is_stream {
                    return Err(Cause::Protocol);
                }
                let chunked = field("transfer-encoding").map(|_| Chunked::default());
                buffer.drain(..length);
                return Ok(SseSubscription { stream, chunked, buffer, events: EventSplitter::default() });
            }
        }
    }
}

impl SseSubscription {
    async fn read(&mut self, shared: &StreamsState) -> Cause {
        loop {
            let events = &mut self.events;
            let ended = match &mut self.chunked {
                None => {
                    events.feed(&self.buffer, shared);
                    Ok(None)
                }
                Some(chunked) => chunked.feed(&self.buffer, |content| events.feed(content, shared)),
            };
            self.buffer.clear();
            match ended {
                Ok(None) => {}
                Ok(Some(_)) => return Cause::Closed,
                Err(MalformedMessage) => return Cause::Protocol,
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Cause::Closed,
                Ok(_) => {}
                Err(error) => return stream_cause(&error),
            }
        }
    }
}

/// Splits a stream into events (WHATWG HTML §9.2.6), and extracts what is measured.
#[derive(Default)]
struct EventSplitter {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed after it is part of the same line end.
    after_return: bool,
    /// These belong to the event that is being read.
    has_data: bool,
    sent_unix_ns: Option<u64>,
    number: Option<u64>,
    bytes: u64,
    last_number: Option<u64>,
    last_at: Option<u64>,
}

impl EventSplitter {
    fn feed(&mut self, data: &[u8], to: &impl EventReceiver) {
        let mut rest = data;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_return) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = memchr::memchr2(b'\n', b'\r', rest);
            let Some(end) = end else {
                self.line.extend_from_slice(rest);
                return;
            };
            self.after_return = rest[end] == b'\r';
            let head = &rest[..end];
            rest = &rest[end + 1..];
            if self.line.is_empty() {
                self.line(head, to);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(head);
                self.line(&line, to);
                line.clear();
                self.line = line;
            }
        }
    }

    fn line(&mut self, line: &[u8], to: &impl EventReceiver) {
        self.bytes += line.len() as u64 + 1;
        if line.is_empty() {
            return self.dispatch(to);
        }
        let (name, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..])),
            None => (line, &line[line.len()..]),
        };
        match name {
            b"data" => {
                self.has_data = true;
                self.sent_unix_ns = self.sent_unix_ns.or_else(|| timestamp(value));
                self.number = self.number.or_else(|| member(value, b"\"n\":"));
            }
            b"id" => self.number = digits(value),
            _ => {}
        }
    }

    /// Handles a complete event; without data, it is not one.
    fn dispatch(&mut self, to: &impl EventReceiver) {
        let (bytes, sent) = (std::mem::take(&mut self.bytes), self.sent_unix_ns.take());
        let number = self.number.take();
        if !std::mem::take(&mut self.has_data) {
            return;
        }
        let lost = match (self.last_number, number) {
            (Some(last), Some(number)) => number.saturating_sub(last + 1),
            _ => 0,
        };
        self.last_number = number.or(self.last_number);
        to.event(sent, &mut self.last_at, bytes, lost);
    }
}

/// The receiver of parsed events.
trait EventReceiver {
    /// `last_at`: when the previous event was received, if there was one.
    fn event(&self, sent_unix_ns: Option<u64>, last_at: &mut Option<u64>, bytes: u64, lost: u64);
}

impl EventReceiver for StreamsState {
    fn event(&self, sent_unix_ns: Option<u64>, last_at: &mut Option<u64>, bytes: u64, lost: u64) {
        // A server may send events of its own besides those that are published; they have no time.
        if sent_unix_ns.is_none() && self.publishes() {
            return;
        }
        for _ in 0..lost {
            self.lost(Cause::Mismatch);
        }
        let now = now_ns();
        let delay = sent_unix_ns.map_or(0, |sent| unix_ns().saturating_sub(sent));
        // Sent before the clock started, while the streams were being opened.
        if now.saturating_sub(delay) < self.window.start {
            return;
        }
        let since = last_at.replace(now).unwrap_or(now);
        self.arrived(now.saturating_sub(delay), since, bytes);
    }
}

/// The Unix time in ns: the data itself, its first word, or the value of a JSON member `t`.
fn timestamp(data: &[u8]) -> Option<u64> {
    let number = if data.first()? == &b'{' { member(data, b"\"t\":") } else { digits(data) };
    // A smaller number has another unit, or is not a time.
    number.filter(|ns| *ns > 1_000_000_000_000_000_000)
}

/// The number after the first occurrence of this JSON member name, at any depth.
fn member(data: &[u8], name: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(data, name)? + name.len();
    digits(data[at..].trim_ascii_start())
}

fn digits(text: &[u8]) -> Option<u64> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..length]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    type Seen = (Option<u64>, u64, u64);

    impl EventReceiver for RefCell<Vec<Seen>> {
        fn event(&self, sent_unix_ns: Option<u64>, _: &mut Option<u64>, bytes: u64, lost: u64) {
            self.borrow_mut().push((sent_unix_ns, bytes, lost));
        }
    }

    fn read(text: &str) -> Vec<Seen> {
        let (whole, pieces) = (RefCell::default(), RefCell::default());
        EventSplitter::default().feed(text.as_bytes(), &whole);
        let mut events = EventSplitter::default();
        text.bytes().for_each(|byte| events.feed(&[byte], &pieces));
        assert_eq!(whole, pieces, "events do not depend on how they are cut");
        whole.into_inner()
    }

    #[test]
    fn events_end_with_every_kind_of_line() {
        for end in ["\n", "\r", "\r\n"] {
            let text = format!("data: a{end}{end}: comment{end}{end}event: x{end}data: b{end}data: c{end}{end}data: d");
            assert_eq!(read(&text).len(), 2, "{end:?}");
        }
    }

    #[test]
    fn times_and_gaps_are_read() {
        let time = 1_700_000_000_000_000_000;
        let text = format!(
            "id: 3\ndata: {time} x\n\nid: 4\ndata: {{\"a\":1,\"t\": {time}}}\n\nid: 7\ndata: 12\n\ndata: {{\"pub\":{{\"n\":9}}}}\n\n"
        );
        let seen: Vec<_> = read(&text).into_iter().map(|(time, _, lost)| (time, lost)).collect();
        assert_eq!(seen, [(Some(time), 0), (Some(time), 0), (None, 2), (None, 1)]);
    }
}
