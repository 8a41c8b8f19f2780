//! The paths of all Ingresses by host.

use std::collections::{BTreeMap, BTreeSet};

use super::claimed::Claimed;
use super::matcher::IngressPathMatch;
use crate::objects::ingress::{IngressBackend, IngressPath};
use crate::translation::{EventKind, Translation};

/// The hosts, and what is served there; the empty one stands for all others.
pub(super) type IngressSites<'a> = BTreeMap<String, IngressSite<'a>>;

#[derive(Default)]
pub(super) struct IngressSite<'a> {
    pub paths: Vec<SitePath<'a>>,
    /// Paths of ingress-nginx are regular expressions.
    pub is_regex: bool,
}

/// A path at a host.
pub(super) struct SitePath<'a> {
    pub claimed: &'a Claimed<'a>,
    /// Counts the paths of the Ingress.
    pub number: usize,
    pub path: &'a IngressPath,
    pub matches: IngressPathMatch,
    /// Takes a part of the requests.
    pub canary: Option<(&'a Claimed<'a>, &'a IngressBackend)>,
}

pub(super) fn collect<'a>(all: &'a [Claimed<'a>], translation: &mut Translation) -> IngressSites<'a> {
    let mut sites = IngressSites::new();
    let mut found = Vec::new();
    let rules = all.iter().flat_map(|claimed| &claimed.ingress.spec.rules);
    let hosts: BTreeSet<String> = rules.map(|rule| rule.host.to_ascii_lowercase()).collect();
    for claimed in all {
        tell_taken_aliases(claimed, &hosts, translation);
        let mut number = 0;
        for rule in &claimed.ingress.spec.rules {
            let host = rule.host.to_ascii_lowercase();
            // An alias is no claim to a host that has rules of its own.
            let aliases = claimed.settings.aliases.iter().filter(|alias| !hosts.contains(*alias)).cloned();
            for host in std::iter::once(host).chain(aliases) {
                sites.entry(host.clone()).or_default().is_regex |= claimed.settings.is_regex;
                for path in rule.http.iter().flat_map(|http| &http.paths) {
                    found.push((host.clone(), claimed, number, path));
                    number += 1;
                }
            }
        }
    }
    // Canaries last: they need a path to be part of.
    found.sort_by_key(|(_, claimed, ..)| claimed.settings.canary.is_some());
    for (host, claimed, number, path) in found {
        let site = sites.entry(host.clone()).or_default();
        let matches = IngressPathMatch::new(path, claimed.dialect, claimed.settings.paths, site.is_regex);
        let same = site.paths.iter_mut().find(|known| known.matches == matches);
        match (same, claimed.settings.canary.is_some()) {
            (Some(known), true) if known.canary.is_none() => known.canary = Some((claimed, &path.backend)),
            (Some(known), _) => {
                let message =
                    format!("`{}` of `{host}` belongs to {}, which is older", path.path, known.claimed.object());
                translation.events.push(claimed.event(EventKind::Warning, "PathTaken", message));
            }
            (None, true) => {
                let message = format!("`canary`: no other Ingress has `{}` of `{host}`", path.path);
                translation.events.push(claimed.event(EventKind::Warning, "NothingToSplit", message));
            }
            (None, false) => site.paths.push(SitePath { claimed, number, path, matches, canary: None }),
        }
    }
    sites
}

fn tell_taken_aliases(claimed: &Claimed, hosts: &BTreeSet<String>, translation: &mut Translation) {
    let is_own = |alias: &str| claimed.ingress.spec.rules.iter().any(|rule| rule.host.eq_ignore_ascii_case(alias));
    for alias in claimed.settings.aliases.iter().filter(|alias| hosts.contains(*alias) && !is_own(alias)) {
        let message = format!("`server-alias`: `{alias}` is the host of rules, which have it alone");
        translation.events.push(claimed.event(EventKind::Warning, "HostTaken", message));
    }
}

impl IngressSite<'_> {
    /// Whether clients of the host are asked for certificates.
    pub(super) fn verifies_clients(&self) -> bool {
        self.paths.iter().any(|path| path.claimed.settings.client_certificates.is_some())
    }

    /// The places of expressions, by which they are tried: the longest first.
    pub(super) fn ranks(&self) -> BTreeMap<&str, i64> {
        let mut texts: Vec<&str> = self.paths.iter().map(|path| path.matches.text()).collect();
        texts.sort_by_key(|text| (text.len(), *text));
        texts.dedup();
        texts.into_iter().zip(1..).collect()
    }
}
