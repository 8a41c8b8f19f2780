//! Matchers: `*`, a path, or `@name` with the conditions of its definition.

use std::collections::HashMap;

use super::conditions::{Conditions, rule};
use super::path::{LocatedPath, PathState};
use super::placeholder::field_variable;
use crate::directive::Directive;
use crate::pattern::regex_quoted;
use crate::yaml::Yaml;

/// The addresses that `private_ranges` stands for.
pub(super) const PRIVATE_RANGES: [&str; 6] =
    ["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8", "127.0.0.0/8", "fd00::/8", "::1"];

/// The variable with the address of the client.
const CLIENT_ADDRESS: &str = "remote_addr";

/// The definitions of matchers, by name.
pub(super) type NamedMatchers<'a> = HashMap<&'a str, &'a Directive>;

/// The requests that a matcher selects.
#[derive(Clone, Debug, Default)]
pub(super) struct MatchedRequests {
    /// The conditions as far as they were converted.
    pub conditions: Conditions,
    /// No request matches.
    pub is_never: bool,
    /// A condition that could not be converted: the matcher selects fewer requests than `conditions`.
    pub unknown: Option<String>,
    /// Names and patterns of the regular expressions for the path, whose groups are referred to as `{re.name.1}`.
    pub captures: Vec<(String, String)>,
}

impl MatchedRequests {
    fn unknown(text: String) -> MatchedRequests {
        MatchedRequests { unknown: Some(text), ..MatchedRequests::default() }
    }

    fn add(&mut self, other: MatchedRequests) {
        match self.conditions.and(&other.conditions) {
            Some(conditions) => self.conditions = conditions,
            None => self.is_never = true,
        }
        self.is_never |= other.is_never;
        self.unknown = self.unknown.take().or(other.unknown);
        self.captures.extend(other.captures);
    }

    /// Removes the conditions about the address of the client; whether there were any.
    pub(super) fn drop_client_rules(&mut self) -> bool {
        fn is_about_client(rule: &Yaml) -> bool {
            let Yaml::List(parts) = rule else { return false };
            parts.first() == Some(&Yaml::text(CLIENT_ADDRESS)) || parts.iter().any(is_about_client)
        }
        let before = self.conditions.vars.len();
        self.conditions.vars.retain(|rule| !is_about_client(rule));
        self.conditions.vars.len() < before
    }

    fn var(&mut self, rule: Yaml) {
        if !self.conditions.vars.contains(&rule) {
            self.conditions.vars.push(rule);
        }
    }
}

/// The matcher in the first argument of a directive, if it is one.
pub(super) fn of_argument(argument: &str, named: &NamedMatchers, path: &PathState) -> Option<MatchedRequests> {
    if argument == "*" {
        return Some(MatchedRequests::default());
    }
    if argument.starts_with('/') {
        return Some(paths(&[argument.to_owned()], path));
    }
    if !argument.starts_with('@') {
        return None;
    }
    Some(match named.get(argument) {
        Some(definition) => of_definition(definition, path),
        None => MatchedRequests::unknown(format!("`{argument}`: there is no matcher of this name")),
    })
}

/// `@name path /a`, or `@name { ... }`, all lines of which must match.
fn of_definition(definition: &Directive, path: &PathState) -> MatchedRequests {
    if definition.block.is_some() {
        return all(definition.children(), path);
    }
    let mut words = definition.arguments.iter().cloned();
    let name = words.next().unwrap_or_default();
    let line = Directive { name, arguments: words.collect(), block: None, place: definition.place.clone() };
    all(std::slice::from_ref(&line), path)
}

/// All lines must match; lines that Caddy joins are alternatives: paths, hosts, methods, and values of the same field or
/// argument.
fn all(lines: &[Directive], path: &PathState) -> MatchedRequests {
    let mut met = MatchedRequests::default();
    let mut joined: Vec<(String, Vec<String>)> = Vec::new();
    for line in lines {
        match line.name.as_str() {
            "path" | "host" | "method" => join(&mut joined, &line.name, &line.arguments),
            "header" if !line.argument(0).starts_with('!') && !line.argument(1).is_empty() => {
                join(&mut joined, &format!("header {}", line.argument(0)), &line.after_first()[..1]);
            }
            "query" if line.arguments.iter().all(|pair| pair.contains('=') && !pair.contains('{')) => {
                for (name, value) in line.arguments.iter().filter_map(|pair| pair.split_once('=')) {
                    join(&mut joined, &format!("query {name}"), &[value.to_owned()]);
                }
            }
            _ => met.add(one(line, path)),
        }
    }
    for (name, values) in joined {
        met.add(match name.as_str() {
            "path" => paths(&values, path),
            "host" => hosts(&values),
            "method" => {
                let methods = values.iter().map(|method| method.to_ascii_uppercase()).collect();
                MatchedRequests { conditions: Conditions { methods, ..Conditions::default() }, ..Default::default() }
            }
            name => match name.strip_prefix("query ") {
                Some(name) => query(name, &values),
                None => header(name.trim_start_matches("header "), &values),
            },
        });
    }
    met
}

fn join(joined: &mut Vec<(String, Vec<String>)>, name: &str, values: &[String]) {
    match joined.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => known.extend_from_slice(values),
        None => joined.push((name.to_owned(), values.to_vec())),
    }
}

fn one(line: &Directive, path: &PathState) -> MatchedRequests {
    let mut met = MatchedRequests::default();
    match (line.name.as_str(), line.arguments.as_slice()) {
        ("path_regexp", [words @ .., pattern]) => {
            met.add(expression(path.located_regex(pattern), line));
            let name = words.first().cloned().unwrap_or_default();
            met.captures.push((name, pattern.clone()));
        }
        ("header", [field]) => match field.strip_prefix('!') {
            Some(field) => met.var(absent(&header_variable(field), true)),
            None => met.var(absent(&header_variable(field), false)),
        },
        ("header_regexp", [.., field, pattern]) => met.var(rule(&header_variable(field), "~~", pattern)),
        ("remote_ip" | "client_ip", ranges) if !ranges.is_empty() && ranges[0] != "forwarded" => {
            let ranges = ranges.iter().flat_map(|range| match range.as_str() {
                "private_ranges" => PRIVATE_RANGES.map(str::to_owned).to_vec(),
                range => vec![range.to_owned()],
            });
            // The address of the connection is another one than the client's behind a trusted proxy.
            let variable = if line.name == "remote_ip" { "realip_remote_addr" } else { CLIENT_ADDRESS };
            met.var(Yaml::List(vec![Yaml::text(variable), Yaml::text("ipmatch"), Yaml::texts(ranges)]));
        }
        ("protocol", [protocol]) if ["http", "https"].contains(&protocol.as_str()) => {
            met.var(rule("scheme", "==", protocol));
        }
        ("protocol", [protocol]) if protocol == "grpc" => {
            met.var(rule("http_content_type", "~~", "^application/grpc"));
        }
        ("not", _) => met.add(none(line, path)),
        _ => return MatchedRequests::unknown(format!("`{}`: the condition is not converted", line.head())),
    }
    met
}

/// `not`: requests that do not meet all lines of its block, or its arguments.
fn none(line: &Directive, path: &PathState) -> MatchedRequests {
    let inner = of_definition(line, path);
    if inner.unknown.is_some() {
        return MatchedRequests::unknown(format!("`{}`: the condition is not converted", line.head()));
    }
    let mut met = MatchedRequests::default();
    match inner.conditions.negated() {
        _ if inner.is_never => {}
        Some(rule) => met.var(rule),
        None => met.is_never = true,
    }
    met
}

fn expression(located: LocatedPath, line: &Directive) -> MatchedRequests {
    let mut met = MatchedRequests::default();
    match located {
        LocatedPath::Pattern(pattern) => met.var(rule("uri", "~~", &pattern)),
        _ => return MatchedRequests::unknown(format!("`{}`: the path was rewritten before", line.head())),
    }
    met
}

/// One of several patterns of `path`.
fn paths(patterns: &[String], path: &PathState) -> MatchedRequests {
    let (mut uris, mut expressions) = (Vec::new(), Vec::new());
    for pattern in patterns {
        match path.located(pattern) {
            LocatedPath::Always => return MatchedRequests::default(),
            LocatedPath::Never => {}
            LocatedPath::Uri(uri) => uris.push(uri),
            LocatedPath::Pattern(pattern) => expressions.push(pattern),
            LocatedPath::Unknown => {
                let text = format!("`path {}`: the path was rewritten before", patterns.join(" "));
                return MatchedRequests::unknown(text);
            }
        }
    }
    let is_never = uris.is_empty() && expressions.is_empty();
    let mut met = MatchedRequests { is_never, ..MatchedRequests::default() };
    if expressions.is_empty() {
        met.conditions.uris = uris;
    } else {
        let exact = Conditions { uris, ..Conditions::default() };
        if let Some(Yaml::List(parts)) = exact.rules().pop()
            && let Some(Yaml::Text(pattern)) = parts.last()
        {
            expressions.insert(0, pattern.clone());
        }
        met.var(rule("uri", "~~", &expressions.join("|")));
    }
    met
}

fn hosts(hosts: &[String]) -> MatchedRequests {
    let mut met = MatchedRequests::default();
    match hosts.iter().find(|host| host.contains('{') || host.trim_start_matches("*.").contains('*')) {
        Some(host) => met.unknown = Some(format!("`host {host}`: only a label at the beginning can be a wildcard")),
        None => met.conditions.hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
    }
    met
}

fn header_variable(field: &str) -> String {
    match field_variable(field).as_str() {
        "host" => "host".to_owned(),
        field => format!("http_{field}"),
    }
}

/// A rule for a variable that is absent, or (`false`) present.
fn absent(variable: &str, is_absent: bool) -> Yaml {
    let operator = if is_absent { "==" } else { "~=" };
    Yaml::List(vec![Yaml::text(variable), Yaml::text(operator), Yaml::Null])
}

/// One of several values of a field; a value may begin or end with `*`.
fn header(field: &str, values: &[String]) -> MatchedRequests {
    let variable = header_variable(field);
    let mut met = MatchedRequests::default();
    match values {
        _ if values.iter().any(|value| value == "*") => met.var(absent(&variable, false)),
        _ if values.iter().any(|value| value.contains('{')) => {
            return MatchedRequests::unknown(format!("`header {field}` with a placeholder is not converted"));
        }
        [value] if !value.contains('*') => met.var(rule(&variable, "==", value)),
        values => {
            let pattern = |value: &String| {
                let (begin, rest) = value.strip_prefix('*').map_or(("^", value.as_str()), |rest| ("", rest));
                let (end, rest) = rest.strip_suffix('*').map_or(("$", rest), |rest| ("", rest));
                format!("{begin}{}{end}", regex_quoted(rest))
            };
            met.var(rule(&variable, "~~", &values.iter().map(pattern).collect::<Vec<_>>().join("|")));
        }
    }
    met
}

/// One of several values of a query argument.
fn query(name: &str, values: &[String]) -> MatchedRequests {
    let variable = format!("arg_{name}");
    let mut met = MatchedRequests::default();
    match values {
        _ if values.iter().any(|value| value == "*") => met.var(absent(&variable, false)),
        [value] => met.var(rule(&variable, "==", value)),
        values => met.var(Yaml::List(vec![Yaml::text(variable), Yaml::text("in"), Yaml::texts(values)])),
    }
    met
}
