//! Where limits are counted: the options of APISIX's `policy`, the same for every limit.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{Build, CollectAll, ConfigError};

use crate::options::host;
use crate::store::redis_server::{RedisAddress, RedisLogin, RedisServer, Topology};

/// Where limits are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CounterPolicy {
    /// In this process, exact over all its workers.
    #[default]
    Local,
    /// In one Redis or Valkey server, exact over all gateways that use the server.
    Redis,
    /// In a Redis or Valkey cluster.
    RedisCluster,
    /// In the master server that Sentinel reports.
    RedisSentinel,
}

/// Host and port of a sentinel.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sentinel {
    /// The name or address of the sentinel.
    #[schemars(length(min = 2))]
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The port of the sentinel.
    #[schemars(range(min = 1))]
    port: u16,
}

/// Adds the options of APISIX's `policy` to those of a limit, and `fn counting`, which compiles them.
macro_rules! counted_somewhere {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($fields:tt)* }) => {
        $(#[$meta])*
        $vis struct $name {
            $($fields)*
            /// Where the counters are stored: in this process, or in Redis or Valkey, where several gateways share
            /// them.
            #[serde(default)]
            policy: $crate::limit::policy::CounterPolicy,
            /// `redis`: the server's name or address.
            #[schemars(length(min = 2))]
            #[schemars(extend("x-weir-reaches" = "server"))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis"] }))]
            redis_host: Option<String>,
            /// `redis`: the server's port.
            #[serde(default = "crate::limit::policy::default_port")]
            #[schemars(range(min = 1))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis"] }))]
            redis_port: u16,
            /// The user name, if the server has ACL users.
            #[schemars(length(min = 1))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis", "redis-cluster", "redis-sentinel"] }))]
            redis_username: Option<String>,
            /// The password. An empty text means no password.
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis", "redis-cluster", "redis-sentinel"] }))]
            redis_password: Option<String>,
            /// The number of the database. It must be 0 for a cluster.
            #[serde(default)]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis", "redis-cluster", "redis-sentinel"] }))]
            redis_database: u32,
            /// `redis` and `redis-cluster`: time-out for an answer of the server, in milliseconds, including the time
            /// to connect.
            #[serde(default = "crate::limit::policy::default_timeout_ms")]
            #[schemars(range(min = 1, max = 86_400_000))]
            #[schemars(extend("x-weir-unit" = "ms"))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis", "redis-cluster"] }))]
            redis_timeout: u64,
            /// `redis`: use TLS for the connection to the server.
            #[serde(default)]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis"] }))]
            redis_ssl: bool,
            /// `redis`: whether the certificate of the server is verified. Off by default in APISIX.
            #[serde(default = "crate::limit::policy::default_true")]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis"] }))]
            redis_ssl_verify: bool,
            /// Accepted for compatibility; has no effect. Each worker keeps one connection for as long as the server is
            /// used.
            #[serde(default, rename = "redis_keepalive_timeout")]
            #[schemars(extend("deprecated" = true))]
            _redis_keepalive_timeout: Option<u64>,
            /// Accepted for compatibility; has no effect. Each worker sends all its requests, pipelined, over one
            /// connection.
            #[serde(default, rename = "redis_keepalive_pool")]
            #[schemars(extend("deprecated" = true))]
            _redis_keepalive_pool: Option<u64>,
            /// `redis-cluster`: some of the nodes, as `host:port`. The other nodes are discovered from these.
            #[schemars(length(min = 1))]
            #[schemars(extend("x-weir-reaches" = "server"))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-cluster"] }))]
            redis_cluster_nodes: Option<Vec<String>>,
            /// `redis-cluster`: a name for the cluster. Has no effect.
            #[serde(default, rename = "redis_cluster_name")]
            #[schemars(extend("deprecated" = true))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-cluster"] }))]
            _redis_cluster_name: Option<String>,
            /// `redis-cluster`: use TLS for the connections to the nodes.
            #[serde(default)]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-cluster"] }))]
            redis_cluster_ssl: bool,
            /// `redis-cluster`: whether the certificates of the nodes are verified. Off by default in APISIX.
            #[serde(default = "crate::limit::policy::default_true")]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-cluster"] }))]
            redis_cluster_ssl_verify: bool,
            /// `redis-sentinel`: the sentinels.
            #[schemars(length(min = 1))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-sentinel"] }))]
            redis_sentinels: Option<Vec<$crate::limit::policy::Sentinel>>,
            /// `redis-sentinel`: the name of the master in the configuration of the sentinels.
            #[schemars(length(min = 1))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-sentinel"] }))]
            redis_master_name: Option<String>,
            /// `redis-sentinel`: only `master`, because replicas do not accept writes.
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-sentinel"] }))]
            redis_role: Option<String>,
            /// `redis-sentinel`: the user name for the sentinels.
            #[schemars(length(min = 1))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-sentinel"] }))]
            sentinel_username: Option<String>,
            /// `redis-sentinel`: the password for the sentinels. An empty text means no password.
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-sentinel"] }))]
            sentinel_password: Option<String>,
            /// `redis-sentinel`: time-out for finding the master and connecting to it, in milliseconds. It is added to
            /// `redis_read_timeout`.
            #[serde(default = "crate::limit::policy::default_timeout_ms")]
            #[schemars(range(min = 1, max = 86_400_000))]
            #[schemars(extend("x-weir-unit" = "ms"))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-sentinel"] }))]
            redis_connect_timeout: u64,
            /// `redis-sentinel`: time-out for an answer of the server, in milliseconds.
            #[serde(default = "crate::limit::policy::default_timeout_ms")]
            #[schemars(range(min = 1, max = 86_400_000))]
            #[schemars(extend("x-weir-unit" = "ms"))]
            #[schemars(extend("x-weir-only-if" = { "policy": ["redis-sentinel"] }))]
            redis_read_timeout: u64,
        }

        impl $name {
            /// The Redis server that counts; `None` with the policy `local`.
            fn counting(
                &mut self,
                build: &weir_plugin::Build,
            ) -> Result<Option<std::sync::Arc<$crate::store::redis_server::RedisServer>>, ConfigError> {
                $crate::limit::policy::RedisOptions {
                    host: self.redis_host.take(),
                    port: self.redis_port,
                    username: self.redis_username.take(),
                    password: self.redis_password.take(),
                    database: self.redis_database,
                    timeout_ms: self.redis_timeout,
                    tls: self.redis_ssl,
                    verify: self.redis_ssl_verify,
                    nodes: self.redis_cluster_nodes.take(),
                    cluster_tls: self.redis_cluster_ssl,
                    cluster_verify: self.redis_cluster_ssl_verify,
                    sentinels: self.redis_sentinels.take(),
                    master: self.redis_master_name.take(),
                    role: self.redis_role.take(),
                    sentinel_username: self.sentinel_username.take(),
                    sentinel_password: self.sentinel_password.take(),
                    connect_timeout_ms: self.redis_connect_timeout,
                    read_timeout_ms: self.redis_read_timeout,
                }
                .server(self.policy, build)
            }
        }
    };
}

pub(crate) use counted_somewhere;

pub(crate) fn default_port() -> u16 {
    6379
}

pub(crate) fn default_timeout_ms() -> u64 {
    1000
}

pub(crate) fn default_true() -> bool {
    true
}

/// The options of a limit that select its Redis server.
pub(crate) struct RedisOptions {
    pub host: Option<String>,
    pub port: u16,
    pub username: Option<String>,
    pub password: Option<String>,
    pub database: u32,
    pub timeout_ms: u64,
    pub tls: bool,
    pub verify: bool,
    pub nodes: Option<Vec<String>>,
    pub cluster_tls: bool,
    pub cluster_verify: bool,
    pub sentinels: Option<Vec<Sentinel>>,
    pub master: Option<String>,
    pub role: Option<String>,
    pub sentinel_username: Option<String>,
    pub sentinel_password: Option<String>,
    pub connect_timeout_ms: u64,
    pub read_timeout_ms: u64,
}

impl RedisOptions {
    pub(crate) fn server(self, policy: CounterPolicy, build: &Build) -> Result<Option<Arc<RedisServer>>, ConfigError> {
        let (topology, timeout_ms) = match policy {
            CounterPolicy::Local => return Ok(None),
            CounterPolicy::Redis => {
                let host = self.host.filter(|host| !host.is_empty());
                let host = host.ok_or_else(|| needed("redis_host", "redis"))?;
                host::check(&host, "redis_host")?;
                let address = RedisAddress { host, port: self.port };
                let topology = Topology::Single { address, tls: self.tls.then_some(self.verify) };
                (topology, self.timeout_ms)
            }
            CounterPolicy::RedisCluster => {
                let nodes = self.nodes.filter(|nodes| !nodes.is_empty());
                let nodes = nodes.ok_or_else(|| needed("redis_cluster_nodes", "redis-cluster"))?;
                if self.database != 0 {
                    return Err(ConfigError::new(
                        "redis_database",
                        "must be 0: a Redis cluster has only this database",
                    ));
                }
                let node = |(index, node): (usize, String)| {
                    RedisAddress::parse(&node).ok_or_else(|| {
                        let problem = format!("`{node}` is not `host:port`");
                        ConfigError::new(format!("redis_cluster_nodes[{index}]"), problem)
                    })
                };
                let nodes = nodes.into_iter().enumerate().map(node).collect_all()?;
                let topology = Topology::Cluster { nodes, tls: self.cluster_tls.then_some(self.cluster_verify) };
                (topology, self.timeout_ms)
            }
            CounterPolicy::RedisSentinel => {
                let sentinels = self.sentinels.filter(|sentinels| !sentinels.is_empty());
                let sentinels = sentinels.ok_or_else(|| needed("redis_sentinels", "redis-sentinel"))?;
                let master = self.master.ok_or_else(|| needed("redis_master_name", "redis-sentinel"))?;
                if self.role.is_some_and(|role| role != "master") {
                    return Err(ConfigError::new("redis_role", "must be `master`: replicas do not accept writes"));
                }
                let sentinel = |(index, Sentinel { host, port }): (usize, Sentinel)| {
                    host::check(&host, format!("redis_sentinels[{index}].host")).map(|()| RedisAddress { host, port })
                };
                let sentinels = sentinels.into_iter().enumerate().map(sentinel).collect_all()?;
                let login = RedisLogin::new(self.sentinel_username, self.sentinel_password);
                let topology = Topology::Sentinels { sentinels, master, login };
                let timeout_ms = self.connect_timeout_ms.saturating_add(self.read_timeout_ms);
                (topology, timeout_ms)
            }
        };
        let login = RedisLogin::new(self.username, self.password);
        let timeout = Duration::from_millis(timeout_ms);
        Ok(Some(RedisServer::of(topology, login, self.database, timeout, build)))
    }
}

fn needed(option: &str, policy: &str) -> ConfigError {
    ConfigError::new(option, format!("is needed with the policy `{policy}`"))
}
