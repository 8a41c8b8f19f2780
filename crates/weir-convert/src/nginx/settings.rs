//! Directives that apply to the whole node, as settings.

use super::Conversion;
use super::policies::body_size_of_node;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::yaml::Yaml;

/// Settings with the same name and meaning.
pub const SAME: [&str; 6] = [
    "keepalive_timeout",
    "client_header_timeout",
    "send_timeout",
    "keepalive_requests",
    "underscores_in_headers",
    "worker_shutdown_timeout",
];

/// More directives that servers and locations may contain in nginx, and that apply to the whole node here.
pub const OF_THE_NODE: [&str; 4] = ["set_real_ip_from", "resolver", "access_log", "error_log"];

pub fn carry_over(conversion: &mut Conversion) {
    let main = BlockScope::new(conversion.main);
    let body_size = body_size_of_node(conversion);
    // What the only server says applies to the whole node.
    let http = match conversion.only_server() {
        Some(server) => conversion.scope().inside(server.children()),
        None => conversion.scope(),
    };
    let mut set = |name: &str, value: Yaml| conversion.converted.settings.push((name.to_owned(), value));

    set("worker_processes", scalar(main.value("worker_processes").unwrap_or("auto")));
    for name in SAME {
        if let Some(value) = http.value(name).or_else(|| main.value(name)) {
            set(name, scalar(value));
        }
    }
    set("client_max_body_size", scalar(body_size));
    // nginx accepts paths with %2F; Weir refuses them unless this is set.
    set("allow_encoded_slashes", Yaml::Boolean(true));
    let trusted: Vec<_> = http.all("set_real_ip_from").iter().map(|directive| directive.argument(0)).collect();
    let addresses: Vec<_> = trusted.into_iter().filter(|address| *address != "unix:").collect();
    if !addresses.is_empty() {
        set("trusted_addresses", Yaml::texts(addresses));
    }
    encoded_slashes(conversion);
    resolver(conversion, &http);
    logs(conversion, &main, &http);
}

/// A path with an encoded slash may be that of another location in nginx, which matters if one of them controls access.
fn encoded_slashes(conversion: &mut Conversion) {
    let servers = conversion.http.iter().filter(|directive| directive.name == "server");
    let location = servers.flat_map(Directive::children).find(|directive| {
        let path = directive.arguments.last().map_or("", String::as_str);
        directive.name == "location" && path.trim_start_matches(['^', '/']).contains('/')
    });
    if let Some(location) = location {
        let text = "`%2F` in a path is no slash; nginx decodes it before it chooses a location, and \
                    sends paths on as they came, not normalised; see `allow_encoded_slashes`";
        conversion.differs(&location.place, format!("`{}`: {text}", location.head()));
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
    let servers: Vec<_> = resolver.arguments.iter().filter(|argument| !argument.contains('=')).collect();
    conversion.converted.settings.push(("dns_resolver".to_owned(), Yaml::texts(servers)));
    if let Some(valid) = resolver.arguments.iter().find_map(|argument| argument.strip_prefix("valid=")) {
        conversion.converted.settings.push(("dns_resolver_valid".to_owned(), Yaml::text(valid)));
    }
}

fn logs(conversion: &mut Conversion, main: &BlockScope, http: &BlockScope) {
    if let Some(log) = http.last("access_log").filter(|log| log.argument(0) != "off") {
        let format = http.all("log_format").into_iter().rfind(|format| format.argument(0) == log.argument(1));
        let path = ("path", Yaml::text(log.argument(0)));
        let value = match format {
            Some(format) => {
                let parts = format.after_first().iter().filter(|part| !part.starts_with("escape="));
                Yaml::map([path, ("format", Yaml::text(parts.cloned().collect::<String>()))])
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
