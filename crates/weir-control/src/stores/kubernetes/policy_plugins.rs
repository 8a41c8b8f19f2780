//! What users of a namespace may configure of plugins by a WeirPolicy, or by an object of the APISIX ingress controller. They are not the operators of the node: what a plugin reaches
//! from the node, and what it shares with others there, is decided by what the plugins declare.

use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use weir_kube::{PolicyPlugins, reach};
use weir_plugin::options::{Row, rows};
use weir_plugin::suggest::closest;
use weir_plugin::{Build, BuildContext, ConfigError, Declaration, Entry, Registry, pattern_budget};

use crate::document::{Document, mask_secrets};
use crate::policy_schema::UPSTREAM_SETTINGS;
use crate::stores::closed::is_observer;
use crate::text::diagnostic::Diagnostic;

/// The sizes that are tried for what the expressions of a plugin take when they are compiled, in bytes. The last one is the most.
const EXPRESSION_SIZES: [usize; 4] = [0, 64 << 10, 256 << 10, 1 << 20];
/// The most faults in a message.
const MOST_FAULTS: usize = 5;

/// The plugins of the node.
pub(in crate::stores) struct NodePlugins {
    registry: Registry,
    /// Those that the node's file enables, if not all: what compiles no resource must not look as if it were in force.
    enabled: Option<HashSet<Box<str>>>,
}

impl fmt::Debug for NodePlugins {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("NodePlugins").finish_non_exhaustive()
    }
}

impl NodePlugins {
    pub(in crate::stores) fn new(registry: Registry, enabled: Option<HashSet<Box<str>>>) -> NodePlugins {
        NodePlugins { registry, enabled }
    }

    /// What is wrong with a plugin for users of a namespace, apart from what it refuses itself.
    fn beyond_namespace(&self, entry: &Entry, options: &Value) -> Vec<ConfigError> {
        let reached = rows(&(entry.schema)()).into_iter().filter(|row| row.reaches.is_some());
        let mut faults: Vec<ConfigError> = reached.flat_map(|row| unreachable(&row, options)).collect();
        if options.get("spool").is_some_and(|spool| !spool.is_null() && *spool != json!(false)) {
            let problem =
                "keeps records on the disk of the node, which users of a namespace do not reach: leave it out";
            faults.push(ConfigError::new("spool", problem));
        }
        faults.extend(
            entry.of_node.map(|reason| {
                ConfigError::new("", format!("is configured by the operator of the node alone: {reason}"))
            }),
        );
        self.nested(options, "", &mut faults);
        faults
    }

    /// Looks for the options of other plugins within options: `[NAME, {…}]` and `NAME: {…}`.
    fn nested(&self, value: &Value, path: &str, faults: &mut Vec<ConfigError>) {
        let mut look = |name: &str, options: &Value, path: String| {
            if let Some(entry) = self.registry.find(name).filter(|_| options.is_object()) {
                faults.extend(self.beyond_namespace(entry, options).into_iter().map(|fault| fault.below(&path)));
            } else {
                self.nested(options, &path, faults);
            }
        };
        match value {
            Value::Array(items) => {
                let name = items.first().and_then(Value::as_str).unwrap_or_default();
                items.iter().enumerate().for_each(|(index, item)| look(name, item, format!("{path}[{index}]")));
            }
            Value::Object(members) => {
                let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                members.iter().for_each(|(name, member)| look(name, member, below(name)));
            }
            _ => {}
        }
    }

    /// The plugin with this name, if the node may run it.
    fn enabled(&self, plugin: &str) -> Result<&Entry, String> {
        let Some(entry) = self.registry.find(plugin) else {
            let meant = closest(plugin, self.registry.entries().iter().map(|entry| entry.name));
            let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            return Err(format!("there is no such plugin{meant}"));
        };
        match self.enabled.as_ref().is_some_and(|enabled| !enabled.contains(plugin)) {
            true => Err("is not in the list `plugins` of the node's file, so it is not enabled".to_owned()),
            false => Ok(entry),
        }
    }

    /// What the expressions of a plugin take, or its faults as one text that tells nothing of values of Secrets.
    fn judge(&self, entry: &Entry, (written, options): (&Value, &Value), users: UserScope) -> Result<usize, String> {
        self.examine(entry, options, users).map_err(|faults| match written == options {
            true => joined(faults, OF_SECRET, |_| true),
            // What is said of what is written alone tells nothing of the values.
            false => {
                let of_written = self.examine(entry, written, users).err().unwrap_or_default();
                joined(faults, OF_SECRET, |fault| of_written.contains(fault))
            }
        })
    }

    /// All that is wrong with the options of a plugin, or how many bytes its expressions may take.
    fn examine(&self, entry: &Entry, options: &Value, users: UserScope) -> Result<usize, Vec<ConfigError>> {
        let faults = self.beyond_namespace(entry, options);
        if !faults.is_empty() {
            return Err(faults);
        }
        let shared = Rc::new(BuildContext::default());
        for size in EXPRESSION_SIZES {
            let mut build = Build::of(format!("policy/{}", entry.name), &shared);
            let work = || (entry.build)(options, &mut build).map(drop);
            let (built, is_spent) = pattern_budget::within_counting_all(size, work);
            if is_spent && size < EXPRESSION_SIZES[EXPRESSION_SIZES.len() - 1] {
                continue;
            }
            built.map_err(|fault| fault.each().collect::<Vec<_>>())?;
            return shared_with_others(&shared, users).map_or(Ok(size), |fault| Err(vec![fault]));
        }
        unreachable!("the last size is not tried again")
    }
}

impl PolicyPlugins for NodePlugins {
    fn check(&self, plugin: &str, written: &Value, options: &Value) -> Result<usize, String> {
        let entry = self.enabled(plugin)?;
        if is_disabled(written)? {
            return Ok(0);
        }
        if !written.is_object() {
            return Err("the options are not a map: write `{}` for a plugin without options".to_owned());
        }
        let (written, options) = (without_meta(written), without_meta(options));
        only_in_secret_options(entry.name, &written, &options)?;
        self.judge(entry, (&written, &options), UserScope::OfPolicies)
    }

    fn check_of_apisix(&self, plugin: &str, written: &Value, options: &Value) -> Result<usize, String> {
        let entry = self.enabled(plugin)?;
        check_apisix_meta(options)?;
        if options["_meta"]["disable"] == true {
            return Ok(0);
        }
        self.judge(entry, (&without_meta(written), &without_meta(options)), UserScope::OfApisix)
    }

    fn credential(&self, plugin: &str, options: &Value) -> Result<String, String> {
        let entry = self.enabled(plugin)?;
        let check = entry.credential.ok_or("is no plugin by which consumers identify themselves")?.check;
        check(options).map_err(|fault| {
            let of_none: Vec<ConfigError> =
                check(&json!({})).err().map(|fault| fault.each().collect()).unwrap_or_default();
            // Whether they are from a Secret or not, the values are credentials.
            joined(fault.each().collect(), OF_CREDENTIAL, |fault| of_none.contains(fault))
        })
    }

    fn check_upstream(&self, settings: &Map<String, Value>) -> Result<(), String> {
        if let Some(other) = settings.keys().find(|key| !UPSTREAM_SETTINGS.contains(&&***key)) {
            let advice = format!("the keys are {}", UPSTREAM_SETTINGS.join(", "));
            return Err(format!("{other}: cannot be set by a policy; {advice}"));
        }
        let checks = settings.get("checks").unwrap_or(&Value::Null);
        if checks.pointer("/active/https_verify_certificate") == Some(&Value::Bool(false)) {
            let whole = "checks.active.https_verify_certificate: how endpoints are trusted is not said by a policy";
            return Err(whole.to_owned());
        }
        let mut upstream = settings.clone();
        upstream.insert("id".to_owned(), "policy".into());
        upstream.insert("nodes".to_owned(), json!({ "192.0.2.1:80": 1 }));
        let document = Document::with_references(Arc::from("policy"), json!({ "upstreams": [upstream] }).into());
        let said = |fault: &Diagnostic| {
            let place = fault.path.strip_prefix("upstreams[0].").unwrap_or(&fault.path);
            format!("{place}: {}", fault.problem)
        };
        let faults: Vec<String> = document.faults.iter().take(MOST_FAULTS).map(said).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("; upstream.")) }
    }

    fn check_enabled(&self, plugin: &str) -> Result<(), String> {
        self.enabled(plugin).map(drop)
    }

    fn protects(&self, plugin: &str) -> bool {
        !is_observer(plugin)
    }

    fn works_on_streams(&self, plugin: &str) -> bool {
        self.registry.find(plugin).is_some_and(|entry| entry.on_streams)
    }

    fn works_on_requests(&self, plugin: &str) -> bool {
        self.registry.find(plugin).is_none_or(|entry| !entry.only_on_streams)
    }
}

/// What an object of the APISIX ingress controller may say in `_meta`. A condition (`filter`) would not be counted.
const APISIX_META: [&str; 3] = ["disable", "error_response", "priority"];

/// Refuses a `_meta` that the node would refuse. What is in it is not told: it may be from a Secret.
fn check_apisix_meta(options: &Value) -> Result<(), String> {
    let Some(meta) = options.get("_meta") else { return Ok(()) };
    let is_known = |meta: &&Map<String, Value>| meta.keys().all(|key| APISIX_META.contains(&&**key));
    let Some(meta) = meta.as_object().filter(is_known) else {
        return Err(format!("_meta: can only have {}", APISIX_META.join(", ")));
    };
    let is_priority = |value: &Value| value.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
    for (key, value) in meta {
        let (is_right, right) = match &**key {
            "disable" => (value.is_boolean(), "true or false"),
            "priority" => (is_priority(value), "a whole number of 32 bits"),
            _ => (value.is_string() || value.is_object(), "text or a map"),
        };
        if !is_right {
            return Err(format!("_meta.{key}: must be {right}"));
        }
    }
    Ok(())
}

/// Whose options are checked.
#[derive(Clone, Copy, PartialEq)]
enum UserScope {
    /// Those who write WeirPolicies.
    OfPolicies,
    /// Those who write objects of the APISIX ingress controller, among them consumers.
    OfApisix,
}

/// The options of the plugin itself.
fn without_meta(options: &Value) -> Value {
    let mut members = options.as_object().cloned().unwrap_or_default();
    members.remove("_meta");
    Value::Object(members)
}

/// Whether `_meta` says that the plugin is not to run.
fn is_disabled(options: &Value) -> Result<bool, String> {
    let Some(meta) = options.get("_meta") else { return Ok(false) };
    let refused = || Err("_meta: a policy can only have `_meta: { disable: true }`".to_owned());
    let Some(members) = meta.as_object() else { return refused() };
    match members.iter().map(|(name, value)| (&**name, value)).collect::<Vec<_>>()[..] {
        [] => Ok(false),
        [("disable", Value::Bool(disabled))] => Ok(*disabled),
        _ => refused(),
    }
}

/// Why a plugin cannot be used that was built like this.
fn shared_with_others(shared: &BuildContext, users: UserScope) -> Option<ConfigError> {
    if shared.take_inputs().consumers && users == UserScope::OfPolicies {
        let problem = "needs consumers, which policies do not have yet: use a plugin with users of its own, such as `basic-auth` \
                       with `users`, or one that asks a service, such as `openid-connect` or `forward-auth`";
        return Some(ConfigError::new("", problem));
    }
    let agreed = shared.take_declarations().into_iter().find_map(|told| match told {
        Declaration::Agreed { topic, .. } => Some(topic),
        Declaration::SecretArgument(_) | Declaration::SecretField(_) => None,
    });
    agreed.map(|topic| {
        ConfigError::new(
            "",
            format!("{topic}: is shared by all namespaces: leave it out, the targets of a policy count together"),
        )
    })
}

/// The values of an option that lead where users of a namespace do not reach.
fn unreachable(row: &Row, options: &Value) -> Vec<ConfigError> {
    let mut found = Vec::new();
    at_path(options, &row.path, String::new(), &mut found);
    let is_file = row.reaches.as_deref() == Some("file");
    let mut faults = Vec::new();
    for (path, value) in found.into_iter().filter(|(_, value)| !value.is_null()) {
        if is_file {
            faults.push(ConfigError::new(path, "names a file of the node, which users of a namespace cannot use"));
        } else if row.kind == "any" || row.refers.is_some() {
            let problem = "leads to an upstream, which users of a namespace cannot choose: name Services as backends of the route";
            faults.push(ConfigError::new(path, problem));
        } else {
            let wrong = texts(value).into_iter().filter_map(|text| reached(text).err());
            faults.extend(wrong.map(|problem| ConfigError::new(path.clone(), problem)));
        }
    }
    faults
}

/// Whether a request of the node may go there.
fn reached(text: &str) -> Result<(), String> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('$') {
        return Err(format!("`{text}` has a variable in its host: clients would choose what the node reaches"));
    }
    reach::check(text)
}

/// The texts in a value, and the names of its members.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(members) => {
            members.iter().flat_map(|(name, member)| std::iter::once(&**name).chain(texts(member))).collect()
        }
        _ => Vec::new(),
    }
}

/// The values at a path as the list of options has it, such as `rules[].key` or `labels.*`, each with its place.
fn at_path<'v>(value: &'v Value, path: &str, place: String, found: &mut Vec<(String, &'v Value)>) {
    if path.is_empty() {
        found.push((place, value));
        return;
    }
    if let Some(rest) = path.strip_prefix("[]") {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            at_path(item, rest.trim_start_matches('.'), format!("{place}[{index}]"), found);
        }
        return;
    }
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, rest) = (&path[..end], path[end..].trim_start_matches('.'));
    let below = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    let members = value.as_object().into_iter().flatten();
    members.filter(|(member, _)| name == "*" || *member == name).for_each(|(member, value)| {
        at_path(value, rest, below(member), found);
    });
}

/// Refuses a value of a Secret at a place that is shown to those who may see resources, and not secrets.
fn only_in_secret_options(plugin: &str, written: &Value, options: &Value) -> Result<(), String> {
    if written == options {
        return Ok(());
    }
    let mut masked = json!({ "plugins": { plugin: options } });
    mask_secrets("routes", &mut masked);
    shown_secret(written, options, &masked["plugins"][plugin], String::new())
        .map_or(Ok(()), |place| Err(format!("{place}: is no secret option, so it cannot have a value from a Secret")))
}

/// The first place with another value than written that is not masked.
fn shown_secret(written: &Value, options: &Value, masked: &Value, place: String) -> Option<String> {
    match (written, options) {
        (Value::Object(before), Value::Object(after)) => after.iter().find_map(|(name, value)| {
            let place = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
            shown_secret(before.get(name)?, value, &masked[name], place)
        }),
        (Value::Array(before), Value::Array(after)) => {
            let items = before.iter().zip(after).enumerate();
            items
                .into_iter()
                .find_map(|(index, (one, other))| shown_secret(one, other, &masked[index], format!("{place}[{index}]")))
        }
        _ => (written != options && options == masked).then_some(place),
    }
}

/// What is told of a fault in place of its problem, which may quote a value.
const OF_SECRET: &str = "is refused with the value from the Secret";
const OF_CREDENTIAL: &str = "is refused; the reason is not told, since it may quote the credential";

/// Faults as one text. What must not be shown is told by its place alone, and by `hidden`.
fn joined(faults: Vec<ConfigError>, hidden: &str, is_shown: impl Fn(&ConfigError) -> bool) -> String {
    let text = |fault: &ConfigError| {
        let problem = if is_shown(fault) { &*fault.problem } else { hidden };
        match &*fault.path {
            "" => problem.to_owned(),
            path => format!("{path}: {problem}"),
        }
    };
    let mut texts: Vec<String> = faults.iter().take(MOST_FAULTS).map(text).collect();
    texts.dedup();
    texts.join("; ")
}

#[cfg(test)]
mod tests;
