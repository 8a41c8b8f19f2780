//! Which objects a watch follows.

use crate::objects::Kind;
use crate::objects::core::SECRET_OF_PLUGINS;

/// The type of Secrets with a certificate and its key.
const SECRET_OF_TLS: &str = "kubernetes.io/tls";

/// The objects of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchScope {
    pub kind: Kind,
    /// Of all namespaces if `None`.
    pub namespace: Option<String>,
    pub part: ScopePart,
}

/// Which objects of a kind are in a scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScopePart {
    All,
    /// The Secrets of a type.
    OfType(&'static str),
    /// The object with this name.
    Named(String),
}

/// How the objects of a kind are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchForm {
    /// Those that the selectors select; all of them if they are empty.
    Whole { fields: String, labels: &'static str },
    /// Only their metadata: nothing else is read.
    Metadata,
}

impl WatchScope {
    /// One object.
    pub fn of_object(kind: Kind, namespace: impl Into<String>, name: impl Into<String>) -> WatchScope {
        WatchScope { kind, namespace: Some(namespace.into()), part: ScopePart::Named(name.into()) }
    }

    /// The scopes that are watched all the time. `namespaces` limits kinds that are in namespaces; empty stands for all.
    ///
    /// ConfigMaps, and Secrets of other types, are watched by name when an object refers to them.
    /// Kinds of the APISIX ingress controller only if they are adopted.
    pub fn permanent(namespaces: &[String], adopt_apisix: bool) -> Vec<WatchScope> {
        let mut scopes = Vec::new();
        let is_read = |kind: &&Kind| **kind != Kind::ConfigMap && (adopt_apisix || !kind.is_of_apisix());
        for &kind in Kind::ALL.iter().filter(is_read) {
            let parts = match kind {
                // Releases of Helm are Secrets too, and large.
                Kind::Secret => vec![ScopePart::OfType(SECRET_OF_TLS), ScopePart::OfType(SECRET_OF_PLUGINS)],
                _ => vec![ScopePart::All],
            };
            for part in parts {
                let of = |namespace| WatchScope { kind, namespace, part: part.clone() };
                match kind.is_namespaced() && !namespaces.is_empty() {
                    true => scopes.extend(namespaces.iter().cloned().map(|namespace| of(Some(namespace)))),
                    false => scopes.push(of(None)),
                }
            }
        }
        scopes
    }

    /// Whether it is watched since another object refers to it.
    pub fn is_by_name(&self) -> bool {
        matches!(self.part, ScopePart::Named(_))
    }

    pub fn form(&self) -> WatchForm {
        let fields = match &self.part {
            _ if self.kind == Kind::Namespace => return WatchForm::Metadata,
            ScopePart::All => String::new(),
            ScopePart::OfType(kind) => format!("type={kind}"),
            ScopePart::Named(name) => format!("metadata.name={name}"),
        };
        let labels = if self.kind == Kind::EndpointSlice { "kubernetes.io/service-name" } else { "" };
        WatchForm::Whole { fields, labels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_limit_only_kinds_that_are_in_namespaces() {
        let scopes = WatchScope::permanent(&["a".to_owned(), "b".to_owned()], false);
        let of = |kind: Kind| -> Vec<Option<&str>> {
            scopes.iter().filter(|scope| scope.kind == kind).map(|scope| scope.namespace.as_deref()).collect()
        };
        assert_eq!(of(Kind::Service), [Some("a"), Some("b")]);
        assert_eq!(of(Kind::GatewayClass), [None]);
        assert_eq!(of(Kind::ConfigMap), []);
        assert!(WatchScope::permanent(&[], false).iter().all(|scope| scope.namespace.is_none()));
    }

    #[test]
    fn kinds_of_apisix_are_watched_if_they_are_adopted() {
        let count = |adopt_apisix| {
            let scopes = WatchScope::permanent(&[], adopt_apisix);
            scopes.iter().filter(|scope| scope.kind.is_of_apisix()).count()
        };
        assert_eq!((count(false), count(true)), (0, 12));
    }

    #[test]
    fn secrets_are_watched_by_type_and_others_by_name() {
        let scopes = WatchScope::permanent(&[], false);
        let forms: Vec<WatchForm> =
            scopes.iter().filter(|scope| scope.kind == Kind::Secret).map(WatchScope::form).collect();
        let fields = |fields: &str| WatchForm::Whole { fields: fields.to_owned(), labels: "" };
        assert_eq!(forms, [fields("type=kubernetes.io/tls"), fields("type=weir.dev/plugin")]);
        assert_eq!(WatchScope::of_object(Kind::Secret, "a", "users").form(), fields("metadata.name=users"));
    }
}
