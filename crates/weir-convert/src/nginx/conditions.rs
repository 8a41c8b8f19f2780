//! The condition of an `if`, as `vars`: of a variable of the request, of one that a `map` or a `geo` defines, or of `$invalid_referer`.

use super::Conversion;
use super::comparison::{is_match, test};
use super::map_entries::{self, MapComparison};
use super::referers;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::target_cases;
use super::variables::is_known_for_routes;
use crate::yaml::Yaml;

/// The most entries of blocks that a condition is made of: a request compares one after the other.
const ENTRIES: usize = 256;
/// The most variables that are values of each other.
const DEPTH: usize = 4;
/// The most expressions and comparisons that the rules of a condition may have: `vars` of a route take not many more.
const EXPRESSIONS: usize = 96;
const COMPARISONS: usize = 900;

/// In place of an operator: the value of the chosen entry is written so, which may be another variable.
const WRITTEN: &str = "written";

/// Rules that hold for the same requests as a condition of nginx.
#[derive(Default)]
pub(super) struct ConvertedCondition {
    pub rules: Vec<Yaml>,
    /// The variables of the request that it reads.
    reads: Vec<String>,
    /// It holds for no request.
    pub is_never: bool,
}

impl ConvertedCondition {
    /// Whether it depends on the address or the port of the client.
    pub(super) fn is_of_client(&self) -> bool {
        self.reads.iter().any(|name| is_of_client(name))
    }
}

/// Whether a variable has the address or the port of the client.
pub(super) fn is_of_client(name: &str) -> bool {
    ["remote_addr", "binary_remote_addr", "remote_port"].contains(&name)
}

/// The condition of an `if`; `None` if it cannot be converted.
pub(super) fn of(conversion: &mut Conversion, scope: &BlockScope, directive: &Directive) -> Option<ConvertedCondition> {
    let text = directive.arguments.join(" ");
    let text = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let (variable, rest) = text.split_once(' ').unwrap_or((text, ""));
    let name = variable.strip_prefix('$')?;
    let (operator, value) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    if name == referers::INVALID {
        let is_set = match (operator, value.trim()) {
            ("", _) | ("=", "1") | ("!=", "") => true,
            ("=", "") | ("!=", "1") => false,
            _ => return None,
        };
        let rules = referers::invalid(scope)?;
        let rules = if is_set { rules } else { vec![negated(vec![all(rules)])] };
        return Some(ConvertedCondition { rules, ..ConvertedCondition::default() });
    }
    compared(conversion, name, operator, value.trim(), Some(directive))
}

/// The condition that a variable compares so with a text; without an operator, that it is neither empty nor 0. `covered`: a directive
/// whose only variable this is.
pub(super) fn compared(
    conversion: &mut Conversion,
    name: &str,
    operator: &str,
    value: &str,
    covered: Option<&Directive>,
) -> Option<ConvertedCondition> {
    let mut reading = ConditionReading { http: conversion.http, selecting: Vec::new(), entries: 0 };
    let condition = reading.compared(name, operator, value, 0)?;
    let size = condition.rules.iter().map(ConditionSize::of).fold(ConditionSize::default(), ConditionSize::and);
    if size.expressions > EXPRESSIONS || size.comparisons > COMPARISONS {
        return None;
    }
    if !reading.selecting.is_empty() {
        conversion.selecting.extend(reading.selecting);
        covered.into_iter().for_each(|directive| conversion.cover(directive));
    }
    Some(condition)
}

/// The text that stands in the place of a variable that a block defines, if the value is this text or empty, and the condition that it is
/// not empty. `covered`: a directive whose only variable this is.
pub(super) fn only_value(
    conversion: &mut Conversion,
    name: &str,
    covered: &Directive,
) -> Option<(String, ConvertedCondition)> {
    let block = conversion.http.iter().find(|block| target_cases::defined(block) == Some(name))?;
    let entries = map_entries::entries(block).ok()?;
    let all = entries.tried.iter().map(|entry| entry.entry).chain(entries.default);
    let mut values = all.map(|entry| entry.argument(0)).filter(|value| !value.is_empty());
    let value = values.next().filter(|value| values.all(|other| other == *value))?.to_owned();
    let condition = compared(conversion, name, WRITTEN, &value, Some(covered))?;
    Some((value, condition))
}

struct ConditionReading<'a> {
    http: &'a [Directive],
    /// The variables that blocks define.
    selecting: Vec<String>,
    entries: usize,
}

impl ConditionReading<'_> {
    fn compared(&mut self, name: &str, operator: &str, value: &str, depth: usize) -> Option<ConvertedCondition> {
        if is_known_for_routes(name) {
            let rules = match operator {
                "" => [test(name, "!=", "")?, test(name, "!=", "0")?].concat(),
                operator => test(name, operator, value)?,
            };
            return Some(ConvertedCondition { rules, reads: vec![name.to_owned()], is_never: false });
        }
        let block = self.http.iter().find(|block| target_cases::defined(block) == Some(name))?;
        if depth == DEPTH || block.name == "split_clients" {
            return None;
        }
        self.selecting.push(name.to_owned());
        let entries = map_entries::entries(block).ok()?;
        self.entries += entries.tried.len();
        let source = map_entries::variable(map_entries::source(block)).filter(|_| self.entries <= ENTRIES)?;
        let is_met = |entry: Option<&Directive>| holds(entry.map_or("", |entry| entry.argument(0)), operator, value);
        let is_default_met = is_met(entries.default)?;
        let mut reads = Vec::new();
        let mut cases = Vec::new();
        for MapComparison { operator, value, entry, is_exact } in &entries.tried {
            let condition = self.compared(source, operator, value, depth + 1)?;
            reads.extend(condition.reads);
            let is_met = is_met(Some(*entry))?;
            // A rule that holds for all requests cannot be written.
            if condition.rules.is_empty() && !condition.is_never {
                return None;
            }
            if !condition.is_never {
                cases.push(ConditionCase { rule: all(condition.rules), is_exact: *is_exact, is_met });
            }
        }
        reads.dedup();
        // The requests for which an entry is chosen whose value differs from the default in this comparison.
        let others = alternatives(&cases, !is_default_met);
        let condition = match (others.is_empty(), is_default_met) {
            (true, true) => ConvertedCondition::default(),
            (true, false) => ConvertedCondition { is_never: true, ..ConvertedCondition::default() },
            (false, true) => ConvertedCondition { rules: vec![negated(others)], ..ConvertedCondition::default() },
            (false, false) => ConvertedCondition { rules: vec![any(others)], ..ConvertedCondition::default() },
        };
        Some(ConvertedCondition { reads, ..condition })
    }
}

/// What rules cost.
#[derive(Default)]
struct ConditionSize {
    comparisons: usize,
    expressions: usize,
}

impl ConditionSize {
    fn of(rule: &Yaml) -> ConditionSize {
        let Yaml::List(parts) = rule else { return ConditionSize::default() };
        let is_combination = |word: &String| ["AND", "OR", "!AND", "!OR"].contains(&word.as_str());
        if matches!(parts.first(), Some(Yaml::Text(word)) if is_combination(word)) {
            return parts.iter().map(ConditionSize::of).fold(ConditionSize::default(), ConditionSize::and);
        }
        let is_expression = |part: &Yaml| matches!(part, Yaml::Text(word) if ["~~", "~*"].contains(&word.as_str()));
        let expressions = usize::from(parts.iter().any(is_expression));
        ConditionSize { comparisons: 1, expressions }
    }

    fn and(self, other: ConditionSize) -> ConditionSize {
        ConditionSize {
            comparisons: self.comparisons + other.comparisons,
            expressions: self.expressions + other.expressions,
        }
    }
}

/// An entry of a block: the rule under which it is chosen, unless an earlier one is.
struct ConditionCase {
    rule: Yaml,
    is_exact: bool,
    /// Its value meets the comparison.
    is_met: bool,
}

/// The rules of the entries with this result, each without the requests for which an earlier one with the other result is chosen.
fn alternatives(cases: &[ConditionCase], wanted: bool) -> Vec<Yaml> {
    let mut found = Vec::new();
    for (position, case) in cases.iter().enumerate().filter(|(_, case)| case.is_met == wanted) {
        // A text is no other text.
        let precedes = |other: &&ConditionCase| other.is_met != wanted && !(other.is_exact && case.is_exact);
        let earlier: Vec<Yaml> = cases[..position].iter().filter(precedes).map(|other| other.rule.clone()).collect();
        found.push(match earlier.is_empty() {
            true => case.rule.clone(),
            false => combined("AND", vec![case.rule.clone(), negated(earlier)]),
        });
    }
    found
}

/// Whether a fixed value meets a comparison; `None` if that depends on the request.
fn holds(found: &str, operator: &str, value: &str) -> Option<bool> {
    if operator == WRITTEN {
        return Some(found == value);
    }
    if found.contains('$') || value.contains('$') && ["=", "!="].contains(&operator) {
        return None;
    }
    match operator {
        "" => Some(!["", "0"].contains(&found)),
        "=" => Some(found == value),
        "!=" => Some(found != value),
        "~" | "~*" => is_match(value, operator, found),
        "!~" | "!~*" => is_match(value, operator, found).map(|is_match| !is_match),
        _ => None,
    }
}

fn combined(operator: &str, rules: Vec<Yaml>) -> Yaml {
    Yaml::List([Yaml::text(operator)].into_iter().chain(rules).collect())
}

/// One rule for several of which none may hold. Combinations have two rules or more.
fn negated(rules: Vec<Yaml>) -> Yaml {
    let [Yaml::List(parts)] = rules.as_slice() else { return combined("!OR", rules) };
    let mut parts = parts.clone();
    match &parts[0] {
        Yaml::Text(word) if ["AND", "OR"].contains(&word.as_str()) => parts[0] = Yaml::text(format!("!{word}")),
        Yaml::Text(word) if ["!AND", "!OR"].contains(&word.as_str()) => {
            parts[0] = Yaml::text(word.trim_start_matches('!'))
        }
        _ if parts.get(1) == Some(&Yaml::text("!")) => _ = parts.remove(1),
        _ => parts.insert(1, Yaml::text("!")),
    }
    Yaml::List(parts)
}

/// One rule for several that must all hold.
fn all(mut rules: Vec<Yaml>) -> Yaml {
    if rules.len() == 1 { rules.remove(0) } else { combined("AND", rules) }
}

/// One rule for several of which one must hold.
fn any(mut rules: Vec<Yaml>) -> Yaml {
    if rules.len() == 1 { rules.remove(0) } else { combined("OR", rules) }
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// The `vars` of the route that an `if` becomes, and the findings.
    fn converted(blocks: &str, condition: &str) -> (String, Vec<String>) {
        let text = format!(
            "{blocks} server {{ proxy_redirect off; location / {{ if ({condition}) {{ return 403 no; }} proxy_pass http://10.0.0.1:1; }} }}"
        );
        let converted = convert("t", &text, &|pattern| Err(format!("{pattern} is not there"))).expect("correct");
        let vars = converted.routes[0].members.iter().find(|(name, _)| name == "vars");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        (vars.map_or_else(String::new, |(_, vars)| vars.flow().replace('"', "")), found)
    }

    #[test]
    fn variables_of_maps_are_compared_by_the_cases_of_the_map() {
        let bots = "map $http_user_agent $bot { default 0; ~*crawl 1; ~*archive 1; }";
        let names = "map $ssl_client_s_dn $known { default 0; CN=one 1; ~^CN=two, 1; }";
        let mixed = "map $http_x $v { a 1; ~^b 0; ~c 1; default 0; }";
        for (blocks, condition, expected) in [
            (bots, "$bot", "[[OR, [http_user_agent, ~*, crawl], [http_user_agent, ~*, archive]]]"),
            (bots, "$bot = 0", "[[!OR, [http_user_agent, ~*, crawl], [http_user_agent, ~*, archive]]]"),
            (names, "$known != 1", "[[!OR, [ssl_client_s_dn, ~*, ^CN=one$], [ssl_client_s_dn, ~~, ^CN=two,]]]"),
            (mixed, "$v", "[[OR, [http_x, ~*, ^a$], [AND, [http_x, ~~, c], [http_x, !, ~~, ^b]]]]"),
            (mixed, "$v ~ [01]", ""),
        ] {
            assert_eq!(converted(blocks, condition), (expected.to_owned(), Vec::new()), "{condition}");
        }
    }

    #[test]
    fn networks_are_compared_the_smallest_first() {
        let geo = "geo $inside { default 0; 10.0.0.0/8 1; 10.9.0.0/16 0; }";
        let inside = "AND, [remote_addr, ipmatch, [10.0.0.0/8]], [remote_addr, !, ipmatch, [10.9.0.0/16]]";
        assert_eq!(converted(geo, "$inside"), (format!("[[{inside}]]"), Vec::new()));
        assert_eq!(converted(geo, "$inside = 0"), (format!("[[!{inside}]]"), Vec::new()));
        let through = format!("{geo} map $inside $refused {{ 1 no; default yes; }}");
        assert_eq!(converted(&through, "$refused = yes"), (format!("[[!{inside}]]"), Vec::new()));
    }

    #[test]
    fn the_address_of_a_client_that_is_found_later_is_not_compared() {
        let geo = "set_real_ip_from 10.0.0.1; geo $inside { default 0; 10.0.0.0/8 1; }";
        let (vars, found) = converted(geo, "$inside");
        assert_eq!(vars, "");
        assert!(
            found.iter().any(|found| found.contains("routes are chosen by the address of the connection")),
            "{found:?}"
        );
    }

    #[test]
    fn a_condition_on_more_than_the_request_closes_the_route() {
        for (blocks, condition) in [
            ("map $http_x $v { default $host; }", "$v = a"),
            ("map $http_x $v { ~(?=a)b 1; }", "$v"),
            ("geo $v { ranges; 10.0.0.0-10.0.0.9 1; }", "$v"),
            ("split_clients $remote_addr $v { 1% 1; }", "$v"),
            ("map $a $v { default 1; y 0; } map $v $a { default 1; x 0; }", "$v"),
            ("map $http_a$http_b $v { default 0; xy 1; }", "$v"),
            ("map ${http_a}${http_b} $v { default 0; xy 1; }", "$v"),
            ("map a-$http_b $v { default 0; a-b 1; }", "$v"),
            (&format!("map $http_a $v {{ {} }}", entries("~^x", 97)), "$v"),
            (&format!("map $http_a $v {{ {} }}", alternating(48)), "$v"),
            (&format!("map $http_a $v {{ {} }}", entries("k", 97)), "$v"),
            ("", "$v"),
        ] {
            let (vars, found) = converted(blocks, condition);
            assert_eq!(vars, "", "{blocks}");
            let closed = "all requests that reach it are answered with 503";
            assert!(found.iter().any(|found| found.contains(closed)), "{blocks}: {found:?}");
        }
    }

    /// Entries with the value 1, whose keys begin so.
    fn entries(begin: &str, count: usize) -> String {
        (0..count).map(|number| format!("{begin}{number} 1; ")).collect()
    }

    /// Entries with expressions, every other of which has the value 1.
    fn alternating(count: usize) -> String {
        (0..count).map(|number| format!("~x{number} {}; ", number % 2)).collect()
    }

    #[test]
    fn conditions_have_as_many_parts_as_routes_take() {
        let blocks = format!("map $http_a $v {{ {} }}", entries("~^x", 96));
        let (vars, found) = converted(&blocks, "$v");
        assert!(vars.matches("~~").count() == 96 && found.is_empty(), "{found:?}");
        let (vars, _) = converted("map ${http_a} $v { x 1; }", "$v");
        assert_eq!(vars, "[[http_a, ~*, ^x$]]");
    }

    #[test]
    fn of_a_network_that_is_listed_twice_the_last_value_counts() {
        let (vars, _) = converted("geo $v { 10.0.0.0/8 1; 10.0.0.1/8 0; 10.1.0.0/16 1; }", "$v");
        assert_eq!(vars, "[[remote_addr, ipmatch, [10.1.0.0/16]]]");
    }

    #[test]
    fn a_condition_that_never_holds_answers_nothing() {
        let (_, found) = converted("map $http_x $v { default 0; a 0; }", "$v");
        assert_eq!(found, [""; 0]);
    }
}
