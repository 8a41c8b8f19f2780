//! Which objects a watch follows.

use crate::objects::Kind;

/// The objects of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchScope {
    pub kind: Kind,
    /// Of all namespaces if `None`.
    pub namespace: Option<String>,
    /// One object alone.
    pub name: Option<String>,
}

/// How the objects of a kind are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchForm {
    /// Those that the selector selects; all of them if it is empty.
    Whole { fields: &'static str, labels: &'static str },
    /// Only their metadata: nothing else is read.
    Metadata,
}

impl WatchScope {
    /// The scopes that are watched all the time. `namespaces` limits kinds that are in namespaces; empty stands for all.
    ///
    /// ConfigMaps, and Secrets of other types, are watched by name when an object refers to them.
    pub fn permanent(namespaces: &[String]) -> Vec<WatchScope> {
        let mut scopes = Vec::new();
        for &kind in Kind::ALL.iter().filter(|kind| **kind != Kind::ConfigMap) {
            let of = |namespace| WatchScope { kind, namespace, name: None };
            match kind.is_namespaced() && !namespaces.is_empty() {
                true => scopes.extend(namespaces.iter().cloned().map(|namespace| of(Some(namespace)))),
                false => scopes.push(of(None)),
            }
        }
        scopes
    }

    pub fn form(&self) -> WatchForm {
        let (fields, labels) = match self.kind {
            Kind::Namespace => return WatchForm::Metadata,
            // Releases of Helm are Secrets too, and large.
            Kind::Secret if self.name.is_none() => ("type=kubernetes.io/tls", ""),
            Kind::EndpointSlice => ("", "kubernetes.io/service-name"),
            _ => ("", ""),
        };
        WatchForm::Whole { fields, labels }
    }

    /// Whether an object of this kind with this namespace and name can be in the scope.
    pub fn has(&self, namespace: &str, name: &str) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace)
            && self.name.as_deref().is_none_or(|own| own == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_limit_only_kinds_that_are_in_namespaces() {
        let scopes = WatchScope::permanent(&["a".to_owned(), "b".to_owned()]);
        let of = |kind: Kind| -> Vec<Option<&str>> {
            scopes.iter().filter(|scope| scope.kind == kind).map(|scope| scope.namespace.as_deref()).collect()
        };
        assert_eq!(of(Kind::Service), [Some("a"), Some("b")]);
        assert_eq!(of(Kind::GatewayClass), [None]);
        assert_eq!(of(Kind::ConfigMap), []);
        assert!(WatchScope::permanent(&[]).iter().all(|scope| scope.namespace.is_none()));
    }

    #[test]
    fn secrets_of_other_types_are_watched_by_name_only() {
        let all = WatchScope { kind: Kind::Secret, namespace: None, name: None };
        assert_eq!(all.form(), WatchForm::Whole { fields: "type=kubernetes.io/tls", labels: "" });
        let one = WatchScope { kind: Kind::Secret, namespace: Some("a".to_owned()), name: Some("users".to_owned()) };
        assert_eq!(one.form(), WatchForm::Whole { fields: "", labels: "" });
        assert!(one.has("a", "users") && !one.has("a", "other") && !one.has("b", "users"));
    }
}
