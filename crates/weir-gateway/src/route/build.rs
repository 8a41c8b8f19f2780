//! Builds tables from rules.

use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::host::Host;
use super::radix::Radix;
use super::table::SharedTable;
use super::uri::Uri;
use super::{CompiledRule, ExactPath, MethodSet, Paths, RouteRule, RouteTable, RuleEntry, Size, hash_of};

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The index of the rule.
    pub rule: usize,
    /// The place within the rule: `uris[1]`, `hosts[0]`.
    pub place: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl std::error::Error for BuildError {}

impl fmt::Display for BuildError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rules[{}].{}: {}", self.rule, self.place, self.reason)
    }
}

/// The most pairs of host and uri in a table, and the most bytes of their uris: a route with many of both has each uri
/// under each host. The limits keep indices within 32 bits and bound the memory.
const MAX_ENTRIES: usize = 4 << 20;
const MAX_BYTES: usize = 256 << 20;

/// A rule under one of its uris and one of its hosts.
struct PlacedRule<'a> {
    host: Option<&'a Host>,
    uri: &'a Uri,
    entry: RuleEntry,
}

pub(super) fn edited(
    table: &RouteTable,
    removed: &[u32],
    added: Vec<RouteRule>,
) -> Result<RouteTable, Vec<BuildError>> {
    let mut table = table.clone();
    let gone: Vec<Arc<CompiledRule>> = removed.iter().filter_map(|route| table.rules.remove(*route as usize)).collect();
    gone.iter().for_each(|rule| table.size.subtract(rule));
    let mut errors = Vec::new();
    let mut rules = Vec::with_capacity(added.len());
    for (index, rule) in added.into_iter().enumerate() {
        let rule = parse(index, rule, &mut errors);
        let was_within = table.size.is_within_limits();
        table.size.add(&rule);
        if was_within && !table.size.is_within_limits() {
            let Size { pairs, bytes } = table.size;
            let reason = format!(
                "with this rule, there are {pairs} pairs of host and uri, of {bytes} bytes; \
                 the limits are {MAX_ENTRIES} pairs and {MAX_BYTES} bytes"
            );
            errors.push(BuildError { rule: index, place: "uris".to_owned(), reason });
        }
        rules.push(Arc::new(rule));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let removed: HashSet<u32> = removed.iter().copied().collect();
    for_each_placement(&gone, |host, uri, _| table.remove(host, uri, &removed));
    for_each_placement(&rules, |host, uri, entries| table.add(host, uri, entries));
    rules.into_iter().for_each(|rule| table.rules.set(rule.route as usize, rule));
    Ok(table)
}

impl Size {
    fn of(rule: &CompiledRule) -> Size {
        let hosts = rule.hosts.len().max(1);
        let text: usize = rule.uris.iter().map(|uri| uri.text().len()).sum();
        Size { pairs: rule.uris.len().saturating_mul(hosts), bytes: text.saturating_mul(hosts) }
    }

    fn add(&mut self, rule: &CompiledRule) {
        let Size { pairs, bytes } = Size::of(rule);
        self.pairs = self.pairs.saturating_add(pairs);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn subtract(&mut self, rule: &CompiledRule) {
        let Size { pairs, bytes } = Size::of(rule);
        self.pairs -= pairs;
        self.bytes -= bytes;
    }

    fn is_within_limits(self) -> bool {
        self.pairs <= MAX_ENTRIES && self.bytes <= MAX_BYTES
    }
}

fn parse(index: usize, rule: RouteRule, errors: &mut Vec<BuildError>) -> CompiledRule {
    let mut error = |place: String, reason: String| errors.push(BuildError { rule: index, place, reason });
    let mut uris: Vec<Uri> = Vec::with_capacity(rule.uris.len());
    for (place, uri) in rule.uris.iter().enumerate() {
        match Uri::parse(uri) {
            Ok(uri) => uris.push(uri),
            Err(reason) => error(format!("uris[{place}]"), reason),
        }
    }
    if rule.uris.is_empty() {
        error("uris".to_owned(), "a route needs a uri; write /* to match every path".to_owned());
    }
    // Two spellings may have the same canonical form.
    uris.sort_unstable_by(|a, b| a.text().cmp(b.text()));
    uris.dedup();
    let mut hosts: Vec<Host> = Vec::with_capacity(rule.hosts.len());
    for (place, host) in rule.hosts.iter().enumerate() {
        match Host::parse(host) {
            Ok(host) => hosts.push(host),
            Err(reason) => error(format!("hosts[{place}]"), reason),
        }
    }
    hosts.sort();
    hosts.dedup();
    let RouteRule { listeners, methods, remote_addrs, vars, among, priority, order, route, .. } = rule;
    let methods = methods.unwrap_or(MethodSet::ANY);
    CompiledRule { uris, hosts, listeners, methods, remote_addrs, vars, among, priority, order, route }
}

/// Calls `each` for every pair of host and key that the rules have entries for, with these entries in the order they are
/// tried.
fn for_each_placement(rules: &[Arc<CompiledRule>], mut each: impl FnMut(Option<&Host>, &Uri, &[PlacedRule<'_>])) {
    let mut placed = Vec::with_capacity(rules.len());
    for rule in rules {
        for (index, uri) in rule.uris.iter().enumerate() {
            let entry = RuleEntry {
                rule: Arc::clone(rule),
                uri: index as u32,
                route: rule.route,
                methods: rule.methods,
                has_pattern: uri.is_pattern(),
                has_conditions: !rule.listeners.is_empty()
                    || !rule.remote_addrs.is_empty()
                    || rule.vars.is_some()
                    || rule.among.is_some(),
            };
            placed.extend(rule.hosts.iter().map(|host| PlacedRule { host: Some(host), uri, entry: entry.clone() }));
            if rule.hosts.is_empty() {
                placed.push(PlacedRule { host: None, uri, entry });
            }
        }
    }
    // A stable sort: entries that are equal in all of this keep the order of the rules.
    let place = |a: &PlacedRule<'_>, b: &PlacedRule<'_>| {
        (a.host, a.uri.is_exact(), a.uri.key()).cmp(&(b.host, b.uri.is_exact(), b.uri.key()))
    };
    placed.sort_by(|a, b| place(a, b).then_with(|| by_precedence(&a.entry, &b.entry)));
    for there in placed.chunk_by(|a, b| place(a, b).is_eq()) {
        each(there[0].host, there[0].uri, there);
    }
}

/// Which of two entries under the same host and key is tried first.
fn by_precedence(one: &RuleEntry, other: &RuleEntry) -> Ordering {
    let rank = |it: &RuleEntry| {
        (Reverse(it.rule.priority), Reverse(it.rule.uris[it.uri as usize].text().len()), it.rule.order)
    };
    rank(one).cmp(&rank(other))
}

impl RouteTable {
    fn add(&mut self, host: Option<&Host>, uri: &Uri, placed: &[PlacedRule<'_>]) {
        if uri.is_exact() {
            self.longest_exact = self.longest_exact.max(uri.key().len());
        }
        let random = self.random.clone();
        let paths = self.hosts.paths_of(host);
        let new = placed.iter().map(|placed| placed.entry.clone());
        let entries = match paths.entries(&random, uri) {
            None => new.collect(),
            Some(known) => {
                let mut all: Vec<RuleEntry> = known.iter().cloned().chain(new).collect();
                all.sort_by(by_precedence);
                all.into()
            }
        };
        paths.set(&random, uri, entries);
    }

    /// Removes the entries of these routes under a host and a uri's key.
    fn remove(&mut self, host: Option<&Host>, uri: &Uri, routes: &HashSet<u32>) {
        let random = self.random.clone();
        let paths = self.hosts.paths_of(host);
        let known = paths.entries(&random, uri).map_or(&[][..], |known| known);
        let left: Arc<[RuleEntry]> = known.iter().filter(|entry| !routes.contains(&entry.route)).cloned().collect();
        match left.is_empty() {
            false => paths.set(&random, uri, left),
            true => paths.remove(&random, uri),
        }
        self.hosts.forget_if_empty(host);
    }
}

impl Paths {
    pub(super) fn new(host: Option<Host>) -> Paths {
        Paths { host, exact: SharedTable::default(), prefixes: Radix::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty()
    }

    fn entries(&self, random: &RandomState, uri: &Uri) -> Option<&Arc<[RuleEntry]>> {
        match uri.is_exact() {
            true => self
                .exact
                .find(hash_of(random, uri.key()), |known| *known.path == *uri.key())
                .map(|known| &known.entries),
            false => self.prefixes.get(uri.key()),
        }
    }

    fn set(&mut self, random: &RandomState, uri: &Uri, entries: Arc<[RuleEntry]>) {
        if !uri.is_exact() {
            return self.prefixes.insert(uri.key(), entries);
        }
        let exact = ExactPath { path: uri.key().into(), entries };
        let hash = |exact: &ExactPath| hash_of(random, &exact.path);
        self.exact.insert(hash(&exact), exact, |known| *known.path == *uri.key(), hash);
    }

    fn remove(&mut self, random: &RandomState, uri: &Uri) {
        match uri.is_exact() {
            true => self.exact.remove(hash_of(random, uri.key()), |known| *known.path == *uri.key()),
            false => self.prefixes.remove(uri.key()),
        }
    }
}
