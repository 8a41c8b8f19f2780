//! An API server over the network, by the library `kube`.

mod authority;
mod lease;
mod objects;

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::discovery::ApiResource;
use kube::core::{DynamicResourceScope, PartialObjectMeta};
use kube::runtime::watcher;
use kube::{Client, Config, Resource};
use serde_json::{Value, json};

use super::scope::{WatchForm, WatchScope};
use super::{Cluster, ClusterError, LeaseAnswer, LeaseRequest, ScopeEvent};
use crate::objects::{Kind, ObjectRef};
use crate::translation::{EventKind, ObjectEvent};
pub use authority::{ReviewedToken, StoredEntries};

/// How long the server keeps a watch before it ends it. A connection of which the other end has vanished is noticed at most five
/// seconds later.
const WATCH_S: u32 = 60;
/// How long an answer to anything else is awaited.
const ANSWER: Duration = Duration::from_secs(15);
/// Who wrote a field, in `managedFields` of the object.
const WRITER: &str = "weir";

/// How the API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterAccess {
    /// By the service account of the pod that this process runs in. Its token is read again when it is renewed.
    InCluster,
    /// By a kubeconfig file, and one of its contexts; without one, by its current context.
    Kubeconfig { path: PathBuf, context: Option<String> },
}

/// The API server of a cluster.
pub struct ApiServer {
    client: Client,
    address: String,
}

impl ApiServer {
    /// Reads the credentials. Nothing is sent.
    ///
    /// # Errors
    /// If they cannot be read or used.
    pub async fn new(access: &ClusterAccess) -> Result<ApiServer, ClusterError> {
        let mut config = match access {
            ClusterAccess::InCluster => Config::incluster().map_err(|error| {
                unusable(format!("this process has no service account of a pod: {}", causes(&error)))
            })?,
            ClusterAccess::Kubeconfig { path, context } => {
                let of_file = |error: &dyn std::error::Error| {
                    unusable(format!("the kubeconfig {} cannot be used: {}", path.display(), causes(error)))
                };
                let file = Kubeconfig::read_from(path).map_err(|error| of_file(&error))?;
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| of_file(&error))?
            }
        };
        config.connect_timeout = Some(ANSWER);
        // No answer, of a watch either, is silent for longer.
        config.read_timeout = Some(Duration::from_secs(u64::from(WATCH_S)) + ANSWER);
        let address = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| unusable(causes(&error)))?;
        Ok(ApiServer { client, address })
    }

    /// Its URL.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The Leases beside one.
    fn leases(&self, lease: &LeaseRequest) -> Api<Lease> {
        let namespace = match lease.namespace.is_empty() {
            true => self.client.default_namespace(),
            false => &lease.namespace,
        };
        Api::namespaced(self.client.clone(), namespace)
    }

    fn api<K>(&self, kind: Kind, version: &'static str, namespace: Option<&str>) -> Api<K>
    where
        K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        let resource = objects::resource(kind, version);
        match namespace.filter(|namespace| !namespace.is_empty()) {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}

impl Cluster for ApiServer {
    fn version(&self, kind: Kind) -> BoxFuture<'_, Result<Option<&'static str>, ClusterError>> {
        Box::pin(async move {
            for &version in kind.versions() {
                let asked = async {
                    match kind.group() {
                        "" => self.client.list_core_api_resources(version).await,
                        group => self.client.list_api_group_resources(&format!("{group}/{version}")).await,
                    }
                };
                match within(asked).await {
                    Ok(list) if list.resources.iter().any(|found| found.name == kind.plural()) => {
                        return Ok(Some(version));
                    }
                    Ok(_) => {}
                    Err(error) if error.is_missing() => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(None)
        })
    }

    fn watch(&self, scope: &WatchScope, version: &'static str) -> BoxStream<'static, Result<ScopeEvent, ClusterError>> {
        let namespace = scope.namespace.as_deref();
        let mut config = watcher::Config::default().timeout(WATCH_S);
        match scope.form() {
            WatchForm::Metadata => {
                let api: Api<PartialObjectMeta<DynamicObject>> = self.api(scope.kind, version, namespace);
                watcher::watcher(api, config).map(|event| objects::watched(event, objects::of_metadata)).boxed()
            }
            WatchForm::Whole { fields, labels } => {
                config.field_selector = Some(fields).filter(|fields| !fields.is_empty());
                config.label_selector = (!labels.is_empty()).then(|| labels.to_owned());
                let api: Api<DynamicObject> = self.api(scope.kind, version, namespace);
                watcher::watcher(api, config).map(|event| objects::watched(event, objects::of_object)).boxed()
            }
        }
    }

    fn write_status<'a>(
        &'a self,
        object: &'a ObjectRef,
        version: &'static str,
        resource_version: &'a str,
        status: Value,
    ) -> BoxFuture<'a, Result<String, ClusterError>> {
        Box::pin(async move {
            let api: Api<DynamicObject> = self.api(object.kind, version, Some(&object.namespace));
            let patch = Patch::Merge(json!({ "metadata": { "resourceVersion": resource_version }, "status": status }));
            let by = PatchParams { field_manager: Some(WRITER.to_owned()), ..PatchParams::default() };
            let written = within(api.patch_status(&object.name, &by, &patch)).await?;
            Ok(written.metadata.resource_version.unwrap_or_default())
        })
    }

    fn apply<'a>(
        &'a self,
        object: &'a ObjectRef,
        version: &'static str,
        value: &'a Value,
    ) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            let api: Api<DynamicObject> = self.api(object.kind, version, Some(&object.namespace));
            // Fields that another program writes are a conflict, and stay as they are.
            within(api.patch(&object.name, &PatchParams::apply(WRITER), &Patch::Apply(value))).await.map(drop)
        })
    }

    fn write_event<'a>(&'a self, event: &'a ObjectEvent, uid: &'a str) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            let object = &event.object;
            // Events about an object of no namespace are in this one.
            let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
            let now = meta::Time(Timestamp::now());
            let record = core::Event {
                metadata: meta::ObjectMeta {
                    generate_name: Some(format!("{}.", object.name)),
                    namespace: Some(namespace.to_owned()),
                    ..meta::ObjectMeta::default()
                },
                involved_object: core::ObjectReference {
                    api_version: Some(object.kind.api_version(object.kind.versions()[0])),
                    kind: Some(object.kind.name().to_owned()),
                    name: Some(object.name.clone()),
                    namespace: Some(object.namespace.clone()).filter(|namespace| !namespace.is_empty()),
                    uid: Some(uid.to_owned()),
                    ..core::ObjectReference::default()
                },
                type_: Some(match event.kind {
                    EventKind::Normal => "Normal".to_owned(),
                    EventKind::Warning => "Warning".to_owned(),
                }),
                reason: Some(event.reason.clone()),
                message: Some(event.message.clone()),
                source: Some(core::EventSource { component: Some(WRITER.to_owned()), host: None }),
                first_timestamp: Some(now.clone()),
                last_timestamp: Some(now),
                count: Some(1),
                ..core::Event::default()
            };
            let api: Api<core::Event> = Api::namespaced(self.client.clone(), namespace);
            within(api.create(&PostParams::default(), &record)).await.map(drop)
        })
    }

    fn hold_lease<'a>(
        &'a self,
        lease: &'a LeaseRequest,
        stale: Option<&'a str>,
    ) -> BoxFuture<'a, Result<LeaseAnswer, ClusterError>> {
        Box::pin(lease::hold(self.leases(lease), lease, stale))
    }

    fn release_lease<'a>(&'a self, lease: &'a LeaseRequest) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(lease::release(self.leases(lease), lease))
    }
}

/// Waits for an answer, at most [`ANSWER`].
async fn within<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, ClusterError> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(answered) => answered.map_err(|error| objects::error(&error)),
        Err(_) => Err(unusable(format!("the API server does not answer within {} s", ANSWER.as_secs()))),
    }
}

fn unusable(problem: String) -> ClusterError {
    ClusterError { status: 0, problem }
}

/// An error with what caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_told = cause.to_string();
        if !told.contains(&cause_told) {
            told = format!("{told}: {cause_told}");
        }
        next = cause.source();
    }
    told
}
