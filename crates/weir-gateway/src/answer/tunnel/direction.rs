//! One direction of a tunnel.

use std::task::{Context, Poll, ready};

use weir_proto::websocket::FrameBoundary;

use crate::context::buffers::{Buffers, READ_BYTES};
use crate::context::pipes::LentPipe;
use crate::message::sides::Pipe;

/// A read of so many bytes is a large one.
const LARGE_READ: usize = READ_BYTES / 2;
/// So many large reads in a row announce more: the kernel moves the next bytes by itself, as long as it moves as many at once. For fewer,
/// copying takes one call less.
const LARGE_READS: u8 = 4;

/// Bytes from one side on their way to the other. At most one read is held, or what a pipe holds, until the other side takes it.
#[derive(Default)]
pub(crate) struct Direction {
    held: Vec<u8>,
    /// A pipe with bytes that the receiver does not take yet. Boxed, since few have one.
    in_kernel: Option<Box<LentPipe>>,
    /// How many of the last reads were large, up to [`LARGE_READS`].
    large_reads: u8,
    /// The sender has closed.
    pub has_ended: bool,
    is_shut: bool,
    /// Reading has failed after bytes that the receiver was still to get.
    is_broken: bool,
    received: u64,
    sent: u64,
    /// The frame boundaries, if it is a WebSocket. Boxed, since the bytes of a stream have none.
    frames: Option<Box<FrameBoundary>>,
}

/// The end of a direction at which it broke.
#[derive(Debug)]
pub(crate) enum BrokenEnd {
    /// Its bytes could not be read.
    Sender,
    /// It does not take any more.
    Receiver,
}

impl Direction {
    /// `held`: bytes that were received before the tunnel began.
    pub(crate) fn new(held: Vec<u8>, is_websocket: bool) -> Direction {
        let mut frames = is_websocket.then(Box::<FrameBoundary>::default);
        frames.iter_mut().for_each(|frames| frames.pass(&held));
        Direction { received: held.len() as u64, held, frames, ..Direction::default() }
    }

    /// Whether the receiver's half is closed, after the sender's.
    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// The bytes received from the sender, and those that the receiver has taken.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.received, self.sent)
    }

    pub(crate) fn release(&mut self, buffers: &Buffers) {
        buffers.release(&mut self.held);
        self.in_kernel = None;
    }

    /// Whether the receiver has taken everything, and only its half is still to be closed.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_drained() && !self.is_shut
    }

    /// Whether the sender has closed, and the receiver has taken everything.
    pub(crate) fn is_drained(&self) -> bool {
        self.has_ended && self.held.is_empty() && self.in_kernel.is_none()
    }

    /// Whether a frame of the gateway can be inserted here: all that was received has been sent, up to the end of a frame.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.held.is_empty() && !self.has_ended && self.frames.as_ref().is_some_and(|frames| frames.is_between_frames())
    }

    /// Sends a close frame and closes the receiver's half. What the receiver does not take at once is lost.
    pub(crate) fn leave(&mut self, context: &mut Context<'_>, to: &mut impl Pipe, word: &[u8]) {
        let _ = to.poll_write(context, word);
        let _ = to.poll_shutdown(context);
    }

    /// Moves bytes on; ready with how many the receiver took. When the sender has closed, the receiver's half is closed, in the same call
    /// as the last bytes are written if they have come together: whatever breaks next, they have left.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        buffers: &Buffers,
        from: &mut impl Pipe,
        to: &mut impl Pipe,
    ) -> Poll<Result<usize, BrokenEnd>> {
        if !self.held.is_empty() {
            let Poll::Ready(count) = to.poll_write(context, &self.held).map_err(|_| BrokenEnd::Receiver)? else {
                from.poll_unread(context).map_err(|_| BrokenEnd::Sender)?;
                return Poll::Pending;
            };
            buffers.consume(&mut self.held, count);
            self.sent += count as u64;
            return Poll::Ready(Ok(count));
        }
        if let Some(pipe) = self.in_kernel.take() {
            return self.drain(context, *pipe, from, to);
        }
        if self.is_shut {
            return Poll::Pending;
        }
        if self.is_broken {
            return Poll::Ready(Err(BrokenEnd::Sender));
        }
        if self.has_ended {
            ready!(to.poll_shutdown(context)).map_err(|_| BrokenEnd::Receiver)?;
            self.is_shut = true;
            return Poll::Ready(Ok(0));
        }
        if self.large_reads == LARGE_READS
            && self.frames.is_none()
            && (from.is_plain() && to.is_plain())
            && let Some(pipe) = buffers.pipes.lend()
            && let Some(moved) = self.poll_in_kernel(context, pipe, from, to)
        {
            return moved;
        }
        self.poll_copied(context, buffers, from, to)
    }

    /// Reads bytes into the worker's buffer, and writes them.
    fn poll_copied(
        &mut self,
        context: &mut Context<'_>,
        buffers: &Buffers,
        from: &mut impl Pipe,
        to: &mut impl Pipe,
    ) -> Poll<Result<usize, BrokenEnd>> {
        buffers.with_read_buffer(|buffer| {
            let count = ready!(self.poll_receive(context, from, buffer))?;
            self.large_reads = if count < LARGE_READ { 0 } else { LARGE_READS.min(self.large_reads + 1) };
            let bytes = &buffer[..count];
            self.received += count as u64;
            self.frames.iter_mut().for_each(|frames| frames.pass(bytes));
            let mut sent = 0;
            while sent < bytes.len() {
                let written = match self.has_ended {
                    true => to.poll_write_last(context, &bytes[sent..]),
                    false => to.poll_write(context, &bytes[sent..]),
                };
                match written.map_err(|_| BrokenEnd::Receiver)? {
                    Poll::Ready(count) => {
                        sent += count;
                        self.sent += count as u64;
                    }
                    Poll::Pending => break,
                }
            }
            buffers.append_unread(&mut self.held, &bytes[sent..]);
            // A failure is found again by the next call.
            self.is_shut = count > 0 && self.is_drained() && matches!(to.poll_shutdown(context), Poll::Ready(Ok(())));
            Poll::Ready(Ok(sent))
        })
    }

    /// Moves bytes on by a pipe, which is empty, without copying them into this process. `None`: the kernel has moved nothing, and reading
    /// tells why.
    fn poll_in_kernel(
        &mut self,
        context: &mut Context<'_>,
        mut pipe: LentPipe,
        from: &mut impl Pipe,
        to: &mut impl Pipe,
    ) -> Option<Poll<Result<usize, BrokenEnd>>> {
        let filled = from.poll_fill(context, &mut pipe);
        let Poll::Ready(count @ 1..) = filled else { return filled.is_pending().then_some(Poll::Pending) };
        self.received += count as u64;
        if count < LARGE_READ {
            self.large_reads = 0;
        }
        let drained = self.drain(context, pipe, from, to);
        Some(Poll::Ready(if let Poll::Ready(drained) = drained { drained } else { Ok(0) }))
    }

    /// Lets the receiver take what is in a pipe.
    fn drain(
        &mut self,
        context: &mut Context<'_>,
        mut pipe: LentPipe,
        from: &mut impl Pipe,
        to: &mut impl Pipe,
    ) -> Poll<Result<usize, BrokenEnd>> {
        let (mut drained, mut is_full) = (0, false);
        while pipe.held() > 0 {
            let Poll::Ready(count) = to.poll_drain(context, &mut pipe) else {
                is_full = true;
                break;
            };
            match count {
                Ok(count) => {
                    drained += count;
                    self.sent += count as u64;
                }
                Err(_) => return Poll::Ready(Err(BrokenEnd::Receiver)),
            }
        }
        if pipe.held() > 0 {
            self.in_kernel = Some(Box::new(pipe));
        }
        if is_full && drained == 0 {
            from.poll_unread(context).map_err(|_| BrokenEnd::Sender)?;
            return Poll::Pending;
        }
        Poll::Ready(Ok(drained))
    }

    /// Reads bytes; 0 is the end. An end that has come with the bytes is seen here as well: it can leave in their segment then, which
    /// saves a segment, its acknowledgement, and a wake-up of the receiver.
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        from: &mut impl Pipe,
        buffer: &mut [u8],
    ) -> Poll<Result<usize, BrokenEnd>> {
        let count = ready!(from.poll_read(context, buffer)).map_err(|_| BrokenEnd::Sender)?;
        if count == 0 {
            self.has_ended = true;
            return Poll::Ready(Ok(0));
        }
        let more = match from.read_on(&mut buffer[count..]) {
            None => 0,
            Some(Ok(more)) => {
                self.has_ended = more == 0;
                more
            }
            Some(Err(_)) => {
                self.is_broken = true;
                0
            }
        };
        Poll::Ready(Ok(count + more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::io::{self, Read, Write};
    use std::task::Waker;

    use weir_net::stream::Stream;

    /// A pipe that gives what is scripted, and writes down what it is given.
    #[derive(Default)]
    struct ScriptedPipe {
        gives: VecDeque<io::Result<&'static [u8]>>,
        /// What follows at once in a second read.
        gives_on: Option<io::Result<&'static [u8]>>,
        /// It takes nothing.
        is_full: bool,
        got: Vec<String>,
    }

    fn read(given: io::Result<&[u8]>, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = given?;
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    impl ScriptedPipe {
        fn note(&mut self, how: &str, bytes: &[u8]) -> Poll<io::Result<usize>> {
            if self.is_full {
                return Poll::Pending;
            }
            self.got.push(format!("{how} {}", String::from_utf8_lossy(bytes)));
            Poll::Ready(Ok(bytes.len()))
        }
    }

    impl Pipe for ScriptedPipe {
        fn poll_read(&mut self, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
            self.gives.pop_front().map_or(Poll::Pending, |given| Poll::Ready(read(given, buffer)))
        }

        fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.note("write", bytes)
        }

        fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.note("shutdown", b"").map_ok(|_| ())
        }

        fn read_on(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
            self.gives_on.take().map(|given| read(given, buffer))
        }

        fn poll_write_last(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.note("last", bytes)
        }
    }

    /// What the receiver gets until the direction has nothing more to do, and whether it broke.
    fn carried(mut from: ScriptedPipe) -> (Vec<String>, bool) {
        let (mut direction, mut to, buffers) = (Direction::default(), ScriptedPipe::default(), Buffers::default());
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match direction.poll(&mut context, &buffers, &mut from, &mut to) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return (to.got, true),
                Poll::Pending => return (to.got, false),
            }
        }
    }

    #[test]
    fn an_end_that_comes_with_the_last_bytes_leaves_with_them() {
        let from =
            ScriptedPipe { gives: [Ok(&b"bytes"[..])].into(), gives_on: Some(Ok(b"")), ..ScriptedPipe::default() };
        assert_eq!(carried(from), (vec!["last bytes".into(), "shutdown ".into()], false));
    }

    #[tokio::test]
    async fn last_bytes_arrive_if_the_connection_is_reset_before_the_next_turn() {
        let ((mut from, mut sender), (mut to, mut receiver)) = (connected(), connected());
        sender.write_all(b"421 too much").unwrap();
        drop(sender);
        let (mut direction, buffers) = (Direction::default(), Buffers::default());
        let moved = poll_fn(|context| direction.poll(context, &buffers, &mut from, &mut to)).await;
        assert_eq!((moved.unwrap(), direction.is_shut()), (12, true));
        to.reset_on_drop();
        drop(to);
        let mut got = [0; 12];
        receiver.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"421 too much");
    }

    /// What a receiver gets of what is sent, by a direction whose last reads were large.
    async fn moved(send: impl FnOnce(std::net::TcpStream) + Send + 'static) -> (Vec<u8>, Direction, Buffers) {
        let ((mut from, sender), (mut to, mut receiver)) = (connected(), connected());
        let sending = std::thread::spawn(move || send(sender));
        let receiving = std::thread::spawn(move || {
            let mut got = Vec::new();
            receiver.read_to_end(&mut got).map(|_| got)
        });
        let mut direction = Direction { large_reads: LARGE_READS, ..Direction::default() };
        let buffers = Buffers::default();
        while !direction.is_shut() {
            poll_fn(|context| direction.poll(context, &buffers, &mut from, &mut to)).await.unwrap();
        }
        sending.join().unwrap();
        (receiving.join().unwrap().unwrap(), direction, buffers)
    }

    fn pattern() -> Vec<u8> {
        (0..=250).cycle().take(8 << 20).collect()
    }

    #[tokio::test]
    async fn many_bytes_are_moved_by_the_kernel_and_arrive_unchanged() {
        let (got, direction, buffers) = moved(|mut sender| sender.write_all(&pattern()).unwrap()).await;
        assert!(got == pattern());
        assert_eq!(direction.bytes(), (8 << 20, 8 << 20));
        assert!(buffers.pipes.spare() > 0, "all bytes were copied");
    }

    /// The kernel moves nothing past an urgent byte, and tells that as nothing to read, or as the end if the end has come.
    #[tokio::test]
    async fn bytes_after_an_urgent_one_arrive() {
        let (got, direction, _) = moved(|mut sender| {
            sender.write_all(&pattern()).unwrap();
            assert_eq!(rustix::net::send(&sender, b"!", rustix::net::SendFlags::OOB).unwrap(), 1);
            sender.write_all(&pattern()).unwrap();
        })
        .await;
        assert!(got == [pattern(), pattern()].concat());
        assert_eq!(direction.bytes(), (16 << 20, 16 << 20));
    }

    #[tokio::test]
    async fn bytes_are_copied_if_no_pipe_is_left() {
        let (mut lent, buffers) = (Vec::new(), Buffers::default());
        while let Some(pipe) = buffers.pipes.lend() {
            lent.push(pipe);
            assert!(lent.len() <= 64, "pipes are not bounded");
        }
        let ((mut from, mut sender), (mut to, mut receiver)) = (connected(), connected());
        let sending = std::thread::spawn(move || sender.write_all(&vec![7; 4 << 20]));
        let receiving = std::thread::spawn(move || std::io::copy(&mut receiver, &mut std::io::sink()));
        let mut direction = Direction { large_reads: LARGE_READS, ..Direction::default() };
        while !direction.is_shut() {
            poll_fn(|context| direction.poll(context, &buffers, &mut from, &mut to)).await.unwrap();
        }
        sending.join().unwrap().unwrap();
        assert_eq!(receiving.join().unwrap().unwrap(), 4 << 20);
        drop(lent);
        assert!(buffers.pipes.lend().is_some());
    }

    /// A stream, and the socket of its peer.
    fn connected() -> (Stream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        (Stream::plain(tokio::net::TcpStream::from_std(accepted).unwrap()), peer)
    }

    #[test]
    fn a_direction_leaves_only_when_the_receiver_has_taken_the_bytes() {
        let mut from =
            ScriptedPipe { gives: [Ok(&b"bytes"[..])].into(), gives_on: Some(Ok(b"")), ..ScriptedPipe::default() };
        let mut to = ScriptedPipe { is_full: true, ..ScriptedPipe::default() };
        let (mut direction, buffers) = (Direction::default(), Buffers::default());
        let mut context = Context::from_waker(Waker::noop());
        let _ = direction.poll(&mut context, &buffers, &mut from, &mut to);
        assert!(direction.has_ended && !direction.is_leaving(), "a slow reader has the whole idle time");
        to.is_full = false;
        let _ = direction.poll(&mut context, &buffers, &mut from, &mut to);
        assert!(direction.is_leaving());
    }

    #[test]
    fn bytes_that_come_meanwhile_are_sent_with_those_before() {
        let gives = [Ok(&b"by"[..]), Ok(&b""[..])].into();
        let from = ScriptedPipe { gives, gives_on: Some(Ok(b"tes")), ..ScriptedPipe::default() };
        assert_eq!(carried(from), (vec!["write bytes".into(), "shutdown ".into()], false));
    }

    #[test]
    fn bytes_before_a_reset_are_sent_and_no_end_is_told() {
        let reset = io::ErrorKind::ConnectionReset.into();
        let from =
            ScriptedPipe { gives: [Ok(&b"bytes"[..])].into(), gives_on: Some(Err(reset)), ..ScriptedPipe::default() };
        assert_eq!(carried(from), (vec!["write bytes".into()], true));
    }
}
