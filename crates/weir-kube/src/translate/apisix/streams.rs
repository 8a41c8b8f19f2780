//! Rules of ApisixRoutes for TCP and UDP: a stream route for each.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::backends::PortTransport;
use super::super::upstream_settings::port_number;
use super::backends::RuleBackends;
use super::matches::is_host;
use super::outcomes::ApisixProblem;
use super::plugins::PluginChecker;
use crate::objects::ObjectRef;
use crate::objects::apisix::{ApisixRoute, ApisixStreamRule};
use crate::translation::{DerivedResource, ResourceList, Translation, resource_id};

/// Which ports and server names rules have taken, and the namespaces of these rules. Of several rules for the same, the first has it.
#[derive(Default)]
pub(super) struct StreamRuleClaims(BTreeMap<StreamRuleClaim, String>);

/// A port, and a server name; without one, all connections.
type StreamRuleClaim = (PortTransport, u16, String);

impl StreamRuleClaims {
    /// Takes a port and a name for a rule of a namespace. Within a namespace, a more specific name takes connections of a wider one.
    ///
    /// # Errors
    /// The name that a rule before it has: the same one, or one of another namespace that covers it. Empty: all connections.
    fn take(&mut self, claim: &StreamRuleClaim, namespace: &str) -> Result<(), String> {
        let (transport, port, host) = claim;
        let parents = host.match_indices('.').map(|(dot, _)| format!("*{}", &host[dot..]));
        let wider = parents.chain([String::new()]).filter(|name| name != host);
        let is_of_others = |name: &String| {
            let owner = self.0.get(&(*transport, *port, name.clone()));
            owner.is_some_and(|owner| owner != namespace)
        };
        let taken = self.0.contains_key(claim).then(|| host.clone());
        match taken.or_else(|| wider.into_iter().find(is_of_others)) {
            Some(name) => Err(name),
            None => {
                self.0.insert(claim.clone(), namespace.to_owned());
                Ok(())
            }
        }
    }
}

/// Adds the stream routes of rules.
pub(super) struct StreamRuleWriter<'a, 'b, 'c, 'w> {
    pub checker: &'a mut PluginChecker<'c>,
    pub backends: &'a mut RuleBackends<'b, 'w>,
    pub claims: &'a mut StreamRuleClaims,
    pub translation: &'a mut Translation,
}

impl StreamRuleWriter<'_, '_, '_, '_> {
    /// Adds the stream route of a rule. One without a name of its own is told apart by its number, and closed. Returns what is not served as
    /// it is written.
    pub(super) fn rule(
        &mut self,
        route: &ApisixRoute,
        rule: &ApisixStreamRule,
        nameless: Option<usize>,
    ) -> Option<ApisixProblem> {
        let claim = match self.claim(&route.metadata.namespace, rule) {
            Ok(claim) => claim,
            Err(problem) => return Some(problem.at("takes no connections")),
        };
        let scheme = claim.0.scheme();
        let metadata = &route.metadata;
        let mut value = Map::new();
        value.insert("name".to_owned(), format!("{}/{}/{}", metadata.namespace, metadata.name, rule.name).into());
        value.insert("server_port".to_owned(), claim.1.into());
        if !claim.2.is_empty() {
            value.insert("snis".to_owned(), json!([claim.2]));
        }
        let actions = match nameless {
            Some(_) => Err(ApisixProblem::Spec("name: each rule needs one of its own".to_owned())),
            None => self.actions(&metadata.namespace, rule, claim.0),
        };
        let problem = match actions {
            Ok(actions) => {
                value.extend(actions);
                None
            }
            Err(problem) => {
                value.insert("upstream".to_owned(), json!({ "scheme": scheme, "nodes": [] }));
                Some(problem.at("resets its connections"))
            }
        };
        let number = nameless.map(|index| index.to_string());
        let mut parts = vec!["apisixroute", scheme, &metadata.namespace, &metadata.name, &rule.name];
        parts.extend(number.as_deref());
        self.translation.resources.push(DerivedResource {
            kind: ResourceList::StreamRoutes,
            id: resource_id(&parts),
            value: Value::Object(value),
            origin: ObjectRef::of(route),
            beside: Vec::new(),
        });
        problem
    }

    /// What a rule takes, if no other one has it.
    ///
    /// # Errors
    /// Why it takes nothing.
    fn claim(&mut self, namespace: &str, rule: &ApisixStreamRule) -> Result<StreamRuleClaim, ApisixProblem> {
        let transport = match &*rule.protocol {
            "TCP" => PortTransport::Tcp,
            "UDP" => PortTransport::Udp,
            other => return Err(ApisixProblem::Spec(format!("protocol: `{other}` is neither TCP nor UDP"))),
        };
        let port =
            rule.matches.ingress_port.ok_or_else(|| ApisixProblem::Spec("match.ingressPort: is missing".to_owned()))?;
        let port = port_number("match.ingressPort", port).map_err(ApisixProblem::Spec)?;
        let host = rule.matches.host.to_ascii_lowercase();
        if !host.is_empty() && transport == PortTransport::Udp {
            return Err(ApisixProblem::Spec("match.host: UDP has no server names; leave it out".to_owned()));
        }
        if !host.is_empty() && !is_host(&host) {
            let problem = format!("match.host: `{host}` is no name such as `a.example` or `*.a.example`");
            return Err(ApisixProblem::Spec(problem));
        }
        // A more specific server name would take connections of a listener that others administer.
        if self.backends.context.gateway_ports.contains(&(&*rule.protocol, port)) {
            let problem =
                format!("match.ingressPort: {port} is the port of a Gateway; use a TCPRoute, a TLSRoute or a UDPRoute");
            return Err(ApisixProblem::Conflict(problem));
        }
        let claim = (transport, port, host);
        match self.claims.take(&claim, namespace) {
            Ok(()) => Ok(claim),
            Err(name) => {
                let name = if name.is_empty() { String::new() } else { format!(" and `{name}`") };
                Err(ApisixProblem::Conflict(format!("match: a rule that comes first has port {port}{name}")))
            }
        }
    }

    /// What a rule does.
    ///
    /// # Errors
    /// Why its connections cannot be answered as it wants.
    fn actions(
        &mut self,
        namespace: &str,
        rule: &ApisixStreamRule,
        transport: PortTransport,
    ) -> Result<Map<String, Value>, ApisixProblem> {
        let plugins = self.checker.list_of_streams(namespace, &rule.plugins)?;
        let upstream =
            self.backends.stream(namespace, &rule.backend, transport).map_err(|problem| problem.at("backend"))?;
        let mut keys = Map::from_iter([("upstream_id".to_owned(), Value::from(upstream))]);
        if !plugins.is_empty() {
            keys.insert("plugins".to_owned(), Value::Object(plugins));
        }
        Ok(keys)
    }
}
