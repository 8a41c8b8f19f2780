//! A directory that is asked whether a password is somebody's: a few connections for each worker, each with one question
//! at a time, as LDAP has it for binds (RFC 4511 §4.2.1).

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError};
use tokio::sync::Semaphore;

use weir_plugin::{Build, PerWorker};

use crate::trust::ServerTrust;

/// Whose connections can be used for each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Directory {
    /// `ldap://host:port` or `ldaps://host:port`.
    pub url: String,
    /// The connection is made secret before anything is said on it (RFC 4511 §4.14).
    pub start_tls: bool,
    pub trust: ServerTrust,
    /// At most so many for each worker.
    pub connections: usize,
}

/// What the directory says of a name and a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindResult {
    Right,
    Wrong,
}

/// Why there is no verdict.
#[derive(Debug)]
pub enum DirectoryError {
    Late(Duration),
    Broken(LdapError),
    Trust(std::io::Error),
    /// It answers, but with this: a result code of RFC 4511 §4.1.9, and a text.
    Unwilling(u32, String),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::Late(timeout) => write!(f, "no answer within {} ms", timeout.as_millis()),
            DirectoryError::Broken(error) => write!(f, "{error}"),
            DirectoryError::Trust(error) => write!(f, "{error}"),
            DirectoryError::Unwilling(code, text) => write!(f, "the directory answered with result code {code} {text}"),
        }
    }
}

/// An idle connection is used again for so long. Directories close theirs after minutes.
const MOST_IDLE: Duration = Duration::from_secs(60);

/// A worker's connections to a directory.
pub struct DirectoryConnections {
    idle: RefCell<Vec<(Instant, Ldap)>>,
    permits: Semaphore,
}

impl DirectoryConnections {
    /// The connection used last.
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
    /// Asks whether the password is that of `name`, a distinguished name. The time-out is for all of it: waiting for a
    /// free connection, connecting, asking.
    pub async fn ask(
        &self,
        connections: &DirectoryConnections,
        name: &str,
        password: &str,
        timeout: Duration,
    ) -> Result<BindResult, DirectoryError> {
        let answer = tokio::time::timeout(timeout, self.bind(connections, name, password)).await;
        answer.unwrap_or(Err(DirectoryError::Late(timeout)))
    }

    /// Equal for directories whose verdicts are worth the same.
    pub fn identity(&self) -> Vec<u8> {
        let Directory { url, start_tls, trust, .. } = self;
        format!("{url} {start_tls} {trust:?}").into_bytes()
    }

    /// This worker's connections, the same for all plugins that ask this directory.
    pub fn connections(&self, build: &Build) -> PerWorker<DirectoryConnections> {
        let permits = self.connections;
        build.per_worker("ldap-connections", &format!("{self:?}"), move || DirectoryConnections {
            idle: RefCell::default(),
            permits: Semaphore::new(permits),
        })
    }

    async fn bind(
        &self,
        connections: &DirectoryConnections,
        name: &str,
        password: &str,
    ) -> Result<BindResult, DirectoryError> {
        let _permit = connections.permits.acquire().await.expect("the semaphore is never closed");
        while let Some(mut connection) = connections.take() {
            // It may have been closed just now, which says nothing about the directory.
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

    /// Never falls back to a connection in the clear.
    async fn connect(&self) -> Result<Ldap, DirectoryError> {
        let settings = LdapConnSettings::new().set_starttls(self.start_tls);
        let settings = settings.set_config(self.trust.config().map_err(DirectoryError::Trust)?);
        let (connection, handle) =
            LdapConnAsync::with_settings(settings, &self.url).await.map_err(DirectoryError::Broken)?;
        // It ends with its handle; whoever waits for an answer sees why.
        tokio::task::spawn_local(async { drop(connection.drive().await) });
        Ok(handle)
    }
}

/// RFC 4511 §4.1.9. What is about this name and password is a verdict; everything else is the directory's trouble.
fn verdict(code: u32, text: String) -> Result<BindResult, DirectoryError> {
    match code {
        0 => Ok(BindResult::Right),
        // constraintViolation, noSuchObject, invalidDNSyntax, inappropriateAuthentication, invalidCredentials,
        // insufficientAccessRights, unwillingToPerform: locked, expired, without a password, or simply wrong.
        19 | 32 | 34 | 48 | 49 | 50 | 53 => Ok(BindResult::Wrong),
        _ => Err(DirectoryError::Unwilling(code, text)),
    }
}
