//! What the server of the Admin API does for the requests that it passes on: it knows their connections, and what others hold.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use serde_json::json;

use super::answer::{AdminResponse, REVISION, Refused, json_of, text};

/// Room that an answer takes until it has been sent. Dropping it gives the room back.
pub type TakenRoom = Box<dyn Send + Sync>;

/// The future of room for an answer; `None` if there was none in time.
pub type WaitForRoom<'a> = Pin<Box<dyn Future<Output = Option<TakenRoom>> + Send + 'a>>;

/// The server, as a request sees it.
pub trait RequestHost: Send + Sync {
    /// The request waits and has shown no key so far. Another connection may take the place of its connection.
    fn pause(&self);

    /// The request has a key or a token that is accepted.
    fn recognize(&self);

    /// Waits for room for an answer of about this many bytes. One client's answers take no room of another's.
    fn room(&self, bytes: usize) -> WaitForRoom<'_>;
}

/// Marks a response whose content has its room already.
#[derive(Clone, Copy, Debug)]
pub struct HasRoom;

/// Marks the response to a change that was made: what is sent in its place if there is no room for it.
#[derive(Clone, Debug)]
pub struct ShortAnswer(pub Bytes);

/// A part of the room, for a large answer.
pub(super) struct AnswerPermit(TakenRoom);

/// The content of an answer, with its room.
struct HeldAnswer {
    text: Vec<u8>,
    _room: TakenRoom,
}

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// Waits for room for an answer of about this size.
pub(super) async fn take_room(host: &dyn RequestHost, bytes: usize) -> Refused<AnswerPermit> {
    host.room(bytes).await.map(AnswerPermit).ok_or_else(|| {
        let problem = "responses that clients have not read yet take all the memory for responses; try again later, or request fewer items";
        let mut answer = json_of(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error_msg": problem }));
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        Box::new(answer)
    })
}

impl AnswerPermit {
    /// The answer with this content, which gives the room back when it was sent.
    pub(super) fn answer(self, content: Vec<u8>) -> AdminResponse {
        let mut answer = text(StatusCode::OK, Bytes::from_owner(HeldAnswer { text: content, _room: self.0 }));
        answer.extensions_mut().insert(HasRoom);
        answer
    }
}

/// Adds what is sent of the response to a change that was made if there is no room for all of it.
pub(super) fn shorten(answer: &mut AdminResponse) {
    let revision = answer.headers().get(REVISION).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let message = "the change was made; the resources are left out, since responses that you have not read yet take all your memory for responses";
    let short = json!({ "message": message, "revision": revision }).to_string();
    if short.len() < answer.body().len() {
        answer.extensions_mut().insert(ShortAnswer(short.into()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct RoomyHost;

    impl RequestHost for RoomyHost {
        fn pause(&self) {}

        fn recognize(&self) {}

        fn room(&self, _: usize) -> WaitForRoom<'_> {
            Box::pin(async { Some(Box::new(()) as TakenRoom) })
        }
    }

    #[tokio::test]
    async fn room_is_given_back_when_all_of_an_answer_was_sent() {
        let room = Arc::new(());
        let permit = AnswerPermit(Box::new(Arc::clone(&room)));
        let answer = permit.answer(b"text".to_vec());
        assert!(answer.extensions().get::<HasRoom>().is_some());
        let part = answer.body().slice(1..);
        drop(answer);
        assert_eq!((&part[..], Arc::strong_count(&room)), (&b"ext"[..], 2));
        drop(part);
        assert_eq!(Arc::strong_count(&room), 1);
        assert!(take_room(&RoomyHost, 1).await.is_ok());
    }

    #[test]
    fn short_answers_say_that_the_change_was_made() {
        let mut answer = text(StatusCode::CREATED, "x".repeat(1_000));
        answer.headers_mut().insert(REVISION, 7.into());
        shorten(&mut answer);
        let ShortAnswer(short) = answer.extensions().get().expect("it is shorter");
        let short = String::from_utf8_lossy(short);
        assert!(short.contains("the change was made") && short.contains("\"revision\":7"), "{short}");
        let mut small = text(StatusCode::OK, "{}");
        shorten(&mut small);
        assert!(small.extensions().get::<ShortAnswer>().is_none());
    }
}
