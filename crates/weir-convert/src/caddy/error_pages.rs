//! `handle_errors` with a text, as `error-page`.

use super::answers::content_type;
use super::instead::instead;
use crate::directive::Directive;
use crate::output::Converted;
use crate::yaml::{Yaml, YamlMembers};

/// The statuses with pages of their own; `4xx` and `5xx` are those of all others.
const STATUSES: [&str; 12] = ["400", "401", "403", "404", "413", "429", "500", "502", "503", "504", "4xx", "5xx"];

/// The plugin for the pages of a site. What is not a text is reported.
pub(super) fn plugin(converted: &mut Converted, site: &Directive) -> Option<(String, Yaml)> {
    let mut pages = YamlMembers::new();
    for errors in site.children().iter().filter(|child| child.name == "handle_errors") {
        let Some((body, kind)) = text(site, errors) else {
            let text = format!("`{}`: {}", errors.head(), instead("handle_errors"));
            converted.lost(&errors.place, text);
            continue;
        };
        let statuses = match errors.arguments.as_slice() {
            [] => vec!["4xx", "5xx"],
            statuses => statuses.iter().map(String::as_str).collect(),
        };
        for status in statuses {
            let name = format!("error_{status}");
            if pages.iter().all(|(known, _)| *known != name) {
                pages.push((name, Yaml::map([("body", Yaml::text(body)), ("content_type", Yaml::text(kind))])));
            }
        }
    }
    (!pages.is_empty()).then(|| ("error-page".to_owned(), Yaml::Map(pages)))
}

/// The text of a block, and its type; `None` if the block does more, or has statuses without pages.
fn text<'d>(site: &Directive, errors: &'d Directive) -> Option<(&'d str, &'static str)> {
    let [respond] = errors.children() else { return None };
    let [body] = respond.arguments.as_slice() else { return None };
    // Placeholders, matchers and statuses; the answer of a service for `forward_auth` is no error in Caddy.
    let is_plain = !body.contains('{') && !body.starts_with(['@', '/', '*']) && body.parse::<u16>().is_err();
    let are_known = errors.arguments.iter().all(|status| STATUSES.contains(&status.as_str()));
    let is_text = respond.name == "respond" && respond.block.is_none() && is_plain && are_known;
    let kind = content_type(body).filter(|_| is_text && !asks(site))?;
    Some((body, kind))
}

/// Whether a block asks a service whether requests may pass.
fn asks(block: &Directive) -> bool {
    block.children().iter().any(|child| child.name == "forward_auth" || asks(child))
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    fn converted(errors: &str) -> (String, Vec<String>) {
        let text = format!("http://a.example {{\n{errors}\n\treverse_proxy 10.0.0.1:80\n}}\n");
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        (converted.yaml().replace(['{', '}', '"'], " ").split_whitespace().collect::<Vec<_>>().join(" "), found)
    }

    #[test]
    fn texts_for_errors_are_pages() {
        let (yaml, found) = converted(
            "\thandle_errors 404 {\n\t\trespond `none`\n\t}\n\thandle_errors {\n\t\trespond \"try later\"\n\t}",
        );
        let kind = "content_type: text/plain; charset=utf-8";
        let expected = format!(
            "error-page: error_404: body: none, {kind} error_4xx: body: try later, {kind} error_5xx: body: try later, {kind}"
        );
        assert!(yaml.contains(&expected), "{yaml}");
        assert!(!found.iter().any(|found| found.contains("handle_errors")), "{found:?}");
    }

    #[test]
    fn a_response_that_is_no_error_has_no_page() {
        let (yaml, _) = converted(
            "\thandle_errors {\n\t\trespond \"try later\"\n\t}\n\trespond /old* \"none\" 404\n\terror /bad* 400",
        );
        let routes: Vec<&str> = yaml.split("- id: ").collect();
        let has = |path: &str| routes.iter().any(|route| route.contains(path) && route.contains("error-page"));
        assert_eq!([has("uri: /old*"), has("uri: /bad*"), has("upstream:")], [false, true, true], "{yaml}");
    }

    #[test]
    fn pages_that_are_no_texts_are_told() {
        for errors in [
            "\thandle_errors {\n\t\trespond \"{err.status_code}\"\n\t}",
            "\thandle_errors {\n\t\trespond \"none\" 200\n\t}",
            "\thandle_errors 410 {\n\t\trespond \"gone\"\n\t}",
            "\thandle_errors {\n\t\trewrite * /error.html\n\t\tfile_server\n\t}",
            "\tforward_auth 10.0.0.2:80 {\n\t\turi /check\n\t}\n\thandle_errors {\n\t\trespond \"none\"\n\t}",
        ] {
            let (yaml, found) = converted(errors);
            assert!(!yaml.contains("error-page:"), "{errors}: {yaml}");
            let is_told =
                found.iter().any(|found| found.contains("handle_errors") && found.contains("write `error-page`"));
            assert!(is_told, "{errors}: {found:?}");
        }
    }
}
