//! BackendTLSPolicies: TLS to the endpoints of Services.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::conditions::Problem;
use super::super::precedence::precedence;
use super::authorities;
use crate::objects::policy::{BackendTlsPolicy, BackendTlsValidation, PolicyTarget};
use crate::world::{ObjectName, World};

/// What a policy is about: a Service, and the name of one of its ports; without a name all ports that no other policy names.
type PolicedPort<'a> = (ObjectName, Option<&'a str>);

pub(super) struct TlsPolicies<'a> {
    policies: Vec<PolicyState<'a>>,
    /// Numbers in `policies`.
    by_target: BTreeMap<PolicedPort<'a>, usize>,
}

pub(super) struct PolicyState<'a> {
    pub policy: &'a BackendTlsPolicy,
    /// An older policy has its target.
    conflict: Option<Problem>,
    /// A reference to certificates of authorities leads nowhere.
    pub unresolved: Option<Problem>,
    /// `tls` of an upstream.
    settings: Result<Map<String, Value>, Problem>,
}

impl<'a> TlsPolicies<'a> {
    pub(super) fn new(world: &'a World) -> TlsPolicies<'a> {
        let mut sorted: Vec<&BackendTlsPolicy> = world.backend_tls_policies.values().map(|policy| &**policy).collect();
        sorted.sort_by(|one, other| precedence(&one.metadata, &other.metadata));
        let (mut policies, mut by_target) = (Vec::<PolicyState>::new(), BTreeMap::new());
        for policy in sorted {
            let mut state = PolicyState::new(world, policy);
            for target in targets(policy) {
                let first = *by_target.entry(target).or_insert(policies.len());
                if let Some(older) = policies.get(first) {
                    let name = &older.policy.metadata.name;
                    let message = format!("BackendTLSPolicy {name} is older and has the same target");
                    state.conflict = state.conflict.or(Some(Problem::new("Conflicted", message)));
                }
            }
            policies.push(state);
        }
        TlsPolicies { policies, by_target }
    }

    /// `tls` of the upstream of a port; `None` if its endpoints are reached without TLS.
    ///
    /// # Errors
    /// If the policy cannot be followed. To send in plain text what must be encrypted is worse than not to send it.
    pub(super) fn settings(&self, service: &ObjectName, port: &str) -> Result<Option<&Map<String, Value>>, Problem> {
        let of_port = self.by_target.get(&(service.clone(), Some(port)));
        let Some(number) = of_port.or_else(|| self.by_target.get(&(service.clone(), None))) else { return Ok(None) };
        match &self.policies[*number].settings {
            Ok(settings) => Ok(Some(settings)),
            Err(problem) => {
                let name = &self.policies[*number].policy.metadata.name;
                let message =
                    format!("BackendTLSPolicy {name} of Service {service}: {}; its requests get 500", problem.message);
                Err(Problem::new("UnsupportedProtocol", message))
            }
        }
    }

    /// In the order in which conflicts are decided.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PolicyState<'a>> {
        self.policies.iter()
    }
}

fn targets(policy: &BackendTlsPolicy) -> impl Iterator<Item = PolicedPort<'_>> {
    let is_service = |target: &&PolicyTarget| target.group.is_empty() && target.kind == "Service";
    policy.spec.target_refs.iter().filter(is_service).map(|target| {
        let service = ObjectName::new(&policy.metadata.namespace, &target.name);
        (service, target.section_name.as_deref())
    })
}

impl<'a> PolicyState<'a> {
    fn new(world: &World, policy: &'a BackendTlsPolicy) -> PolicyState<'a> {
        let BackendTlsValidation { hostname, ca_certificate_refs, .. } = &policy.spec.validation;
        let (mut trusted, mut unresolved) = (String::new(), None);
        for reference in ca_certificate_refs {
            match authorities::resolve(world, &policy.metadata.namespace, reference) {
                Ok(text) => trusted.extend([text.trim(), "\n"]),
                Err(fault) => {
                    let reason = if fault.is_kind { "InvalidKind" } else { "InvalidCACertificateRef" };
                    unresolved = unresolved.or(Some(Problem::new(reason, fault.message)));
                }
            }
        }
        let mut settings = Map::from_iter([
            ("verify".to_owned(), true.into()),
            ("server_name".to_owned(), hostname.to_ascii_lowercase().into()),
        ]);
        if !trusted.is_empty() {
            settings.insert("ca".to_owned(), trusted.into());
        }
        let names = alt_names(policy);
        if !names.is_empty() {
            settings.insert("subject_alt_names".to_owned(), json!(names));
        }
        let settings = match fault(policy, settings.contains_key("ca")) {
            Some(problem) => Err(problem),
            None => Ok(settings),
        };
        PolicyState { policy, conflict: None, unresolved, settings }
    }

    /// The Services that it is about.
    pub(super) fn services(&self) -> impl Iterator<Item = ObjectName> {
        targets(self.policy).map(|(service, _)| service)
    }

    /// Why it is not in force.
    pub(super) fn refusal(&self) -> Option<&Problem> {
        self.conflict.as_ref().or(self.settings.as_ref().err())
    }
}

/// Why a policy cannot be followed.
fn fault(policy: &BackendTlsPolicy, has_authorities: bool) -> Option<Problem> {
    let validation = &policy.spec.validation;
    match validation.well_known_ca_certificates.as_deref() {
        None | Some("" | "System") => {}
        Some(other) => {
            let message = format!("wellKnownCACertificates {other} is not supported: use System");
            return Some(Problem::new("Invalid", message));
        }
    }
    if !validation.ca_certificate_refs.is_empty() && !has_authorities {
        return Some(Problem::new("NoValidCACertificate", "no caCertificateRefs lead to certificates"));
    }
    let option = policy.spec.options.keys().next()?;
    Some(Problem::new("Invalid", format!("option {option} is not supported: leave options out")))
}

fn alt_names(policy: &BackendTlsPolicy) -> Vec<&str> {
    let names = policy.spec.validation.subject_alt_names.iter();
    names.map(|name| if name.kind == "URI" { &*name.uri } else { &*name.hostname }).collect()
}
