//! A world from manifests in YAML or JSON, for tests and for commands that do not ask a cluster.

use serde_json::Value;

use super::World;
use crate::objects::{Kind, ObjectError};

/// What manifests contain.
#[derive(Debug, Default)]
pub struct Manifests {
    pub world: World,
    /// The objects of kinds that are not read, in order: `apps/v1 Deployment shop/orders`.
    pub skipped: Vec<String>,
}

impl World {
    /// Reads manifests: several documents in YAML, each an object or a `List` of them. An object without a namespace is in
    /// `default`, as for `kubectl`.
    ///
    /// # Errors
    /// If the text is not YAML, a document is not an object of Kubernetes, or an object does not have the form of its kind.
    pub fn from_manifests(text: &str) -> Result<Manifests, ObjectError> {
        // `n`, `on` and `yes` are names here.
        let options = serde_saphyr::options! { strict_booleans: true };
        let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
            .map_err(|error| ObjectError(format!("this is not YAML: {error}")))?;
        let mut manifests = Manifests::default();
        for document in documents {
            manifests.add(document)?;
        }
        Ok(manifests)
    }
}

impl Manifests {
    fn add(&mut self, mut document: Value) -> Result<(), ObjectError> {
        if document.is_null() {
            return Ok(());
        }
        let text = |key: &str| document[key].as_str().map(str::to_owned);
        let (Some(api_version), Some(kind)) = (text("apiVersion"), text("kind")) else {
            return Err(ObjectError("a document has no `apiVersion` and `kind`".to_owned()));
        };
        if let (true, Some(Value::Array(items))) = (kind.ends_with("List"), document.get_mut("items").map(Value::take))
        {
            return items.into_iter().try_for_each(|item| self.add(item));
        }
        let Some(known) = Kind::find(&api_version, &kind) else {
            self.skipped.push(format!("{api_version} {kind} {}", name(&document)));
            return Ok(());
        };
        if known.is_namespaced() && document["metadata"]["namespace"].as_str().unwrap_or_default().is_empty() {
            document["metadata"]["namespace"] = "default".into();
        }
        self.world.put(known.read(document)?);
        Ok(())
    }
}

fn name(document: &Value) -> String {
    let metadata = &document["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::ObjectName;

    #[test]
    fn documents_and_lists_are_read_and_other_kinds_are_listed() {
        let manifests = World::from_manifests(
            "---
apiVersion: v1
kind: Service
metadata: { name: y, namespace: shop }
spec: { ports: [{ port: 80 }] }
---
# nothing but a comment
---
apiVersion: v1
kind: List
items:
- { apiVersion: v1, kind: Service, metadata: { name: b } }
- { apiVersion: apps/v1, kind: Deployment, metadata: { name: c, namespace: shop } }
",
        )
        .unwrap();
        let names: Vec<_> = manifests.world.services.keys().cloned().collect();
        assert_eq!(names, [ObjectName::new("default", "b"), ObjectName::new("shop", "y")]);
        assert_eq!(manifests.world.services[&ObjectName::new("shop", "y")].spec.ports[0].port, 80);
        assert_eq!(manifests.skipped, ["apps/v1 Deployment shop/c"]);
    }

    #[test]
    fn a_text_that_is_not_manifests_is_refused() {
        assert!(World::from_manifests("a: [").unwrap_err().to_string().starts_with("this is not YAML"));
        assert!(World::from_manifests("a: 1").unwrap_err().to_string().contains("apiVersion"));
    }

    #[test]
    fn an_object_without_metadata_is_refused() {
        let error = World::from_manifests("{ apiVersion: v1, kind: Service }").unwrap_err();
        assert!(error.to_string().contains("metadata.name"), "{error}");
    }
}
