//! The routing table: which route takes a request.
//!
//! The order is that of APISIX's `radixtree_host_uri`, the most specific first:
//! 1. routes whose `hosts` name the host, then those with the longest wildcard that fits it, then shorter ones, and
//!    routes without `hosts` when none of these takes the request;
//! 2. within these, the exact path, then the longest prefix, then shorter ones;
//! 3. within one path, `priority`, then the longer `uri`, then the order of the rules.
//!
//! The first in this order that also takes the method, the client's address and the `vars` wins. So a `priority` never
//! beats a more specific path, and nothing beats a host that is named.
//!
//! A lookup costs two hashes and a walk down a radix tree, however many routes there are, and allocates nothing.

mod build;
mod explain;
mod host;
mod methods;
#[cfg(test)]
mod oracle;
mod radix;
mod uri;

use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

pub use build::BuildError;
pub use explain::{Advantage, Candidate, Verdict};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use host::{Host, Hosts};
use ipnet::IpNet;
pub use methods::MethodSet;
use radix::Forest;
use uri::Uri;
use weir_plugin::vars::any_contains;
use weir_plugin::{Expression, Variables};
use weir_proto::Method;

/// What a route asks of a request. Routes that are switched off (APISIX `status: 0`) get no rule.
#[derive(Clone, Debug)]
pub struct RouteRule {
    /// `uri` or `uris`: at least one.
    pub uris: Vec<String>,
    /// `host` or `hosts`, or those of the service; none is every host.
    pub hosts: Vec<String>,
    /// `None` is every method.
    pub methods: Option<MethodSet>,
    /// `remote_addr` or `remote_addrs`; none is every address.
    pub remote_addrs: Vec<IpNet>,
    /// Higher goes first, among routes of the same path.
    pub priority: i64,
    pub vars: Option<Expression>,
    /// Only these paths, of those that fit.
    pub among: Option<Arc<dyn PathSet>>,
    /// What [`RouteTable::find`] answers.
    pub route: u32,
}

/// Paths that come and go while a table is in use.
pub trait PathSet: std::fmt::Debug + Send + Sync {
    /// Whether a path, canonical and without its query, is one of them now.
    fn has(&self, path: &[u8]) -> bool;
}

/// What the table looks at of a request.
#[derive(Clone, Copy)]
pub struct Lookup<'a> {
    /// Lower case, without a port and without the dot of the root.
    pub host: &'a [u8],
    /// Canonical, without the query.
    pub path: &'a [u8],
    pub method: Method,
    pub remote_addr: IpAddr,
    /// For `vars`; asked only when a rule that has them fits otherwise.
    pub variables: &'a dyn Variables,
}

/// A compiled list of rules.
#[derive(Debug)]
pub struct RouteTable {
    hosts: Hosts,
    /// What belongs to each host. The first is for rules without hosts.
    paths: Vec<Paths>,
    random: RandomState,
    /// The exact paths of all hosts.
    exact: HashTable<ExactPath>,
    /// Longer paths are not worth hashing.
    longest_exact: usize,
    /// The prefixes of all hosts. Values are indices into `prefixes`.
    forest: Forest,
    prefixes: Vec<Range>,
    /// Those of one path side by side, in the order they are tried.
    entries: Vec<RuleEntry>,
    rules: Vec<CompiledRule>,
}

/// The paths of one host.
#[derive(Debug, Default)]
struct Paths {
    /// `None` for rules without hosts.
    host: Option<Host>,
    has_exact: bool,
    prefixes: Option<u32>,
}

/// A part of [`RouteTable::entries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u32,
    end: u32,
}

#[derive(Debug)]
struct ExactPath {
    paths: u32,
    entries: Range,
    path: Box<[u8]>,
}

/// A rule under one of its `uris`. Holds what decides most requests, so that the rule itself is not looked at.
#[derive(Clone, Copy, Debug)]
struct RuleEntry {
    rule: u32,
    uri: u32,
    route: u32,
    methods: MethodSet,
    /// The `uri` is a pattern: more must match than the prefix it is found by.
    has_pattern: bool,
    /// The rule has `remote_addrs`, `vars` or `among`.
    has_conditions: bool,
}

/// The parts of a rule that lookups need seldom.
#[derive(Debug)]
struct CompiledRule {
    uris: Vec<Uri>,
    hosts: Vec<Host>,
    remote_addrs: Vec<IpNet>,
    vars: Option<Expression>,
    among: Option<Arc<dyn PathSet>>,
    priority: i64,
    route: u32,
}

/// Where a lookup has got to.
#[derive(Clone, Copy)]
struct Station {
    /// An index into [`RouteTable::paths`].
    paths: u32,
    entries: Range,
}

/// Why a rule under a path does not take a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Pattern,
    Method,
    RemoteAddr,
    Vars,
    Among,
}

impl RouteTable {
    /// Compiles rules.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn build(rules: Vec<RouteRule>) -> Result<RouteTable, Vec<BuildError>> {
        build::build(rules)
    }

    /// The route that takes the request.
    pub fn find(&self, lookup: &Lookup<'_>) -> Option<u32> {
        let mut found = None;
        self.any_station(lookup, |station| {
            let taker = self.entries_of(station).iter().find(|entry| self.refusal(entry, lookup).is_none());
            found = taker.map(|entry| entry.route);
            found.is_some()
        });
        found
    }

    /// Every candidate for a request in the order they are tried, with what became of it. For people; costs a look at
    /// every rule.
    pub fn explain(&self, lookup: &Lookup<'_>) -> Vec<Candidate> {
        explain::explain(self, lookup)
    }

    /// Calls `take` with every path that fits the request, the most specific first, until it returns true.
    #[inline]
    fn any_station(&self, lookup: &Lookup<'_>, mut take: impl FnMut(Station) -> bool) -> bool {
        let path = lookup.path;
        let hash = (path.len() <= self.longest_exact).then(|| hash_of(&self.random, path));
        let mut any_of = |number: u32| {
            let paths = &self.paths[number as usize];
            if let Some(hash) = hash
                && paths.has_exact
                && let Some(found) =
                    self.exact.find(with_paths(hash, number), |exact| exact.paths == number && *exact.path == *path)
                && take(Station { paths: number, entries: found.entries })
            {
                return true;
            }
            let Some(root) = paths.prefixes else { return false };
            self.forest
                .prefixes_of(root, path)
                .any(|prefix| take(Station { paths: number, entries: self.prefixes[prefix as usize] }))
        };
        if !self.hosts.is_empty() && self.hosts.any_match(lookup.host, &mut any_of) {
            return true;
        }
        any_of(WITHOUT_HOST)
    }

    fn entries_of(&self, station: Station) -> &[RuleEntry] {
        &self.entries[station.entries.start as usize..station.entries.end as usize]
    }

    #[inline]
    fn refusal(&self, entry: &RuleEntry, lookup: &Lookup<'_>) -> Option<Refusal> {
        if !entry.methods.contains(lookup.method) {
            return Some(Refusal::Method);
        }
        if entry.has_pattern || entry.has_conditions { self.condition_refusal(entry, lookup) } else { None }
    }

    fn condition_refusal(&self, entry: &RuleEntry, lookup: &Lookup<'_>) -> Option<Refusal> {
        let rule = &self.rules[entry.rule as usize];
        if entry.has_pattern && !rule.uris[entry.uri as usize].matches_after_key(lookup.path) {
            return Some(Refusal::Pattern);
        }
        if !rule.remote_addrs.is_empty() && !any_contains(&rule.remote_addrs, lookup.remote_addr) {
            return Some(Refusal::RemoteAddr);
        }
        if rule.among.as_ref().is_some_and(|paths| !paths.has(lookup.path)) {
            return Some(Refusal::Among);
        }
        let meets_vars = rule.vars.as_ref().is_none_or(|vars| vars.holds(lookup.variables));
        (!meets_vars).then_some(Refusal::Vars)
    }
}

fn hash_of(random: &RandomState, bytes: &[u8]) -> u64 {
    let mut hasher = random.build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

/// The paths of rules without hosts.
const WITHOUT_HOST: u32 = 0;

/// The hash of a path under a host. Saves hashing the path again for each host that fits.
fn with_paths(path_hash: u64, paths: u32) -> u64 {
    // An odd factor spreads the numbers over all bits, also over the highest, which the table looks at first.
    path_hash ^ u64::from(paths).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl std::fmt::Debug for Lookup<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Lookup")
            .field("host", &String::from_utf8_lossy(self.host))
            .field("path", &String::from_utf8_lossy(self.path))
            .field("method", &self.method)
            .field("remote_addr", &self.remote_addr)
            .finish_non_exhaustive()
    }
}
