//! `more_set_headers`, `more_clear_headers` and the same for requests (module headers-more), as changes of fields. Unlike nginx's own
//! directives, those of outer blocks apply as well, before those of inner ones.

use std::num::ParseIntError;

use super::Conversion;
use super::directives::CLOSED;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::values::{NOT_EDITABLE, is_editable};
use super::variables::{renamed, unknown_in_answer, unknown_in_request};

const OF_RESPONSES: [&str; 2] = ["more_set_headers", "more_clear_headers"];
const OF_REQUESTS: [&str; 2] = ["more_set_input_headers", "more_clear_input_headers"];

/// A field that gets a value, or is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderFieldChange {
    pub name: String,
    /// Empty if the field is removed.
    pub value: String,
    /// The statuses of the responses that are changed; none are all.
    pub statuses: Vec<i64>,
}

/// The changes of responses at this place, in their order.
pub(super) fn of_responses(conversion: &mut Conversion, scope: &BlockScope) -> Vec<HeaderFieldChange> {
    let mut changes = Vec::new();
    for directive in scope.every().filter(|directive| OF_RESPONSES.contains(&directive.name.as_str())) {
        for (name, value, statuses) in parts(conversion, directive) {
            let value = renamed(value);
            if let Some(unknown) = unknown_in_answer(&value) {
                conversion.lost(&directive.place, format!("`{}`: Weir has no variable `${unknown}`", directive.head()));
                continue;
            }
            changes.push(HeaderFieldChange { name: name.to_owned(), value, statuses });
        }
    }
    changes
}

/// The directives that change responses with some statuses only.
pub(super) fn with_statuses<'a>(scope: &BlockScope<'a>) -> Vec<&'a Directive> {
    let is_it = |directive: &&Directive| {
        OF_RESPONSES.contains(&directive.name.as_str()) && directive.arguments.iter().any(|argument| argument == "-s")
    };
    scope.every().filter(is_it).collect()
}

/// The changes of requests at this place, each as a directive with the name and the value of the field. `set`: the lines that set fields
/// for the upstream, which nginx does later.
pub(super) fn of_requests(conversion: &mut Conversion, scope: &BlockScope, set: &[&Directive]) -> Vec<Directive> {
    let mut changes: Vec<Directive> = Vec::new();
    for directive in scope.every().filter(|directive| OF_REQUESTS.contains(&directive.name.as_str())) {
        for (name, value, _) in parts(conversion, directive) {
            let is_it = |other: &Directive| other.argument(0).eq_ignore_ascii_case(name);
            let why = match name.to_ascii_lowercase().as_str() {
                "host" => Some("write `pass_host` and `upstream_host` of the upstream".to_owned()),
                _ => unknown_in_request(value).map(|unknown| format!("Weir has no variable `${unknown}`")),
            };
            if let Some(why) = why {
                tell(conversion, directive, &why);
                continue;
            }
            changes.retain(|earlier| !is_it(earlier));
            if set.iter().any(|&later| is_it(later)) {
                continue;
            }
            let text = format!(
                "`{}`: the upstream gets the field so; conditions, `auth_basic` and logs see that of the client",
                directive.head()
            );
            conversion.differs_here_first("input fields", &directive.place, text);
            let arguments = vec![name.to_owned(), value.to_owned()];
            changes.push(Directive { arguments, block: None, ..directive.clone() });
        }
    }
    changes
}

/// The names and values of the fields of a directive, and the statuses that it is for. Without a value, the field is removed.
fn parts<'d>(conversion: &mut Conversion, directive: &'d Directive) -> Vec<(&'d str, &'d str, Vec<i64>)> {
    let read = ReadDirective::of(directive);
    let Ok(statuses) = read.statuses() else {
        tell(conversion, directive, "name the statuses as numbers");
        return Vec::new();
    };
    if let Some(option) = read.option {
        let why = match option {
            "-t" => "a change for some media types only has no counterpart; see `vars` of `response-rewrite`",
            "-a" => "write `headers.add` of `response-rewrite`",
            _ => "a change only of a field that is there has no counterpart",
        };
        tell(conversion, directive, why);
        return Vec::new();
    }
    let mut parts = Vec::new();
    for (name, value) in read.fields {
        if name.contains('*') || !is_editable(name) {
            let why = if name.contains('*') { "name each field that is removed" } else { NOT_EDITABLE };
            tell(conversion, directive, why);
            continue;
        }
        parts.push((name, value, statuses.clone()));
    }
    parts
}

/// Reports that a directive is not converted, and whether that closes its routes.
fn tell(conversion: &mut Conversion, directive: &Directive, why: &str) {
    let closed = if ReadDirective::of(directive).leaves_open() { format!("; {CLOSED}") } else { String::new() };
    conversion.lost(&directive.place, format!("`{}`: {why}{closed}", directive.head()));
}

/// Whether a field that a directive removes, or puts in the place of one of clients, would be passed on.
pub(super) fn is_open(scope: &BlockScope) -> bool {
    let known = |directive: &&Directive| {
        OF_RESPONSES.contains(&directive.name.as_str()) || OF_REQUESTS.contains(&directive.name.as_str())
    };
    scope.every().filter(known).any(|directive| ReadDirective::of(directive).leaves_open())
}

/// The arguments of a directive.
struct ReadDirective<'d> {
    is_of_request: bool,
    /// The first option that has no counterpart.
    option: Option<&'d str>,
    statuses: Vec<&'d str>,
    /// The names and the values, which are empty for fields that are removed.
    fields: Vec<(&'d str, &'d str)>,
}

impl ReadDirective<'_> {
    fn of(directive: &Directive) -> ReadDirective<'_> {
        let is_of_request = OF_REQUESTS.contains(&directive.name.as_str());
        let is_cleared = directive.name.starts_with("more_clear");
        let mut read = ReadDirective { is_of_request, option: None, statuses: Vec::new(), fields: Vec::new() };
        let mut arguments = directive.arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "-s" => read.statuses.extend(arguments.next().into_iter().flat_map(|list| list.split_whitespace())),
                option @ ("-t" | "-a" | "-r") => {
                    read.option = read.option.or(Some(option));
                    if option == "-t" {
                        arguments.next();
                    }
                }
                field => read.fields.push(match field.split_once(':') {
                    Some((name, value)) if !is_cleared => (name.trim(), value.trim()),
                    Some((name, _)) => (name.trim(), ""),
                    None => (field.trim(), ""),
                }),
            }
        }
        read
    }

    fn statuses(&self) -> Result<Vec<i64>, ParseIntError> {
        self.statuses.iter().map(|status| status.parse()).collect()
    }

    /// Whether a field is not removed or replaced, so that more is passed on than by nginx.
    fn leaves_open(&self) -> bool {
        let is_lost = self.option.is_some() || self.statuses().is_err();
        self.fields.iter().any(|(name, value)| {
            let is_host = name.eq_ignore_ascii_case("host");
            let replaces = value.is_empty() || self.is_of_request && !is_host;
            let is_this_lost = is_lost || self.is_of_request && (is_host || unknown_in_request(value).is_some());
            // The gateway writes the others itself.
            replaces && (name.contains('*') || is_editable(name) && is_this_lost)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// The plugins of the route on one line, and the findings.
    fn converted(http: &str, location: &str) -> (String, Vec<String>) {
        let text = format!("{http} server {{ proxy_redirect off; location / {{ {location} proxy_pass http://a; }} }}");
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        let yaml = converted.yaml().replace(['{', '}', '"', ','], " ").split_whitespace().collect::<Vec<_>>().join(" ");
        (yaml.split_once("plugins: ").map_or_else(String::new, |(_, plugins)| plugins.to_owned()), found)
    }

    #[test]
    fn fields_of_outer_blocks_come_before_those_of_inner_ones() {
        let outer = "more_set_headers 'X-A: one' 'X-B: $host'; more_clear_headers X-C;";
        let (plugins, found) = converted(outer, "more_set_headers 'X-A: two' 'X-B:' 'X-C: three';");
        assert_eq!(plugins, "response-rewrite: headers: set: X-A: two X-C: three remove: [X-B]");
        assert_eq!(found, [""; 0]);
        let (plugins, _) = converted(outer, "add_header X-A more always;");
        assert!(plugins.contains("set: X-A: [one more] X-B: $host remove: [X-C]"), "{plugins}");
    }

    #[test]
    fn changes_for_some_statuses_are_the_condition_of_all_or_told() {
        let (plugins, found) = converted("", "more_set_headers -s '404 500' 'X-A: b';");
        assert_eq!(plugins, "response-rewrite: headers: set: X-A: b vars: - [status in [404 500]]");
        assert_eq!(found, [""; 0]);
        let (plugins, found) = converted("more_set_headers 'X-B: c';", "more_set_headers -s 404 'X-A: b';");
        assert_eq!(plugins, "response-rewrite: headers: set: X-B: c");
        assert!(
            found[0].contains("`more_set_headers -s 404 X-A: b`: `response-rewrite` has one condition"),
            "{found:?}"
        );
    }

    #[test]
    fn fields_for_the_upstream_are_changed_unless_they_are_set_later() {
        let changes = "more_set_input_headers 'X-A: b' 'X-B: c'; more_clear_input_headers X-C; proxy_set_header X-B d;";
        let (plugins, found) = converted("", changes);
        assert_eq!(plugins, "proxy-rewrite: headers: set: X-A: b X-B: d remove: [X-C]");
        assert!(found.len() == 1 && found[0].contains("see that of the client"), "{found:?}");
    }

    #[test]
    fn changes_without_a_counterpart_are_told_and_not_done() {
        for (directive, told) in [
            ("more_set_headers -t text/html 'X-A: b';", "for some media types only"),
            ("more_set_headers -s all 'X-A: b';", "name the statuses as numbers"),
            ("more_clear_headers 'X-*';", "name each field that is removed"),
            ("more_set_headers 'Connection: close';", "the gateway writes this field itself"),
            ("more_set_headers 'X-A: $tenant';", "Weir has no variable `$tenant`"),
            ("more_set_input_headers -r 'X-A: b';", "only of a field that is there"),
            ("more_set_input_headers 'Host: a';", "write `pass_host`"),
        ] {
            let (plugins, found) = converted("", directive);
            assert!(!plugins.contains("rewrite"), "{directive}: {plugins}");
            assert!(found.len() == 1 && found[0].contains(told), "{directive}: {found:?}");
        }
    }

    #[test]
    fn fields_that_would_be_passed_on_close_their_routes() {
        for (directive, is_closed) in [
            ("more_clear_input_headers 'X-User-*';", true),
            ("more_clear_input_headers -t text/html X-User;", true),
            ("more_clear_input_headers Host;", true),
            ("more_set_input_headers -r 'X-User: b';", true),
            ("more_set_input_headers 'X-User: $tenant';", true),
            ("more_clear_headers 'X-*';", true),
            ("more_set_headers -t text/html 'X-A:';", true),
            ("more_clear_headers -s all X-A;", true),
            ("more_set_headers -t text/html 'X-A: b';", false),
            ("more_clear_headers Connection;", false),
            ("more_clear_input_headers X-User;", false),
        ] {
            let (plugins, found) = converted("", directive);
            assert_eq!(plugins.contains("http_status: 503"), is_closed, "{directive}: {plugins}");
            let is_told = found.iter().any(|found| found.contains("answer with 503"));
            assert_eq!(is_told, is_closed, "{directive}: {found:?}");
        }
    }
}
