//! WebSocket: each message comes back, as it was or reversed.

use std::io;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_websockets::{Message, ServerBuilder};

/// Upgrades the connection, and answers every message until the peer closes.
pub(super) async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, reverse: bool) -> io::Result<()> {
    let (_, mut websocket) = ServerBuilder::new().accept(stream).await.map_err(io::Error::other)?;
    while let Some(message) = websocket.next().await {
        let message = message.map_err(io::Error::other)?;
        if message.is_text() || message.is_binary() {
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
        // Characters, not bytes: the reverse of a text must be a text.
        Some(text) => Message::text(text.chars().rev().collect::<String>()),
        None => Message::binary(message.as_payload().iter().rev().copied().collect::<Vec<u8>>()),
    }
}
