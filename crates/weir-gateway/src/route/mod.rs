//! The routing table: which route takes a request.
//!
//! The order is that of APISIX's `radixtree_host_uri`, the most specific first:
//! 1. routes whose `hosts` name the host, then those with the longest wildcard that matches it, then shorter ones, and
//!    routes without `hosts` when none of these takes the request;
//! 2. within these, the exact path, then the longest prefix, then shorter ones;
//! 3. within one path, `priority`, then the longer `uri`, then the order of the rules.
//!
//! The first in this order that also takes the method, the listener, the client's address and the `vars` wins. So a `priority` never
//! beats a more specific path, and nothing beats a host that is named.
//!
//! A lookup costs two hashes and a walk down a radix tree, however many routes there are, and allocates nothing. A table is
//! immutable; an edit ([`RouteTable::edited`]) makes another, which shares everything that the changed rules do not
//! concern.

mod build;
mod explain;
mod host;
mod listeners;
mod methods;
#[cfg(test)]
mod oracle;
mod radix;
mod streams;
mod table;
mod uri;

use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

pub use build::BuildError;
pub use explain::{Candidate, CandidateVerdict, TieBreak};
use foldhash::fast::RandomState;
use host::{Host, Hosts};
use ipnet::IpNet;
pub use listeners::{ListenerConflict, ListenerEntry, ListenerRule, ListenerTable};
pub use methods::MethodSet;
use radix::Radix;
pub use streams::{StreamLookup, StreamRule, StreamTables, TakenStream};
use table::SharedTable;
use uri::Uri;
use weir_plugin::vars::any_contains;
use weir_plugin::{Expression, UriTemplate, Variables};
use weir_proto::Method;

use crate::pieces::Pieces;

/// The conditions of a route. Routes that are switched off (APISIX `status: 0`) get no rule.
#[derive(Clone, Debug)]
pub struct RouteRule {
    /// `uri` or `uris`: at least one.
    pub uris: Vec<String>,
    /// `host` or `hosts`, or those of the service; an empty list is every host.
    pub hosts: Vec<String>,
    /// The ids of the listeners whose requests it takes; an empty list is every listener.
    pub listeners: Box<[Box<str>]>,
    /// `None` is every method.
    pub methods: Option<MethodSet>,
    /// `remote_addr` or `remote_addrs`; an empty list is every address.
    pub remote_addrs: Vec<IpNet>,
    /// The highest is tried first, among routes of the same path.
    pub priority: i64,
    pub vars: Option<Expression>,
    /// Of the paths that match, only those in this set.
    pub among: Option<Arc<dyn PathSet>>,
    /// The lowest is tried first if nothing else decides; rules of equal order are tried in the order of the list.
    pub order: u64,
    /// The result of [`RouteTable::find`]. No two rules of a table have the same.
    pub route: u32,
}

/// A set of paths that may change while a table is in use.
pub trait PathSet: std::fmt::Debug + Send + Sync {
    /// Whether a path, canonical and without its query, is in the set now.
    fn has(&self, path: &[u8]) -> bool;
}

/// The parts of a request that the table uses.
#[derive(Clone, Copy)]
pub struct Lookup<'a> {
    /// Lower case, without a port and without the dot of the root.
    pub host: &'a [u8],
    /// Canonical, without the query.
    pub path: &'a [u8],
    pub method: Method,
    /// The id of the listener that the request belongs to, if it has one.
    pub listener: Option<&'a str>,
    pub remote_addr: IpAddr,
    /// For `vars`; used only if a rule that has them matches otherwise.
    pub variables: &'a dyn Variables,
}

/// A compiled list of rules.
#[derive(Clone, Debug)]
pub struct RouteTable {
    hosts: Hosts,
    random: RandomState,
    /// The length of the longest exact path: a longer path of a request need not be hashed.
    longest_exact: usize,
    /// By route number.
    rules: Pieces<Arc<CompiledRule>>,
    size: Size,
}

/// The paths of one host.
#[derive(Clone, Debug)]
struct Paths {
    /// `None` for rules without hosts.
    host: Option<Host>,
    exact: SharedTable<ExactPath>,
    prefixes: Radix<Arc<[RuleEntry]>>,
}

#[derive(Clone, Debug)]
struct ExactPath {
    path: Arc<[u8]>,
    /// In the order in which they are tried.
    entries: Arc<[RuleEntry]>,
}

/// A rule under one of its `uris`. Contains what decides most requests, so that the rule itself need not be read.
#[derive(Clone, Debug)]
struct RuleEntry {
    rule: Arc<CompiledRule>,
    uri: u32,
    route: u32,
    methods: MethodSet,
    /// The `uri` is a pattern: more than the prefix that it is found by must match.
    has_pattern: bool,
    /// The rule has `listeners`, `remote_addrs`, `vars` or `among`.
    has_conditions: bool,
}

/// A rule with all its parts; most lookups need only its [`RuleEntry`].
#[derive(Debug)]
struct CompiledRule {
    uris: Vec<Uri>,
    hosts: Vec<Host>,
    listeners: Box<[Box<str>]>,
    methods: MethodSet,
    remote_addrs: Vec<IpNet>,
    vars: Option<Expression>,
    among: Option<Arc<dyn PathSet>>,
    priority: i64,
    order: u64,
    route: u32,
}

/// The size of a table.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    /// Pairs of host and uri.
    pairs: usize,
    /// The bytes of their uris.
    bytes: usize,
}

/// One step of a lookup: the entries of a matching path.
#[derive(Clone, Copy)]
struct LookupStep<'a> {
    paths: &'a Paths,
    entries: &'a [RuleEntry],
}

/// Why a rule under a path does not take a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleMismatch {
    Pattern,
    Method,
    Listener,
    RemoteAddr,
    Vars,
    Among,
}

impl Default for RouteTable {
    /// A table that takes no request.
    fn default() -> RouteTable {
        let random = RandomState::default();
        let size = Size::default();
        RouteTable { hosts: Hosts::new(random.clone()), random, longest_exact: 0, rules: Pieces::default(), size }
    }
}

impl RouteTable {
    /// Compiles rules.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn build(rules: Vec<RouteRule>) -> Result<RouteTable, Vec<BuildError>> {
        RouteTable::default().edited(&[], rules)
    }

    /// The same table without the rules of the `removed` routes, and with those that are `added`. It equals what
    /// [`RouteTable::build`] would make of the resulting rules, provided that no two rules that only `order` distinguishes
    /// have the same `order`.
    ///
    /// # Errors
    /// Everything that is wrong with the added ones.
    pub fn edited(&self, removed: &[u32], added: Vec<RouteRule>) -> Result<RouteTable, Vec<BuildError>> {
        build::edited(self, removed, added)
    }

    /// The route that takes the request.
    pub fn find(&self, lookup: &Lookup<'_>) -> Option<u32> {
        let mut found = None;
        self.any_match(lookup, |step| {
            let taker = step.entries.iter().find(|entry| self.refusal(entry, lookup).is_none());
            found = taker.map(|entry| entry.route);
            found.is_some()
        });
        found
    }

    /// Every candidate for a request in the order in which they are tried, with the outcome. For diagnosis; examines every
    /// rule.
    pub fn explain(&self, lookup: &Lookup<'_>) -> Vec<Candidate> {
        explain::explain(self, lookup)
    }

    /// Calls `take` with every path of the table that matches the request, the most specific first, until it returns true.
    #[inline]
    fn any_match<'a>(&'a self, lookup: &Lookup<'_>, mut take: impl FnMut(LookupStep<'a>) -> bool) {
        let path = lookup.path;
        let hash = (path.len() <= self.longest_exact).then(|| hash_of(&self.random, path));
        self.hosts.any_match(lookup.host, |paths| {
            if let Some(hash) = hash
                && let Some(found) = paths.exact.find(hash, |exact| *exact.path == *path)
                && take(LookupStep { paths, entries: &found.entries })
            {
                return true;
            }
            paths.prefixes.any_prefix(path, |entries| take(LookupStep { paths, entries }))
        });
    }

    #[inline]
    fn refusal(&self, entry: &RuleEntry, lookup: &Lookup<'_>) -> Option<RuleMismatch> {
        if !entry.methods.contains(lookup.method) {
            return Some(RuleMismatch::Method);
        }
        if entry.has_pattern || entry.has_conditions { self.condition_refusal(entry, lookup) } else { None }
    }

    fn condition_refusal(&self, entry: &RuleEntry, lookup: &Lookup<'_>) -> Option<RuleMismatch> {
        let rule = &entry.rule;
        if entry.has_pattern && !rule.uris[entry.uri as usize].matches_after_key(lookup.path) {
            return Some(RuleMismatch::Pattern);
        }
        let is_named = |id: &str| rule.listeners.iter().any(|named| **named == *id);
        if !rule.listeners.is_empty() && !lookup.listener.is_some_and(is_named) {
            return Some(RuleMismatch::Listener);
        }
        if !rule.remote_addrs.is_empty() && !any_contains(&rule.remote_addrs, lookup.remote_addr) {
            return Some(RuleMismatch::RemoteAddr);
        }
        if rule.among.as_ref().is_some_and(|paths| !paths.has(lookup.path)) {
            return Some(RuleMismatch::Among);
        }
        let meets_vars = rule.vars.as_ref().is_none_or(|vars| vars.holds(lookup.variables));
        (!meets_vars).then_some(RuleMismatch::Vars)
    }
}

/// The template of a `uri`, which extracts its parameters from a path; `None` if it has no parameters or is invalid.
pub fn uri_template(written: &str) -> Option<UriTemplate> {
    UriTemplate::parse(Uri::parse(written).ok()?.text())
}

/// The canonical form without the names of parameters: uris with the same form match the same requests. `None` if it is
/// invalid.
pub fn uri_without_names(written: &str) -> Option<String> {
    Uri::parse(written).ok().map(|uri| uri.without_names())
}

fn hash_of(random: &RandomState, bytes: &[u8]) -> u64 {
    let mut hasher = random.build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

impl std::fmt::Debug for Lookup<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Lookup")
            .field("host", &String::from_utf8_lossy(self.host))
            .field("path", &String::from_utf8_lossy(self.path))
            .field("method", &self.method)
            .field("listener", &self.listener)
            .field("remote_addr", &self.remote_addr)
            .finish_non_exhaustive()
    }
}
