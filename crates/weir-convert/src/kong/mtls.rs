//! `mtls-auth`: client certificates as credentials, and the authorities that clients' certificates are verified with.

use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::yaml::{Yaml, YamlMembers};

/// The list of the credentials.
pub(super) const CREDENTIALS: &str = "mtls_auth_credentials";

/// The options of the plugin that are converted, or have nothing to do here.
pub(super) const OPTIONS: [&str; 10] = [
    "ca_certificates",
    "consumer_by",
    "skip_consumer_lookup",
    "allow_partial_chain",
    "authenticated_group_by",
    "cache_ttl",
    "cert_cache_ttl",
    "http_timeout",
    "send_ca_dn",
    "ssl_verify",
];

/// What of a consumer may be the name in a certificate.
fn consumer_by(config: &DocumentValue) -> Vec<&str> {
    match config.get("consumer_by") {
        _ if skips_lookup(config) => Vec::new(),
        None => vec!["username", "custom_id"],
        Some(_) => config.texts("consumer_by"),
    }
}

/// Whether requests that pass have no consumer.
pub(super) fn skips_lookup(config: &DocumentValue) -> bool {
    config.is_true("skip_consumer_lookup", false)
}

/// Whether a consumer needs no credential.
pub(super) fn finds_by_names(config: &DocumentValue) -> bool {
    !consumer_by(config).is_empty()
}

pub(super) fn options(config: &DocumentValue) -> Yaml {
    if skips_lookup(config) {
        return Yaml::map([("skip_consumer_lookup", Yaml::Boolean(true))]);
    }
    match finds_by_names(config) {
        true => Yaml::map([("consumer_by", Yaml::texts(consumer_by(config)))]),
        false => Yaml::Map(Vec::new()),
    }
}

/// What is different for every route with the plugin.
pub(super) const DIFFERENCE: &str = "`mtls-auth`: whether a certificate was revoked is not asked, and the common name counts only in \
                              certificates without alternative names";

/// Every instance of the plugin, wherever it is.
fn instances(root: &DocumentValue) -> impl Iterator<Item = &DocumentValue> {
    let services = root.list("services");
    let routes = services.iter().flat_map(|service| service.list("routes")).chain(root.list("routes"));
    let owners = [root].into_iter().chain(services).chain(routes);
    owners.flat_map(|owner| owner.list("plugins")).filter(|plugin| plugin.text("name") == Some("mtls-auth"))
}

/// The ids of the authorities that all instances of the plugin have in common; `None` if they differ, since an entry of `ssls`
/// has one list for all routes.
fn authority_ids(root: &DocumentValue) -> Option<Vec<&str>> {
    let of = |plugin: &'_ DocumentValue| -> Vec<String> {
        let mut ids = plugin.get("config").map(|config| config.texts("ca_certificates")).unwrap_or_default();
        ids.sort_unstable();
        ids.into_iter().map(str::to_owned).collect()
    };
    let first = instances(root).next()?;
    let wanted = of(first);
    let ids = first.get("config")?.texts("ca_certificates");
    (!ids.is_empty() && instances(root).all(|plugin| of(plugin) == wanted)).then_some(ids)
}

/// The certificates of these authorities, as one PEM text; `None` if not all of them are in the file.
pub(super) fn authorities(root: &DocumentValue) -> Option<String> {
    let certificate = |id: &str| {
        let all = root.list("ca_certificates");
        let cert = all.iter().find(|authority| authority.text("id") == Some(id))?.text("cert")?;
        Some(format!("{}\n", cert.trim_end())).filter(|cert| !cert.starts_with("{vault"))
    };
    authority_ids(root)?.into_iter().map(certificate).collect()
}

/// What entries of `ssls` demand of clients, if a route authenticates them by certificates. As in Kong, a client without a
/// certificate that is valid gets through the handshake.
pub(super) fn client(root: &DocumentValue) -> Option<(String, Yaml)> {
    let demand = Yaml::map([("ca", Yaml::text(authorities(root)?)), ("mode", Yaml::text("any"))]);
    Some(("client".to_owned(), demand))
}

/// Reports that the gateway asks no client for a certificate, if the file has no certificate for an entry of `ssls`.
pub(super) fn report_unasked(conversion: &mut DocumentConversion) {
    if let Some(plugin) = instances(conversion.root).next().filter(|_| conversion.converted.ssls.is_empty()) {
        let what =
            "`mtls-auth`: clients are not asked for certificates, and refused; write `client` into an entry of `ssls`";
        conversion.lost(plugin, what);
    }
}

/// The options of a credential; `None` if it is for another authority than the only one.
pub(super) fn credential(root: &DocumentValue, credential: &DocumentValue) -> Option<YamlMembers> {
    if let Some(authority) = credential.get("ca_certificate") {
        let id = authority.as_text().or_else(|| authority.text("id"))?;
        if authority_ids(root)? != [id] {
            return None;
        }
    }
    let name = credential.text("subject_name").filter(|name| !name.is_empty() && !name.starts_with("{vault"))?;
    Some(vec![("subject_name".to_owned(), Yaml::text(name))])
}
