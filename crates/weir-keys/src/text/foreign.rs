//! Keys of other gateways' configurations, and the advice for each.

/// The advice for the keys `theirs`, in a map where `beside` is a known key.
struct ForeignKey {
    theirs: &'static [&'static str],
    beside: &'static str,
    advice: &'static str,
}

const NODES: &str = "write `nodes: { \"backend.example:8080\": 1 }`";

/// docs/guide/coming-from.md has the same advice, and more.
const FOREIGN_KEYS: &[ForeignKey] = &[
    // Of services and routes.
    ForeignKey {
        theirs: &["url", "port", "protocol", "backend", "backends", "target", "proxy_pass"],
        beside: "upstream",
        advice: "write `upstream: { nodes: { \"backend.example:8080\": 1 } }`, and `scheme: https` in it for TLS",
    },
    ForeignKey {
        theirs: &["service"],
        beside: "service_id",
        advice: "write `service_id`, and the service in `services`",
    },
    ForeignKey {
        theirs: &["path", "paths", "location", "match"],
        beside: "uri",
        advice: "write `uri: /a/*`, or `uris` for several",
    },
    ForeignKey { theirs: &["headers"], beside: "vars", advice: "write `vars: [[http_NAME, \"==\", \"value\"]]`" },
    ForeignKey {
        theirs: &["strip_path", "strip_prefix", "rewrite"],
        beside: "uri",
        advice: "add the plugin `proxy-rewrite`, as `proxy-rewrite: { regex_uri: [\"^/a/?(.*)\", \"/$1\"] }`",
    },
    ForeignKey {
        theirs: &["preserve_host"],
        beside: "uri",
        advice: "write `pass_host: pass` or `pass_host: node` in the upstream",
    },
    ForeignKey {
        theirs: &["auth", "authentication", "policies", "middlewares", "filters"],
        beside: "plugins",
        advice: "write plugins, as `plugins: { key-auth: {} }`; `weir plugins` lists all",
    },
    // Keys of the upstream, most often with too little indentation.
    ForeignKey {
        theirs: &[
            "nodes",
            "type",
            "scheme",
            "checks",
            "pass_host",
            "upstream_host",
            "retries",
            "hash_on",
            "persistence",
            "concurrency",
            "keepalive_pool",
        ],
        beside: "upstream",
        advice: "it is a key of the upstream: indent it below `upstream:`, as `upstream: { nodes: { \"backend.example:8080\": 1 } }`",
    },
    // Of certificates.
    ForeignKey {
        theirs: &["host", "hosts", "domain", "domains", "server_name", "names"],
        beside: "snis",
        advice: "write `sni: www.example`, or `snis` for several",
    },
    ForeignKey {
        theirs: &[
            "certificate",
            "certificate_file",
            "ssl_certificate",
            "crt",
            "cert_file",
            "chain",
            "fullchain",
            "pem",
        ],
        beside: "snis",
        advice: "write `cert: FILE`, or the PEM text in place of the name",
    },
    ForeignKey {
        theirs: &["private_key", "certificate_key", "ssl_certificate_key", "key_file", "privkey"],
        beside: "snis",
        advice: "write `key: FILE`, or the PEM text in place of the name",
    },
    ForeignKey {
        theirs: &["client_ca", "ca", "ssl_client_certificate", "verify_client", "client_auth", "mtls"],
        beside: "snis",
        advice: "write `client: { ca: FILE }`",
    },
    // Of upstreams.
    ForeignKey {
        theirs: &["targets", "target", "server", "servers", "endpoints", "backends", "hosts"],
        beside: "nodes",
        advice: NODES,
    },
    ForeignKey { theirs: &["url", "host", "port"], beside: "nodes", advice: NODES },
    ForeignKey {
        theirs: &["algorithm", "lb_policy", "balancer"],
        beside: "hash_on",
        advice: "write `type: roundrobin`, `chash`, `least_conn` or `ewma`",
    },
    ForeignKey {
        theirs: &["healthchecks", "healthcheck", "health_check"],
        beside: "checks",
        advice: "write `checks: { active: { http_path: /health } }`",
    },
    ForeignKey {
        theirs: &["sticky", "session_affinity", "session_sticky"],
        beside: "persistence",
        advice: "write `persistence: { type: cookie }`",
    },
    ForeignKey {
        theirs: &["keepalive", "pool", "max_idle"],
        beside: "keepalive_pool",
        advice: "write `keepalive_pool: { size: 64, idle_timeout: 60 }`",
    },
    ForeignKey {
        theirs: &["insecure", "skip_verify", "insecure_skip_verify", "tls_verify"],
        beside: "subject_alt_names",
        advice: "write `verify: false`, which accepts every certificate, or `ca: FILE` for your own authority",
    },
    // Of health checks.
    ForeignKey { theirs: &["path", "uri"], beside: "http_path", advice: "write `http_path: /health`" },
    ForeignKey { theirs: &["method"], beside: "http_path", advice: "write `http_method`" },
    ForeignKey {
        theirs: &["interval", "interval_s", "period"],
        beside: "http_path",
        advice: "write `interval` in `healthy` and in `unhealthy`: `healthy: { interval: 5 }`",
    },
    ForeignKey { theirs: &["threshold", "rise", "passes"], beside: "successes", advice: "write `successes`" },
    ForeignKey {
        theirs: &["threshold", "fall", "fails", "failures"],
        beside: "http_failures",
        advice: "write `http_failures`, `tcp_failures` and `timeouts`",
    },
    // Of addresses to listen on.
    ForeignKey { theirs: &["port"], beside: "proxy_protocol", advice: "write `address: \":9443\"`" },
    ForeignKey { theirs: &["ssl", "https"], beside: "proxy_protocol", advice: "write `tls: true`" },
    ForeignKey {
        theirs: &["http2"],
        beside: "h2c",
        advice: "HTTP/2 is on by default; `enable_http2` is a setting of the node",
    },
    // Of all resources.
    ForeignKey { theirs: &["description", "comment"], beside: "desc", advice: "write `desc`" },
    ForeignKey {
        theirs: &["enabled", "disabled", "enable"],
        beside: "remote_addrs",
        advice: "write `status: 0` to switch the route off",
    },
    // Of `acme`.
    ForeignKey {
        theirs: &["domains", "domain", "names", "sans"],
        beside: "terms_of_service_agreed",
        advice: "write `hosts: [www.example.com]`",
    },
    // Of consumers.
    ForeignKey { theirs: &["custom_id"], beside: "username", advice: "write `labels: { custom_id: … }`" },
    ForeignKey {
        theirs: &["acls", "groups"],
        beside: "username",
        advice: "write `group_id`, and add the plugin `consumer-restriction` to routes",
    },
    ForeignKey {
        theirs: &["key", "keyauth_credentials"],
        beside: "username",
        advice: "write `plugins: { key-auth: { key: … } }`",
    },
    ForeignKey {
        theirs: &["credentials"],
        beside: "username",
        advice: "write each as an item of `consumers`: `{ id: jack/credentials/one, plugins: { key-auth: { key: … } } }`",
    },
    ForeignKey {
        theirs: &["password", "basicauth_credentials"],
        beside: "username",
        advice: "write `plugins: { basic-auth: { username: …, password: … } }`",
    },
    ForeignKey {
        theirs: &["jwt_secrets"],
        beside: "username",
        advice: "write `plugins: { jwt-auth: { key: …, secret: … } }`",
    },
    // At the top.
    ForeignKey {
        theirs: &["certificates", "snis", "tls", "ssl"],
        beside: "ssls",
        advice: "write `ssls: [{ snis: [www.example], cert: FILE, key: FILE }]`",
    },
    ForeignKey {
        theirs: &["apisix", "deployment", "nginx_config", "plugin_attr", "etcd"],
        beside: "listen",
        advice: "settings are keys at the top of this file; `weir convert apisix-config FILE` converts a config.yaml of APISIX",
    },
    ForeignKey {
        theirs: &["_format_version", "_transform", "_info", "keyauth_credentials"],
        beside: "listen",
        advice: "`weir convert kong FILE` converts a declarative configuration of Kong",
    },
    ForeignKey {
        theirs: &["server", "servers", "http", "events", "location", "stream"],
        beside: "listen",
        advice: "write `listen`, `routes` and `upstreams`; `weir convert nginx FILE` converts a configuration of nginx",
    },
    ForeignKey {
        theirs: &["frontend", "backend", "entryPoints", "static_resources"],
        beside: "listen",
        advice: "write `listen`, `routes` and `upstreams`: docs/guide/configuration.md",
    },
    ForeignKey {
        theirs: &["port", "ports", "address", "bind", "listeners"],
        beside: "listen",
        advice: "write `listen: [\":9080\"]`",
    },
    ForeignKey { theirs: &["workers", "threads"], beside: "listen", advice: "write `worker_processes: 4`" },
    ForeignKey { theirs: &["log_level", "loglevel"], beside: "listen", advice: "write `error_log_level: info`" },
    ForeignKey {
        theirs: &["access_log", "accesslog", "log_format"],
        beside: "listen",
        advice: "write `enable_access_log: FILE`, or `enable_access_log: { path: FILE, format: … }`",
    },
    ForeignKey {
        theirs: &["error_log", "log", "logging"],
        beside: "listen",
        advice: "the error log goes to standard error; `error_log_level` sets its level, `enable_access_log` the access log",
    },
    ForeignKey {
        theirs: &["metrics", "prometheus"],
        beside: "listen",
        advice: "metrics need no setting: `/metrics` on the address of `status`, by default 127.0.0.1:7085",
    },
    ForeignKey {
        theirs: &["timeout", "timeouts"],
        beside: "listen",
        advice: "write `timeout: { connect, send, read }` in an upstream",
    },
];

/// The advice for a key of another gateway, in a map with these known keys.
pub fn foreign_key(key: &str, known: &[&str]) -> Option<String> {
    // At the top level, `plugins` is a list of names.
    let may_be = |beside| known.contains(&beside) && !(beside == "plugins" && known.contains(&"listen"));
    let named = |it: &&ForeignKey| it.theirs.contains(&key) && may_be(it.beside);
    if let Some(found) = FOREIGN_KEYS.iter().find(named) {
        return Some(found.advice.to_owned());
    }
    // Where `plugins` is allowed, an unknown key with a dash is probably a plugin.
    (key.contains('-') && may_be("plugins")).then(|| format!("if `{key}` is to be a plugin, write it under `plugins`"))
}

/// The advice for a key of a single resource that is a list of a whole file.
pub(crate) fn list_in_resource(key: &str) -> Option<&'static str> {
    let advice = "this is a file with lists, and one resource is expected; `weir apply` puts all of such a file";
    matches!(key, "routes" | "consumers" | "global_rules").then_some(advice)
}

/// The advice for a word of another gateway, where these are allowed.
pub(crate) fn foreign_word(word: &str, known: &[&str]) -> Option<&'static str> {
    let (_, beside, advice) = FOREIGN_WORDS.iter().find(|(theirs, ..)| theirs.contains(&word))?;
    known.contains(beside).then_some(*advice)
}

/// Words of others, a word that is allowed where they mean something, and the advice.
const FOREIGN_WORDS: &[(&[&str], &str, &str)] = &[
    (&["h2", "h2c", "http2"], "grpc", "write `grpc`, which is HTTP/2, or `grpcs`, which is HTTP/2 with TLS"),
    (
        &["SSLv3", "TLSv1", "TLSv1.0", "TLS1.0"],
        "TLSv1.3",
        "older versions than TLSv1.1 are not supported; write `TLSv1.2`",
    ),
    (&["warning"], "warn", "write `warn`"),
    (&["trace", "verbose"], "debug", "write `debug`"),
    (&["fatal", "critical"], "crit", "write `crit`"),
    (&["ws", "wss", "websocket"], "grpc", "write `http` or `https`: WebSockets need no scheme of their own"),
    (&["leastconn", "least_connections", "least-connections", "least_request"], "least_conn", "write `least_conn`"),
    (
        &["consistent-hashing", "consistent_hash", "hash", "maglev", "ring_hash"],
        "chash",
        "write `chash`, with `hash_on` and `key`",
    ),
    (&["latency", "peak_ewma"], "ewma", "write `ewma`"),
];

/// The name of an environment variable in shell syntax, `${NAME}`, which is not replaced here.
pub fn shell_variable(text: &str) -> Option<&str> {
    text.match_indices("${").find_map(|(start, _)| {
        let (name, _) = text[start + 2..].split_once('}')?;
        let name = name.split([':', '-']).next().unwrap_or_default();
        let is_name = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
        is_name.then_some(name)
    })
}

/// The advice for such a variable.
pub fn variable_advice(name: &str) -> String {
    format!("write `${{{{{name}}}}}` for the environment variable `{name}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_gateways_are_known_where_they_have_an_equal() {
        let schemes = ["http", "https", "grpc", "grpcs"];
        assert!(foreign_word("http2", &schemes).is_some_and(|advice| advice.contains("`grpc`")));
        assert_eq!(foreign_word("http2", &["roundrobin", "chash"]), None);
        assert_eq!(foreign_word("grcp", &schemes), None);
        for (theirs, beside, _) in FOREIGN_WORDS {
            assert!(!theirs.contains(beside), "{beside}");
        }
    }

    #[test]
    fn shell_variables_are_told_from_others() {
        assert_eq!(shell_variable("127.0.0.1:${PORT}"), Some("PORT"));
        assert_eq!(shell_variable("${KEY_1:-x}"), Some("KEY_1"));
        assert_eq!(variable_advice("PORT"), "write `${{PORT}}` for the environment variable `PORT`");
        for text in ["", "$PORT", "${{PORT}}", "${remote_addr}", "${", "${}", "a ${"] {
            assert_eq!(shell_variable(text), None, "{text}");
        }
    }
}
