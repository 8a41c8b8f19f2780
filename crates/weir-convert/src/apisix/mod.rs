//! Apache APISIX: `config.yaml`, the settings of a node. Its resources need no conversion: they are read from etcd, or from
//! `apisix.yaml`, unchanged.
//!
//! A setting that is not in the file has APISIX's default, which is written to the result where Weir's default differs.

mod admin;
mod client_address;
mod leftovers;
mod listen;
mod stream;

use std::cell::RefCell;
use std::collections::HashSet;

use crate::conversion::DocumentConversion;
use crate::document::{self, DocumentValue, ValueKind};
use crate::output::Converted;
use crate::yaml::Yaml;
use crate::{SourcePlace, SyntaxError};

/// Converts the settings.
pub fn convert(file: &str, text: &str) -> Result<Converted, SyntaxError> {
    let root = document::parse(file, text)?;
    let error =
        |text: &str| SyntaxError { place: SourcePlace { file: file.to_owned(), line: 1 }, text: text.to_owned() };
    if ["routes", "services", "upstreams", "consumers"]
        .iter()
        .any(|list| root.get(list).is_some_and(|value| matches!(value.kind, ValueKind::List(_))))
    {
        return Err(error(
            "is an `apisix.yaml` with resources, which `weir run` and `weir check` read without conversion",
        ));
    }
    if !SECTIONS.iter().any(|section| root.get(section).is_some()) {
        return Err(error(
            "is no `config.yaml` of APISIX: it has none of `apisix`, `deployment`, `nginx_config`, `plugins`",
        ));
    }
    let mut settings = NodeConversion { conversion: DocumentConversion::new(file, &root), taken: RefCell::default() };
    listen::carry_over(&mut settings);
    node(&mut settings);
    access_log(&mut settings);
    admin::carry_over(&mut settings);
    if let Some(plugins) = settings.take("plugins") {
        let named = |plugin: &DocumentValue| Yaml::map([("name", plugin.to_yaml())]);
        settings.set("plugins", Yaml::List(plugins.items().iter().map(named).collect()));
    }
    client_address::carry_over(&mut settings);
    leftovers::report(&mut settings);
    Ok(settings.conversion.finished())
}

const SECTIONS: [&str; 7] =
    ["apisix", "deployment", "nginx_config", "plugins", "plugin_attr", "stream_plugins", "graphql"];

/// The state of the conversion, with the members of the file that were used.
struct NodeConversion<'a> {
    conversion: DocumentConversion<'a>,
    taken: RefCell<HashSet<String>>,
}

impl<'a> NodeConversion<'a> {
    /// The value at a path such as `nginx_config.http.send_timeout`. It then counts as used, with everything in it.
    fn take(&self, path: &str) -> Option<&'a DocumentValue> {
        self.taken.borrow_mut().insert(path.to_owned());
        path.split('.').try_fold(self.conversion.root, |value, name| value.get(name))
    }

    fn text(&self, path: &str) -> Option<&'a str> {
        self.take(path)?.as_text()
    }

    fn set(&mut self, name: &str, value: Yaml) {
        self.conversion.converted.settings.push((name.to_owned(), value));
    }
}

/// Members that correspond to a setting of Weir with the same meaning.
const SAME: [(&str, &str); 11] = [
    ("nginx_config.worker_processes", "worker_processes"),
    ("nginx_config.error_log_level", "error_log_level"),
    ("nginx_config.worker_shutdown_timeout", "worker_shutdown_timeout"),
    ("nginx_config.http.keepalive_timeout", "keepalive_timeout"),
    ("nginx_config.http.client_header_timeout", "client_header_timeout"),
    ("nginx_config.http.client_max_body_size", "client_max_body_size"),
    ("nginx_config.http.send_timeout", "send_timeout"),
    ("apisix.dns_resolver", "dns_resolver"),
    ("apisix.dns_resolver_valid", "dns_resolver_valid"),
    ("apisix.trusted_addresses", "trusted_addresses"),
    ("wasm", "wasm"),
];

fn node(settings: &mut NodeConversion) {
    for (path, name) in SAME {
        if let Some(value) = settings.take(path) {
            settings.set(name, value.to_yaml());
        }
    }
    let is_off = settings.text("nginx_config.http.underscores_in_headers").is_some_and(|text| text == "off");
    settings.set("underscores_in_headers", Yaml::Boolean(!is_off));
    settings.set("allow_encoded_slashes", Yaml::Boolean(true));
    if let Some(file) =
        settings.take("apisix.ssl.ssl_trusted_certificate").filter(|file| file.as_text() != Some("system"))
    {
        settings.set("ssl_trusted_certificate", file.to_yaml());
    }
    let registries = [("eureka", "discovery.eureka"), ("consul", "discovery.consul")];
    let mut found = Vec::new();
    for (name, path) in registries {
        found.extend(settings.take(path).map(|registry| (name.to_owned(), registry.to_yaml())));
    }
    if !found.is_empty() {
        settings.set("discovery", Yaml::Map(found));
    }
    dns_servers(settings);
    if let Some(status) = settings.take("apisix.status") {
        let (ip, port) = (status.text("ip").unwrap_or("127.0.0.1"), status.text("port").unwrap_or("7085"));
        settings.set("status", Yaml::text(format!("{ip}:{port}")));
    }
}

/// The DNS servers that APISIX asks for `discovery_type: dns` alone.
fn dns_servers(settings: &mut NodeConversion) {
    let Some(servers) = settings.take("discovery.dns.servers") else { return };
    if settings.take("apisix.dns_resolver").is_some() {
        let text = "`discovery.dns.servers`: the servers of `dns_resolver` are asked for all names";
        return settings.conversion.lost(servers, text);
    }
    settings.set("dns_resolver", servers.to_yaml());
    let text = "`discovery.dns.servers`: asked for all names, as `dns_resolver`; APISIX asks them for `discovery_type: dns` alone";
    settings.conversion.differs(servers, text);
}

fn access_log(settings: &mut NodeConversion) {
    let http = settings.take("nginx_config.http").cloned().unwrap_or_default();
    let mut taken = settings.taken.borrow_mut();
    taken.remove("nginx_config.http");
    let members =
        ["enable_access_log", "access_log", "access_log_format", "access_log_format_escape", "access_log_buffer"];
    taken.extend(members.map(|member| format!("nginx_config.http.{member}")));
    drop(taken);
    if !http.is_true("enable_access_log", true) {
        return;
    }
    let Some(at) = members[1..4].iter().find_map(|member| http.get(member)) else {
        let text = "there is no access log unless it is set; APISIX writes one by default: add \
                    `enable_access_log: logs/access.log`";
        return settings.conversion.differs(&http, text);
    };
    let path = http.text("access_log").unwrap_or("logs/access.log");
    if !path.starts_with('/') {
        let text = format!(
            "`access_log: {path}`: relative to the directory in which the node is started; its folder must exist"
        );
        settings.conversion.differs(at, text);
    }
    let format = http.text("access_log_format").map(|format| format.trim().replace('\n', ""));
    let is_json = http.text("access_log_format_escape") == Some("json");
    if is_json && format.is_some() {
        let text = "`access_log_format` that is JSON: written with our fields (`format: json`); for others write a map of them";
        settings.conversion.differs(at, text);
        return settings
            .set("enable_access_log", Yaml::map([("path", Yaml::text(path)), ("format", Yaml::text("json"))]));
    }
    settings.set(
        "enable_access_log",
        match format {
            Some(format) => Yaml::map([("path", Yaml::text(path)), ("format", Yaml::text(format))]),
            None => Yaml::text(path),
        },
    );
}

#[cfg(test)]
mod tests;
