//! What routes attach to: the listeners of Gateways and of ListenerSets.

use std::collections::{BTreeMap, BTreeSet};

use super::super::conditions::Problem;
use super::super::grants::{GROUP, GrantReferrer};
use super::super::policies::AppliedPolicies;
use super::super::precedence::precedence;
use super::addresses::{self, Addresses};
use super::certificates::{self, TlsCertificate};
use super::context::Context;
use super::frontend_tls::{self, FrontendVerification};
use crate::objects::gateway::{GatewayListener, KubeGateway, ListenerSet, RouteGroupKind};
use crate::objects::meta::ObjectMeta;
use crate::objects::{Kind, KubeObject, ObjectRef};
use crate::translation::resource_id;
use crate::world::ObjectName;

/// All that is ours.
pub(super) struct Parents<'a> {
    pub gateways: Vec<GatewayState<'a>>,
    pub sets: Vec<SetState<'a>>,
    /// In the order in which conflicts are decided.
    pub listeners: Vec<ListenerState<'a>>,
    /// The Gateways whose routes lead to a Service, as numbers in `gateways`.
    reached: BTreeMap<ObjectName, BTreeSet<usize>>,
    /// The listeners of each Gateway and ListenerSet.
    by_owner: BTreeMap<ObjectRef, Vec<usize>>,
}

pub(super) struct GatewayState<'a> {
    pub gateway: &'a KubeGateway,
    pub addresses: Addresses,
    /// The certificate that backends with a BackendTLSPolicy are shown; a problem: they are shown none.
    pub identity: Result<Option<TlsCertificate>, Problem>,
}

/// A ListenerSet whose parent is ours.
pub(super) struct SetState<'a> {
    pub set: &'a ListenerSet,
    /// A number in `gateways`.
    pub gateway: usize,
    /// Whether the Gateway allows it.
    pub is_allowed: bool,
}

pub(super) struct ListenerState<'a> {
    /// That of the resource.
    pub id: String,
    /// The Gateway or the ListenerSet that has it.
    pub owner: ObjectRef,
    /// A number in `gateways`.
    pub gateway: usize,
    pub listener: &'a GatewayListener,
    /// The kinds of routes that may attach.
    pub kinds: Vec<Kind>,
    /// It cannot be served as it is, whatever else there is.
    pub refused: Option<Problem>,
    /// Another listener has its port with another protocol, or with its host.
    pub conflict: Option<Problem>,
    /// A reference of it does not lead anywhere, or it names a kind of routes that is not known.
    pub unresolved: Option<Problem>,
    pub certificates: Vec<TlsCertificate>,
    pub clients: FrontendVerification,
    pub attached: usize,
    /// Why the node does not serve it as it is.
    pub not_served: Option<String>,
}

impl ListenerState<'_> {
    /// Whether it gets requests.
    pub(super) fn is_served(&self) -> bool {
        self.refused.is_none() && self.conflict.is_none() && (!self.is_tls() || !self.certificates.is_empty())
    }

    /// Whether TLS ends here.
    pub(super) fn is_tls(&self) -> bool {
        matches!(&*self.listener.protocol, "HTTPS" | "TLS") && tls_mode(self.listener) == TERMINATE
    }

    /// Whether TLS is passed through to backends.
    pub(super) fn passes_tls(&self) -> bool {
        self.listener.protocol == "TLS" && tls_mode(self.listener) == PASSTHROUGH
    }

    /// `TCP` or `UDP`.
    pub(super) fn transport(&self) -> &'static str {
        if self.listener.protocol == "UDP" { "UDP" } else { "TCP" }
    }

    /// Whether there is a name to tell several listeners of a port apart.
    fn has_names(&self) -> bool {
        !matches!(&*self.listener.protocol, "TCP" | "UDP")
    }

    pub(super) fn host(&self) -> Option<&str> {
        self.listener.hostname.as_deref().filter(|host| !host.is_empty() && self.has_names())
    }

    fn lower_host(&self) -> String {
        self.host().unwrap_or_default().to_ascii_lowercase()
    }

    /// Why connections or requests could belong to this listener and to another one of the same Gateway.
    fn conflict_with(&self, other: &ListenerState) -> Option<Problem> {
        let (port, protocol) = (self.listener.port, &*self.listener.protocol);
        if (port, self.transport()) != (other.listener.port, other.transport()) {
            return None;
        }
        if other.listener.protocol != protocol {
            return Some(other_protocol(port, &other.listener.protocol));
        }
        if !self.has_names() {
            return Some(no_names(port, protocol));
        }
        (self.lower_host() == other.lower_host()).then(|| same_host(port))
    }
}

fn other_protocol(port: u16, other: &str) -> Problem {
    Problem::new("ProtocolConflict", format!("another listener has port {port} with {other}"))
}

fn no_names(port: u16, protocol: &str) -> Problem {
    Problem::new("ProtocolConflict", format!("another listener has port {port}, and {protocol} has no host names"))
}

fn same_host(port: u16) -> Problem {
    Problem::new("HostnameConflict", format!("another listener has port {port} with this host name"))
}

impl<'a> Parents<'a> {
    /// All Gateways of these classes, with their ListenerSets.
    pub(super) fn collect(context: &Context<'a>, classes: &BTreeSet<&str>) -> Parents<'a> {
        let is_ours = |gateway: &&KubeGateway| classes.contains(&*gateway.spec.gateway_class_name);
        let mut ours: Vec<&KubeGateway> =
            context.world.gateways.values().map(|gateway| &**gateway).filter(is_ours).collect();
        ours.sort_by(|one, other| precedence(&one.metadata, &other.metadata));
        let assigned = addresses::assign(&ours, context.world, context.options);
        let states = ours.into_iter().zip(assigned);
        let mut parents = Parents {
            gateways: states
                .map(|(gateway, addresses)| {
                    let identity = certificates::of_gateway(context, gateway);
                    GatewayState { gateway, addresses, identity }
                })
                .collect(),
            sets: Vec::new(),
            listeners: Vec::new(),
            reached: BTreeMap::new(),
            by_owner: BTreeMap::new(),
        };
        parents.sets = sets(context, &parents.gateways);
        for index in 0..parents.gateways.len() {
            let gateway = parents.gateways[index].gateway;
            parents.add(context, index, gateway, &gateway.spec.listeners);
        }
        for index in 0..parents.sets.len() {
            let SetState { set, gateway, is_allowed } = parents.sets[index];
            if is_allowed {
                parents.add(context, gateway, set, &set.spec.listeners);
            }
        }
        parents.find_conflicts_within();
        parents.find_conflicts_between();
        for (index, listener) in parents.listeners.iter().enumerate() {
            parents.by_owner.entry(listener.owner.clone()).or_default().push(index);
        }
        parents
    }

    fn add<T: KubeObject>(&mut self, context: &Context, gateway: usize, owner: &T, listeners: &'a [GatewayListener]) {
        let reference = ObjectRef::of(owner);
        let ObjectMeta { namespace, name, .. } = owner.metadata();
        let prefix = if T::KIND == Kind::Gateway { "gateway" } else { "listenerset" };
        for listener in listeners {
            let mut state = ListenerState {
                id: resource_id(&[prefix, namespace, name, &listener.name]),
                owner: reference.clone(),
                gateway,
                listener,
                kinds: Vec::new(),
                refused: refusal(listener),
                conflict: None,
                unresolved: None,
                certificates: Vec::new(),
                clients: FrontendVerification::default(),
                attached: 0,
                not_served: None,
            };
            state.find_kinds();
            if state.is_tls() {
                state.find_certificates(context, GrantReferrer { group: GROUP, kind: T::KIND.name(), namespace });
                state.verify_clients(frontend_tls::of_port(context, self.gateways[gateway].gateway, listener.port));
            }
            self.listeners.push(state);
        }
    }

    /// Listeners of one Gateway are written at once, so that none of them is older: of those that conflict with each other, none
    /// is served.
    fn find_conflicts_within(&mut self) {
        let is_candidate = |state: &ListenerState| state.owner.kind == Kind::Gateway && state.refused.is_none();
        let mut conflicts = Vec::new();
        for listeners in self.listeners.chunk_by(|one, other| one.owner == other.owner) {
            for one in listeners.iter().filter(|state| is_candidate(state)) {
                let others = listeners.iter().filter(|other| !std::ptr::eq(*other, one) && is_candidate(other));
                conflicts.push(others.filter_map(|other| one.conflict_with(other)).next());
            }
        }
        let candidates = self.listeners.iter_mut().filter(|state| is_candidate(state));
        candidates.zip(conflicts).for_each(|(state, conflict)| state.conflict = conflict);
    }

    /// Of listeners of several Gateways and ListenerSets with one port, those with another protocol than the first, and those
    /// with the host of one before, conflict.
    fn find_conflicts_between(&mut self) {
        let mut ports: BTreeMap<(String, u16, &str), (&str, BTreeSet<String>)> = BTreeMap::new();
        for listener in &mut self.listeners {
            // One that is not served takes no port.
            if listener.conflict.is_some() {
                continue;
            }
            let host = listener.lower_host();
            let (port, protocol) = (listener.listener.port, &*listener.listener.protocol);
            let address = (self.gateways[listener.gateway].addresses.host.clone(), port, listener.transport());
            match ports.get_mut(&address) {
                Some((other, _)) if *other != protocol => listener.conflict = Some(other_protocol(port, other)),
                Some(_) if !listener.has_names() => listener.conflict = Some(no_names(port, protocol)),
                Some((_, hosts)) if hosts.contains(&host) => listener.conflict = Some(same_host(port)),
                Some((_, hosts)) => {
                    hosts.insert(host);
                }
                None if listener.refused.is_none() => {
                    ports.insert(address, (protocol, BTreeSet::from([host])));
                }
                None => {}
            }
        }
    }

    /// The listeners that are served at the address of one, which has this host.
    pub(super) fn beside(&self, one: &ListenerState, host: &str) -> impl Iterator<Item = &ListenerState<'a>> {
        let (port, transport) = (one.listener.port, one.transport());
        let is_beside = move |other: &&ListenerState| {
            other.listener.port == port && other.transport() == transport && other.is_served()
        };
        let has_host = move |other: &&ListenerState| self.gateways[other.gateway].addresses.host == host;
        self.listeners.iter().filter(is_beside).filter(has_host)
    }

    /// Where a listener is reached.
    pub(super) fn addresses_of(&self, listener: usize) -> &Addresses {
        &self.gateways[self.listeners[listener].gateway].addresses
    }

    /// The certificate that backends are shown for requests of a listener.
    pub(super) fn identity_of(&self, listener: usize) -> Option<&TlsCertificate> {
        self.gateways[self.listeners[listener].gateway].identity.as_ref().ok()?.as_ref()
    }

    /// The policies of the Gateway of a listener, and of the listener.
    pub(super) fn policies_of<'p>(&self, context: &'p Context, listener: usize) -> AppliedPolicies<'p> {
        let ListenerState { owner, gateway, listener, .. } = &self.listeners[listener];
        let gateway = ObjectRef::of(self.gateways[*gateway].gateway);
        let is_own = *owner == gateway;
        context.policies.of_object(&gateway, Some(&*listener.name).filter(|_| is_own))
    }

    /// Notes that requests of a listener go to a Service.
    pub(super) fn reach(&mut self, listener: usize, service: ObjectName) {
        self.reached.entry(service).or_default().insert(self.listeners[listener].gateway);
    }

    /// The names of the Gateways whose routes lead to a Service.
    pub(super) fn gateways_of(&self, service: &ObjectName) -> impl Iterator<Item = ObjectName> {
        let numbers = self.reached.get(service).into_iter().flatten();
        numbers.map(|number| addresses::name_of(self.gateways[*number].gateway))
    }

    /// The listeners of a Gateway or ListenerSet, as numbers; `None` if it is not ours.
    pub(super) fn listeners_of(&self, owner: &ObjectRef) -> Option<&[usize]> {
        let known = |name: &ObjectMeta| name.namespace == owner.namespace && name.name == owner.name;
        let is_ours = match owner.kind {
            Kind::Gateway => self.gateways.iter().any(|state| known(&state.gateway.metadata)),
            Kind::ListenerSet => self.sets.iter().any(|state| known(&state.set.metadata)),
            _ => false,
        };
        is_ours.then(|| self.by_owner.get(owner).map(Vec::as_slice).unwrap_or_default())
    }
}

fn sets<'a>(context: &Context<'a>, gateways: &[GatewayState<'a>]) -> Vec<SetState<'a>> {
    let numbers: BTreeMap<ObjectName, usize> =
        gateways.iter().enumerate().map(|(number, state)| (addresses::name_of(state.gateway), number)).collect();
    let state = |set: &'a ListenerSet| {
        let parent = &set.spec.parent_ref;
        let is_gateway = parent.kind.as_deref().unwrap_or("Gateway") == "Gateway"
            && parent.group.as_deref().unwrap_or(GROUP) == GROUP;
        let own = &set.metadata.namespace;
        let name = ObjectName::new(parent.namespace.as_ref().unwrap_or(own), &parent.name);
        let gateway = *numbers.get(&name).filter(|_| is_gateway)?;
        let allowed = gateways[gateway].gateway.spec.allowed_listeners.as_ref();
        let namespaces = allowed.and_then(|allowed| allowed.namespaces.as_ref());
        let is_allowed = context.allows(namespaces, "None", &name.namespace, own);
        Some(SetState { set, gateway, is_allowed })
    };
    let mut sets: Vec<SetState> = context.world.listener_sets.values().filter_map(|set| state(set)).collect();
    sets.sort_by(|one, other| precedence(&one.set.metadata, &other.set.metadata));
    sets
}

fn refusal(listener: &GatewayListener) -> Option<Problem> {
    let unsupported = |message: String| Some(Problem::new("UnsupportedProtocol", message));
    match (&*listener.protocol, tls_mode(listener)) {
        ("HTTP" | "TCP" | "UDP", _) | ("HTTPS" | "TLS", TERMINATE) | ("TLS", PASSTHROUGH) => None,
        (protocol @ ("HTTPS" | "TLS"), mode) => {
            unsupported(format!("TLS mode {mode} is not supported with {protocol}"))
        }
        (other, _) => unsupported(format!("protocol {other} is not supported: use HTTP, HTTPS, TLS, TCP or UDP")),
    }
}

/// TLS ends at the listener.
const TERMINATE: &str = "Terminate";
const PASSTHROUGH: &str = "Passthrough";

fn tls_mode(listener: &GatewayListener) -> &str {
    listener.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or(TERMINATE)
}

/// The kinds of routes that may attach to a listener.
fn kinds_of(protocol: &str) -> &'static [Kind] {
    match protocol {
        "TCP" => &[Kind::TCPRoute],
        "TLS" => &[Kind::TLSRoute],
        "UDP" => &[Kind::UDPRoute],
        _ => &[Kind::HTTPRoute, Kind::GRPCRoute],
    }
}

impl ListenerState<'_> {
    fn find_kinds(&mut self) {
        let all = kinds_of(&self.listener.protocol);
        let named = self.listener.allowed_routes.as_ref().map(|allowed| &*allowed.kinds).unwrap_or_default();
        let known = |kind: &RouteGroupKind| {
            let is_group = kind.group.as_deref().unwrap_or(GROUP) == GROUP;
            all.iter().copied().find(|known| is_group && known.name() == kind.kind)
        };
        if self.refused.is_some() {
            return;
        }
        if named.is_empty() {
            self.kinds = all.to_vec();
            return;
        }
        self.kinds = named.iter().filter_map(known).collect();
        if let Some(other) = named.iter().find(|kind| known(kind).is_none()) {
            let message = format!("routes of kind {} cannot attach to {}", other.kind, self.listener.protocol);
            self.unresolved = Some(Problem::new("InvalidRouteKinds", message));
        }
    }

    fn verify_clients(&mut self, mut verification: FrontendVerification) {
        self.refused = self.refused.take().or(verification.refused.take());
        self.unresolved = self.unresolved.take().or(verification.unresolved.take());
        self.clients = verification;
    }

    fn find_certificates(&mut self, context: &Context, from: GrantReferrer) {
        let references = self.listener.tls.as_ref().map(|tls| &*tls.certificate_refs).unwrap_or_default();
        for reference in references {
            match certificates::resolve(context, from, reference) {
                Ok(certificate) => self.certificates.push(certificate),
                Err(problem) => self.unresolved = self.unresolved.take().or(Some(problem)),
            }
        }
        if references.is_empty() {
            let problem = Problem::new("InvalidCertificateRef", "the listener has no certificateRefs");
            self.unresolved = self.unresolved.take().or(Some(problem));
        }
    }
}
