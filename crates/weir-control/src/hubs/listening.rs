//! GET on a topic's own URL: its newest content, a stream of its events (SSE, or a WebSocket), or the next event (long polling).

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr2;
use weir_hub::{Event, Refusal};
use weir_plugin::{Content, Reply, Stop};
use weir_proto::Method;

use super::call::{BATCH, CallEnd, HEARTBEAT, HubCall, position, refuse};
use super::socket;

/// The default time-out of a long poll, in seconds.
const POLL_S: u64 = 25;
const MAX_POLL_S: u64 = 50;

/// Responds to a GET or HEAD request.
pub(super) async fn answer(call: &mut HubCall, sent: Content, reply: &mut Reply) -> Result<(), Stop> {
    match read_or_listen(call, sent, reply).await {
        Ok(()) => Ok(()),
        Err(CallEnd::Refused(refusal)) => refuse(reply, &refusal).await,
        Err(CallEnd::Stopped(stop)) => Err(stop),
    }
}

async fn read_or_listen(call: &mut HubCall, sent: Content, reply: &mut Reply) -> Result<(), CallEnd> {
    let Some(topic) = call.topic_at_path() else {
        let problem = format!("{}; to subscribe, send a POST request", call.other_topics());
        return Err(Refusal::new(404, problem).into());
    };
    call.begin_listening(&topic)?;
    let accepts = call.field(b"accept").unwrap_or_default();
    let wants_stream = accepts.windows(17).any(|part| part.eq_ignore_ascii_case(b"text/event-stream"));
    let (after, wants_socket) = (call.argument("after")?, socket::is_asked_for(call));
    if call.request.head.method == Method::Head || !wants_socket && !wants_stream && after.is_none() {
        return newest(call, &topic, reply).await;
    }
    let _place = call.take_place()?;
    match after {
        _ if wants_socket => socket::answer(call, &topic, sent, reply).await,
        Some(after) if !wants_stream => poll(call, &topic, &after, reply).await,
        _ => stream(call, &topic, reply).await,
    }
}

/// The newest content of the topic, with the links for discovery (W3C WebSub §4).
async fn newest(call: &HubCall, topic: &str, reply: &mut Reply) -> Result<(), CallEnd> {
    match call.latest(topic).await? {
        Some(held) => content(call, &held.events()[0], reply).await?,
        None => reply.begin(204, &[("Link", &call.links(topic))]),
    }
    Ok(())
}

async fn content(call: &HubCall, event: &Event, reply: &mut Reply) -> Result<(), Stop> {
    let (length, seq, links) = (event.content.len().to_string(), event.seq.to_string(), call.links(&event.topic));
    let mut fields =
        vec![("Content-Length", &*length), ("Link", &*links), ("Event-Id", &*seq), ("Cache-Control", "no-cache")];
    if !event.content_type.is_empty() {
        fields.push(("Content-Type", &event.content_type));
    }
    reply.begin(200, &fields);
    match call.request.head.method {
        Method::Head => Ok(()),
        _ => call.send(reply, &event.content).await,
    }
}

/// Responds with the event after the given id, or with the first one after `earliest`; 204 if there is none in time.
async fn poll(call: &mut HubCall, topic: &str, after: &str, reply: &mut Reply) -> Result<(), CallEnd> {
    let after = position("the query argument `after`", after)?;
    let wait_s = match call.argument("wait")? {
        None => POLL_S,
        Some(text) => text.parse().map_err(|_| {
            Refusal::new(400, format!("the query argument `wait` is not a number of seconds, 0 to {MAX_POLL_S}"))
        })?,
    };
    let wait_s: u64 = wait_s.min(MAX_POLL_S);
    // Where nodes share the hub, this one may not have yet what the client got from another.
    if call.hub.shares().is_none() {
        call.refuse_future(after).await?;
    }
    let events = call.events_after(topic, after, 1);
    match tokio::time::timeout(Duration::from_secs(wait_s), events).await {
        Ok(held) => content(call, &held?.events()[0], reply).await?,
        Err(_) => {
            call.refuse_lack_of_room()?;
            call.refuse_future(after).await?;
            reply.begin(204, &[("Link", &call.links(topic))]);
        }
    }
    Ok(())
}

/// Streams server-sent events, starting after `Last-Event-ID`. The client's reading provides the back-pressure: the next events
/// are taken when the previous ones have been sent.
async fn stream(call: &mut HubCall, topic: &str, reply: &mut Reply) -> Result<(), CallEnd> {
    let mut after = call.after_last_seen(topic).await?;
    let links = call.links(topic);
    reply.begin(
        200,
        &[
            ("Content-Type", "text/event-stream"),
            ("Cache-Control", "no-store"),
            ("X-Accel-Buffering", "no"),
            ("Link", &links),
        ],
    );
    call.send(reply, b"retry: 2000\n\n").await?;
    loop {
        let held = match tokio::time::timeout(HEARTBEAT, call.events_after(topic, after, BATCH)).await {
            Err(_) => {
                call.send(reply, b": \n\n").await?;
                continue;
            }
            Ok(Ok(held)) => held,
            // If the hub is being closed, the client reconnects.
            Ok(Err(refusal)) if refusal.status == 503 => return Ok(()),
            Ok(Err(refusal)) => {
                call.send(reply, format!(": {}\n\n", refusal.reason).as_bytes()).await?;
                return Ok(());
            }
        };
        for event in held.events() {
            for piece in server_sent(event) {
                call.send(reply, &piece).await?;
            }
            after = event.seq;
        }
    }
}

/// The bytes of an event from which one piece of base64 is made: a multiple of three, so that pieces can follow each other.
const CODED_AT_ONCE: usize = 6 * 1024;

/// One event (HTML Standard §9.2), in pieces that need no copy of the content. Content that is not UTF-8 has the type `binary` and
/// is encoded in base64.
fn server_sent(event: &Event) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let (text, binary) = match std::str::from_utf8(&event.content) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(&*event.content)),
    };
    let id = format!("id: {}\n", event.seq).into_bytes();
    let fixed = |bytes: &'static [u8]| Cow::Borrowed(bytes);
    let of_text = text
        .into_iter()
        .flat_map(lines)
        .flat_map(move |line| [fixed(b"data: "), Cow::Borrowed(line.as_bytes()), fixed(b"\n")]);
    let of_binary = binary.into_iter().flat_map(move |content| {
        let coded = content.chunks(CODED_AT_ONCE).map(|part| Cow::Owned(STANDARD.encode(part).into_bytes()));
        std::iter::once(fixed(b"event: binary\ndata: ")).chain(coded).chain([fixed(b"\n")])
    });
    std::iter::once(Cow::Owned(id)).chain(of_text).chain(of_binary).chain([fixed(b"\n")])
}

/// The lines of a text, which CRLF, LF or CR end. After the last end there is one more line, which may be empty.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = memchr2(b'\r', b'\n', text.as_bytes()) else { return rest.take() };
        let length = if text[end..].starts_with("\r\n") { 2 } else { 1 };
        rest = Some(&text[end + length..]);
        Some(&text[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(content: &[u8]) -> String {
        let topic = "http://t.example/".into();
        let content = content.to_vec().into();
        let event = Event { seq: 7, time_ms: 0, topic, content_type: Box::default(), content };
        String::from_utf8(server_sent(&event).collect::<Vec<_>>().concat()).expect("events are UTF-8")
    }

    #[test]
    fn binary_content_of_several_pieces_is_one_text() {
        let content: Vec<u8> = (0..20_000_u32).map(|number| number as u8).collect();
        let text = sent(&content);
        assert_eq!(text, format!("id: 7\nevent: binary\ndata: {}\n\n", STANDARD.encode(content)));
    }

    #[test]
    fn every_line_of_an_event_has_its_field() {
        assert_eq!(sent(b"one"), "id: 7\ndata: one\n\n");
        assert_eq!(sent(b"a\nb\r\nc\rd\n"), "id: 7\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \n\n");
        assert_eq!(sent(b""), "id: 7\ndata: \n\n");
        assert_eq!(sent(b"\xff\x00"), "id: 7\nevent: binary\ndata: /wA=\n\n");
    }
}
