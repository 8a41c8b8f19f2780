//! The conditions of a route, in a form that can be compared with those of other routes.

use crate::pattern::regex_quoted;
use crate::yaml::Yaml;

/// Conditions that must all be met. An empty list means no condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conditions {
    /// Paths, in the syntax of a route's `uri`.
    pub uris: Vec<String>,
    pub hosts: Vec<String>,
    pub methods: Vec<String>,
    pub vars: Vec<Yaml>,
}

impl Conditions {
    /// The intersection of both; `None` if no request meets both.
    pub(super) fn and(&self, other: &Conditions) -> Option<Conditions> {
        let mut vars = self.vars.clone();
        vars.extend(other.vars.iter().filter(|rule| !self.vars.contains(rule)).cloned());
        Some(Conditions {
            uris: both(&self.uris, &other.uris, uri_covers)?,
            hosts: both(&self.hosts, &other.hosts, host_covers)?,
            methods: both(&self.methods, &other.methods, |one, other| one == other)?,
            vars,
        })
    }

    /// Whether every request that meets `other` also meets these.
    pub(super) fn cover(&self, other: &Conditions) -> bool {
        let all = |wide: &[String], narrow: &[String], covers: fn(&str, &str) -> bool| {
            wide.is_empty() || !narrow.is_empty() && narrow.iter().all(|one| wide.iter().any(|own| covers(own, one)))
        };
        all(&self.uris, &other.uris, uri_covers)
            && all(&self.hosts, &other.hosts, host_covers)
            && all(&self.methods, &other.methods, |one, other| one == other)
            && self.vars.iter().all(|rule| other.vars.contains(rule))
    }

    /// The conditions as rules of `vars`.
    pub(super) fn rules(&self) -> Vec<Yaml> {
        let mut rules = Vec::new();
        if !self.uris.is_empty() {
            rules.push(rule("uri", "~~", &alternatives(&self.uris, uri_pattern)));
        }
        match self.hosts.as_slice() {
            [] => {}
            [host] if !host.starts_with('*') => rules.push(rule("host", "==", host)),
            hosts => rules.push(rule("host", "~~", &alternatives(hosts, host_pattern))),
        }
        match self.methods.as_slice() {
            [] => {}
            [method] => rules.push(rule("request_method", "==", method)),
            methods => {
                rules.push(Yaml::List(vec![Yaml::text("request_method"), Yaml::text("in"), Yaml::texts(methods)]));
            }
        }
        rules.extend(self.vars.iter().cloned());
        rules
    }

    /// A rule that is true if not all conditions are met; `None` if all requests meet them.
    pub(super) fn negated(&self) -> Option<Yaml> {
        let mut rules = self.rules();
        if rules.len() == 1 {
            return Some(negated(rules.remove(0)));
        }
        let mut all = vec![Yaml::text("!AND")];
        all.append(&mut rules);
        (all.len() > 1).then_some(Yaml::List(all))
    }
}

/// The intersection of two lists; an empty list means everything.
fn both(one: &[String], other: &[String], covers: fn(&str, &str) -> bool) -> Option<Vec<String>> {
    if one.is_empty() || other.is_empty() {
        return Some([one, other].concat());
    }
    let mut common: Vec<String> = Vec::new();
    for (left, right) in one.iter().flat_map(|left| other.iter().map(move |right| (left, right))) {
        let narrower = if covers(left, right) {
            right
        } else if covers(right, left) {
            left
        } else {
            continue;
        };
        if !common.contains(narrower) {
            common.push(narrower.clone());
        }
    }
    (!common.is_empty()).then_some(common)
}

/// Whether `wide` matches every path that `uri` matches.
pub(super) fn uri_covers(wide: &str, uri: &str) -> bool {
    wide == uri || wide.strip_suffix('*').is_some_and(|prefix| uri.starts_with(prefix))
}

/// Whether `wide` matches every host that `host` matches.
pub(super) fn host_covers(wide: &str, host: &str) -> bool {
    wide == host || wide.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix) && host.len() > suffix.len())
}

fn uri_pattern(uri: &str) -> String {
    match uri.strip_suffix('*') {
        Some(prefix) => format!("^{}", regex_quoted(prefix)),
        None => format!("^{}$", regex_quoted(uri)),
    }
}

fn host_pattern(host: &str) -> String {
    match host.strip_prefix("*.") {
        Some(domain) => format!("^[^.]+\\.{}$", regex_quoted(domain)),
        None => format!("^{}$", regex_quoted(host)),
    }
}

fn alternatives(texts: &[String], pattern: fn(&str) -> String) -> String {
    texts.iter().map(|text| pattern(text)).collect::<Vec<_>>().join("|")
}

/// A rule whose parts are all text.
pub(super) fn rule(variable: &str, operator: &str, constant: &str) -> Yaml {
    Yaml::texts([variable, operator, constant])
}

/// The negation of a rule.
fn negated(rule: Yaml) -> Yaml {
    let Yaml::List(mut parts) = rule else { return rule };
    let is = |part: &Yaml, text: &str| *part == Yaml::text(text);
    match parts.as_slice() {
        [first, ..] if is(first, "OR") => parts[0] = Yaml::text("!OR"),
        [first, ..] if is(first, "!OR") => parts[0] = Yaml::text("OR"),
        [first, ..] if is(first, "!AND") => parts[0] = Yaml::text("AND"),
        [_, operator, _] if is(operator, "==") => parts[1] = Yaml::text("~="),
        [_, operator, _] if is(operator, "~=") => parts[1] = Yaml::text("=="),
        [_, not, ..] if is(not, "!") => drop(parts.remove(1)),
        _ => parts.insert(1, Yaml::text("!")),
    }
    Yaml::List(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(uris: &[&str]) -> Conditions {
        Conditions { uris: uris.iter().map(|&uri| uri.to_owned()).collect(), ..Conditions::default() }
    }

    #[test]
    fn two_lists_of_paths_have_the_narrower_ones_in_common() {
        assert_eq!(paths(&["/a/*"]).and(&paths(&["/a/b", "/c"])), Some(paths(&["/a/b"])));
        assert_eq!(paths(&["/a*", "/b"]).and(&paths(&["/a/*", "/b*"])), Some(paths(&["/a/*", "/b"])));
        assert_eq!(paths(&["/a/*"]).and(&paths(&["/a"])), None);
        assert!(paths(&["/a*"]).cover(&paths(&["/ab"])) && !paths(&["/a/*"]).cover(&paths(&["/a*"])));
        assert!(Conditions::default().cover(&paths(&["/a"])) && !paths(&["/a"]).cover(&Conditions::default()));
    }

    #[test]
    fn a_negation_is_one_rule() {
        let mut conditions = paths(&["/a/*", "/b.c"]);
        assert_eq!(conditions.negated(), Some(Yaml::texts(["uri", "!", "~~", "^/a/|^/b\\.c$"])));
        conditions.methods = vec!["GET".to_owned()];
        let Some(Yaml::List(parts)) = conditions.negated() else { panic!("a rule") };
        assert_eq!((parts.len(), &parts[0]), (3, &Yaml::text("!AND")));
    }
}
