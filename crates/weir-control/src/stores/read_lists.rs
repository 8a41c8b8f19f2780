//! The long lists of a store in parsed form, so that a change of one resource parses only this resource.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resources::ResourceKey;
use crate::document::ResolvedText;
use crate::document::lists::{ListedSpec, LongLists, ReadResource, ReferringResource};
use crate::document::resource_access::ResourceAccess;
use crate::document::{PluginSet, RouteSpec, ServiceSpec, UpstreamSpec};
use crate::text::diagnostic::{Diagnostic, FaultCause};
use crate::text::substitute::process_environment;
use crate::text::tree::TreeNode;

/// With more faults than this, of each further faulty resource only the first one is kept, with the number of the others.
const MOST_FAULTS: usize = 10_000;

/// The lists, with the faults and secret references of their resources.
#[derive(Clone, Default)]
pub(super) struct ReadLists {
    lists: LongLists,
    /// What the resources may use of the node.
    access: Arc<ResourceAccess>,
    faults: BTreeMap<ResourceKey, Vec<Diagnostic>>,
    /// The number of all of them.
    fault_count: usize,
    referring: BTreeMap<ResourceKey, Arc<ReferringResource>>,
    resolved: BTreeMap<ResourceKey, Arc<[ResolvedText]>>,
}

/// Whether resources of this list are parsed individually.
pub(super) fn is_long(list: &str) -> bool {
    LongLists::KEYS.contains(&list)
}

impl ReadLists {
    /// Sets what the resources may use, from now on. Returns whether that has changed, so that all have to be read again.
    pub(super) fn set_access(&mut self, access: &Arc<ResourceAccess>) -> bool {
        let changed = self.access != *access;
        if changed {
            self.access = Arc::clone(access);
        }
        changed
    }

    /// Parses a resource of a long list and puts it there under its id; `None` removes it.
    pub(super) fn set(&mut self, source: &Arc<str>, key: &ResourceKey, tree: Option<TreeNode>) {
        match key.list() {
            RouteSpec::LIST => {
                let was_on = self.lists.routes.find(key.id()).is_some_and(|route| route.enabled);
                let read = self.read::<RouteSpec>(source, key, tree);
                let is_on = read.as_ref().is_some_and(|route| route.enabled);
                self.lists.enabled_routes = self.lists.enabled_routes + usize::from(is_on) - usize::from(was_on);
                self.lists.routes.set(key.id(), read);
            }
            ServiceSpec::LIST => {
                let read = self.read::<ServiceSpec>(source, key, tree);
                self.lists.services.set(key.id(), read);
            }
            UpstreamSpec::LIST => {
                let read = self.read::<UpstreamSpec>(source, key, tree);
                self.lists.upstreams.set(key.id(), read);
            }
            _ => {
                let read = self.read::<PluginSet>(source, key, tree);
                self.lists.plugin_configs.set(key.id(), read);
            }
        }
    }

    fn read<T: ListedSpec>(&mut self, source: &Arc<str>, key: &ResourceKey, tree: Option<TreeNode>) -> Option<Arc<T>> {
        self.fault_count -= self.faults.remove(key).map_or(0, |faults| faults.len());
        self.referring.remove(key);
        self.resolved.remove(key);
        let read = ReadResource::of(source, key.id(), tree?, &process_environment, &self.access);
        let ReadResource { spec, mut faults, referring, resolved } = read;
        if faults.len() > 2 && self.fault_count + faults.len() > MOST_FAULTS {
            shorten(&mut faults);
        }
        self.fault_count += faults.len();
        if !faults.is_empty() {
            self.faults.insert(key.clone(), faults);
        }
        if let Some(referring) = referring {
            self.referring.insert(key.clone(), referring);
        }
        if let Some(resolved) = resolved {
            self.resolved.insert(key.clone(), resolved);
        }
        spec
    }

    /// The lists for a document.
    pub(super) fn lists(&self) -> LongLists {
        LongLists {
            faults: self.faults.values().flatten().cloned().collect(),
            referring: self.referring.values().cloned().collect(),
            resolved: self.resolved.values().cloned().collect(),
            ..self.lists.clone()
        }
    }
}

/// Keeps the first fault of a resource, and says how many more there are.
fn shorten(faults: &mut Vec<Diagnostic>) {
    let rest = faults.split_off(1);
    let cause = match rest.iter().all(|fault| fault.cause.is_outside()) {
        true => FaultCause::Outside,
        false => FaultCause::Text,
    };
    let problem = format!("{} more faults are not listed", rest.len());
    let path = faults[0].path.clone();
    let advice = Some("correct these first".to_owned());
    faults.push(Diagnostic { path, problem, advice, cause, ..Diagnostic::of_source(&faults[0].source, "") });
}
