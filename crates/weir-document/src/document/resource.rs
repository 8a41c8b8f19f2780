//! The fields common to all resources: id, name, labels, and the place in the document.

use std::borrow::Cow;
use std::collections::HashMap;

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

/// A reference to another resource by its id.
#[derive(Clone, Debug)]
pub struct Reference {
    pub id: Box<str>,
    pub place: TextPosition,
}

/// Metadata that every resource may have besides `id`.
pub(super) const COMMON: &[&str] = &["id", "name", "desc", "labels", "create_time", "update_time"];

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

/// The id; if absent, the id that APISIX gives to such an item: `arr_1` for the first.
pub(super) fn id(fields: &MapReader, index: usize) -> Box<str> {
    fields.get("id").and_then(|at| read_id(&at)).unwrap_or_else(|| format!("arr_{}", index + 1).into())
}

pub(super) fn reference(fields: &MapReader, key: &str) -> Option<Reference> {
    let at = fields.get(key)?;
    read_id(&at).map(|id| Reference { id, place: at.place() })
}

fn read_id(at: &NodeReader) -> Option<Box<str>> {
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
    if !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')) {
        let problem = format!("`{}` is not an id", shortened(id));
        at.report_advising(problem, "use letters, digits, `-`, `_` and `.`");
        return None;
    }
    Some(id.into())
}

/// Checks the common fields and returns the name.
pub(super) fn common(fields: &MapReader) -> Box<str> {
    let name = fields.get("name").and_then(|at| at.text_of(1..=256));
    if let Some(at) = fields.get("desc") {
        at.text_of(0..=256);
    }
    for at in ["create_time", "update_time"].iter().filter_map(|key| fields.get(key)) {
        at.whole();
    }
    if let Some(at) = fields.get("labels") {
        for entry in at.entries().unwrap_or_default() {
            let label = at.below(entry);
            let Some(text) = label.text_of(1..=256) else { continue };
            if text.contains(char::is_whitespace) {
                label.report("a label must not contain spaces");
            }
        }
    }
    name.unwrap_or_default().into()
}

/// A host name, address or pattern with a leading `*`, in lower case. Stricter than APISIX: a port, or a `*` elsewhere, would
/// never match and is reported.
pub(super) fn host_pattern(at: &NodeReader) -> Option<String> {
    let text = at.text()?;
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
