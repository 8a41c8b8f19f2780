//! `POST /weir/v1/explain`: how the running configuration would handle a request. Nothing is compiled, and nothing is sent.

use std::cmp::Reverse;
use std::collections::HashSet;

use http::StatusCode;
use serde_json::{Map, Value, json};
use weir_gateway::route::{Candidate, CandidateVerdict, TieBreak};
use weir_gateway::snapshot::ChainReach;
use weir_plugin::{Entry, Registry, Stage};

use super::answer::{self, AdminResponse, Refused, refuse};
use super::context::AdminContext;
use super::references::{id_text, upstreams_of_plugin};
use super::request::AdminRequest;
use crate::explain::{Candidates, UnreachedPlugins, VerdictText, described};
use crate::stores::resources::{ResourceKey, ResourceSet};

/// Explains the request in the body.
pub(super) fn answer(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    request.caller.needs_all("an explanation")?;
    let body = request.json()?.unwrap_or_default();
    let question = described(&body).or_else(refuse)?;
    let Some(running) = context.checker.publisher().running() else {
        let problem = json!({ "error_msg": "no configuration is served yet" });
        return Err(Box::new(answer::json_of(StatusCode::SERVICE_UNAVAILABLE, &problem)));
    };
    let Candidates { tried, chosen, near, has_listener, handshake, unreached } =
        Candidates::of(&running.snapshot, &running.settings, &question)
            .or_else(|problem| refuse(format!("invalid request: {problem}")))?;
    let set = context.live.committed();
    let chosen = chosen.as_deref();
    let key = chosen.map(|id| ResourceKey::new("routes", id));
    let set_aside = key.as_ref().and_then(|key| context.live.set_aside().get(key).map(|fault| fault.problem.clone()));
    let route = match (&key, &set_aside) {
        (Some(key), Some(_)) => Some((key.id().to_owned(), context.live.served_instead(key).unwrap_or_default())),
        (Some(key), None) => value(&set, "routes", key.id()),
        (None, _) => None,
    };
    let mut plugins = plugins(&set, context.registry(), route.as_ref());
    plugins.sort_by(|a, b| a.rank().cmp(&b.rank()));
    let body = json!({
        "request": format!("{} {}", question.method, question.url),
        "revision": running.snapshot.revision,
        "store_revision": set.revision,
        "route": chosen,
        "set_aside": set_aside,
        "status": if chosen.is_none() { json!(404) } else { Value::Null },
        "near": near,
        "has_listener": has_listener,
        "handshake": handshake.map(|note| note.text),
        "upstream": route.as_ref().and_then(|route| target(&set, route)),
        "candidates": tried.iter().map(|(id, candidate)| told(id, candidate)).collect::<Vec<_>>(),
        "knows_consumers": plugins.iter().any(|plugin| plugin.entry.identifies && !plugin.is_off),
        "plugins": plugins.iter().map(|plugin| plugin.told(&unreached)).collect::<Vec<_>>(),
    });
    let mut answer = answer::json_of(StatusCode::OK, &body);
    answer::at_revision(&mut answer, set.revision);
    Ok(answer)
}

fn told(id: &str, candidate: &Candidate) -> Value {
    let verdict = match &candidate.verdict {
        CandidateVerdict::Chosen => "chosen",
        CandidateVerdict::Outranked(TieBreak::Host) => "outranked_host",
        CandidateVerdict::Outranked(TieBreak::Path) => "outranked_path",
        CandidateVerdict::Outranked(TieBreak::Priority) => "outranked_priority",
        CandidateVerdict::Outranked(TieBreak::UriLength) => "outranked_uri_length",
        CandidateVerdict::Outranked(TieBreak::Order) => "outranked_order",
        CandidateVerdict::Host => "host",
        CandidateVerdict::Uri => "uri",
        CandidateVerdict::Method => "method",
        CandidateVerdict::Listener => "listener",
        CandidateVerdict::RemoteAddr => "remote_addr",
        CandidateVerdict::Among => "not_served",
        CandidateVerdict::Vars(_) => "vars",
    };
    json!({
        "route": id,
        "host": candidate.host,
        "uri": candidate.uri,
        "priority": candidate.priority,
        "verdict": verdict,
        "reason": VerdictText(&candidate.verdict).to_string(),
    })
}

/// A plugin that runs for the request.
struct ExplainedPlugin {
    entry: &'static Entry,
    is_global: bool,
    priority: i64,
    /// The kind and id of the resource that has it.
    source: String,
    upstreams: Vec<String>,
    is_off: bool,
}

impl ExplainedPlugin {
    /// The order in which plugins run.
    fn rank(&self) -> (Stage, bool, Reverse<i64>, &'static str) {
        (self.entry.stage, !self.is_global, Reverse(self.priority), self.entry.name)
    }

    fn told(&self, unreached: &UnreachedPlugins) -> Value {
        let reach = if self.is_global { ChainReach::Global } else { ChainReach::Own };
        let is_unreached = !self.is_off && unreached.has(self.entry.name, reach);
        json!({
            "name": self.entry.name,
            "stage": self.entry.stage.to_string(),
            "reach": if self.is_global { "global" } else { "own" },
            "priority": self.priority,
            "source": self.source,
            "upstreams": self.upstreams,
            "off": self.is_off,
            "unreached": is_unreached.then_some(unreached.behind),
            "identifies": self.entry.identifies,
        })
    }
}

/// The plugins of global rules, and those of a route: each from the nearest resource that has it.
fn plugins(set: &ResourceSet, registry: Registry, route: Option<&(String, Value)>) -> Vec<ExplainedPlugin> {
    let mut all = Vec::new();
    let rules = set.all.iter().filter(|(key, _)| key.list() == "global_rules");
    for (key, rule) in rules {
        all.extend(of_resource(registry, &rule.value(), &format!("global_rule/{}", key.id()), true));
    }
    let Some(route) = route else { return all };
    let mut taken = HashSet::new();
    let referred = |member: &str, list: &str| {
        let id = route.1.get(member).and_then(id_text)?;
        value(set, list, &id).map(|(id, value)| (format!("{}/{id}", list.trim_end_matches('s')), value))
    };
    let layers = [
        Some((format!("route/{}", route.0), route.1.clone())),
        referred("plugin_config_id", "plugin_configs"),
        referred("service_id", "services"),
    ];
    for (source, layer) in layers.into_iter().flatten() {
        let own = of_resource(registry, &layer, &source, false);
        all.extend(own.into_iter().filter(|plugin| taken.insert(plugin.entry.name)));
    }
    all
}

fn of_resource(registry: Registry, value: &Value, source: &str, is_global: bool) -> Vec<ExplainedPlugin> {
    let plugins = value.get("plugins").and_then(Value::as_object);
    let one = |(name, options): (&String, &Value)| {
        let entry = registry.entries().iter().find(|entry| entry.name == name)?;
        let meta = options.get("_meta").and_then(Value::as_object);
        let of_meta = |name: &str| meta.and_then(|meta: &Map<String, Value>| meta.get(name));
        Some(ExplainedPlugin {
            entry,
            is_global,
            priority: of_meta("priority").and_then(Value::as_i64).unwrap_or_else(|| entry.priority.into()),
            source: source.to_owned(),
            upstreams: upstreams_of_plugin(name, options),
            is_off: of_meta("disable").and_then(Value::as_bool).unwrap_or(false),
        })
    };
    plugins.into_iter().flatten().filter_map(one).collect()
}

fn value(set: &ResourceSet, list: &str, id: &str) -> Option<(String, Value)> {
    let resource = set.all.get(&ResourceKey::new(list, id))?;
    Some((id.to_owned(), resource.value()))
}

/// The resource that has the upstream of a route, in the order of precedence.
fn target(set: &ResourceSet, (route, route_value): &(String, Value)) -> Option<String> {
    let of = |value: &Value, own: &str| {
        let id = |member: &str| value.get(member).and_then(id_text);
        id("hub_id")
            .map(|id| format!("hubs/{id}"))
            .or_else(|| value.get("upstream").map(|_| own.to_owned()))
            .or_else(|| id("upstream_id").map(|id| format!("upstreams/{id}")))
    };
    of(route_value, &format!("routes/{route}")).or_else(|| {
        let id = route_value.get("service_id").and_then(id_text)?;
        of(&value(set, "services", &id)?.1, &format!("services/{id}"))
    })
}
