//! The cases of a target as `traffic-split` and the upstream of the route.

use super::Conversion;
use super::location::Matching;
use super::pass_path;
use super::proxy;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::target::PassTarget;
use super::target_cases::{TargetCase, TargetShare};
use super::upstream::host_and_port;
use crate::yaml::{Yaml, YamlMembers};

/// What a location with such a target becomes.
pub(super) struct SplitTarget {
    /// The options of `proxy-rewrite`.
    pub changes: YamlMembers,
    /// `traffic-split`, unless all requests are for the upstream of the route.
    pub plugin: Option<(String, Yaml)>,
    /// The members of the route that specify its upstream; `None` without any.
    pub target: Option<YamlMembers>,
}

/// A location whose `proxy_pass` has these cases.
pub(super) fn of(
    conversion: &mut Conversion,
    (scope, matching): (&BlockScope, &Matching),
    pass: &Directive,
    cases: &[TargetCase],
    is_rewritten: bool,
) -> SplitTarget {
    let targets: Vec<PassTarget> = cases.iter().flat_map(|case| &case.shares).filter_map(usable).collect();
    let Some(first) = targets.first() else {
        return SplitTarget { changes: Vec::new(), plugin: None, target: None };
    };
    let mut changes = YamlMembers::new();
    match first.path {
        _ if targets.iter().any(|target| target.path != first.path) => {
            pass_path::tell_lost(conversion, pass, "the targets that it may be have different paths");
        }
        Some(path) => changes.extend(pass_path::changed(conversion, pass, path, matching, is_rewritten)),
        None => {}
    }
    if let Some(host) = proxy::host(conversion, scope, first)
        && host != first.authority
        && host_and_port(host).1.is_some()
    {
        changes.push(("host".to_owned(), Yaml::text(host)));
    }
    changes.extend(proxy::head_changes(conversion, scope, first.scheme));
    let timeout = proxy::timeout(scope, first.scheme);
    let mut rules = rules(conversion, scope, cases);
    let own = own(&mut rules);
    let target = own.map(|own| [own].into_iter().chain(timeout).collect());
    let plugin = (!rules.is_empty()).then(|| {
        let rules = rules.into_iter().map(ConvertedSplit::yaml).collect();
        ("traffic-split".to_owned(), Yaml::map([("rules", Yaml::List(rules))]))
    });
    SplitTarget { changes, plugin, target }
}

/// The target of a share that requests can be sent to.
fn usable(share: &TargetShare) -> Option<PassTarget<'_>> {
    PassTarget::of(&share.pass).filter(|target| !share.is_nowhere && !target.authority.contains('$'))
}

/// A rule of `traffic-split`.
struct ConvertedSplit {
    /// The conditions of each of its cases; none if it applies to all requests.
    cases: Vec<Vec<Yaml>>,
    /// The upstream or the status of each share, with its weight. `None`: the upstream of the route.
    shares: Vec<(i64, Option<(String, Yaml)>)>,
}

impl ConvertedSplit {
    fn yaml(self) -> Yaml {
        let mut members = YamlMembers::new();
        let case = |vars: Vec<Yaml>| Yaml::map([("vars", Yaml::List(vars))]);
        if !self.cases.is_empty() {
            members.push(("match".to_owned(), Yaml::List(self.cases.into_iter().map(case).collect())));
        }
        let is_one = self.shares.len() == 1;
        let share = |(weight, target): (i64, Option<(String, Yaml)>)| {
            let weight = (!is_one || target.is_none()).then(|| ("weight".to_owned(), Yaml::Integer(weight)));
            Yaml::Map(target.into_iter().chain(weight).collect())
        };
        let shares = self.shares.into_iter().map(share).collect();
        members.push(("weighted_upstreams".to_owned(), Yaml::List(shares)));
        Yaml::Map(members)
    }
}

/// A rule for the cases that follow each other and have the same target.
fn rules(conversion: &mut Conversion, scope: &BlockScope, cases: &[TargetCase]) -> Vec<ConvertedSplit> {
    let is_same = |one: &TargetCase, next: &TargetCase| {
        let mut shares = one.shares.iter().zip(&next.shares);
        // The last one applies to all other requests.
        !next.vars.is_empty() && one.shares.len() == next.shares.len() && shares.all(|(one, next)| one.is_same_as(next))
    };
    let rule = |group: &[TargetCase]| {
        let shares = group.iter().flat_map(|case| &case.shares).take(group[0].shares.len());
        let shares = shares.map(|one| (one.weight, Some(share(conversion, scope, one)))).collect();
        let cases = group.iter().map(|case| case.vars.clone()).filter(|vars| !vars.is_empty()).collect();
        ConvertedSplit { cases, shares }
    };
    cases.chunk_by(is_same).map(rule).collect()
}

/// The upstream of a share, or the status of its answers.
fn share(conversion: &mut Conversion, scope: &BlockScope, share: &TargetShare) -> (String, Yaml) {
    let status = |status: i64| ("status".to_owned(), Yaml::Integer(status));
    if share.is_nowhere {
        return status(500);
    }
    let Some(target) = usable(share) else {
        let text = match share.pass.argument(0).contains('$') {
            true => "a variable cannot select the upstream",
            false => "the target is neither `http://host:port` nor the name of an upstream",
        };
        let text = format!("`{}`: {text}; these requests are answered with 502", share.entry);
        conversion.lost(&share.pass.place, text);
        return status(502);
    };
    let mut rest = proxy::upstream_members(conversion, scope, &target, &share.pass);
    let is_own = |host: &str| host == target.authority && host_and_port(host).1.is_some();
    if proxy::host(conversion, scope, &target).is_some_and(is_own) && proxy::block(conversion, &target).is_none() {
        rest.push(("pass_host".to_owned(), Yaml::text("node")));
    }
    proxy::upstream(conversion, &target, rest)
}

/// The upstream of the route: that of the last rule, or of its largest share. What it replaces is taken out of the rules.
fn own(rules: &mut Vec<ConvertedSplit>) -> Option<(String, Yaml)> {
    let is_upstream = |target: &Option<(String, Yaml)>| target.as_ref().is_some_and(|(name, _)| name != "status");
    let last = rules.last_mut()?;
    let largest = last.shares.iter_mut().filter(|(_, target)| is_upstream(target)).max_by_key(|(weight, _)| *weight);
    let own = largest.and_then(|(_, target)| target.take());
    if own.is_some() && last.shares.len() == 1 {
        rules.pop();
    }
    // A status for all other requests leaves the route without an upstream of its own.
    own.or_else(|| rules.iter().flat_map(|rule| &rule.shares).find(|(_, target)| is_upstream(target))?.1.clone())
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    fn converted(blocks: &str, pass: &str) -> (String, Vec<String>) {
        let text = format!(
            "{blocks}\nupstream a {{ server h:1; }} upstream b {{ server h:2; }}\nserver {{ location / {{ {pass}; }} }}"
        );
        let converted = convert("t", &text, &|pattern| Err(format!("{pattern} is not there"))).expect("correct");
        (converted.yaml(), converted.findings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn shares_of_clients_become_weights() {
        let split = "split_clients $remote_addr $b { 0.5% a; 2% b; * c:8080; }";
        let (yaml, findings) = converted(split, "proxy_pass http://$b");
        let rule = "\
        rules:
          - weighted_upstreams:
              - { upstream_id: a, weight: 1 }
              - { upstream_id: b, weight: 4 }
              - { weight: 195 }
";
        assert!(yaml.contains(rule) && yaml.contains("upstream: { nodes: { c:8080: 1 }, pass_host: node }"), "{yaml}");
        let text = "t:1: behaves differently: `split_clients $remote_addr $b`: requests are shared by weight, each by itself; nginx \
                    gives all requests with the same `$remote_addr` the same share";
        assert_eq!(findings, [text]);
        let (yaml, _) = converted("split_clients $remote_addr $b { 50% a; }", "proxy_pass http://$b");
        assert!(yaml.contains("weighted_upstreams: [{ weight: 1 }, { status: 500, weight: 1 }]"), "{yaml}");
    }

    #[test]
    fn a_case_without_a_fixed_upstream_is_told_with_its_line_and_the_others_are_carried_over() {
        let map = "map $http_x $b {\n default a;\n b b;\n c $host;\n d unix:/s;\n ~^(?<n>.)$ $n;\n}";
        let (yaml, findings) = converted(map, "proxy_pass http://$b");
        assert!(yaml.contains("weighted_upstreams: [{ upstream_id: b }]"), "{yaml}");
        assert_eq!(yaml.matches("weighted_upstreams: [{ status: 502 }]").count(), 3, "{yaml}");
        let lost = "a variable cannot select the upstream; these requests are answered with 502";
        assert_eq!(
            findings,
            [
                format!("t:4: not converted: `c $host`: {lost}"),
                "t:5: not converted: `d unix:/s`: the target is neither `http://host:port` nor the name of an upstream; these requests \
                 are answered with 502"
                    .to_owned(),
                format!("t:6: not converted: `~^(?<n>.)$ $n`: {lost}"),
            ]
        );
    }

    #[test]
    fn a_choice_that_rules_cannot_make_is_told_with_its_line() {
        let many: String = (0..300).map(|case| format!("{case} a; ")).collect();
        for (blocks, why) in [
            (
                "\nmap $http_x$http_y $b { default a; }".to_owned(),
                "t:2: not converted: `proxy_pass http://$b`: `map $http_x$http_y $b`: `$http_x$http_y` is no variable",
            ),
            (
                "map $http_x $b { ~(?=a)b b; }".to_owned(),
                "look-around and back-references are not supported in `~(?=a)b`",
            ),
            ("geo $b { ranges; 10.0.0.0-10.0.0.9 a; }".to_owned(), "`ranges` has no counterpart"),
            ("map $http_x $b { include missing.map; }".to_owned(), "a file of it could not be read"),
            (
                "split_clients $remote_addr $b { 1% $c; * a; } map $http_x $c { default b; }".to_owned(),
                "a share has a variable in its value",
            ),
            (
                "map $http_x $b { default $c; } map $http_y $c { default $b; }".to_owned(),
                "more than 8 variables are values of each other",
            ),
            (format!("map $http_x $b {{ {many} }}"), "the target has more than 256 cases"),
        ] {
            let (yaml, findings) = converted(&blocks, "proxy_pass http://$b");
            assert!(findings.iter().any(|found| found.contains(why)), "{findings:#?}");
            assert!(yaml.contains("fault-injection: { abort: { http_status: 502") || yaml.contains("502"), "{yaml}");
        }
    }

    #[test]
    fn the_path_behind_a_choice_takes_the_place_of_that_of_the_request() {
        let map = "map $http_x $b { default a; b b; } map $http_x $u { default http://a/one; b http://b/two; }";
        let (yaml, findings) = converted(map, "proxy_pass http://$b/fixed");
        assert!(yaml.contains("proxy-rewrite: { uri: /fixed }"), "{yaml}");
        assert!(findings.iter().any(|found| found.contains("the query of the request is passed on")), "{findings:?}");
        let (_, findings) = converted(map, "proxy_pass $u");
        assert!(
            findings.iter().any(|found| found.contains("have different paths; the path is passed on unchanged")),
            "{findings:?}"
        );
    }

    #[test]
    fn a_variable_that_is_used_elsewhere_too_is_still_told() {
        let map = "map $http_x $b { default a; b b; }";
        let (_, findings) = converted(map, "proxy_pass http://$b");
        assert_eq!(findings, [""; 0]);
        let (_, findings) = converted(map, "add_header X-B $b; proxy_pass http://$b");
        assert!(findings.iter().any(|found| found.starts_with("t:1: not converted: `map $http_x $b`")), "{findings:?}");
    }
}
