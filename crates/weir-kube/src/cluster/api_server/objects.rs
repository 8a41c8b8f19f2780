//! What the library `kube` yields, as values.

use kube::api::DynamicObject;
use kube::core::PartialObjectMeta;
use kube::core::discovery::ApiResource;
use kube::runtime::watcher;
use serde_json::Value;

use super::super::{ClusterError, ScopeEvent};
use super::causes;
use crate::objects::Kind;

/// What `kubectl apply` keeps in an object: the whole object once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub(super) fn resource(kind: Kind, version: &str) -> ApiResource {
    ApiResource {
        group: kind.group().to_owned(),
        version: version.to_owned(),
        api_version: kind.api_version(version),
        kind: kind.name().to_owned(),
        plural: kind.plural().to_owned(),
    }
}

/// The event of a watch, with the object as `value` makes it.
pub(super) fn watched<T>(
    event: watcher::Result<watcher::Event<T>>,
    value: fn(T) -> Value,
) -> Result<ScopeEvent, ClusterError> {
    Ok(match event.map_err(|error| watch_error(&error))? {
        watcher::Event::Init => ScopeEvent::ListBegins,
        watcher::Event::InitDone => ScopeEvent::ListEnds,
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => ScopeEvent::Is(value(object)),
        watcher::Event::Delete(object) => {
            let value = value(object);
            let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
            ScopeEvent::Gone(text("namespace"), text("name"))
        }
    })
}

pub(super) fn of_object(mut object: DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    let mut value = object.data;
    value["metadata"] = serde_json::to_value(object.metadata).unwrap_or_default();
    value
}

pub(super) fn of_metadata(object: PartialObjectMeta<DynamicObject>) -> Value {
    of_object(DynamicObject { types: None, metadata: object.metadata, data: Value::Object(serde_json::Map::new()) })
}

fn watch_error(error: &watcher::Error) -> ClusterError {
    match error {
        watcher::Error::InitialListFailed(inner)
        | watcher::Error::WatchStartFailed(inner)
        | watcher::Error::WatchFailed(inner) => self::error(inner),
        watcher::Error::WatchError(status) => ClusterError { status: status.code, problem: status.message.clone() },
        other => ClusterError { status: 0, problem: causes(other) },
    }
}

pub(super) fn error(error: &kube::Error) -> ClusterError {
    match error {
        kube::Error::Api(status) => ClusterError { status: status.code, problem: status.message.clone() },
        other => ClusterError { status: 0, problem: causes(other) },
    }
}
