//! `real_ip_from`, `real_ip_header` and `real_ip_recursive` of `nginx_config.http`: from whom the client's address is taken, and from
//! which field.

use super::NodeConversion;
use crate::document::DocumentValue;
use crate::output::ConvertedResource;
use crate::yaml::{Yaml, YamlMembers};

/// APISIX's default of `real_ip_header`.
const FIELD: &str = "X-Real-IP";
/// The value of `real_ip_header` for the address that the PROXY protocol names.
const PROXY_PROTOCOL: &str = "proxy_protocol";

/// APISIX's default of `real_ip_from`.
const PEER: &str = "127.0.0.1";

const REAL_IP: &str = "real-ip";

/// Writes the trusted peers, and a global rule with `real-ip`. A node that has its resources from a store cannot have one in its
/// file, so it is reported there.
pub(super) fn carry_over(settings: &mut NodeConversion) {
    let header = settings.take("nginx_config.http.real_ip_header");
    let field = header.and_then(DocumentValue::as_text).unwrap_or(FIELD).to_owned();
    let is_recursive =
        settings.text("nginx_config.http.real_ip_recursive").is_some_and(|value| ["on", "true"].contains(&value));
    let list = settings.take("nginx_config.http.real_ip_from");
    let Some(from) = list.or(header) else { return };
    let listed = list.into_iter().flat_map(DocumentValue::items).filter_map(DocumentValue::as_text);
    let listed = listed.filter(|peer| *peer != "unix:");
    let peers: Vec<&str> = if list.is_some() { listed.collect() } else { vec![PEER] };
    if peers.is_empty() {
        return;
    }
    if !has(settings, "trusted_addresses") {
        settings.set("trusted_addresses", Yaml::texts(&peers));
    }
    // The address that the PROXY protocol names is that of the connection.
    if field == PROXY_PROTOCOL {
        return;
    }
    let options = Yaml::map([
        ("source", Yaml::text(format!("http_{}", field.to_ascii_lowercase().replace('-', "_")))),
        ("trusted_addresses", Yaml::texts(&peers)),
        ("recursive", Yaml::Boolean(is_recursive)),
    ]);
    enable(settings);
    if has(settings, "store") || has(settings, "admin") {
        let text = format!(
            "`nginx_config.http.real_ip_from`: the client's address is that of the connection until the store has a global rule \
             with `{REAL_IP}: {}`",
            options.flow()
        );
        return settings.conversion.lost(from, text);
    }
    let plugins = Yaml::map([(REAL_IP, options)]);
    let members = vec![("id".to_owned(), Yaml::text("client-address")), ("plugins".to_owned(), plugins)];
    let place = settings.conversion.place(from);
    let rule = ConvertedResource::new(&place, "real_ip_from", members);
    settings.conversion.converted.global_rules.push(rule);
}

fn has(settings: &NodeConversion, name: &str) -> bool {
    settings.conversion.converted.settings.iter().any(|(known, _)| known == name)
}

/// Adds the plugin to the list of those that may be used, if there is one: APISIX needs no plugin for this.
fn enable(settings: &mut NodeConversion) {
    let known: &mut YamlMembers = &mut settings.conversion.converted.settings;
    let entry = Yaml::map([("name", Yaml::text(REAL_IP))]);
    if let Some((_, Yaml::List(plugins))) = known.iter_mut().find(|(name, _)| name == "plugins")
        && !plugins.contains(&entry)
    {
        plugins.push(entry);
    }
}
