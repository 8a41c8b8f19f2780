//! `echo` and the directives with it (module echo): texts as responses, and around those of upstreams.

use super::Conversion;
use super::location::Location;
use super::media_types;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables::{names, unknown_in_request};
use crate::answer::{answer, answer_behind_plugins};
use crate::yaml::Yaml;

/// What else a location with `echo` may have, so that its response is a text.
const DECIDING: [&str; 9] = [
    "echo_sleep",
    "echo_exec",
    "echo_location",
    "echo_location_async",
    "echo_subrequest",
    "echo_subrequest_async",
    "echo_duplicate",
    "echo_request_body",
    "echo_foreach_split",
];

/// The response of a location with `echo`, behind what controls access: nginx does that before. `None` if there is no `echo`, or the
/// response is not a text, which is reported.
pub(super) fn response(
    conversion: &mut Conversion,
    Location { directive: location, matching, scope, .. }: &Location,
    is_controlled: bool,
) -> Option<(String, Yaml)> {
    let own = |name: &'static str| location.children().iter().filter(move |child| child.name == name);
    let first = own("echo").next()?;
    if let Some(other) = location.children().iter().find(|child| DECIDING.contains(&child.name.as_str())) {
        conversion.lost(&other.place, format!("`{}`: only texts of `echo` are converted", other.head()));
        return None;
    }
    let text: String = own("echo").map(text).collect();
    if let Some(unknown) = unknown_in_request(&text) {
        conversion.lost(&first.place, format!("`{}`: Weir has no variable `${unknown}`", first.head()));
        return None;
    }
    let status = own("echo_status").next_back().and_then(|status| status.argument(0).parse().ok()).unwrap_or(200);
    let kind = media_types::of_text(scope, matching.path());
    Some(match is_controlled {
        true => answer_behind_plugins(status, &text, Some(kind)),
        false => answer(status, &text, Some(kind)),
    })
}

/// The text that a directive writes, with the line end after it.
fn text(directive: &Directive) -> String {
    let (words, end) = match directive.arguments.split_first() {
        Some((first, rest)) if first == "-n" => (rest, ""),
        _ => (directive.arguments.as_slice(), "\n"),
    };
    words.join(" ") + end
}

/// `echo_before_body` and `echo_after_body`, as the plugin `echo`.
pub(super) fn plugin(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let mut options = Vec::new();
    for (name, option) in [("echo_before_body", "before_body"), ("echo_after_body", "after_body")] {
        let lines = scope.all(name);
        let variable = lines.iter().find(|line| line.arguments.iter().any(|word| names(word).next().is_some()));
        if let Some(line) = variable {
            conversion.lost(&line.place, format!("`{}`: the texts of `echo` have no variables", line.head()));
            continue;
        }
        let text: String = lines.into_iter().map(text).collect();
        if !text.is_empty() {
            options.push((option.to_owned(), Yaml::text(text)));
        }
    }
    (!options.is_empty()).then(|| ("echo".to_owned(), Yaml::Map(options)))
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    fn converted(location: &str) -> (String, Vec<String>) {
        let text = format!("server {{ default_type text/css; proxy_redirect off; location / {{ {location} }} }}");
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        (converted.yaml().replace(['{', '}'], " ").split_whitespace().collect::<Vec<_>>().join(" "), found)
    }

    #[test]
    fn texts_are_responses_behind_what_controls_access() {
        let (yaml, found) = converted("echo -n a b; echo $host; echo_status 202;");
        let abort = r#"abort: http_status: 202 body: "a b$host\n" headers: Content-Type: text/css"#;
        assert!(yaml.replace(',', "").contains(abort), "{yaml}");
        assert_eq!(found, [""; 0]);
        let (yaml, _) = converted("allow 10.0.0.1; deny all; echo hi;");
        let mocked = r#"response_status: 200 response_example: "hi\n" content_type: text/css with_mock_header: false _meta: priority: 1"#;
        assert!(yaml.contains(mocked) && yaml.contains("ip-restriction"), "{yaml}");
    }

    #[test]
    fn texts_around_responses_of_upstreams_are_carried_over() {
        let (yaml, found) = converted("echo_before_body one; echo_after_body -n two; proxy_pass http://10.0.0.1:1;");
        assert!(yaml.contains(r#"echo: before_body: "one\n", after_body: two"#), "{yaml}");
        assert_eq!(found, [""; 0]);
        let (yaml, found) = converted("echo_before_body $host; proxy_pass http://10.0.0.1:1;");
        assert!(!yaml.contains("echo:") && found[0].contains("have no variables"), "{found:?}");
    }

    #[test]
    fn more_than_a_text_is_told() {
        for (location, told) in [
            ("echo_sleep 1; echo a;", "`echo_sleep 1`: only texts of `echo` are converted"),
            ("echo $echo_timer_elapsed;", "Weir has no variable `$echo_timer_elapsed`"),
        ] {
            let (yaml, found) = converted(location);
            assert!(yaml.contains("http_status: 404"), "{yaml}");
            assert!(found.iter().any(|found| found.contains(told)), "{found:?}");
        }
    }
}
