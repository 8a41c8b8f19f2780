//! Verifies passwords by binding to an LDAP directory. Each worker has a few connections, each with one bind at a time,
//! as LDAP requires (RFC 4511 §4.2.1).

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError};

use weir_plugin::{Build, PerWorker};

use crate::fair_turns::FairTurns;
use crate::trust::ServerTrust;

/// The settings that identify a connection pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Directory {
    /// `ldap://host:port` or `ldaps://host:port`.
    pub url: String,
    /// Uses StartTLS before anything else is sent (RFC 4511 §4.14).
    pub start_tls: bool,
    pub trust: ServerTrust,
    /// The most connections of each worker.
    pub connections: usize,
}

/// The directory's answer about a name and password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BindResult {
    Right,
    Wrong,
}

/// Why the directory gave no answer about the password.
#[derive(Debug)]
pub(super) enum DirectoryError {
    Late(Duration),
    /// Too many requests wait for a connection.
    Busy,
    Broken(LdapError),
    Trust(std::io::Error),
    /// An unexpected result code (RFC 4511 §4.1.9), and its text.
    Unwilling(u32, String),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::Late(timeout) => write!(f, "no answer within {} ms", timeout.as_millis()),
            DirectoryError::Busy => f.write_str("too many requests wait for a connection"),
            DirectoryError::Broken(error) => write!(f, "{error}"),
            DirectoryError::Trust(error) => write!(f, "{error}"),
            DirectoryError::Unwilling(code, text) => write!(f, "the directory answered with result code {code} {text}"),
        }
    }
}

/// Connections that have been idle for longer are not used again. Directories close theirs after minutes.
const MOST_IDLE: Duration = Duration::from_secs(60);

/// The most requests of a worker that have or wait for a connection to a directory, a quarter of them of one client.
const MOST_WAITING: usize = 1024;

/// A worker's connections to a directory, with a permit for each that is in use.
pub(super) struct DirectoryConnections {
    idle: RefCell<Vec<(Instant, Ldap)>>,
    turns: Arc<FairTurns>,
}

impl DirectoryConnections {
    /// The connection that was used last, if it is still usable.
    fn take(&self) -> Option<Ldap> {
        let mut idle = self.idle.borrow_mut();
        while let Some((since, mut connection)) = idle.pop() {
            if since.elapsed() < MOST_IDLE && !connection.is_closed() {
                return Some(connection);
            }
        }
        None
    }
}

impl Directory {
    /// Verifies the password of `name`, a distinguished name. The time-out covers waiting for a permit, connecting and binding.
    pub(super) async fn ask(
        &self,
        connections: &DirectoryConnections,
        client: IpAddr,
        (name, password): (&str, &str),
        timeout: Duration,
    ) -> Result<BindResult, DirectoryError> {
        let answer = tokio::time::timeout(timeout, self.bind(connections, client, (name, password))).await;
        answer.unwrap_or(Err(DirectoryError::Late(timeout)))
    }

    /// Equal for directories whose answers are interchangeable.
    pub(super) fn identity(&self) -> Vec<u8> {
        let Directory { url, start_tls, trust, .. } = self;
        format!("{url} {start_tls} {trust:?}").into_bytes()
    }

    /// This worker's connections, shared by all plugins with the same directory.
    pub(super) fn connections(&self, build: &Build) -> PerWorker<DirectoryConnections> {
        let permits = self.connections;
        build.per_worker("ldap-connections", &format!("{self:?}"), move || DirectoryConnections {
            idle: RefCell::default(),
            turns: Arc::new(FairTurns::new(permits, MOST_WAITING)),
        })
    }

    async fn bind(
        &self,
        connections: &DirectoryConnections,
        client: IpAddr,
        (name, password): (&str, &str),
    ) -> Result<BindResult, DirectoryError> {
        let _turn = connections.turns.take(client).await.ok_or(DirectoryError::Busy)?;
        while let Some(mut connection) = connections.take() {
            // The directory may just have closed an idle connection; then the next one is tried.
            if let Ok(answer) = connection.simple_bind(name, password).await {
                connections.idle.borrow_mut().push((Instant::now(), connection));
                return verdict(answer.rc, answer.text);
            }
        }
        let mut connection = self.connect().await?;
        let answer = connection.simple_bind(name, password).await.map_err(DirectoryError::Broken)?;
        connections.idle.borrow_mut().push((Instant::now(), connection));
        verdict(answer.rc, answer.text)
    }

    /// Never falls back to a connection without TLS.
    async fn connect(&self) -> Result<Ldap, DirectoryError> {
        let settings = LdapConnSettings::new().set_starttls(self.start_tls);
        let settings = settings.set_config(self.trust.config().map_err(DirectoryError::Trust)?);
        let (connection, handle) =
            LdapConnAsync::with_settings(settings, &self.url).await.map_err(DirectoryError::Broken)?;
        // The task ends when the handle is dropped; pending requests see the error.
        tokio::task::spawn_local(async { drop(connection.drive().await) });
        Ok(handle)
    }
}

/// RFC 4511 §4.1.9: codes about this name and password are an answer; all others are a failure of the directory.
fn verdict(code: u32, text: String) -> Result<BindResult, DirectoryError> {
    match code {
        0 => Ok(BindResult::Right),
        // constraintViolation, noSuchObject, invalidDNSyntax, inappropriateAuthentication, invalidCredentials,
        // insufficientAccessRights, unwillingToPerform: locked, expired, without a password, or simply wrong.
        19 | 32 | 34 | 48 | 49 | 50 | 53 => Ok(BindResult::Wrong),
        _ => Err(DirectoryError::Unwilling(code, text)),
    }
}
