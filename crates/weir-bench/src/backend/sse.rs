//! Server-sent events at a constant rate, each with its number and the time at which it was due.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;

use super::BackendConnection;
use super::request::EventStream;
use crate::engine::clock::unix_ns;
use crate::engine::filler;

/// Sends events until the peer has closed the connection or all have been sent.
///
/// An event is `id: N`, and `data:` with the Unix time in ns at which it was due, followed by filler up to the
/// requested size. The stream ends with the connection, which every gateway can forward.
pub(super) async fn events(mut stream: impl BackendConnection, events: EventStream) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let (start, start_unix) = (Instant::now(), unix_ns());
    let mut number = 0;
    let mut rest = [0; 64];
    while events.count == 0 || number < events.count {
        let due = Duration::from_secs_f64((number + 1) as f64 / events.rate);
        // Detects at once that the peer has closed, rather than at the next event.
        let socket = async { tokio::io::AsyncReadExt::read(&mut stream, &mut rest).await };
        if let Ok(read) = tokio::time::timeout_at((start + due).into(), socket).await
            && read? == 0
        {
            return Ok(());
        }
        let event = event(number, start_unix + due.as_nanos() as u64, events.bytes);
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
        number += 1;
    }
    stream.write_all(b"0\r\n\r\n").await?;
    stream.shutdown().await
}

/// One event of this many bytes, or more if its number and time do not fit.
pub(super) fn event(number: u64, due_unix_ns: u64, bytes: usize) -> String {
    let content = format!("id: {number}\ndata: {due_unix_ns} ");
    let padding = filler(bytes.saturating_sub(content.len() + 2));
    content + std::str::from_utf8(&padding).expect("filler is text") + "\n\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_size() {
        assert_eq!(event(7, 1_700_000_000_000_000_000, 82).len(), 82);
        assert!(event(7, 1_700_000_000_000_000_000, 5).ends_with(" \n\n"));
    }
}
