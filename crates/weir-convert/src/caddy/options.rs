//! Converts global options and logs to settings of the node.

use super::instead::instead;
use super::matcher::PRIVATE_RANGES;
use super::placeholder::field_variable;
use super::units::{bytes, seconds};
use crate::directive::Directive;
use crate::output::{Converted, ConvertedResource};
use crate::yaml::{Yaml, YamlMembers};

/// The largest `client_max_header_size`, in bytes.
const MOST_HEADER_SIZE: i64 = 1 << 20;

/// Options that need no counterpart.
const NEEDLESS: [&str; 10] = [
    "order",
    "persist_config",
    "skip_install_trust",
    "local_certs",
    "email",
    "shutdown_delay",
    "renew_interval",
    "storage_clean_interval",
    "storage_check",
    "filesystem",
];

/// The options that affect sites.
pub(super) struct GlobalOptions {
    pub http_port: u16,
    pub https_port: u16,
    /// Whether requests without TLS are redirected to HTTPS.
    pub has_redirects: bool,
    /// Whether certificates are obtained by ACME.
    pub has_certificates: bool,
    pub bind: Vec<String>,
    /// The members of `acme`, such as `email` and `directory`.
    pub acme: YamlMembers,
}

impl GlobalOptions {
    pub(super) fn read(options: &[Directive], converted: &mut Converted) -> GlobalOptions {
        let mut read = GlobalOptions {
            http_port: 80,
            https_port: 443,
            has_redirects: true,
            has_certificates: true,
            bind: Vec::new(),
            acme: Vec::new(),
        };
        // Caddy accepts paths with %2F; Weir refuses them unless this is set.
        set(converted, "allow_encoded_slashes", Yaml::Boolean(true));
        for option in options {
            read.option(option, converted);
        }
        read
    }

    fn option(&mut self, option: &Directive, converted: &mut Converted) {
        let value = option.argument(0);
        let mut acme = |name: &str, value: Yaml| self.acme.push((name.to_owned(), value));
        match option.name.as_str() {
            "http_port" => self.http_port = value.parse().unwrap_or(self.http_port),
            "https_port" => self.https_port = value.parse().unwrap_or(self.https_port),
            "auto_https" => {
                self.has_redirects &= !["off", "disable_redirects"].contains(&value);
                self.has_certificates &= !["off", "disable_certs"].contains(&value);
            }
            "default_bind" => self.bind = option.arguments.clone(),
            "email" => acme("email", Yaml::text(value)),
            "acme_ca" => acme("directory", Yaml::text(value)),
            "acme_ca_root" => acme("ca", Yaml::text(value)),
            "acme_eab" => {
                let of = |name: &str| {
                    let line = option.children().iter().find(|line| line.name == name);
                    Yaml::text(line.map_or("", |line| line.argument(0)))
                };
                acme("external_account", Yaml::map([("key_id", of("key_id")), ("hmac_key", of("mac_key"))]));
            }
            "storage" if value == "file_system" => {
                let path = option.children().iter().find(|line| line.name == "root").map(|line| line.argument(0));
                acme(
                    "storage",
                    Yaml::text(path.unwrap_or_else(|| option.arguments.get(1).map_or("acme", String::as_str))),
                );
            }
            "debug" => set(converted, "error_log_level", Yaml::text("debug")),
            "log" => error_log(converted, option),
            "grace_period" => {
                if let Some(time) = seconds(value) {
                    set(converted, "worker_shutdown_timeout", super::checks::number(time));
                }
            }
            "servers" => servers(converted, option),
            "admin" if value == "off" => {}
            name if NEEDLESS.contains(&name) => {}
            name => converted.lost(&option.place, format!("`{}`: {}", option.head(), instead(name))),
        }
    }
}

fn set(converted: &mut Converted, name: &str, value: Yaml) {
    converted.settings.retain(|(known, _)| known != name);
    converted.settings.push((name.to_owned(), value));
}

/// Adds addresses whose forwarding fields are trusted.
pub(super) fn trust(converted: &mut Converted, ranges: impl Iterator<Item = String>) {
    let mut all: Vec<Yaml> = match converted.settings.iter().find(|(name, _)| name == "trusted_addresses") {
        Some((_, Yaml::List(known))) => known.clone(),
        _ => Vec::new(),
    };
    for range in ranges.map(Yaml::Text) {
        if !all.contains(&range) {
            all.push(range);
        }
    }
    set(converted, "trusted_addresses", Yaml::List(all));
}

fn servers(converted: &mut Converted, option: &Directive) {
    if !option.arguments.is_empty() {
        let text = format!("`{}`: these are settings of the node; they hold for all its addresses", option.head());
        converted.differs(&option.place, text);
    }
    option.children().iter().for_each(|line| server(converted, line));
    client_address(converted, option.children());
}

/// The id of the global rule that finds the client's address.
const CLIENT_ADDRESS: &str = "client-address";

/// Whether the client's address may be another one than that of the connection, by which routes are chosen.
pub(super) fn finds_client(converted: &Converted) -> bool {
    let id = ("id".to_owned(), Yaml::text(CLIENT_ADDRESS));
    converted.global_rules.iter().any(|rule| rule.members.contains(&id))
}

/// The addresses of a `trusted_proxies`, if they are fixed.
fn fixed_ranges(line: &Directive) -> Option<Vec<String>> {
    (line.name == "trusted_proxies" && line.argument(0) == "static").then(|| {
        let ranges = line.after_first().iter().flat_map(|range| match range.as_str() {
            "private_ranges" => PRIVATE_RANGES.map(str::to_owned).to_vec(),
            range => vec![range.to_owned()],
        });
        ranges.collect()
    })
}

/// `trusted_proxies` with the options that say how the client's address is found, as a global rule with `real-ip`.
fn client_address(converted: &mut Converted, lines: &[Directive]) {
    let found = lines.iter().find_map(|line| Some((line, fixed_ranges(line)?)));
    let Some((line, ranges)) = found.filter(|(_, ranges)| !ranges.is_empty()) else { return };
    let of = |name: &str| lines.iter().find(|line| line.name == name);
    let fields = of("client_ip_headers").map_or(&[][..], |fields| &fields.arguments[..]);
    if let Some(fields) = of("client_ip_headers").filter(|fields| fields.arguments.len() > 1) {
        let text = format!("`{}`: only `{}` is read", fields.head(), fields.argument(0));
        converted.lost(&fields.place, text);
    }
    let field = fields.first().map_or("X-Forwarded-For", String::as_str);
    if of("trusted_proxies_strict").is_none() {
        let text = format!(
            "`{}`: the client's address is the last one in `{field}` that is not trusted, as with `trusted_proxies_strict`; \
             Caddy takes the first one, which clients can invent",
            line.head()
        );
        converted.differs(&line.place, text);
    }
    if finds_client(converted) {
        let text = format!("`{}`: the client's address is found in one way, the first that is written", line.head());
        return converted.lost(&line.place, text);
    }
    let options = [
        ("source", Yaml::text(format!("http_{}", field_variable(field)))),
        ("trusted_addresses", Yaml::texts(ranges)),
        ("recursive", Yaml::Boolean(true)),
    ];
    let plugins = Yaml::map([("real-ip", Yaml::map(options))]);
    let members = vec![("id".to_owned(), Yaml::text(CLIENT_ADDRESS)), ("plugins".to_owned(), plugins)];
    converted.global_rules.push(ConvertedResource::new(&line.place, line.head(), members));
}

/// The options of `servers`.
fn server(converted: &mut Converted, line: &Directive) {
    let time = |line: &Directive| seconds(line.argument(0)).map(super::checks::number);
    match line.name.as_str() {
        "timeouts" => {
            for line in line.children() {
                match (line.name.as_str(), time(line)) {
                    ("read_header", Some(time)) => set(converted, "client_header_timeout", time),
                    ("idle", Some(time)) => set(converted, "keepalive_timeout", time),
                    ("read_body", _) => {
                        let text = "`read_body`: see `client_body_min_rate`: request bodies need a minimum rate";
                        converted.lost(&line.place, text);
                    }
                    ("write", _) => {
                        let text = "`write`: see `send_timeout`: how long a client may read nothing";
                        converted.lost(&line.place, text);
                    }
                    _ => converted.lost(&line.place, format!("`{}` in `timeouts`", line.head())),
                }
            }
        }
        "max_header_size" => match bytes(line.argument(0)) {
            Some(size) => {
                if size > MOST_HEADER_SIZE {
                    converted.differs(&line.place, format!("`{}`: the limit is 1 MiB, the largest one", line.head()));
                }
                set(converted, "client_max_header_size", Yaml::Integer(size.min(MOST_HEADER_SIZE)));
            }
            None => converted.lost(&line.place, format!("`{}`", line.head())),
        },
        "trusted_proxies" if fixed_ranges(line).is_some() => {
            trust(converted, fixed_ranges(line).into_iter().flatten());
        }
        "protocols" => {
            let has = |protocol: &str| line.arguments.iter().any(|argument| argument == protocol);
            if !has("h2") {
                set(converted, "enable_http2", Yaml::Boolean(false));
            }
            if has("h3") {
                converted.lost(&line.place, "`protocols h3`: for HTTP/3, write `http3: true` in `listen`");
            }
        }
        "keepalive_interval" | "name" | "trusted_proxies_strict" | "client_ip_headers" => {}
        "metrics" => converted.lost(&line.place, "`metrics`: see `status`: `/metrics`"),
        "listener_wrappers" => {
            let text = "`listener_wrappers`: for the PROXY protocol, write `proxy_protocol: true` in `listen`";
            converted.lost(&line.place, text);
        }
        _ => converted.lost(&line.place, format!("`{}` in `servers`", line.head())),
    }
}

/// The error log of the process.
fn error_log(converted: &mut Converted, log: &Directive) {
    for line in log.children() {
        match (line.name.as_str(), line.argument(0)) {
            ("level", level) => set(converted, "error_log_level", Yaml::text(level.to_ascii_lowercase())),
            ("output", "stderr") => {}
            ("output", _) => {
                converted.differs(&line.place, format!("`{}`: the error log goes to standard error", line.head()));
            }
            ("format", _) => {}
            _ => converted.lost(&line.place, format!("`{}` in `log`", line.head())),
        }
    }
}

/// The access log of a site; Weir has one for the whole node.
pub(super) fn access_log(converted: &mut Converted, log: &Directive) {
    let (mut path, mut format) = ("/dev/stderr".to_owned(), Yaml::text("json"));
    for line in log.children() {
        match (line.name.as_str(), line.argument(0)) {
            ("output", "file") => {
                path = line.argument(1).to_owned();
                if line.block.is_some() {
                    converted.differs(&line.place, "`output file`: the log is not rotated; `logrotate` can move it");
                }
            }
            ("output", "stdout") => path = "/dev/stdout".to_owned(),
            ("output", "stderr") => {}
            ("output", "discard") => return,
            ("format", "json") => {}
            ("format", "console") => format = Yaml::text("combined"),
            ("level", _) => {}
            _ => converted.lost(&line.place, format!("`{}` in `log`: see `enable_access_log.format`", line.head())),
        }
    }
    let value = Yaml::map([("path", Yaml::text(path)), ("format", format)]);
    match converted.settings.iter().find(|(name, _)| name == "enable_access_log") {
        Some((_, known)) if *known == value => {}
        Some(_) => converted
            .lost(&log.place, "`log`: there is one access log for all sites; `file-logger` writes one for a route"),
        None => {
            if log.children().iter().any(|line| line.name == "format") || log.block.is_some() {
                let text = "`log`: the access log has the requests of all sites, in Weir's own format";
                converted.differs(&log.place, text);
            }
            set(converted, "enable_access_log", value);
        }
    }
}
