//! `valid_referers`, as rules on the field `Referer`.

use regex::Regex;

use super::scope::BlockScope;
use crate::pattern::{regex_quoted, supported};
use crate::yaml::Yaml;

/// The variable that nginx sets for requests that are not from the places of `valid_referers`.
pub(super) const INVALID: &str = "invalid_referer";

/// How a URL begins. nginx takes a shorter one for no URL.
const URL: &str = "^(?:http://.{4}|https://.{3})";

/// The rules that all hold for a request from elsewhere; `None` if there are no valid places, or they cannot be told.
pub(super) fn invalid(scope: &BlockScope) -> Option<Vec<Yaml>> {
    let lines = scope.all("valid_referers");
    let places: Vec<&str> = lines.iter().flat_map(|line| &line.arguments).map(String::as_str).collect();
    let has = |word: &str| places.contains(&word);
    // Without one, nginx leaves the variable empty.
    if places.is_empty() || has("blocked") && !has("none") {
        return None;
    }
    let mut patterns = Vec::new();
    for place in places.iter().filter(|place| !["none", "blocked"].contains(place)) {
        match *place {
            "server_names" => {
                let names = scope.server().iter().filter(|child| child.name == "server_name");
                let names = names.flat_map(|names| &names.arguments).filter(|name| !name.is_empty() && *name != "_");
                for name in names {
                    // An expression is for the host alone there, and for all that follows the scheme here.
                    patterns.push(of_place(name).filter(|_| !name.starts_with('~'))?);
                }
            }
            place => patterns.push(of_place(place)?),
        }
    }
    let rule = |words: &[&str]| Yaml::texts(["http_referer"].iter().chain(words));
    let is_elsewhere = match patterns.is_empty() {
        true => None,
        false => {
            let valid = format!("^https?://(?:{})", patterns.join("|"));
            Regex::new(&valid).ok()?;
            Some(rule(&["!", "~*", &valid]))
        }
    };
    let is_no_url_or = |rule_of_urls: Yaml| Yaml::List(vec![Yaml::text("OR"), rule(&["!", "~*", URL]), rule_of_urls]);
    Some(match (has("none"), has("blocked")) {
        // What is no URL is valid.
        (_, true) => [rule(&["~*", URL])].into_iter().chain(is_elsewhere).collect(),
        (true, false) => [rule(&["~~", "."])].into_iter().chain(is_elsewhere.map(is_no_url_or)).collect(),
        (false, false) => is_elsewhere.map(is_no_url_or).into_iter().collect(),
    })
}

/// An expression for what follows the scheme of a URL of this place: a host, which may have a `*` and a path, or an expression.
fn of_place(place: &str) -> Option<String> {
    if let Some(pattern) = place.strip_prefix('~') {
        let pattern = supported(pattern)?;
        // Only at the begin, a `^` is where the expression of nginx begins.
        return match pattern.strip_prefix('^') {
            Some(rest) if !rest.contains(['^', '|']) => Some(format!("(?:{rest})")),
            None if !pattern.contains('^') => Some(format!(".*(?:{pattern})")),
            _ => None,
        };
    }
    let (host, path) = place.find('/').map_or((place, ""), |slash| place.split_at(slash));
    let label = r"[^/:]+";
    let host = match (host.strip_prefix("*."), host.strip_prefix('.'), host.strip_suffix(".*")) {
        (Some(domain), _, _) => format!(r"{label}\.{}", regex_quoted(domain)),
        (_, Some(domain), _) => format!(r"(?:{label}\.)?{}", regex_quoted(domain)),
        (_, _, Some(begin)) => format!(r"{}\.{label}", regex_quoted(begin)),
        _ => regex_quoted(host),
    };
    let rest = match path.is_empty() {
        true => "(?:[/:]|$)".to_owned(),
        // nginx compares the case of a path.
        false => format!("(?::[^/]*)?(?-i:{})", regex_quoted(path)),
    };
    Some(format!("{host}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    /// Whether a request with this field is from elsewhere; an empty text stands for none.
    fn is_invalid(valid: &str, referer: &str) -> Option<bool> {
        let server = parse("t", &format!("server_name own.example; valid_referers {valid};")).expect("correct");
        let rules = invalid(&BlockScope::new(&[]).inside(&server))?;
        Some(rules.iter().all(|rule| holds(rule, referer)))
    }

    fn holds(rule: &Yaml, referer: &str) -> bool {
        let Yaml::List(parts) = rule else { panic!("a rule") };
        if parts[0] == Yaml::text("OR") {
            return parts[1..].iter().any(|rule| holds(rule, referer));
        }
        let words: Vec<&str> = parts.iter().map(|part| if let Yaml::Text(text) = part { text } else { "" }).collect();
        let is_match = |operator: &str, pattern: &str| {
            let flags = if operator == "~*" { "(?i)" } else { "" };
            Regex::new(&format!("{flags}{pattern}")).expect("correct").is_match(referer)
        };
        match words[..] {
            [_, "!", operator, pattern] => !is_match(operator, pattern),
            [_, operator, pattern] => is_match(operator, pattern),
            _ => panic!("{words:?}"),
        }
    }

    #[test]
    fn referers_are_valid_as_in_nginx() {
        let places = "server_names *.shop.example www.blog.* news.example/archive/ ~\\.search\\.";
        for (referer, invalid) in [
            ("http://own.example/", false),
            ("https://OWN.example", false),
            ("http://own.example:8080/a", false),
            ("http://own.example.evil.example/", true),
            ("http://evil.example/own.example", true),
            ("http://a.b.shop.example/x", false),
            ("http://shop.example/x", true),
            ("http://www.blog.example/x", false),
            ("http://news.example/archive/1", false),
            ("http://news.example/ARCHIVE/1", true),
            ("http://news.example/", true),
            ("http://www.search.example/", false),
            ("ftp://own.example/", true),
        ] {
            assert_eq!(is_invalid(places, referer), Some(invalid), "{referer}");
        }
        for (valid, missing, masked) in
            [(places, true, true), ("none own.example", false, true), ("none blocked own.example", false, false)]
        {
            assert_eq!(is_invalid(valid, ""), Some(missing), "{valid}");
            assert_eq!(is_invalid(valid, "XXXXXXXXXXXX"), Some(masked), "{valid}");
        }
        let server = parse("t", "server_name ~\\.example$; valid_referers server_names;").expect("correct");
        assert_eq!(invalid(&BlockScope::new(&[]).inside(&server)), None);
        for unknown in ["blocked own.example", "none ~(?=a)b", "none ~a^b"] {
            assert_eq!(is_invalid(unknown, ""), None, "{unknown}");
        }
    }
}
