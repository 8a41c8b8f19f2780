//! `proxy_pass` and `grpc_pass`: the upstream of a route, its `Host`, and other header fields.

use super::Conversion;
use super::fields;
use super::headers_more;
use super::health_checks;
use super::location::Matching;
use super::pass_path;
use super::scope::{BlockScope, seconds};
use super::syntax::Directive;
use super::target::PassTarget;
use super::target_choice;
use super::upstream;
use crate::pattern::regex_quoted;
use crate::yaml::{Yaml, YamlMembers};

/// The members of a route that specify its upstream.
pub(super) fn members(conversion: &mut Conversion, scope: &BlockScope, pass: &Directive) -> Option<YamlMembers> {
    let Some(target) = PassTarget::of(pass) else {
        let text = format!("`{}`: the target is neither `http://host:port` nor the name of an upstream", pass.head());
        conversion.lost(&pass.place, text);
        return None;
    };
    if target.authority.contains('$') {
        target_choice::tell(conversion, &target, pass);
        return None;
    }
    let rest = upstream_members(conversion, scope, &target, pass);
    let mut members = vec![upstream(conversion, &target, rest)];
    members.extend(timeout(scope, target.scheme));
    Some(members)
}

/// The member that names the upstream of a target or contains it. `rest`: what the upstream has beside its nodes.
pub(super) fn upstream(conversion: &mut Conversion, target: &PassTarget, rest: YamlMembers) -> (String, Yaml) {
    match block(conversion, target) {
        Some(block) => {
            let id = upstream::registered(conversion, target.authority, block, rest);
            ("upstream_id".to_owned(), Yaml::text(id))
        }
        None => {
            let mut upstream = vec![("nodes".to_owned(), Yaml::map([(&*node(target), Yaml::Integer(1))]))];
            upstream.extend(rest);
            ("upstream".to_owned(), Yaml::Map(upstream))
        }
    }
}

/// The `upstream` block that a target names.
pub(super) fn block<'a>(conversion: &Conversion<'a>, target: &PassTarget) -> Option<&'a Directive> {
    conversion.http.iter().find(|block| block.name == "upstream" && block.argument(0) == target.authority)
}

fn node(target: &PassTarget) -> String {
    let default = if target.scheme.ends_with('s') { 443 } else { 80 };
    match upstream::host_and_port(target.authority) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => format!("{host}:{default}"),
    }
}

pub(super) fn upstream_members(
    conversion: &mut Conversion,
    scope: &BlockScope,
    target: &PassTarget,
    pass: &Directive,
) -> YamlMembers {
    let mut members = Vec::new();
    if target.scheme != "http" {
        members.push(("scheme".to_owned(), Yaml::text(target.scheme)));
    }
    // A host with a port is set in `proxy-rewrite`.
    if let Some(host) = host(conversion, scope, target).filter(|host| upstream::host_and_port(host).1.is_none()) {
        members.push(("pass_host".to_owned(), Yaml::text("rewrite")));
        members.push(("upstream_host".to_owned(), Yaml::text(host)));
    }
    let prefix = prefix(target.scheme);
    members.extend(retries(conversion, scope, prefix));
    members.extend(health_checks::of_target(conversion, target));
    if target.scheme.ends_with('s') {
        members.push(("tls".to_owned(), Yaml::Map(tls(conversion, scope, pass, prefix))));
    }
    members
}

/// How the names of the directives for upstreams of this kind begin.
fn prefix(scheme: &str) -> &'static str {
    if scheme.starts_with("grpc") { "grpc" } else { "proxy" }
}

/// The lines that set fields for upstreams of this kind.
pub(super) fn set_fields<'a>(scope: &BlockScope<'a>, scheme: &str) -> Vec<&'a Directive> {
    scope.all(&format!("{}_set_header", prefix(scheme)))
}

/// The `Host` for the upstream, if it is not the client's: by default, nginx sends the name in `proxy_pass`.
pub(super) fn host<'a>(
    conversion: &mut Conversion,
    scope: &BlockScope<'a>,
    target: &PassTarget<'a>,
) -> Option<&'a str> {
    let sets_host = |directive: &&Directive| directive.argument(0).eq_ignore_ascii_case("host");
    let set = set_fields(scope, target.scheme).into_iter().rfind(sets_host);
    let value = set.map(|directive| directive.argument(1));
    match value {
        None | Some("$proxy_host") => Some(target.authority),
        Some(host @ ("$host:$server_port" | "$http_host:$server_port")) => {
            let text =
                format!("`proxy_set_header Host {host}`: the port is that of the client's `Host`, if it has one");
            set.into_iter().for_each(|set| conversion.differs(&set.place, &*text));
            None
        }
        Some("$http_host") => None,
        Some("$host") => {
            if conversion.has_unusual_port() {
                let text = "`proxy_set_header Host $host`: the port in the client's `Host`, if there is one, is passed on, too";
                set.into_iter().for_each(|set| conversion.differs_here_first("Host", &set.place, text));
            }
            None
        }
        Some(host) if host.contains('$') || host.is_empty() => {
            let text = format!("`proxy_set_header Host {host}`: the upstream gets the `Host` of the client");
            set.into_iter().for_each(|set| conversion.lost(&set.place, &*text));
            None
        }
        Some(host) => Some(host),
    }
}

/// Methods that `proxy-rewrite` takes.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The cases of `proxy_next_upstream` that `retry_on` has, too.
const STATUSES: [&str; 7] = ["http_403", "http_404", "http_429", "http_500", "http_502", "http_503", "http_504"];

fn retries(conversion: &mut Conversion, scope: &BlockScope, prefix: &str) -> YamlMembers {
    let Some(next) = scope.last(&format!("{prefix}_next_upstream")) else { return tries(scope, prefix) };
    if next.argument(0) == "off" {
        return vec![("retries".to_owned(), Yaml::Integer(0))];
    }
    let mut reasons = Vec::new();
    let mut others = Vec::new();
    for case in next.arguments.iter().map(String::as_str) {
        match case {
            // Connections that fail are always given up for another endpoint.
            "error" => {}
            "timeout" => reasons.push("read_timeout"),
            case if STATUSES.contains(&case) => reasons.push(case),
            case => others.push(case),
        }
    }
    if !others.is_empty() {
        let text = format!("`{} {}`: requests are not retried for these reasons", next.name, others.join(" "));
        conversion.lost(&next.place, text);
    }
    let mut members = tries(scope, prefix);
    if !reasons.is_empty() {
        members.push(("retry_on".to_owned(), Yaml::texts(reasons)));
    }
    members
}

/// `retries`, if the number of tries is limited.
pub(super) fn tries(scope: &BlockScope, prefix: &str) -> YamlMembers {
    let tries = scope.value(&format!("{prefix}_next_upstream_tries")).and_then(|tries| tries.parse::<i64>().ok());
    tries.filter(|&tries| tries > 0).map(|tries| ("retries".to_owned(), Yaml::Integer(tries - 1))).into_iter().collect()
}

/// `tls` of an upstream. `prefix`: how the names of the directives begin.
pub(super) fn tls(conversion: &mut Conversion, scope: &BlockScope, pass: &Directive, prefix: &str) -> YamlMembers {
    let is_verified = scope.is_on(&format!("{prefix}_ssl_verify"));
    let mut members = vec![("verify".to_owned(), Yaml::Boolean(is_verified))];
    if !is_verified {
        let text = format!(
            "the certificate of this upstream is not verified, as `{prefix}_ssl_verify` is off by default; remove \
             `tls.verify: false` to verify it"
        );
        conversion.differs(&pass.place, text);
    }
    for (name, ours) in
        [("trusted_certificate", "ca"), ("certificate", "client_cert"), ("certificate_key", "client_key")]
    {
        let file = scope.value(&format!("{prefix}_ssl_{name}"));
        members.extend(file.map(|file| (ours.to_owned(), Yaml::text(file))));
    }
    // By default it is the host of `proxy_pass`, as here.
    match scope.last(&format!("{prefix}_ssl_name")).filter(|name| name.argument(0) != "$proxy_host") {
        Some(name) if name.argument(0).contains('$') => {
            let text = format!("`{}`: write the name in `tls.server_name` of the upstream", name.head());
            conversion.lost(&name.place, text);
        }
        // nginx ignores a port.
        Some(name) => {
            let (name, _) = upstream::host_and_port(name.argument(0));
            members.push(("server_name".to_owned(), Yaml::text(name)));
        }
        None => {}
    }
    members
}

/// The `timeout` of the route, if it differs from nginx's default of 60 s.
pub(super) fn timeout(scope: &BlockScope, scheme: &str) -> Option<(String, Yaml)> {
    let prefix = prefix(scheme);
    let times = ["connect", "send", "read"].map(|kind| {
        let written = scope.value(&format!("{prefix}_{kind}_timeout")).and_then(seconds);
        let written = written.filter(|seconds| *seconds > 0.0).unwrap_or(60.0);
        (kind.to_owned(), Yaml::number(written))
    });
    let is_default = times.iter().all(|(_, time)| *time == Yaml::Integer(60));
    (!is_default).then(|| ("timeout".to_owned(), Yaml::Map(times.to_vec())))
}

/// The options of `proxy-rewrite`: the path, if `proxy_pass` has one, and the fields to set or remove. `is_rewritten`: a `rewrite`
/// changes the path before.
pub(super) fn rewritten<'a>(
    conversion: &mut Conversion,
    scope: &BlockScope<'a>,
    pass: &'a Directive,
    matching: &Matching,
    is_rewritten: bool,
) -> YamlMembers {
    let mut members = Vec::new();
    let path = PassTarget::of(pass).and_then(|target| target.path);
    match (path, matching) {
        (Some(path), _) if path.contains('$') => {
            members.extend(pass_path::changed(conversion, pass, path, matching, is_rewritten));
        }
        (Some(path), _) if let Some(why) = pass_path::refused(path) => pass_path::tell_lost(conversion, pass, why),
        (Some(path), Matching::Exact(_)) => members.push(("uri".to_owned(), Yaml::text(path))),
        (Some(path), Matching::Prefix { path: prefix, .. }) if path != prefix => {
            let pair = [format!("^{}(.*)", regex_quoted(prefix)), format!("{path}$1")];
            members.push(("regex_uri".to_owned(), Yaml::texts(pair)));
        }
        _ => {}
    }
    let target = PassTarget::of(pass);
    let host = target.as_ref().and_then(|target| host(conversion, scope, target));
    if let Some(host) = host.filter(|host| upstream::host_and_port(host).1.is_some()) {
        members.push(("host".to_owned(), Yaml::text(host)));
    }
    let scheme = target.map_or("http", |target| target.scheme);
    members.extend(head_changes(conversion, scope, scheme));
    members
}

/// The options `method` and `headers` of `proxy-rewrite` for an upstream of this kind.
pub(super) fn head_changes(conversion: &mut Conversion, scope: &BlockScope, scheme: &str) -> YamlMembers {
    let set = set_fields(scope, scheme);
    let earlier = headers_more::of_requests(conversion, scope, &set);
    let lines: Vec<&Directive> = earlier.iter().chain(set).collect();
    let method = method(conversion, scope, scheme);
    method.into_iter().chain(fields::changes(conversion, scope, &lines)).collect()
}

/// `proxy_method`.
fn method(conversion: &mut Conversion, scope: &BlockScope, scheme: &str) -> Option<(String, Yaml)> {
    let directive = scope.last("proxy_method").filter(|_| prefix(scheme) == "proxy")?;
    let method = directive.argument(0).to_ascii_uppercase();
    if !METHODS.contains(&method.as_str()) {
        let text = format!("`{}`: see `method` of `proxy-rewrite`, which takes the usual methods", directive.head());
        conversion.lost(&directive.place, text);
        return None;
    }
    Some(("method".to_owned(), Yaml::text(method)))
}
