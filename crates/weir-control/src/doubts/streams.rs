//! Finds plugins that hold the whole content of responses on routes whose responses are streams of events: such a stream is refused
//! at run time.

use serde_json::Value;

use super::Doubts;
use crate::document::{PluginSpec, ResourceOrigin, RouteSpec};
use crate::text::read::join;
use crate::text::tree::TreePath;

/// The plugins that are of use only where events are.
const OF_STREAMS: [&str; 3] = ["sse-fanout", "sse-policy", "limit-events"];

pub(super) fn held_as_a_whole(doubts: &Doubts) {
    for route in doubts.enabled_routes() {
        let plugins = plugins_of(doubts, route);
        let Some((_, streaming)) = plugins.iter().find(|(_, plugin)| OF_STREAMS.contains(&&*plugin.name)) else {
            continue;
        };
        for (origin, plugin) in plugins.iter().filter(|(_, plugin)| holds_responses(plugin)) {
            let path = join(&origin.path, &format!("plugins{}", TreePath::suffix(&plugin.name)));
            let problem = format!(
                "`{}` holds the whole content of responses, and by its plugin `{}` {} has event streams, which are then refused",
                plugin.name,
                streaming.name,
                doubts.named(&route.origin),
            );
            let advice =
                "set `streams: pass`, so that streams pass unchanged, or use another route for them".to_owned();
            doubts.report(&path, doubts.document.place_at(&path), problem, advice);
        }
    }
}

/// The plugins of a route that are on, with the resources that they are in.
pub(super) fn plugins_of<'a>(doubts: &Doubts<'a>, route: &'a RouteSpec) -> Vec<(&'a ResourceOrigin, &'a PluginSpec)> {
    let of_service = doubts.resources.service_of(route).map(|service| (&service.origin, &service.plugins));
    let of_set = doubts.resources.plugin_config_of(route).map(|set| (&set.origin, &set.plugins));
    let all = [Some((&route.origin, &route.plugins)), of_service, of_set];
    let plugins = all.into_iter().flatten().flat_map(|(origin, plugins)| plugins.iter().map(move |one| (origin, one)));
    plugins.filter(|(_, plugin)| !plugin.disabled).collect()
}

fn holds_responses(plugin: &PluginSpec) -> bool {
    let options = &plugin.options;
    let has_filters = options["filters"].as_array().is_some_and(|filters| !filters.is_empty());
    let is_for_content = |rule: &Value| rule["on"] == "response" && rule["in"] == "body";
    let has_rules = options["rules"].as_array().is_some_and(|rules| rules.iter().any(is_for_content));
    let holds = plugin.name.as_ref() == "response-rewrite" && has_filters
        || plugin.name.as_ref() == "content-filter" && has_rules;
    holds && options["streams"] != "pass"
}
