//! Converts `deployment`: the source of the resources, and the access to the Admin API.

use super::NodeConversion;
use crate::document::DocumentValue;
use crate::yaml::{Yaml, YamlMembers};

pub(super) fn carry_over(settings: &mut NodeConversion) {
    let role = settings.text("deployment.role").unwrap_or("traditional").to_owned();
    let mut provider = "etcd".to_owned();
    for role_of in ["traditional", "control_plane", "data_plane"] {
        let path = format!("deployment.role_{role_of}.config_provider");
        if let Some(text) = settings.text(&path).filter(|_| role_of == role) {
            text.clone_into(&mut provider);
        }
    }
    if role == "control_plane"
        && let Some(at) = settings.take("deployment.role")
    {
        settings
            .conversion
            .differs(at, "`role: control_plane`: the node serves traffic, too; there is no node without");
    }
    let is_off = settings.text("apisix.enable_admin") == Some("false");
    if is_off || role == "data_plane" || provider != "etcd" {
        // There is no Admin API, neither here nor in APISIX: its settings have no effect.
        settings.take("deployment.admin");
    } else {
        admin(settings);
    }
    match &*provider {
        "etcd" => {
            etcd(settings);
            encryption(settings);
        }
        "yaml" | "json" => settings.set("include", Yaml::texts([format!("apisix.{provider}")])),
        other => {
            let text = format!("`config_provider: {other}`: resources come from etcd, a store of our own, or a file");
            let at = settings.conversion.root;
            settings.conversion.lost(at, text);
        }
    }
}

/// A placeholder for a key that the user has to choose, which no other key shares.
fn new_key(name: &str) -> String {
    let word = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_uppercase() } else { '_' };
    format!("${{{{WEIR_{}_KEY}}}}", name.chars().map(word).collect::<String>())
}

/// The keys of APISIX's examples, which are public.
const PUBLIC_KEYS: [&str; 2] = ["edd1c9f034335f136f87ad84b625c8f1", "4054f7cf07e344346cd3f287985e76a2"];

fn admin(settings: &mut NodeConversion) {
    let allowed = settings.take("deployment.admin.allow_admin");
    let is_local =
        |value: &DocumentValue| value.as_text().is_some_and(|text| text.starts_with("127.") || text == "::1");
    let is_open = allowed.is_some_and(|list| !list.items().iter().all(is_local) || list.items().is_empty());
    let listen = settings.take("deployment.admin.admin_listen");
    let port = listen.and_then(|listen| listen.text("port")).unwrap_or("9180");
    let ip = listen.and_then(|listen| listen.text("ip")).filter(|_| is_open);
    let ip = ip.unwrap_or(if is_open { "0.0.0.0" } else { "127.0.0.1" });
    if let Some(at) = allowed.filter(|_| is_open) {
        let text = "`deployment.admin.allow_admin`: the Admin API does not look at addresses; limit who reaches it with `listen` or a \
                    firewall";
        settings.conversion.lost(at, text);
    }
    let keys = settings.take("deployment.admin.admin_key").map(|list| keys(settings, list)).unwrap_or_default();
    let keys = if keys.is_empty() { vec![key("admin", &new_key("admin"), "admin")] } else { keys };
    let mut members =
        vec![("listen".to_owned(), Yaml::text(format!("{ip}:{port}"))), ("keys".to_owned(), Yaml::List(keys))];
    let is_https = settings.text("deployment.admin.https_admin") == Some("true");
    let mtls = settings.take("deployment.admin.admin_api_mtls").cloned().unwrap_or_default();
    let files = [("cert", "admin_ssl_cert"), ("key", "admin_ssl_cert_key"), ("ca", "admin_ssl_ca_cert")];
    let files: YamlMembers = files
        .iter()
        .filter_map(|(ours, theirs)| {
            Some(((*ours).to_owned(), Yaml::text(mtls.text(theirs).filter(|text| !text.is_empty())?)))
        })
        .collect();
    if is_https && !files.is_empty() {
        members.push(("tls".to_owned(), Yaml::Map(files)));
    }
    settings.set("admin", Yaml::Map(members));
}

fn key(name: &str, key: &str, role: &str) -> Yaml {
    Yaml::map([("name", Yaml::text(name)), ("key", Yaml::text(key)), ("role", Yaml::text(role))])
}

fn keys(settings: &mut NodeConversion, list: &DocumentValue) -> Vec<Yaml> {
    let mut all = Vec::new();
    for item in list.items() {
        let text = item.text("key").unwrap_or_default();
        let is_usable = !text.is_empty() && !PUBLIC_KEYS.contains(&text);
        let (name, role) = (item.text("name").unwrap_or("admin"), item.text("role").unwrap_or("admin"));
        let new = new_key(name);
        if !is_usable {
            let text = format!("an admin key that is empty or public: choose one and set the variable in `{new}`");
            settings.conversion.differs(item, text);
        }
        all.push(key(name, if is_usable { text } else { &new }, role));
    }
    all
}

fn etcd(settings: &mut NodeConversion) {
    let hosts = settings.take("deployment.etcd.host").map(DocumentValue::to_yaml);
    let prefix = settings.text("deployment.etcd.prefix").unwrap_or("/apisix");
    let mut members = vec![
        ("hosts".to_owned(), hosts.unwrap_or_else(|| Yaml::texts(["http://127.0.0.1:2379"]))),
        ("prefix".to_owned(), Yaml::text(prefix)),
    ];
    for name in ["user", "password", "timeout"] {
        if let Some(value) = settings.take(&format!("deployment.etcd.{name}")) {
            members.push((name.to_owned(), value.to_yaml()));
        }
    }
    let mut tls = Vec::new();
    for name in ["cert", "key"] {
        if let Some(value) = settings.take(&format!("deployment.etcd.tls.{name}")) {
            tls.push((name.to_owned(), value.to_yaml()));
        }
    }
    let is_https = |value: &DocumentValue| value.as_text().is_some_and(|text| text.starts_with("https:"));
    let host = settings.take("deployment.etcd.host").and_then(|hosts| hosts.items().iter().find(|host| is_https(host)));
    if let Some(host) = host {
        let ca = settings.conversion.root.at_pointer("#/apisix/ssl/ssl_trusted_certificate");
        match ca.and_then(DocumentValue::as_text).filter(|ca| *ca != "system") {
            Some(ca) => tls.insert(0, ("ca".to_owned(), Yaml::text(ca))),
            None => {
                tls.insert(0, ("ca".to_owned(), Yaml::text("etcd-ca.crt")));
                settings.conversion.differs(host, "the certificate of etcd is verified: write its CA to `etcd-ca.crt`");
            }
        }
        if settings.text("deployment.etcd.tls.verify") == Some("false") {
            settings
                .conversion
                .lost(host, "`deployment.etcd.tls.verify: false`: the certificate of etcd is always verified");
        }
        members.push(("tls".to_owned(), Yaml::Map(tls)));
    }
    settings.set("store", Yaml::map([("etcd", Yaml::Map(members))]));
}

fn encryption(settings: &mut NodeConversion) {
    let enabled = settings.text("apisix.data_encryption.enable_encrypt_fields").is_none_or(|text| text == "true");
    match settings.take("apisix.data_encryption.keyring").filter(|_| enabled) {
        Some(keyring) => {
            let keys = match keyring.as_text() {
                Some(key) => Yaml::texts([key]),
                None => keyring.to_yaml(),
            };
            settings.set("data_encryption", Yaml::map([("keyring", keys)]));
        }
        None if enabled => {
            let text = "secrets in etcd are encrypted with APISIX's public default keys: give both a key of your own, as in the guide \
                        \"From APISIX on etcd to Weir\"";
            let root = settings.conversion.root;
            settings.conversion.differs(root, text);
        }
        None => {}
    }
}
