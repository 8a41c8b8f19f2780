//! The routes of a site: the paths through its directives, with uris and priorities so that they match in Caddy's order.
//!
//! In Weir the most specific host and path win, and `priority` decides between equal ones. A route that Caddy tries earlier, and
//! that has conditions besides the path, therefore also gets the paths of all later routes that are more specific than its own.

use super::conditions::{host_covers, uri_covers};
use super::steps::RouteDraft;
use crate::output::{Converted, ConvertedResource, one_or_many};
use crate::yaml::{Yaml, YamlMembers};

/// Every path.
const EVERYWHERE: &str = "/*";

/// Adds the routes of a site, with a rule for its ports.
pub(super) fn add(converted: &mut Converted, drafts: Vec<RouteDraft>, ports: &[Yaml]) {
    let mut drafts = reachable(drafts);
    for draft in &mut drafts {
        if draft.conditions.uris.is_empty() {
            draft.conditions.uris.push(EVERYWHERE.to_owned());
        }
    }
    let drafts = before_more_specific(drafts);
    let priorities = priorities(&drafts);
    for (draft, priority) in drafts.into_iter().zip(priorities) {
        let conditions = draft.conditions;
        let mut members: YamlMembers = Vec::new();
        members.extend(one_or_many("uri", "uris", &conditions.uris));
        members.extend(one_or_many("host", "hosts", &conditions.hosts));
        if !conditions.methods.is_empty() {
            members.push(("methods".to_owned(), Yaml::texts(&conditions.methods)));
        }
        let vars = [ports.to_vec(), conditions.vars].concat();
        if !vars.is_empty() {
            members.push(("vars".to_owned(), Yaml::List(vars)));
        }
        if priority != 0 {
            members.push(("priority".to_owned(), Yaml::Integer(priority)));
        }
        members.extend(draft.target);
        if !draft.plugins.is_empty() {
            members.push(("plugins".to_owned(), Yaml::Map(draft.plugins)));
        }
        converted.routes.push(ConvertedResource::new(&draft.place, draft.head, members));
    }
}

/// Removes routes that are never reached, because an earlier one matches all of their requests.
fn reachable(drafts: Vec<RouteDraft>) -> Vec<RouteDraft> {
    let mut kept: Vec<RouteDraft> = Vec::new();
    for draft in drafts {
        if !kept.iter().any(|earlier| earlier.conditions.cover(&draft.conditions)) {
            kept.push(draft);
        }
    }
    kept
}

/// Adds to each route the more specific paths and hosts of later routes.
fn before_more_specific(drafts: Vec<RouteDraft>) -> Vec<RouteDraft> {
    let mut all: Vec<RouteDraft> = Vec::new();
    for (position, draft) in drafts.iter().enumerate() {
        let later = || drafts[position + 1..].iter().map(|later| &later.conditions);
        let mut own = draft.clone();
        let mut hosts: Vec<String> = Vec::new();
        for other in later().filter(|other| draft.conditions.and(other).is_some()) {
            let is_wider =
                |host: &String| draft.conditions.hosts.iter().any(|wide| host_covers(wide, host) && wide != host);
            for host in other.hosts.iter().filter(|host| draft.conditions.hosts.is_empty() || is_wider(host)) {
                if !hosts.contains(host) {
                    hosts.push(host.clone());
                }
            }
            for uri in &other.uris {
                let is_narrower = draft.conditions.uris.iter().any(|wide| uri_covers(wide, uri) && wide != uri);
                if is_narrower && !own.conditions.uris.contains(uri) {
                    own.conditions.uris.push(uri.clone());
                }
            }
        }
        if draft.conditions.hosts.is_empty() {
            if !hosts.is_empty() {
                let mut named = own.clone();
                named.conditions.hosts = hosts;
                all.push(named);
            }
        } else {
            own.conditions.hosts.extend(hosts);
        }
        all.push(own);
    }
    all
}

/// The lowest possible priorities: a route needs a higher one than any later route with a common path and host.
fn priorities(drafts: &[RouteDraft]) -> Vec<i64> {
    let mut priorities = vec![0; drafts.len()];
    for (position, draft) in drafts.iter().enumerate().rev() {
        let shares = |later: usize| {
            let other = &drafts[later].conditions;
            let has_path = draft.conditions.uris.iter().any(|uri| other.uris.contains(uri));
            let own = &draft.conditions.hosts;
            let has_host = own.is_empty() == other.hosts.is_empty()
                && (own.is_empty() || own.iter().any(|host| other.hosts.contains(host)));
            has_path && has_host
        };
        let highest = (position + 1..drafts.len()).filter(|&later| shares(later)).map(|later| priorities[later]).max();
        priorities[position] = highest.map_or(0, |highest| highest + 1);
    }
    priorities
}
