//! The fields common to all resources: id, name, labels, and the place in the document.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::keys;
use crate::keys::kinds::{AnyWhole, Kind, MapOf, ParsedText, Text, any_text, any_whole, map_of, text};
use crate::keys::schema::Definitions;
use crate::text::diagnostic::Faults;
use crate::text::fingerprint::Fingerprint;
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::{NodeKind, PathStep, TextPosition, TreeNode, TreePath};

/// The path and position of a resource, for diagnostics that are found later.
#[derive(Clone, Debug)]
pub struct ResourceOrigin {
    /// Such as `routes[2]`.
    pub path: Box<str>,
    pub place: TextPosition,
}

impl ResourceOrigin {
    pub(super) fn of(at: &NodeReader) -> Self {
        ResourceOrigin { path: at.path().to_string().into(), place: at.place() }
    }
}

/// A plugin whose options refer to a resource.
#[derive(Clone, Copy, Debug)]
pub struct ReferringPlugin {
    pub plugin: &'static str,
    /// The option that has the id.
    pub option: &'static str,
}

/// A reference to another resource by its id.
#[derive(Clone, Debug)]
pub struct Reference {
    pub id: Box<str>,
    pub place: TextPosition,
}

keys! {
    /// What most resources may say about themselves.
    pub(crate) static COMMON: CommonKeys = "common", shared RESOURCE;

    /// Names the resource among all of its kind. Without an id, the items of a file are named `arr_1`, `arr_2` and so on, by their
    /// position in the list.
    id: Id = own_id();
}

keys! {
    /// What most resources may say about themselves, besides their id.
    pub(crate) static RESOURCE: ResourceKeys = "resource";

    /// A name for people. It stands in logs and metrics.
    name: Text = text(1, 256), example("orders");
    /// A description for people.
    desc: Text = text(0, 256);
    /// Names and values, by which resources are found, and rights in the Admin API limited. Of a consumer, `custom_id` is sent to
    /// upstreams.
    labels: MapOf<Text> = map_of(text(1, 256).pattern(r"^\S+$")), example("{ team: orders }");
    /// When the resource was created, in seconds since 1970. The Admin API writes it.
    create_time: AnyWhole = any_whole();
    /// When the resource was changed last, in seconds since 1970. The Admin API writes it.
    update_time: AnyWhole = any_whole();
}

/// The kind of a resource's own id.
pub(crate) struct Id;

pub(super) const fn own_id() -> Id {
    Id
}

impl Kind for Id {
    type Value = Box<str>;

    fn read(&self, at: &NodeReader) -> Option<Box<str>> {
        read_id(at)
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        let text = json!({ "type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$", "not": { "enum": [".", ".."] } });
        Map::from_iter([("oneOf".to_owned(), json!([text, { "type": "integer", "minimum": 1 }]))])
    }

    fn form(&self) -> String {
        "letters, digits, `-`, `_` and `.`, or a number".to_owned()
    }
}

/// The kind of a reference to a resource of a list.
pub(crate) struct IdOf {
    list: &'static str,
}

pub(super) const fn id_of(list: &'static str) -> IdOf {
    IdOf { list }
}

impl Kind for IdOf {
    type Value = Reference;

    fn read(&self, at: &NodeReader) -> Option<Reference> {
        read_id(at).map(|id| Reference { id, place: at.place() })
    }

    fn schema(&self, definitions: &mut Definitions) -> Map<String, Value> {
        let mut schema = Id.schema(definitions);
        schema.insert("x-weir-reference".to_owned(), self.list.into());
        schema
    }

    fn form(&self) -> String {
        format!("an id in `{}`", self.list)
    }

    fn refers_to(&self) -> Option<&'static str> {
        Some(self.list)
    }
}

/// Reads a list of resources. A duplicate id is reported.
pub(super) fn list<T>(
    fields: &MapReader,
    key: &str,
    read: impl Fn(&NodeReader, usize) -> Option<T>,
    id: impl Fn(&T) -> Cow<'_, str>,
) -> Vec<T> {
    let Some(list) = fields.get(key) else { return Vec::new() };
    let mut resources = Resources::new(key, 0);
    list.items().enumerate().for_each(|(index, item)| resources.add(&item, index, &read, &id));
    resources.read
}

/// The ids in a list of resources, also of those that have faults.
pub(super) fn ids(fields: &MapReader, key: &str) -> impl Iterator<Item = Box<str>> + use<> {
    let items: Vec<Value> = match fields.get(key).map(|list| &list.node().kind) {
        Some(NodeKind::List(items)) => items.iter().map(TreeNode::to_json).collect(),
        _ => Vec::new(),
    };
    items.into_iter().enumerate().map(|(index, item)| match &item["id"] {
        Value::String(id) => id.as_str().into(),
        Value::Number(id) => id.to_string().into(),
        _ => position_id(index),
    })
}

/// Like [`list`], for a list that may be long: its tree is freed while it is read.
pub(super) fn long_list<T>(
    list: Option<Vec<TreeNode>>,
    faults: &Faults,
    key: &str,
    read: impl Fn(&NodeReader, usize) -> Option<T>,
    id: impl Fn(&T) -> Cow<'_, str>,
) -> Vec<T> {
    let list = list.unwrap_or_default();
    let mut resources = Resources::new(key, list.len());
    let list_path = TreePath::below(&TreePath::ROOT, PathStep::Key(key));
    for (index, node) in list.into_iter().enumerate() {
        let path = TreePath::below(&list_path, PathStep::Index(index));
        resources.add(&NodeReader::at(&node, path, faults), index, &read, &id);
    }
    resources.read
}

/// The resources read so far from a list.
struct Resources<'k, T> {
    key: &'k str,
    read: Vec<T>,
    /// The index of each resource, by the fingerprint of its id.
    seen: HashMap<Fingerprint, usize>,
}

impl<'k, T> Resources<'k, T> {
    fn new(key: &'k str, count: usize) -> Resources<'k, T> {
        Resources { key, read: Vec::with_capacity(count), seen: HashMap::with_capacity(count) }
    }

    fn add(
        &mut self,
        item: &NodeReader,
        index: usize,
        read: impl Fn(&NodeReader, usize) -> Option<T>,
        id: impl Fn(&T) -> Cow<'_, str>,
    ) {
        let Some(resource) = read(item, index) else { return };
        if let Some(first) = self.seen.insert(Fingerprint::of(&*id(&resource)), index) {
            let problem = format!("the id `{}` is already in use", id(&resource));
            item.report_advising(problem, format!("{}[{first}] has this id; choose another id", self.key));
        }
        self.read.push(resource);
    }
}

/// The id; if absent, that of the position.
pub(super) fn id(fields: &MapReader, index: usize) -> Box<str> {
    fields.read(&COMMON.id).unwrap_or_else(|| position_id(index))
}

/// What the id of an item without one begins with.
const POSITION: &str = "arr_";

/// The id that APISIX gives to an item of a list without one: `arr_1` for the first.
pub fn position_id(index: usize) -> Box<str> {
    format!("{POSITION}{}", index + 1).into()
}

/// Whether an id stands for the position of an item.
pub fn is_position_id(id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    id.strip_prefix(POSITION).is_some_and(is_number)
}

pub(super) fn reference(fields: &MapReader, key: &str) -> Option<Reference> {
    let at = fields.get(key)?;
    read_id(&at).map(|id| Reference { id, place: at.place() })
}

pub(crate) fn read_id(at: &NodeReader) -> Option<Box<str>> {
    if let NodeKind::Number(number) = &at.node().kind
        && number.as_u64().is_some_and(|number| number > 0)
    {
        return Some(number.to_string().into());
    }
    if let NodeKind::Number(_) = &at.node().kind {
        at.report("a numeric id must be a whole number, 1 or greater");
        return None;
    }
    let id = at.text_of(1..=64)?;
    if is_path_step(id) {
        at.report_advising(
            format!("`{id}` is not an id"),
            "choose another: clients take it out of the path of a request",
        );
        return None;
    }
    if !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')) {
        let problem = format!("`{}` is not an id", shortened(id));
        at.report_advising(problem, "use letters, digits, `-`, `_` and `.`");
        return None;
    }
    Some(id.into())
}

/// Whether a text as a segment of a path has a meaning of its own (RFC 3986 §3.3), so that it cannot be the id of a resource.
pub fn is_path_step(text: &str) -> bool {
    matches!(text, "." | "..")
}

/// Checks the common fields and returns the name.
pub(super) fn common(fields: &MapReader) -> Box<str> {
    let name = fields.read(&RESOURCE.name);
    fields.read(&RESOURCE.desc);
    fields.read(&RESOURCE.create_time);
    fields.read(&RESOURCE.update_time);
    if let Some(at) = fields.get(&RESOURCE.labels) {
        let labels = fields.read(&RESOURCE.labels).unwrap_or_default();
        for (label, _) in labels.iter().filter(|(_, text)| text.contains(char::is_whitespace)) {
            let entry = at.node().entry(label).expect("it was read from there");
            at.below(entry).report("a label must not contain spaces");
        }
    }
    name.unwrap_or_default()
}

/// The pattern of [`host_pattern`].
const HOST: &str = r"^\*?[0-9a-zA-Z._:\[\]-]*$";

/// A host name, address or pattern with a leading `*`.
pub(super) const fn host() -> ParsedText<String> {
    any_text().pattern(HOST).parsed(host_pattern)
}

/// A host name, address or pattern with a leading `*`, in lower case. Stricter than APISIX: a port, or a `*` elsewhere, would
/// never match and is reported.
fn host_pattern(at: &NodeReader, text: &str) -> Option<String> {
    let name = text.strip_prefix('*').unwrap_or(text);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'[' | b']');
    if text.is_empty() || !name.bytes().all(plain) {
        let problem = format!("`{}` is not a host", shortened(text));
        at.report_advising(problem, "write as `example.com` or `*.example.com`");
        return None;
    }
    if name.contains(':') && !name.starts_with('[') && name.parse::<std::net::Ipv6Addr>().is_err() {
        let problem = format!("`{}` has a port; hosts are matched without their port", shortened(text));
        at.report_advising(problem, "leave the port out");
        return None;
    }
    Some(text.to_ascii_lowercase())
}
