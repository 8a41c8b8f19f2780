//! WebSocket: each message is echoed, as it is or reversed, after the backend's delay.

use std::io;
use std::rc::Rc;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_websockets::{Message, ServerBuilder};

use super::BackendState;

/// Upgrades the connection, and answers messages until the peer closes.
///
/// Messages are answered one after the other, so a delay also limits the rate of a connection.
pub(super) async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: Rc<BackendState>,
    reverse: bool,
) -> io::Result<()> {
    let (_, mut websocket) = ServerBuilder::new().accept(stream).await.map_err(io::Error::other)?;
    while let Some(message) = websocket.next().await {
        let message = message.map_err(io::Error::other)?;
        if message.is_text() || message.is_binary() {
            let delay = host.delay();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            websocket.send(answer(message, reverse)).await.map_err(io::Error::other)?;
        }
    }
    Ok(())
}

fn answer(message: Message, reverse: bool) -> Message {
    if !reverse {
        return message;
    }
    match message.as_text() {
        // By characters instead of bytes, so that the result is valid UTF-8.
        Some(text) => Message::text(text.chars().rev().collect::<String>()),
        None => Message::binary(message.as_payload().iter().rev().copied().collect::<Vec<u8>>()),
    }
}
