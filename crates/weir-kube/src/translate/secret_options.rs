//! Options of plugins with the values of a Secret, as `secretRef` of the kinds of the APISIX ingress controller adds them.

use serde_json::{Map, Value};

use crate::objects::core::SECRET_OF_PLUGINS;
use crate::world::{ObjectName, World};

/// The types of Secrets whose values become options of plugins: tokens of service accounts, and what other programs keep in Secrets, are
/// not meant for it.
const TYPES: [&str; 4] = ["", "Opaque", "kubernetes.io/basic-auth", SECRET_OF_PLUGINS];
/// The most bytes of all values of a Secret for a plugin.
const MOST_BYTES: usize = 64 << 10;
/// The most maps in a key of a Secret, which are as deep in the options.
const MOST_DEPTH: usize = 8;

/// These options with the values of a Secret of the namespace, which win; without a name of one, as they are.
///
/// # Errors
/// Why there are none.
pub(super) fn with_values(
    world: &World,
    namespace: &str,
    written: &Map<String, Value>,
    secret: Option<&str>,
) -> Result<Map<String, Value>, String> {
    let mut options = written.clone();
    if secret == Some("") {
        return Err("secretRef: names no Secret of the namespace by `name`".to_owned());
    }
    if let Some(secret) = secret {
        for (key, value) in values(world, namespace, secret)? {
            insert(&mut options, &key, value).map_err(|problem| format!("secretRef: `{key}`: {problem}"))?;
        }
    }
    Ok(options)
}

/// The values of a Secret of a namespace that is meant for options.
///
/// # Errors
/// Why there are none.
pub(super) fn values(world: &World, namespace: &str, name: &str) -> Result<Map<String, Value>, String> {
    let missing = || format!("there is no Secret `{name}` of the type Opaque in the namespace `{namespace}`");
    let secret = world.secrets.get(&ObjectName::new(namespace, name)).ok_or_else(missing)?;
    if !TYPES.contains(&&*secret.kind) {
        return Err(missing());
    }
    let mut found = Map::new();
    let mut bytes = 0;
    for key in secret.data.keys().chain(secret.string_data.keys()) {
        let text = secret.text(key)?;
        bytes += key.len() + text.len();
        if bytes > MOST_BYTES {
            return Err(format!("the Secret `{name}` has more than {MOST_BYTES} bytes"));
        }
        found.insert(key.clone(), text.into());
    }
    Ok(found)
}

/// Inserts an option; dots in the key lead into maps.
fn insert(options: &mut Map<String, Value>, key: &str, value: Value) -> Result<(), &'static str> {
    let mut parts: Vec<&str> = key.split('.').collect();
    if parts.len() > MOST_DEPTH {
        return Err("the key has too many dots");
    }
    let last = parts.pop().unwrap_or_default();
    let mut map = options;
    for part in parts {
        let below = map.entry(part).or_insert_with(|| Value::Object(Map::new()));
        map = below.as_object_mut().ok_or("leads into an option that is not a map")?;
    }
    map.insert(last.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_of_secrets_lead_into_maps() {
        let mut options = json!({ "session": { "ttl": 5 }, "name": "a" });
        let Value::Object(map) = &mut options else { unreachable!("it is a map") };
        assert_eq!(insert(map, "session.secret", "s".into()), Ok(()));
        assert_eq!(insert(map, "client_secret", "c".into()), Ok(()));
        assert!(insert(map, "name.below", "x".into()).is_err());
        assert_eq!(options, json!({ "session": { "ttl": 5, "secret": "s" }, "client_secret": "c", "name": "a" }));
    }
}
