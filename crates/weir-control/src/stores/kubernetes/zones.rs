//! Zones: endpoints that the cluster gives to the zone of this node are used first, and those of others while none of these is usable.

use serde_json::Value;

/// The member of a node of an upstream with the zones whose clients should prefer it. It is in what controllers tell, and in no document.
const ZONES: &str = "zones";

/// Makes priorities of the zones in an upstream, for a node in `zone`; an empty one is none.
pub(super) fn prefer(upstream: &mut Value, zone: &str) {
    let Some(nodes) = upstream.get_mut("nodes").and_then(Value::as_array_mut) else { return };
    let is_own = |node: &Value| {
        let zones = node.get(ZONES).and_then(Value::as_array);
        !zone.is_empty() && zones.is_some_and(|zones| zones.iter().any(|known| known == zone))
    };
    let has_own = nodes.iter().any(is_own);
    for node in nodes {
        let is_behind = has_own && !is_own(node);
        let Value::Object(members) = node else { continue };
        members.remove(ZONES);
        if is_behind {
            members.insert("priority".to_owned(), (-1).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn preferred(zone: &str) -> Value {
        let mut upstream = json!({
            "nodes": [
                { "host": "10.0.0.1", "port": 80, "weight": 1, "zones": ["a"] },
                { "host": "10.0.0.2", "port": 80, "weight": 1, "zones": ["a", "b"] },
                { "host": "10.0.0.3", "port": 80, "weight": 1, "zones": ["c"] },
            ],
        });
        prefer(&mut upstream, zone);
        upstream
    }

    fn with_priorities(priorities: [Option<i64>; 3]) -> Value {
        let nodes = priorities.iter().zip(1..).map(|(priority, number)| {
            let mut node = json!({ "host": format!("10.0.0.{number}"), "port": 80, "weight": 1 });
            if let Some(priority) = priority {
                node["priority"] = (*priority).into();
            }
            node
        });
        json!({ "nodes": nodes.collect::<Vec<_>>() })
    }

    #[test]
    fn endpoints_of_other_zones_are_behind_those_of_the_nodes_own() {
        assert_eq!(preferred("a"), with_priorities([None, None, Some(-1)]));
        assert_eq!(preferred("b"), with_priorities([Some(-1), None, Some(-1)]));
        // Without one for this zone, and where the zone is not known, all are equal.
        assert_eq!(preferred("d"), with_priorities([None; 3]));
        assert_eq!(preferred(""), with_priorities([None; 3]));
    }

    #[test]
    fn upstreams_without_a_list_of_nodes_stay_as_they_are() {
        for value in
            [json!({}), json!({ "nodes": { "10.0.0.1:80": 1 } }), json!({ "nodes": [] }), json!({ "nodes": [1] })]
        {
            let mut upstream = value.clone();
            prefer(&mut upstream, "a");
            assert_eq!(upstream, value);
        }
    }
}
