//! The lists of a document that may be long. Successive documents share their unchanged resources, so that the cost of a change
//! depends on its size and not on the size of the list.

use std::borrow::Cow;
use std::ops::Index;
use std::sync::Arc;

use super::references::{self, PlacedReference, ReferringText};
use super::resolved_texts::{self, ResolvedText};
use super::resource;
use super::resource_access::ResourceAccess;
use super::shared_list::SharedList;
use super::upstream::UpstreamSpec;
use super::{PluginSet, RouteSpec, ServiceSpec, plugin_set, plugins::PluginSpecs, route, upstream};
use crate::text::diagnostic::{Diagnostic, Faults};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::NodeReader;
use crate::text::substitute::VariableLookup;
use crate::text::tree::{PathStep, TreeNode, TreePath};

/// A resource of a list that may be long.
pub trait ListedSpec: Sized {
    const LIST: &'static str;

    fn read(at: &NodeReader, index: usize) -> Option<Self>;
    fn id(&self) -> &str;
    /// The fingerprint of the whole resource.
    fn content(&self) -> Fingerprint;
    /// Whether serving it needs more than its own text: host names, files, authorities, or upstreams in options of plugins. Such
    /// resources are few; the flag finds them without a search through all.
    fn is_noted(&self) -> bool;
}

/// The resources of a list, in the order of the document.
#[derive(Debug)]
pub struct SpecList<T> {
    all: SharedList<Arc<T>>,
    /// The fingerprints of the resources, at the same indices as `all`.
    contents: SharedList<Fingerprint>,
    /// The resources for which `is_noted` is true, in the same order.
    noted: SharedList<Arc<T>>,
}

impl<T> Default for SpecList<T> {
    fn default() -> SpecList<T> {
        SpecList { all: SharedList::default(), contents: SharedList::default(), noted: SharedList::default() }
    }
}

impl<T> Clone for SpecList<T> {
    fn clone(&self) -> SpecList<T> {
        let SpecList { all, contents, noted } = self;
        SpecList { all: all.clone(), contents: contents.clone(), noted: noted.clone() }
    }
}

impl<T> Index<usize> for SpecList<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.all.get(index).expect("the list has this index")
    }
}

impl<T> SpecList<T> {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn get(&self, index: usize) -> Option<&T> {
        self.all.get(index).map(|one| &**one)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        self.all.iter().map(|one| &**one)
    }

    /// Whether the resources from this index on begin with these, by their fingerprints.
    pub fn continues_with(&self, index: usize, contents: &[Fingerprint]) -> bool {
        self.contents.continues_with(index, contents)
    }

    pub fn noted(&self) -> impl Iterator<Item = &T> {
        self.noted.iter().map(|one| &**one)
    }
}

impl<T: ListedSpec> SpecList<T> {
    /// Reads a list and frees its tree meanwhile, since it may be long.
    fn of_nodes(nodes: Option<Vec<TreeNode>>, faults: &Faults) -> SpecList<T> {
        let all = resource::long_list(nodes, faults, T::LIST, T::read, |one| Cow::Borrowed(one.id()));
        let all: SharedList<Arc<T>> = all.into_iter().map(Arc::new).collect();
        let contents = all.iter().map(|one| one.content()).collect();
        let noted = all.iter().filter(|one| one.is_noted()).cloned().collect();
        SpecList { all, contents, noted }
    }

    /// The index of the resource with this id in a list sorted by id, or the index where it would be inserted.
    fn position_of(all: &SharedList<Arc<T>>, id: &str) -> Result<usize, usize> {
        all.binary_search_by(|one| one.id().cmp(id))
    }

    /// The resource with this id in a list sorted by id.
    pub fn find(&self, id: &str) -> Option<&T> {
        self.position(id).and_then(|at| self.get(at))
    }

    /// The index of the resource with this id. Lists of a store are sorted by id; in an unsorted list it may not be found.
    pub fn position(&self, id: &str) -> Option<usize> {
        Self::position_of(&self.all, id).ok()
    }

    /// Inserts, replaces or removes a resource in a list sorted by id. Other documents that share the list are not affected.
    pub fn set(&mut self, id: &str, resource: Option<Arc<T>>) {
        let SpecList { all, contents, noted } = self;
        let was_noted = match (Self::position_of(all, id), &resource) {
            (Ok(at), Some(resource)) => {
                contents.set(at, resource.content());
                all.set(at, Arc::clone(resource)).is_noted()
            }
            (Ok(at), None) => {
                contents.remove(at);
                all.remove(at).is_noted()
            }
            (Err(at), Some(resource)) => {
                contents.insert(at, resource.content());
                all.insert(at, Arc::clone(resource));
                false
            }
            (Err(_), None) => false,
        };
        let resource = resource.filter(|one| one.is_noted());
        if !was_noted && resource.is_none() {
            return;
        }
        match (Self::position_of(noted, id), resource) {
            (Ok(at), Some(resource)) => drop(noted.set(at, resource)),
            (Ok(at), None) => drop(noted.remove(at)),
            (Err(at), Some(resource)) => noted.insert(at, resource),
            (Err(_), None) => {}
        }
    }
}

/// The lists of a document that may be long.
#[derive(Clone, Debug, Default)]
pub struct LongLists {
    pub routes: SpecList<RouteSpec>,
    /// The number of routes that are not switched off.
    pub enabled_routes: usize,
    pub services: SpecList<ServiceSpec>,
    pub upstreams: SpecList<UpstreamSpec>,
    pub plugin_configs: SpecList<PluginSet>,
    /// The faults of resources of these lists.
    pub faults: Vec<Diagnostic>,
    /// The resources of these lists that refer to secrets.
    pub referring: Vec<Arc<ReferringResource>>,
    /// The references in these resources that were replaced by their values.
    pub resolved: Vec<Arc<[ResolvedText]>>,
}

impl LongLists {
    /// Their keys in the document, in the order in which [`LongLists::of_nodes`] takes them.
    pub const KEYS: [&str; 4] =
        [RouteSpec::LIST, ServiceSpec::LIST, UpstreamSpec::LIST, <PluginSet as ListedSpec>::LIST];

    pub(super) fn of_nodes(lists: [Option<Vec<TreeNode>>; 4], faults: &Faults) -> LongLists {
        let [routes, services, upstreams, plugin_configs] = lists;
        let routes: SpecList<RouteSpec> = SpecList::of_nodes(routes, faults);
        LongLists {
            enabled_routes: routes.iter().filter(|route| route.enabled).count(),
            routes,
            services: SpecList::of_nodes(services, faults),
            upstreams: SpecList::of_nodes(upstreams, faults),
            plugin_configs: SpecList::of_nodes(plugin_configs, faults),
            ..LongLists::default()
        }
    }

    /// Replaces references to secrets by their values. A secret that cannot be read is a fault.
    pub(super) fn put_secrets(&mut self, source: &Arc<str>, value: references::SecretLookup) {
        for referring in std::mem::take(&mut self.referring) {
            let found = (&mut self.faults, &mut self.resolved);
            match referring.list {
                RouteSpec::LIST => referring.put_into(&mut self.routes, source, value, found),
                ServiceSpec::LIST => referring.put_into(&mut self.services, source, value, found),
                UpstreamSpec::LIST => referring.put_into(&mut self.upstreams, source, value, found),
                _ => referring.put_into(&mut self.plugin_configs, source, value, found),
            }
        }
    }
}

/// A resource that refers to secrets, with the references in it.
#[derive(Debug)]
pub struct ReferringResource {
    list: &'static str,
    id: Box<str>,
    tree: TreeNode,
    pub(super) secrets: Vec<PlacedReference>,
}

impl ReferringResource {
    fn put_into<T: ListedSpec>(
        &self,
        list: &mut SpecList<T>,
        source: &Arc<str>,
        value: references::SecretLookup,
        (faults, resolved): (&mut Vec<Diagnostic>, &mut Vec<Arc<[ResolvedText]>>),
    ) {
        let (mut tree, mut texts) = (self.tree.clone(), Vec::new());
        let unread = references::put_secrets(source, &mut tree, value, &mut texts);
        faults.extend(in_its_place(T::LIST, &self.id, unread));
        let (spec, found) = read_one(source, &self.id, &tree);
        faults.extend(found);
        resolved.push(texts_in_their_place(T::LIST, &self.id, texts));
        list.set(&self.id, spec);
    }
}

/// One resource of a store's list, read separately.
pub struct ReadResource<T> {
    /// `None` if it cannot be read.
    pub spec: Option<Arc<T>>,
    pub faults: Vec<Diagnostic>,
    pub referring: Option<Arc<ReferringResource>>,
    /// The references that were replaced by their values; `None` if there are none.
    pub resolved: Option<Arc<[ResolvedText]>>,
}

impl<T: ListedSpec> ReadResource<T> {
    /// Reads one resource. The paths of its faults contain its id: `routes[r1].uri`.
    pub fn of(
        source: &Arc<str>,
        id: &str,
        mut tree: TreeNode,
        lookup: VariableLookup,
        access: &ResourceAccess,
    ) -> ReadResource<T> {
        let key = format!("{}/{id}", T::LIST);
        let of = ReferringText::Resource(&key, access);
        let mut resolved = Vec::new();
        let mut faults = references::resolve(source, &mut tree, lookup, of, &mut resolved);
        let (mut secrets, wrong) = references::secrets(source, &mut tree, of);
        faults.extend(wrong);
        let mut faults = in_its_place(T::LIST, id, faults);
        let (spec, found) = read_one(source, id, &tree);
        faults.extend(found);
        secrets.iter_mut().for_each(|found| found.path = format!("{}[{id}].{}", T::LIST, found.path));
        let referring = ReferringResource { list: T::LIST, id: id.into(), tree, secrets };
        let referring = (!referring.secrets.is_empty()).then(|| Arc::new(referring));
        let resolved = texts_in_their_place(T::LIST, id, resolved);
        let faults = faults.into_iter().map(|fault| resolved_texts::hidden(resolved.iter(), fault)).collect();
        let resolved = (!resolved.is_empty()).then_some(resolved);
        ReadResource { spec, faults, referring, resolved }
    }
}

fn read_one<T: ListedSpec>(source: &Arc<str>, id: &str, tree: &TreeNode) -> (Option<Arc<T>>, Vec<Diagnostic>) {
    let faults = Faults::unlimited(Arc::clone(source));
    let list = TreePath::below(&TreePath::ROOT, PathStep::Key(T::LIST));
    let path = TreePath::below(&list, PathStep::Id(id));
    // If the id in the tree is wrong, the resource read has another id; a fault has been reported.
    let spec = T::read(&NodeReader::at(tree, path, &faults), 0).filter(|spec| spec.id() == id);
    (spec.map(Arc::new), faults.into_diagnostics())
}

fn texts_in_their_place(list: &str, id: &str, mut texts: Vec<ResolvedText>) -> Arc<[ResolvedText]> {
    texts.iter_mut().for_each(|text| text.below(&format!("{list}[{id}]")));
    texts.into()
}

fn in_its_place(list: &str, id: &str, mut faults: Vec<Diagnostic>) -> Vec<Diagnostic> {
    faults.iter_mut().for_each(|fault| fault.path = format!("{list}[{id}].{}", fault.path));
    faults
}

fn has_shares(plugins: &PluginSpecs) -> bool {
    plugins.iter().any(|plugin| !plugin.shares.is_empty())
}

impl ListedSpec for RouteSpec {
    const LIST: &'static str = "routes";

    fn read(at: &NodeReader, index: usize) -> Option<RouteSpec> {
        route::read_route(at, index)
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn content(&self) -> Fingerprint {
        self.content
    }

    fn is_noted(&self) -> bool {
        has_shares(&self.plugins) || self.upstream.as_ref().is_some_and(|upstream| upstream.is_noted())
    }
}

impl ListedSpec for ServiceSpec {
    const LIST: &'static str = "services";

    fn read(at: &NodeReader, index: usize) -> Option<ServiceSpec> {
        route::read_service(at, index)
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn content(&self) -> Fingerprint {
        self.content
    }

    fn is_noted(&self) -> bool {
        has_shares(&self.plugins) || self.upstream.as_ref().is_some_and(ListedSpec::is_noted)
    }
}

impl ListedSpec for UpstreamSpec {
    const LIST: &'static str = "upstreams";

    fn read(at: &NodeReader, index: usize) -> Option<UpstreamSpec> {
        upstream::read_named(at, index)
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn content(&self) -> Fingerprint {
        self.content
    }

    fn is_noted(&self) -> bool {
        self.is_elsewhere
            || self.scheme.is_secured()
            || self.service.is_some()
            || self.nodes_file.is_some()
            || self.tls.pems().next().is_some()
            || self.active.is_some()
            || self.nodes.iter().any(|node| node.host_name().is_some())
    }
}

impl ListedSpec for PluginSet {
    const LIST: &'static str = "plugin_configs";

    fn read(at: &NodeReader, index: usize) -> Option<PluginSet> {
        plugin_set::read(at, index)
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn content(&self) -> Fingerprint {
        self.content
    }

    fn is_noted(&self) -> bool {
        has_shares(&self.plugins)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(id: &str, mut value: Value) -> ReadResource<RouteSpec> {
        value["id"] = id.into();
        let lookup = |name: &str| (name == "KEY").then(|| "k".to_owned());
        ReadResource::of(
            &"store".into(),
            id,
            value.into(),
            &lookup,
            &ResourceAccess::of_tests(&["NO", "KEY"], &["vault/1/a/b"]),
        )
    }

    #[test]
    fn a_list_stays_in_order_and_notes_what_needs_more() {
        let mut list = SpecList::default();
        let here = || json!({"uri": "/x", "upstream": {"nodes": {"127.0.0.1:80": 1}}});
        let named = || json!({"uri": "/x", "upstream": {"nodes": {"backend:80": 1}}});
        for (id, value) in [("c", here()), ("a", named()), ("b", here()), ("d", named())] {
            list.set(id, read(id, value).spec);
        }
        let ids = |list: &SpecList<RouteSpec>| list.iter().map(|one| one.id.to_string()).collect::<String>();
        let noted = |list: &SpecList<RouteSpec>| list.noted().map(|one| one.id.to_string()).collect::<String>();
        assert_eq!((ids(&list).as_str(), noted(&list).as_str()), ("abcd", "ad"));
        let before = list.clone();
        list.set("a", read("a", here()).spec);
        list.set("b", read("b", named()).spec);
        list.set("d", None);
        list.set("e", None);
        assert_eq!((ids(&list).as_str(), noted(&list).as_str()), ("abc", "b"));
        assert_eq!((ids(&before).as_str(), noted(&before).as_str()), ("abcd", "ad"), "others keep what they have");
        let contents: Vec<Fingerprint> = list.iter().map(|one| one.content).collect();
        assert!(list.continues_with(0, &contents) && contents.len() == list.len());
    }

    #[test]
    fn faults_of_one_resource_name_it() {
        let wrong = read("r.1", json!({"uri": 7, "plugins": {"x": {"a": "$env://NO"}}}));
        let told: Vec<String> = wrong.faults.iter().map(ToString::to_string).collect();
        assert!(
            told[0].starts_with("store: routes[r.1].plugins.x.a: the environment variable `NO` is not set"),
            "{told:?}"
        );
        assert!(told[1].starts_with("store: routes[r.1].uri: "), "{told:?}");
        let secret =
            read("s", json!({"uri": "/", "plugins": {"x": {"a": "$secret://vault/1/a/b", "k": "$env://KEY"}}}));
        let spec = secret.spec.expect("it can be read");
        assert_eq!(spec.plugins[0].options["k"], "k");
        let mut lists = LongLists { referring: secret.referring.into_iter().collect(), ..LongLists::default() };
        lists.put_secrets(&"store".into(), &|_| Ok("s3cret".to_owned()));
        assert_eq!(lists.routes[0].plugins[0].options["a"], "s3cret");
    }
}
