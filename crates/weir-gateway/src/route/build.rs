//! From rules to tables.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use hashbrown::HashTable;

use super::host::{Host, Hosts};
use super::uri::Uri;
use super::{
    CompiledRule, ExactPath, MethodSet, Paths, Range, RouteRule, RouteTable, RuleEntry, WITHOUT_HOST, hash_of,
    with_paths,
};

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

/// How many pairs of host and uri a table may have, and how many bytes their uris: a route with many of both has each
/// uri under each host. Keeps indices within 32 bits and memory within reason.
const MAX_ENTRIES: usize = 4 << 20;
const MAX_BYTES: usize = 256 << 20;

/// A rule under one of its uris and one of its hosts.
struct PlacedRule<'a> {
    paths: u32,
    uri: &'a Uri,
    priority: i64,
    entry: RuleEntry,
}

pub(super) fn build(rules: Vec<RouteRule>) -> Result<RouteTable, Vec<BuildError>> {
    let mut errors = Vec::new();
    let mut methods = Vec::with_capacity(rules.len());
    let mut parsed = Vec::with_capacity(rules.len());
    let (mut count, mut bytes) = (0usize, 0usize);
    for (index, rule) in rules.into_iter().enumerate() {
        methods.push(rule.methods.unwrap_or(MethodSet::ANY));
        let rule = parse(index, rule, &mut errors);
        let hosts = rule.hosts.len().max(1);
        let text: usize = rule.uris.iter().map(|uri| uri.text().len()).sum();
        let was_within = count <= MAX_ENTRIES && bytes <= MAX_BYTES;
        count = count.saturating_add(rule.uris.len().saturating_mul(hosts));
        bytes = bytes.saturating_add(text.saturating_mul(hosts));
        if was_within && (count > MAX_ENTRIES || bytes > MAX_BYTES) {
            let reason = format!(
                "with this one, the rules have {count} pairs of host and uri, of {bytes} bytes; \
                 the limits are {MAX_ENTRIES} and {MAX_BYTES}"
            );
            errors.push(BuildError { rule: index, place: "uris".to_owned(), reason });
        }
        parsed.push(rule);
    }
    if errors.is_empty() { Ok(assemble(parsed, &methods, count)) } else { Err(errors) }
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
        error("uris".to_owned(), "a route needs a uri; write /* for every path".to_owned());
    }
    // Two spellings may turn out to be the same.
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
    let RouteRule { remote_addrs, vars, among, priority, route, .. } = rule;
    CompiledRule { uris, hosts, remote_addrs, vars, among, priority, route }
}

fn assemble(rules: Vec<CompiledRule>, methods: &[MethodSet], count: usize) -> RouteTable {
    let mut numbers: HashMap<&Host, u32> = HashMap::new();
    let mut placed = Vec::with_capacity(count);
    for (index, (rule, methods)) in rules.iter().zip(methods).enumerate() {
        for (uri_index, uri) in rule.uris.iter().enumerate() {
            let entry = RuleEntry {
                rule: index as u32,
                uri: uri_index as u32,
                route: rule.route,
                methods: *methods,
                has_pattern: uri.is_pattern(),
                has_conditions: !rule.remote_addrs.is_empty() || rule.vars.is_some() || rule.among.is_some(),
            };
            let mut place = |paths| placed.push(PlacedRule { paths, uri, priority: rule.priority, entry });
            for host in &rule.hosts {
                let next = numbers.len() as u32 + 1;
                place(*numbers.entry(host).or_insert(next));
            }
            if rule.hosts.is_empty() {
                place(WITHOUT_HOST);
            }
        }
    }
    // A stable sort: entries that are equal in all this keep the order of the rules.
    placed.sort_by(|a, b| {
        let key = |it: &PlacedRule<'_>| (it.paths, it.uri.is_exact());
        let rank = |it: &PlacedRule<'_>| (Reverse(it.priority), Reverse(it.uri.text().len()));
        key(a).cmp(&key(b)).then_with(|| a.uri.key().cmp(b.uri.key())).then_with(|| rank(a).cmp(&rank(b)))
    });
    let mut table = RouteTable {
        hosts: Hosts::build(numbers.iter().map(|(host, number)| (*host, *number))),
        paths: Vec::with_capacity(numbers.len() + 1),
        random: Default::default(),
        exact: HashTable::new(),
        longest_exact: 0,
        forest: Default::default(),
        prefixes: Vec::new(),
        entries: placed.iter().map(|placed| placed.entry).collect(),
        rules: Vec::new(),
    };
    table.paths.resize_with(numbers.len() + 1, Paths::default);
    for (host, number) in numbers {
        table.paths[number as usize].host = Some(host.clone());
    }
    let mut start = 0;
    for of_host in placed.chunk_by(|a, b| a.paths == b.paths) {
        table.add_paths(of_host, start);
        start += of_host.len() as u32;
    }
    table.rules = rules;
    table
}

impl RouteTable {
    /// Adds the entries of one host. They stand in `entries` from `start` on, ordered.
    fn add_paths(&mut self, placed: &[PlacedRule<'_>], mut start: u32) {
        let number = placed[0].paths;
        let mut prefixes = Vec::new();
        let mut has_exact = false;
        for of_path in placed.chunk_by(|a, b| a.uri.is_exact() == b.uri.is_exact() && a.uri.key() == b.uri.key()) {
            let uri = of_path[0].uri;
            let entries = Range { start, end: start + of_path.len() as u32 };
            start = entries.end;
            if uri.is_exact() {
                has_exact = true;
                self.longest_exact = self.longest_exact.max(uri.key().len());
                let exact = ExactPath { paths: number, entries, path: uri.key().into() };
                let hash = |exact: &ExactPath| with_paths(hash_of(&self.random, &exact.path), exact.paths);
                self.exact.insert_unique(hash(&exact), exact, hash);
            } else {
                prefixes.push((uri.key(), self.prefixes.len() as u32));
                self.prefixes.push(entries);
            }
        }
        let paths = &mut self.paths[number as usize];
        paths.has_exact = has_exact;
        paths.prefixes = self.forest.add(&prefixes);
    }
}
