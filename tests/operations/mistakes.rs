//! Mistakes that people make, and what `weir check` says of them: the place, the fault, and what would be right. The reader's own
//! cases are documents in tests/config; these need the plugins of the binary.

use std::process::Command;

use weir_testkit::{Authority, TempDir};

/// What is written, and of what is said: the place, the fault, and what would be right.
struct Mistake {
    text: &'static str,
    says: [&'static str; 3],
}

const ROUTE: &str = "upstream: { nodes: { \"127.0.0.1:1\": 1 } }";

const MISTAKES: &[Mistake] = &[
    Mistake { text: "rutes: []", says: ["1:1: rutes:", "the key `rutes` is not known", "did you mean `routes`?"] },
    Mistake {
        text: "routes: [{ uri: /a, upstraem: { nodes: {} }, plugins: {} }]",
        says: ["1:21: routes[0].upstraem:", "is not known", "did you mean `upstream`?"],
    },
    Mistake {
        text: "routes: [{ uri: orders, UPSTREAM }]",
        says: ["1:17: routes[0].uri:", "`orders` matches no request", "try `/orders`"],
    },
    Mistake {
        text: "routes: [{ uri: \"/v(.*)\", UPSTREAM }]",
        says: ["1:17: routes[0].uri:", "`(.*` in `/v(.*)` is matched as plain text", "write `/v*`"],
    },
    Mistake {
        text: "routes: [{ uri: \"/users/{id}\", UPSTREAM }]",
        says: ["1:17: routes[0].uri:", "`{id}` in `/users/{id}` is matched as plain text", "write `:id`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, UPSTREAM }, { uri: /a, methods: [GET], UPSTREAM }]",
        says: [
            "1:73: routes[1].uri:",
            "no request with the path `/a` reaches this route: routes[0]",
            "remove one of the two",
        ],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { jwt: {} }, UPSTREAM }]",
        says: ["1:32: routes[0].plugins.jwt:", "this version has no plugin `jwt`", "is `jwt-auth`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { rate-limiting: { minute: 5 } }, UPSTREAM }]",
        says: ["1:32: routes[0].plugins.rate-limiting:", "no plugin `rate-limiting`", "is `limit-count`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, key-auth: {}, UPSTREAM }]",
        says: ["1:21: routes[0].key-auth:", "is not known", "write it under `plugins`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { key-auth: {} }, UPSTREAM }]",
        says: [
            "1:32: routes[0].plugins.key-auth:",
            "refuses every request: no consumer has credentials for `key-auth`",
            "to the `plugins` of a consumer",
        ],
    },
    Mistake {
        text: "admin: { listen: \"127.0.0.1:0\", keys: [{ name: a, key: \"$secret://vault/1/a/key\", role: admin }] }",
        says: ["admin.keys[0].key:", "is a reference, and settings of the node have none", "write `${{NAME}}`"],
    },
    Mistake {
        text: "client_max_body_size: 1m\nroutes: [{ uri: /a, plugins: { client-control: { max_body_size: 100m } }, UPSTREAM }]",
        says: [
            "2:65: routes[0].plugins.client-control.max_body_size:",
            "the node's `client_max_body_size` of 1048576 bytes is lower",
            "raise `client_max_body_size`",
        ],
    },
    Mistake {
        text: "consumers: [{ username: jack, plugins: { key-auth: { key: k } } }]",
        says: ["1:13: consumers[0]:", "no route admits `jack`: none has the plugin `key-auth`", "add `key-auth: {}`"],
    },
    Mistake {
        text: "consumers: [{ username: jack, plugins: { key-auth: { key: k } } }]\n\
               routes: [{ uri: /a, plugins: { key-auth: {}, consumer-restriction: { whitelist: [jill] } }, UPSTREAM }]",
        says: [
            "1:13: consumers[0]:",
            "none with `key-auth` has it in its `consumer-restriction`",
            "to the `whitelist`",
        ],
    },
    Mistake {
        text: "consumers: [{ username: jack, plugins: { key-auth: { key: \"${API_KEY}\" } } }]\n\
               routes: [{ uri: /a, plugins: { key-auth: {} }, UPSTREAM }]",
        says: ["1:59: consumers[0].plugins.key-auth.key:", "`${API_KEY}` is plain text here", "write `${{API_KEY}}`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { nodes: {} } }]",
        says: [
            "1:40: routes[0].upstream.nodes:",
            "is empty: every request is answered with 503",
            "as `nodes: { \"10.0.0.1:8080\": 1 }`",
        ],
    },
    Mistake {
        text: "upstreams: [{ id: a, nodes: [] }]\nroutes: [{ uri: /a, upstream_id: a }]",
        says: ["1:29: upstreams[0].nodes:", "is empty", "or write `service_name` or `nodes_file`"],
    },
    Mistake {
        text: "services: [{ id: a, upstream: { nodes: { \"127.0.0.1:1\": 0 } } }]",
        says: ["1:40: services[0].upstream.nodes:", "has only nodes with the weight 0", "a weight above 0"],
    },
    Mistake {
        text: "routes: [{ uri: /a, UPSTREAM, plugins: { traffic-split: { rules: [{ weighted_upstreams: [{ upstream: { nodes: {} } }] }] } } }]",
        says: [
            "routes[0].plugins.traffic-split.rules[0].weighted_upstreams[0].upstream.nodes:",
            "is empty",
            "name an endpoint",
        ],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { acl: { allow_labels: { team: [a] } } }, UPSTREAM }]",
        says: [
            "1:37: routes[0].plugins.acl:",
            "refuses every request: no plugin of this route finds out the consumer",
            "such as `key-auth: {}`",
        ],
    },
    Mistake {
        text: "services: [{ id: s, plugins: { attach-consumer-label: { headers: { X-Team: $team } } } }]\n\
               routes: [{ uri: /a, service_id: s, UPSTREAM }]",
        says: [
            "services[0].plugins.attach-consumer-label:",
            "sends no label: no plugin of routes[0] finds out the consumer",
            "to the route, its service or a global rule",
        ],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { consumer-restriction: { blacklist: [jill] } }, UPSTREAM }]",
        says: ["routes[0].plugins.consumer-restriction:", "refuses every request: no plugin", "add an auth plugin"],
    },
    Mistake {
        text: "consumers: [{ username: jack, plugins: { key-auth: { key: k } } }]\n\
               routes: [{ uri: /a, plugins: { key-auth: {}, consumer-restriction: { whitelist: [jack, jacc] } }, UPSTREAM }]",
        says: [
            "2:88: routes[0].plugins.consumer-restriction.whitelist[1]:",
            "there is no consumer `jacc`",
            "did you mean `jack`?",
        ],
    },
    Mistake {
        text: "routes: [{ id: r, uri: /a, plugins: { consumer-restriction: { type: route_id, blacklist: [elsewhere] } }, UPSTREAM }]",
        says: ["consumer-restriction.blacklist[0]:", "there is no route `elsewhere`", "write the `id` of a route"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { opentelemetry: {} }, UPSTREAM }]",
        says: ["routes[0].plugins.opentelemetry:", "traces no request", "write `sampler: { name: always_on }`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { opentelemetry: { sampler: { name: always_on } } }, UPSTREAM }]",
        says: [
            "routes[0].plugins.opentelemetry:",
            "sends spans to 127.0.0.1:4318, the default",
            "in `plugin_metadata` of `opentelemetry`",
        ],
    },
    Mistake {
        text: "routes: [{ uri: /a, timeout: { connect: 3000, send: 5, read: 5 }, UPSTREAM }]",
        says: [
            "1:41: routes[0].timeout.connect:",
            "`3000` is a number of seconds, 50m, and looks like one of milliseconds",
            "write `3s` if milliseconds were meant, otherwise `50m`",
        ],
    },
    Mistake {
        text: "keepalive_timeout: 60000",
        says: ["1:20: keepalive_timeout:", "`60000` is a number of seconds, 1000m", "write `60s`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { http-logger: { uri: \"http://127.0.0.1:1/\", timeout: 3000 } }, UPSTREAM }]",
        says: [
            "routes[0].plugins.http-logger.timeout:",
            "`3000` is a number of seconds, 50m",
            "write `3` if milliseconds were meant",
        ],
    },
    Mistake {
        text: "services: [{ id: a, url: \"http://backend:8080\" }]",
        says: ["1:21: services[0].url:", "the key `url` is not known", "write `upstream: { nodes:"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { nodes: [\"h:1\"] } }]",
        says: ["1:41: routes[0].upstream.nodes[0]:", "expected a map, found `h:1`", "`nodes: { \"h:1\": 1 }`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { nodes: { \"http://h:1\": 1 } } }]",
        says: ["routes[0].upstream.nodes[\"http://h:1\"]:", "is a URL, not a node", "write `h:1`"],
    },
    Mistake {
        text: "listen: \"127.0.0.1:${PORT}\"",
        says: [
            "1:9: listen:",
            "is not an address to listen on",
            "write `${{PORT}}` for the environment variable `PORT`",
        ],
    },
    Mistake {
        text: "listen: \"127.0.0.1:${{NO_SUCH_PORT}}\"",
        says: ["1:20:", "the environment variable `NO_SUCH_PORT` is not set", "`${{NO_SUCH_PORT:=default}}`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, vars: [[http_x_canary, \"==\", yes]], UPSTREAM }]",
        says: ["1:50: routes[0].vars[0][2]:", "equals only the text `true`", "put the text in quotes"],
    },
    Mistake {
        text: "routes: [{ uri: /a, vars: [[arg_a, \"=\", 1]], UPSTREAM }]",
        says: ["1:36: routes[0].vars[0][1]:", "invalid operator '='", "use == to compare"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream_id: ordres }]\nupstreams: [{ id: orders, nodes: {} }]",
        says: ["1:34: routes[0].upstream_id:", "`upstreams` has no `ordres`", "did you mean `orders`?"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { limit-count: { count: 5 } }, UPSTREAM }]",
        says: ["routes[0].plugins.limit-count", "time_window", "time_window"],
    },
    Mistake { text: "routes:\n\t- uri: /a", says: ["2:2:", "is not YAML: tabs disallowed", "indent with spaces"] },
    Mistake { text: "routes: [{ uri: /a, uri: /b, UPSTREAM }]", says: ["1:21:", "`uri`", "twice"] },
    Mistake {
        text: "routes:\n  - uri: /a\n    upstream: { nodes: { \"127.0.0.1:1\": 1 }\n  - uri: /b\n    UPSTREAM",
        says: ["4:3:", "is not YAML", "the bracket that begins at 3:15 is not closed"],
    },
    Mistake {
        text: "routes:\n  - uri: \"/a\n    UPSTREAM",
        says: ["2:10:", "is not YAML: invalid indentation in quoted scalar", "a quote is not closed"],
    },
    Mistake {
        text: "routes:\n  - { uri: *, UPSTREAM }",
        says: ["2:12:", "is not YAML", "put text that begins with `*` or `&` in quotes"],
    },
    Mistake {
        text: "routes:\n- uri: /a\n  upstream:\n    nodes:\n      \"127.0.0.1:1\": 1\n   plugins: {}",
        says: ["6:4:", "is not YAML", "check the indentation of this line"],
    },
    Mistake {
        text: "routes: { uri: /a, UPSTREAM }",
        says: ["1:9: routes:", "expected a list, found a map", "begin each item with `- `"],
    },
    Mistake {
        text: "routes: [{ uri: /a, methods: GET, UPSTREAM }]",
        says: ["1:30: routes[0].methods:", "expected a list, found `GET`", "write `[GET]`"],
    },
    Mistake {
        text: "routes: [{ uri: \"https://shop.example/b\", UPSTREAM }]",
        says: ["routes[0].uri:", "matches no request", "write `uri: /b`, and `host: shop.example`"],
    },
    Mistake {
        text: "routes: [{ uri: \"~ ^/a\", UPSTREAM }]",
        says: ["routes[0].uri:", "matches no request", "the expression as `vars: [[uri, \"~~\""],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { nodes: [\"https://h:8443/x\"] } }]",
        says: ["nodes[0]:", "expected a map", "`nodes: { \"h:8443\": 1 }`, and `scheme: https` in the upstream"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: \"http://h:1\" }]",
        says: ["routes[0].upstream:", "expected a map, found `http://h:1`", "write `upstream: { nodes:"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { nodes: { \"::1:8080\": 1 } } }]",
        says: ["nodes[\"::1:8080\"]:", "is an IPv6 address without brackets", "write `[::1]:8080`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { nodes: { \"h:1\": \"1\" } } }]",
        says: ["nodes[\"h:1\"]:", "expected a whole number from 0 to 100000, found `1`", "without quotes"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { nodes: { \"h:1\": 1 }, timeout: 5 } }]",
        says: ["upstream.timeout:", "expected a map, found the number 5", "write `{ connect: 5, send: 5, read: 5 }`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { nodes: { \"h:1\": 1 }, checks: { active: { path: /health } } } }]",
        says: ["checks.active.path:", "is not known", "write `http_path: /health`"],
    },
    Mistake { text: "listen: \"::1:9080\"", says: ["1:9: listen:", "is not an address", "in brackets: `[::1]:9080`"] },
    Mistake { text: "listen: \"*:80\"", says: ["1:9: listen:", "is not an address", "write `:80` for all addresses"] },
    Mistake {
        text: "listen: \"127.0.0.1:99999\"",
        says: ["1:9: listen:", "is not an address", "a port from 0 to 65535"],
    },
    Mistake {
        text: "listen: \"127.0.0.1\"",
        says: ["1:9: listen:", "is not an address", "add the port: `127.0.0.1:9080`"],
    },
    Mistake {
        text: "listen: [{ address: \":9443\", ssl: true }]",
        says: ["1:30: listen[0].ssl:", "is not known", "write `tls: true`"],
    },
    Mistake { text: "workers: 4", says: ["1:1: workers:", "is not known", "write `worker_processes: 4`"] },
    Mistake {
        text: "access_log: a.log",
        says: ["1:1: access_log:", "is not known", "write `enable_access_log: FILE`"],
    },
    Mistake { text: "server: { listen: 80 }", says: ["1:1: server:", "is not known", "`weir convert nginx FILE`"] },
    Mistake {
        text: "_format_version: \"3.0\"",
        says: ["1:1: _format_version:", "is not known", "`weir convert kong FILE`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { limit-req: { rate: 10r/s, burst: 1, key: remote_addr } }, UPSTREAM }]",
        says: [
            "limit-req.rate:",
            "expected a number above 0, 1000000000 at most, found the text `10r/s`",
            "without a unit",
        ],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { cors: { origins: \"*\" } }, UPSTREAM }]",
        says: ["cors.origins:", "the option `origins` is not known", "did you mean `allow_origins`?"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { key-auth: { key: k } }, UPSTREAM }]",
        says: ["key-auth.key:", "the option `key` is not known here", "it belongs to a consumer"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { redirect: { uri: /b, ret_code: \"301\" } } }]",
        says: ["redirect.ret_code:", "found the text `301`", "write it without quotes"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: [key-auth, cors], UPSTREAM }]",
        says: ["routes[0].plugins:", "expected a map, found a list", "write `plugins: { key-auth: {}, cors: {} }`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: key-auth, UPSTREAM }]",
        says: ["routes[0].plugins:", "expected a map, found `key-auth`", "write `plugins: { key-auth: {} }`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { key-auth: true }, UPSTREAM }]",
        says: ["routes[0].plugins.key-auth:", "expected a map, found the boolean true", "write `key-auth: {}`"],
    },
    Mistake {
        text: "plugins: [cors]\nroutes: []",
        says: ["1:11: plugins[0]:", "expected a map, found `cors`", "write `{ name: … }`"],
    },
    Mistake {
        text: "admin: { listen: \"127.0.0.1:0\", keys: [abc] }",
        says: ["admin.keys[0]:", "expected a map, found text", "write `{ name: ops, key: ..., role: admin }`"],
    },
    Mistake {
        text: "store: { etcd: [\"http://127.0.0.1:2379\"] }",
        says: ["store.etcd:", "expected a map, found a list", "write `{ hosts: … }`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { kafka-logger: { brokers: [\"k:9092\"], kafka_topic: t } }, UPSTREAM }]",
        says: ["kafka-logger.brokers[0]:", "expected a map, found text", "`{ host: …, port: … }`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { error-page: { error_404: none } }, UPSTREAM }]",
        says: ["error-page.error_404:", "expected a map, found text", "its options are `body`, `content_type`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { multi-auth: { auth_plugins: [key-auth, basic-auth] } }, UPSTREAM }]",
        says: ["multi-auth.auth_plugins[1]:", "expected a map, found text", "write `{ key-auth: {} }`"],
    },
    Mistake {
        text: "consumers: [{ username: jack, plugins: { key-auth: { key: 12345 } } }]",
        says: ["consumers[0].plugins.key-auth.key:", "expected text", "put it in quotes"],
    },
    Mistake {
        text: "routes: [{ uri: /a, request_timeout: 400d, UPSTREAM }]",
        says: ["1:38: routes[0].request_timeout:", "`400d` is too long", "the longest time is `366d`"],
    },
    Mistake {
        text: "worker_processes 4;\nhttp { }",
        says: ["1:1:", "expected a map, found `worker_processes 4; http { }`", "`weir convert nginx FILE`"],
    },
    Mistake {
        text: "routes: [{ uri: [/a, /b], UPSTREAM }]",
        says: ["1:17: routes[0].uri:", "expected text, found a list", "write `uris` for several"],
    },
    Mistake {
        text: "routes:\n- uri: /a\n  upstream:\n  nodes: { \"h:1\": 1 }",
        says: ["4:3: routes[0].nodes:", "the key `nodes` is not known", "indent it below `upstream:`"],
    },
    Mistake {
        text: "ssls: [{ host: a.example, certificate: a.crt, private_key: a.key }]",
        says: ["ssls[0].certificate:", "the key `certificate` is not known", "write `cert: FILE`"],
    },
    Mistake {
        text: "ssls: [{ sni: a.example, cert: gone.crt, key: gone.key }]",
        says: ["ssls[0].cert:", "`gone.crt` cannot be read", "begins at the folder of the configuration file"],
    },
    Mistake {
        text: "routes: [{ uri: /a, vars: [[header_x_tenant, \"==\", a]], UPSTREAM }]",
        says: ["routes[0].vars:", "names the variable `header_x_tenant`, which does not exist", "`http_x_tenant`"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { response-rewrite: { headers: { set: [X-A] } } }, UPSTREAM }]",
        says: ["response-rewrite.headers.set:", "expected a map of names and values", ""],
    },
    Mistake {
        text: "routes:\n- uri: /a\n\tupstream: { nodes: { \"h:1\": 1 } }",
        says: ["is not YAML:", "found a tab", "indent with spaces"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { prometheus: {} } }]",
        says: ["1:10: routes[0]:", "has no upstream", "add `upstream:"],
    },
    Mistake {
        text: "routes: [{ uri: /a, methods: [GET], plugins: { cors: {}, response-rewrite: { headers: { set: { X-A: b } } } } }]",
        says: ["1:10: routes[0]:", "requests get 503", "add `upstream:"],
    },
    Mistake {
        text: "routes: [{ uri: /a, vars: [[$http_x_tenant, \"==\", a]], UPSTREAM }]",
        says: ["routes[0].vars:", "`$http_x_tenant`, which does not exist", "did you mean `http_x_tenant`?"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { limit-count: { count: 1, time_window: 1, key: ip } }, UPSTREAM }]",
        says: ["routes[0].plugins.limit-count.key:", "`ip`, which does not exist", "did you mean `remote_addr`?"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { limit-count: { count: 1, time_window: 1, policy: redis, redis_host: \"redis://10.0.0.1:6379\" } }, UPSTREAM }]",
        says: [
            "routes[0].plugins.limit-count.redis_host:",
            "is neither a host name nor an IP address",
            "write `10.0.0.1` here",
        ],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { tcp-logger: { host: \"10.0.0.1:5044\", port: 5044 } }, UPSTREAM }]",
        says: [
            "routes[0].plugins.tcp-logger.host:",
            "is neither a host name nor an IP address",
            "write `10.0.0.1` here",
        ],
    },
    Mistake {
        text: "routes: [{ uri: /a, upstream: { scheme: http2, nodes: { \"127.0.0.1:1\": 1 } } }]",
        says: ["1:41: routes[0].upstream.scheme:", "`http2` is not an allowed value", "write `grpc`"],
    },
    Mistake {
        text: "acme: { domains: [a.example] }\nroutes: []",
        says: ["1:9: acme.domains:", "is not known", "write `hosts: "],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { elasticsearch-logger: { endpoint: \"http://127.0.0.1:9200\", field: { index: a } } }, UPSTREAM }]",
        says: ["routes[0].plugins.elasticsearch-logger.endpoint:", "is not known", "did you mean `endpoint_addr`?"],
    },
    Mistake {
        text: "routes: [{ uri: /a, plugins: { serverless-pre-function: { functions: [] } }, UPSTREAM }]",
        says: ["routes[0].plugins.serverless-pre-function:", "this version has no plugin", "Weir does not run Lua"],
    },
    Mistake {
        text: "global_rules: [{ id: a, plugins: { server-info: {} } }]",
        says: ["global_rules[0].plugins.server-info:", "this version has no plugin", "`/status`"],
    },
    Mistake {
        text: "listen: [{ address: \":0\", tls: true }]\nssls: [{ sni: a, cert: \"-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----\\n\", key: \"-----BEGIN PRIVATE KEY-----\\nMIIB\\n-----END PRIVATE KEY-----\\n\" }]",
        says: ["ssls[0].cert:", "it is cut off", "copy the text again"],
    },
    Mistake {
        text: "routes: [{ uri: /a, description: b, UPSTREAM }]",
        says: ["1:21: routes[0].description:", "is not known", "write `desc`"],
    },
    Mistake {
        text: "upstreams: [{ id: a, nodes: { \"127.0.0.1:80/api\": 1 } }]",
        says: ["upstreams[0].nodes[\"127.0.0.1:80/api\"]:", "has the path `/api`", "write `127.0.0.1:80`"],
    },
    Mistake {
        text: "upstreams: [{ id: a, sticky: true, nodes: { \"127.0.0.1:80\": 1 } }]",
        says: ["1:22: upstreams[0].sticky:", "is not known", "write `persistence: "],
    },
    Mistake {
        text: "upstreams: [{ id: a, scheme: https, tls: { insecure: true }, nodes: { \"127.0.0.1:80\": 1 } }]",
        says: ["1:44: upstreams[0].tls.insecure:", "is not known", "write `verify: false`"],
    },
    Mistake {
        text: "error_log_level: warning\nroutes: []",
        says: ["1:18: error_log_level:", "`warning` is not an allowed value", "write `warn`"],
    },
];

/// All that `weir check` says of a text, on standard error.
fn said_of(place: &TempDir, text: &str) -> String {
    let file = place.write("weir.yaml", text.replace("UPSTREAM", ROUTE));
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_mistake_has_its_place_its_fault_and_what_would_be_right() {
    let place = TempDir::new();
    let mut poor = String::new();
    for Mistake { text, says } in MISTAKES {
        let said = said_of(&place, text);
        if !said.lines().any(|line| says.iter().all(|part| line.contains(part))) {
            poor.push_str(&format!("--- {text}\nexpected {says:?}\n{said}"));
        }
    }
    assert!(poor.is_empty(), "{poor}");
}

#[test]
fn right_input_causes_no_doubt() {
    let place = TempDir::new();
    let head = "listen: [\"127.0.0.1:0\"]\n";
    let users = "basic-auth: { users: [{ username: a, password: b }] }";
    for text in [
        format!("routes: [{{ uri: /a, plugins: {{ {users} }}, UPSTREAM }}]"),
        format!("routes: [{{ uri: /a, plugins: {{ multi-auth: {{ auth_plugins: [{{ {users} }}, {{ key-auth: {{}} }}] }} }}, UPSTREAM }}]"),
        "client_max_body_size: 1m\nroutes: [{ uri: /a, plugins: { client-control: { max_body_size: 1000k } }, UPSTREAM }]".to_owned(),
        "keepalive_timeout: 50m\nroutes: [{ uri: /a, timeout: { connect: 3s, send: 1000s, read: 3600 }, UPSTREAM }]".to_owned(),
        // In milliseconds.
        "routes: [{ uri: /a, plugins: { tcp-logger: { host: 127.0.0.1, port: 1, timeout: 3000 } }, UPSTREAM }]".to_owned(),
        "discovery: { eureka: { host: [\"http://127.0.0.1:1\"], timeout: { connect: 2000, send: 2000, read: 5000 } } }".to_owned(),
        "plugin_metadata: [{ id: opentelemetry, collector: { address: \"127.0.0.1:4318\" } }]\n\
         routes: [{ uri: /a, plugins: { opentelemetry: { sampler: { name: always_on } } }, UPSTREAM }]".to_owned(),
        format!("global_rules: [{{ id: g, plugins: {{ {users} }} }}]\n\
                 routes: [{{ uri: /a, plugins: {{ acl: {{ allow_labels: {{ team: [a] }} }} }}, UPSTREAM }}]"),
        "routes: [{ id: r, uri: /a, plugins: { consumer-restriction: { type: route_id, whitelist: [r] } }, UPSTREAM }]".to_owned(),
        "upstreams: [{ id: a, nodes: { \"127.0.0.1:1\": 0, \"127.0.0.1:2\": 1 } }]\nroutes: [{ uri: /a, upstream_id: a }]".to_owned(),
        // Answered without an upstream of the route.
        "routes: [{ uri: /a, plugins: { redirect: { uri: /b } } }, { uri: /b, plugins: { mocking: {} } }]".to_owned(),
        "routes: [{ uri: /a, methods: [OPTIONS], plugins: { cors: {} } }]".to_owned(),
        "routes: [{ uri: /a, vars: [[request_method, \"==\", OPTIONS]], plugins: { cors: {} } }]".to_owned(),
        "consumers: [{ username: a, plugins: { key-auth: { key: a-key-of-a }, mocking: {} } }]\n\
         routes: [{ uri: /a, plugins: { key-auth: {} } }]".to_owned(),
        "consumer_groups: [{ id: g, plugins: { mocking: {} } }]\n\
         consumers: [{ username: a, group_id: g, plugins: { key-auth: { key: a-key-of-a } } }]\n\
         routes: [{ uri: /a, plugins: { key-auth: {} } }]".to_owned(),
        "routes: [{ uri: /a, plugins: { response-rewrite: { status_code: 200, body: a } } }]".to_owned(),
        "services: [{ id: s, UPSTREAM }]\nroutes: [{ uri: /a, service_id: s }]".to_owned(),
        "services: [{ id: s, plugins: { mocking: {} } }]\nroutes: [{ uri: /a, service_id: s }]".to_owned(),
    ] {
        let said = said_of(&place, &format!("{head}{text}"));
        assert!(!said.contains("warning"), "{text}\n{said}");
    }
}

#[test]
fn reference_to_a_hub_with_a_fault_is_no_further_fault() {
    let place = TempDir::new();
    let said = said_of(&place, "hubs: [{ id: h }]\nroutes: [{ uri: /a, hub_id: h }]");
    assert!(said.contains("hubs[0]: has no `url`") && !said.contains("hub_id"), "{said}");
    let said = said_of(&place, "hubs: [{ id: other }]\nroutes: [{ uri: /a, hub_id: h }]");
    assert!(said.contains("routes[0].hub_id: `hubs` has no `h`"), "{said}");
    let said = said_of(&place, "routes: [{ uri: /a, hub_id: h }]");
    assert!(said.contains("routes[0].hub_id: `hubs` has no `h`"), "{said}");
}

/// A folder with a certificate for `a.test` and with its authority.
fn with_certificates() -> TempDir {
    let place = TempDir::new();
    let authority = Authority::of_tests();
    let identity = authority.identity(&["a.test"]);
    place.write("a.pem", &identity.certificate);
    place.write("a.key", &identity.key);
    place.write("ca.pem", &authority.certificate);
    place
}

/// A plugin that needs the certificate, or that sends clients to TLS, asks in place of the listener.
#[test]
fn routes_of_hosts_with_client_certificates_may_ask_by_a_plugin() {
    let place = with_certificates();
    for (plugins, is_open) in [
        ("{}", true),
        ("{ redirect: { http_to_https: true } }", false),
        ("{ redirect: { uri: /b } }", false),
        ("{ mocking: {} }", false),
        ("{ redirect: { uri: /b, _meta: { filter: [[uri, \"==\", /c]] } } }", true),
        ("{ mtls-auth: { skip_consumer_lookup: true } }", false),
        ("{ fault-injection: { abort: { http_status: 403, vars: [[[ssl_client_verify, \"~=\", SUCCESS]]] } } }", false),
        ("{ fault-injection: { abort: { http_status: 403, vars: [[[arg_a, \"~=\", SUCCESS]]] } } }", true),
        (
            "{ fault-injection: { abort: { http_status: 403 }, _meta: { filter: [[ssl_client_verify, \"~=\", SUCCESS]] } } }",
            false,
        ),
        ("{ forward-auth: { uri: \"http://127.0.0.1:1/\", extra_headers: { X-A: $ssl_client_verify } } }", false),
        ("{ proxy-rewrite: { headers: { set: { X-A: $ssl_client_s_dn } } } }", true),
        ("{ response-rewrite: { headers: { set: { X-A: $ssl_client_s_dn } } } }", true),
        ("{ file-logger: { path: a.log, log_format: { client: $ssl_client_s_dn } } }", true),
    ] {
        let said = said_of(
            &place,
            &format!(
                "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", tls: true }}]\n\
                 ssls: [{{ sni: a.test, cert: a.pem, key: a.key, client: {{ ca: ca.pem }} }}]\n\
                 routes: [{{ uri: /a, plugins: {plugins}, UPSTREAM }}]"
            ),
        );
        let told = said.contains("ssls[0].client: clients without a certificate reach routes[0]");
        assert_eq!(told, is_open, "{plugins}: {said}");
    }
}

#[test]
fn redirects_to_https_that_nothing_serves_are_told() {
    let place = with_certificates();
    let tls = "{ address: \"127.0.0.1:0\", tls: true }";
    for (settings, is_told) in [
        ("listen: [\"127.0.0.1:0\"]", true),
        ("listen: [\"127.0.0.1:0\"]\ntrusted_addresses: [10.0.0.0/8]", false),
        (&*format!("listen: [\"127.0.0.1:0\", {tls}]\nssls: [{{ sni: a.test, cert: a.pem, key: a.key }}]"), false),
        ("", false),
    ] {
        let routes = "routes: [{ uri: /a, plugins: { redirect: { http_to_https: true } }, UPSTREAM }]";
        let said = said_of(&place, &format!("{settings}\n{routes}"));
        let told = said.contains("plugins.redirect: sends clients to HTTPS, and no `listen` address uses TLS");
        assert_eq!(told, is_told, "{settings}: {said}");
    }
}

#[test]
fn list_within_a_resource_of_a_file_is_not_told_as_a_whole_file() {
    let said = said_of(&TempDir::new(), "routes: [{ uri: /a, consumers: [], UPSTREAM }]");
    assert!(said.contains("the key `consumers` is not known") && !said.contains("a file with lists"), "{said}");
}

/// The entry that serves a host decides, and the condition of the route for requests without TLS.
#[test]
fn hosts_with_client_certificates_are_those_that_the_entry_serves() {
    let place = with_certificates();
    let entry = |rest: &str| format!("{{ cert: a.pem, key: a.key, {rest} }}");
    let wildcard = entry("sni: \"*.test\", client: { ca: ca.pem }");
    let both = format!("{wildcard}, {}", entry("sni: a.test"));
    let exempt = entry("sni: a.test, client: { ca: ca.pem, skip_mtls_uri_regex: [\"^/open\"] }");
    let of_listener =
        format!("{}, {}", entry("sni: a.test, listeners: [tls], client: { ca: ca.pem }"), entry("sni: a.test"));
    for (ssls, route, is_open) in [
        (&wildcard, "uri: /a, host: a.test", true),
        (&wildcard, "uri: /a, host: a.b.test", false),
        (&both, "uri: /a, host: a.test", false),
        (&both, "uri: /a, hosts: [a.test, b.test]", true),
        (&both, "uri: /a, host: \"*.test\"", true),
        (&both, "uri: /a", true),
        (&exempt, "uri: /a, host: a.test", true),
        (&exempt, "uris: [/open/*, /open], host: a.test", false),
        (&exempt, "uris: [/open/*, /a], host: a.test", true),
        (&of_listener, "uri: /a, host: a.test", false),
        (&wildcard, "uri: /a, vars: [[scheme, \"==\", https]]", false),
        (&wildcard, "uri: /a, vars: [[scheme, \"==\", http]]", true),
        (&wildcard, "uri: /a, vars: [[ssl_client_verify, \"==\", SUCCESS]]", false),
        (&wildcard, "uri: /a, vars: [[ssl_client_verify, \"~=\", SUCCESS]]", true),
        (&wildcard, "uri: /a, vars: [[OR, [arg_a, \"==\", b], [https, \"==\", on]]]", true),
        (&wildcard, "uri: /a, vars: [[\"!OR\", [arg_a, \"==\", b], [scheme, \"==\", http]]]", false),
    ] {
        let said = said_of(
            &place,
            &format!(
                "listen: [\"127.0.0.1:0\"]\nlisteners: [{{ id: tls, address: \"127.0.0.1:9443\", tls: true }}]\n\
                 ssls: [{ssls}]\nroutes: [{{ {route}, UPSTREAM }}]"
            ),
        );
        assert!(!said.contains("is not known"), "{said}");
        let told = said.contains("client: clients without a certificate reach routes[0]");
        assert_eq!(told, is_open, "{ssls} {route}: {said}");
    }
}

/// One look is to be enough: what is missing is not found one by one.
#[test]
fn all_missing_files_are_named_at_once() {
    let place = TempDir::new();
    let said = said_of(
        &place,
        "ssls: [{ snis: [a.example], cert: a.crt, key: a.key, client: { ca: clients.pem } }]\n\
         upstreams:\n\
         - { id: 1, nodes_file: nodes.yaml }\n\
         - { id: 2, scheme: https, nodes: {}, tls: { client_cert: own.crt, client_key: own.key, ca: ca.pem } }\n",
    );
    for file in ["a.crt", "a.key", "clients.pem", "nodes.yaml", "own.crt", "own.key", "ca.pem"] {
        assert!(
            said.lines().any(|line| line.contains(&format!("`{file}` cannot be read: No such file"))),
            "{file}: {said}"
        );
    }
    assert!(said.contains("7 faults"), "{said}");
}
