//! Where the requests of a rule go.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::backends::{Backend, NoBackend, PortTransport, ServiceBackends};
use super::super::upstream_settings::{port_number, within};
use super::ApisixContext;
use super::outcomes::ApisixProblem;
use super::upstreams::{self, MOST_WEIGHT, WEIGHT};
use crate::objects::apisix::{ApisixBackend, ApisixHttpRule, ApisixPort, ApisixRoute, ApisixUpstreamReference};
use crate::objects::core::NumberOrName;
use crate::objects::{ObjectRef, apisix::ApisixUpstream};
use crate::translation::{DerivedResource, ResourceList, Translation, resource_id};
use crate::world::ObjectName;

/// Finds the upstreams of rules.
pub(super) struct RuleBackends<'a, 'w> {
    pub context: &'a ApisixContext<'w>,
    pub backends: &'a mut ServiceBackends<'w>,
    /// The ids of the upstreams of external nodes that have been added.
    pub external: BTreeSet<String>,
}

/// A port of a Service, what tells its upstream from others, and the settings of that.
type ResolvedBackend<'w> = (Backend<'w>, Option<&'static str>, Map<String, Value>);

/// The settings of upstreams that have no meaning for streams, or another one.
const OF_REQUESTS: [&str; 4] = ["scheme", "tls", "pass_host", "upstream_host"];

/// Which setting of an upstream reads requests, so that streams cannot follow it.
fn only_with_requests(settings: &Map<String, Value>) -> Option<String> {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let of_requests = ["header", "cookie", "consumer"];
    let hash_on = settings.get("hash_on").and_then(text).filter(|part| of_requests.contains(&&**part));
    if let Some(part) = hash_on {
        return Some(format!("loadbalancer.hashOn: TCP and UDP have no {part}; use `vars`"));
    }
    let active = settings.get("checks").and_then(|checks| checks.get("active"))?;
    let kind = active.get("type").and_then(text).unwrap_or_else(|| "http".to_owned());
    (kind != "tcp").then(|| format!("healthCheck.active.type: {kind} is for HTTP alone; use `tcp`"))
}

/// An upstream, and its share.
pub(super) struct WeightedTarget {
    pub upstream_id: String,
    pub weight: i64,
}

/// Where the requests of a rule go.
#[derive(Default)]
pub(super) struct RuleTargets {
    pub targets: Vec<WeightedTarget>,
    /// Those that get no requests, with the reasons.
    pub problems: Vec<ApisixProblem>,
}

impl RuleTargets {
    /// `upstream_id` of the route, and the rules of `traffic-split` if there are several.
    pub(super) fn keys(&self) -> (Option<Value>, Option<Value>) {
        let first = self.targets.first().map(|target| Value::from(target.upstream_id.clone()));
        let share = |target: &WeightedTarget| json!({ "upstream_id": target.upstream_id, "weight": target.weight });
        let split = || {
            let shares: Vec<Value> = self.targets.iter().map(share).collect();
            json!({ "rules": [{ "weighted_upstreams": shares }] })
        };
        (first, (self.targets.len() > 1).then(split))
    }
}

impl<'w> RuleBackends<'_, 'w> {
    /// All that have a share. As with APISIX, what leads nowhere leaves its share to the others.
    pub(super) fn targets(
        &mut self,
        route: &ApisixRoute,
        rule: &ApisixHttpRule,
        translation: &mut Translation,
    ) -> RuleTargets {
        let mut found = RuleTargets::default();
        let namespace = &route.metadata.namespace;
        for (index, backend) in rule.backends.iter().enumerate() {
            let outcome = self.service(namespace, backend).map_err(|problem| problem.at(&format!("backends[{index}]")));
            found.take(outcome, (&format!("backends[{index}]"), backend.weight));
        }
        for (index, reference) in rule.upstreams.iter().enumerate() {
            let outcome = self.external(namespace, reference, translation);
            let place = format!("upstreams[{index}]");
            found.take(outcome.map_err(|problem| problem.at(&place)), (&place, reference.weight));
        }
        found
    }

    /// The upstream of a Service of the namespace, for streams. Settings that are about requests do not apply.
    ///
    /// # Errors
    /// Why the backend cannot be used.
    pub(super) fn stream(
        &mut self,
        namespace: &str,
        backend: &ApisixBackend,
        transport: PortTransport,
    ) -> Result<String, ApisixProblem> {
        let (found, variant, mut settings) = self.resolve(namespace, backend, transport)?;
        if let Some(problem) = only_with_requests(&settings) {
            let problem = format!("ApisixUpstream `{}`: {problem}", backend.service_name);
            return Err(ApisixProblem::Reference(problem));
        }
        let scheme = transport.scheme();
        settings.retain(|name, _| !OF_REQUESTS.contains(&&**name));
        settings.insert("scheme".to_owned(), scheme.into());
        let variant = format!("{}_{scheme}", variant.unwrap_or("apisix"));
        Ok(self.backends.upstream(found, Some(&variant), settings))
    }

    /// The upstream of a Service of the namespace.
    fn service(&mut self, namespace: &str, backend: &ApisixBackend) -> Result<String, ApisixProblem> {
        let (found, variant, settings) = self.resolve(namespace, backend, PortTransport::Tcp)?;
        Ok(self.backends.upstream(found, variant, settings))
    }

    /// The port of a Service of the namespace, with the settings of its upstream, and what tells their id from others.
    fn resolve(
        &self,
        namespace: &str,
        backend: &ApisixBackend,
        transport: PortTransport,
    ) -> Result<ResolvedBackend<'w>, ApisixProblem> {
        let name = ObjectName::new(namespace, &backend.service_name);
        let found = self.find(&name, backend, transport)?;
        if !backend.subset.is_empty() {
            let problem = "subset: endpoints cannot be chosen by labels of pods; make a Service for them".to_owned();
            return Err(ApisixProblem::Spec(problem));
        }
        let with_settings = upstreams::find(self.context, &name);
        let mut settings = match with_settings {
            Some(upstream) => upstreams::settings(self.context, upstream, found.port.port)
                .map_err(|problem| as_reference(upstream, problem))?,
            None => Map::new(),
        };
        let variant = match &*backend.resolve_granularity {
            "service" => {
                let address = &found.service.spec.cluster_ip;
                if ["", "None"].contains(&&**address) {
                    return Err(ApisixProblem::Reference(format!("the Service `{name}` has no cluster IP")));
                }
                let node = json!({ "host": address, "port": found.port.port, "weight": 1 });
                settings.insert("nodes".to_owned(), json!([node]));
                Some("apisix_service")
            }
            "" | "endpoint" | "endpoints" => (!settings.is_empty()).then_some("apisix"),
            other => {
                let problem = format!("resolveGranularity: `{other}` is neither endpoint nor service");
                return Err(ApisixProblem::Spec(problem));
            }
        };
        Ok((found, variant, settings))
    }

    fn find(
        &self,
        name: &ObjectName,
        backend: &ApisixBackend,
        transport: PortTransport,
    ) -> Result<Backend<'w>, ApisixProblem> {
        let port =
            backend.service_port.as_ref().ok_or_else(|| ApisixProblem::Spec("servicePort: is missing".to_owned()))?;
        // An API server that does not know the schema may have a number as text.
        let number = match port {
            ApisixPort::Name(text) => text.parse().ok(),
            ApisixPort::Number(number) => Some(*number),
        };
        let port = match (number, port) {
            (Some(number), _) => NumberOrName::Number(port_number("servicePort", number).map_err(ApisixProblem::Spec)?),
            (None, ApisixPort::Name(text)) => NumberOrName::Name(text.clone()),
            (None, ApisixPort::Number(_)) => unreachable!("it has a number"),
        };
        let found = self.backends.find(name, &port, transport);
        found.map_err(|reason| {
            ApisixProblem::Reference(match reason {
                NoBackend::NoService => format!("there is no Service `{name}`"),
                NoBackend::NoPort => format!("the Service `{name}` has no such port"),
                NoBackend::ExternalName => {
                    format!("the Service `{name}` is an ExternalName; name it in `externalNodes` of an ApisixUpstream")
                }
            })
        })
    }

    /// The upstream of the external nodes of an ApisixUpstream of the namespace.
    fn external(
        &mut self,
        namespace: &str,
        reference: &ApisixUpstreamReference,
        translation: &mut Translation,
    ) -> Result<String, ApisixProblem> {
        let name = ObjectName::new(namespace, &reference.name);
        let missing = || ApisixProblem::Reference(format!("there is no ApisixUpstream `{name}`"));
        let upstream = upstreams::find(self.context, &name).ok_or_else(missing)?;
        let value = upstreams::external(self.context, upstream, self.backends)
            .map_err(|problem| as_reference(upstream, problem))?;
        // Four parts, and none of them a number: upstreams of Services have no such ids.
        let id = resource_id(&["apisixupstream", namespace, &reference.name, "external"]);
        if self.external.insert(id.clone()) {
            translation.resources.push(DerivedResource {
                kind: ResourceList::Upstreams,
                id: id.clone(),
                value: Value::Object(value),
                origin: ObjectRef::of(upstream),
                beside: Vec::new(),
            });
        }
        Ok(id)
    }
}

impl RuleTargets {
    fn take(&mut self, outcome: Result<String, ApisixProblem>, (place, weight): (&str, Option<i64>)) {
        let checked = within("weight", weight.unwrap_or(WEIGHT), (0, MOST_WEIGHT));
        match (checked.map_err(|problem| ApisixProblem::Spec(problem).at(place)), outcome) {
            (Ok(0), Ok(_)) => {}
            (Ok(weight), Ok(upstream_id)) => self.targets.push(WeightedTarget { upstream_id, weight }),
            (Err(problem), _) | (_, Err(problem)) => self.problems.push(problem),
        }
    }
}

/// What is wrong with an ApisixUpstream is wrong with what a route refers to.
fn as_reference(upstream: &ApisixUpstream, problem: ApisixProblem) -> ApisixProblem {
    let name = &upstream.metadata.name;
    match problem {
        ApisixProblem::Spec(text) | ApisixProblem::Reference(text) | ApisixProblem::Conflict(text) => {
            ApisixProblem::Reference(format!("ApisixUpstream `{name}`: {text}"))
        }
    }
}
