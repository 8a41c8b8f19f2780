//! Directives that apply to the whole node, as settings.

use super::Conversion;
use super::addresses::is_network;
use super::client_address;
use super::directives::SAME;
use super::policies::body_size_of_node;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::upstream::host_and_port;
use super::variables::{renamed, without_unknown};
use crate::output::ConvertedResource;
use crate::yaml::Yaml;

pub(super) fn carry_over(conversion: &mut Conversion) {
    let main = BlockScope::new(conversion.main);
    let body_size = body_size_of_node(conversion);
    // What the only server says applies to the whole node.
    let http = match conversion.only_server() {
        Some(server) => conversion.scope().inside(server.children()),
        None => conversion.scope(),
    };
    let mut set = |name: &str, value: Yaml| conversion.converted.settings.push((name.to_owned(), value));

    set("worker_processes", scalar(main.value("worker_processes").unwrap_or("auto")));
    for directive in SAME.iter().filter_map(|name| http.last(name).or_else(|| main.last(name))) {
        match (directive.name.as_str(), directive.argument(0)) {
            // Each connection is closed after its first request.
            ("keepalive_timeout", "0" | "0s") => set("keepalive_requests", Yaml::Integer(1)),
            ("keepalive_requests", _) if http.value("keepalive_timeout") == Some("0") => {}
            (name, value) => set(name, scalar(value)),
        }
    }
    // A file with a `stream` block alone has nothing to say about requests.
    let has_requests = conversion.stream.is_empty() || conversion.http.iter().any(|block| block.name == "server");
    if has_requests {
        set("client_max_body_size", scalar(body_size));
    }
    if let Some(timeout) = http.last("keepalive_timeout").filter(|timeout| timeout.arguments.len() > 1) {
        conversion.differs(&timeout.place, format!("`{}`: the field `Keep-Alive` is not sent", timeout.head()));
    }
    if has_requests {
        encoded_slashes(conversion);
    }
    client_address::carry_over(conversion, &http);
    resolver(conversion, &http);
    logs(conversion, &main, &http);
}

/// nginx accepts paths with `%2F`; Weir refuses them unless this is set. Such a path may be that of another location in nginx, so
/// they stay refused if one that matters controls access.
fn encoded_slashes(conversion: &mut Conversion) {
    let servers = conversion.http.iter().filter(|directive| directive.name == "server");
    let mut locations = Vec::new();
    servers.for_each(|server| locations_with_slashes(server, &mut locations));
    if let Some(location) = locations.iter().find(|location| super::access::is_restricted(location)) {
        let text = "paths with `%2F` are refused with 400; nginx decodes it before it chooses a location, and this one may \
                    refuse requests; see `allow_encoded_slashes`";
        return conversion.differs(&location.place, format!("`{}`: {text}", location.head()));
    }
    conversion.converted.settings.push(("allow_encoded_slashes".to_owned(), Yaml::Boolean(true)));
    if let Some(location) = locations.first() {
        let text = "`%2F` in a path is no slash; nginx decodes it before it chooses a location, and \
                    sends paths on as they came, not normalised; see `allow_encoded_slashes`";
        conversion.differs(&location.place, format!("`{}`: {text}", location.head()));
    }
}

/// Collects the locations whose path has a slash after the first character.
fn locations_with_slashes<'a>(block: &'a Directive, found: &mut Vec<&'a Directive>) {
    for location in block.children().iter().filter(|child| child.name == "location") {
        let path = location.arguments.last().map_or("", String::as_str);
        if path.trim_start_matches(['^', '/']).contains('/') {
            found.push(location);
        }
        locations_with_slashes(location, found);
    }
}

/// A number, a boolean or text, as written.
fn scalar(value: &str) -> Yaml {
    match value {
        "on" => Yaml::Boolean(true),
        "off" => Yaml::Boolean(false),
        value => value.parse().map_or_else(|_| Yaml::text(value), Yaml::Integer),
    }
}

fn resolver(conversion: &mut Conversion, http: &BlockScope) {
    let Some(resolver) = http.last("resolver") else { return };
    let (servers, names): (Vec<_>, Vec<_>) = resolver
        .arguments
        .iter()
        .filter(|argument| !argument.contains('='))
        .partition(|server| is_network(host_and_port(server).0.trim_matches(['[', ']'])));
    if !names.is_empty() {
        let text = format!("`{}`: write the addresses of the DNS servers", resolver.head());
        conversion.lost(&resolver.place, text);
    }
    if resolver.arguments.iter().any(|argument| ["ipv6=off", "ipv4=off"].contains(&argument.as_str())) {
        let text = format!("`{}`: names are resolved to addresses of both kinds", resolver.head());
        conversion.differs(&resolver.place, text);
    }
    if servers.is_empty() {
        return;
    }
    conversion.converted.settings.push(("dns_resolver".to_owned(), Yaml::texts(servers)));
    if let Some(valid) = resolver.arguments.iter().find_map(|argument| argument.strip_prefix("valid=")) {
        conversion.converted.settings.push(("dns_resolver_valid".to_owned(), Yaml::text(valid)));
    }
}

fn logs(conversion: &mut Conversion, main: &BlockScope, http: &BlockScope) {
    let mut files = Vec::new();
    for log in http.all("access_log") {
        if let Some(more) = log.arguments.iter().find(|word| word.starts_with("if=") || word.starts_with("gzip")) {
            let text = format!("`{}`: the log has all requests, and `{more}` has no counterpart", log.head());
            conversion.lost(&log.place, text);
        }
        match log.argument(0).strip_prefix("syslog:") {
            Some(server) => syslog(conversion, http, log, server),
            None => files.push(log),
        }
    }
    let written = files.pop();
    for log in files {
        conversion.lost(&log.place, format!("`{}`: there is one access log; `file-logger` writes more", log.head()));
    }
    if let Some(log) = written.filter(|log| log.argument(0) != "off") {
        let path = ("path", Yaml::text(log.argument(0)));
        let value = match format_of(http, log) {
            Some(format) => Yaml::map([path, ("format", Yaml::text(line(conversion, format)))]),
            None => Yaml::text(log.argument(0)),
        };
        // What is written to a device such as /dev/null or /dev/stdout does not overwrite what is there.
        if !log.argument(0).starts_with("/dev/") {
            let text =
                format!("`{}`: while nginx runs, both write to this file; try Weir with another `path`", log.head());
            conversion.differs(&log.place, text);
        }
        conversion.converted.settings.push(("enable_access_log".to_owned(), value));
    }
    if let Some(log) = http.last("error_log").or_else(|| main.last("error_log")) {
        // nginx tells of endpoints that fail as errors; they are warnings here, since another endpoint may have answered.
        let level = log.arguments.get(1).map_or("warn", |level| if level == "error" { "warn" } else { level });
        conversion.converted.settings.push(("error_log_level".to_owned(), Yaml::text(level)));
        if log.argument(0) != "stderr" {
            conversion.differs(&log.place, format!("`{}`: the error log goes to standard error", log.head()));
        }
    }
}

/// The format that a log names.
fn format_of<'a>(http: &BlockScope<'a>, log: &Directive) -> Option<&'a Directive> {
    http.all("log_format").into_iter().rfind(|format| format.argument(0) == log.argument(1))
}

/// The line of a format, with variables that Weir has.
fn line(conversion: &mut Conversion, format: &Directive) -> String {
    let name = format.argument(0);
    let parts = format.after_first().iter().filter(|part| !part.starts_with("escape="));
    let (text, unknown) = without_unknown(&renamed(&parts.cloned().collect::<String>()));
    let own = if text.trim_start().starts_with('{') { "escape=json" } else { "escape=default" };
    let escape = format.after_first().iter().find(|part| part.starts_with("escape="));
    let escape = escape.map_or("escape=default", String::as_str);
    if escape != own {
        let text = format!("`log_format {name}`: `{escape}`: values in a format like this one have `{own}`");
        conversion.differs(&format.place, text);
    }
    for unknown in unknown {
        conversion.lost(&format.place, format!("`log_format {name}`: Weir has no variable `${unknown}`"));
    }
    text
}

/// The format of a log that names none.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
                        \"$http_user_agent\"";
/// The port of a server of syslog that is written without one.
const SYSLOG_PORT: i64 = 514;

/// A log that goes to a server of syslog, as the plugin of this name in a global rule. `server`: what follows `syslog:`.
fn syslog(conversion: &mut Conversion, http: &BlockScope, log: &Directive, server: &str) {
    let address = server.split(',').find_map(|part| part.strip_prefix("server=")).unwrap_or_default();
    let is_given = conversion.converted.global_rules.iter().any(|rule| rule.members[0].1 == Yaml::text(SYSLOG_RULE));
    let is_server = !address.is_empty() && !address.starts_with("unix:");
    if !is_server || is_given {
        let why = match is_server {
            true => "a global rule has one `syslog`; write another one in the routes",
            false => "write `syslog` with the `host` and the `port` of a server",
        };
        return conversion.lost(&log.place, format!("`{}`: {why}", log.head()));
    }
    let (host, port) = host_and_port(address);
    let text = format!(
        "`{}`: messages have the form of RFC 5424, and a record in JSON with the line as `message`; facility, severity and tag cannot \
         be chosen",
        log.head()
    );
    conversion.differs(&log.place, text);
    let line = match format_of(http, log) {
        Some(format) => line(conversion, format),
        None => COMBINED.to_owned(),
    };
    let options = Yaml::map([
        ("host", Yaml::text(host.trim_matches(['[', ']']))),
        ("port", Yaml::Integer(port.unwrap_or(SYSLOG_PORT))),
        ("sock_type", Yaml::text("udp")),
        ("log_format", Yaml::map([("message", Yaml::text(line))])),
    ]);
    let members =
        vec![("id".to_owned(), Yaml::text(SYSLOG_RULE)), ("plugins".to_owned(), Yaml::map([("syslog", options)]))];
    conversion.converted.global_rules.push(ConvertedResource::new(&log.place, log.head(), members));
}

/// The id of the global rule with the log that goes to a server.
const SYSLOG_RULE: &str = "access-log";

#[cfg(test)]
mod tests {
    use super::super::convert;

    #[test]
    fn a_log_for_a_server_is_a_rule_for_all_requests() {
        let text = "log_format short '$remote_addr $status'; access_log syslog:server=[2001:db8::1]:5140,tag=n short; access_log /l;
                    access_log syslog:server=unix:/run/log; server { location / { return 204; } }";
        let converted = convert("t", text, &|_| Ok(Vec::new())).expect("correct");
        let yaml = converted.yaml();
        for part in [
            "- id: access-log",
            "host: \"2001:db8::1\"",
            "port: 5140",
            "message: $remote_addr $status",
            "enable_access_log: /l",
        ] {
            assert!(yaml.contains(part), "{part}: {yaml}");
        }
        let found: Vec<String> = converted.findings.iter().map(ToString::to_string).collect();
        assert!(found[0].contains("write `syslog` with the `host` and the `port`"), "{found:?}");
        assert!(found[1].contains("messages have the form of RFC 5424"), "{found:?}");
        assert!(found[2].contains("`access_log /l`: while nginx runs, both write to this file"), "{found:?}");
        assert_eq!(found.len(), 3);
        let to_device = "access_log /dev/stdout; server { location / { return 204; } }";
        assert!(convert("t", to_device, &|_| Ok(Vec::new())).expect("correct").findings.is_empty());
    }
}
