//! DNS lookups: the hosts file first, then the configured servers or those of `/etc/resolv.conf`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt as _;
use futures_util::stream;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;
use hickory_resolver::proto::rr::rdata::SRV;
use tokio::runtime;

/// A server that does not answer within this time is asked again, or the next one is.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The resolver's system configuration, which is read again when it has changed.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// An answer is cached at least this long, whatever its TTL.
const MIN_TTL: Duration = Duration::from_secs(1);
/// An answer is cached at most this long by default: entries of the hosts file have no TTL, and wrong DNS records get corrected.
const MAX_TTL: Duration = Duration::from_secs(30);
/// How long an expired answer is used while no server answers.
const MAX_STALE: Duration = Duration::from_secs(600);
/// Limit of cached names.
const MAX_CACHED: usize = 1_024;
/// The most targets of a service whose addresses are looked up at the same time.
const TARGETS_AT_ONCE: usize = 32;
/// How long the addresses of a target are waited for: a server that is silent about one target must not delay the others.
const TARGET_PATIENCE: Duration = Duration::from_secs(3);
/// When a service is looked up again if a target has no address.
const TARGET_RETRY: Duration = Duration::from_secs(5);
/// Limit of hickory resolvers per thread; there is one per runtime and settings.
const MAX_PER_THREAD: usize = 8;

/// APISIX `dns_resolver` and `dns_resolver_valid`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DnsSettings {
    /// The DNS servers; empty means those of `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// How long an answer is cached, in place of its TTL.
    pub valid: Option<Duration>,
}

/// One address of a target of a service (SRV).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceTarget {
    /// The target's name, which its TLS certificate must contain.
    pub host: Box<str>,
    pub address: IpAddr,
    /// 0 if the record names none.
    pub port: u16,
    pub weight: u32,
    /// Higher is preferred: the negated priority of the SRV record.
    pub priority: i64,
}

/// What DNS says about a service.
#[derive(Clone, Debug)]
pub struct ServiceAnswer {
    /// At least one.
    pub targets: Vec<ServiceTarget>,
    /// The targets that have no address, each with the reason.
    pub unresolved: Vec<String>,
    /// The time to live.
    pub ttl: Duration,
}

/// A DNS resolver for any runtime. Clones share one cache.
#[derive(Clone, Debug)]
pub struct Resolver(Arc<ResolverState>);

#[derive(Debug)]
struct ResolverState {
    settings: DnsSettings,
    cache: Mutex<HashMap<Box<str>, CachedAddresses>>,
}

#[derive(Clone, Debug)]
struct CachedAddresses {
    addresses: Arc<[IpAddr]>,
    until: Instant,
}

impl Resolver {
    pub fn new(settings: DnsSettings) -> Resolver {
        Resolver(Arc::new(ResolverState { settings, cache: Mutex::default() }))
    }

    /// The addresses of a host (A, or else AAAA), cached for their TTL. If no server answers, an expired answer is used for ten
    /// more minutes.
    ///
    /// # Errors
    /// Why there is no address.
    pub async fn addresses(&self, name: &str) -> Result<Arc<[IpAddr]>, String> {
        let known = self.0.cache().get(name).cloned();
        let now = Instant::now();
        match known {
            Some(known) if now < known.until => Ok(known.addresses),
            _ => match self.lookup_addresses(name).await {
                Ok((addresses, ttl)) => Ok(self.0.remember(name, addresses.into(), ttl)),
                Err(reason) => self.0.stale(name).ok_or(reason),
            },
        }
    }

    /// Looks up the addresses of a host without the cache; also returns their TTL.
    ///
    /// # Errors
    /// Why there is no address.
    pub async fn lookup_addresses(&self, name: &str) -> Result<(Vec<IpAddr>, Duration), String> {
        addresses(&resolver_of_thread(&self.0.settings)?, name).await
    }

    /// Looks up the targets of a service (SRV, RFC 2782) without the cache, and their addresses, all at once. A target without an
    /// address does not affect the others; if no server answers, its last addresses are used for ten more minutes.
    ///
    /// # Errors
    /// Why there is no target.
    pub async fn lookup_service(&self, name: &str) -> Result<ServiceAnswer, String> {
        let resolver = resolver_of_thread(&self.0.settings)?;
        let answer = resolver.srv_lookup(name).await.map_err(|error| reason(&error, "SRV record"))?;
        let mut ttl = answer.valid_until().saturating_duration_since(Instant::now());
        let records = answer.answers().iter().filter_map(|record| match &record.data {
            // RFC 2782: the target "." means that the service does not exist.
            RData::SRV(srv) if !srv.target.is_root() => Some(srv.clone()),
            _ => None,
        });
        let lookups = records.map(|srv| self.lookup_target(srv));
        let found: Vec<_> = stream::iter(lookups.collect::<Vec<_>>()).buffer_unordered(TARGETS_AT_ONCE).collect().await;
        if found.is_empty() {
            return Err("the name has no SRV record".to_owned());
        }
        let (mut targets, mut unresolved) = (Vec::new(), Vec::new());
        for outcome in found {
            match outcome {
                Ok((of_target, target_ttl)) => {
                    targets.extend(of_target);
                    ttl = ttl.min(target_ttl);
                }
                Err(reason) => {
                    unresolved.push(reason);
                    ttl = ttl.min(TARGET_RETRY);
                }
            }
        }
        unresolved.sort_unstable();
        if targets.is_empty() {
            return Err(format!("no target of the service has an address: {}", unresolved.join("; ")));
        }
        targets.sort_unstable();
        targets.dedup();
        Ok(ServiceAnswer { targets, unresolved, ttl })
    }

    /// The target of a record with each of its addresses, and their TTL. SRV prefers low priorities, endpoints prefer high ones.
    async fn lookup_target(&self, srv: SRV) -> Result<(Vec<ServiceTarget>, Duration), String> {
        let name = srv.target.to_ascii();
        // Servers may answer in any case and with a trailing dot; an endpoint needs one spelling.
        let host = name.trim_end_matches('.').to_ascii_lowercase();
        let asked = tokio::time::timeout(TARGET_PATIENCE, self.lookup_addresses(&name)).await;
        let (addresses, ttl) = match asked.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            Ok((addresses, ttl)) => (self.0.remember(&host, addresses.into(), ttl), ttl),
            Err(reason) => match self.0.stale(&host) {
                Some(addresses) => (addresses, TARGET_RETRY),
                None => return Err(format!("{host}: {reason}")),
            },
        };
        let target = |address: &IpAddr| ServiceTarget {
            host: host.as_str().into(),
            address: *address,
            port: srv.port,
            // RFC 2782: weight 0 has a very small chance of being selected, not none.
            weight: u32::from(srv.weight).max(1),
            priority: -i64::from(srv.priority),
        };
        Ok((addresses.iter().map(target).collect(), ttl))
    }
}

impl ResolverState {
    fn cache(&self) -> MutexGuard<'_, HashMap<Box<str>, CachedAddresses>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer that has expired, but may be used while there is no newer one.
    fn stale(&self, name: &str) -> Option<Arc<[IpAddr]>> {
        let cache = self.cache();
        let known = cache.get(name)?;
        (Instant::now() < known.until + MAX_STALE).then(|| Arc::clone(&known.addresses))
    }

    fn remember(&self, name: &str, addresses: Arc<[IpAddr]>, ttl: Duration) -> Arc<[IpAddr]> {
        let valid = self.settings.valid.unwrap_or_else(|| ttl.min(MAX_TTL)).max(MIN_TTL);
        let until = Instant::now() + valid;
        let mut cache = self.cache();
        if cache.len() >= MAX_CACHED {
            let now = Instant::now();
            cache.retain(|_, known| now < known.until);
        }
        // If that many names are in use, further names are not cached.
        if cache.len() < MAX_CACHED {
            cache.insert(name.into(), CachedAddresses { addresses: Arc::clone(&addresses), until });
        }
        addresses
    }
}

/// A hickory resolver, whose sockets belong to the runtime on which they were opened.
struct ThreadResolver {
    runtime: runtime::Id,
    settings: DnsSettings,
    /// Modification times of [`FILES`] when it was built.
    files: [Option<SystemTime>; 2],
    resolver: TokioResolver,
}

thread_local! {
    static RESOLVERS: RefCell<Vec<ThreadResolver>> = const { RefCell::new(Vec::new()) };
}

fn resolver_of_thread(settings: &DnsSettings) -> Result<TokioResolver, String> {
    let runtime = runtime::Handle::current().id();
    let files = FILES.map(|file| fs::metadata(file).and_then(|metadata| metadata.modified()).ok());
    RESOLVERS.with_borrow_mut(|all| {
        let is_for = |one: &ThreadResolver| one.runtime == runtime && one.settings == *settings;
        if let Some(one) = all.iter().find(|one| is_for(one) && one.files == files) {
            return Ok(one.resolver.clone());
        }
        let resolver = build(&settings.servers)?;
        all.retain(|one| !is_for(one));
        if all.len() >= MAX_PER_THREAD {
            all.remove(0);
        }
        all.push(ThreadResolver { runtime, settings: settings.clone(), files, resolver: resolver.clone() });
        Ok(resolver)
    })
}

fn build(servers: &[SocketAddr]) -> Result<TokioResolver, String> {
    let (config, mut options) = match servers {
        // Without a usable `/etc/resolv.conf` there is still the hosts file.
        [] => hickory_resolver::system_conf::read_system_conf()
            .unwrap_or_else(|_| (ResolverConfig::from_name_servers(Vec::new()), ResolverOpts::default())),
        servers => (ResolverConfig::from_name_servers(servers.iter().map(server).collect()), ResolverOpts::default()),
    };
    // hickory's cache is disabled: this resolver, and callers of `lookup_*`, do the caching.
    options.cache_size = 0;
    options.timeout = SERVER_TIMEOUT;
    options.attempts = 1;
    // IPv4 is preferred, since services on `localhost` often listen on IPv4 only.
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().map_err(|error| error.to_string())
}

fn server(addr: &SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(addr.ip());
    server.connections.iter_mut().for_each(|connection| connection.port = addr.port());
    server
}

/// Why a name has none of the records that were looked for.
fn reason(error: &NetError, record: &str) -> String {
    match error {
        error if error.is_nx_domain() => "there is no such name in the DNS".to_owned(),
        error if error.is_no_records_found() => format!("the name has no {record}"),
        error => error.to_string(),
    }
}

async fn addresses(resolver: &TokioResolver, name: &str) -> Result<(Vec<IpAddr>, Duration), String> {
    let answer = resolver.lookup_ip(name).await.map_err(|error| reason(&error, "address"))?;
    let mut addresses: Vec<IpAddr> = answer.iter().collect();
    if addresses.is_empty() {
        return Err("the name has no address".to_owned());
    }
    // Servers rotate the order of addresses; the list of endpoints must not change with it.
    addresses.sort_unstable();
    addresses.dedup();
    Ok((addresses, answer.valid_until().saturating_duration_since(Instant::now())))
}
