//! Finds routes whose limit of request bodies is above the node's, which applies in any case.

use serde_json::Value;
use weir_plugin::units;

use super::Doubts;
use crate::text::read::join;

const PLUGIN: &str = "client-control";
const OPTION: &str = "max_body_size";

pub(super) fn limited_by_the_node(doubts: &Doubts) {
    let Some(most) = doubts.document.settings.clients.body_bytes else { return };
    for (origin, plugin) in doubts.enabled_plugins().filter(|(_, plugin)| &*plugin.name == PLUGIN) {
        let limit = match &plugin.options[OPTION] {
            Value::String(text) => units::size(text),
            number => number.as_u64(),
        };
        if limit.is_some_and(|limit| limit > most) {
            let path = join(&origin.path, &format!("plugins.{PLUGIN}.{OPTION}"));
            let problem = format!("has no effect: the node's `client_max_body_size` of {most} bytes is lower");
            let advice = "raise `client_max_body_size`, and limit the other routes with this plugin".to_owned();
            doubts.report(&path, doubts.document.place_at(&path), problem, advice);
        }
    }
}
