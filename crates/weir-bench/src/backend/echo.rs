//! Bytes and datagrams that come back as they are.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;

use super::BackendConnection;

/// The most bytes read at once.
const READ_BYTES: usize = 64 * 1024;

pub(super) async fn bytes(mut stream: impl BackendConnection) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        buffer.reserve(READ_BYTES);
        if stream.read_buf(&mut buffer).await? == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer).await?;
        buffer.clear();
    }
}

pub(super) async fn datagrams(socket: UdpSocket) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        // An error is that of an earlier datagram whose sender has gone.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else { continue };
        let _ = socket.send_to(&buffer[..length], client).await;
    }
}
