//! A document with everything that it mentions: the last stage, which is compiled without I/O.

use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use weir_net::tls::CertificateDer;

use super::Document;
use super::certificate::NamedBy;
use super::names::{NameQuery, ResolvedNames};
use super::resource_access::advice_on_file;
use super::spiffe::{SvidName, WorkloadIdentity, X509Svid};
use super::upstream::{self, NodeSpec, NodesFile, UpstreamSpec};
use crate::text::diagnostic::{Diagnostic, FaultCause, Faults};
use crate::text::read::{NodeReader, join};
use crate::text::substitute::VariableLookup;
use crate::text::tree::TextPosition;
use crate::text::yaml::{self, Parsed, TextLimits};

/// The content of each file by its name as written, or why it cannot be read. Reading is I/O, so it is done before compiling.
pub type Files = HashMap<Box<str>, Result<Arc<[u8]>, String>>;

/// The files of a document, apart by who names them.
#[derive(Clone, Debug, Default)]
pub struct NamedFiles {
    pub of_settings: Files,
    pub of_resources: Files,
}

impl NamedFiles {
    /// `None`: it was not read, since it may not be.
    pub fn get(&self, name: &str, by: NamedBy) -> Option<&Result<Arc<[u8]>, String>> {
        match by {
            NamedBy::Settings => self.of_settings.get(name),
            NamedBy::Resource => self.of_resources.get(name),
        }
    }
}

/// What a document needs that is neither in its text nor the result of a lookup.
#[derive(Clone, Debug, Default)]
pub struct BesideDocument {
    /// The directory that relative file names start from.
    pub directory: PathBuf,
    /// The contents of referenced files and variables.
    pub files: NamedFiles,
    /// The certificate authorities that the system trusts, in DER; filled in only if needed.
    pub system_roots: Vec<CertificateDer<'static>>,
}

/// A document with the files that it mentions, and the results of the lookups of its names.
#[derive(Debug)]
pub struct CompleteDocument {
    document: Document,
    pub beside: BesideDocument,
    /// The nodes read from the files of `nodes_file`, by the path as written.
    pub node_files: HashMap<Box<str>, Vec<NodeSpec>>,
    /// The names to look up.
    queries: BTreeSet<NameQuery>,
    /// The results of the lookups, which change while the document stays: a name without a result has no address for now.
    pub found: ResolvedNames,
    /// What the Workload API has given, which changes as well; `None`: nothing yet, or it was not asked.
    pub workload: Option<Arc<WorkloadIdentity>>,
}

impl Deref for CompleteDocument {
    type Target = Document;

    fn deref(&self) -> &Document {
        &self.document
    }
}

impl Document {
    /// The document with what is beside it. Parses the content of the `nodes_file`s; their faults become faults of the document.
    pub fn complete(self, beside: BesideDocument, lookup: VariableLookup, limits: TextLimits) -> CompleteDocument {
        let mut document = self;
        let node_files = document.read_nodes(&beside.files, lookup, limits);
        document.with_nodes(node_files, beside)
    }

    /// The document with nothing beside it. Each `nodes_file` counts as empty.
    pub fn alone(self) -> CompleteDocument {
        self.with_nodes(HashMap::new(), BesideDocument::default())
    }

    fn with_nodes(self, node_files: HashMap<Box<str>, Vec<NodeSpec>>, beside: BesideDocument) -> CompleteDocument {
        let queries = self.queries(&node_files);
        CompleteDocument { document: self, beside, node_files, queries, found: ResolvedNames::new(), workload: None }
    }

    fn queries(&self, node_files: &HashMap<Box<str>, Vec<NodeSpec>>) -> BTreeSet<NameQuery> {
        let nodes = self.noted_upstreams().flat_map(|upstream| &upstream.nodes).chain(node_files.values().flatten());
        let hosts = nodes.filter_map(NodeSpec::host_name).map(|name| NameQuery::Host(name.into()));
        let services = self.noted_upstreams().filter_map(|upstream| upstream.service.as_ref());
        hosts.chain(services.map(|(query, _)| query.clone())).collect()
    }

    /// The nodes in the files of `nodes_file`.
    fn read_nodes(
        &mut self,
        files: &NamedFiles,
        lookup: VariableLookup,
        limits: TextLimits,
    ) -> HashMap<Box<str>, Vec<NodeSpec>> {
        let path = |upstream: &UpstreamSpec| join(&upstream.origin.path, "nodes_file");
        let named = self.noted_upstreams().filter_map(|one| Some((path(one), one.nodes_file.clone()?)));
        let named: Vec<(String, NodesFile)> = named.collect();
        let access = self.access().cloned();
        // No resource may read the variable, only those that name the file.
        let may_read = |name: &str| access.as_ref().is_none_or(|access| access.variable("", name).is_ok());
        let lookup = |name: &str| lookup(name).filter(|_| may_read(name));
        let mut read = HashMap::new();
        for (at, NodesFile { path, place, default_port }) in named {
            let text = match files.get(&path, NamedBy::Resource) {
                Some(Ok(content)) => std::str::from_utf8(content).map_err(|_| "it is not UTF-8".to_owned()),
                Some(Err(reason)) => Err(reason.clone()),
                None => {
                    let problem = format!("the file `{path}` may not be named by a resource of the store");
                    let fault = Diagnostic { path: at, ..Diagnostic::at_place(&self.source, place, problem) };
                    self.faults.push(fault.advise(advice_on_file(&path)));
                    continue;
                }
            };
            let source: Arc<str> = (*path).into();
            let found = match text.map(|text| yaml::parse(&source, text, &lookup, limits)) {
                Ok(Ok(Parsed { tree, faults: mut found })) => {
                    let faults = Faults::new(source);
                    let nodes = upstream::nodes(&NodeReader::root(&tree, &faults), default_port);
                    read.insert(path.clone(), nodes);
                    found.extend(faults.into_diagnostics());
                    found
                }
                Ok(Err(faults)) => faults,
                Err(reason) => {
                    let problem = format!("the file `{path}` cannot be read: {reason}");
                    let fault = Diagnostic::at_place(&self.source, place, problem);
                    let cause = FaultCause::of_unread_file(&reason);
                    self.faults.push(Diagnostic { path: at, cause, ..fault });
                    continue;
                }
            };
            if self.store.is_none() {
                self.faults.extend(found);
            } else if let Some(fault) = found.first() {
                // It is a fault of the resource, which is set aside. Not everyone who reads it may read the file, so nothing of the
                // content is repeated: not even a key.
                let of_file = fault.line.zip(fault.column);
                let of_file =
                    of_file.map_or(String::new(), |(line, column)| format!(" at line {line} column {column}"));
                let problem = format!("the file `{path}` is not a list of nodes: there is a fault{of_file}");
                let fault = Diagnostic::at_place(&self.source, place, problem);
                self.faults.push(Diagnostic { path: at, ..fault }.outside());
            }
        }
        read
    }
}

impl CompleteDocument {
    /// The names that must be resolved before endpoints have addresses.
    pub fn queries(&self) -> &BTreeSet<NameQuery> {
        &self.queries
    }

    /// An X.509-SVID of the node; `None` if the Workload API gives none of this name.
    pub fn svid(&self, name: &SvidName) -> Option<&X509Svid> {
        self.workload.as_ref()?.find(name)
    }

    /// The position of a name that is looked up.
    pub fn place_of(&self, query: &NameQuery) -> TextPosition {
        let place = match query {
            NameQuery::Host(name) => self.nodes().find(|node| node.host_name() == Some(&**name)).map(|node| node.place),
            NameQuery::Service(_) | NameQuery::Registered { .. } => {
                let mut services = self.noted_upstreams().filter_map(|upstream| upstream.service.as_ref());
                services.find(|(service, _)| service == query).map(|(_, place)| *place)
            }
        };
        place.unwrap_or_default()
    }

    /// All nodes of all upstreams, which may have host names.
    fn nodes(&self) -> impl Iterator<Item = &NodeSpec> {
        self.noted_upstreams().flat_map(|upstream| &upstream.nodes).chain(self.node_files.values().flatten())
    }
}
