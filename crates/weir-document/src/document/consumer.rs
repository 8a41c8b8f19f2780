//! Consumers and their credentials, which are in one list, as in Apache APISIX.

use super::plugins::{self, PluginSpecs};
use super::resource::{self, Reference, ResourceOrigin};
use crate::text::read::{MapReader, NodeReader, shortened};

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

pub(super) fn read(at: &NodeReader, _: usize) -> Option<ConsumerItem> {
    const COMMON: &[&str] = &["id", "name", "desc", "labels", "create_time", "update_time", "plugins"];
    let fields = at.fields(&[COMMON, &["username", "group_id"]].concat())?;
    resource::common(&fields);
    let id = fields.get("id");
    let text = id.as_ref().and_then(|id| match &id.node().kind {
        crate::text::tree::NodeKind::Text(text) => Some(&**text),
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
    for key in ["username", "group_id"].iter().filter_map(|key| fields.get(key)) {
        key.report_advising("has no effect on a credential", "leave it out, or give the item no `id`");
    }
    let plugins = plugins::read(fields);
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
    let Some(username) = fields.get("username") else {
        at.report_advising("has no `username`", "add `username: <name>`, or `id: <consumer>/credentials/<id>`");
        return None;
    };
    let name = username.text_of(1..=256)?;
    // The name is sent in a header field.
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        let problem = format!("`{}` is not the name of a consumer", shortened(name));
        username.report_advising(problem, "use letters, digits, `-` and `_`");
        return None;
    }
    let labels = fields.get("labels").filter(NodeReader::is_map);
    let labels: Box<[_]> = labels.as_ref().map(read_labels).unwrap_or_default();
    let custom_id = labels.iter().find(|(name, _)| **name == *"custom_id").map(|(_, value)| value.clone());
    Some(ConsumerSpec {
        origin: ResourceOrigin::of(at),
        username: name.into(),
        custom_id: custom_id.unwrap_or_default(),
        labels,
        group_id: resource::reference(fields, "group_id"),
        plugins: plugins::read(fields),
    })
}

/// What is wrong with labels in general has been reported with those of all resources.
fn read_labels(labels: &NodeReader) -> Box<[(Box<str>, Box<str>)]> {
    let read = |entry: &crate::text::tree::MapEntry| {
        let at = labels.below(entry);
        let text = at.text()?;
        if &*entry.key == "custom_id" && !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            at.report_advising("is sent in a header field", "use only visible ASCII characters");
        }
        Some((entry.key.as_ref().into(), text.into()))
    };
    labels.entries().unwrap_or_default().iter().filter_map(read).collect()
}
