//! Kong: the declarative configuration (`kong.yml`, decK), as YAML or JSON.
//!
//! If a plugin is configured at several levels, Kong uses the most specific one. The effective plugins are therefore written into
//! each route. A route whose access control cannot be converted responds to every request with 503.

mod bodies;
mod consumer_groups;
mod consumers;
mod health_checks;
mod limits;
mod mtls;
mod observers;
mod options;
mod plugins;
mod route;
mod tracing;
mod transformers;
mod upstream;

use crate::conversion::DocumentConversion;
use crate::document::{self, DocumentValue, ValueKind};
use crate::forwarding;
use crate::output::{Converted, ConvertedResource};
use crate::yaml::Yaml;
use crate::{SourcePlace, SyntaxError};

/// Converts a configuration.
pub fn convert(file: &str, text: &str) -> Result<Converted, SyntaxError> {
    let root = document::parse(file, text)?;
    if root.text("_format_version").is_none() {
        let text = "there is no `_format_version`; a declarative configuration of Kong begins with it".to_owned();
        return Err(SyntaxError { place: SourcePlace { file: file.to_owned(), line: root.line }, text });
    }
    let mut conversion = DocumentConversion::new(file, &root);
    conversion.converted.settings =
        vec![("listen".to_owned(), Yaml::text(":8000")), ("allow_encoded_slashes".to_owned(), Yaml::Boolean(true))];
    certificates(&mut conversion);
    route::carry_over(&mut conversion);
    consumers::carry_over(&mut conversion);
    const KNOWN: [&str; 17] = [
        "_format_version",
        "_transform",
        "_info",
        "services",
        "routes",
        "upstreams",
        "consumers",
        "plugins",
        "certificates",
        "acls",
        "keyauth_credentials",
        "basicauth_credentials",
        "jwt_secrets",
        mtls::CREDENTIALS,
        consumer_groups::GROUPS,
        consumer_groups::MEMBERS,
        consumer_groups::PLUGINS,
    ];
    let is_used = |name: &str| name == "ca_certificates" && mtls::authorities(&root).is_some();
    for (name, value) in root.members().iter().filter(|(name, _)| !KNOWN.contains(&name.as_str()) && !is_used(name)) {
        conversion.lost(value, format!("`{name}`: this kind of entity is not converted"));
    }
    forwarding::report(&mut conversion.converted);
    Ok(conversion.finished())
}

/// Plugins whose absence affects neither access control nor responses.
const HARMLESS: [&str; 13] = [
    "prometheus",
    "http-log",
    "file-log",
    "tcp-log",
    "udp-log",
    "syslog",
    "loggly",
    "datadog",
    "statsd",
    "zipkin",
    "opentelemetry",
    "proxy-cache",
    "correlation-id",
];

/// The name of an entity that a member refers to, or the name itself.
fn name_of<'a>(value: &'a DocumentValue, member: &str) -> Option<&'a str> {
    let value = value.get(member)?;
    value.as_text().or_else(|| value.text("name"))
}

/// Members that say nothing about requests.
const NOTES: [&str; 5] = ["id", "tags", "created_at", "updated_at", "_comment"];

/// Reports the members of an entity that are not converted.
fn report_others(conversion: &mut DocumentConversion, entity: &DocumentValue, what: &str, known: &[&str]) {
    for (name, value) in entity.members() {
        let is_unset = matches!(value.kind, ValueKind::Null) || value.as_text() == Some("false");
        if !is_unset && !known.contains(&name.as_str()) && !NOTES.contains(&name.as_str()) {
            conversion.lost(value, format!("`{name}` of {what}"));
        }
    }
}

fn certificates(conversion: &mut DocumentConversion) {
    for certificate in conversion.root.list("certificates") {
        let name = |sni: &DocumentValue| sni.as_text().or_else(|| sni.text("name")).map(str::to_owned);
        let snis: Vec<String> = certificate.list("snis").iter().filter_map(name).collect();
        let Some((cert, key)) = certificate.text("cert").zip(certificate.text("key")) else {
            conversion.lost(certificate, "a certificate without `cert` and `key`");
            continue;
        };
        if snis.is_empty() || cert.starts_with("{vault") || key.starts_with("{vault") {
            conversion.lost(certificate, "a certificate without `snis`, or from a vault: write an entry of `ssls`");
            continue;
        }
        let mut members = vec![
            ("snis".to_owned(), Yaml::texts(snis)),
            ("cert".to_owned(), Yaml::text(cert)),
            ("key".to_owned(), Yaml::text(key)),
        ];
        members.extend(mtls::client(conversion.root));
        let item = ConvertedResource::new(&conversion.place(certificate), "certificate", members);
        conversion.converted.ssls.push(item);
    }
    mtls::report_unasked(conversion);
    if !conversion.converted.ssls.is_empty() {
        let tls = Yaml::map([("address", Yaml::text(":8443")), ("tls", Yaml::Boolean(true))]);
        conversion.converted.settings[0].1 = Yaml::List(vec![Yaml::text(":8000"), tls]);
    }
}

#[cfg(test)]
mod tests;
