//! Asking DNS: the servers that are configured, or those of `/etc/resolv.conf`, and the hosts file first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;
use tokio::runtime;

/// A server that does not answer within this time is asked again, or the next one is.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// What resolvers go by. They are read again when they have changed.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// An answer is used at least this long, whatever its time to live.
const MIN_TTL: Duration = Duration::from_secs(1);
/// And at most this long, unless it is configured: hosts files have no time to live, and mistakes in DNS are corrected.
const MAX_TTL: Duration = Duration::from_secs(30);
/// How long an answer stays in use after its time while no server gives a newer one.
const MAX_STALE: Duration = Duration::from_secs(600);
/// Names whose addresses are remembered.
const MAX_CACHED: usize = 1_024;
/// hickory's resolvers that a thread keeps; one per runtime and settings.
const MAX_PER_THREAD: usize = 8;

/// APISIX `dns_resolver` and `dns_resolver_valid`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DnsSettings {
    /// The servers that are asked; those of `/etc/resolv.conf` where there is none.
    pub servers: Vec<SocketAddr>,
    /// How long an answer is good, whatever it says itself.
    pub valid: Option<Duration>,
}

/// An address of a target of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceTarget {
    /// Its name, which is what it proves to be where it speaks TLS.
    pub host: Box<str>,
    pub address: IpAddr,
    pub port: u16,
    pub weight: u32,
    /// Higher is used first: the negated priority of the SRV record.
    pub priority: i64,
}

/// Asks DNS on any runtime. Clones share what they remember.
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

    /// The addresses of a host (A, or else AAAA), remembered for their time to live. When no server answers, an answer
    /// whose time is over is used for ten minutes more.
    ///
    /// # Errors
    /// The reason why there is no address.
    pub async fn addresses(&self, name: &str) -> Result<Arc<[IpAddr]>, String> {
        let known = self.0.cache().get(name).cloned();
        let now = Instant::now();
        match known {
            Some(known) if now < known.until => Ok(known.addresses),
            known => match self.lookup_addresses(name).await {
                Ok((addresses, ttl)) => Ok(self.0.remember(name, addresses.into(), ttl)),
                Err(reason) => match known {
                    Some(known) if now < known.until + MAX_STALE => Ok(known.addresses),
                    _ => Err(reason),
                },
            },
        }
    }

    /// Asks for the addresses of a host now, and says how long they are good.
    ///
    /// # Errors
    /// The reason why there is no address.
    pub async fn lookup_addresses(&self, name: &str) -> Result<(Vec<IpAddr>, Duration), String> {
        addresses(&resolver_of_thread(&self.0.settings)?, name).await
    }

    /// Asks for the targets of a service now (SRV, RFC 2782), and says how long they are good.
    ///
    /// # Errors
    /// The reason why there is no target.
    pub async fn lookup_service(&self, name: &str) -> Result<(Vec<ServiceTarget>, Duration), String> {
        targets(&resolver_of_thread(&self.0.settings)?, name).await
    }
}

impl ResolverState {
    fn cache(&self) -> MutexGuard<'_, HashMap<Box<str>, CachedAddresses>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, name: &str, addresses: Arc<[IpAddr]>, ttl: Duration) -> Arc<[IpAddr]> {
        let valid = self.settings.valid.unwrap_or_else(|| ttl.min(MAX_TTL)).max(MIN_TTL);
        let until = Instant::now() + valid;
        let mut cache = self.cache();
        if cache.len() >= MAX_CACHED {
            let now = Instant::now();
            cache.retain(|_, known| now < known.until);
        }
        // Where that many names are in use at a time, the others are asked for each time.
        if cache.len() < MAX_CACHED {
            cache.insert(name.into(), CachedAddresses { addresses: Arc::clone(&addresses), until });
        }
        addresses
    }
}

/// A resolver of hickory's, whose sockets belong to the runtime they were opened on.
struct ThreadResolver {
    runtime: runtime::Id,
    settings: DnsSettings,
    /// When the files it went by were changed last.
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
        // Without a usable file there are still the names of the hosts file.
        [] => hickory_resolver::system_conf::read_system_conf()
            .unwrap_or_else(|_| (ResolverConfig::from_name_servers(Vec::new()), ResolverOpts::default())),
        servers => (ResolverConfig::from_name_servers(servers.iter().map(server).collect()), ResolverOpts::default()),
    };
    // Answers are kept by who asked.
    options.cache_size = 0;
    options.timeout = SERVER_TIMEOUT;
    options.attempts = 1;
    // IPv4 where there is any, as backends that listen on `localhost` often do so on IPv4 alone.
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

async fn addresses(resolver: &TokioResolver, name: &str) -> Result<(Vec<IpAddr>, Duration), String> {
    let answer = resolver.lookup_ip(name).await.map_err(|error| error.to_string())?;
    let mut addresses: Vec<IpAddr> = answer.iter().collect();
    if addresses.is_empty() {
        return Err("the name has no address".to_owned());
    }
    // Servers answer in changing order; endpoints should not change with it.
    addresses.sort_unstable();
    addresses.dedup();
    Ok((addresses, answer.valid_until().saturating_duration_since(Instant::now())))
}

/// The targets of a service, with their addresses. A lower SRV priority is used first, as a higher one of a node is.
async fn targets(resolver: &TokioResolver, name: &str) -> Result<(Vec<ServiceTarget>, Duration), String> {
    let answer = resolver.srv_lookup(name).await.map_err(|error| error.to_string())?;
    let mut ttl = answer.valid_until().saturating_duration_since(Instant::now());
    let mut targets = Vec::new();
    for record in answer.answers() {
        let RData::SRV(srv) = &record.data else { continue };
        // RFC 2782: a target of "." says that there is no such service.
        if srv.target.is_root() {
            continue;
        }
        let host = srv.target.to_ascii();
        let (addresses, of_target) = addresses(resolver, &host).await?;
        // Servers may answer in any case, and with the dot of the root; the name of an endpoint is the same all the time.
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        ttl = ttl.min(of_target);
        targets.extend(addresses.into_iter().map(|address| ServiceTarget {
            host: host.as_str().into(),
            address,
            port: srv.port,
            // RFC 2782: 0 has a very small chance of being selected, not none.
            weight: u32::from(srv.weight).max(1),
            priority: -i64::from(srv.priority),
        }));
    }
    if targets.is_empty() {
        return Err("the name has no SRV record".to_owned());
    }
    targets.sort_unstable();
    targets.dedup();
    Ok((targets, ttl))
}
