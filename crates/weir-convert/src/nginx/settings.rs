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
    for log in http.all("access_log") {
        let is_written_elsewhere = log.argument(0).starts_with("syslog:");
        let more = log.arguments.iter().find(|argument| argument.starts_with("if=") || argument.starts_with("gzip"));
        if is_written_elsewhere || more.is_some() {
            conversion.lost(&log.place, format!("`{}`: the log is written to a file, with all requests", log.head()));
        }
    }
    let files = http.all("access_log").into_iter().filter(|log| !log.argument(0).starts_with("syslog:"));
    let mut files: Vec<_> = files.collect();
    let written = files.pop();
    for log in files {
        conversion.lost(&log.place, format!("`{}`: there is one access log", log.head()));
    }
    if let Some(log) = written.filter(|log| log.argument(0) != "off") {
        let format = http.all("log_format").into_iter().rfind(|format| format.argument(0) == log.argument(1));
        let path = ("path", Yaml::text(log.argument(0)));
        let value = match format {
            Some(format) => {
                if let Some(escape) = format.after_first().iter().find(|part| part.starts_with("escape=")) {
                    let text = format!(
                        "`log_format {}`: `{escape}` has no counterpart; see `format: json`",
                        format.argument(0)
                    );
                    conversion.lost(&format.place, text);
                }
                let parts = format.after_first().iter().filter(|part| !part.starts_with("escape="));
                let (text, unknown) = without_unknown(&renamed(&parts.cloned().collect::<String>()));
                for name in unknown {
                    let name = format!("`log_format {}`: Weir has no variable `${name}`", format.argument(0));
                    conversion.lost(&format.place, name);
                }
                Yaml::map([path, ("format", Yaml::text(text))])
            }
            None => Yaml::text(log.argument(0)),
        };
        conversion.converted.settings.push(("enable_access_log".to_owned(), value));
    }
    if let Some(log) = http.last("error_log").or_else(|| main.last("error_log")) {
        let level = log.arguments.get(1).map_or("error", String::as_str);
        conversion.converted.settings.push(("error_log_level".to_owned(), Yaml::text(level)));
        if log.argument(0) != "stderr" {
            conversion.differs(&log.place, format!("`{}`: the error log goes to standard error", log.head()));
        }
    }
}
