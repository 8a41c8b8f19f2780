//! The inputs of compiling a resource that are outside of it, and which of them have changed.

use std::collections::HashSet;
use std::ops::{BitOr, Not};

use weir_plugin::BuildInputs;

use crate::document::kinds;
use crate::document::settings::{self, SettingScope};
use crate::document::{CompleteDocument, NamedBy, NamedFiles, NodeSpec, ResolvedName};
use crate::text::fingerprint::Fingerprint;

/// A set of inputs that are outside of a resource; as a result, those that have not changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dependencies(u16);

impl Dependencies {
    pub(super) const CONSUMERS: Dependencies = Dependencies(1);
    pub(super) const METADATA: Dependencies = Dependencies(1 << 1);
    pub(super) const HTTP: Dependencies = Dependencies(1 << 2);
    pub(super) const HTTPS_PORT: Dependencies = Dependencies(1 << 3);
    /// The resources that a resource refers to by id.
    pub(super) const REFERENCES: Dependencies = Dependencies(1 << 4);
    /// Resolved names, and node lists that are stored in files.
    pub(super) const NAMES: Dependencies = Dependencies(1 << 5);
    /// The TLS settings shared by all upstreams with TLS.
    pub(super) const TLS: Dependencies = Dependencies(1 << 6);
    /// The directories in which plugins may write and read files.
    pub(super) const FOLDERS: Dependencies = Dependencies(1 << 7);
    /// The resources of `protos`.
    pub(super) const PROTOS: Dependencies = Dependencies(1 << 8);
    /// The files with the code of plugins.
    pub(super) const PLUGIN_FILES: Dependencies = Dependencies(1 << 9);
    /// The upstreams as services that plugins call.
    pub(super) const SERVICES: Dependencies = Dependencies(1 << 10);

    /// What the SPIFFE Workload API has given.
    pub(super) const SPIFFE: Dependencies = Dependencies(1 << 11);

    /// What a route's own plugins may be built from.
    pub(super) const OF_PLUGINS: Dependencies = Dependencies::CONSUMERS
        .and(Dependencies::METADATA)
        .and(Dependencies::HTTP)
        .and(Dependencies::HTTPS_PORT)
        .and(Dependencies::PROTOS)
        .and(Dependencies::PLUGIN_FILES)
        .and(Dependencies::SERVICES);

    pub(super) const fn and(self, other: Dependencies) -> Dependencies {
        Dependencies(self.0 | other.0)
    }

    pub(super) fn are_among(self, others: Dependencies) -> bool {
        self.0 & !others.0 == 0
    }

    pub(super) fn only_if(self, condition: bool) -> Dependencies {
        if condition { self } else { Dependencies::default() }
    }
}

impl Not for Dependencies {
    type Output = Dependencies;

    fn not(self) -> Dependencies {
        Dependencies(!self.0)
    }
}

impl BitOr for Dependencies {
    type Output = Dependencies;

    fn bitor(self, other: Dependencies) -> Dependencies {
        self.and(other)
    }
}

impl From<BuildInputs> for Dependencies {
    fn from(inputs: BuildInputs) -> Dependencies {
        Dependencies::CONSUMERS.only_if(inputs.consumers)
            | Dependencies::METADATA.only_if(inputs.metadata)
            | Dependencies::HTTP.only_if(inputs.http)
            | Dependencies::HTTPS_PORT.only_if(inputs.https_port)
            | Dependencies::FOLDERS.only_if(inputs.folders)
            | Dependencies::PROTOS.only_if(inputs.protos)
            | Dependencies::PLUGIN_FILES.only_if(inputs.plugin_files)
            | Dependencies::SERVICES.only_if(inputs.services)
    }
}

/// The parts of a document that compiling a resource uses without a reference to them.
#[derive(Clone)]
pub(super) struct Surroundings {
    /// The inputs of any route, or set of plugins.
    pub(super) general: Fingerprint,
    consumers: Fingerprint,
    metadata: Fingerprint,
    http: Fingerprint,
    https_port: Fingerprint,
    folders: Fingerprint,
    protos: Fingerprint,
    plugin_files: Fingerprint,
    services: Fingerprint,
    names: Fingerprint,
    pub(super) tls: Fingerprint,
    pub(super) spiffe: Fingerprint,
}

/// Whether a change of this member of the document compiles every route again: any but those that are known not to. Routes depend on
/// the resources of stores through other fields of `Surroundings`.
fn is_general(key: &str) -> bool {
    let is_of_store = kinds::find(key).is_some_and(|kind| kind.is_stored);
    settings::scope(key) != Some(SettingScope::Node) && !is_of_store
}

/// What TLS of upstreams is made of beside their own text.
const TLS_SECTIONS: &[&str] =
    &["ssls", "ssl_trusted_certificate", "upstream_tls_verify", "spiffe", "resource_spiffe_ids"];

impl Surroundings {
    pub(super) fn of(document: &CompleteDocument) -> Surroundings {
        let sections = |wanted: &[&str]| document.sections(|key| wanted.contains(&key));
        let files = files(document);
        Surroundings {
            general: document.sections(is_general),
            consumers: sections(&["consumers", "consumer_groups"]),
            metadata: sections(&["plugin_metadata"]),
            http: Fingerprint::of((
                sections(&["dns_resolver", "dns_resolver_valid", "ssl_trusted_certificate"]),
                files,
            )),
            https_port: sections(&["listen", "listeners"]),
            folders: Fingerprint::of(document.access().map(|access| (&*access.writable, &*access.readable))),
            protos: sections(&["protos"]),
            plugin_files: plugin_files(document),
            services: sections(&["upstreams", "upstream_tls_verify"]),
            names: names(document),
            tls: Fingerprint::of((sections(TLS_SECTIONS), files)),
            spiffe: Fingerprint::of(document.workload.as_ref().map(|identity| identity.digest)),
        }
    }

    /// The inputs that have not changed since `before`, apart from references.
    pub(super) fn unchanged_since(&self, before: &Surroundings) -> Dependencies {
        Dependencies::CONSUMERS.only_if(self.consumers == before.consumers)
            | Dependencies::METADATA.only_if(self.metadata == before.metadata)
            | Dependencies::HTTP.only_if(self.http == before.http)
            | Dependencies::HTTPS_PORT.only_if(self.https_port == before.https_port)
            | Dependencies::FOLDERS.only_if(self.folders == before.folders)
            | Dependencies::PROTOS.only_if(self.protos == before.protos)
            | Dependencies::PLUGIN_FILES.only_if(self.plugin_files == before.plugin_files)
            | Dependencies::SERVICES.only_if(self.services == before.services)
            | Dependencies::NAMES.only_if(self.names == before.names)
            | Dependencies::TLS.only_if(self.tls == before.tls)
            | Dependencies::SPIFFE.only_if(self.spiffe == before.spiffe)
    }

    /// The current fingerprint of these inputs of plugins.
    pub(super) fn of_inputs(&self, inputs: BuildInputs) -> Fingerprint {
        let BuildInputs { consumers, metadata, http, https_port, folders, protos, plugin_files, services } = inputs;
        Fingerprint::of([
            consumers.then_some(self.consumers),
            metadata.then_some(self.metadata),
            http.then_some(self.http),
            https_port.then_some(self.https_port),
            folders.then_some(self.folders),
            protos.then_some(self.protos),
            plugin_files.then_some(self.plugin_files),
            services.then_some(self.services),
        ])
    }
}

/// The files from which the TLS clients of the gateway and of upstreams are built.
fn files(document: &CompleteDocument) -> Fingerprint {
    let NamedFiles { of_settings, of_resources } = &document.beside.files;
    let pems = of_resources.iter().filter(|(name, _)| !document.node_files.contains_key(*name));
    let is_code: HashSet<&str> = document.plugin_files().collect();
    let of_settings = of_settings
        .iter()
        .filter(|(name, _)| !is_code.contains(&***name))
        .map(|(name, content)| (NamedBy::Settings, name, content));
    let mut files: Vec<_> = of_settings.chain(pems.map(|(name, content)| (NamedBy::Resource, name, content))).collect();
    files.sort_by_key(|(by, name, _)| (*by, *name));
    let roots: Vec<&[u8]> = document.beside.system_roots.iter().map(|root| &**root).collect();
    Fingerprint::of((files, roots))
}

/// The content of the files with the code of plugins.
fn plugin_files(document: &CompleteDocument) -> Fingerprint {
    let content = |name| document.beside.files.get(name, NamedBy::Settings);
    Fingerprint::of(document.plugin_files().map(content).collect::<Vec<_>>())
}

fn names(document: &CompleteDocument) -> Fingerprint {
    let found = document.found.iter().map(|(query, name)| match name {
        ResolvedName::Addresses(addresses) => Fingerprint::of((query, addresses)),
        ResolvedName::Targets(targets) => {
            let target = |it: &weir_client::ServiceTarget| {
                Fingerprint::of((&it.host, it.address, it.port, it.weight, it.priority))
            };
            Fingerprint::of((query, targets.iter().map(target).collect::<Vec<_>>()))
        }
        ResolvedName::Instances(instances) => Fingerprint::of((query, instances)),
    });
    let in_files = document.node_files.iter().map(|(file, nodes)| {
        let node = |it: &NodeSpec| Fingerprint::of((&it.host, it.port, it.weight, it.priority));
        Fingerprint::of((file, nodes.iter().map(node).collect::<Vec<_>>()))
    });
    Fingerprint::of_all(found.chain(in_files))
}

/// The parts of a document that have not changed since the previous one.
#[derive(Clone, Copy, Default)]
pub(super) struct Unchanged {
    /// Whether compiled routes and sets of plugins may be reused at all.
    pub(super) general: bool,
    pub(super) dependencies: Dependencies,
}

impl Unchanged {
    pub(super) fn since(before: Option<&Surroundings>, surroundings: &Surroundings) -> Unchanged {
        before.map_or_else(Unchanged::default, |before| Unchanged {
            general: surroundings.general == before.general,
            dependencies: surroundings.unchanged_since(before),
        })
    }
}
