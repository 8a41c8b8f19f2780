//! `proxy_redirect` and the `proxy_cookie_` directives, as `reverse-rewrite`: what responses say about the address of their upstream.

use super::Conversion;
use super::constants::with_value;
use super::location::Matching;
use super::proxy;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::target::PassTarget;
use super::variables::{has_groups, numbered, renamed, unknown_in_answer};
use crate::pattern::supported;
use crate::yaml::{Yaml, YamlMembers};

const REDIRECT: &str = "proxy_redirect";
const COOKIE_DOMAIN: &str = "proxy_cookie_domain";
const COOKIE_PATH: &str = "proxy_cookie_path";
const COOKIE_FLAGS: &str = "proxy_cookie_flags";
/// The flags, whose names are the same in nginx and in the plugin.
const KNOWN_FLAGS: [&str; 8] =
    ["secure", "nosecure", "httponly", "nohttponly", "samesite=strict", "samesite=lax", "samesite=none", "nosamesite"];

/// The most rules of a list of the plugin.
const MOST_RULES: usize = 32;
/// The longest text of a rule, in bytes.
const MOST_TEXT: usize = 2048;

/// The plugin for the directives in effect at a `proxy_pass`.
pub(super) fn plugin(
    conversion: &mut Conversion,
    scope: &BlockScope,
    pass: &Directive,
    matching: &Matching,
) -> Option<(String, Yaml)> {
    // There are no such directives for `grpc_pass`.
    if pass.name != "proxy_pass" {
        return None;
    }
    // Where a variable names the upstream, only `default` and `$proxy_host` are not known.
    let target = PassTarget::of(pass);
    let target = target.as_ref();
    let flags = flags(conversion, scope);
    let options = [
        ("redirects", redirects(conversion, scope, (pass, target), matching)),
        ("cookie_domains", rules(conversion, scope, COOKIE_DOMAIN, target)),
        ("cookie_paths", rules(conversion, scope, COOKIE_PATH, target)),
        ("cookie_flags", flags),
    ];
    let given = options.into_iter().filter(|(_, rules)| !rules.is_empty());
    let options: YamlMembers = given.map(|(option, rules)| (option.to_owned(), Yaml::List(rules))).collect();
    (!options.is_empty()).then(|| ("reverse-rewrite".to_owned(), Yaml::Map(options)))
}

/// The directives of a name; none if they are off.
fn in_effect<'a>(scope: &BlockScope<'a>, name: &str) -> Vec<&'a Directive> {
    let directives = scope.all(name);
    let are_off = directives.iter().any(|directive| directive.arguments == ["off"]);
    if are_off { Vec::new() } else { directives }
}

fn lost(conversion: &mut Conversion, directive: &Directive, why: &str) {
    conversion.lost(&directive.place, format!("`{}`: {why}", directive.head()));
}

fn redirects(
    conversion: &mut Conversion,
    scope: &BlockScope,
    (pass, target): (&Directive, Option<&PassTarget>),
    matching: &Matching,
) -> Vec<Yaml> {
    let default = target.and_then(|target| default_rule(pass, target, matching));
    if scope.all(REDIRECT).is_empty() {
        // An upstream that gets the `Host` and the path of the client has no other name for itself.
        let is_needed = target.is_some_and(|target| {
            let is_elsewhere = target.path.is_some() && target.path != matching.path();
            is_elsewhere || proxy::host(conversion, scope, target) == Some(target.authority)
        });
        return default.filter(|_| is_needed).into_iter().collect();
    }
    let mut rules = Vec::new();
    for directive in in_effect(scope, REDIRECT) {
        let added = match directive.arguments.as_slice() {
            [word] if word == "default" => default.clone(),
            _ => rule(conversion, directive, target),
        };
        add(conversion, directive, added, &mut rules);
    }
    without_last_unchanging(rules)
}

/// Adds the rule of a directive to a list that takes further ones.
fn add(conversion: &mut Conversion, directive: &Directive, rule: Option<Yaml>, rules: &mut Vec<Yaml>) {
    match rule {
        Some(_) if rules.len() == MOST_RULES => {
            lost(conversion, directive, &format!("a list of `reverse-rewrite` has at most {MOST_RULES} rules"));
        }
        rule => rules.extend(rule),
    }
}

/// The rules of a list without those at its end that change nothing. Before other rules, they keep values from these.
fn without_last_unchanging(mut rules: Vec<Yaml>) -> Vec<Yaml> {
    let changes = |rule: &Yaml| rule.member("from") != rule.member("to");
    rules.truncate(rules.iter().rposition(changes).map_or(0, |last| last + 1));
    rules
}

/// The rule of `default`: the URL of `proxy_pass` becomes the path of the location. nginx has none if the URL contains a variable.
fn default_rule(pass: &Directive, target: &PassTarget, matching: &Matching) -> Option<Yaml> {
    let url = Some(pass.argument(0)).filter(|url| !url.contains('$'))?;
    let (from, to) = match target.path {
        None => (format!("{url}/"), "/"),
        // With an expression, nginx refuses a path in `proxy_pass`.
        Some(_) => (url.to_owned(), matching.path()?),
    };
    Some(Yaml::map([("from", Yaml::text(from)), ("to", Yaml::text(to.replace('$', "\\$")))]))
}

fn rules(conversion: &mut Conversion, scope: &BlockScope, name: &str, target: Option<&PassTarget>) -> Vec<Yaml> {
    let mut rules = Vec::new();
    for directive in in_effect(scope, name) {
        let added = rule(conversion, directive, target);
        add(conversion, directive, added, &mut rules);
    }
    without_last_unchanging(rules)
}

/// The rule of a directive with a value and what takes its place.
fn rule(conversion: &mut Conversion, directive: &Directive, target: Option<&PassTarget>) -> Option<Yaml> {
    let [from, to] = directive.arguments.as_slice() else {
        lost(conversion, directive, "it has two values");
        return None;
    };
    let (to, _) = without_flags(directive, to);
    let (expression, ignores_case) = expression(from, directive.name == COOKIE_DOMAIN);
    let pattern = expression.map(supported);
    if pattern == Some(None) {
        lost(conversion, directive, "look-around and back-references are not supported");
        return None;
    }
    let pattern = pattern.flatten();
    if pattern.as_ref().is_some_and(String::is_empty) || pattern.is_none() && from.is_empty() {
        lost(conversion, directive, "the replaced value is empty");
        return None;
    }
    let here = |text: &str| match target {
        Some(target) => renamed(&with_value(text, "proxy_host", target.authority)),
        None => renamed(text),
    };
    let (from, to) = (here(from), numbered(&here(to), pattern.as_deref()));
    if pattern.is_none() && (has_groups(&to) || has_groups(&from)) {
        lost(conversion, directive, "groups of another expression are not known here");
        return None;
    }
    let texts = [to.as_str(), if pattern.is_some() { "" } else { from.as_str() }];
    if let Some(unknown) = texts.into_iter().find_map(unknown_in_answer) {
        lost(conversion, directive, &format!("Weir has no variable `${unknown}`"));
        return None;
    }
    if [&from, &to].into_iter().any(|text| text.len() > MOST_TEXT) {
        lost(conversion, directive, &format!("a text of a rule has at most {MOST_TEXT} bytes"));
        return None;
    }
    let mut members = match pattern {
        Some(pattern) => vec![("regex".to_owned(), Yaml::text(pattern))],
        None => vec![("from".to_owned(), Yaml::text(from))],
    };
    if ignores_case {
        members.push(("ignore_case".to_owned(), Yaml::Boolean(true)));
    }
    members.push(("to".to_owned(), Yaml::text(to)));
    Some(Yaml::Map(members))
}

/// The expression in a value, and whether it ignores case. `always`: it does so in any case.
fn expression(value: &str, always: bool) -> (Option<&str>, bool) {
    match value.strip_prefix('~') {
        None => (None, false),
        Some(rest) if always => (Some(rest), true),
        Some(rest) => rest.strip_prefix('*').map_or((Some(rest), false), |rest| (Some(rest), true)),
    }
}

/// What takes the place of a value, and the flags that follow it, as in `proxy_cookie_path / "/; Secure"`: before nginx had a directive
/// for flags, this was how cookies got them.
fn without_flags<'t>(directive: &Directive, to: &'t str) -> (&'t str, Option<&'t str>) {
    match to.split_once(';').filter(|_| directive.name != REDIRECT) {
        Some((to, flags)) => (to.trim_end(), Some(flags)),
        None => (to, None),
    }
}

/// The rules for flags of cookies.
fn flags(conversion: &mut Conversion, scope: &BlockScope) -> Vec<Yaml> {
    let mut rules = Vec::new();
    for directive in in_effect(scope, COOKIE_FLAGS) {
        let added = flags_of(conversion, directive);
        add(conversion, directive, added, &mut rules);
    }
    for directive in in_effect(scope, COOKIE_PATH).into_iter().chain(in_effect(scope, COOKIE_DOMAIN)) {
        let (_, Some(flags)) = without_flags(directive, directive.argument(1)) else { continue };
        let Some(flags) = known_flags(flags.split(';')).filter(|_| rules.is_empty()) else {
            lost(conversion, directive, "write the flags in one rule of `cookie_flags`");
            continue;
        };
        let text = format!("`{}`: all cookies get these flags", directive.head());
        conversion.differs(&directive.place, text);
        rules.push(Yaml::map([("flags", flags)]));
    }
    rules
}

/// The rule of one `proxy_cookie_flags`.
fn flags_of(conversion: &mut Conversion, directive: &Directive) -> Option<Yaml> {
    let flags = known_flags(directive.after_first().iter().map(String::as_str));
    let (expression, _) = expression(directive.argument(0), true);
    let pattern = expression.map(supported);
    let is_name = (1..=MOST_TEXT).contains(&directive.argument(0).len());
    let is_known = is_name && !directive.argument(0).contains('$') && pattern != Some(None);
    let (Some(flags), true) = (flags, is_known) else {
        lost(conversion, directive, "write `cookie_flags` of `reverse-rewrite`");
        return None;
    };
    let mut members = match pattern.flatten() {
        None => vec![("name".to_owned(), Yaml::text(directive.argument(0)))],
        // All cookies.
        Some(pattern) if pattern.is_empty() => Vec::new(),
        Some(pattern) => {
            vec![("regex".to_owned(), Yaml::text(pattern)), ("ignore_case".to_owned(), Yaml::Boolean(true))]
        }
    };
    members.push(("flags".to_owned(), flags));
    Some(Yaml::Map(members))
}

/// The flags, each once; `None` if there are none, unknown ones, or two for the same attribute.
fn known_flags<'t>(flags: impl Iterator<Item = &'t str>) -> Option<Yaml> {
    let mut known: Vec<String> = Vec::new();
    for flag in flags.map(|flag| flag.trim().to_ascii_lowercase()).filter(|flag| !flag.is_empty()) {
        if known.contains(&flag) {
            continue;
        }
        let is_taken = known.iter().any(|other| flagged(other) == flagged(&flag));
        if is_taken || !KNOWN_FLAGS.contains(&flag.as_str()) {
            return None;
        }
        known.push(flag);
    }
    (!known.is_empty()).then(|| Yaml::texts(known))
}

/// The attribute that a flag sets or removes.
fn flagged(flag: &str) -> &str {
    let flag = flag.strip_prefix("no").unwrap_or(flag);
    flag.split_once('=').map_or(flag, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::super::convert;
    use crate::yaml::Yaml;

    /// The plugin of a location with these directives, without quotes, and the findings about them.
    fn plugin(location: &str, directives: &str) -> (String, Vec<String>) {
        plugin_with("", location, directives)
    }

    /// The same, with directives before the server.
    fn plugin_with(before: &str, location: &str, directives: &str) -> (String, Vec<String>) {
        let text = format!(
            "{before} server {{ server_name s.example; proxy_set_header Host $host; {location} {{ {directives} }} }}"
        );
        let converted = convert("n", &text, &|_| Ok(Vec::new())).expect("correct");
        let plugins = converted.routes.iter().flat_map(|route| &route.members).filter(|(name, _)| name == "plugins");
        let options = plugins.filter_map(|(_, plugins)| plugins.member("reverse-rewrite")).map(Yaml::flow).next();
        let findings = converted.findings.iter().map(ToString::to_string);
        (options.unwrap_or_default().replace('"', ""), findings.filter(|found| !found.contains("%2F")).collect())
    }

    #[test]
    fn redirects_become_rules() {
        let here = |directives: &str| plugin("location /a/", &format!("{directives} proxy_pass http://up/b/;"));
        let default = "{ redirects: [{ from: http://up/b/, to: /a/ }] }";
        for (directives, rules) in [
            ("", default),
            ("proxy_redirect default;", default),
            ("proxy_redirect off;", ""),
            ("proxy_redirect http://$host http://$proxy_host/; proxy_redirect off;", ""),
        ] {
            assert_eq!(here(directives), (rules.to_owned(), Vec::new()), "{directives}");
        }
        let several = "proxy_redirect http://$proxy_host:8080/ $scheme://$server_name/; proxy_redirect default;
            proxy_redirect ~^http://(?<zone>[a-z]+)/(.*)$ /$zone/$21; proxy_redirect ~*^ftp: /;";
        assert_eq!(
            here(several),
            (
                "{ redirects: [{ from: http://up:8080/, to: $scheme://s.example/ }, { from: http://up/b/, to: /a/ }, \
                 { regex: ^http://(?<zone>[a-z]+)/(.*)$, to: /$1/${2}1 }, { regex: ^ftp:, ignore_case: true, to: / }] }"
                    .to_owned(),
                Vec::new()
            )
        );
        for (directive, why) in [
            ("proxy_redirect http://a/ /$1/", "groups of another expression are not known here"),
            ("proxy_redirect http://a/ /$tenant/", "Weir has no variable `$tenant`"),
            ("proxy_redirect http://$tenant/ /", "Weir has no variable `$tenant`"),
            ("proxy_redirect ~(?=a) /", "look-around and back-references are not supported"),
            ("proxy_redirect http://a/", "it has two values"),
            ("proxy_redirect ~ /", "the replaced value is empty"),
            ("proxy_redirect ~* /", "the replaced value is empty"),
        ] {
            let found = format!("n:1: not converted: `{directive}`: {why}");
            assert_eq!(here(&format!("{directive};")), (String::new(), vec![found]));
        }
    }

    #[test]
    fn redirects_have_a_default_where_the_upstream_gets_another_host_or_path() {
        let own = "proxy_set_header Host $proxy_host; ";
        for (location, pass, rules) in [
            ("location /", "proxy_pass http://up;", ""),
            ("location /a/", "proxy_pass http://up/a/;", ""),
            ("location = /a", "proxy_pass http://up/b;", "{ redirects: [{ from: http://up/b, to: /a }] }"),
            ("location ~ /a", "proxy_pass http://up;", ""),
        ] {
            assert_eq!(plugin(location, pass).0, rules, "{location} {pass}");
        }
        for (location, pass, rules) in [
            ("location /", "proxy_pass http://up;", "{ redirects: [{ from: http://up/, to: / }] }"),
            ("location ~ /a", "proxy_pass http://up:81;", "{ redirects: [{ from: http://up:81/, to: / }] }"),
            ("location /a/", "proxy_pass http://up/a/;", "{ redirects: [{ from: http://up/a/, to: /a/ }] }"),
            ("location /", "grpc_pass grpc://up;", ""),
            ("location /", "proxy_pass http://up$request_uri;", ""),
        ] {
            assert_eq!(plugin(location, &format!("{own}{pass}")).0, rules, "{location} {pass}");
        }
    }

    #[test]
    fn rules_that_the_plugin_does_not_take_are_reported() {
        let here = |directives: &str| plugin("location /", &format!("{directives} proxy_pass http://up;"));
        let many: String = (0..34).map(|number| format!("proxy_cookie_path /{number}/ /; ")).collect();
        let (options, findings) = here(&many);
        assert_eq!(options.matches("from:").count(), 32, "{options}");
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings.iter().all(|found| found.ends_with("has at most 32 rules")), "{findings:?}");
        let (options, findings) = here(&format!("proxy_cookie_path /{} /;", "a".repeat(2048)));
        assert_eq!((&*options, findings.len()), ("", 1), "{findings:?}");
        assert!(findings[0].ends_with("a text of a rule has at most 2048 bytes"), "{findings:?}");
    }

    #[test]
    fn rules_are_kept_where_a_variable_names_the_upstream() {
        let map = "map $http_x_part $part { default http://one; two http://two; }";
        let directives = "proxy_redirect http://inner/ /; proxy_cookie_path /app/ /; proxy_pass $part;";
        let rules = "{ redirects: [{ from: http://inner/, to: / }], cookie_paths: [{ from: /app/, to: / }] }";
        assert_eq!(plugin_with(map, "location /", directives).0, rules);
        assert_eq!(plugin_with(map, "location /", "proxy_pass $part;").0, "");
    }

    #[test]
    fn cookies_get_other_attributes() {
        let here = |directives: &str| plugin("location /", &format!("{directives} proxy_pass http://up;"));
        for (directives, rules) in [
            ("proxy_cookie_domain off; proxy_cookie_path off; proxy_cookie_flags off;", ""),
            (
                "proxy_cookie_domain up $host; proxy_cookie_domain ~[.]up$ .s.example;",
                "{ cookie_domains: [{ from: up, to: $host }, { regex: [.]up$, ignore_case: true, to: .s.example }] }",
            ),
            (
                "proxy_cookie_path /one/ /; proxy_cookie_path ~*^/two/(.+)$ /2/$1;",
                "{ cookie_paths: [{ from: /one/, to: / }, { regex: ^/two/(.+)$, ignore_case: true, to: /2/$1 }] }",
            ),
            (
                "proxy_cookie_flags one secure samesite=LAX; proxy_cookie_flags ~^app nohttponly; proxy_cookie_flags ~ nosecure;",
                "{ cookie_flags: [{ name: one, flags: [secure, samesite=lax] }, \
                 { regex: ^app, ignore_case: true, flags: [nohttponly] }, { flags: [nosecure] }] }",
            ),
        ] {
            assert_eq!(here(directives), (rules.to_owned(), Vec::new()), "{directives}");
        }
        let kept = "proxy_cookie_path /keep/ /keep/; proxy_cookie_path / /x/; proxy_cookie_path /one/ /one/;";
        let rules = "{ cookie_paths: [{ from: /keep/, to: /keep/ }, { from: /, to: /x/ }] }";
        assert_eq!(here(kept), (rules.to_owned(), Vec::new()));
        let (options, findings) = here("proxy_cookie_path / '/; HttpOnly; Secure ;SameSite=None';");
        assert_eq!(options, "{ cookie_flags: [{ flags: [httponly, secure, samesite=none] }] }");
        assert!(matches!(&findings[..], [found] if found.ends_with("all cookies get these flags")), "{findings:?}");
        let twice = "{ cookie_flags: [{ name: one, flags: [secure, samesite=lax] }] }";
        assert_eq!(here("proxy_cookie_flags one secure Secure samesite=lax;"), (twice.to_owned(), Vec::new()));
        for directive in [
            "proxy_cookie_flags one $flag",
            "proxy_cookie_flags one",
            "proxy_cookie_flags one secure nosecure",
            "proxy_cookie_flags one samesite=lax samesite=strict",
            "proxy_cookie_path / '/; Max-Age=1'",
        ] {
            let (options, findings) = here(&format!("{directive};"));
            assert_eq!((&*options, findings.len()), ("", 1), "{directive}: {findings:?}");
            assert!(findings[0].contains("not converted") && findings[0].contains("cookie_flags"), "{findings:?}");
        }
    }
}
