//! A `proxy_pass` whose upstream a `map`, a `split_clients` or a `geo` selects: its cases, as the rules of `traffic-split`.

use super::Conversion;
use super::constants;
use super::rewrite::test;
use super::syntax::Directive;
use super::target_choice;
use super::variables::{is_known_for_routes, names};
use crate::SourcePlace;
use crate::pattern::regex_quoted;
use crate::yaml::Yaml;

/// The most cases of a target: a request tries them one after the other.
const CASES: usize = 256;

/// The most variables that are values of each other.
const DEPTH: usize = 8;

/// Requests that get the same target, or one of several by weight.
pub(super) struct TargetCase {
    /// All of these conditions hold.
    pub vars: Vec<Yaml>,
    pub shares: Vec<TargetShare>,
}

pub(super) struct TargetShare {
    pub weight: i64,
    /// The `proxy_pass` with the values in the place of the variables, at the place of the value.
    pub pass: Directive,
    /// The value's line of the file.
    pub entry: String,
    /// The value is empty, so nginx answers with 500.
    pub is_nowhere: bool,
}

impl TargetShare {
    pub(super) fn is_same_as(&self, other: &TargetShare) -> bool {
        (self.weight, self.is_nowhere, &self.pass.arguments) == (other.weight, other.is_nowhere, &other.pass.arguments)
    }
}

/// The cases of a `proxy_pass`, the first of which that holds applies: the last one always does. `None` if no variable that this file
/// defines selects its upstream. `is_rewritten`: the path has been changed before. What has no counterpart is reported.
pub(super) fn of(conversion: &mut Conversion, pass: &Directive, is_rewritten: bool) -> Option<Vec<TargetCase>> {
    let (_, variable) = selecting(conversion.http, pass.argument(0))?;
    let advice = target_choice::advice(conversion.http, variable);
    let share = TargetShare { weight: 1, pass: pass.clone(), entry: pass.head(), is_nowhere: false };
    let mut expansion = Expansion { conversion, is_rewritten, cases: Vec::new() };
    match expansion.expand(share, Vec::new(), 0) {
        Ok(()) => Some(expansion.cases),
        Err((place, why)) => {
            let text = format!("`{}`: {why}, so `${variable}` cannot select the upstream; {advice}", pass.head());
            conversion.lost(&place, text);
            Some(Vec::new())
        }
    }
}

/// Whether the conversion of the targets covers all that a block does: its variable stands nowhere else.
pub(super) fn is_converted(conversion: &Conversion, block: &Directive) -> bool {
    let Some(variable) = defined(block) else { return false };
    conversion.selecting.contains(variable) && !is_used(conversion, conversion.http, variable)
}

/// Whether a directive other than those that select an upstream has a variable.
fn is_used(conversion: &Conversion, block: &[Directive], variable: &str) -> bool {
    block.iter().any(|directive| {
        let selects = ["proxy_pass", "grpc_pass"].contains(&directive.name.as_str())
            || defined(directive).is_some_and(|name| name == variable || conversion.selecting.contains(name));
        !selects
            && (directive.arguments.iter().any(|argument| names(argument).any(|name| name == variable))
                || names(&directive.name).any(|name| name == variable)
                || is_used(conversion, directive.children(), variable))
    })
}

/// The variable that a block defines.
fn defined(block: &Directive) -> Option<&str> {
    let is_it = ["map", "split_clients", "geo"].contains(&block.name.as_str());
    block.arguments.last().filter(|_| is_it)?.strip_prefix('$')
}

/// The first variable before the path of a target that one of these blocks defines, and the block.
fn selecting<'a, 't>(http: &'a [Directive], target: &'t str) -> Option<(&'a Directive, &'t str)> {
    let authority = target.find("://").map_or(0, |at| at + 3);
    let end = target[authority..].find('/').map_or(target.len(), |at| authority + at);
    names(&target[..end]).find_map(|name| Some((http.iter().find(|block| defined(block) == Some(name))?, name)))
}

/// Conditions, and the entry with the value for them; without an entry, the value is empty.
type ValueCase<'d> = (Vec<Yaml>, Option<&'d Directive>);

/// A place, and why the cases cannot be converted.
type Unconverted = (SourcePlace, String);

struct Expansion<'c, 'a> {
    conversion: &'c mut Conversion<'a>,
    is_rewritten: bool,
    cases: Vec<TargetCase>,
}

impl Expansion<'_, '_> {
    /// Adds the cases of a target for requests with these conditions.
    fn expand(&mut self, share: TargetShare, vars: Vec<Yaml>, depth: usize) -> Result<(), Unconverted> {
        let Some((block, variable)) = selecting(self.conversion.http, share.pass.argument(0)) else {
            return self.add(vars, vec![share]);
        };
        let tell = |why: &str| Err((block.place.clone(), format!("`{}`: {why}", block.head())));
        if depth == DEPTH {
            return tell(&format!("more than {DEPTH} variables are values of each other"));
        }
        self.conversion.selecting.insert(variable.to_owned());
        if block.name == "split_clients" {
            let shares = shares(block, variable, &share);
            return match shares.iter().any(|share| selecting(self.conversion.http, share.pass.argument(0)).is_some()) {
                true => tell("a share has a variable in its value"),
                false => self.split(block, vars, shares),
            };
        }
        let values = match block.name.as_str() {
            "geo" => networks(block),
            _ => self.values(block),
        };
        let values = match values {
            Ok(values) => values,
            Err(why) => return tell(&why),
        };
        for (conditions, entry) in values {
            let share = valued(&share, variable, entry.map_or("", |entry| entry.argument(0)), entry.unwrap_or(block));
            self.expand(share, [vars.clone(), conditions].concat(), depth + 1)?;
        }
        Ok(())
    }

    fn split(&mut self, block: &Directive, vars: Vec<Yaml>, shares: Vec<TargetShare>) -> Result<(), Unconverted> {
        if shares.iter().filter(|share| share.weight > 0).count() > 1 {
            let text = format!(
                "`{}`: requests are shared by weight, each by itself; nginx gives all requests with the same `{}` the same share",
                block.head(),
                block.argument(0)
            );
            self.conversion.differs(&block.place, text);
        }
        self.add(vars, shares)
    }

    fn add(&mut self, vars: Vec<Yaml>, shares: Vec<TargetShare>) -> Result<(), Unconverted> {
        if self.cases.len() == CASES {
            return Err((shares[0].pass.place.clone(), format!("the target has more than {CASES} cases")));
        }
        self.cases.push(TargetCase { vars, shares });
        Ok(())
    }

    /// The entries of a `map` with their conditions, in the order in which nginx tries them; the last one has none.
    fn values<'b>(&mut self, map: &'b Directive) -> Result<Vec<ValueCase<'b>>, String> {
        let source = map.argument(0);
        let name = compared(source)?;
        if self.is_rewritten && ["uri", "document_uri"].contains(&name) {
            return Err(format!("`{source}` is the path after the `rewrite`, and plugins compare the one before"));
        }
        let has_masks = map.children().iter().any(|entry| entry.name == "hostnames");
        let (mut tried, mut default) = (Vec::new(), None);
        for entry in map.children() {
            match entry.name.as_str() {
                "default" => default = Some(entry),
                "hostnames" | "volatile" => {}
                "include" => return Err("a file of it could not be read".to_owned()),
                key => {
                    for (rank, operator, value) in keys(key, has_masks) {
                        match test(name, operator, &value) {
                            Some(vars) => tried.push((rank, (vars, Some(entry)))),
                            None => {
                                return Err(format!("look-around and back-references are not supported in `{key}`"));
                            }
                        }
                    }
                }
            }
        }
        tried.sort_by_key(|(rank, _)| *rank);
        let mut values: Vec<_> = tried.into_iter().map(|(_, value)| value).collect();
        values.push((Vec::new(), default));
        Ok(values)
    }
}

/// The variable that a block compares, if routes can compare it, too.
fn compared(source: &str) -> Result<&str, String> {
    let name = source.strip_prefix("${").and_then(|name| name.strip_suffix('}')).or_else(|| source.strip_prefix('$'));
    let is_one = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    name.filter(is_one)
        .filter(|name| is_known_for_routes(name))
        .ok_or_else(|| format!("`{source}` is no variable that routes can compare"))
}

/// The place of an entry in nginx's order: texts, then masks with a `*` at the begin and those with one at the end, of each the longest
/// first, then expressions.
type KeyRank = (u8, std::cmp::Reverse<usize>);

/// The comparisons for a key of a `map`. nginx ignores the case of texts.
fn keys(key: &str, has_masks: bool) -> Vec<(KeyRank, &'static str, String)> {
    let rank = |kind: u8, length: usize| (kind, std::cmp::Reverse(length));
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

/// The entries of a `geo` with their conditions: the smallest network first.
fn networks(geo: &Directive) -> Result<Vec<ValueCase<'_>>, String> {
    let source = if geo.arguments.len() > 1 { geo.argument(0) } else { "$remote_addr" };
    let name = compared(source)?;
    let (mut tried, mut default) = (Vec::new(), None);
    for entry in geo.children() {
        match entry.name.as_str() {
            "default" => default = Some(entry),
            "volatile" => {}
            "include" => return Err("a file of it could not be read".to_owned()),
            "ranges" | "proxy" | "proxy_recursive" | "delete" => {
                return Err(format!("`{}` has no counterpart", entry.name));
            }
            network => {
                let (address, bits) = network.split_once('/').map_or((network, None), |(at, bits)| (at, Some(bits)));
                let address: std::net::IpAddr = address.parse().map_err(|_| format!("`{network}` is no network"))?;
                let whole = if address.is_ipv4() { 32 } else { 128 };
                let bits =
                    bits.map_or(Ok(whole), str::parse::<usize>).map_err(|_| format!("`{network}` is no network"))?;
                let condition = [Yaml::text(name), Yaml::text("ipmatch"), Yaml::texts([network])];
                tried.push((bits, (vec![Yaml::List(condition.to_vec())], Some(entry))));
            }
        }
    }
    tried.sort_by_key(|(bits, _)| std::cmp::Reverse(*bits));
    let mut values: Vec<_> = tried.into_iter().map(|(_, value)| value).collect();
    values.push((Vec::new(), default));
    Ok(values)
}

/// The shares of a `split_clients`, in hundredths of a percent, or smaller whole numbers.
fn shares(block: &Directive, variable: &str, pass: &TargetShare) -> Vec<TargetShare> {
    let mut left = 10_000;
    let mut shares = Vec::new();
    for entry in block.children() {
        let percent = entry.name.strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok());
        let weight = percent.map_or(left, |percent| ((percent * 100.0).round() as i64).clamp(0, left));
        left -= weight;
        shares.push(TargetShare { weight, ..valued(pass, variable, entry.argument(0), entry) });
    }
    if left > 0 {
        shares.push(TargetShare { weight: left, ..valued(pass, variable, "", block) });
    }
    shares.retain(|share| share.weight > 0);
    let divisor = shares.iter().fold(0, |divisor, share| common_divisor(divisor, share.weight)).max(1);
    shares.iter_mut().for_each(|share| share.weight /= divisor);
    shares
}

fn common_divisor(one: i64, other: i64) -> i64 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

/// A target with a value in the place of a variable.
fn valued(share: &TargetShare, variable: &str, value: &str, entry: &Directive) -> TargetShare {
    let mut pass = share.pass.clone();
    pass.arguments[0] = constants::with_value(pass.argument(0), variable, value);
    pass.place = entry.place.clone();
    let text = pass.argument(0);
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest);
    // The path may be a variable, too.
    let is_nowhere = ["/", ":", "$request_uri", "$uri"].iter().any(|path| authority.starts_with(path));
    let is_nowhere = is_nowhere || authority.is_empty();
    TargetShare { weight: 1, is_nowhere, entry: entry.head(), pass }
}
