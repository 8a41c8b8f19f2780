//! Upstreams in the options of plugins: the shares of APISIX `traffic-split`, and where `error-page` fetches pages.

use super::resource::{self, Reference, ReferringPlugin, ResourceOrigin};
use super::upstream::{self, UpstreamSpec};
use crate::text::read::NodeReader;

/// The plugins whose options refer to upstreams.
pub const SPLITTING: ReferringPlugin = ReferringPlugin { plugin: "traffic-split", option: "upstream_id" };
pub const PAGING: ReferringPlugin = ReferringPlugin { plugin: "error-page", option: SPLITTING.option };

/// Options that have an upstream, inline or by id.
#[derive(Clone, Debug)]
pub struct TrafficShare {
    pub origin: ResourceOrigin,
    /// Their path: `rules[0].weighted_upstreams[1]`.
    pub path: Box<str>,
    pub upstream: Option<UpstreamSpec>,
    pub upstream_id: Option<Reference>,
}

/// The shares in the options of a plugin. Options of a wrong type are skipped; the plugin reports them.
pub(super) fn read(plugin: &str, options: &NodeReader) -> Vec<TrafficShare> {
    let mut shares = Vec::new();
    if plugin == PAGING.plugin {
        let fetch = options.node().entry("fetch").map(|entry| options.below(entry)).filter(NodeReader::is_map);
        shares.extend(fetch.and_then(|fetch| share(&fetch, "fetch".to_owned())));
    }
    if plugin != SPLITTING.plugin {
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

/// `None` for the share that stays with the route's own upstream.
fn share(item: &NodeReader, path: String) -> Option<TrafficShare> {
    // Unknown keys are reported by the plugin, so all are accepted here.
    let fields = item.map("")?;
    fields.at_most_one("upstream", "upstream_id");
    let upstream = fields.get("upstream").and_then(|at| upstream::read_inline(&at));
    let upstream_id = resource::reference(&fields, SPLITTING.option);
    let names_one = upstream.is_some() || upstream_id.is_some();
    names_one.then(|| TrafficShare { origin: ResourceOrigin::of(item), path: path.into(), upstream, upstream_id })
}
