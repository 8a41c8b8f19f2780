//! The paths of all Ingresses by host.

use std::collections::BTreeMap;

use super::claimed::Claimed;
use super::matcher::IngressPathMatch;
use crate::objects::ingress::{IngressBackend, IngressPath};
use crate::translation::{EventKind, Translation};

/// The hosts, and what is served there; the empty one stands for all others.
pub(super) type IngressSites<'a> = BTreeMap<String, IngressSite<'a>>;

#[derive(Clone, Default)]
pub(super) struct IngressSite<'a> {
    /// The Ingresses with rules for the host, the oldest first. Canaries are no owners.
    pub owners: Vec<&'a Claimed<'a>>,
    pub paths: Vec<SitePath<'a>>,
    /// Paths of ingress-nginx are regular expressions.
    pub is_regex: bool,
}

/// A path at a host.
#[derive(Clone)]
pub(super) struct SitePath<'a> {
    pub claimed: &'a Claimed<'a>,
    /// Tells it from the other paths of the Ingress.
    pub part: String,
    pub path: &'a IngressPath,
    pub matches: IngressPathMatch,
    /// Takes a part of the requests.
    pub canary: Option<(&'a Claimed<'a>, &'a IngressBackend)>,
}

pub(super) fn collect<'a>(all: &'a [Claimed<'a>], translation: &mut Translation) -> IngressSites<'a> {
    let mut sites = IngressSites::new();
    let mut found = Vec::new();
    for claimed in all {
        let mut number = 0;
        for rule in &claimed.ingress.spec.rules {
            let host = rule.host.to_ascii_lowercase();
            let site = sites.entry(host.clone()).or_default();
            site.is_regex |= claimed.settings.is_regex;
            if claimed.settings.canary.is_none() && !site.is_owner(claimed) {
                site.owners.push(claimed);
            }
            for path in rule.http.iter().flat_map(|http| &http.paths) {
                found.push((host.clone(), claimed, number, path));
                number += 1;
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
            (None, false) => {
                site.paths.push(SitePath { claimed, part: number.to_string(), path, matches, canary: None });
            }
        }
    }
    add_aliases(&mut sites, translation);
    sites
}

/// Adds the further names of hosts. All that a host serves is served by such a name as well, whichever Ingress it comes from: a part of it
/// would be without the protection that another part has.
fn add_aliases(sites: &mut IngressSites, translation: &mut Translation) {
    let mut added = IngressSites::new();
    for (host, site) in sites.iter() {
        let mut with_aliases = site.owners.iter().filter(|owner| !owner.settings.aliases.is_empty());
        let Some(first) = with_aliases.next() else { continue };
        for alias in first.settings.aliases.iter().filter(|alias| *alias != host) {
            if sites.contains_key(alias) || added.contains_key(alias) {
                let message = format!("`server-alias`: `{alias}` is the host of rules, or the alias of another host");
                translation.events.push(first.event(EventKind::Warning, "HostTaken", message));
                continue;
            }
            let mut named = site.clone();
            named.paths.iter_mut().for_each(|path| path.part = format!("{}_{alias}", path.part));
            added.insert(alias.clone(), named);
        }
        for other in with_aliases.filter(|other| other.settings.aliases != first.settings.aliases) {
            let message =
                format!("`server-alias`: the aliases of `{host}` are those of {}, which is older", first.object());
            translation.events.push(other.event(EventKind::Warning, "HostTaken", message));
        }
    }
    sites.extend(added);
}

impl IngressSite<'_> {
    /// The Ingress by which clients of the host are asked for certificates.
    pub(super) fn client_owner(&self) -> Option<&Claimed<'_>> {
        self.owners.iter().copied().find(|owner| owner.settings.client_certificates.is_some())
    }

    /// The Ingress by which clients of the host were to be asked for certificates, if it is refused: nothing is served at the host, since its
    /// other Ingresses would be open to all clients.
    pub(super) fn refused_owner(&self) -> Option<&Claimed<'_>> {
        self.owners.iter().copied().find(|owner| owner.wants_certificates()).filter(|owner| owner.is_refused)
    }

    /// Whether an Ingress has a rule for the host.
    pub(super) fn is_owner(&self, claimed: &Claimed) -> bool {
        self.owners.iter().any(|owner| std::ptr::eq(owner.ingress, claimed.ingress))
    }

    /// The places of expressions, by which they are tried: the longest first.
    pub(super) fn ranks(&self) -> BTreeMap<&str, i64> {
        let mut texts: Vec<&str> = self.paths.iter().map(|path| path.matches.text()).collect();
        texts.sort_by_key(|text| (text.len(), *text));
        texts.dedup();
        texts.into_iter().zip(1..).collect()
    }
}
