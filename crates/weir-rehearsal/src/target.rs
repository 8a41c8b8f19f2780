//! A gateway that requests are sent to.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderMap, Request};
use tokio::time::timeout;
use weir_client::{
    Authorities, CallError, CallSettings, HttpClient, HttpClientSettings, IdleConnections, ServerVerification,
    ServiceUrl, UrlError,
};

use crate::answer::{AnswerAbsence, AnswerOutcome, ComparedBodyReader, RehearsedAnswer};

/// The idle connections that are kept: one for each request that is in flight at most.
const MAX_IDLE_CONNECTIONS: usize = 64;

/// The most bytes of one answer. Of a longer one, head and status are compared, and the connection is dropped.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// How long an address may take to accept a connection, if a name has several.
const MAX_TRIAL: Duration = Duration::from_secs(1);

/// How a gateway is connected to.
#[derive(Clone, Debug)]
pub struct TargetSettings {
    pub authorities: Authorities,
    /// Any certificate is accepted.
    pub accepts_any_certificate: bool,
    /// The time for one answer, with its connection.
    pub timeout: Duration,
    /// The bytes of a body that are kept for the comparison.
    pub max_body_bytes: usize,
    /// Addresses in place of those that a host name and port have, as `("shop.example", 443, address)`.
    pub resolved: Vec<(String, u16, SocketAddr)>,
}

/// One of the two gateways.
pub struct GatewayTarget {
    url: ServiceUrl,
    client: HttpClient,
    settings: CallSettings,
    max_body_bytes: usize,
    timeout: Duration,
    /// The bytes of all contents that were read.
    read: AtomicU64,
}

impl GatewayTarget {
    /// # Errors
    /// What is wrong with the URL, or why its host has no address.
    pub fn new(text: &str, settings: TargetSettings) -> Result<GatewayTarget, String> {
        let url = ServiceUrl::parse(text).map_err(|error: UrlError| format!("`{text}`: {error}"))?;
        if url.target().as_str() != "/" {
            return Err(format!("`{text}` has a path; give the address alone: the paths are those of the log"));
        }
        let (host, port) = (url.origin().host.to_string(), url.origin().port);
        let TargetSettings { authorities, accepts_any_certificate, timeout, max_body_bytes, resolved } = settings;
        let given = resolved.iter().find(|(name, of_port, _)| name.eq_ignore_ascii_case(&host) && *of_port == port);
        let address = match given {
            Some((_, _, address)) => *address,
            None => {
                let found = (host.as_str(), port).to_socket_addrs();
                let found = found.map_err(|error| format!("the host of `{text}` has no address: {error}"))?;
                reachable(found.collect()).ok_or_else(|| format!("the host of `{text}` has no address"))?
            }
        };
        // Connections always lead to this gateway; the host of a request is only its name in the handshake.
        let client = HttpClientSettings { authorities, connect_to: Some(address), ..HttpClientSettings::default() };
        let verification = if accepts_any_certificate { ServerVerification::Skip } else { ServerVerification::Verify };
        let settings = CallSettings {
            verification,
            timeout,
            connect_timeout: timeout,
            max_content_bytes: usize::MAX,
            idle: IdleConnections { max_per_origin: MAX_IDLE_CONNECTIONS, ..IdleConnections::default() },
            ..CallSettings::default()
        };
        let client = HttpClient::new(client);
        if url.origin().is_https {
            client.prepare_tls(&settings).map_err(|error| error.to_string())?;
        }
        Ok(GatewayTarget { url, client, settings, max_body_bytes, timeout, read: AtomicU64::new(0) })
    }

    pub fn is_https(&self) -> bool {
        self.url.origin().is_https
    }

    /// Host and port as written in the URL.
    pub fn authority(&self) -> &str {
        self.url.authority().to_str().unwrap_or_default()
    }

    /// The number of the port on which it is reached.
    pub fn port(&self) -> u16 {
        self.url.origin().port
    }

    /// The bytes of all contents that were read so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// The URL of a target for a connection whose handshake names `host`.
    fn url_for(&self, host: &str, target: &str) -> Result<ServiceUrl, UrlError> {
        let name =
            host.rsplit_once(':').map_or(host, |(name, port)| if port.parse::<u16>().is_ok() { name } else { host });
        let origin = match self.is_https() {
            true => format!("https://{name}:{}", self.url.origin().port),
            false => self.url.origin().to_string(),
        };
        ServiceUrl::parse(&format!("{origin}{target}"))
    }

    /// Sends a request and reads the whole answer. The request's URI is not used.
    pub(crate) async fn ask(&self, target: &str, request: Request<Bytes>) -> AnswerOutcome {
        let late = || AnswerAbsence::TimedOut(format!("no complete answer within {} ms", self.timeout.as_millis()));
        timeout(self.timeout, self.exchange(target, request)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn exchange(&self, target: &str, request: Request<Bytes>) -> AnswerOutcome {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let url = self.url_for(host, target).map_err(|error| AnswerAbsence::Broken(error.to_string()))?;
        let is_head = request.method() == http::Method::HEAD;
        let (head, mut content) =
            self.client.open(&url, request, &self.settings).await.map_err(no_answer)?.into_parts();
        let mut reader = ComparedBodyReader::default();
        if !is_head && is_without_end(&head.headers) {
            reader.cut();
        } else {
            while let Some(piece) = content.next().await.map_err(no_answer)? {
                self.read.fetch_add(piece.len() as u64, Relaxed);
                reader.add(&piece, self.max_body_bytes);
                if reader.length() > MAX_ANSWER_BYTES {
                    reader.cut();
                    break;
                }
            }
        }
        let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).trim().to_owned())
        };
        let fields = head.headers.iter().map(field).collect();
        Ok(RehearsedAnswer { status: head.status.as_u16(), fields, body: reader.end(), is_head })
    }
}

/// Whether content is a stream of events, or longer than what is read.
fn is_without_end(fields: &HeaderMap) -> bool {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text(CONTENT_TYPE).trim_start().to_ascii_lowercase().starts_with("text/event-stream")
        || text(CONTENT_LENGTH).parse().is_ok_and(|length: u64| length > MAX_ANSWER_BYTES)
}

/// The first address that accepts a connection, or else the first one.
fn reachable(addresses: Vec<SocketAddr>) -> Option<SocketAddr> {
    let accepts = |address: &&SocketAddr| TcpStream::connect_timeout(address, MAX_TRIAL).is_ok();
    match addresses.as_slice() {
        [only] => Some(*only),
        all => all.iter().find(accepts).or(all.first()).copied(),
    }
}

fn no_answer(error: CallError) -> AnswerAbsence {
    let reason = error.to_string();
    match error {
        CallError::Tls { .. } | CallError::TlsTimedOut { .. } => AnswerAbsence::Tls(reason),
        error if error.is_timeout() => AnswerAbsence::TimedOut(reason),
        error if error.is_unsent() => AnswerAbsence::Connect(reason),
        _ => AnswerAbsence::Broken(reason),
    }
}
