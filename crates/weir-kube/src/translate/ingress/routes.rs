//! The routes of a host.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::backends::ServiceBackends;
use super::super::expressions::Expressions;
use super::super::policies::PluginPolicies;
use super::super::reach;
use super::annotations::{REVERSE_REWRITE, REWRITTEN_REDIRECTS};
use super::canaries;
use super::certificates::TlsHosts;
use super::claimed::Claimed;
use super::class::IngressDialect;
use super::matcher::{IngressPathMatch, PathConditions, one_label};
use super::settings::{IngressSettings, ToHttps};
use super::sites::{IngressSite, IngressSites, SitePath};
use super::targets::{BackendTarget, CookieScope, target};
use crate::objects::ingress::{IngressBackend, IngressService, IngressServicePort};
use crate::translation::{DerivedResource, EventKind, KubeOptions, ResourceList, Translation, resource_id};
use crate::world::ObjectName;

/// Writes routes.
pub(super) struct RouteWriter<'a, 'w> {
    pub backends: &'a mut ServiceBackends<'w>,
    pub options: &'a KubeOptions,
    pub policies: &'a PluginPolicies,
    /// The ids of what policies have made so far.
    pub policy_sets: &'a mut BTreeSet<String>,
    pub tls: &'a TlsHosts,
    /// Requests that no rule takes have a backend.
    pub has_default: bool,
    pub translation: &'a mut Translation,
    pub expressions: &'a mut Expressions,
}

/// After all paths of a host.
const REST: i64 = -100;
/// After that, for requests of all hosts.
const DEFAULT: i64 = -200;
/// Before all paths of a host.
const FIRST: i64 = 1_000_000;

impl RouteWriter<'_, '_> {
    pub(super) fn site(&mut self, host: &str, site: &IngressSite, sites: &IngressSites) {
        let ranks = site.ranks();
        for path in &site.paths {
            let rank = ranks.get(path.matches.text()).copied().unwrap_or_default();
            self.path(host, site, (path, rank));
        }
        self.root(host, site);
        self.www(host, site, sites);
        self.rest(host, site, sites);
    }

    fn path(&mut self, host: &str, site: &IngressSite, (path, rank): (&SitePath, i64)) {
        let SitePath { claimed, part, matches, .. } = path;
        let checked = match matches {
            IngressPathMatch::Expression(pattern) => {
                self.expressions.check(&claimed.ingress.metadata.namespace, pattern)
            }
            _ => Ok(()),
        };
        let mut value = self.beginning(host, claimed, matches.conditions(rank, checked.is_ok()));
        let refused = site.refused_owner().filter(|_| !claimed.is_refused);
        if let Some(owner) = refused {
            let message = format!(
                "`{}` of `{host}`: {} asks for certificates of clients, and is refused; it is answered with 503",
                path.path.path,
                owner.object()
            );
            self.translation.events.push(claimed.event(EventKind::Warning, "HostRefused", message));
        }
        let is_closed = claimed.is_refused || refused.is_some() || self.tls.is_unproved(host);
        let extended =
            self.policies.extensions.write(&claimed.object(), None, &mut value).map_err(|problem| problem.message);
        let checked = checked.and(extended);
        let keys = if is_closed { Ok(closed()) } else { checked.and_then(|()| self.keys(host, site, path)) };
        value.extend(keys.unwrap_or_else(|problem| {
            let message = format!("`{}` of `{host}`: {problem}; it is answered with 503", path.path.path);
            self.translation.events.push(claimed.event(EventKind::Warning, "BackendNotFound", message));
            closed()
        }));
        self.add(claimed, part, value);
    }

    /// What the route of a path does.
    fn keys(&mut self, host: &str, site: &IngressSite, path: &SitePath) -> Result<Map<String, Value>, String> {
        let SitePath { claimed, matches, .. } = path;
        let redirects = self.redirects(host, claimed) && !is_challenge(path);
        let mut keys = self.behaviour(host, claimed, redirects)?;
        self.tell_client(host, site, claimed, &mut keys);
        if let (IngressPathMatch::Expression(pattern), Some(rewritten)) = (matches, &claimed.settings.rewrite_target) {
            // The whole path is replaced, with the groups of the expression.
            plugin(&mut keys, "proxy-rewrite")["regex_uri"] = json!([format!("(?i)^(?:{pattern}).*$"), rewritten]);
        }
        if let IngressPathMatch::Expression(pattern) = matches {
            self.tell_groups(claimed, pattern, &mut keys)?;
        }
        let is_expression = matches!(matches, IngressPathMatch::Expression(_));
        let cookie_path = Some(&*path.path.path).filter(|path| path.starts_with('/') && !is_expression);
        let scope = CookieScope { path: cookie_path, is_secure: redirects };
        if let Some((other, backend)) = path.canary
            && let Some(canary) = &other.settings.canary
            && !other.is_refused
            // Its requests would not have the plugins of its policy.
            && self.policies.owner(&(other.object(), None)).is_none()
        {
            match self.target(other, backend, scope) {
                Ok(target) => {
                    plugin(&mut keys, "traffic-split")["rules"] = canaries::split(canary, target)["rules"].take()
                }
                Err(problem) => {
                    let message =
                        format!("`canary`: {problem}; all requests of `{host}` stay with {}", claimed.object());
                    self.translation.events.push(other.event(EventKind::Warning, "BackendNotFound", message));
                }
            }
        }
        // A redirect needs no backend.
        if !claimed.settings.plugins.contains_key("redirect") {
            self.lead(host, path, scope, &mut keys)?;
        }
        self.with_policy(claimed, keys)
    }

    /// Gives redirects that name groups the expression of the path.
    fn tell_groups(&mut self, claimed: &Claimed, pattern: &str, keys: &mut Map<String, Value>) -> Result<(), String> {
        let options = keys.get_mut("plugins").and_then(|plugins| plugins.get_mut(REVERSE_REWRITE));
        let rules = options.and_then(|options| options.get_mut(REWRITTEN_REDIRECTS)).and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten().filter(|rule| names_groups(rule)) {
            let path = format!("(?i)^{pattern}");
            self.expressions.check(&claimed.ingress.metadata.namespace, &path)?;
            rule["path"] = path.into();
        }
        Ok(())
    }

    /// Has the services of a host with client certificates told of them. Where the policy of another Ingress has the fields of requests to
    /// itself, this says so in an Event: the Ingress with certificates must not close that one's paths.
    fn tell_client(&mut self, host: &str, site: &IngressSite, claimed: &Claimed, keys: &mut Map<String, Value>) {
        let Some(owner) = site.client_owner() else { return };
        demand_subject(keys, owner);
        let policies = self.policies.of_object(&claimed.object(), None);
        let is_taken = policies.plugin_names().any(|name| name == "proxy-rewrite");
        if is_taken && claimed.settings.client_certificates.is_none() {
            let message = format!(
                "clients of `{host}` may say themselves what `ssl-client-verify` and the other fields say, since a WeirPolicy has `proxy-rewrite`"
            );
            self.translation.events.push(claimed.event(EventKind::Warning, "FieldsNotSet", message));
            return;
        }
        tell_client(keys, owner);
    }

    /// Adds where the requests of a path go: to its Service, or to the default backend of the Ingress in place of it.
    fn lead(
        &mut self,
        host: &str,
        path: &SitePath,
        scope: CookieScope,
        keys: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let site_path = path;
        let SitePath { claimed, path, .. } = path;
        let problem = match self.target(claimed, &path.backend, scope) {
            Ok(target) => {
                keys.extend(target);
                self.fetch_error_pages(host, site_path, keys);
                return Ok(());
            }
            Err(problem) => problem,
        };
        let Some(name) = &claimed.settings.default_backend else { return Err(problem) };
        let in_place = self.default_target(claimed, name, scope);
        keys.extend(in_place.map_err(|other| format!("{problem}, and of `default-backend`: {other}"))?);
        let mut told = asked_of(site_path);
        told["X-Code"] = "503".into();
        told["X-Format"] = "$http_accept".into();
        set_fields(keys, told);
        let message = format!("`{}` of `{host}`: {problem}; `default-backend` answers", path.path);
        self.translation.events.push(claimed.event(EventKind::Warning, "BackendNotFound", message));
        Ok(())
    }

    /// Has the default backend of the Ingress make the pages of the errors that `custom-http-errors` lists.
    fn fetch_error_pages(&mut self, host: &str, path: &SitePath, keys: &mut Map<String, Value>) {
        let SitePath { claimed, path: rule, .. } = path;
        let settings = &claimed.settings;
        let (false, Some(name)) = (settings.custom_errors.is_empty(), &settings.default_backend) else { return };
        // Not with the settings of the Ingress, such as TLS and session cookies, which are for the Service of the path.
        let Claimed { ingress, dialect, .. } = **claimed;
        let plain = Claimed { ingress, dialect, settings: IngressSettings::default(), is_refused: false };
        match self.default_target(&plain, name, CookieScope::default()) {
            Ok(mut fetch) => {
                fetch.insert("statuses".to_owned(), json!(settings.custom_errors));
                fetch.insert("headers".to_owned(), asked_of(path));
                fetch.insert("keep_status".to_owned(), false.into());
                *plugin(keys, "error-page") = json!({ "upstream_errors": !settings.passes_errors, "fetch": fetch });
            }
            Err(problem) => {
                let message =
                    format!("`custom-http-errors` of `{}` of `{host}`: {problem}; errors are passed on", rule.path);
                self.translation.events.push(claimed.event(EventKind::Warning, "BackendNotFound", message));
            }
        }
    }

    /// The first port of a Service of the Ingress's namespace.
    fn default_target(&mut self, claimed: &Claimed, name: &str, scope: CookieScope) -> Result<BackendTarget, String> {
        let object = ObjectName::new(&claimed.ingress.metadata.namespace, name);
        let number =
            self.backends.first_port(&object).ok_or_else(|| format!("there is no Service `{object}` with a port"))?;
        let port = IngressServicePort { name: String::new(), number };
        let backend = IngressBackend { service: Some(IngressService { name: name.to_owned(), port }), resource: None };
        self.target(claimed, &backend, scope)
    }

    /// Adds the plugins of the policy of an Ingress.
    fn with_policy(&mut self, claimed: &Claimed, mut keys: Map<String, Value>) -> Result<Map<String, Value>, String> {
        let policies = self.policies.of_object(&claimed.object(), None);
        if let Some(fault) = policies.fault() {
            return Err(fault);
        }
        if let Some(Value::Object(plugins)) = keys.get_mut("plugins") {
            let defaults = IngressSettings::ingress_nginx().plugins;
            plugins.retain(|name, options| {
                !(policies.plugin_names().any(|wanted| wanted == name) && defaults.get(name) == Some(options))
            });
            if let Some(twice) = policies.plugin_names().find(|name| plugins.contains_key(*name)) {
                return Err(format!("annotations, and a WeirPolicy, want the plugin {twice}: only one of them can"));
            }
        }
        if let Some(id) = policies.id("weirpolicy") {
            // Once for all paths of all Ingresses with it: the options can be long.
            if self.policy_sets.insert(id.clone()) {
                let resource = policies.resource(ResourceList::PluginConfigs, "weirpolicy", policies.plugins());
                self.translation.resources.extend(resource);
            }
            keys.insert("plugin_config_id".to_owned(), id.into());
        }
        Ok(keys)
    }

    fn target(
        &mut self,
        claimed: &Claimed,
        backend: &IngressBackend,
        scope: CookieScope,
    ) -> Result<BackendTarget, String> {
        target(claimed, (backend, scope), self.backends, self.options)
    }

    /// Whether requests of an Ingress at a host are redirected to HTTPS. A policy with a redirect of its own decides by itself.
    fn redirects(&self, host: &str, claimed: &Claimed) -> bool {
        let is_asked = match claimed.settings.to_https {
            ToHttps::None => false,
            ToHttps::WithCertificate => self.tls.cover(host),
            ToHttps::All => true,
        };
        let policies = self.policies.of_object(&claimed.object(), None);
        is_asked && policies.plugin_names().all(|name| name != "redirect")
    }

    /// The plugins and time-outs of an Ingress at a host.
    fn behaviour(&mut self, host: &str, claimed: &Claimed, redirects: bool) -> Result<Map<String, Value>, String> {
        let settings = &claimed.settings;
        // They are compiled as those of paths are, and count with them.
        let rules = settings.plugins.get(REVERSE_REWRITE).into_iter().flat_map(expressions);
        for expression in rules.chain(settings.client_subject.clone()) {
            self.expressions.check(&claimed.ingress.metadata.namespace, &expression)?;
        }
        let mut plugins = settings.plugins.clone();
        if redirects && !plugins.contains_key("redirect") {
            let to_https = json!({ "http_to_https": true, "http_to_https_code": 308, "https_port": 443 });
            plugins.insert("redirect".to_owned(), to_https);
        }
        if let Some(uri) = plugins.get("forward-auth").and_then(|options| options["uri"].as_str()) {
            let uri = at_host(uri, host, redirects)?;
            plugins["forward-auth"]["uri"] = uri.into();
        }
        // The operator of the node converts manifests; users of a namespace write the objects of a cluster.
        if !self.options.offline {
            for (plugin, option) in [("forward-auth", "uri"), ("proxy-mirror", "host")] {
                let url = plugins.get(plugin).and_then(|options| options[option].as_str());
                url.map_or(Ok(()), reach::check)?;
            }
        }
        let mut keys = Map::new();
        if !plugins.is_empty() {
            keys.insert("plugins".to_owned(), Value::Object(plugins));
        }
        if let Some(timeout) = settings.timeout {
            let times = json!({ "connect": timeout.connect, "send": timeout.send, "read": timeout.read });
            keys.insert("timeout".to_owned(), times);
        }
        Ok(keys)
    }

    /// The redirect of `/` to the root of the application.
    fn root(&mut self, host: &str, site: &IngressSite) {
        let rooted = site.paths.iter().map(|path| path.claimed).find(|claimed| claimed.settings.app_root.is_some());
        let Some(claimed) = rooted.filter(|claimed| !claimed.is_refused && site.refused_owner().is_none()) else {
            return;
        };
        let conditions = PathConditions { uris: vec!["/".to_owned()], vars: Vec::new(), priority: FIRST };
        let mut value = self.beginning(host, claimed, conditions);
        let redirect = json!({ "uri": claimed.settings.app_root, "ret_code": 302 });
        value.extend(self.redirect(claimed, redirect));
        self.add(claimed, &format!("root_{host}"), value);
    }

    /// The redirect of the host with `www.` to that without, or the other way round.
    fn www(&mut self, host: &str, site: &IngressSite, sites: &IngressSites) {
        let asked = site.paths.iter().map(|path| path.claimed).find(|claimed| claimed.settings.from_to_www);
        let Some(claimed) = asked.filter(|claimed| !claimed.is_refused) else { return };
        let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
        if host.is_empty() || host.starts_with("*.") || sites.contains_key(&other) {
            return;
        }
        let conditions = PathConditions { uris: vec!["/*".to_owned()], vars: Vec::new(), priority: 0 };
        let mut value = self.beginning(&other, claimed, conditions);
        let uri = format!("$scheme://{host}$request_uri");
        value.extend(self.redirect(claimed, json!({ "uri": uri, "ret_code": 308 })));
        self.add(claimed, &format!("www_{other}"), value);
    }

    /// A redirect, with the plugins of the policy of its Ingress.
    fn redirect(&mut self, claimed: &Claimed, options: Value) -> Map<String, Value> {
        let plugins = Map::from_iter([("plugins".to_owned(), json!({ "redirect": options }))]);
        self.with_policy(claimed, plugins).unwrap_or_else(|_| closed())
    }

    /// With ingress-nginx, a host is served by its own paths alone, not by those of a less specific host.
    fn rest(&mut self, host: &str, site: &IngressSite, sites: &IngressSites) {
        let has_wider = sites.keys().any(|other| other.is_empty() || is_wider(other, host));
        let nginx =
            site.paths.iter().map(|path| path.claimed).find(|claimed| claimed.dialect == IngressDialect::IngressNginx);
        let Some(claimed) = nginx else { return };
        if host.is_empty() || site.paths.iter().any(|path| path.matches.takes_all()) {
            return;
        }
        let mut backends = site.owners.iter().map(|owner| (*owner, owner.ingress.spec.default_backend.as_ref()));
        let with_default = backends.find_map(|(owner, backend)| Some((owner, backend?)));
        if !has_wider && !self.has_default && with_default.is_none() {
            return;
        }
        let conditions = PathConditions { uris: vec!["/*".to_owned()], vars: Vec::new(), priority: REST };
        let mut value = self.beginning(host, claimed, conditions);
        value.extend(match with_default {
            Some((owner, _)) if owner.is_refused || site.refused_owner().is_some() || self.tls.is_unproved(host) => {
                closed()
            }
            // With all that the annotations of its Ingress ask for, such as authentication.
            Some((owner, backend)) => match self.default_keys(host, owner, backend) {
                Ok(mut keys) => {
                    self.tell_client(host, site, owner, &mut keys);
                    self.with_policy(owner, keys).unwrap_or_else(|_| closed())
                }
                Err(_) => answer(404),
            },
            None => answer(404),
        });
        self.add(claimed, &format!("rest_{host}"), value);
    }

    /// The route for requests that no rule takes.
    pub(super) fn default_backend(&mut self, claimed: &Claimed, backend: &IngressBackend) {
        let conditions = PathConditions { uris: vec!["/*".to_owned()], vars: Vec::new(), priority: DEFAULT };
        let mut value = self.beginning("", claimed, conditions);
        let keys = match claimed.is_refused || self.tls.is_unproved("") {
            true => Ok(closed()),
            false => self.default_keys("", claimed, backend).and_then(|mut keys| {
                if claimed.settings.client_certificates.is_some() {
                    demand_subject(&mut keys, claimed);
                    tell_client(&mut keys, claimed);
                }
                self.with_policy(claimed, keys)
            }),
        };
        value.extend(keys.unwrap_or_else(|problem| {
            let message = format!("`defaultBackend`: {problem}; it is answered with 503");
            self.translation.events.push(claimed.event(EventKind::Warning, "BackendNotFound", message));
            closed()
        }));
        self.add(claimed, "default", value);
    }

    /// What the default backend of an Ingress does at a host, without its policy.
    fn default_keys(
        &mut self,
        host: &str,
        claimed: &Claimed,
        backend: &IngressBackend,
    ) -> Result<Map<String, Value>, String> {
        let redirects = self.redirects(host, claimed);
        let mut keys = self.behaviour(host, claimed, redirects)?;
        keys.extend(self.target(claimed, backend, CookieScope::default())?);
        Ok(keys)
    }

    /// The keys that every route begins with.
    fn beginning(&self, host: &str, claimed: &Claimed, conditions: PathConditions) -> Map<String, Value> {
        let metadata = &claimed.ingress.metadata;
        let mut value = Map::new();
        value.insert("name".to_owned(), format!("{}/{}", metadata.namespace, metadata.name).into());
        if !host.is_empty() {
            value.insert("host".to_owned(), host.into());
        }
        value.insert("uris".to_owned(), json!(conditions.uris));
        let mut vars = conditions.vars;
        vars.extend(one_label(host));
        if !vars.is_empty() {
            value.insert("vars".to_owned(), Value::Array(vars));
        }
        if conditions.priority != 0 {
            value.insert("priority".to_owned(), conditions.priority.into());
        }
        value
    }

    fn add(&mut self, claimed: &Claimed, part: &str, value: Map<String, Value>) {
        let metadata = &claimed.ingress.metadata;
        let id = resource_id(&["ingress", &metadata.namespace, &metadata.name, part]);
        let origin = claimed.object();
        let resource =
            DerivedResource { kind: ResourceList::Routes, id, value: Value::Object(value), origin, beside: Vec::new() };
        self.translation.resources.push(resource);
    }
}

/// Where ingress-nginx does not redirect to HTTPS: an authority that is asked for the first certificate of a host comes without TLS.
const CHALLENGES: &str = "/.well-known/acme-challenge";

/// Whether a path is for such challenges alone. Where clients are asked for certificates, none is.
fn is_challenge(path: &SitePath) -> bool {
    path.path.path.starts_with(CHALLENGES) && path.claimed.settings.client_certificates.is_none()
}

/// What ingress-nginx tells services of the certificate of a client, which `owner` asks for. Whatever the client says of it itself is
/// replaced; an empty value removes the field.
fn tell_client(keys: &mut Map<String, Value>, owner: &Claimed) {
    let fields = json!({
        "ssl-client-cert": if owner.settings.passes_certificate { "$ssl_client_escaped_cert" } else { "" },
        "ssl-client-verify": "$ssl_client_verify",
        "ssl-client-subject-dn": "$ssl_client_s_dn",
        "ssl-client-issuer-dn": "$ssl_client_i_dn",
    });
    set_fields(keys, fields);
}

/// Refuses requests without a certificate of one of the subjects that `owner` demands, if it demands any.
fn demand_subject(keys: &mut Map<String, Value>, owner: &Claimed) {
    let Some(subject) = &owner.settings.client_subject else { return };
    let abort = &mut plugin(keys, "fault-injection")["abort"];
    let is_other = json!([["ssl_client_s_dn", "!", "~~", subject]]);
    if abort.is_null() {
        *abort = json!({ "http_status": 403, "vars": [] });
    }
    // One without conditions refuses all requests. That of denied addresses has the same status.
    if let Some(vars) = abort.get_mut("vars").and_then(Value::as_array_mut)
        && !vars.contains(&is_other)
    {
        vars.push(is_other);
    }
}

/// Sets header fields of requests.
fn set_fields(keys: &mut Map<String, Value>, fields: Value) {
    let set = &mut plugin(keys, "proxy-rewrite")["headers"]["set"];
    for (name, value) in fields.as_object().into_iter().flatten() {
        set[name] = value.clone();
    }
}

/// The regular expressions in the rules of a plugin, as they are compiled.
fn expressions(options: &Value) -> impl Iterator<Item = String> {
    let rules = options.as_object().into_iter().flat_map(Map::values).filter_map(Value::as_array).flatten();
    rules.filter_map(|rule| {
        let flags = if rule["ignore_case"].as_bool() == Some(true) { "(?i)" } else { "" };
        rule["regex"].as_str().map(|regex| format!("{flags}{regex}"))
    })
}

/// Whether a rule of `reverse-rewrite` names groups, and has no expression of its own.
fn names_groups(rule: &Value) -> bool {
    let is_group = |name: &str| name.trim_start_matches('{').starts_with(|first: char| first.is_ascii_digit());
    let to = rule["to"].as_str().unwrap_or_default();
    rule["regex"].is_null() && to.split('$').skip(1).any(is_group)
}

/// The options of a plugin of a route.
fn plugin<'a>(keys: &'a mut Map<String, Value>, name: &str) -> &'a mut Value {
    let plugins = keys.entry("plugins").or_insert_with(|| json!({}));
    &mut plugins[name]
}

/// The fields by which ingress-nginx tells a default backend for which Ingress and Service it answers.
fn asked_of(path: &SitePath) -> Value {
    let (metadata, service) = (&path.claimed.ingress.metadata, path.path.backend.service.as_ref());
    let port = service.map(|service| match &*service.port.name {
        "" => service.port.number.to_string(),
        name => name.to_owned(),
    });
    json!({
        "X-Namespace": metadata.namespace,
        "X-Ingress-Name": metadata.name,
        "X-Service-Name": service.map(|service| &*service.name).unwrap_or_default(),
        "X-Service-Port": port.unwrap_or_default(),
    })
}

/// A route that answers every request with this status.
fn answer(status: u16) -> Map<String, Value> {
    let plugins = json!({ "fault-injection": { "abort": { "http_status": status } } });
    Map::from_iter([("plugins".to_owned(), plugins)])
}

/// What is not served must not be left to a less specific rule.
fn closed() -> Map<String, Value> {
    answer(503)
}

/// A URL with the host of the rule in place of variables.
fn at_host(uri: &str, host: &str, is_https: bool) -> Result<String, String> {
    let is_one = !host.is_empty() && !host.starts_with('*');
    let mut known = uri.to_owned();
    for name in ["$best_http_host", "$http_host", "$host"].into_iter().filter(|_| is_one) {
        known = known.replace(name, host);
    }
    known = known.replace("$scheme", if is_https { "https" } else { "http" });
    match known.contains('$') {
        true => Err(format!("`auth-url`: `{uri}` has a variable that has no fixed value here")),
        false => Ok(known),
    }
}

/// Whether requests for a host may fall to another one.
fn is_wider(other: &str, host: &str) -> bool {
    other.strip_prefix('*').is_some_and(|rest| other != host && host.ends_with(rest))
}
