//! The byte stream of one connection, with or without TLS.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustls::ClientConnection;

use crate::engine::prepare::OriginTls;

/// A connected, or connecting, non-blocking socket.
pub(super) struct ClientStream {
    socket: OwnedFd,
    tls: Option<Box<ClientConnection>>,
    /// Whether the kernel may have bytes: set by an event, and cleared by a read that returns less than requested.
    /// Events are edge-triggered, so this loses nothing and saves a read that would return EAGAIN.
    readable: bool,
    /// The peer has closed its side: the rest must be read to the end, because no further event will occur.
    hung_up: bool,
}

/// Buffers that all connections of a thread share.
pub(super) struct StreamBuffers {
    pub plain: Box<[u8]>,
    cipher: Box<[u8]>,
}

impl StreamBuffers {
    pub(super) fn new() -> Self {
        // One read of ciphertext may complete a record begun before it: two records of plaintext, 16 KB each at most.
        Self { plain: vec![0; 64 * 1024].into(), cipher: vec![0; 16 * 1024].into() }
    }
}

impl ClientStream {
    pub(super) fn new(socket: OwnedFd, tls: Option<&OriginTls>) -> Result<Self, rustls::Error> {
        let tls = tls.map(|tls| {
            let mut client = ClientConnection::new(tls.config.clone(), tls.name.clone())?;
            // No limit: a request is passed to TLS as a whole, and `flush` writes what the socket accepts.
            client.set_buffer_limit(None);
            Ok::<_, rustls::Error>(Box::new(client))
        });
        Ok(Self { socket, tls: tls.transpose()?, readable: false, hung_up: false })
    }

    pub(super) fn socket(&self) -> impl AsFd {
        self.socket.as_fd()
    }

    #[inline]
    pub(super) fn saw_event(&mut self, flags: EventFlags) {
        let over = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.hung_up |= over;
        self.readable |= over || flags.contains(EventFlags::IN);
    }

    /// The outcome of connecting.
    pub(super) fn connected(&self) -> io::Result<()> {
        rustix::net::sockopt::socket_error(&self.socket)?.map_err(Into::into)
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the TLS session was resumed.
    pub(super) fn resumed(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed))
    }

    /// Continues the TLS handshake; true when it is complete.
    pub(super) fn handshake(&mut self, buffers: &mut StreamBuffers) -> io::Result<bool> {
        loop {
            self.flush()?;
            let Some(tls) = &mut self.tls else { return Ok(true) };
            if !tls.is_handshaking() {
                return Ok(true);
            }
            match self.decrypt(buffers)? {
                None => return Ok(false),
                Some(Decrypted { over: true, .. }) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(_) => {}
            }
        }
    }

    /// Sends `data` from `offset` on; returns the new offset.
    #[inline]
    pub(super) fn send(&mut self, data: &[u8], offset: usize) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            if offset < data.len() {
                tls.writer().write_all(&data[offset..])?;
            }
            self.flush()?;
            return Ok(data.len());
        }
        let mut offset = offset;
        while offset < data.len() {
            match rustix::io::write(&self.socket, &data[offset..]) {
                Ok(written) => offset += written,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(offset)
    }

    /// Writes the output of TLS, as far as the socket accepts it.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            match tls.write_tls(&mut Socket(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives into `buffers.plain`; returns the number of bytes, 0 at the end of the stream, or `None` if nothing is available.
    #[inline]
    pub(super) fn receive(&mut self, buffers: &mut StreamBuffers) -> io::Result<Option<usize>> {
        if self.tls.is_none() {
            return receive_raw(&self.socket, &mut self.readable, self.hung_up, &mut buffers.plain);
        }
        loop {
            match self.decrypt(buffers)? {
                None => return Ok(None),
                Some(Decrypted { over: true, plain: 0 }) => return Ok(Some(0)),
                // Only a session ticket, or part of a record.
                Some(Decrypted { plain: 0, .. }) => {}
                Some(Decrypted { plain, .. }) => return Ok(Some(plain)),
            }
        }
    }

    /// Reads from the socket once, and decrypts into `buffers.plain`.
    fn decrypt(&mut self, buffers: &mut StreamBuffers) -> io::Result<Option<Decrypted>> {
        let read = receive_raw(&self.socket, &mut self.readable, self.hung_up, &mut buffers.cipher)?;
        let Some(length) = read else { return Ok(None) };
        let tls = self.tls.as_mut().expect("only called with TLS");
        // A close without close_notify is accepted: HTTP itself shows whether a message is complete.
        let mut decrypted = Decrypted { plain: 0, over: length == 0 };
        let mut left = &buffers.cipher[..length];
        while !left.is_empty() && !decrypted.over {
            tls.read_tls(&mut left)?;
            let state = tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            decrypted.over = state.peer_has_closed();
            let mut waiting = state.plaintext_bytes_to_read();
            while waiting > 0 {
                let taken = tls.reader().read(&mut buffers.plain[decrypted.plain..])?;
                decrypted.plain += taken;
                waiting -= taken;
            }
        }
        if tls.wants_write() {
            self.flush()?;
        }
        Ok(Some(decrypted))
    }
}

/// The result of one read through TLS.
struct Decrypted {
    plain: usize,
    over: bool,
}

#[inline]
fn receive_raw(socket: &OwnedFd, readable: &mut bool, hung_up: bool, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    while *readable {
        match rustix::io::read(socket, &mut *buffer) {
            Ok(read) => {
                *readable = read == buffer.len() || (hung_up && read > 0);
                return Ok(Some(read));
            }
            Err(Errno::AGAIN) => *readable = false,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// The socket as a `Write`.
struct Socket<'a>(&'a OwnedFd);

impl io::Write for Socket<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, data)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
