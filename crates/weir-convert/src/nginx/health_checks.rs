//! Health checks of upstreams: `max_fails` and `fail_timeout` of servers, `health_check` of nginx Plus, and `check` of the module for
//! checks of upstreams, as `checks`.

use super::Conversion;
use super::scope::{BlockScope, seconds};
use super::status_match::{self, StatusMatch};
use super::syntax::Directive;
use super::target::PassTarget;
use crate::yaml::{Yaml, YamlMembers};

/// Why only the first of several checks of an upstream is made.
const ONE_CHECK: &str = "an upstream has one `checks.active`, which is that of the first `health_check`";
/// How the parameters of `health_check` begin that are not read.
const UNREAD: [&str; 3] = ["jitter=", "persistent", "keepalive_time="];

/// The most results in a row that `checks` counts.
const MOST_RESULTS: i64 = 254;

/// What the `server` lines of an upstream say of failures, if all say the same, as the member `passive` of `checks`.
pub(super) fn passive(conversion: &mut Conversion, block: &Directive) -> Option<(String, Yaml)> {
    let lines = || block.children().iter().filter(|child| child.name == "server");
    let used: Vec<&Directive> = lines().filter(|line| line.arguments.iter().all(|word| word != "down")).collect();
    // nginx never takes an only server out of rotation.
    if used.len() < 2 {
        return None;
    }
    let [first, ..] = used[..] else { return None };
    let policy = FailurePolicy::of(first);
    if let Some(other) = used.iter().find(|line| FailurePolicy::of(line) != policy) {
        let text = "an upstream has one `checks.passive` for all endpoints; the servers differ in `max_fails` or `fail_timeout`";
        conversion.lost(&other.place, format!("`server {}`: {text}", other.arguments.join(" ")));
        return None;
    }
    if policy == FailurePolicy::default() {
        return None;
    }
    let never = policy.failures == 0 || policy.pause == 0.0;
    let count = if never { 0 } else { policy.failures.clamp(1, MOST_RESULTS) };
    let mut unhealthy = vec![
        ("tcp_failures".to_owned(), Yaml::Integer(count)),
        ("timeouts".to_owned(), Yaml::Integer(count)),
        ("http_failures".to_owned(), Yaml::Integer(0)),
    ];
    if !never {
        unhealthy.push(("interval".to_owned(), Yaml::number(policy.pause)));
        let text = format!(
            "`server {}`: an endpoint is taken out after {count} failures in a row, not within `fail_timeout`",
            first.arguments.join(" ")
        );
        conversion.differs(&first.place, text);
    }
    Some(("passive".to_owned(), Yaml::map([("unhealthy", Yaml::Map(unhealthy))])))
}

/// After how many failures a server is not used, and for how many seconds.
#[derive(PartialEq)]
struct FailurePolicy {
    failures: i64,
    pause: f64,
}

impl Default for FailurePolicy {
    fn default() -> FailurePolicy {
        FailurePolicy { failures: 1, pause: 10.0 }
    }
}

impl FailurePolicy {
    fn of(server: &Directive) -> FailurePolicy {
        let usual = FailurePolicy::default();
        FailurePolicy {
            failures: value(server, "max_fails=").and_then(|value| value.parse().ok()).unwrap_or(usual.failures),
            pause: value(server, "fail_timeout=").and_then(seconds).unwrap_or(usual.pause),
        }
    }
}

fn value<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    directive.arguments.iter().find_map(|argument| argument.strip_prefix(name))
}

fn number(directive: &Directive, name: &str) -> Option<i64> {
    value(directive, name).and_then(|value| value.parse().ok())
}

/// The options of active checks.
struct EndpointChecks {
    options: YamlMembers,
    interval: Yaml,
    successes: i64,
    failures: i64,
    statuses: Option<StatusMatch>,
}

impl EndpointChecks {
    fn yaml(self) -> Yaml {
        let EndpointChecks { mut options, interval, successes, failures, statuses } = self;
        let (successes, failures) = (successes.clamp(1, MOST_RESULTS), failures.clamp(1, MOST_RESULTS));
        let mut healthy = vec![("interval".to_owned(), interval.clone())];
        let mut unhealthy = vec![("interval".to_owned(), interval)];
        if let Some(StatusMatch { good, bad }) = statuses {
            let list = |statuses: Vec<i64>| Yaml::List(statuses.into_iter().map(Yaml::Integer).collect());
            healthy.push(("http_statuses".to_owned(), list(good)));
            unhealthy.push(("http_statuses".to_owned(), list(bad)));
            unhealthy.push(("http_failures".to_owned(), Yaml::Integer(failures)));
        }
        healthy.push(("successes".to_owned(), Yaml::Integer(successes)));
        unhealthy.extend(["tcp_failures", "timeouts"].map(|name| (name.to_owned(), Yaml::Integer(failures))));
        options.push(("healthy".to_owned(), Yaml::Map(healthy)));
        options.push(("unhealthy".to_owned(), Yaml::Map(unhealthy)));
        Yaml::Map(options)
    }
}

/// `health_check` of a location, as the member `checks` of the upstream with its target: nginx shares the results among all locations with
/// this target.
pub(super) fn of_target(conversion: &mut Conversion, target: &PassTarget) -> Option<(String, Yaml)> {
    let location = conversion.checked.iter().find(|location| passes_to(location, target.authority))?.clone();
    let own = |name: &str| location.own().iter().find(|child| child.name == name);
    let check = own("health_check")?;
    let is_grpc = value(check, "type=") == Some("grpc");
    let kind = match (is_grpc, target.scheme.ends_with('s')) {
        (true, true) => "grpcs",
        (true, false) => "grpc",
        (false, true) => "https",
        (false, false) => "http",
    };
    let mut options = vec![("type".to_owned(), Yaml::text(kind))];
    if is_grpc {
        let service = value(check, "grpc_service=").filter(|service| !service.is_empty());
        options.extend(service.map(|service| ("grpc_service".to_owned(), Yaml::text(service))));
    } else {
        options.push(("http_path".to_owned(), Yaml::text(value(check, "uri=").unwrap_or("/"))));
    }
    options.extend(number(check, "port=").map(|port| ("port".to_owned(), Yaml::Integer(port))));
    let interval = value(check, "interval=").and_then(seconds).unwrap_or(5.0);
    let timeouts = if target.scheme.starts_with("grpc") { "grpc_read_timeout" } else { "proxy_read_timeout" };
    let timeout = location.value(timeouts).and_then(seconds);
    let timeout = timeout.filter(|timeout| *timeout > 0.0).unwrap_or(60.0);
    options.push(("timeout".to_owned(), Yaml::number(timeout)));
    for word in check.arguments.iter().filter(|word| word.starts_with("mandatory") || word.starts_with("grpc_status="))
    {
        let text = match word.starts_with("mandatory") {
            true => "endpoints are in rotation before their first check",
            false => "only `SERVING` is healthy",
        };
        conversion.lost(&check.place, format!("`{word}` in `{}`: {text}", check.head()));
    }
    let statuses = match value(check, "match=") {
        _ if is_grpc => None,
        None => Some(status_match::usual()),
        Some(name) => Some(status_match::of(conversion, name)),
    };
    let checks = EndpointChecks {
        options,
        interval: Yaml::number(interval),
        successes: number(check, "passes=").unwrap_or(1),
        failures: number(check, "fails=").unwrap_or(1),
        statuses,
    };
    Some(("checks".to_owned(), Yaml::map([("active", checks.yaml())])))
}

/// Collects the scopes of locations that check the servers of their targets.
pub(super) fn collect<'a>(scope: BlockScope<'a>, found: &mut Vec<BlockScope<'a>>) {
    let inner = scope.own().iter().filter(|child| ["server", "location"].contains(&child.name.as_str()));
    let inner: Vec<BlockScope> = inner.map(|child| scope.inside(child.children())).collect();
    if scope.own().iter().any(|child| child.name == "health_check") {
        found.push(scope);
    }
    inner.into_iter().for_each(|scope| collect(scope, found));
}

/// Reports the checks that are not made, and the parameters that are not carried over.
pub(super) fn report(conversion: &mut Conversion) {
    let mut known: Vec<(&str, &[String])> = Vec::new();
    for scope in conversion.checked.clone() {
        let mut checks = scope.own().iter().filter(|child| child.name == "health_check");
        let Some(first) = checks.next() else { continue };
        let why = match authority(scope.own()) {
            None => Some("write `checks.active` of the upstream"),
            Some(authority) => match known.iter().find(|(other, _)| *other == authority) {
                Some((_, arguments)) if *arguments != first.arguments => Some(ONE_CHECK),
                Some(_) => None,
                None => {
                    known.push((authority, &first.arguments));
                    None
                }
            },
        };
        if let Some(why) = why {
            conversion.lost(&first.place, format!("`{}`: {why}", first.head()));
        }
        for check in checks {
            conversion.lost(&check.place, format!("`{}`: {ONE_CHECK}", check.head()));
        }
        let is_lost = |word: &&String| UNREAD.iter().any(|begin| word.starts_with(begin));
        for word in first.arguments.iter().filter(is_lost) {
            let text = "each check has a connection of its own, and the time between two is the same";
            conversion.lost(&first.place, format!("`{word}` in `{}`: {text}", first.head()));
        }
    }
}

/// The fixed host and port, or the upstream, that a location passes requests to.
fn authority(location: &[Directive]) -> Option<&str> {
    let own = |name: &str| location.iter().find(|child| child.name == name);
    let pass = own("proxy_pass").or_else(|| own("grpc_pass")).and_then(PassTarget::of);
    pass.map(|pass| pass.authority).filter(|authority| !authority.contains('$'))
}

/// Whether the target of a location is this authority.
fn passes_to(location: &BlockScope, wanted: &str) -> bool {
    authority(location.own()) == Some(wanted)
}

/// `check` of an upstream block, with the directives beside it, as the member `active` of `checks`.
pub(super) fn of_module(conversion: &mut Conversion, block: &Directive) -> Option<(String, Yaml)> {
    let own = |name: &str| block.children().iter().find(|child| child.name == name);
    let check = own("check")?;
    let kind = value(check, "type=").unwrap_or("tcp");
    let mut options = vec![("type".to_owned(), Yaml::text(if kind == "http" { "http" } else { "tcp" }))];
    if !["tcp", "http"].contains(&kind) {
        let text = format!("`{}`: a connection is enough for an endpoint to be healthy", check.head());
        conversion.lost(&check.place, text);
    }
    if value(check, "default_down=") != Some("false") {
        let text = "endpoints are in rotation before their first check";
        conversion.differs(&check.place, format!("`{}`: {text}", check.head()));
    }
    let milliseconds = |name: &str, usual: f64| {
        value(check, name).and_then(|value| value.parse::<f64>().ok()).unwrap_or(usual) / 1_000.0
    };
    options.push(("timeout".to_owned(), Yaml::number(milliseconds("timeout=", 1_000.0))));
    options.extend(number(check, "port=").map(|port| ("port".to_owned(), Yaml::Integer(port))));
    let mut statuses = None;
    if kind == "http" {
        options.extend(request(conversion, own("check_http_send")));
        let alive = own("check_http_expect_alive").map(|alive| alive.arguments.as_slice()).unwrap_or_default();
        statuses = Some(status_match::of_classes(alive));
    }
    let checks = EndpointChecks {
        options,
        interval: Yaml::number(milliseconds("interval=", 30_000.0)),
        successes: number(check, "rise=").unwrap_or(2),
        failures: number(check, "fall=").unwrap_or(5),
        statuses,
    };
    Some(("active".to_owned(), checks.yaml()))
}

/// The request of a check, of which the method, the path and the fields are known.
fn request(conversion: &mut Conversion, send: Option<&Directive>) -> YamlMembers {
    let Some(send) = send else { return Vec::new() };
    let mut lines = send.argument(0).split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method @ ("GET" | "HEAD")), Some(path)) =
        (words.next(), words.next().filter(|path| path.starts_with('/')))
    else {
        let text = format!("`{}`: the check is a GET of `/`", send.head().replace(['\r', '\n'], " "));
        conversion.lost(&send.place, text);
        return Vec::new();
    };
    let mut options = vec![("http_path".to_owned(), Yaml::text(path))];
    if method != "GET" {
        options.push(("http_method".to_owned(), Yaml::text(method)));
    }
    let fields: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let is_host = |line: &&&str| line.to_ascii_lowercase().starts_with("host:");
    let host = fields.iter().find(is_host).and_then(|line| line.split_once(':')).map(|(_, host)| host.trim());
    options.extend(host.map(|host| ("host".to_owned(), Yaml::text(host))));
    let others = fields.iter().filter(|line| !is_host(line) && !line.to_ascii_lowercase().starts_with("connection:"));
    let others: Vec<&&str> = others.collect();
    if !others.is_empty() {
        options.push(("req_headers".to_owned(), Yaml::texts(others)));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// The `checks` of the upstream on one line, and the findings.
    fn converted(upstream: &str, location: &str) -> (String, Vec<String>) {
        let text = format!(
            "match ok {{ status 200-299; status ! 204; body ~ ok; }} upstream a {{ {upstream} }}
             server {{ location / {{ proxy_pass http://a; proxy_set_header Host h; {location} }} }}"
        );
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let checks = converted.upstreams[0].members.iter().find(|(name, _)| name == "checks");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        (checks.map_or_else(String::new, |(_, checks)| checks.flow()), found)
    }

    #[test]
    fn failures_of_servers_become_passive_checks() {
        let servers = |parameters: &str| format!("server 10.0.0.1:1 {parameters}; server 10.0.0.2:1 {parameters};");
        let never = "{ passive: { unhealthy: { tcp_failures: 0, timeouts: 0, http_failures: 0 } } }";
        for never_out in ["max_fails=0", "fail_timeout=0"] {
            assert_eq!(converted(&servers(never_out), ""), (never.to_owned(), Vec::new()));
        }
        let (checks, found) = converted(&servers("max_fails=3 fail_timeout=30s"), "");
        let expected = "{ passive: { unhealthy: { tcp_failures: 3, timeouts: 3, http_failures: 0, interval: 30 } } }";
        assert_eq!(checks, expected);
        assert!(found[0].contains("after 3 failures in a row, not within `fail_timeout`"), "{found:?}");
        let usual = servers("max_fails=1 fail_timeout=10s");
        for unsaid in [usual.as_str(), "server 10.0.0.1:1 max_fails=5;", "server a:1 max_fails=5; server b:1 down;"] {
            assert_eq!(converted(unsaid, ""), (String::new(), Vec::new()), "{unsaid}");
        }
        let (checks, found) = converted("server a:1 max_fails=5; server b:1;", "");
        assert!(checks.is_empty() && found[0].contains("not converted: `server b:1`"), "{found:?}");
    }

    #[test]
    fn health_checks_of_a_location_are_those_of_its_upstream() {
        let (checks, found) = converted(
            "server 10.0.0.1:1 max_fails=0; server 10.0.0.2:1 max_fails=0;",
            "health_check interval=2s fails=3 passes=2 uri=/up port=81 match=ok mandatory;",
        );
        assert!(checks.starts_with("{ passive: { unhealthy: { tcp_failures: 0"), "{checks}");
        let active = "active: { type: http, http_path: /up, port: 81, timeout: 60, \
                      healthy: { interval: 2, http_statuses: [200, 201, 202, 203, 205, 206, 207, 208, 226], successes: 2 }, \
                      unhealthy: { interval: 2, http_statuses: [204, 300, ";
        assert!(
            checks.contains(active) && checks.contains("http_failures: 3, tcp_failures: 3, timeouts: 3"),
            "{checks}"
        );
        for told in ["`body ~ ok` in `match ok`: only the status", "`mandatory` in `health_check"] {
            assert!(found.iter().any(|found| found.contains(told)), "{found:?}");
        }
        let (checks, found) = converted("server 10.0.0.1:1;", "health_check type=grpc grpc_service=a.B;");
        assert!(checks.contains("type: grpc, grpc_service: a.B") && !checks.contains("statuses"), "{checks}");
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn checks_of_the_module_for_upstreams_are_carried_over() {
        let (checks, found) = converted(
            "server 10.0.0.1:1; check interval=3000 rise=2 fall=4 timeout=500 type=http; \
             check_http_send \"HEAD /up HTTP/1.0\\r\\nHost: a.example\\r\\nX-Probe: 1\\r\\n\\r\\n\"; \
             check_http_expect_alive http_2xx;",
            "",
        );
        let expected = "{ active: { type: http, timeout: 0.5, http_path: /up, http_method: HEAD, host: a.example, \
                        req_headers: [\"X-Probe: 1\"], healthy: { interval: 3, http_statuses: [200, ";
        assert!(checks.starts_with(expected) && checks.contains("http_failures: 4"), "{checks}");
        assert!(found.len() == 1 && found[0].contains("in rotation before their first check"), "{found:?}");
        let (checks, found) = converted("server 10.0.0.1:1; check interval=1000 type=mysql default_down=false;", "");
        assert!(checks.contains("type: tcp"), "{checks}");
        assert!(found.len() == 1 && found[0].contains("a connection is enough"), "{found:?}");
    }

    #[test]
    fn the_time_for_an_answer_may_be_that_of_the_server() {
        let text = "upstream a { server 10.0.0.1:1; } server { proxy_read_timeout 7s; proxy_redirect off;
                    location / { proxy_pass http://a; health_check; } }";
        let converted = convert("t", text, &|_| Ok(Vec::new())).expect("correct");
        assert!(converted.yaml().contains("timeout: 7"), "{}", converted.yaml());
    }

    #[test]
    fn checks_that_are_not_made_are_told() {
        let told = |location: &str| converted("server 10.0.0.1:1;", location).1;
        for (location, expected) in [
            ("health_check; health_check uri=/b;", "`health_check uri=/b`: an upstream has one `checks.active`"),
            ("health_check jitter=1s;", "`jitter=1s` in `health_check"),
            ("health_check persistent mandatory;", "`persistent` in `health_check"),
            ("health_check keepalive_time=1s;", "`keepalive_time=1s` in `health_check"),
            (
                "health_check; } location /b { proxy_pass http://a; proxy_set_header Host h; health_check uri=/b;",
                "`health_check uri=/b`: an upstream has one `checks.active`",
            ),
            ("} location /b { proxy_pass http://$x; health_check uri=/b;", "`health_check uri=/b`: write"),
            ("} location /b { fastcgi_pass f:1; health_check uri=/b;", "`health_check uri=/b`: write"),
        ] {
            let found = told(location);
            assert!(found.iter().any(|found| found.contains(expected)), "{location}: {found:?}");
        }
        assert_eq!(told("health_check;"), [""; 0]);
    }
}
