//! The streams under an HTTP connection: one that shares its thread, and one that ends when the server breaks a limit.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::conduct::ServerConduct;
use crate::frames::FrameCounter;

/// The bytes after which a reader lets the other tasks of its thread run.
const READ_TURN_BYTES: usize = 16 << 10;

/// A TCP connection whose reader lets other tasks run, however much the server sends. tokio alone lets a task read 128 times, each
/// time as much as its buffer has room for.
#[derive(Debug)]
pub struct SharingStream {
    tcp: TcpStream,
    /// Bytes read since other tasks could run.
    turn: usize,
}

impl SharingStream {
    pub(crate) fn new(tcp: TcpStream) -> SharingStream {
        SharingStream { tcp, turn: 0 }
    }
}

impl AsyncRead for SharingStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.turn >= READ_TURN_BYTES {
            this.turn = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = into.filled().len();
        let read = Pin::new(&mut this.tcp).poll_read(context, into);
        this.turn = if read.is_pending() { 0 } else { this.turn + into.filled().len() - before };
        read
    }
}

impl AsyncWrite for SharingStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(context)
    }
}

/// A stream whose reads fail when the server has broken a limit of [`ServerConduct`].
pub(crate) struct GuardedStream<S> {
    stream: S,
    conduct: Arc<ServerConduct>,
    /// Over HTTP/2.
    frames: Option<FrameCounter>,
}

impl<S> GuardedStream<S> {
    pub(crate) fn new(stream: S, conduct: Arc<ServerConduct>, is_http2: bool) -> GuardedStream<S> {
        GuardedStream { stream, conduct, frames: is_http2.then(FrameCounter::new) }
    }

    fn sent(&mut self, written: &Poll<io::Result<usize>>) {
        if let (Some(frames), Poll::Ready(Ok(count))) = (&mut self.frames, written) {
            frames.sent(*count);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(excess) = this.conduct.excess() {
            return Poll::Ready(Err(io::Error::other(excess)));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, into))?;
        let bytes = &into.filled()[before..];
        match &mut this.frames {
            None => this.conduct.read(bytes.len()),
            Some(frames) => frames.received(bytes).map_err(|excess| {
                this.conduct.exceed(excess);
                io::Error::other(excess)
            })?,
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.sent(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, pieces);
        this.sent(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_reader_lets_others_run_whatever_is_there_to_read() {
        const ALL: usize = 1 << 20;
        const BUFFER: usize = 4 << 10;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
            let tcp = TcpStream::connect(listener.local_addr().expect("it is bound")).await.expect("it listens");
            let (mut server, _) = listener.accept().await.expect("a connection");
            tokio::spawn(async move { server.write_all(&[b'x'; ALL]).await });
            let mut stream = SharingStream::new(tcp);
            let mut read = 0;
            while read < ALL {
                // As long as there is something to read, as hyper does.
                let turn = poll_fn(|context| {
                    let mut turn = 0;
                    loop {
                        let mut bytes = [0; BUFFER];
                        let mut into = ReadBuf::new(&mut bytes);
                        let is_pending = Pin::new(&mut stream).poll_read(context, &mut into).is_pending();
                        turn += into.filled().len();
                        if is_pending && turn == 0 {
                            return Poll::Pending;
                        }
                        if is_pending || turn >= ALL {
                            return Poll::Ready(turn);
                        }
                    }
                });
                let turn = turn.await;
                assert!(turn < READ_TURN_BYTES + BUFFER, "{turn} bytes at once");
                read += turn;
            }
            drop(stream.read(&mut [0]));
        });
    }
}
