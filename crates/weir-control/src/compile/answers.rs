//! Plugins that answer in place of the upstream. With one that answers alone, no other may: such requests fail when they are served.

use std::sync::Arc;

use weir_gateway::snapshot::Link;
use weir_plugin::AnswersInPlace;

use super::Compiler;
use super::built::BuiltPlugin;
use super::plugin_findings::path_of;
use crate::document::{PluginSpec, ResourceOrigin};
use crate::text::read::join;

const ADVICE: &str = "remove one of the two, or give one of them a `_meta.filter`, so that no request is for both";

/// Where the plugins of a route come from, the nearest first.
const LAYERS: [&str; 3] = ["the route", "its plugin_config", "its service"];

/// A plugin that answers alone, and another one that answers as well.
fn collision<'l>(links: impl Iterator<Item = &'l Link> + Clone) -> Option<(&'l Link, &'l Link)> {
    let alone = links.clone().find(|link| link.step.answers_in_place() == AnswersInPlace::Alone)?;
    let is_other =
        |link: &&Link| link.step.answers_in_place() != AnswersInPlace::Never && !Arc::ptr_eq(&link.step, &alone.step);
    links.clone().find(is_other).map(|other| (alone, other))
}

fn links(built: &[BuiltPlugin]) -> impl Iterator<Item = &Link> + Clone {
    built.iter().filter_map(|plugin| plugin.link.as_ref())
}

impl Compiler<'_> {
    /// Reports two plugins of one resource that cannot answer together.
    pub(super) fn refuse_two_answers(&self, origin: &ResourceOrigin, plugins: &[PluginSpec], built: &[BuiltPlugin]) {
        let Some((alone, other)) = collision(links(built)) else { return };
        let written = |link: &Link| plugins.iter().find(|plugin| *plugin.name == *link.name);
        let Some((at, other)) = written(alone).zip(written(other)) else { return };
        let problem = format!(
            "answers in place of the upstream, and so does `{}` ({}): requests that both take get 500",
            other.name,
            path_of(origin, other)
        );
        self.report(&path_of(origin, at), at.place, problem, Some(ADVICE.to_owned()));
    }

    /// Warns of plugins of a route that cannot answer together, and come from several resources: of one, it is a fault.
    pub(super) fn warn_of_two_answers(&self, origin: &ResourceOrigin, chain: &[Link], layers: [&[BuiltPlugin]; 3]) {
        let Some((alone, other)) = collision(chain.iter()) else { return };
        let from = |link: &Link| {
            let has = |layer: &&[BuiltPlugin]| links(layer).any(|own| Arc::ptr_eq(&own.step, &link.step));
            layers.iter().position(has).map_or("a global rule", |layer| LAYERS[layer])
        };
        if from(alone) == from(other) {
            return;
        }
        let problem = format!(
            "`{}` of {} and `{}` of {} both answer in place of the upstream: requests that both take get 500",
            alone.name,
            from(alone),
            other.name,
            from(other)
        );
        self.warnings.report_text(&origin.path, origin.place, problem, Some(ADVICE.to_owned()));
    }

    /// Reports a hub as the target of a route whose responses a plugin processes: it needs an upstream.
    pub(super) fn refuse_hub_behind(&self, origin: &ResourceOrigin, chain: &[Link]) {
        let mut alone = chain.iter().filter(|link| link.step.answers_in_place() == AnswersInPlace::Alone);
        let Some(link) = alone.next() else { return };
        let path = join(&origin.path, "hub_id");
        let problem = format!(
            "the plugin `{}` answers in place of an upstream, or processes its responses, and the target is a hub",
            link.name
        );
        let advice = "put the plugin in a route without the hub, or process the heads of requests alone".to_owned();
        self.report(&path, self.document.place_at(&path), problem, Some(advice));
    }
}
