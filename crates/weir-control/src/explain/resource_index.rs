//! Finds resources of a document by their ids.

use std::cell::OnceCell;
use std::collections::HashMap;

use super::NamedUpstream;
use crate::document::lists::{ListedSpec, SpecList};
use crate::document::{Document, PluginSet, Reference, RouteSpec, ServiceSpec, UpstreamSpec};

/// The long lists of a document. For a document that is searched many times.
pub(crate) struct ResourceIndex<'d> {
    pub(super) document: &'d Document,
    pub(super) routes: ListIndex<'d, RouteSpec>,
    pub(super) services: ListIndex<'d, ServiceSpec>,
    pub(super) upstreams: ListIndex<'d, UpstreamSpec>,
    pub(super) plugin_configs: ListIndex<'d, PluginSet>,
}

impl<'d> ResourceIndex<'d> {
    pub(crate) fn new(document: &'d Document) -> ResourceIndex<'d> {
        ResourceIndex {
            document,
            routes: ListIndex::new(&document.routes),
            services: ListIndex::new(&document.services),
            upstreams: ListIndex::new(&document.upstreams),
            plugin_configs: ListIndex::new(&document.plugin_configs),
        }
    }

    /// The resource of `upstreams` that a reference names, and what it has, if it is there.
    pub(super) fn upstream(&self, reference: &Reference) -> NamedUpstream {
        (format!("upstreams/{}", reference.id), self.upstreams.find(&reference.id).map(|upstream| upstream.content))
    }
}

/// The resources of one list. Lists of a store are sorted by id, those of a file are not.
pub(super) struct ListIndex<'d, T> {
    list: &'d SpecList<T>,
    /// All resources, once one was not found by a binary search.
    by_id: OnceCell<HashMap<&'d str, &'d T>>,
}

impl<'d, T: ListedSpec> ListIndex<'d, T> {
    fn new(list: &'d SpecList<T>) -> ListIndex<'d, T> {
        ListIndex { list, by_id: OnceCell::new() }
    }

    pub(super) fn find(&self, id: &str) -> Option<&'d T> {
        let all = || self.list.iter().map(|one| (one.id(), one)).collect();
        self.list.find(id).or_else(|| self.by_id.get_or_init(all).get(id).copied())
    }

    pub(super) fn referred(&self, reference: &Option<Reference>) -> Option<&'d T> {
        reference.as_ref().and_then(|reference| self.find(&reference.id))
    }
}
