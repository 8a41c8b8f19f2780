//! Directives that apply to the whole node, as settings.

use super::Conversion;
use super::policies::BODY_SIZE;
use super::scope::BlockScope;
use crate::yaml::Yaml;

/// Settings with the same name and meaning.
const SAME: [&str; 6] = [
    "keepalive_timeout",
    "client_header_timeout",
    "send_timeout",
    "keepalive_requests",
    "underscores_in_headers",
    "worker_shutdown_timeout",
];

pub fn carry_over(conversion: &mut Conversion) {
    let main = BlockScope::new(conversion.main);
    let http = conversion.scope();
    let mut set = |name: &str, value: Yaml| conversion.converted.settings.push((name.to_owned(), value));

    set("worker_processes", scalar(main.value("worker_processes").unwrap_or("auto")));
    for name in SAME {
        if let Some(value) = http.value(name).or_else(|| main.value(name)) {
            set(name, scalar(value));
        }
    }
    set("client_max_body_size", scalar(http.value("client_max_body_size").unwrap_or(BODY_SIZE)));
    // nginx accepts paths with %2F; Weir refuses them unless this is set.
    set("allow_encoded_slashes", Yaml::Boolean(true));
    let trusted: Vec<_> = http.all("set_real_ip_from").iter().map(|directive| directive.argument(0)).collect();
    let addresses: Vec<_> = trusted.into_iter().filter(|address| *address != "unix:").collect();
    if !addresses.is_empty() {
        set("trusted_addresses", Yaml::texts(addresses));
    }
    resolver(conversion, &http);
    logs(conversion, &main, &http);
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
