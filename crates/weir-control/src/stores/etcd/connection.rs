//! A connection to one member of an etcd cluster. It does not reconnect, and does not switch to another member: its owner notices
//! the loss and opens a new one.

use std::error::Error as _;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::wire::{
    AuthenticateRequest, AuthenticateResponse, HeaderOnly, LeaseGrantRequest, LeaseId, LeaseState, RangeRequest,
    RangeResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use crate::causes::with_causes;

/// The interval and time-out of keep-alive pings: a dead peer is noticed within twice this time.
const KEEPALIVE: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(3);
/// The most bytes of a response. Ranges are read in pages, and a transaction has at most 128 operations of 1.5 MiB in all.
const MOST_ANSWER: usize = 512 << 20;

/// The credentials for members.
#[derive(Clone, Debug, Default)]
pub(super) struct EtcdAccess {
    pub(super) user: Option<(Box<str>, Box<str>)>,
    pub(super) tls: Option<EtcdTls>,
    /// The time limit of a request.
    pub(super) timeout: Duration,
}

/// The contents of PEM files.
#[derive(Clone, Debug, Default)]
pub(super) struct EtcdTls {
    pub(super) authorities: Option<Vec<u8>>,
    pub(super) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) server_name: Option<Box<str>>,
}

/// A connection; clones share it.
#[derive(Clone)]
pub(super) struct EtcdConnection {
    /// The URL of the member.
    pub(super) member: Arc<str>,
    grpc: Grpc<Channel>,
    login: Option<Arc<EtcdLogin>>,
    timeout: Duration,
}

/// The user of a connection, and the token that etcd has given it last. etcd forgets tokens: simple ones that were not used for
/// five minutes (`--auth-token-ttl`), JWTs at the end of their life, and both when users or roles are changed.
struct EtcdLogin {
    user: Box<str>,
    password: Box<str>,
    token: StdMutex<Option<MetadataValue<Ascii>>>,
    /// Held while a new token is requested, so that requests that fail together request one.
    renewing: Mutex<()>,
}

impl EtcdLogin {
    fn token(&self) -> MutexGuard<'_, Option<MetadataValue<Ascii>>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a request to a member failed.
#[derive(Clone, Debug)]
pub(super) struct EtcdError {
    pub(super) problem: String,
    /// Whether etcd may have carried out the request nevertheless, or may still do so.
    pub(super) may_be_made: bool,
    /// Whether etcd has refused the token. The request was not carried out then.
    is_token_refused: bool,
}

impl EtcdError {
    /// The request was not sent, or was refused.
    pub(super) fn not_made(problem: impl Into<String>) -> EtcdError {
        EtcdError { problem: problem.into(), may_be_made: false, is_token_refused: false }
    }

    /// The error, with the member that it is of.
    pub(super) fn of(self, member: &str) -> EtcdError {
        EtcdError { problem: format!("{member}: {}", self.problem), ..self }
    }

    /// The request was sent, and its outcome is unknown.
    pub(super) fn unknown(problem: impl Into<String>) -> EtcdError {
        EtcdError { problem: problem.into(), may_be_made: true, is_token_refused: false }
    }
}

/// What a member says before it looks at a request, if its cluster has no leader (`hasleader`).
const NO_LEADER: &str = "etcdserver: no leader";
/// What a member says of a token that was given before users or roles were changed (`ErrAuthOldRevision`).
const OLD_TOKEN: &str = "etcdserver: revision of auth store is old";

/// What a member says of requests whose cause is in the settings, and what the cause is.
const CAUSES: [(&str, &str); 5] = [
    (NO_LEADER, "it does not reach a majority of the members"),
    (
        "etcdserver: authentication failed, invalid user ID or password",
        "`user` or `password` is wrong; etcd does not say which",
    ),
    ("etcdserver: user name is empty", "it asks for a log-in; set `user` and `password`"),
    ("etcdserver: authentication is not enabled", "it has no users; remove `user` and `password`"),
    ("etcdserver: permission denied", "no role of `user` may read and write all keys below `prefix`"),
];

impl From<Status> for EtcdError {
    fn from(status: Status) -> EtcdError {
        let cause = CAUSES.iter().find(|(message, _)| status.message() == *message);
        let problem = match (status.source(), status.message()) {
            (Some(cause), _) => with_causes(cause),
            (None, "") => format!("it answers {:?}", status.code()),
            (None, message) => match cause {
                Some((_, cause)) => format!("it answers `{message}`: {cause}"),
                None => format!("it answers `{message}`"),
            },
        };
        let is_refusal = match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated => true,
            _ => status.message() == NO_LEADER,
        };
        let is_token_refused = status.code() == Code::Unauthenticated || status.message() == OLD_TOKEN;
        EtcdError { problem, may_be_made: !is_refusal, is_token_refused }
    }
}

impl EtcdConnection {
    pub(super) async fn open(url: &str, access: &EtcdAccess) -> Result<EtcdConnection, EtcdError> {
        let wrong = |error: tonic::transport::Error| EtcdError::not_made(with_causes(&error));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(wrong)?;
        let mut endpoint = endpoint
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        if let Some(tls) = &access.tls {
            let mut config = ClientTlsConfig::new();
            if let Some(authorities) = &tls.authorities {
                config = config.ca_certificate(Certificate::from_pem(authorities));
            }
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            if let Some(name) = &tls.server_name {
                config = config.domain_name(name.to_string());
            }
            endpoint = endpoint.tls_config(config).map_err(wrong)?;
        }
        let channel = timeout(CONNECT, endpoint.connect()).await;
        let channel = channel.map_err(|_| EtcdError::not_made("it does not accept connections"))?.map_err(wrong)?;
        let grpc = Grpc::new(channel).max_decoding_message_size(MOST_ANSWER).max_encoding_message_size(MOST_ANSWER);
        let login = access.user.clone().map(|(user, password)| {
            Arc::new(EtcdLogin { user, password, token: StdMutex::default(), renewing: Mutex::default() })
        });
        let connection = EtcdConnection { member: url.into(), grpc, login, timeout: access.timeout };
        if let Some(login) = &connection.login {
            connection.authenticate(login, None).await?;
        }
        Ok(connection)
    }

    /// Requests a token in place of `refused`, unless another request has done so meanwhile.
    async fn authenticate(&self, login: &EtcdLogin, refused: Option<&MetadataValue<Ascii>>) -> Result<(), EtcdError> {
        let _renewing = login.renewing.lock().await;
        if refused.is_some() && login.token().as_ref() != refused {
            return Ok(());
        }
        let asked = AuthenticateRequest { name: login.user.to_string(), password: login.password.to_string() };
        // It needs no token, and an old one would be refused.
        let answer: AuthenticateResponse = self.ask_with("/etcdserverpb.Auth/Authenticate", asked, None).await?;
        *login.token() = answer.token.parse().ok();
        Ok(())
    }

    fn token(&self) -> Option<MetadataValue<Ascii>> {
        self.login.as_ref().and_then(|login| login.token().clone())
    }

    fn request<T>(message: T, token: Option<MetadataValue<Ascii>>) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        // With this, a member that is cut off from the others fails instead of serving stale data.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = token {
            metadata.insert("token", token);
        }
        request
    }

    /// Sends a request, and once more with a new token if etcd refuses the token.
    async fn ask<Q, A>(&self, path: &'static str, message: Q) -> Result<A, EtcdError>
    where
        Q: Message + Clone + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let Some(login) = &self.login else { return self.ask_with(path, message, None).await };
        let token = self.token();
        match self.ask_with(path, message.clone(), token.clone()).await {
            Err(error) if error.is_token_refused => {
                let renewed = self.authenticate(login, token.as_ref()).await;
                // The request itself was not carried out.
                renewed.map_err(|error| EtcdError { may_be_made: false, ..error })?;
                self.ask_with(path, message, self.token()).await
            }
            answered => answered,
        }
    }

    async fn ask_with<Q, A>(
        &self,
        path: &'static str,
        message: Q,
        token: Option<MetadataValue<Ascii>>,
    ) -> Result<A, EtcdError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.grpc.clone();
        let request = Self::request(message, token);
        let asked = async {
            grpc.ready().await.map_err(|error| EtcdError::not_made(with_causes(&error)))?;
            let path = PathAndQuery::from_static(path);
            Ok(grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?.into_inner())
        };
        let answered = timeout(self.timeout, asked).await;
        answered.unwrap_or_else(|_| Err(EtcdError::unknown(format!("it does not answer within {:?}", self.timeout))))
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
        self.ask("/etcdserverpb.KV/Range", request).await
    }

    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
        self.ask("/etcdserverpb.KV/Txn", request).await
    }

    pub(super) async fn lease(&self, ttl_s: i64) -> Result<i64, EtcdError> {
        let granted: LeaseState = self.ask("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl_s }).await?;
        Ok(granted.id)
    }

    pub(super) async fn revoke(&self, id: i64) -> Result<(), EtcdError> {
        let _: HeaderOnly = self.ask("/etcdserverpb.Lease/LeaseRevoke", LeaseId { id }).await?;
        Ok(())
    }

    /// Renews a lease. Returns whether it is still alive.
    pub(super) async fn keep_lease(&self, id: i64) -> Result<bool, EtcdError> {
        let mut grpc = self.grpc.clone();
        let request = Self::request(stream::iter([LeaseId { id }]), self.token());
        let kept = async {
            grpc.ready().await.map_err(|error| EtcdError::not_made(with_causes(&error)))?;
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let answers = grpc.streaming(request, path, ProstCodec::<LeaseId, LeaseState>::default()).await?;
            Ok(answers.into_inner().message().await?.is_some_and(|state| state.ttl_s > 0))
        };
        timeout(self.timeout, kept)
            .await
            .unwrap_or_else(|_| Err(EtcdError::unknown("it did not renew the lease in time")))
    }

    /// Opens a watch. Further requests are sent through the returned sender; the watch ends when it is dropped.
    pub(super) async fn watch(
        &self,
        first: WatchRequest,
    ) -> Result<(UnboundedSender<WatchRequest>, Streaming<WatchResponse>), EtcdError> {
        let (asking, mut asked) = unbounded_channel();
        // Cannot fail: the receiver is still here.
        let _ = asking.send(first);
        let requests = stream::poll_fn(move |context| asked.poll_recv(context));
        let mut grpc = self.grpc.clone();
        let request = Self::request(requests, self.token());
        let opened = async {
            grpc.ready().await.map_err(|error| EtcdError::not_made(with_causes(&error)))?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            Ok(grpc.streaming(request, path, codec).await?.into_inner())
        };
        let answers = timeout(self.timeout, opened).await;
        Ok((asking, answers.unwrap_or_else(|_| Err(EtcdError::unknown("it did not open a watch in time")))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_about_the_log_in_names_the_setting_that_is_wrong() {
        for (code, message, expected) in [
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                "`user` or `password` is wrong; etcd does not say which",
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty", "set `user` and `password`"),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", "remove `user` and `password`"),
            (Code::PermissionDenied, "etcdserver: permission denied", "no role of `user`"),
        ] {
            let error = EtcdError::from(Status::new(code, message));
            assert!(error.problem.contains(message) && error.problem.contains(expected), "{}", error.problem);
        }
        let other = EtcdError::from(Status::new(Code::Unavailable, "etcdserver: request timed out"));
        assert_eq!(other.problem, "it answers `etcdserver: request timed out`");
    }
}
