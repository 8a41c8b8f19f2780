//! The entries of `map` and `geo`, with the conditions under which nginx chooses them.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::comparison::{NETWORK, test};
use super::syntax::Directive;
use super::variables::is_known_for_routes;
use crate::pattern::regex_quoted;
use crate::yaml::Yaml;

/// Conditions, and the entry with the value for them; without an entry, the value is empty.
pub(super) type ValueCase<'d> = (Vec<Yaml>, Option<&'d Directive>);

/// The comparisons of a block, in the order in which nginx tries them.
pub(super) struct MapEntries<'d> {
    pub tried: Vec<MapComparison<'d>>,
    pub default: Option<&'d Directive>,
}

/// A comparison of the block's variable, and the entry that has it.
pub(super) struct MapComparison<'d> {
    pub operator: &'static str,
    pub value: String,
    pub entry: &'d Directive,
    /// A text, which no other text of the block is.
    pub is_exact: bool,
}

/// The entries with their conditions, in the order in which nginx tries them; the last one has none.
pub(super) fn of(block: &Directive) -> Result<Vec<ValueCase<'_>>, String> {
    let name = compared(source(block))?;
    let MapEntries { tried, default } = entries(block)?;
    let mut values = Vec::new();
    for MapComparison { operator, value, entry, .. } in tried {
        match test(name, operator, &value) {
            Some(vars) => values.push((vars, Some(entry))),
            None => {
                return Err(format!("look-around and back-references are not supported in `{}`", entry.name));
            }
        }
    }
    values.push((Vec::new(), default));
    Ok(values)
}

/// The text that a block compares.
pub(super) fn source(block: &Directive) -> &str {
    match block.name.as_str() {
        "geo" if block.arguments.len() < 2 => "$remote_addr",
        _ => block.argument(0),
    }
}

pub(super) fn entries(block: &Directive) -> Result<MapEntries<'_>, String> {
    let has_masks = block.children().iter().any(|entry| entry.name == "hostnames");
    let (mut tried, mut default) = (Vec::new(), None);
    for entry in block.children() {
        match (block.name.as_str(), entry.name.as_str()) {
            (_, "default") => default = Some(entry),
            (_, "volatile") | ("map", "hostnames") => {}
            (_, "include") => return Err("a file of it could not be read".to_owned()),
            ("geo", name @ ("ranges" | "proxy" | "proxy_recursive" | "delete")) => {
                return Err(format!("`{name}` has no counterpart"));
            }
            ("geo", network) => {
                let (address, bits) = parsed(network)?;
                let rank = (0, Reverse(bits));
                // Of a network that is listed twice, nginx takes the last value.
                tried.retain(|(_, earlier): &(KeyRank, MapComparison)| parsed(&earlier.value) != Ok((address, bits)));
                let value = network.to_owned();
                tried.push((rank, MapComparison { operator: NETWORK, value, entry, is_exact: false }));
            }
            (_, key) => tried.extend(keys(key, has_masks).into_iter().map(|(rank, operator, value)| {
                (rank, MapComparison { operator, value, entry, is_exact: rank.0 == 0 })
            })),
        }
    }
    tried.sort_by_key(|(rank, _)| *rank);
    Ok(MapEntries { tried: tried.into_iter().map(|(_, entry)| entry).collect(), default })
}

/// The address of a network, without the bits that do not count, and the number of those that count.
fn parsed(network: &str) -> Result<(IpAddr, usize), String> {
    let told = || format!("`{network}` is no network");
    let (address, bits) = network.split_once('/').map_or((network, None), |(at, bits)| (at, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| told())?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let bits: usize = bits.map_or(Ok(whole), |bits| bits.parse().map_err(|_| told()))?;
    let others = whole.checked_sub(bits).ok_or_else(told)? as u32;
    let address = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(others).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(others).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    };
    Ok((address, bits))
}

/// The variable that a block compares, if routes can compare it, too.
pub(super) fn compared(source: &str) -> Result<&str, String> {
    variable(source)
        .filter(|name| is_known_for_routes(name))
        .ok_or_else(|| format!("`{source}` is no variable that routes can compare"))
}

/// The name of the variable that is the whole text, such as `$name` or `${name}`.
pub(super) fn variable(text: &str) -> Option<&str> {
    let name = text.strip_prefix("${").and_then(|name| name.strip_suffix('}')).or_else(|| text.strip_prefix('$'));
    let is_one =
        |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    name.filter(is_one)
}

/// The place of an entry in nginx's order: texts, then masks with a `*` at the begin and those with one at the end, of each the longest
/// first, then expressions.
type KeyRank = (u8, Reverse<usize>);

/// The comparisons for a key of a `map`. nginx ignores the case of texts.
fn keys(key: &str, has_masks: bool) -> Vec<(KeyRank, &'static str, String)> {
    let rank = |kind: u8, length: usize| (kind, Reverse(length));
    let exact = |text: &str| match text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        true => (rank(0, 0), "~*", format!("^{}$", regex_quoted(text))),
        false => (rank(0, 0), "=", text.to_owned()),
    };
    let below = |domain: &str| (rank(1, domain.len()), "~*", format!("^.+\\.{}$", regex_quoted(domain)));
    if let Some(pattern) = key.strip_prefix("~*") {
        return vec![(rank(3, 0), "~*", pattern.to_owned())];
    }
    if let Some(pattern) = key.strip_prefix('~') {
        return vec![(rank(3, 0), "~", pattern.to_owned())];
    }
    let masks = (key.strip_prefix("*."), key.strip_prefix('.'), key.strip_suffix(".*"));
    match masks {
        (Some(domain), _, _) if has_masks => vec![below(domain)],
        (_, Some(domain), _) if has_masks => vec![exact(domain), below(domain)],
        (_, _, Some(begin)) if has_masks => {
            vec![(rank(2, begin.len()), "~*", format!("^{}\\..+$", regex_quoted(begin)))]
        }
        // A backslash says that what follows is no keyword.
        _ => vec![exact(key.strip_prefix('\\').unwrap_or(key))],
    }
}
