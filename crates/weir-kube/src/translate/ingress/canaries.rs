//! The split of a path's requests between two Ingresses.

use serde_json::{Map, Value, json};

use super::settings::Canary;
use super::targets::BackendTarget;

/// The options of `traffic-split`. What applies first decides: the header, the cookie, the weight.
pub(super) fn split(canary: &Canary, target: BackendTarget) -> Value {
    let to_canary = |weight: u64| {
        let mut entry = Map::from_iter([("weight".to_owned(), json!(weight))]);
        entry.extend(target.clone());
        Value::Object(entry)
    };
    let rule =
        |condition: Value, entry: Value| json!({ "match": [{ "vars": [condition] }], "weighted_upstreams": [entry] });
    let stays = || json!({ "weight": 1 });
    let mut rules = Vec::new();
    if let Some(header) = &canary.header {
        let variable = format!("http_{}", header.to_ascii_lowercase().replace('-', "_"));
        match (&canary.header_value, &canary.header_pattern) {
            (Some(value), _) => rules.push(rule(json!([variable, "==", value]), to_canary(1))),
            (None, Some(pattern)) => rules.push(rule(json!([variable, "~~", pattern]), to_canary(1))),
            (None, None) => {
                rules.push(rule(json!([variable, "==", "always"]), to_canary(1)));
                rules.push(rule(json!([variable, "==", "never"]), stays()));
            }
        }
    }
    if let Some(cookie) = &canary.cookie {
        let variable = format!("cookie_{cookie}");
        rules.push(rule(json!([variable, "==", "always"]), to_canary(1)));
        rules.push(rule(json!([variable, "==", "never"]), stays()));
    }
    if canary.weight > 0 {
        let rest = canary.weight_total - canary.weight;
        rules.push(json!({ "weighted_upstreams": [to_canary(canary.weight), { "weight": rest }] }));
    }
    json!({ "rules": rules })
}
