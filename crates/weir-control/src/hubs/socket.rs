//! A topic's events over a WebSocket (RFC 6455): one message for each event.

use weir_hub::{Event, Refusal};
use weir_plugin::{Content, Reply, Stop};
use weir_proto::Known;
use weir_proto::websocket::{CloseCode, FrameEvent, FrameHeader, FrameReader, FrameSender, Opcode, frame};

use super::call::{BATCH, CallEnd, HEARTBEAT, HubCall};
use super::envelope::Envelope;

/// Whether the request asks for a WebSocket, and its route allows one.
pub(super) fn is_asked_for(call: &HubCall) -> bool {
    let protocol = call.request.head.head.known(Known::Upgrade).unwrap_or_default();
    call.request.may_upgrade && protocol.eq_ignore_ascii_case(b"websocket")
}

/// Sends events until the client closes the WebSocket or the hub is closed. The client's reading provides the back-pressure.
pub(super) async fn answer(call: &mut HubCall, topic: &str, sent: Content, reply: &mut Reply) -> Result<(), CallEnd> {
    if call.field(b"sec-websocket-version") != Some(b"13") {
        reply.begin(426, &[("Sec-WebSocket-Version", "13"), ("Content-Length", "0")]);
        return Ok(());
    }
    if call.field(b"sec-websocket-key").is_none() {
        return Err(Refusal::new(400, "`Sec-WebSocket-Key` is missing").into());
    }
    let with_envelope = match call.argument("envelope")?.as_deref() {
        None => false,
        Some("json") => true,
        Some(_) => return Err(Refusal::new(400, "`envelope` must be `json`").into()),
    };
    let mut after = call.after_last_seen(topic).await?;
    reply.begin(101, &[("Link", &call.links(topic))]);
    let mut client = ListeningClient { sent, frames: FrameReader::new(FrameSender::Client, false) };
    loop {
        tokio::select! {
            received = client.next() => match received {
                ClientAction::Nothing => {}
                ClientAction::Ping(content) => send(call, reply, Opcode::Pong, &content).await?,
                ClientAction::Close(code, reason) => return close(call, reply, code, reason).await,
                ClientAction::Gone => return Ok(()),
            },
            events = tokio::time::timeout(HEARTBEAT, call.events_after(topic, after, BATCH)) => match events {
                Err(_) => send(call, reply, Opcode::Ping, b"").await?,
                Ok(Ok(held)) => {
                    for event in held.events() {
                        match with_envelope {
                            true => send_enveloped(call, reply, event).await?,
                            false => {
                                let opcode = if is_text(event) { Opcode::Text } else { Opcode::Binary };
                                send(call, reply, opcode, &event.content).await?;
                            }
                        }
                        after = event.seq;
                    }
                }
                Ok(Err(refusal)) if refusal.status == 503 => {
                    return close(call, reply, CloseCode::GOING_AWAY, "the hub is being closed").await;
                }
                // No room for its next event.
                Ok(Err(refusal)) if refusal.retry_after_s.is_some() => {
                    return close(call, reply, CloseCode::TRY_AGAIN_LATER, &refusal.reason).await;
                }
                Ok(Err(refusal)) => return close(call, reply, CloseCode::POLICY, &refusal.reason).await,
            },
        }
    }
}

/// Sends a message in one frame, or a control frame.
async fn send(call: &HubCall, reply: &mut Reply, opcode: Opcode, content: &[u8]) -> Result<(), Stop> {
    send_frame(call, reply, opcode, true, content).await
}

async fn send_frame(call: &HubCall, reply: &mut Reply, opcode: Opcode, fin: bool, content: &[u8]) -> Result<(), Stop> {
    let length = content.len() as u64;
    let mut header = Vec::with_capacity(frame::MAX_HEADER);
    FrameHeader { fin, compressed: false, opcode, length, mask: None }.write(&mut header);
    call.send(reply, &header).await?;
    call.send(reply, content).await
}

/// Sends an event with its envelope as one message; a large one in fragments (RFC 6455 §5.4).
async fn send_enveloped(call: &HubCall, reply: &mut Reply, event: &Event) -> Result<(), Stop> {
    let mut opcode = Opcode::Text;
    for (piece, is_last) in Envelope::new(event) {
        send_frame(call, reply, opcode, is_last, &piece).await?;
        opcode = Opcode::Continuation;
    }
    Ok(())
}

async fn close(call: &HubCall, reply: &mut Reply, code: CloseCode, reason: &str) -> Result<(), CallEnd> {
    send(call, reply, Opcode::Close, &code.content(reason)).await?;
    Ok(call.all_taken(reply).await?)
}

fn is_text(event: &Event) -> bool {
    std::str::from_utf8(&event.content).is_ok()
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
