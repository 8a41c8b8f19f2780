//! Asking DNS: the servers that are configured, or those of `/etc/resolv.conf`, and the hosts file first.

use std::cell::RefCell;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;

use crate::document::{DnsSettings, NameQuery, ResolvedName, ServiceTarget};

/// A server that does not answer for so long is asked again, or the next one is.
const TIMEOUT: Duration = Duration::from_secs(2);
/// What resolvers go by. They are read again when they have changed.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

#[derive(Clone)]
pub(super) struct Resolver {
    settings: Rc<DnsSettings>,
    current: Rc<RefCell<Option<Current>>>,
}

struct Current {
    resolver: TokioResolver,
    files: [Option<SystemTime>; 2],
}

impl Resolver {
    pub(super) fn new(settings: DnsSettings) -> Resolver {
        Resolver { settings: Rc::new(settings), current: Rc::default() }
    }

    /// What a name stands for, and for how long. An error is a reason.
    pub(super) async fn ask(&self, query: &NameQuery) -> Result<(ResolvedName, Duration), String> {
        let resolver = self.resolver()?;
        match query {
            NameQuery::Host(name) => {
                let (addresses, ttl) = addresses(&resolver, name).await?;
                Ok((ResolvedName::Addresses(addresses), ttl))
            }
            NameQuery::Service(name) => {
                let (targets, ttl) = targets(&resolver, name).await?;
                Ok((ResolvedName::Targets(targets), ttl))
            }
        }
    }

    fn resolver(&self) -> Result<TokioResolver, String> {
        let files = FILES.map(|file| fs::metadata(file).and_then(|metadata| metadata.modified()).ok());
        let mut current = self.current.borrow_mut();
        if let Some(Current { resolver, files: read }) = &*current
            && *read == files
        {
            return Ok(resolver.clone());
        }
        let resolver = build(&self.settings.servers)?;
        *current = Some(Current { resolver: resolver.clone(), files });
        Ok(resolver)
    }
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
    options.timeout = TIMEOUT;
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
        return Err("has no address".to_owned());
    }
    // Servers answer in changing order; endpoints should not change with it.
    addresses.sort_unstable();
    addresses.dedup();
    Ok((addresses, answer.valid_until().saturating_duration_since(Instant::now())))
}

/// The targets of a service (RFC 2782), with their addresses. A lower SRV priority is used first, as a higher one of a
/// node is.
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
        return Err("has no SRV record".to_owned());
    }
    targets.sort_unstable();
    targets.dedup();
    Ok((targets, ttl))
}
