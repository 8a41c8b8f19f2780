//! The positions of findings in a plugin's options, and the advice for unknown plugins.

use weir_plugin::suggest::closest;
use weir_plugin::{ConfigError, Entry, Registry};

use super::Compiler;
use crate::document::{PluginSpec, ResourceOrigin};
use crate::lua;
use crate::text::read::{join, listed};
use crate::text::tree::{TextPosition, TreePath};

/// Plugins of other gateways, and their equivalents here; docs/guide/coming-from.md has the same list.
const FOREIGN_NAMES: &[(&str, &str)] = &[
    ("api-key", "key-auth"),
    ("basic", "basic-auth"),
    ("bot-detection", "ua-restriction"),
    ("canary", "traffic-split"),
    ("correlation-id", "request-id"),
    ("file-log", "file-logger"),
    ("forward", "forward-auth"),
    ("hmac", "hmac-auth"),
    ("http-log", "http-logger"),
    ("ip-whitelist", "ip-restriction"),
    ("jwt", "jwt-auth"),
    ("ldap", "ldap-auth"),
    ("oauth", "openid-connect"),
    ("oauth2", "openid-connect"),
    ("oidc", "openid-connect"),
    ("rate-limit", "limit-count"),
    ("rate-limiting", "limit-count"),
    ("rate-limiting-advanced", "limit-count"),
    ("ratelimit", "limit-count"),
    ("request-size-limiting", "client-control"),
    ("request-termination", "mocking"),
    ("request-transformer", "proxy-rewrite"),
    ("request-validator", "request-validation"),
    ("response-ratelimiting", "limit-count"),
    ("response-transformer", "response-rewrite"),
];

/// Plugins of Apache APISIX that are left out on purpose, and what there is in their place.
const LEFT_OUT: &[(&str, &str)] = &[
    ("exit-transformer", IN_PLACE_OF_EXIT_TRANSFORMER),
    (
        "ext-plugin-",
        "plugins of other programs are called by `ext-proc`, or written as WebAssembly: docs/guide/wasm.md",
    ),
    ("inspect", "it runs Lua; `weir trace` shows what happens to a request"),
    ("log-rotate", "rename the files, and send SIGUSR1: docs/guide/operating.md"),
    ("node-status", "`/status` at the address of `status` has its content"),
    ("script", SCRIPTS),
    ("server-info", "`/status` at the address of `status` has its content"),
];
const SCRIPTS: &str = "it runs Lua, which Weir does not; `workflow`, `proxy-rewrite`, `response-rewrite` and `forward-auth` serve most \
                       of its purposes, and plugins of your own are written as WebAssembly: docs/guide/wasm.md";

/// The advice is never to leave the plugin out: it may be the one that restricts access.
pub(super) fn report_unknown(compiler: &Compiler, registry: &Registry, path: &str, plugin: &PluginSpec) {
    let names: Vec<&str> = registry.entries().iter().map(|entry| entry.name).collect();
    let foreign = FOREIGN_NAMES.iter().find(|(theirs, ours)| *theirs == &*plugin.name && names.contains(ours));
    let left_out = LEFT_OUT.iter().find(|(theirs, _)| match theirs.ends_with('-') {
        true => plugin.name.starts_with(theirs),
        false => *plugin.name == **theirs,
    });
    let advice = match (foreign, closest(&plugin.name, names.iter().copied())) {
        _ if lua::LUA_PLUGINS.contains(&&*plugin.name) => in_place_of_lua(plugin),
        _ if left_out.is_some() => left_out.map(|(_, advice)| (*advice).to_owned()).unwrap_or_default(),
        (Some((_, ours)), _) => {
            format!("Weir's plugin for this is `{ours}`, with different options: see `weir plugins {ours}`")
        }
        (None, Some(known)) => format!("did you mean `{known}`?"),
        (None, None) if names.len() <= 8 => format!("the plugins are {}", listed(&names)),
        (None, None) => "`weir plugins` lists all plugins".to_owned(),
    };
    compiler.report(path, plugin.place, format!("this version has no plugin `{}`", plugin.name), Some(advice));
}

/// The function of this plugin of APISIX gets status, body and fields of the gateway's own responses, and returns others.
const IN_PLACE_OF_EXIT_TRANSFORMER: &str = "Weir does not run Lua; write other bodies of the gateway's own responses as \
    `error-page: { error_404: { body: '{\"message\": \"none\"}', content_type: application/json } }`, and another status or other fields as \
    `response-rewrite: { status_code: 404, headers: { set: { X-A: b } }, vars: [[status, \"==\", 403], [upstream_status, \"==\", null]] }`";

/// The plugin that does what the function in the options does.
fn in_place_of_lua(plugin: &PluginSpec) -> String {
    match lua::plugin_of(&plugin.name, &plugin.options) {
        Some(Ok(found)) => {
            let options = found.options.to_string();
            let difference = found.difference.map(|text| format!("; {text}")).unwrap_or_default();
            let hidden = if options.contains(lua::HIDDEN) { lua::ABOUT_HIDDEN } else { "" };
            format!(
                "write `{}: {options}` instead, which does what the function does{difference}{hidden}",
                found.plugin
            )
        }
        Some(Err(obstacle)) => format!(
            "Weir does not run Lua; no plugin is known that does the same as this function, because of line {}: `{}`",
            obstacle.line, obstacle.found
        ),
        None => "Weir does not run Lua; plugins that do the same are named for a single function only".to_owned(),
    }
}

/// The path and position of a finding inside the options at `path`.
pub(super) fn inside(
    compiler: &Compiler,
    path: String,
    place: TextPosition,
    error: &ConfigError,
) -> (String, TextPosition) {
    if error.path.is_empty() {
        return (path, place);
    }
    let path = join(&path, &error.path);
    let place = compiler.document.place_at(&path);
    (path, place)
}

/// The problem and the advice if the options of an auth plugin contain an option of a credential, which belongs to a consumer.
pub(super) fn split_credential(entry: &Entry, error: ConfigError) -> (String, Option<String>) {
    let (name, option) = (entry.name, &error.path);
    let is_unknown = error.problem.contains("` is not known; ");
    let is_of_credential =
        entry.credential.is_some_and(|credential| (credential.schema)()["properties"].get(option).is_some());
    if !(is_unknown && is_of_credential) {
        return (error.problem, None);
    }
    let advice = format!(
        "it belongs to a consumer: `consumers: [{{ username: NAME, plugins: {{ {name}: {{ {option}: … }} }} }}]`"
    );
    (format!("the option `{option}` is not known here"), Some(advice))
}

pub(super) fn path_of(origin: &ResourceOrigin, plugin: &PluginSpec) -> String {
    join(&origin.path, &format!("plugins{}", TreePath::suffix(&plugin.name)))
}
