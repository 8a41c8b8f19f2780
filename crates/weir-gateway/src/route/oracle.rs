//! Compares tables with a matcher that examines every rule, and with the documentation of Apache APISIX.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use serde_json::{Value, json};
use weir_plugin::Variable;

use super::*;

#[derive(Clone, Debug)]
struct Request {
    host: String,
    path: String,
    method: Method,
    listener: Option<String>,
    remote_addr: IpAddr,
    variables: HashMap<String, String>,
}

impl Variables for Request {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        self.variables.get(&variable.to_string()).map(|value| value.as_bytes().into())
    }
}

impl Request {
    fn get(host: &str, path: &str) -> Request {
        Request {
            host: host.to_owned(),
            path: path.to_owned(),
            method: Method::Get,
            listener: None,
            remote_addr: [127, 0, 0, 1].into(),
            variables: HashMap::new(),
        }
    }

    fn lookup(&self) -> Lookup<'_> {
        Lookup {
            host: self.host.as_bytes(),
            path: self.path.as_bytes(),
            method: self.method,
            listener: self.listener.as_deref(),
            remote_addr: self.remote_addr,
            variables: self,
        }
    }
}

fn rule(route: u32, uris: &[&str]) -> RouteRule {
    RouteRule {
        uris: uris.iter().map(|uri| uri.to_string()).collect(),
        hosts: Vec::new(),
        listeners: Box::default(),
        methods: None,
        remote_addrs: Vec::new(),
        priority: 0,
        vars: None,
        among: None,
        order: 0,
        route,
    }
}

fn for_hosts(hosts: &[&str], rule: RouteRule) -> RouteRule {
    RouteRule { hosts: hosts.iter().map(|host| host.to_string()).collect(), ..rule }
}

fn vars(value: Value) -> Option<Expression> {
    Some(Expression::compile(&value).expect("right"))
}

fn table(rules: Vec<RouteRule>) -> RouteTable {
    RouteTable::build(rules).expect("the rules are right")
}

// The simple matcher. It works on texts only, and shares nothing with the table but the methods and the expressions.

/// How specifically a uri matches a path; greater is better. `None` if it does not match.
fn uri_rank(uri: &str, path: &str) -> Option<(bool, usize)> {
    let Some(star) = uri.find('*').into_iter().chain(uri.find(':')).min() else {
        return (uri == path).then_some((true, 0));
    };
    fits(uri.as_bytes(), path.as_bytes()).then_some((false, star))
}

/// Tries every length for every star.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|taken| fits(rest, &text[taken..])),
        // Parameters in the tests have names of one letter.
        [b':', _, rest @ ..] => {
            let segment = text.iter().position(|&byte| byte == b'/').unwrap_or(text.len());
            segment > 0 && fits(rest, &text[segment..])
        }
        [byte, rest @ ..] => text.first() == Some(byte) && fits(rest, &text[1..]),
    }
}

/// How specifically the hosts of a rule match; greater is better.
fn host_rank(hosts: &[String], host: &str) -> Option<(bool, bool, usize)> {
    if hosts.is_empty() {
        return Some((false, false, 0));
    }
    let rank = |pattern: &String| match pattern.strip_prefix('*') {
        Some(end) => host.ends_with(end).then_some((true, false, end.len())),
        None => (pattern == host).then_some((true, true, 0)),
    };
    hosts.iter().filter_map(rank).max()
}

fn takes(rule: &RouteRule, request: &Request) -> bool {
    let is_of = |listener: &String| rule.listeners.iter().any(|named| **named == **listener);
    rule.methods.is_none_or(|methods| methods.contains(request.method))
        && (rule.listeners.is_empty() || request.listener.as_ref().is_some_and(is_of))
        && (rule.remote_addrs.is_empty() || rule.remote_addrs.iter().any(|net| net.contains(&request.remote_addr)))
        && rule.vars.as_ref().is_none_or(|vars| vars.holds(request))
}

fn plain_find(rules: &[RouteRule], request: &Request) -> Option<u32> {
    let mut fitting = Vec::new();
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| takes(rule, request)) {
        let Some(host) = host_rank(&rule.hosts, &request.host) else { continue };
        for uri in &rule.uris {
            if let Some(path) = uri_rank(uri, &request.path) {
                fitting.push((Reverse(host), Reverse(path), Reverse(rule.priority), Reverse(uri.len()), index));
            }
        }
    }
    fitting.into_iter().min().map(|(.., index)| rules[index].route)
}

fn some_path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", "c"]), 0..5)
        .prop_flat_map(|segments| prop::sample::select(vec!["", "/"]).prop_map(move |end| (segments.clone(), end)))
        .prop_map(|(segments, end)| match &segments[..] {
            [] => "/".to_owned(),
            _ => format!("/{}{end}", segments.join("/")),
        })
}

fn some_uri() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => some_path(),
        4 => some_path().prop_map(|path| format!("{path}*")),
        2 => (some_path(), some_path()).prop_map(|(a, b)| format!("{}/*{b}", a.trim_end_matches('/'))),
        1 => (some_path(), some_path()).prop_map(|(a, b)| format!("{}/*{b}*", a.trim_end_matches('/'))),
        2 => (some_path(), some_path()).prop_map(|(a, b)| format!("{}/:p{b}", a.trim_end_matches('/'))),
        1 => (some_path(), some_path()).prop_map(|(a, b)| format!("{}/*{}/:p", a.trim_end_matches('/'), b.trim_end_matches('/'))),
        1 => (some_path(), some_path()).prop_map(|(a, b)| format!("{}/:p{b}*", a.trim_end_matches('/'))),
        1 => Just("*".to_owned()),
    ]
}

fn some_host() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "xa"]), 1..4).prop_map(|labels| labels.join("."))
}

fn some_host_pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => some_host(),
        3 => some_host().prop_map(|host| format!("*.{host}")),
        1 => some_host().prop_map(|host| format!("*{host}")),
        1 => Just("*".to_owned()),
    ]
}

fn some_method() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![Method::Get, Method::Post, Method::Purge, Method::Other])
}

fn some_rule() -> impl Strategy<Value = RouteRule> {
    let methods = prop::option::weighted(0.3, prop::collection::vec(some_method(), 0..3));
    let networks = prop_oneof![
        4 => Just(vec![]),
        1 => prop::sample::subsequence(vec!["10.0.0.0/8", "10.1.0.0/16", "127.0.0.1/32", "::/0"], 1..3),
    ];
    let vars = prop_oneof![
        4 => Just(None),
        1 => Just(Some(json!([["arg_v", "==", "1"]]))),
        1 => Just(Some(json!([["arg_v", "~=", "1"]]))),
    ];
    let uris = prop::collection::vec(some_uri(), 1..4);
    let hosts = prop_oneof![2 => Just(vec![]), 3 => prop::collection::vec(some_host_pattern(), 1..4)];
    let listeners = prop_oneof![4 => Just(vec![]), 1 => prop::sample::subsequence(vec!["a", "b"], 1..3)];
    let parts = (uris, hosts, listeners, methods, networks, -1i64..2, vars);
    parts.prop_map(|(uris, hosts, listeners, methods, networks, priority, vars)| RouteRule {
        uris,
        hosts,
        listeners: listeners.into_iter().map(Box::from).collect(),
        methods: methods.map(MethodSet::from_iter),
        remote_addrs: networks.iter().map(|text| text.parse().expect("a range")).collect(),
        priority,
        vars: vars.map(|value| Expression::compile(&value).expect("right")),
        among: None,
        order: 0,
        route: 0,
    })
}

fn some_request() -> impl Strategy<Value = Request> {
    let address = prop::sample::select(vec!["10.1.0.1", "10.2.0.1", "127.0.0.1", "::1"]);
    let value = prop::option::of(prop::sample::select(vec!["1", "2"]));
    let host = prop_oneof![9 => some_host(), 1 => Just(String::new())];
    let listener = prop::option::of(prop::sample::select(vec!["a", "b"]));
    let parts = (host, some_path(), some_method(), listener, address, value);
    parts.prop_map(|(host, path, method, listener, address, value)| Request {
        host,
        path,
        method,
        listener: listener.map(str::to_owned),
        remote_addr: address.parse().expect("an address"),
        variables: value.map(|value| ("arg_v".to_owned(), value.to_owned())).into_iter().collect(),
    })
}

fn numbered(mut rules: Vec<RouteRule>) -> Vec<RouteRule> {
    rules.iter_mut().zip(100..).for_each(|(rule, number)| rule.route = number);
    rules
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn agrees_with_looking_at_every_rule(
        rules in prop::collection::vec(some_rule(), 0..24).prop_map(numbered),
        requests in prop::collection::vec(some_request(), 1..24),
    ) {
        let table = table(rules.clone());
        for request in requests {
            let expected = plain_find(&rules, &request);
            prop_assert_eq!(table.find(&request.lookup()), expected, "{:?}", request);
        }
    }

    #[test]
    fn explains_what_it_does(
        rules in prop::collection::vec(some_rule(), 0..12).prop_map(numbered),
        request in some_request(),
    ) {
        let table = table(rules.clone());
        let candidates = table.explain(&request.lookup());
        let chosen: Vec<u32> = candidates
            .iter()
            .filter(|candidate| candidate.verdict == CandidateVerdict::Chosen)
            .map(|candidate| candidate.route)
            .collect();
        let found: Vec<u32> = table.find(&request.lookup()).into_iter().collect();
        prop_assert_eq!(chosen, found);
        for rule in &rules {
            let has_path = rule.uris.iter().any(|uri| uri_rank(uri, &request.path).is_some());
            let told: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.route == rule.route).collect();
            if has_path {
                prop_assert!(!told.is_empty(), "rule {} is not told of", rule.route);
            }
            let host_fits = host_rank(&rule.hosts, &request.host).is_some();
            prop_assert!(told.iter().all(|candidate| (candidate.verdict == CandidateVerdict::Host) != host_fits));
        }
    }

    #[test]
    fn takes_or_refuses_any_texts(
        uri in any::<String>(), host in any::<String>(),
        path in any::<Vec<u8>>(), name in any::<Vec<u8>>(),
    ) {
        if let Ok(table) = RouteTable::build(vec![for_hosts(&[&host], rule(1, &[&uri]))]) {
            let request = Request::get("", "");
            table.find(&Lookup { host: &name, path: &path, ..request.lookup() });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Rules are added, removed and changed; each table must answer like one built from the same rules, also after later
    /// edits.
    #[test]
    fn an_edited_table_is_one_made_from_scratch(
        rules in prop::collection::vec((some_rule(), 0..8_u64), 1..24),
        edits in prop::collection::vec((0..24_usize, prop::option::of((some_rule(), 0..8_u64))), 1..24),
        requests in prop::collection::vec(some_request(), 1..12),
    ) {
        let with = |number: usize, (rule, order): (RouteRule, u64)| {
            RouteRule { order: order << 32 | number as u64, route: number as u32, ..rule }
        };
        let mut present: BTreeMap<usize, RouteRule> =
            rules.into_iter().enumerate().map(|(number, rule)| (number, with(number, rule))).collect();
        let mut edited = table(present.values().cloned().collect());
        let mut all = vec![(present.clone(), edited.clone())];
        for (number, change) in edits {
            let added: Vec<RouteRule> = change.into_iter().map(|rule| with(number, rule)).collect();
            edited = edited.edited(&[number as u32], added.clone()).expect("the rules are right");
            present.remove(&number);
            present.extend(added.into_iter().map(|rule| (number, rule)));
            all.push((present.clone(), edited.clone()));
        }
        for (present, edited) in all {
            let scratch = table(present.into_values().collect());
            prop_assert_eq!((edited.size.pairs, edited.size.bytes), (scratch.size.pairs, scratch.size.bytes));
            for request in &requests {
                prop_assert_eq!(edited.find(&request.lookup()), scratch.find(&request.lookup()));
                let explained = |table: &RouteTable| table.explain(&request.lookup());
                prop_assert_eq!(explained(&edited), explained(&scratch));
            }
        }
    }
}

/// The table of APISIX's `router-radixtree.md`.
#[test]
fn documented_precedence_of_paths() {
    let table = table(vec![
        rule(1, &["/blog/foo/*"]),
        rule(2, &["/blog/foo/a/*"]),
        rule(3, &["/blog/foo/c/*"]),
        rule(4, &["/blog/foo/bar"]),
    ]);
    let find = |path| table.find(&Request::get("any", path).lookup());
    assert_eq!(find("/blog/foo/bar"), Some(4));
    assert_eq!(find("/blog/foo/a/b/c"), Some(2));
    assert_eq!(find("/blog/foo/c/d"), Some(3));
    assert_eq!(find("/blog/foo/gloo"), Some(1));
    assert_eq!(find("/blog/bar"), None);
}

#[test]
fn documented_precedence_of_priority() {
    let rules = |first, second| {
        vec![
            RouteRule { priority: first, ..rule(1, &["/hello"]) },
            RouteRule { priority: second, ..rule(2, &["/hello"]) },
        ]
    };
    let request = Request::get("any", "/hello");
    assert_eq!(table(rules(3, 2)).find(&request.lookup()), Some(1));
    assert_eq!(table(rules(2, 3)).find(&request.lookup()), Some(2));
    assert_eq!(table(rules(0, 0)).find(&request.lookup()), Some(1), "the first of equals");
}

#[test]
fn priority_does_not_beat_a_more_specific_path() {
    let table = table(vec![
        RouteRule { priority: 100, ..rule(1, &["/*"]) },
        RouteRule { priority: 10, ..rule(2, &["/a/*"]) },
        rule(3, &["/a/b"]),
    ]);
    let find = |path| table.find(&Request::get("any", path).lookup());
    assert_eq!(find("/a/b"), Some(3));
    assert_eq!(find("/a/c"), Some(2));
    assert_eq!(find("/c"), Some(1));
}

#[test]
fn documented_precedence_of_hosts() {
    let table = table(vec![
        for_hosts(&["localhost.com"], rule(1, &["/hello"])),
        for_hosts(&["test.com"], rule(2, &["/hello"])),
    ]);
    assert_eq!(table.find(&Request::get("localhost.com", "/hello").lookup()), Some(1));
    assert_eq!(table.find(&Request::get("test.com", "/hello").lookup()), Some(2));
    assert_eq!(table.find(&Request::get("127.0.0.1", "/hello").lookup()), None);
}

/// A rule for the host comes before one without hosts, however specific and important that one is; if no rule for the host
/// has the path, the search goes on with less specific hosts.
#[test]
fn a_host_beats_path_and_priority() {
    let table = table(vec![
        RouteRule { priority: 100, ..rule(1, &["/a/b"]) },
        for_hosts(&["*"], rule(2, &["/star"])),
        for_hosts(&["*.com"], rule(3, &["/a/b"])),
        for_hosts(&["x.com"], rule(4, &["/a*"])),
    ]);
    let find = |host, path| table.find(&Request::get(host, path).lookup());
    assert_eq!(find("x.com", "/a/b"), Some(4));
    assert_eq!(find("y.com", "/a/b"), Some(3));
    assert_eq!(find("y.org", "/a/b"), Some(1));
    assert_eq!(find("x.com", "/star"), Some(2));
    assert_eq!(find("x.com", "/b"), None);
}

#[test]
fn a_refused_candidate_gives_way_to_the_next() {
    let table = table(vec![
        RouteRule { methods: Some([Method::Post].into_iter().collect()), ..rule(1, &["/a"]) },
        RouteRule { remote_addrs: vec!["10.0.0.0/8".parse().expect("a range")], priority: 5, ..rule(2, &["/a*"]) },
        RouteRule { vars: vars(json!([["arg_v", "==", "2"]])), priority: 4, ..rule(3, &["/a*"]) },
        rule(4, &["/*"]),
    ]);
    let get = Request::get("any", "/a");
    assert_eq!(table.find(&get.lookup()), Some(4));
    assert_eq!(table.find(&Request { method: Method::Post, ..get.clone() }.lookup()), Some(1));
    let variables = HashMap::from([("arg_v".to_owned(), "2".to_owned())]);
    assert_eq!(table.find(&Request { variables, ..get.clone() }.lookup()), Some(3));
    let mapped: IpAddr = "::ffff:10.1.1.1".parse().expect("an address");
    assert_eq!(table.find(&Request { remote_addr: mapped, ..get }.lookup()), Some(2));
}

#[test]
fn unknown_methods_match_rules_without_methods_only() {
    let named: MethodSet = [Method::Get, Method::Other].into_iter().collect();
    let table = table(vec![RouteRule { methods: Some(named), ..rule(1, &["/a"]) }, rule(2, &["/*"])]);
    let request = Request { method: Method::Other, ..Request::get("any", "/a") };
    assert_eq!(table.find(&request.lookup()), Some(2));
}

#[test]
fn patterns_share_a_node_with_prefixes_and_go_first_when_longer() {
    let table = table(vec![rule(1, &["/a/*"]), rule(2, &["/a/*/edit"]), rule(3, &["/a/*/edit/*"])]);
    let find = |path| table.find(&Request::get("any", path).lookup());
    assert_eq!(find("/a/1/edit"), Some(2));
    assert_eq!(find("/a/1/edit/2"), Some(3));
    assert_eq!(find("/a/1"), Some(1));
}

#[test]
fn an_empty_table_matches_nothing() {
    assert_eq!(table(vec![]).find(&Request::get("any", "/").lookup()), None);
    assert_eq!(table(vec![]).explain(&Request::get("any", "/").lookup()), []);
}

#[test]
fn all_errors_are_told_with_their_places() {
    let rules = vec![rule(1, &["/a", "/../b"]), rule(2, &[]), for_hosts(&["ok.com", "a.*.com"], rule(3, &["/a"]))];
    let errors = RouteTable::build(rules).expect_err("three errors");
    let texts: Vec<String> = errors.iter().map(BuildError::to_string).collect();
    assert_eq!(texts[0], r#"rules[0].uris[1]: "/../b" leads above the root; write the path without .."#);
    assert_eq!(texts[1], "rules[1].uris: a route needs a uri; write /* to match every path");
    assert!(texts[2].starts_with(r#"rules[2].hosts[1]: "a.*.com" has a * that is not at the start"#), "{}", texts[2]);
    assert_eq!(texts.len(), 3);
}

#[test]
fn a_table_that_would_take_gigabytes_is_refused() {
    let hosts: Vec<String> = (0..1_000).map(|number| format!("h{number}.com")).collect();
    let uris: Vec<String> = (0..1_000).map(|number| format!("/{}{number}", "a".repeat(400))).collect();
    let errors = RouteTable::build(vec![rule(1, &["/"]), RouteRule { hosts, uris, ..rule(2, &[]) }]);
    let error = errors.expect_err("an error").remove(0).to_string();
    assert!(error.starts_with("rules[1].uris: with this rule, there are 1000001 pairs"), "{error}");
}

#[test]
fn explanation_says_why_each_lost() {
    let table = table(vec![
        for_hosts(&["other.com", "*.other.com"], rule(0, &["/*"])),
        RouteRule { methods: Some([Method::Post].into_iter().collect()), ..rule(1, &["/a"]) },
        RouteRule { vars: vars(json!([["arg_v", "==", "2"]])), priority: 9, ..rule(2, &["/a*"]) },
        RouteRule { listeners: ["other".into()].into(), priority: 9, ..rule(9, &["/a*"]) },
        RouteRule { remote_addrs: vec!["10.0.0.0/8".parse().expect("a range")], priority: 8, ..rule(3, &["/a*"]) },
        RouteRule { priority: 2, ..rule(4, &["/a*"]) },
        RouteRule { priority: 1, ..rule(5, &["/a*"]) },
        rule(6, &["/*", "/a*"]),
        rule(7, &["/*/x"]),
        rule(8, &["/b"]),
    ]);
    let told = table.explain(&Request::get("any", "/a").lookup());
    let verdicts: Vec<(u32, CandidateVerdict)> = told.into_iter().map(|told| (told.route, told.verdict)).collect();
    assert_eq!(
        verdicts,
        [
            (1, CandidateVerdict::Method),
            (2, CandidateVerdict::Vars(r#"arg_v == "2""#.to_owned())),
            (9, CandidateVerdict::Listener),
            (3, CandidateVerdict::RemoteAddr),
            (4, CandidateVerdict::Chosen),
            (5, CandidateVerdict::Outranked(TieBreak::Priority)),
            (6, CandidateVerdict::Outranked(TieBreak::Priority)),
            (7, CandidateVerdict::Uri),
            (6, CandidateVerdict::Outranked(TieBreak::Path)),
            (0, CandidateVerdict::Host),
        ]
    );
}

#[test]
fn paths_come_and_go_while_a_table_is_in_use() {
    #[derive(Debug, Default)]
    struct Open(std::sync::Mutex<Vec<&'static str>>);
    impl PathSet for Open {
        fn has(&self, path: &[u8]) -> bool {
            self.0.lock().expect("no test panics with it").iter().any(|open| open.as_bytes() == path)
        }
    }
    let open = std::sync::Arc::new(Open::default());
    let table = table(vec![rule(1, &["/*"]), RouteRule { among: Some(open.clone()), ..rule(2, &["/a/*"]) }]);
    let find = |path| table.find(&Request::get("any", path).lookup());
    assert_eq!(find("/a/x"), Some(1));
    open.0.lock().expect("no test panics with it").push("/a/x");
    assert_eq!((find("/a/x"), find("/a/y"), find("/b")), (Some(2), Some(1), Some(1)));
    open.0.lock().expect("no test panics with it").clear();
    assert_eq!(find("/a/x"), Some(1));
    assert_eq!(table.explain(&Request::get("any", "/a/x").lookup())[0].verdict, CandidateVerdict::Among);
}
