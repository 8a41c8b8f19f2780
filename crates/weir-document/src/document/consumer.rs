//! Consumers and their credentials, which are in one list, as in Apache APISIX.

use serde_json::json;

use super::plugins::{PLUGINS, PluginSpecs};
use super::resource::{self, IdOf, RESOURCE, Reference, ResourceOrigin, id_of};
use crate::keys;
use crate::keys::kinds::{Custom, Form, ParsedText, form, text};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::{MapEntry, NodeKind};

/// APISIX `consumer`.
#[derive(Clone, Debug)]
pub struct ConsumerSpec {
    pub origin: ResourceOrigin,
    pub username: Box<str>,
    /// `labels.custom_id`; empty is none.
    pub custom_id: Box<str>,
    /// Names and values, `custom_id` included.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    pub group_id: Option<Reference>,
    /// Options of auth plugins, which identify the consumer, and policies for all its requests.
    pub plugins: PluginSpecs,
}

/// APISIX `credential`: a further credential of a consumer. An item of `consumers` whose id is `jack/credentials/one`.
#[derive(Clone, Debug)]
pub struct CredentialSpec {
    pub origin: ResourceOrigin,
    /// Without the consumer's name.
    pub id: Box<str>,
    pub consumer: Reference,
    /// Exactly one, of an auth plugin.
    pub plugins: PluginSpecs,
}

/// An item of the list `consumers`.
pub(super) enum ConsumerItem {
    Consumer(ConsumerSpec),
    Credential(CredentialSpec),
}

impl ConsumerItem {
    /// The id, which must be unique in the list.
    pub(super) fn key(&self) -> String {
        match self {
            ConsumerItem::Consumer(consumer) => consumer.username.to_string(),
            ConsumerItem::Credential(credential) => format!("{}/credentials/{}", credential.consumer.id, credential.id),
        }
    }
}

keys! {
    /// A client of the API, or, with an id such as `jack/credentials/one`, a further credential of one.
    pub(super) static CONSUMER: ConsumerKeys = "consumer", shared RESOURCE;

    /// Of a credential: `CONSUMER/credentials/ID`. Of a consumer it has no effect: the consumer's id is its `username`.
    id: Form = form("text", |_| json!({ "type": ["string", "integer"] })), example("jack/credentials/one");
    /// Of a consumer: options of auth plugins, which identify it, and plugins for all of its requests. Of a credential: exactly one auth
    /// plugin.
    plugins: Custom<PluginSpecs> = PLUGINS, example("{ key-auth: { key: jack-key } }");
    /// The name of the consumer, which upstreams get.
    username: ParsedText<Box<str>> = text(1, 256).pattern("^[a-zA-Z0-9_-]+$").parsed(username), example("jack");
    /// The group of the consumer, whose plugins apply to its requests.
    group_id: IdOf = id_of("consumer_groups");
}

pub(super) fn read(at: &NodeReader, _: usize) -> Option<ConsumerItem> {
    let fields = at.keys(&CONSUMER)?;
    resource::common(&fields);
    let id = fields.get(&CONSUMER.id);
    let text = id.as_ref().and_then(|id| match &id.node().kind {
        NodeKind::Text(text) => Some(&**text),
        _ => None,
    });
    if let Some((id, (consumer, credential))) = id.as_ref().zip(text.and_then(|text| text.split_once("/credentials/")))
    {
        return read_credential(at, &fields, id, consumer, credential).map(ConsumerItem::Credential);
    }
    read_consumer(at, &fields).map(ConsumerItem::Consumer)
}

/// An item whose `id` is `<consumer>/credentials/<credential>`.
fn read_credential(
    at: &NodeReader,
    fields: &MapReader,
    id: &NodeReader,
    consumer: &str,
    credential: &str,
) -> Option<CredentialSpec> {
    for key in [fields.get(&CONSUMER.username), fields.get(&CONSUMER.group_id)].iter().flatten() {
        key.report_advising("has no effect on a credential", "leave it out, or give the item no `id`");
    }
    let plugins = fields.read(&CONSUMER.plugins).unwrap_or_default();
    if plugins.len() != 1 {
        at.report_advising("a credential has exactly one plugin", "write `plugins: { key-auth: { key: ... } }`");
    }
    if credential.is_empty() || !credential.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        id.report_advising("is not the id of a credential", "write as `jack/credentials/one`");
        return None;
    }
    let consumer = Reference { id: consumer.into(), place: id.place() };
    Some(CredentialSpec { origin: ResourceOrigin::of(at), id: credential.into(), consumer, plugins })
}

fn read_consumer(at: &NodeReader, fields: &MapReader) -> Option<ConsumerSpec> {
    if !fields.has(&CONSUMER.username) {
        at.report_advising("has no `username`", "add `username: <name>`, or `id: <consumer>/credentials/<id>`");
    }
    let username = fields.read(&CONSUMER.username)?;
    let labels = fields.get(&RESOURCE.labels).filter(NodeReader::is_map);
    let labels: Box<[_]> = labels.as_ref().map(read_labels).unwrap_or_default();
    let custom_id = labels.iter().find(|(name, _)| **name == *"custom_id").map(|(_, value)| value.clone());
    Some(ConsumerSpec {
        origin: ResourceOrigin::of(at),
        username,
        custom_id: custom_id.unwrap_or_default(),
        labels,
        group_id: fields.read(&CONSUMER.group_id),
        plugins: fields.read(&CONSUMER.plugins).unwrap_or_default(),
    })
}

fn username(at: &NodeReader, name: &str) -> Option<Box<str>> {
    // The name is sent in a header field.
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        let problem = format!("`{}` is not the name of a consumer", shortened(name));
        at.report_advising(problem, "use letters, digits, `-` and `_`");
        return None;
    }
    Some(name.into())
}

/// What is wrong with labels in general has been reported with those of all resources.
fn read_labels(labels: &NodeReader) -> Box<[(Box<str>, Box<str>)]> {
    let read = |entry: &MapEntry| {
        let at = labels.below(entry);
        let text = at.text()?;
        if &*entry.key == "custom_id" && !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            at.report_advising("is sent in a header field", "use only printable ASCII characters");
        }
        Some((entry.key.as_ref().into(), text.into()))
    };
    labels.entries().unwrap_or_default().iter().filter_map(read).collect()
}
