//! Hubs: those to run, and the responders that routes refer to.

use std::collections::HashMap;
use std::sync::Arc;

use weir_gateway::snapshot::Link;
use weir_hub::{ConsumerGroups, HubSettings};
use weir_plugin::Responder;

use super::Compiler;
use crate::data_directory::data_directory;
use crate::document::{ConsumerSpec, Reference, RouteSpec};
use crate::hubs::{HubResponder, HubTerms};

/// The responders of a document's hubs.
pub(super) struct HubResponders<'a> {
    by_id: HashMap<&'a str, usize>,
    responders: Vec<Arc<dyn Responder>>,
}

impl<'a> HubResponders<'a> {
    pub(super) fn new(compiler: &Compiler<'a>) -> Self {
        let hubs = &compiler.document.hubs;
        let endpoint = |id: &str| -> Arc<dyn Responder> { Arc::new(HubResponder::new(compiler.node.hubs.slot(id))) };
        HubResponders {
            by_id: hubs.iter().enumerate().map(|(index, hub)| (&*hub.id, index)).collect(),
            responders: hubs.iter().map(|hub| endpoint(&hub.id)).collect(),
        }
    }

    /// The responder of a route that refers to a hub. A dangling reference is a fault, and so is a plugin that needs an upstream;
    /// `chain` has the plugins that see the requests.
    pub(super) fn of(&self, compiler: &Compiler<'_>, route: &RouteSpec, chain: &[Link]) -> Option<Arc<dyn Responder>> {
        let Reference { id, .. } = route.hub_id.as_ref()?;
        if !self.by_id.contains_key(&**id) && compiler.document.unread_hubs.contains(id) {
            return None;
        }
        let index = compiler.referred(&route.origin, "hub_id", &route.hub_id, &self.by_id, "hubs")?;
        compiler.refuse_hub_behind(&route.origin, chain);
        Some(Arc::clone(&self.responders[index]))
    }
}

impl Compiler<'_> {
    /// The hubs to run.
    pub(super) fn hub_terms(&self) -> Arc<[HubTerms]> {
        let document = self.document;
        let data = data_directory(self.lasting(), &document.beside.directory);
        let group =
            |consumer: &ConsumerSpec| consumer.group_id.as_ref().map(|group| group.id.clone()).unwrap_or_default();
        let consumers = document.consumers.iter().map(|consumer| (consumer.username.clone(), group(consumer)));
        let consumers: ConsumerGroups = consumers.collect();
        let terms = document.hubs.iter().map(|hub| HubTerms {
            id: hub.id.clone(),
            settings: HubSettings { consumers: consumers.clone(), ..hub.settings.clone() },
            directory: data.join("hubs").join(&*hub.id),
            http: self.http.settings().clone(),
        });
        terms.collect()
    }
}
