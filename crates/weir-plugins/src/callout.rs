//! Asking services over HTTP on behalf of plugins: auth services, receivers of logs.
//!
//! Each thread keeps connections of its own, so nothing is shared and nobody waits for anybody else's answer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{HOST, HeaderValue};
use http::uri::Scheme;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_plugin::ConfigError;

use crate::trust::Trust;

/// A service, and how it is spoken to.
#[derive(Clone)]
pub struct Service {
    to: Arc<Destination>,
    /// As `Host` names it.
    host: HeaderValue,
    /// Path and query as configured; `/` where there are none.
    pub target: Box<str>,
    pub timeout: Duration,
    pub keepalive: Keepalive,
}

/// Connections that wait for the next question.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// How many each thread keeps; 0 is none.
    pub most: usize,
    /// How long one waits.
    pub idle: Duration,
}

/// Whose connections can be used for each other.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Destination {
    host: Box<str>,
    port: u16,
    tls: Option<Trust>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    Late(Duration),
    Unreachable(std::io::Error),
    Broken(hyper::Error),
    TooLong,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Late(timeout) => write!(f, "no answer within {} ms", timeout.as_millis()),
            Failure::Unreachable(error) => write!(f, "cannot connect: {error}"),
            Failure::Broken(error) => write!(f, "the connection broke: {error}"),
            Failure::TooLong => f.write_str("the answer is too long"),
        }
    }
}

impl Service {
    /// From an option that holds an `http` or `https` URL. `verify`: the service has to prove who it is.
    pub fn parse(
        url: &str,
        verify: bool,
        timeout: Duration,
        keepalive: Keepalive,
        path: &str,
    ) -> Result<Service, ConfigError> {
        let wrong = || ConfigError::new(path, format!("`{url}` is no URL; write as `http://auth.example:8080/check`"));
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => None,
            Some(scheme) if *scheme == Scheme::HTTPS => Some(Trust::of(verify)),
            _ => return Err(wrong()),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let port = authority.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').into();
        Ok(Service {
            to: Arc::new(Destination { host, port, tls }),
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?,
            target: uri.path_and_query().map_or("/", |target| target.as_str()).into(),
            timeout,
            keepalive,
        })
    }

    /// Without path and query, where secrets may stand.
    pub fn name(&self) -> String {
        let scheme = if self.to.tls.is_some() { "https" } else { "http" };
        let Destination { host, port, .. } = &*self.to;
        if host.contains(':') { format!("{scheme}://[{host}]:{port}") } else { format!("{scheme}://{host}:{port}") }
    }

    /// Sends a request, whose URI is a path and query, and waits for the whole answer, which has `most` bytes at most.
    ///
    /// # Errors
    /// Where it cannot be had within the time-out.
    pub async fn ask(&self, mut request: Request<Full<Bytes>>, most: usize) -> Result<Response<Bytes>, Failure> {
        request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
        let answer = tokio::time::timeout(self.timeout, self.exchange(request, most));
        answer.await.unwrap_or(Err(Failure::Late(self.timeout)))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>, most: usize) -> Result<Response<Bytes>, Failure> {
        let (mut connection, response) = self.send(request).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, most).collect().await.map_err(|error| match error.downcast() {
            Ok(broken) => Failure::Broken(*broken),
            Err(_) => Failure::TooLong,
        })?;
        // It may be closing; then it is of no use to anybody.
        if self.keepalive.most > 0 && connection.ready().await.is_ok() {
            IDLE.with_borrow_mut(|idle| idle.keep(&self.to, connection, self.keepalive));
        }
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// On an idle connection, or a new one.
    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<(Sender, Response<Incoming>), Failure> {
        while let Some(mut connection) = IDLE.with_borrow_mut(|idle| idle.take(&self.to, self.keepalive.idle)) {
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((connection, response)),
                // Closed while it waited: nothing of the request has been sent.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::Broken(failed.into_error())),
                },
            }
        }
        let mut connection = self.to.connect().await?;
        let response = connection.send_request(request).await.map_err(Failure::Broken)?;
        Ok((connection, response))
    }
}

type Sender = SendRequest<Full<Bytes>>;

impl Destination {
    async fn connect(&self) -> Result<Sender, Failure> {
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(Failure::Unreachable)?;
        // Whole requests are written at once; waiting for more would only delay them.
        stream.set_nodelay(true).map_err(Failure::Unreachable)?;
        let Some(trust) = &self.tls else { return speak(stream).await };
        let name = ServerName::try_from(self.host.to_string());
        let name = name.map_err(|error| Failure::Unreachable(std::io::Error::other(error)))?;
        let config = trust.config().map_err(Failure::Unreachable)?;
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(Failure::Unreachable)?;
        speak(stream).await
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + 'static) -> Result<Sender, Failure> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(Failure::Broken)?;
    // It ends with its sender; whoever waits for an answer sees why.
    tokio::task::spawn_local(async { drop(connection.await) });
    Ok(sender)
}

#[derive(Default)]
struct Idle(HashMap<Arc<Destination>, Vec<(Instant, Sender)>>);

thread_local! {
    static IDLE: RefCell<Idle> = RefCell::default();
}

impl Idle {
    /// The connection used last, which is the least likely to be closed.
    fn take(&mut self, to: &Arc<Destination>, most_idle: Duration) -> Option<Sender> {
        let connections = self.0.get_mut(to)?;
        while let Some((since, sender)) = connections.pop() {
            if sender.is_ready() && since.elapsed() < most_idle {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&mut self, to: &Arc<Destination>, sender: Sender, keepalive: Keepalive) {
        let connections = self.0.entry(Arc::clone(to)).or_default();
        if connections.len() >= keepalive.most {
            // The oldest goes; there is at least one.
            connections.remove(0);
        }
        connections.push((Instant::now(), sender));
        // What has not been used for long belongs to services that no configuration names any more.
        self.0.retain(|_, connections| {
            connections.retain(|(since, sender)| !sender.is_closed() && since.elapsed() < MOST_IDLE);
            !connections.is_empty()
        });
    }
}

/// Nobody keeps a connection for longer.
const MOST_IDLE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPALIVE: Keepalive = Keepalive { most: 1, idle: Duration::from_secs(1) };

    fn parse(url: &str) -> Result<Service, ConfigError> {
        Service::parse(url, false, Duration::from_secs(1), KEEPALIVE, "uri")
    }

    #[test]
    fn services_are_named_by_urls() {
        for (url, host, port, target) in [
            ("http://a.example", "a.example", 80, "/"),
            ("https://a.example/check?b=1", "a.example", 443, "/check?b=1"),
            ("http://[::1]:9000/x", "::1", 9000, "/x"),
        ] {
            let service = parse(url).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((&*service.to.host, service.to.port, &*service.target), (host, port, target));
            assert_eq!(service.to.tls.is_some(), url.starts_with("https"));
        }
        for url in ["a.example", "/check", "ftp://a.example", "http://user@a.example/", "http://", "http://a b/"] {
            let error = parse(url).err().expect("refused").to_string();
            assert!(error.starts_with("uri: `") && error.contains("is no URL"), "{error}");
        }
    }
}
