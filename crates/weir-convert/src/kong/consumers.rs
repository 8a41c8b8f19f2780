//! Consumers, with their credentials and groups.

use super::{consumer_groups, mtls};
use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::output::ConvertedResource;
use crate::yaml::Yaml;

/// The label of a consumer that has its groups of `acls`.
pub(super) const GROUPS: &str = "groups";

/// Entities of a list at the top of the file that belong to a consumer.
fn of_consumer<'a>(
    root: &'a DocumentValue,
    list: &str,
    consumer: &'a DocumentValue,
) -> impl Iterator<Item = &'a DocumentValue> + use<'a> {
    root.list(list).iter().filter(|entity| is_of(entity, consumer))
}

fn is_of(entity: &DocumentValue, consumer: &DocumentValue) -> bool {
    let name = entity.text("consumer").or_else(|| {
        let consumer = entity.get("consumer")?;
        consumer.text("username").or(consumer.text("name")).or(consumer.text("id"))
    });
    name.is_some() && [consumer.text("username"), consumer.text("id")].contains(&name)
}

/// Whether groups at the top of the file belong to consumers that the file has not.
pub(super) fn has_groups_of_others(root: &DocumentValue) -> bool {
    let is_known = |acl: &DocumentValue| root.list("consumers").iter().any(|consumer| is_of(acl, consumer));
    root.list("acls").iter().any(|acl| !is_known(acl))
}

/// Reports credentials and groups of consumers that the file has not.
fn report_of_others(conversion: &mut DocumentConversion) {
    let root = conversion.root;
    for list in KINDS.iter().map(|(kind, _)| *kind).chain(["acls"]) {
        for entity in root.list(list) {
            if !root.list("consumers").iter().any(|consumer| is_of(entity, consumer)) {
                conversion.lost(entity, format!("`{list}`: its consumer is not in this file"));
            }
        }
    }
}

/// Converts consumers, with each credential as a resource of its own.
pub(super) fn carry_over(conversion: &mut DocumentConversion) {
    report_of_others(conversion);
    consumer_groups::report(conversion);
    for consumer in conversion.root.list("consumers") {
        let Some(username) = consumer.text("username") else {
            conversion.lost(consumer, "a consumer without `username`");
            continue;
        };
        let mut credentials = Vec::new();
        for (kind, fields) in KINDS {
            for credential in consumer.list(kind).iter().chain(of_consumer(conversion.root, kind, consumer)) {
                let options = match kind {
                    mtls::CREDENTIALS => mtls::credential(conversion.root, credential)
                        .map(|options| ("mtls-auth".to_owned(), Yaml::Map(options))),
                    kind => self::credential(kind, credential, fields),
                };
                match options {
                    Some(options) => credentials.push((credential, options)),
                    None => conversion.lost(credential, format!("`{kind}`: a credential that cannot be converted")),
                }
            }
        }
        for (name, value) in consumer.members() {
            let is_known = ["id", "username", "custom_id", "tags", "acls", "groups"].contains(&name.as_str())
                || KINDS.iter().any(|(kind, _)| kind == name);
            if !is_known {
                conversion.lost(value, format!("`{name}` of the consumer `{username}`"));
            }
        }
        if let Some(why) = unsafe_because(conversion.root, consumer) {
            conversion.lost(consumer, format!("credentials of `{username}`: left out, as {why}"));
            credentials.clear();
        }
        let mut members = vec![("username".to_owned(), Yaml::text(username))];
        let mut labels = Vec::new();
        labels.extend(consumer.text("custom_id").map(|id| ("custom_id".to_owned(), Yaml::text(id))));
        match groups(conversion.root, consumer) {
            Some(groups) if !groups.is_empty() => labels.push((GROUPS.to_owned(), Yaml::text(groups))),
            _ => {}
        }
        if !labels.is_empty() {
            members.push(("labels".to_owned(), Yaml::Map(labels)));
        }
        let place = conversion.place(consumer);
        conversion.converted.consumers.push(ConvertedResource::new(&place, "consumer", members));
        for (number, (at, options)) in credentials.into_iter().enumerate() {
            let id = format!("{username}/credentials/{}", number + 1);
            let members = vec![("id".to_owned(), Yaml::text(id)), ("plugins".to_owned(), Yaml::Map(vec![options]))];
            let item = ConvertedResource::new(&conversion.place(at), "credential", members);
            conversion.converted.consumers.push(item);
        }
    }
}

/// What is lost of a consumer that decides what it may do, if anything is: with credentials it would have more rights than in Kong.
fn unsafe_because(root: &DocumentValue, consumer: &DocumentValue) -> Option<String> {
    if consumer.get("plugins").is_some() {
        return Some("plugins of this consumer are not converted".to_owned());
    }
    if let Some(group) = consumer_groups::closing(root, consumer) {
        let why = format!(
            "plugins of the consumer group `{group}` that may refuse its requests are not converted, or are not in this file"
        );
        return Some(why);
    }
    let why = "its groups do not fit into a label: text without spaces and commas, 256 characters in total";
    groups(root, consumer).is_none().then(|| why.to_owned())
}

/// Whether nothing of a consumer is lost that decides what it may do, or whose a certificate is. Otherwise its credentials are left
/// out, and a consumer that needs none must not be found: it would have more rights than in Kong, or another one would be found.
pub(super) fn are_whole(root: &DocumentValue) -> bool {
    root.list("consumers").iter().all(|consumer| {
        let of_top = of_consumer(root, mtls::CREDENTIALS, consumer);
        let mut certificates = consumer.list(mtls::CREDENTIALS).iter().chain(of_top);
        unsafe_because(root, consumer).is_none()
            && certificates.all(|certificate| mtls::credential(root, certificate).is_some())
    })
}

/// The groups of a consumer, as the value of a label; `None` if a label cannot hold them.
fn groups(root: &DocumentValue, consumer: &DocumentValue) -> Option<String> {
    let is_plain =
        |group: &&str| !group.is_empty() && !group.starts_with(['[', '$']) && !group.contains([',', ' ', '\t']);
    let groups: Option<Vec<&str>> = consumer
        .list("acls")
        .iter()
        .chain(of_consumer(root, "acls", consumer))
        .map(|acl| acl.text("group").filter(is_plain))
        .collect();
    Some(groups?.join(",")).filter(|groups| groups.chars().count() <= 256)
}

const KINDS: [(&str, &[&str]); 4] = [
    ("keyauth_credentials", &["key"]),
    ("basicauth_credentials", &["username", "password"]),
    ("jwt_secrets", &["key", "secret"]),
    (mtls::CREDENTIALS, &[]),
];

fn credential(kind: &str, credential: &DocumentValue, fields: &[&str]) -> Option<(String, Yaml)> {
    let plugin = match kind {
        "keyauth_credentials" => "key-auth",
        "basicauth_credentials" => "basic-auth",
        _ => "jwt-auth",
    };
    // Without its expiry, a key would be valid for ever; and a dump contains the hash of a password, which would become the
    // password.
    let is_hash = |password: &str| password.len() == 40 && password.chars().all(|char| char.is_ascii_hexdigit());
    if credential.get("ttl").is_some() || credential.text("password").is_some_and(is_hash) {
        return None;
    }
    let mut options = Vec::new();
    let algorithm = credential.text("algorithm").unwrap_or("HS256");
    let is_public = plugin == "jwt-auth" && !algorithm.starts_with("HS");
    for name in fields {
        let (theirs, ours) =
            if is_public && *name == "secret" { ("rsa_public_key", "public_key") } else { (*name, *name) };
        let value = credential.text(theirs).filter(|value| !value.is_empty() && !value.starts_with("{vault"))?;
        options.push((ours.to_owned(), Yaml::text(value)));
    }
    if plugin == "jwt-auth" {
        options.push(("algorithm".to_owned(), Yaml::text(algorithm)));
    }
    Some((plugin.to_owned(), Yaml::Map(options)))
}
