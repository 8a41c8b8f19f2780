//! Upstreams that stand in the options of a plugin: the shares of APISIX `traffic-split`.

use super::resource::{self, Reference, ResourceOrigin};
use super::upstream::{self, UpstreamSpec};
use crate::text::read::NodeReader;

/// The plugin whose options name upstreams.
const PLUGIN: &str = "traffic-split";

/// An item of `weighted_upstreams` that names an upstream, one way or the other.
#[derive(Clone, Debug)]
pub struct TrafficShare {
    pub origin: ResourceOrigin,
    /// Where it stands in the options: `rules[0].weighted_upstreams[1]`.
    pub path: Box<str>,
    pub upstream: Option<UpstreamSpec>,
    pub upstream_id: Option<Reference>,
}

/// The shares in the options of a plugin. What is wrong with the shape of the options is for the plugin to say.
pub(super) fn read(plugin: &str, options: &NodeReader) -> Vec<TrafficShare> {
    let mut shares = Vec::new();
    if plugin != PLUGIN {
        return shares;
    }
    let Some(rules) = options.node().entry("rules") else { return shares };
    let rules = options.below(rules);
    if !rules.is_list() {
        return shares;
    }
    for (rule_index, rule) in rules.items().enumerate() {
        let Some(weighted) = rule.node().entry("weighted_upstreams") else { continue };
        let weighted = rule.below(weighted);
        if !weighted.is_list() {
            continue;
        }
        for (index, item) in weighted.items().enumerate().filter(|(_, item)| item.is_map()) {
            let path = format!("rules[{rule_index}].weighted_upstreams[{index}]");
            shares.extend(share(&item, path));
        }
    }
    shares
}

/// Nothing for the share that stays with the route's own upstream.
fn share(item: &NodeReader, path: String) -> Option<TrafficShare> {
    // Keys that nobody knows are the plugin's to report.
    let known: Vec<&str> = item.entries()?.iter().map(|entry| &*entry.key).collect();
    let fields = item.fields(&known)?;
    fields.at_most_one("upstream", "upstream_id");
    let upstream = fields.get("upstream").and_then(|at| upstream::read_inline(&at));
    let upstream_id = resource::reference(&fields, "upstream_id");
    let names_one = upstream.is_some() || upstream_id.is_some();
    names_one.then(|| TrafficShare { origin: ResourceOrigin::of(item), path: path.into(), upstream, upstream_id })
}
