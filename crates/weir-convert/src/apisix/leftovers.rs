//! Reports the members that the conversion has not used, each with its place and, where there is one, its replacement.

use super::NodeConversion;
use crate::document::{DocumentValue, ValueKind};

/// Advice for members by prefix of their path; the first match is used. An empty text means that nothing needs to be reported.
const ADVICE: &[(&str, &str)] = &[
    ("apisix.enable_control", "what the Control API says is at `/status` of the address `status`"),
    ("apisix.control", "what the Control API says is at `/status` of the address `status`"),
    ("stream_plugins", "`plugins` is the list for stream routes as well"),
    ("apisix.router", "a route with the request's host goes before one without, and then the longest path counts"),
    ("apisix.ssl.ssl_protocols", "set `ssl_protocols` in the entries of `ssls`"),
    ("apisix.ssl.ssl_ciphers", "ciphers cannot be set; they are Mozilla's intermediate ones"),
    ("apisix.ssl.ssl_session_tickets", "sessions are always resumed with tickets"),
    ("apisix.delete_uri_tail_slash", "write routes for both paths"),
    ("apisix.enable_server_tokens", ""),
    ("apisix.lru", ""),
    ("apisix.events", ""),
    ("apisix.extra_lua", "Lua is not run"),
    ("apisix.lua_module_hook", "Lua is not run"),
    ("apisix.proxy_cache", "responses are kept in memory; `plugin_metadata` of `proxy-cache` has the sizes of zones"),
    ("apisix.allow_admin", "the settings of APISIX 2 for this are not read; write it under `deployment.admin`"),
    ("apisix.admin_key", "the settings of APISIX 2 for this are not read; write it under `deployment.admin`"),
    ("apisix.port_admin", "the settings of APISIX 2 for this are not read; write it under `deployment.admin`"),
    ("apisix.config_center", "the settings of APISIX 2 for this are not read; write it under `deployment`"),
    ("etcd", "the settings of APISIX 2 for this are not read; write it under `deployment`"),
    ("nginx_config.error_log", "the error log goes to standard error"),
    (
        "nginx_config.worker_rlimit_nofile",
        "the limit of the process is raised to what the system allows: `LimitNOFILE` of the unit",
    ),
    ("nginx_config.event", "the limit of connections follows from the file descriptors"),
    ("nginx_config.envs", "every `${{NAME}}` in the file is a variable of the environment"),
    ("nginx_config.user", "set the user in the unit of systemd"),
    ("nginx_config.enable_cpu_affinity", ""),
    ("nginx_config.max_pending_timers", ""),
    ("nginx_config.max_running_timers", ""),
    ("nginx_config.http.lua_shared_dict", ""),
    ("nginx_config.http.custom_lua_shared_dict", "Lua is not run"),
    ("nginx_config.http.charset", ""),
    ("nginx_config.http.variables_hash", ""),
    ("nginx_config.http.client_body_timeout", "`client_body_min_rate` and `client_body_grace` limit slow bodies"),
    ("nginx_config.http.upstream", "set `keepalive_pool` of the upstreams"),
    ("nginx_config.stream", "streams are logged by the loggers among the `plugins` of `stream_routes`"),
    ("plugin_attr.prometheus", "metrics are at `/metrics` of the address `status`"),
    ("plugin_attr", "the attributes of plugins are options of the plugin, or `plugin_metadata`"),
    (
        "deployment.admin.admin_key_required",
        "the Admin API asks for a key unless it listens on loopback only and has none",
    ),
    ("deployment.admin.enable_admin_cors", "set `admin.origins`"),
    ("deployment.admin.enable_admin_ui", ""),
    ("deployment.admin.admin_api_version", ""),
    ("deployment.etcd.startup_retry", ""),
    ("deployment.etcd.watch_timeout", ""),
    ("deployment.etcd.use_grpc", ""),
    ("discovery.dns.resolv_conf", "`/etc/resolv.conf` is read, or the servers of `dns_resolver`"),
    (
        "discovery.dns.order",
        "a `service_name` without a port is looked up as SRV records, one with a port as addresses",
    ),
    ("discovery", "there is no such registry: use `discovery_type: dns`, `nodes_file`, or the Kubernetes controller"),
    ("ext-plugin", "external plugins are not run"),
    ("xrpc", "protocols of streams are carried and not read"),
];

pub(super) fn report(settings: &mut NodeConversion) {
    let root = settings.conversion.root;
    walk(settings, root, "");
}

/// Reports the unused rest of a map: the whole map if nothing in it was used, otherwise its members.
fn walk(settings: &mut NodeConversion, map: &DocumentValue, above: &str) {
    for (name, value) in map.members() {
        let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        if settings.taken.borrow().contains(&path) || matches!(value.kind, ValueKind::Null) {
            continue;
        }
        if path == "apisix.proxy_mode" && value.as_text() == Some("http") {
            continue;
        }
        let inside = format!("{path}.");
        let advice = ADVICE.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, advice)| *advice);
        let is_partly = settings.taken.borrow().iter().any(|taken| taken.starts_with(&inside))
            || ADVICE.iter().any(|(prefix, _)| prefix.starts_with(&inside));
        if is_partly && !value.members().is_empty() {
            walk(settings, value, &path);
            continue;
        }
        match advice {
            Some("") => {}
            Some(advice) => settings.conversion.lost(value, format!("`{path}`: {advice}")),
            None if path.ends_with("_snippet") => {
                settings.conversion.lost(value, format!("`{path}`: configuration of nginx is not read"));
            }
            None => settings.conversion.lost(value, format!("`{path}`: there is no such setting")),
        }
    }
}
