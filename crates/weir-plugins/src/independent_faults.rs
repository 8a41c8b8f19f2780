//! Faults of one plugin's options that do not depend on each other are told together, also those that its schema cannot express.

use serde_json::Value;
use weir_plugin::{Build, ConfigError};

use crate::REGISTRY;

/// Options with several faults that do not depend on each other and that the schema cannot express, and the places of the faults.
const WITH_SEVERAL_FAULTS: &[(&str, &str, &[&str])] = &[
    ("acl", "{ allow_labels: { a: [] }, deny_labels: { b: [] } }", &["allow_labels.a", "deny_labels.b"]),
    (
        "ai-prompt-guard",
        "{ allow_patterns: ['(', a], deny_patterns: [b, '(', ')'] }",
        &["allow_patterns[0]", "deny_patterns[1]", "deny_patterns[2]"],
    ),
    (
        "ai-prompt-template",
        "{ templates: [{ name: a, template: { model: '{{ngx}}', messages: [{ role: user, content: '{% end %}' }] } }, \
         { name: a, template: { model: '{{ngx}}' } }] }",
        &[
            "templates[1].name",
            "templates[0].template.model",
            "templates[0].template.messages[0].content",
            "templates[1].template.model",
        ],
    ),
    ("attach-consumer-label", "{ headers: { 'a b': x } }", &["headers.a b", "headers.a b"]),
    (
        "authz-keycloak",
        "{ client_id: a, lazy_load_paths: true, permissions: [a], access_denied_redirect_uri: \"a\\nb\", \
         resource_registration_endpoint: 'no' }",
        &["", "permissions", "resource_registration_endpoint", "access_denied_redirect_uri"],
    ),
    (
        "aws-lambda",
        "{ function_uri: 'no', authorization: { apikey: \"a\\nb\", iam: { accesskey: 'a b', secretkey: s, service: 'c d' } } }",
        &["function_uri", "authorization.apikey", "authorization.iam.accesskey", "authorization.iam.service"],
    ),
    (
        "azure-functions",
        "{ function_uri: 'no', authorization: { apikey: \"a\\nb\", clientid: \"a\\nb\" } }",
        &["function_uri", "authorization.apikey", "authorization.clientid"],
    ),
    ("basic-auth", "{ realm: '\"', anonymous_consumer: unknown }", &["anonymous_consumer", "realm"]),
    (
        "body-transformer",
        "{ request: { template: '{{ngx}}', content_type: \"a\\nb\" }, response: { template: '{% end %}' } }",
        &["request.content_type", "request.template", "response.template"],
    ),
    ("brotli", "{ lgwin: 9, lgblock: 9 }", &["lgwin", "lgblock"]),
    (
        "clickhouse-logger",
        "{ endpoint_addr: 'no url', user: \"a\\nb\", password: '', database: d, logtable: 'a;b' }",
        &["logtable", "endpoint_addr[0]", "user"],
    ),
    (
        "consumer-restriction",
        "{ allowed_by_methods: [{ user: a, methods: [X] }, { user: b, methods: [Z] }] }",
        &["allowed_by_methods[0].methods", "allowed_by_methods[1].methods"],
    ),
    (
        "content-filter",
        "{ rules: [{ in: header, action: mask, pattern: '(' }] }",
        &["rules[0].name", "rules[0].pattern"],
    ),
    (
        "cors",
        "{ allow_methods: \"a\\nb\", allow_origins: 'x', timing_allow_origins: 'y' }",
        &["allow_methods", "allow_origins", "timing_allow_origins"],
    ),
    (
        "data-mask",
        "{ request: [{ type: body, name: p, action: regex, regex: '(' }] }",
        &["request[0].regex", "request[0].value", "request[0].body_format"],
    ),
    ("datadog", "{ constant_tags: ['a,b', 'c:'] }", &["constant_tags[0]", "constant_tags[1]"]),
    ("echo", "{ headers: { 'a b': c, X-A: \"b\\nc\" } }", &["", "headers.X-A", "headers.a b"]),
    (
        "elasticsearch-logger",
        "{ endpoint_addr: 'no url', headers: { 'a b': c }, field: { index: 'a{%' }, template: { name: _a } }",
        &["field.index", "endpoint_addr[0]", "headers.a b", "template.name"],
    ),
    (
        "error-page",
        "{ error_404: { content_type: '' }, error_5xx: { content_type: \"a\\nb\" } }",
        &["error_404.content_type", "error_5xx.content_type"],
    ),
    (
        "ext-authz",
        "{ grpc_service: { uri: 'no', authority: 'a b' }, allowed_headers: ['a b', 'c d'], remove_client_headers: ['e f'] }",
        &[
            "grpc_service.uri",
            "grpc_service.authority",
            "allowed_headers[0]",
            "allowed_headers[1]",
            "remove_client_headers[0]",
        ],
    ),
    (
        "ext-proc",
        "{ grpc_service: { uri: 'no', authority: 'a b' }, forward_rules: { allowed_headers: ['a b'], disallowed_headers: ['c d'] }, \
         mutation_rules: { trusted_headers: [X-Own] }, max_message_timeout: 1, request_attributes: { a: $post_arg_b } }",
        &[
            "max_message_timeout",
            "grpc_service.uri",
            "grpc_service.authority",
            "request_attributes.a",
            "forward_rules.allowed_headers[0]",
            "forward_rules.disallowed_headers[0]",
            "mutation_rules.trusted_headers[0]",
        ],
    ),
    (
        "fault-injection",
        "{ abort: { http_status: 500, headers: { 'a b': c }, vars: [[[a]]] }, delay: { duration: 1, vars: [[[b]]] } }",
        &["abort.headers.a b", "abort.vars[0][0]", "delay.vars[0][0]"],
    ),
    ("file-logger", "{ path: a/, match: [[a]] }", &["path", "match[0]"]),
    (
        "forward-auth",
        "{ uri: 'no', signin_url: 'no', signin_redirect_param: '!', upstream_headers: ['a b', 'c d'] }",
        &["signin_url", "uri", "signin_redirect_param", "upstream_headers[0]", "upstream_headers[1]"],
    ),
    (
        "google-cloud-logging",
        "{ auth_config: { client_email: a, private_key: b, project_id: c, token_uri: 'no', entries_uri: 'no' } }",
        &["auth_config.private_key", "auth_config.token_uri", "auth_config.entries_uri"],
    ),
    (
        "grpc-transcode",
        "{ proto: 'message A {} service S {}', service: A, method: a, pb_option: [enum_as_name, enum_as_value], status_detail_type: B }",
        &["pb_option[1]", "status_detail_type", "service"],
    ),
    ("hmac-auth", "{ signed_headers: ['a b', 'c d'] }", &["signed_headers[0]", "signed_headers[1]"]),
    ("http-logger", "{ uri: 'no', auth_header: \"a\\nb\" }", &["uri", "auth_header"]),
    ("ip-restriction", "{ whitelist: [a, b] }", &["whitelist[0]", "whitelist[1]"]),
    ("jwe-decrypt", "{ header: 'a b', forward_header: 'c d' }", &["header", "forward_header"]),
    ("jwt-auth", "{ header: 'a b', realm: '\"' }", &["header", "realm"]),
    (
        "kafka-logger",
        "{ brokers: [{ host: 'a b', port: 1 }, { host: 'c d', port: 1 }], kafka_topic: 'a b', required_acks: 1, meta_format: origin }",
        &["kafka_topic", "meta_format", "brokers[0].host", "brokers[1].host"],
    ),
    (
        "graphql-limit-count",
        "{ count: 0, time_window: x, key: a, key_type: var_combination, sync_interval: 1 }",
        &["sync_interval", "count", "time_window", "key"],
    ),
    ("key-auth", "{ header: 'a b', anonymous_consumer: unknown }", &["header", "anonymous_consumer"]),
    (
        "lago",
        "{ endpoint_addrs: ['no url'], token: \"a\\nb\", event_transaction_id: a, event_subscription_id: b, event_code: c }",
        &["endpoint_addrs[0]", "token"],
    ),
    ("ldap-auth", "{ base_dn: a, ldap_uri: 'http://a', uid: 'a b' }", &["base_dn", "uid", "ldap_uri"]),
    (
        "limit-conn",
        "{ conn: 0, burst: x, default_conn_delay: 1, key: a, key_type: var_combination }",
        &["conn", "burst", "key"],
    ),
    (
        "limit-count",
        "{ count: 0, time_window: x, key: a, key_type: var_combination, sync_interval: 1 }",
        &["sync_interval", "count", "time_window", "key"],
    ),
    ("limit-events", "{ count: 0, time_window: x, key: a }", &["count", "time_window"]),
    ("limit-req", "{ rate: 0.000001, burst: 0, key: a, key_type: constant }", &["rate", "key_type"]),
    (
        "loggly",
        "{ customer_token: 'a]', tags: ['tag=a'], severity_map: { '99': err } }",
        &["customer_token", "tags[0]", "severity_map.99"],
    ),
    (
        "loki-logger",
        "{ endpoint_addrs: ['no url'], headers: { 'a b': c }, tenant_id: \"a\\nb\" }",
        &["endpoint_addrs[0]", "headers.a b", "tenant_id"],
    ),
    ("message-size", "{ request: { min: 2, max: 1 }, response: { min: 2, max: 1 } }", &["request.max", "response.max"]),
    (
        "mocking",
        "{ content_type: \"a\\nb\", response_headers: { 'a b': c } }",
        &["content_type", "", "response_headers.a b"],
    ),
    (
        "mtls-auth",
        "{ consumer_by: [username], skip_consumer_lookup: true, realm: '\"', anonymous_consumer: unknown }",
        &["consumer_by", "anonymous_consumer", "realm"],
    ),
    (
        "multi-auth",
        "{ auth_plugins: [{ cors: {} }, { key-auth: { header: 'a b' } }] }",
        &["auth_plugins[0].cors", "auth_plugins[1].key-auth.header"],
    ),
    (
        "oas-validator",
        "{ spec: '{openapi: 3.1.0, paths: {\"/a{\": {}, /b: {get: {parameters: [{in: query}]}}}}', spec_url: 'http://h.example' }",
        &["spec_url", "spec", "spec"],
    ),
    ("opa", "{ host: 'no', policy: p, send_headers_upstream: ['a b'] }", &["host", "send_headers_upstream[0]"]),
    (
        "openfunction",
        "{ function_uri: 'no', authorization: { service_token: t } }",
        &["authorization.service_token", "function_uri"],
    ),
    (
        "openid-connect",
        "{ client_id: a, client_secret: b, accept_none_alg: true, realm: '\"' }",
        &["accept_none_alg", "realm", "discovery"],
    ),
    (
        "openwhisk",
        "{ api_host: 'no', service_token: t, namespace: 'a/b', action: '..' }",
        &["api_host", "service_token", "namespace", "action"],
    ),
    ("otlp-logger", "{ endpoint_addrs: ['no url'], headers: { 'a b': c } }", &["endpoint_addrs[0]", "headers.a b"]),
    (
        "proxy-cache",
        "{ cache_strategy: disk, cache_key: [''], purge_from: [a] }",
        &["cache_strategy", "cache_key[0]", "purge_from[0]"],
    ),
    ("proxy-mirror", "{ host: 'grpc://a', path: a }", &["path", "host"]),
    (
        "proxy-rewrite",
        "{ method: GETS, host: 'a b', headers: { remove: ['a b', 'c d'] } }",
        &["method", "host", "headers.remove[0]", "headers.remove[1]"],
    ),
    (
        "real-ip",
        "{ source: remote_addr, trusted_addresses: [a, b] }",
        &["trusted_addresses[0]", "trusted_addresses[1]"],
    ),
    ("redirect", "{ uri: /a, https_port: 1, http_to_https_code: 301 }", &["https_port", "http_to_https_code"]),
    ("request-id", "{ header_name: 'a b', range_id: { char_set: ' 23456' } }", &["range_id.char_set", "header_name"]),
    (
        "request-validation",
        "{ header_schema: { type: 1 }, body_schema: { type: 1 } }",
        &["header_schema.type", "body_schema.type"],
    ),
    (
        "response-rewrite",
        "{ body: '!', body_base64: true, headers: { set: { 'a b': c } }, vars: [[a]] }",
        &["headers.set.a b", "body", "vars[0]"],
    ),
    (
        "reverse-rewrite",
        "{ redirects: [{ to: a }, { regex: '(', to: \"a\\nb\" }], cookie_flags: [{ name: a, regex: b, flags: [secure, nosecure] }] }",
        &["cookie_flags[0].flags", "redirects[0]", "redirects[1].regex", "redirects[1].to", "cookie_flags[0]"],
    ),
    (
        "skywalking-logger",
        "{ endpoint_addr: 'no url', include_req_body: true, include_req_body_expr: [[a]] }",
        &["include_req_body_expr[0]", "endpoint_addr"],
    ),
    (
        "sls-logger",
        "{ host: 'a b', port: 1, project: '', logstore: l, access_key_id: i, access_key_secret: \"a\\nb\" }",
        &["project", "access_key_secret", "host"],
    ),
    (
        "splunk-hec-logging",
        "{ endpoint: { uri: 'no', token: \"a\\nb\", channel: \"a\\nb\" } }",
        &["endpoint.uri[0]", "endpoint.token", "endpoint.channel"],
    ),
    ("sse-fanout", "{ headers: ['a b'], replay_to_new: 3, window_events: 2 }", &["headers[0]", "replay_to_new"]),
    ("syslog", "{ host: 'a b', port: 1, sock_type: udp, tls: true }", &["tls", "host"]),
    ("tcp-logger", "{ host: 'a b', port: 1, tls: true, tls_options: 'a b' }", &["tls_options", "host"]),
    (
        "tencent-cloud-cls",
        "{ cls_host: 'a b', cls_topic: t, secret_id: 'a&b', secret_key: k }",
        &["secret_id", "cls_host"],
    ),
    (
        "time-restriction",
        "{ time_zone: here, allow: [{ from: a, to: b }] }",
        &["time_zone", "allow[0].from", "allow[0].to"],
    ),
    (
        "traffic-label",
        "{ rules: [{ match: [[a]], actions: [{ set_headers: { 'a b': c } }, { set_headers: { Host: c } }] }] }",
        &["rules[0].match[0]", "rules[0].actions[0].set_headers.a b", "rules[0].actions[1].set_headers"],
    ),
    (
        "traffic-split",
        "{ rules: [{ match: [{ vars: [[a]] }, { vars: [[b]] }] }] }",
        &["rules[0].match[0].vars[0]", "rules[0].match[1].vars[0]"],
    ),
    (
        "udp-logger",
        "{ host: 'a b', port: 1, include_req_body: true, include_req_body_expr: [[a]] }",
        &["include_req_body_expr[0]", "host"],
    ),
    ("uri-blocker", "{ block_rules: ['(', ')'] }", &["block_rules[0]", "block_rules[1]"]),
    (
        "websocket-policy",
        "{ client: { schema: { type: 1 }, max_message_size: 99999999 }, upstream: { schema: { type: 1 } } }",
        &["client.max_message_size", "client.schema.type", "upstream.schema.type"],
    ),
    (
        "workflow",
        "{ rules: [{ case: [[a]], actions: [['no', {}], [return, { code: 1 }]] }] }",
        &["rules[0].case[0]", "rules[0].actions[0][1]", "rules[0].actions[1][1].code"],
    ),
];

#[test]
fn independent_faults_of_a_plugin_are_told_together() {
    let mut wrong = Vec::new();
    for (name, options, places) in WITH_SEVERAL_FAULTS {
        let entry = REGISTRY.find(name).expect("a plugin of this name");
        let options: Value = serde_saphyr::from_str(options).expect("valid YAML");
        let error = (entry.build)(&options, &mut Build::default()).err();
        let told: Vec<String> = error.into_iter().flat_map(ConfigError::each).map(|fault| fault.path).collect();
        if told != *places {
            wrong.push(format!("{name}: {told:?} in place of {places:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
