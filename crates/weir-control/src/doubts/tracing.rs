//! Finds `opentelemetry` that traces no request, or sends spans to a collector that is written nowhere.

use serde_json::Value;

use super::Doubts;
use crate::document::{PluginSpec, ResourceOrigin};
use crate::text::read::join;

const PLUGIN: &str = "opentelemetry";

/// Where spans go if no collector is written.
const COLLECTOR: &str = "127.0.0.1:4318";

pub(super) fn to_nowhere(doubts: &Doubts) {
    let document = doubts.document;
    let metadata = document.plugin_metadata.iter().find(|plugin| &*plugin.name == PLUGIN);
    let mut has_collector = metadata.is_some_and(|plugin| !plugin.options["collector"]["address"].is_null());
    for (origin, plugin) in doubts.enabled_plugins().filter(|(_, plugin)| &*plugin.name == PLUGIN) {
        if traces_nothing(&plugin.options) {
            let problem = "traces no request: `sampler.name` is `always_off`, the default".to_owned();
            let advice = "write `sampler: { name: always_on }`, or `trace_id_ratio` with `options.fraction`".to_owned();
            report(doubts, (origin, plugin), problem, advice);
        } else if !has_collector {
            let problem = format!("sends spans to {COLLECTOR}, the default: no collector is written");
            let advice = format!("write `collector: {{ address: HOST:PORT }}` in `plugin_metadata` of `{PLUGIN}`");
            report(doubts, (origin, plugin), problem, advice);
            // There is one collector for all.
            has_collector = true;
        }
    }
}

fn traces_nothing(options: &Value) -> bool {
    let is_off = matches!(options["sampler"]["name"].as_str(), None | Some("always_off"));
    is_off && options["keep_errors"] != true && options["keep_slower_than"].is_null()
}

fn report(doubts: &Doubts, (origin, plugin): (&ResourceOrigin, &PluginSpec), problem: String, advice: String) {
    let path = join(&origin.path, &format!("plugins.{PLUGIN}"));
    doubts.report(&path, plugin.place, problem, advice);
}
