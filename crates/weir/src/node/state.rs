//! The state of a node, for `/status` and for readiness.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use serde::Serialize;
use serde_json::{Value, json};
use weir_control::acme::AcmeReport;
use weir_control::stores::LiveResources;
use weir_control::{Acme, NameLookups, Publisher, SpiffeReport, WorkloadHandle};
use weir_gateway::{DataPlane, tail};
use weir_net::limits::ProcessLimits;
use weir_plugin::HeldBudget;
use weir_plugin::held::HeldUse;
use weir_telemetry::metrics::Metrics;
use weir_telemetry::page::Page;
use weir_telemetry::process;

use super::metrics_export_tally::MetricsExportTally;
use super::server_tally::ServerTallies;
use super::{certificates, health, hubs, policies, records, traffic};

/// Writes the use of memory for held content, and how often content was refused because of a limit.
fn held(page: &mut Page) {
    let HeldUse { bytes, limit, refused_for_node, refused_for_client, not_spare } = HeldBudget::of_process().in_use();
    page.gauge("weir_held_content_bytes", "Content held in memory for plugins, copies and records.").value(&[], bytes);
    page.gauge("weir_held_content_limit_bytes", "Limit of the content held in memory (held_content_max).")
        .value(&[], limit);
    page.counter(
        "weir_held_content_refused",
        "Times that content was not held because a limit was reached, by limit: of the node or of one client.",
    );
    page.total(&[("limit", "node")], refused_for_node);
    page.total(&[("limit", "client")], refused_for_client);
    page.counter(
        "weir_response_rates_exceeded",
        "Times that content of a response was sent beyond its rate (limit-rate), since no memory was spare in which it could wait.",
    );
    page.total(&[], not_spare);
}

/// The phase in a node's life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NodePhase {
    #[default]
    Starting,
    Serving,
    /// Accepts no new connections, and finishes the open ones.
    Draining,
}

/// A node's state, shared between its control loop and its status address.
pub(super) struct NodeState {
    pub metrics: Arc<Metrics>,
    limits: ProcessLimits,
    pub publisher: Arc<Publisher>,
    /// Returns the revision that each worker serves.
    revisions: OnceLock<Box<dyn Fn() -> Vec<u64> + Send + Sync>>,
    /// The gateway whose endpoints are shown. Weak, since it is owned elsewhere.
    gateway: OnceLock<Weak<DataPlane>>,
    acme: OnceLock<Weak<Acme>>,
    lookups: NameLookups,
    workload: WorkloadHandle,
    /// The resources of a store; `None` if they come from the file.
    live: Option<Arc<LiveResources>>,
    pub metrics_exports: MetricsExportTally,
    pub servers: ServerTallies,
    changing: Mutex<NodeProgress>,
}

#[derive(Debug, Default)]
struct NodeProgress {
    phase: NodePhase,
    upgrade_error: Option<String>,
}

impl NodeState {
    pub(super) fn new(
        metrics: Arc<Metrics>,
        limits: ProcessLimits,
        publisher: Arc<Publisher>,
        lookups: NameLookups,
        workload: WorkloadHandle,
        live: Option<Arc<LiveResources>>,
    ) -> Self {
        Self {
            metrics,
            limits,
            publisher,
            revisions: OnceLock::new(),
            gateway: OnceLock::new(),
            acme: OnceLock::new(),
            lookups,
            workload,
            live,
            metrics_exports: MetricsExportTally::default(),
            servers: ServerTallies::default(),
            changing: Mutex::default(),
        }
    }

    /// Sets the function that returns the revision of each worker; 0 is none.
    pub(super) fn started(&self, revisions: impl Fn() -> Vec<u64> + Send + Sync + 'static) {
        // A node starts its workers only once.
        let _ = self.revisions.set(Box::new(revisions));
    }

    /// Sets the gateway and the ACME client whose state is shown.
    pub(super) fn watches(&self, gateway: &Arc<DataPlane>, acme: &Arc<Acme>) {
        // A node has one of each.
        let _ = self.gateway.set(Arc::downgrade(gateway));
        let _ = self.acme.set(Arc::downgrade(acme));
    }

    /// The metrics of this node.
    pub(super) fn page(&self) -> Page {
        self.metrics.page(|page| {
            policies::write(&self.metrics, page);
            records::write(page);
            self.metrics_exports.write(page);
            self.servers.write(page);
            held(page);
            page.gauge("weir_tails", "Clients that read `/tail` of the status address (`weir tail`, `weir trace`).")
                .value(&[], tail::count());
            hubs::write(&self.publisher.hubs().statuses(), page);
            let gateway = self.gateway();
            traffic::write(page, gateway.as_deref(), &self.publisher.status());
            if let Some(gateway) = gateway {
                health::write(&gateway, page);
            }
            page.gauge(
                "weir_names_unresolved",
                "Host names and service names of upstreams that cannot be resolved at present.",
            );
            page.value(&[], self.lookups.unresolved());
            page.gauge("weir_discovery_up", "Whether the service registry answered the last request (1) or not (0).");
            for (registry, answers) in self.lookups.registries() {
                page.value(&[("registry", registry)], u8::from(answers));
            }
            self.write_store(page);
            let status = self.publisher.status();
            page.gauge(
                "weir_config_info",
                "Always 1, by the hash of the configuration: equal where nodes serve the same text.",
            );
            if !status.hash.is_empty() {
                page.value(&[("hash", &status.hash)], 1);
            }
            certificates::write_ends(&status.certificates, page);
            if let Some(report) = self.acme() {
                certificates::write(&report, page);
            }
            if let Some(report) = self.spiffe() {
                certificates::write_svids(&report, page);
            }
        })
    }

    fn write_store(&self, page: &mut Page) {
        page.gauge(
            "weir_store_up",
            "Whether the store that nodes share answers (1), or does not or has lost all resources (0).",
        );
        if let Some(store) = &self.publisher.status().store {
            page.value(&[], u8::from(store.connected && store.problem.is_none()));
        }
        page.gauge(
            "weir_resources_set_aside",
            "Resources of the store that cannot be served as they are there; `warnings` at `/status` names them.",
        );
        if let Some(live) = &self.live {
            page.value(&[], live.content().set_aside);
        }
        page.gauge(
            "weir_store_writable",
            "Whether the last change could be written to the embedded store (1) or not (0).",
        );
        if let Some(is_writable) = self.live.as_ref().and_then(|live| live.store().is_writable()) {
            page.value(&[], u8::from(is_writable));
        }
    }

    /// The content of `/policies`.
    pub(super) fn policies(&self) -> Value {
        let every = self.gateway().map_or(0, |gateway| gateway.measured_every());
        policies::report(&self.metrics, every)
    }

    fn gateway(&self) -> Option<Arc<DataPlane>> {
        self.gateway.get().and_then(Weak::upgrade)
    }

    pub(super) fn acme(&self) -> Option<AcmeReport> {
        self.acme.get().and_then(Weak::upgrade)?.report()
    }

    pub(super) fn spiffe(&self) -> Option<SpiffeReport> {
        self.workload.report()
    }

    pub(super) fn enter(&self, phase: NodePhase) {
        self.changing().phase = phase;
    }

    /// Sets the error of the last binary upgrade; `None` if it succeeded, or none was tried.
    pub(super) fn upgrade_error(&self, error: Option<String>) {
        self.changing().upgrade_error = error;
    }

    /// Why no traffic should be sent to this node; `None` if it is ready.
    pub(super) fn not_ready(&self) -> Option<&'static str> {
        match self.changing().phase {
            NodePhase::Starting => return Some("starting"),
            NodePhase::Draining => return Some("draining"),
            NodePhase::Serving => {}
        }
        self.revisions().contains(&0).then_some("a worker has no configuration yet")
    }

    /// The content of `/status`.
    pub(super) fn report(&self, query: &health::EndpointQuery) -> Value {
        let changing = self.changing();
        let revisions = self.revisions();
        let workers: Vec<Value> = self
            .metrics
            .workers()
            .iter()
            .zip(&revisions)
            .map(|(worker, revision)| {
                json!({
                    "revision": revision,
                    "connections": worker.connections(),
                    "requests": worker.requests.value(),
                })
            })
            .collect();
        let (upstreams, endpoints) = self.gateway().map(|gateway| health::report(&gateway, query)).unzip();
        json!({
            // As APISIX's status address answers.
            "status": "ok",
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": process::uptime_seconds(),
            "state": changing.phase,
            "draining": changing.phase == NodePhase::Draining,
            // The revision that every worker has adopted at least.
            "revision": revisions.iter().min().copied().unwrap_or_default(),
            "workers": workers,
            "connections": self.metrics.workers().iter().map(|worker| worker.connections()).sum::<u64>(),
            "upstreams": upstreams,
            "endpoints": endpoints,
            "acme": self.acme(),
            "spiffe": self.spiffe(),
            "hubs": hubs::report(&self.publisher.hubs().statuses()),
            "configuration": *self.publisher.status(),
            "upgrade": { "error": changing.upgrade_error },
            "limits": {
                "open_files": self.limits.open_files,
                "backlog": self.limits.backlog,
                "ports": self.limits.ports,
            },
        })
    }

    /// The revision that every worker has adopted at least.
    pub(super) fn revision(&self) -> u64 {
        self.revisions().iter().min().copied().unwrap_or_default()
    }

    fn revisions(&self) -> Vec<u64> {
        match self.revisions.get() {
            Some(revisions) => revisions(),
            None => vec![0; self.metrics.workers().len()],
        }
    }

    fn changing(&self) -> MutexGuard<'_, NodeProgress> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
