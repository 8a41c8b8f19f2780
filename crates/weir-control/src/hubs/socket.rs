//! A topic's events over a WebSocket (RFC 6455): one message for each event.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use weir_hub::{Event, Refusal};
use weir_plugin::{Content, Reply};
use weir_proto::Known;
use weir_proto::websocket::{CloseCode, FrameEvent, FrameHeader, FrameReader, FrameSender, Opcode, frame};

use super::call::{BATCH, HEARTBEAT, HubCall};

/// Whether the request asks for a WebSocket, and its route allows one.
pub(super) fn is_asked_for(call: &HubCall) -> bool {
    let protocol = call.request.head.head.known(Known::Upgrade).unwrap_or_default();
    call.request.may_upgrade && protocol.eq_ignore_ascii_case(b"websocket")
}

/// Sends events until the client closes the WebSocket or the hub is closed. The client's reading provides the back-pressure.
pub(super) async fn answer(call: &mut HubCall, topic: &str, sent: Content, reply: &mut Reply) -> Result<(), Refusal> {
    if call.field(b"sec-websocket-version") != Some(b"13") {
        reply.begin(426, &[("Sec-WebSocket-Version", "13"), ("Content-Length", "0")]);
        return Ok(());
    }
    if call.field(b"sec-websocket-key").is_none() {
        return Err(Refusal::new(400, "`Sec-WebSocket-Key` is missing"));
    }
    let with_envelope = match call.argument(b"envelope").as_deref() {
        None => false,
        Some("json") => true,
        Some(_) => return Err(Refusal::new(400, "`envelope` must be `json`")),
    };
    let mut after = call.after_last_seen(topic).await?;
    reply.begin(101, &[("Link", &call.links(topic))]);
    let mut client = ListeningClient { sent, frames: FrameReader::new(FrameSender::Client, false) };
    loop {
        tokio::select! {
            received = client.next() => match received {
                ClientAction::Nothing => {}
                ClientAction::Ping(content) => send(reply, Opcode::Pong, &content).await,
                ClientAction::Close(code, reason) => return close(reply, code, reason).await,
                ClientAction::Gone => return Ok(()),
            },
            events = tokio::time::timeout(HEARTBEAT, call.events_after(topic, after, BATCH)) => match events {
                Err(_) => send(reply, Opcode::Ping, b"").await,
                Ok(Ok(events)) => {
                    for event in events {
                        let (opcode, content) = message(&event, with_envelope);
                        send(reply, opcode, &content).await;
                        after = event.seq;
                    }
                }
                Ok(Err(refusal)) if refusal.status == 503 => {
                    return close(reply, CloseCode::GOING_AWAY, "the hub is being closed").await;
                }
                Ok(Err(refusal)) => return close(reply, CloseCode::POLICY, &refusal.reason).await,
            },
        }
    }
}

async fn send(reply: &mut Reply, opcode: Opcode, content: &[u8]) {
    let length = content.len() as u64;
    let mut header = Vec::with_capacity(frame::MAX_HEADER);
    FrameHeader { fin: true, compressed: false, opcode, length, mask: None }.write(&mut header);
    reply.send(&header).await;
    reply.send(content).await;
}

async fn close(reply: &mut Reply, code: CloseCode, reason: &str) -> Result<(), Refusal> {
    send(reply, Opcode::Close, &code.content(reason)).await;
    Ok(())
}

/// The message for an event: its content, or an object with its id and type.
fn message(event: &Event, with_envelope: bool) -> (Opcode, Cow<'_, [u8]>) {
    let text = std::str::from_utf8(&event.content);
    if with_envelope {
        let (id, content_type) = (event.seq, &*event.content_type);
        let object = match text {
            Ok(data) => json!({"id": id, "type": content_type, "data": data}),
            Err(_) => json!({"id": id, "type": content_type, "data_base64": STANDARD.encode(&event.content)}),
        };
        return (Opcode::Text, object.to_string().into_bytes().into());
    }
    (if text.is_ok() { Opcode::Text } else { Opcode::Binary }, Cow::Borrowed(&*event.content))
}

/// What the client sends.
struct ListeningClient {
    sent: Content,
    frames: FrameReader,
}

/// What a client's frames ask for.
#[derive(Debug, PartialEq, Eq)]
enum ClientAction {
    Nothing,
    Ping(Vec<u8>),
    Close(CloseCode, &'static str),
    Gone,
}

impl ListeningClient {
    /// Waits for bytes of the client. No bytes are lost if it is dropped while it waits.
    async fn next(&mut self) -> ClientAction {
        match self.sent.next().await {
            Some(bytes) => action(&mut self.frames, &bytes),
            None => ClientAction::Gone,
        }
    }
}

/// The last of the actions that bytes ask for: of several pings, only the newest needs an answer (RFC 6455 §5.5.3).
fn action(frames: &mut FrameReader, mut bytes: &[u8]) -> ClientAction {
    let mut action = ClientAction::Nothing;
    loop {
        match frames.next(&mut bytes) {
            Ok(None) => return action,
            Ok(Some(FrameEvent::Control(frame))) => match frame.opcode {
                Opcode::Ping => action = ClientAction::Ping(frame.content().to_vec()),
                Opcode::Close => return ClientAction::Close(CloseCode::NORMAL, ""),
                _ => {}
            },
            Ok(Some(_)) => {
                return ClientAction::Close(
                    CloseCode::UNSUPPORTED,
                    "this WebSocket sends events and takes no messages",
                );
            }
            Err(fault) => return ClientAction::Close(fault.close_code(), fault.reason()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(content: &'static [u8]) -> Event {
        let topic = "http://t.example/".into();
        Event { seq: 7, time_ms: 0, topic, content_type: "text/plain".into(), content: content.into() }
    }

    #[test]
    fn a_message_is_the_content_or_has_an_envelope() {
        assert_eq!(message(&event(b"one"), false), (Opcode::Text, b"one"[..].into()));
        assert_eq!(message(&event(b"\xff\x00"), false), (Opcode::Binary, b"\xff\x00"[..].into()));
        let enveloped = |content| String::from_utf8(message(&event(content), true).1.into_owned()).expect("JSON");
        assert_eq!(enveloped(b"a\nb"), r#"{"id":7,"type":"text/plain","data":"a\nb"}"#);
        assert_eq!(enveloped(b"\xff\x00"), r#"{"id":7,"type":"text/plain","data_base64":"/wA="}"#);
    }

    #[test]
    fn frames_of_the_client_are_answered() {
        let frames = |opcode, content: &[u8]| {
            let mut bytes = Vec::new();
            frame::write(&mut bytes, opcode, Some([1, 2, 3, 4]), content);
            action(&mut FrameReader::new(FrameSender::Client, false), &bytes)
        };
        assert_eq!(frames(Opcode::Ping, b"x"), ClientAction::Ping(b"x".to_vec()));
        assert_eq!(frames(Opcode::Pong, b""), ClientAction::Nothing);
        assert_eq!(frames(Opcode::Close, &[3, 0xe8]), ClientAction::Close(CloseCode::NORMAL, ""));
        assert!(matches!(frames(Opcode::Text, b"hi"), ClientAction::Close(CloseCode::UNSUPPORTED, _)));
        let mut unmasked = FrameReader::new(FrameSender::Client, false);
        assert!(matches!(action(&mut unmasked, &[0x89, 0]), ClientAction::Close(CloseCode::PROTOCOL_ERROR, _)));
    }
}
