//! `allow` and `deny`, the first of which that matches applies, as one list of addresses.

use std::net::IpAddr;

use ipnet::IpNet;

use super::syntax::Directive;
use crate::yaml::Yaml;

/// An address that no client has: a list with it alone refuses all clients.
pub(super) const NO_CLIENT: &str = "255.255.255.255";

/// A rule that cannot be converted, and why.
pub(super) struct WrongRule<'a>(pub &'a Directive, pub &'static str);

/// What the rules say about addresses that none of the listed networks contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allow,
    Deny,
}

/// The options of `ip-restriction` for the rules of one block, in their order; `None` if they let every client in.
pub(super) fn options<'a>(rules: &[&'a Directive]) -> Result<Option<Yaml>, WrongRule<'a>> {
    let mut others = Verdict::Allow;
    let mut known = Vec::new();
    for rule in rules {
        let verdict = if rule.name == "allow" { Verdict::Allow } else { Verdict::Deny };
        match rule.argument(0) {
            "all" => {
                others = verdict;
                break;
            }
            // No client comes over a Unix socket, as listeners on these are not converted.
            "unix:" => {}
            address => match network(address) {
                Some(network) => known.push((network, verdict)),
                None => return Err(WrongRule(rule, "this is neither an address nor a network")),
            },
        }
    }
    let exceptions = exceptions(&known, others)
        .ok_or_else(|| WrongRule(rules[0], "the rules exclude too many parts of networks from each other"))?;
    let mut listed: Vec<String> = exceptions.iter().map(told).collect();
    Ok(match others {
        Verdict::Allow if listed.is_empty() => None,
        Verdict::Allow => Some(Yaml::map([("blacklist", Yaml::texts(listed))])),
        Verdict::Deny => {
            if listed.is_empty() {
                listed.push(NO_CLIENT.to_owned());
            }
            Some(Yaml::map([("whitelist", Yaml::texts(listed))]))
        }
    })
}

/// The most networks in a converted list.
const NETWORKS: usize = 2_000;

/// The networks whose verdict is not that of all others. A rule counts only for addresses that no earlier rule names. `None`
/// if there are more than [`NETWORKS`].
fn exceptions(rules: &[(IpNet, Verdict)], others: Verdict) -> Option<Vec<IpNet>> {
    let mut found: Vec<IpNet> = Vec::new();
    for (position, (network, verdict)) in rules.iter().enumerate() {
        if *verdict == others {
            continue;
        }
        let mut parts = vec![*network];
        for (earlier, opposite) in &rules[..position] {
            // What an earlier rule with the same verdict names is in the list anyway.
            if opposite == verdict && !earlier.contains(network) {
                continue;
            }
            parts = parts.iter().flat_map(|part| without(*part, earlier)).collect();
            if parts.len() > NETWORKS {
                return None;
            }
        }
        found.extend(parts);
    }
    (found.len() <= NETWORKS).then_some(found)
}

/// The parts of a network that are outside of another.
fn without(network: IpNet, excluded: &IpNet) -> Vec<IpNet> {
    if excluded.contains(&network) {
        return Vec::new();
    }
    if !network.contains(excluded) {
        return vec![network];
    }
    let halves = network.subnets(network.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, excluded)).collect()
}

/// Whether a text is an IP address or a network.
pub(super) fn is_network(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || text.parse::<IpNet>().is_ok()
}

/// nginx ignores the bits of the address that are not of the network.
fn network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    network.map(|network| network.trunc())
}

fn told(network: &IpNet) -> String {
    if network.prefix_len() == network.max_prefix_len() { network.addr().to_string() } else { network.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    fn converted(text: &str) -> String {
        let rules = parse("t", text).expect("correct");
        match options(&rules.iter().collect::<Vec<_>>()) {
            Ok(options) => options.map_or("open".to_owned(), |options| options.flow()),
            Err(WrongRule(rule, why)) => format!("{}: {why}", rule.head()),
        }
    }

    #[test]
    fn the_first_rule_that_matches_applies() {
        for (text, want) in [
            ("deny 10.0.0.5; deny all;", "{ whitelist: [\"255.255.255.255\"] }"),
            ("deny all;", "{ whitelist: [\"255.255.255.255\"] }"),
            ("deny all; allow 10.0.0.0/8;", "{ whitelist: [\"255.255.255.255\"] }"),
            ("allow all;", "open"),
            ("allow all; deny all;", "open"),
            ("allow 10.0.0.1;", "open"),
            ("allow unix:; deny all;", "{ whitelist: [\"255.255.255.255\"] }"),
            ("deny 10.0.0.5; allow all;", "{ blacklist: [\"10.0.0.5\"] }"),
            ("deny 10.0.0.5; deny ::1;", "{ blacklist: [\"10.0.0.5\", \"::1\"] }"),
            ("allow 10.1.2.3/8; deny all;", "{ whitelist: [\"10.0.0.0/8\"] }"),
            ("allow 10.0.0.0/8; deny 10.0.0.5; deny all;", "{ whitelist: [\"10.0.0.0/8\"] }"),
            ("allow 10.0.0.0/8; allow 10.0.0.5; deny all;", "{ whitelist: [\"10.0.0.0/8\"] }"),
            ("deny 10.0.0.2; allow 10.0.0.0/30; deny all;", "{ whitelist: [\"10.0.0.0/31\", \"10.0.0.3\"] }"),
            ("allow 10.0.0.1; deny 10.0.0.0/31; allow all;", "{ blacklist: [\"10.0.0.0\"] }"),
            ("deny 10.0.0.0/8; allow 10.0.0.0/30; allow ::1; deny all;", "{ whitelist: [\"::1\"] }"),
            ("allow intranet; deny all;", "allow intranet: this is neither an address nor a network"),
        ] {
            assert_eq!(converted(text), want, "{text}");
        }
    }
}
