//! A Redis or Valkey server for counters: how it is found, the connections to it, and running scripts.
//!
//! A worker has one connection to a server, which all its plugins share; requests are pipelined on it. The time-out
//! limits each request, including the time to connect.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClientBuilder, TlsMode};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult, Script,
    ScriptInvocation,
};

use weir_plugin::{Build, PerWorker};

use crate::rate_limited_log::OutageLog;

/// The addresses of the servers, and how the right one is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topology {
    Single {
        address: RedisAddress,
        /// `None`: without TLS. `Some`: with TLS, and whether the server's certificate is verified.
        tls: Option<bool>,
    },
    Cluster {
        nodes: Vec<RedisAddress>,
        tls: Option<bool>,
    },
    Sentinels {
        sentinels: Vec<RedisAddress>,
        master: String,
        /// The login for the sentinels.
        login: RedisLogin,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RedisAddress {
    pub host: String,
    pub port: u16,
}

impl RedisAddress {
    /// From `host:port` or `[v6]:port`.
    pub(crate) fn parse(text: &str) -> Option<RedisAddress> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').map_or(Some(host), |v6| v6.strip_suffix(']'))?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| RedisAddress { host: host.to_owned(), port })
    }

    /// `tls` as in [`Topology`].
    fn connection(&self, tls: Option<bool>) -> ConnectionAddr {
        let RedisAddress { host, port } = self.clone();
        match tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(verify) => ConnectionAddr::TcpTls { host, port, insecure: !verify, tls_params: None },
        }
    }
}

/// The credentials of the gateway. `Debug` does not show the password.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct RedisLogin {
    username: Option<String>,
    password: Option<String>,
}

impl RedisLogin {
    /// Empty texts count as absent.
    pub(crate) fn new(username: Option<String>, password: Option<String>) -> RedisLogin {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        RedisLogin { username: given(username), password: given(password) }
    }

    fn info(&self, database: u32) -> RedisConnectionInfo {
        let mut info = RedisConnectionInfo::default().set_db(i64::from(database)).set_skip_set_lib_name();
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        if let Some(password) = &self.password {
            info = info.set_password(password);
        }
        info
    }
}

impl fmt::Debug for RedisLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLogin").field("username", &self.username).finish_non_exhaustive()
    }
}

/// The properties of a server; plugins with equal ones share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RedisIdentity {
    topology: Topology,
    login: RedisLogin,
    database: u32,
    timeout: Duration,
}

impl RedisIdentity {
    /// The key for sharing. It stays in the process, so it may contain the password.
    fn key(&self) -> String {
        let RedisIdentity { topology, login, database, timeout } = self;
        let secrets = |login: &RedisLogin| format!("{:?} {:?}", login.username, login.password);
        let sentinels = match topology {
            Topology::Sentinels { login, .. } => secrets(login),
            _ => String::new(),
        };
        format!("{topology:?} {sentinels} {} {database} {timeout:?}", secrets(login))
    }
}

/// A server, or a cluster that is used like one.
#[derive(Debug)]
pub(crate) struct RedisServer {
    identity: RedisIdentity,
    outages: OutageLog,
    connection: PerWorker<WorkerConnection>,
}

/// The server did not answer, or not within the time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRedisAnswer;

impl RedisServer {
    /// The server with these properties. Plugins and documents with equal ones share it.
    pub(crate) fn of(
        topology: Topology,
        login: RedisLogin,
        database: u32,
        timeout: Duration,
        build: &Build,
    ) -> Arc<RedisServer> {
        let identity = RedisIdentity { topology, login, database, timeout };
        let key = identity.key();
        build.shared("redis", &key, || {
            let connection = build.per_worker("redis-connection", &key, WorkerConnection::default);
            RedisServer { identity, outages: OutageLog::default(), connection }
        })
    }

    /// Runs a script for one key, and returns the `N` numbers of its answer, which a request waits for.
    pub(crate) async fn ask<const N: usize>(
        self: &Arc<Self>,
        script: &Script,
        key: &[u8],
        arguments: &[u64],
    ) -> Result<[i64; N], NoRedisAnswer> {
        self.run(script, key, arguments).await.map_err(|failure| {
            self.outages.failed(format_args!("{}", self.uncounted(&failure)));
            NoRedisAnswer
        })
    }

    fn uncounted(&self, failure: &impl std::fmt::Display) -> String {
        format!("limits cannot be counted in {}: {failure}", self.identity.topology)
    }

    /// The same for a report that no request waits for.
    pub(crate) async fn report<const N: usize>(
        self: &Arc<Self>,
        script: &Script,
        key: &[u8],
        arguments: &[u64],
    ) -> Result<[i64; N], NoRedisAnswer> {
        self.run(script, key, arguments).await.map_err(|failure| {
            self.outages.report_failed(format_args!("{}", self.uncounted(&failure)));
            NoRedisAnswer
        })
    }

    /// Whether the last script has failed, so that counts which are reported later are out of date.
    pub(crate) fn is_down(&self) -> bool {
        self.outages.is_down()
    }

    async fn run<const N: usize>(
        self: &Arc<Self>,
        script: &Script,
        key: &[u8],
        arguments: &[u64],
    ) -> Result<[i64; N], String> {
        let connection = self.connection.get();
        let mut invocation = script.key(key);
        for argument in arguments {
            invocation.arg(*argument);
        }
        let answer = tokio::time::timeout(self.identity.timeout, connection.ask(self, &invocation)).await;
        match answer {
            Ok(Ok(numbers)) => match <[i64; N]>::try_from(numbers) {
                Ok(numbers) => {
                    self.outages.answered(|| format!("limits are counted in {} again", self.identity.topology));
                    Ok(numbers)
                }
                Err(_) => Err("the answer does not have the form of the script's results".to_owned()),
            },
            // The connection has been discarded already.
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                connection.give_up_current();
                Err(format!("no answer within {} ms", self.identity.timeout.as_millis()))
            }
        }
    }

    async fn connect(&self) -> RedisResult<RedisConnection> {
        let RedisIdentity { topology, login, database, timeout } = &self.identity;
        match topology {
            Topology::Single { address, tls } => {
                let info = address.connection(*tls).into_connection_info()?.set_redis_settings(login.info(*database));
                let client = redis::Client::open(info)?;
                Ok(RedisConnection::Single(
                    client.get_multiplexed_async_connection_with_config(&terms(*timeout)).await?,
                ))
            }
            Topology::Cluster { nodes, tls } => {
                let nodes = nodes.iter().map(|node| node.connection(*tls).into_connection_info());
                let nodes = nodes.map(|info| Ok(info?.set_redis_settings(login.info(0))));
                let nodes = nodes.collect::<RedisResult<Vec<_>>>()?;
                let builder = ClusterClientBuilder::new(nodes).connection_timeout(*timeout).response_timeout(*timeout);
                let builder = match tls {
                    None => builder,
                    Some(true) => builder.tls(TlsMode::Secure),
                    Some(false) => builder.tls(TlsMode::Insecure),
                };
                Ok(RedisConnection::Cluster(builder.build()?.get_async_connection().await?))
            }
            Topology::Sentinels { sentinels, master, login: at_sentinels } => {
                let sentinels = sentinels.iter().map(|sentinel| sentinel.connection(None));
                let mut builder = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)?
                    .set_client_to_redis_db(i64::from(*database));
                if let Some(username) = &login.username {
                    builder = builder.set_client_to_redis_username(username);
                }
                if let Some(password) = &login.password {
                    builder = builder.set_client_to_redis_password(password);
                }
                if let Some(username) = &at_sentinels.username {
                    builder = builder.set_client_to_sentinel_username(username);
                }
                if let Some(password) = &at_sentinels.password {
                    builder = builder.set_client_to_sentinel_password(password);
                }
                let mut client = builder.build()?;
                Ok(RedisConnection::Single(client.get_async_connection_with_config(&terms(*timeout)).await?))
            }
        }
    }
}

/// The limits within the client library; `ask` enforces the time-out for the whole request.
fn terms(timeout: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(Some(timeout)).set_response_timeout(Some(timeout))
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, addresses: &[RedisAddress]| {
            addresses.iter().enumerate().try_for_each(|(index, RedisAddress { host, port })| {
                let comma = if index == 0 { "" } else { ", " };
                write!(f, "{comma}{host}:{port}")
            })
        };
        match self {
            Topology::Single { address: RedisAddress { host, port }, .. } => write!(f, "the Redis at {host}:{port}"),
            Topology::Cluster { nodes, .. } => {
                f.write_str("the Redis cluster of ")?;
                list(f, nodes)
            }
            Topology::Sentinels { sentinels, master, .. } => {
                write!(f, "the Redis `{master}` of the sentinels ")?;
                list(f, sentinels)
            }
        }
    }
}

#[derive(Clone)]
enum RedisConnection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl RedisConnection {
    async fn ask(&mut self, invocation: &ScriptInvocation<'_>) -> RedisResult<Vec<i64>> {
        match self {
            RedisConnection::Single(connection) => invocation.invoke_async(connection).await,
            RedisConnection::Cluster(connection) => invocation.invoke_async(connection).await,
        }
    }
}

/// A worker's connection to a server.
#[derive(Default)]
struct WorkerConnection {
    /// With a number of its own, so that a request gives up the connection that failed it and none made since.
    connection: RefCell<Option<(u64, RedisConnection)>>,
    connections: Cell<u64>,
    /// The request that connects holds it; the others wait for the connection.
    connecting: tokio::sync::Mutex<()>,
}

impl WorkerConnection {
    /// Runs a script. A connection that earlier requests have used may have been closed since, by a restart of the server or
    /// because it was idle, so a script whose connection is lost is sent once more on a new one. Should the server have run
    /// it and died before the answer, the request counts twice, which no limit is passed by.
    async fn ask(&self, server: &RedisServer, invocation: &ScriptInvocation<'_>) -> RedisResult<Vec<i64>> {
        let known = self.connection.borrow().clone();
        if let Some((number, mut connection)) = known {
            match connection.ask(invocation).await {
                Err(error) if error.is_connection_dropped() => self.give_up(number),
                Err(error) => {
                    self.give_up(number);
                    return Err(error);
                }
                answered => return answered,
            }
        }
        let (number, mut connection) = self.connect(server).await?;
        connection.ask(invocation).await.inspect_err(|_| self.give_up(number))
    }

    /// A connection: a new one, or that of a request which connected at the same time.
    async fn connect(&self, server: &RedisServer) -> RedisResult<(u64, RedisConnection)> {
        let _connecting = self.connecting.lock().await;
        if let Some(known) = self.connection.borrow().clone() {
            return Ok(known);
        }
        let connection = (self.connections.get() + 1, server.connect().await?);
        self.connections.set(connection.0);
        *self.connection.borrow_mut() = Some(connection.clone());
        Ok(connection)
    }

    /// The next request makes a new connection. Those that wait for answers on this one keep it.
    fn give_up(&self, number: u64) {
        self.connection.borrow_mut().take_if(|known| known.0 == number);
    }

    /// The same for the connection that there is, which has not answered in time.
    fn give_up_current(&self) {
        self.connection.borrow_mut().take();
    }
}
