//! The variables of nginx that have the same name and meaning in Weir.

use regex::Regex;
use weir_plugin::{ExchangePhase, Variable};

use super::syntax::Directive;

/// The names of the variables in a text.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('$').skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        rest.split(|char: char| !char.is_ascii_alphanumeric() && char != '_').next().filter(|name| !name.is_empty())
    })
}

/// A variable in the text that has no value in Weir before there is a response: the file defines it, or only nginx has it.
pub(super) fn unknown_in_request(text: &str) -> Option<&str> {
    names(text).find(|name| !is_known(name, ExchangePhase::Request))
}

/// The same for texts that become a part of the response, such as `add_header`.
pub(super) fn unknown_in_answer(text: &str) -> Option<&str> {
    names(text).find(|name| !is_known(name, ExchangePhase::Answer))
}

/// Whether the variable has a value when a route is chosen.
pub(super) fn is_known_for_routes(name: &str) -> bool {
    is_known(name, ExchangePhase::Routing)
}

/// Groups of regular expressions count as known; where there are none, the caller looks for them.
fn is_known(name: &str, phase: ExchangePhase) -> bool {
    // In nginx, this is a name of the server block; `name_server` puts it in the place of the variable.
    if name == "server_name" {
        return false;
    }
    Variable::parse(name).and_then(|variable| variable.since()).is_some_and(|since| since <= phase)
}

/// Whether the variable has the path or the query of a request, or a part of them, which directives may change.
pub(super) fn is_of_path(name: &str) -> bool {
    ["uri", "document_uri", "args", "is_args", "query_string"].contains(&name) || name.starts_with("arg_")
}

/// The text with the names that variables have in Weir, where they differ.
pub(super) fn renamed(text: &str) -> String {
    text.replace("${upstream_cache_status}", "$upstream_cache_status")
        .replace("$upstream_cache_status", "${sent_http_apisix_cache_status}")
}

/// A format of log lines with `-` in the place of variables that Weir has not, and their names.
pub(super) fn without_unknown(format: &str) -> (String, Vec<String>) {
    // In a log record, `$server_name` is the host.
    let is_unknown = |name: &&str| *name != "server_name" && !is_known(name, ExchangePhase::Record);
    let mut unknown: Vec<String> = names(format).filter(is_unknown).map(str::to_owned).collect();
    // A name may begin with another one.
    unknown.sort_by_key(|name| std::cmp::Reverse(name.len()));
    unknown.dedup();
    let format = unknown.iter().fold(format.to_owned(), |format, name| {
        format.replace(&format!("${{{name}}}"), "-").replace(&format!("${name}"), "-")
    });
    (format, unknown)
}

/// Whether the text uses a group of a regular expression.
pub(super) fn has_groups(text: &str) -> bool {
    names(text).any(|name| name.starts_with(|char: char| char.is_ascii_digit() && char != '0'))
}

/// The text with numbers in the place of the names of an expression's groups. nginx reads one digit as the number of a group, and Weir
/// all that follow each other, so a number is set off from a digit behind it.
pub(super) fn numbered(text: &str, pattern: Option<&str>) -> String {
    let expression = pattern.and_then(|pattern| Regex::new(pattern).ok());
    let number = |name: &str| expression.as_ref()?.capture_names().position(|group| group == Some(name));
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (group, rest) = match group_name(part) {
            Some((name, rest)) => match number(name) {
                Some(number) => (number.to_string(), rest),
                None => (String::new(), part),
            },
            None if part.starts_with(|first| ('1'..='9').contains(&first)) => (part[..1].to_owned(), &part[1..]),
            None => (String::new(), part),
        };
        out.push('$');
        match !group.is_empty() && rest.starts_with(|next: char| next.is_ascii_digit()) {
            true => out.extend(["{", &group, "}"]),
            false => out.push_str(&group),
        }
        out.push_str(rest);
    }
    out
}

/// The name behind a `$`, in braces or not, that may be one of a group, and the text behind it.
fn group_name(part: &str) -> Option<(&str, &str)> {
    if let Some(braced) = part.strip_prefix('{') {
        return braced.split_once('}');
    }
    let end = part.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(part.len());
    (!part.starts_with(|first: char| first.is_ascii_digit()) && end > 0).then(|| part.split_at(end))
}

/// Puts the first name of a server in the place of `$server_name`, in all arguments of its block.
pub(super) fn name_server(server: &mut Directive) {
    let first = server.children().iter().find(|child| child.name == "server_name");
    let name = first.map_or("", |names| names.argument(0)).to_owned();
    if name.starts_with('~') {
        return;
    }
    let name = name.strip_prefix('.').unwrap_or(&name).to_owned();
    for child in server.block.iter_mut().flatten().filter(|child| child.name != "server_name") {
        replace(child, &name);
    }
}

fn replace(directive: &mut Directive, name: &str) {
    for argument in directive.arguments.iter_mut().filter(|argument| argument.contains("server_name")) {
        *argument = with_name(&argument.replace("${server_name}", name), name);
    }
    directive.block.iter_mut().flatten().for_each(|child| replace(child, name));
}

fn with_name(text: &str, name: &str) -> String {
    let mut parts = text.split("$server_name");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // A longer name is another variable.
        let is_longer = part.starts_with(|char: char| char.is_ascii_alphanumeric() || char == '_');
        out.push_str(if is_longer { "$server_name" } else { name });
        out.push_str(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    #[test]
    fn only_variables_with_a_value_are_known() {
        assert_eq!(unknown_in_request("$host:$server_port$is_args${arg_a} costs 5$"), None);
        assert_eq!(unknown_in_request("a $upstream_addr"), Some("upstream_addr"));
        assert_eq!(unknown_in_answer("a $upstream_addr $tenant"), Some("tenant"));
        assert!(is_known_for_routes("http_x") && !is_known_for_routes("bad") && !is_known_for_routes("server_name"));
        assert!(has_groups("a${1}") && !has_groups("$arg_1"));
    }

    #[test]
    fn the_name_of_a_server_stands_for_its_variable() {
        let mut server = parse("t", "server { server_name .a.example b; if ($x) { return 301 http://$server_name/${server_name}$server_names; } }")
            .expect("correct")
            .remove(0);
        name_server(&mut server);
        assert_eq!(server.children()[1].children()[0].argument(1), "http://a.example/a.example$server_names");
    }
}
