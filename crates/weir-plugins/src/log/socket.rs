//! Receivers over plain TCP or UDP. They send no acknowledgements, so a record counts as delivered once the operating
//! system has accepted it.

use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use weir_client::{HttpClient, ServerVerification, ServiceStream, StreamTarget, StreamTls};
use weir_plugin::ConfigError;
use weir_records::{Outcome, Record, RejectReason, SendOutcome};

use crate::options::host;

/// The host and port of a receiver.
pub(crate) struct SocketAddress {
    host: String,
    port: u16,
    /// The time-out for connecting, and for each batch.
    timeout: Duration,
}

impl SocketAddress {
    /// From options with these names.
    ///
    /// # Errors
    /// An option is invalid.
    pub(crate) fn new(host: String, port: u16, timeout: Duration) -> Result<SocketAddress, ConfigError> {
        host::check(&host, "host")?;
        Ok(SocketAddress { host, port, timeout })
    }

    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    async fn within<T>(&self, what: &str, work: impl Future<Output = io::Result<T>>) -> Result<T, String> {
        match timeout(self.timeout, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(format!("{what} {} failed: {error}", self.name())),
            Err(_) => Err(format!("{what} {} timed out after {} ms", self.name(), self.timeout.as_millis())),
        }
    }
}

/// The TLS settings for a receiver, from options that loggers share.
pub(crate) fn stream_tls(verify: bool, name: Option<String>) -> Result<StreamTls, ConfigError> {
    let name = name.filter(|name| !name.is_empty());
    if name.as_ref().is_some_and(|name| name.contains(|char: char| char.is_whitespace() || ":/@".contains(char))) {
        return Err(ConfigError::new(
            "tls_options",
            "must be the name in the receiver's certificate, such as `logs.example`",
        ));
    }
    let verification = if verify { ServerVerification::Verify } else { ServerVerification::Skip };
    Ok(StreamTls { verification, name: name.map(Into::into) })
}

/// A TCP connection that is opened when it is needed.
pub(crate) struct TcpReceiver {
    client: HttpClient,
    target: StreamTarget,
    address: SocketAddress,
    stream: Option<ServiceStream>,
}

impl TcpReceiver {
    pub(crate) fn new(client: HttpClient, address: SocketAddress, tls: Option<StreamTls>) -> TcpReceiver {
        let target = StreamTarget::new(&address.host, address.port, tls);
        TcpReceiver { client, target, address, stream: None }
    }

    /// # Errors
    /// Not all bytes were accepted; how many is not known.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut stream = match self.stream.take().and_then(still_open) {
            Some(stream) => stream,
            None => {
                let opened = self.client.stream(&self.target, self.address.timeout).await;
                opened.map_err(|error| error.to_string())?
            }
        };
        let write = async {
            stream.write_all(bytes).await?;
            stream.flush().await
        };
        self.address.within("sending to", write).await?;
        self.stream = Some(stream);
        Ok(())
    }
}

/// `None` if the receiver has closed the connection while it was idle. Received bytes are discarded.
fn still_open(mut stream: ServiceStream) -> Option<ServiceStream> {
    let mut ignored = [0; 4096];
    loop {
        match stream.read(&mut ignored).now_or_never() {
            None => return Some(stream),
            Some(Ok(1..)) => {}
            Some(_) => return None,
        }
    }
}

/// Bytes of a datagram over IPv4.
pub(crate) const MAX_DATAGRAM: usize = 65_507;

/// Sends datagrams to one address, which is resolved again after a failure.
pub(crate) struct UdpReceiver {
    address: SocketAddress,
    socket: Option<UdpSocket>,
}

impl UdpReceiver {
    pub(crate) fn new(address: SocketAddress) -> UdpReceiver {
        UdpReceiver { address, socket: None }
    }

    /// # Errors
    /// The operating system did not accept the datagram.
    pub(crate) async fn send(&mut self, datagram: &[u8]) -> Result<(), String> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.address.within("connecting to", self.connect()).await?,
        };
        self.address.within("sending to", socket.send(datagram)).await?;
        self.socket = Some(socket);
        Ok(())
    }

    /// Sends a datagram for each record, with what `write` appends.
    pub(crate) async fn send_each(&mut self, batch: &[Record], write: impl Fn(&Record, &mut Vec<u8>)) -> SendOutcome {
        let (mut outcomes, mut error, mut datagram) = (Vec::with_capacity(batch.len()), None, Vec::new());
        for record in batch {
            datagram.clear();
            write(record, &mut datagram);
            if datagram.len() > MAX_DATAGRAM {
                outcomes.push(Outcome::Rejected(RejectReason::TooLarge));
                error = Some(format!("a record is larger than {MAX_DATAGRAM} bytes"));
                continue;
            }
            if let Err(failed) = self.send(&datagram).await {
                error = Some(failed);
                break;
            }
            outcomes.push(Outcome::Delivered);
        }
        outcomes.resize(batch.len(), Outcome::Retry);
        SendOutcome::Each { outcomes, error }
    }

    async fn connect(&self) -> io::Result<UdpSocket> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in tokio::net::lookup_host((self.address.host.as_str(), self.address.port)).await? {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).await?;
            match socket.connect(address).await {
                Ok(()) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
