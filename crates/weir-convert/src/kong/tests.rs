use super::*;
use crate::FindingKind;

fn converted(text: &str) -> Converted {
    convert("kong.yml", text).expect("correct")
}

fn findings(text: &str) -> Vec<String> {
    converted(text).findings.iter().map(|finding| finding.to_string().replace("kong.yml:", "")).collect()
}

#[test]
fn a_service_with_a_guarded_route_reads_as_one_would_write_it() {
    let text = "\
_format_version: \"3.0\"
services:
  - name: orders
    url: http://10.0.0.1:8080/v1
    routes:
      - name: list
        paths: [/orders]
        methods: [GET]
        plugins:
          - name: key-auth
consumers:
  - username: jack
    keyauth_credentials:
      - key: jacks-key
";
    assert_eq!(
        converted(text).yaml(),
        r#"listen: ":8000"
allow_encoded_slashes: true

upstreams:
  # kong.yml:3: service
  - id: orders
    nodes: { "10.0.0.1:8080": 1 }
    pass_host: node
    retries: 5

consumers:
  # kong.yml:12: consumer
  - username: jack
  # kong.yml:14: credential
  - id: jack/credentials/1
    plugins: { key-auth: { key: jacks-key } }

routes:
  # kong.yml:6: route list
  - id: route-list
    uris: [/orders*]
    methods: [GET]
    priority: 1000
    upstream_id: orders
    plugins:
      key-auth: { header: apikey, query: apikey, hide_credentials: false }
      proxy-rewrite: { regex_uri: ["^/orders$", /v1, "^/orders/?(.*)", /v1/$1] }
"#
    );
}

#[test]
fn a_route_whose_access_control_is_not_converted_is_closed() {
    for plugin in ["hmac-auth", "oauth2", "my-own-plugin"] {
        let text = format!(
            "_format_version: '3.0'\nplugins: [{{ name: {plugin} }}]\nservices:\n- {{ name: a, host: a, routes: [{{ paths: [/a] }}] }}\n"
        );
        let converted = converted(&text);
        let yaml = converted.yaml();
        assert!(yaml.contains("http_status: 503") && !yaml.contains("upstream_id"), "{yaml}");
        assert_eq!(converted.findings[0].kind, FindingKind::Lost);
        assert_eq!(converted.findings[0].place.line, 2);
    }
}

#[test]
fn a_route_with_two_plugins_that_authenticate_is_closed_whatever_its_name_is() {
    // The name is that of a plugin whose loss does no harm.
    let text = "{ _format_version: '3.0', services: [{ host: a, routes: [{ name: prometheus, paths: [/a], \
                plugins: [{ name: key-auth }, { name: basic-auth }] }] }] }";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("http_status: 503") && !yaml.contains("upstream_id"), "{yaml}");
    let told = "1: not converted: the route has several plugins that authenticate; it answers with 503";
    assert!(findings(text).contains(&told.to_owned()), "{:?}", findings(text));
}

#[test]
fn a_harmless_plugin_that_is_lost_leaves_the_route_open() {
    let text =
        "{ _format_version: '3.0', plugins: [{ name: syslog }], services: [{ host: a, routes: [{ name: r }] }] }";
    assert!(converted(text).yaml().contains("upstream_id: a"));
    assert!(
        findings(text)[0].starts_with("1: not converted: plugin `syslog`: it writes to the log"),
        "{:?}",
        findings(text)
    );
}

#[test]
fn a_route_for_https_alone_does_not_serve_plain_http() {
    let text = "_format_version: '3.0'\nservices:\n- { name: a, host: a, routes: [{ protocols: [https], https_redirect_status_code: 301 }] }\n";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("https://$host$request_uri"), "{yaml}");
    assert!(yaml.contains("[[scheme, ==, https]]") || yaml.contains("[[scheme, \"==\", https]]"), "{yaml}");
}

#[test]
fn invalid_kong_configuration_is_refused_with_its_line() {
    assert!(convert("k", "services: []").expect_err("no version").to_string().starts_with("k:1: there is no"));
    assert!(convert("k", "a: 1\na: 2\n").expect_err("twice").to_string().contains("k:2: the key `a` stands twice"));
    assert!(convert("k", &"[".repeat(1_000)).is_err());
    assert!(convert("k", &"- ".repeat(1_000)).is_err());
}

#[test]
fn a_guard_that_no_route_can_be_found_for_closes_all_and_one_that_is_off_gives_way() {
    let text = |plugins: &str| {
        format!(
            "_format_version: '3.0'\nplugins: [{plugins}]\nservices:\n- {{ name: a, host: a, routes: [{{ name: r, plugins: [{{ name: key-auth, enabled: false }}] }}] }}\n"
        )
    };
    let yaml = converted(&text("{ name: key-auth, service: 6f6a }")).yaml();
    assert!(!yaml.contains("upstream_id"), "{yaml}");
    let yaml = converted(&text("{ name: key-auth }")).yaml();
    assert!(yaml.contains("key-auth: { header: apikey"), "{yaml}");
}

#[test]
fn services_of_one_host_have_an_upstream_each_also_on_one_line() {
    let text = "{ _format_version: '3.0', services: [{ host: a, port: 1, routes: [{ name: r }, { name: s }] }, \
                { host: a, port: 2, routes: [{ name: t }] }] }";
    let ids: Vec<_> = converted(text).upstreams.iter().map(|item| item.members[0].1.clone()).collect();
    assert_eq!(ids, ["a", "a-2"].map(Yaml::text));
}

#[test]
fn groups_of_consumers_become_a_label() {
    let text = |consumer: &str, more: &str| {
        format!(
            "_format_version: '3.0'\nplugins: [{{ name: acl, config: {{ allow: [staff], hide_groups_header: false }} }}]\n\
             services:\n- {{ name: a, host: a, routes: [{{ name: r }}] }}\n\
             consumers:\n- {{ username: jack, acls: [{consumer}], keyauth_credentials: [{{ key: k }}] }}\n{more}"
        )
    };
    let yaml = converted(&text("{ group: staff }, { group: ops }", "")).yaml();
    for line in [
        "labels: { groups: \"staff,ops\" }",
        "allow_labels: { groups: [staff] }",
        "rejected_msg: You cannot consume this service",
        "attach-consumer-label: { headers: { X-Consumer-Groups: $groups } }",
        "jack/credentials/1",
    ] {
        assert!(yaml.contains(line), "{line}: {yaml}");
    }
    let yaml = converted(&text("{ group: 'a, b' }", "")).yaml();
    assert!(!yaml.contains("jack/credentials/1"), "a group that is lost may be one that is denied: {yaml}");
    let yaml = converted(&text("", "acls: [{ consumer: jack, group: staff }]\n")).yaml();
    assert!(yaml.contains("labels: { groups: staff }"), "{yaml}");
    let yaml = converted(&text("", "acls: [{ consumer: joe, group: staff }]\n")).yaml();
    assert!(!yaml.contains("upstream_id"), "{yaml}");
}

#[test]
fn a_consumer_whose_own_rules_are_lost_has_no_credentials() {
    let text = "_format_version: '3.0'\nconsumers:\n- { username: jack, plugins: [{ name: ip-restriction }], keyauth_credentials: [{ key: k }] }\n";
    assert!(!converted(text).yaml().contains("key-auth"));
}

#[test]
fn a_route_for_a_field_of_the_load_balancer_names_the_setting_that_it_needs() {
    let text = "{ _format_version: '3.0', services: [{ name: a, host: a, routes: [{ name: r, headers: { X-Forwarded-Proto: [https] } }] }] }";
    assert!(
        findings(text).iter().any(|found| found.contains("`$http_x_forwarded_proto` counts only")),
        "{:?}",
        findings(text)
    );
    let other = text.replace("X-Forwarded-Proto", "X-Tenant");
    assert!(!findings(&other).iter().any(|found| found.contains("counts only")));
}

#[test]
fn members_of_a_group_that_may_refuse_them_have_no_credentials() {
    let text = |group: &str, consumer: &str, more: &str| {
        format!(
            "_format_version: '3.0'\nconsumer_groups:\n- {{ name: blocked, id: g1{group} }}\nconsumers:\n- {{ username: jack, keyauth_credentials: [{{ key: k }}]{consumer} }}\n- {{ username: ann, keyauth_credentials: [{{ key: other }}] }}\n{more}"
        )
    };
    let refusing = ", plugins: [{ name: request-termination, config: { status_code: 403 } }]";
    for text in [
        text(refusing, ", groups: [{ name: blocked }]", ""),
        text(refusing, ", groups: [blocked]", ""),
        text(&format!("{refusing}, consumers: [{{ username: jack }}]"), "", ""),
        text(&format!("{refusing}, consumers: [jack]"), "", ""),
        text(refusing, "", "consumer_group_consumers: [{ consumer: jack, consumer_group: g1 }]\n"),
        text("", ", groups: [{ id: g1 }]", "consumer_group_plugins: [{ consumer_group: blocked, name: acl }]\n"),
        text("", ", groups: [{ name: elsewhere }]", ""),
    ] {
        let (yaml, found) = (converted(&text).yaml(), findings(&text));
        assert!(!yaml.contains("key: k }") && yaml.contains("key: other }"), "{text}: {yaml}");
        assert!(
            found
                .iter()
                .any(|found| found.contains("credentials of `jack`: left out, as plugins of the consumer group")),
            "{found:?}"
        );
    }
    for limiting in ["rate-limiting-advanced", "request-termination, enabled: false"] {
        let text = text(&format!(", plugins: [{{ name: {limiting} }}]"), ", groups: [{ name: blocked }]", "");
        assert!(converted(&text).yaml().contains("key: k }"), "{text}");
        let is_told =
            findings(&text).iter().any(|found| found.contains("of the consumer group `blocked` is not converted"));
        assert_eq!(is_told, !limiting.contains("enabled"), "{text}");
    }
}

#[test]
fn options_at_their_defaults_do_not_close_a_route_and_others_do() {
    let text = |config: &str| {
        format!(
            "_format_version: '3.0'\nplugins: [{{ name: jwt, config: {{ {config} }} }}]\nservices:\n- {{ name: a, host: a, routes: [{{ name: r }}] }}\n"
        )
    };
    let yaml = converted(&text("header_names: [authorization], maximum_expiration: 0, cookie_names: []")).yaml();
    assert!(yaml.contains("jwt-auth") && yaml.contains("upstream_id"), "{yaml}");
    let yaml = converted(&text("maximum_expiration: 60")).yaml();
    assert!(!yaml.contains("upstream_id"), "{yaml}");
}

#[test]
fn keys_that_expire_and_hashes_of_passwords_are_left_out() {
    let hash = "a".repeat(40);
    let text = format!(
        "_format_version: '3.0'\nconsumers:\n- username: jack\n  keyauth_credentials: [{{ key: k, ttl: 60 }}]\n  \
         basicauth_credentials: [{{ username: j, password: {hash} }}]\n"
    );
    assert!(!converted(&text).yaml().contains("credentials/1"));
    assert_eq!(findings(&text).len(), 2);
}

#[test]
fn credentials_and_groups_at_the_top_belong_to_their_consumers() {
    let text = "\
_format_version: '3.0'
consumers:
- username: ann
acls:
- { consumer: ann, group: staff }
keyauth_credentials:
- { consumer: ann, key: a-key }
- { consumer: bob, key: lost }
services:
- name: a
  url: http://a
  unheard_of: 1
  routes:
  - paths: [/a]
    plugins:
    - { name: key-auth }
    - { name: acl, config: { allow: [staff] } }
    - { name: cors, config: { origins: ['https://a.example'], credentials: true } }
    - name: request-transformer
      config: { add: { headers: ['X-A: 1', 'X-B:2'] }, replace: { headers: ['X-A: 1'] }, remove: { headers: [X-C] } }
";
    let yaml = converted(text).yaml();
    for written in [
        "labels: { groups: staff }",
        "key-auth: { key: a-key }",
        "headers: { set: { X-A: \"1\", X-B: \"2\" }, remove: [X-C] }",
        "allow_credential: true",
    ] {
        assert!(yaml.contains(written), "{written}: {yaml}");
    }
    let found = findings(text).join("\n");
    for told in [
        "8: not converted: `keyauth_credentials`: its consumer is not in this file",
        "12: not converted: `unheard_of` of a service",
        "`add`: the field is set also if there is one already",
    ] {
        assert!(found.contains(told), "{told}: {found}");
    }
}

#[test]
fn loggers_metrics_and_traces_have_equivalents() {
    let text = "\
_format_version: '3.0'
plugins:
- { name: http-log, config: { http_endpoint: 'https://logs.example/in', timeout: 2500, headers: { Authorization: Bearer x }, queue: { max_batch_size: 20, max_coalescing_delay: 3 } } }
- { name: file-log, config: { path: /var/log/kong.log, reopen: true } }
- { name: tcp-log, config: { host: 10.0.0.9, port: 5044, tls: true, tls_sni: logs.example } }
- { name: udp-log, config: { host: 10.0.0.9, port: 514 } }
- { name: prometheus, config: { per_consumer: true, status_code_metrics: true } }
- { name: zipkin, config: { http_endpoint: 'http://zipkin:9411/api/v2/spans', sample_ratio: 0.5 } }
services:
- { name: a, host: a, routes: [{ name: r, paths: [/r] }] }
";
    let yaml = converted(text).yaml();
    for wanted in [
        "uri: https://logs.example/in",
        "timeout: 3",
        "batch_max_size: 20",
        "inactive_timeout: 3",
        "auth_header: Bearer x",
        "file-logger: { path: /var/log/kong.log }",
        "tls_options: logs.example",
        "port: 514",
        "prometheus: { prefer_name: true }",
        "sample_ratio: 0.5",
    ] {
        assert!(yaml.contains(wanted), "{wanted}: {yaml}");
    }
    let found = findings(text);
    assert!(!found.iter().any(|finding| finding.contains("not converted")), "{found:?}");
    assert!(
        found.iter().any(|finding| finding.starts_with("3:") && finding.contains("certificate is verified")),
        "{found:?}"
    );
}

#[test]
fn a_logger_that_would_lose_a_setting_is_reported_with_it() {
    for (config, why) in [
        ("name: http-log, config: { http_endpoint: 'http://a', method: PUT }", "records are sent by POST"),
        ("name: http-log, config: { http_endpoint: 'http://a', headers: { X-A: b } }", "only `Authorization` is sent"),
        ("name: file-log, config: { path: a, custom_fields_by_lua: { a: 'return 1' } }", "`custom_fields_by_lua`"),
        (
            "name: zipkin, config: { http_endpoint: 'http://a', header_type: w3c }",
            "`opentelemetry` reads `traceparent`",
        ),
        ("name: syslog, config: {}", "it writes to the log of the system"),
        ("name: proxy-cache, config: { strategy: memory }", "which content types are kept"),
    ] {
        let text = format!(
            "{{ _format_version: '3.0', plugins: [{{ {config} }}], services: [{{ name: a, host: a, routes: [{{ name: r }}] }}] }}"
        );
        assert!(findings(&text)[0].contains(why), "{why}: {:?}", findings(&text));
        assert!(converted(&text).yaml().contains("upstream_id: a"), "{}", converted(&text).yaml());
    }
}

/// The findings and the result for one plugin, as it stands in a list.
fn of_plugin(plugin: &str) -> (Vec<String>, String) {
    let text = format!(
        "_format_version: '3.0'\nplugins:\n- {plugin}\nservices:\n- {{ name: a, host: a, routes: [{{ name: r, paths: [/r] }}] }}\n"
    );
    (findings(&text), converted(&text).yaml())
}

#[test]
fn plugins_for_bodies_have_equivalents() {
    let spec = r#"{"openapi": "3.0.3", "servers": [{"url": "https://a.example/"}], "paths": {}}"#;
    for (plugin, wanted, told) in [
        (
            "{ name: ai-prompt-decorator, config: { prompts: { prepend: [{ role: system, content: a }], append: [{ content: b }] } } }",
            "ai-prompt-decorator: { prepend: [{ role: system, content: a }], append: [{ role: system, content: b }] }",
            "without `messages`",
        ),
        (
            "{ name: ai-prompt-guard, config: { deny_patterns: ['(?i)secret'], allow_all_conversation_history: true, max_request_body_size: 8192 } }",
            "ai-prompt-guard: { match_all_roles: false, match_all_conversation_history: false, fail_mode: error, deny_patterns: [(?i)secret], max_req_body_size: 8192 }",
            "with other prompts",
        ),
        (
            "{ name: azure-functions, config: { appname: shop, functionname: orders, apikey: k, https: true, timeout: 5000 } }",
            "azure-functions: { function_uri: \"https://shop.azurewebsites.net/api/orders\", ssl_verify: false, timeout: 5000, authorization: { apikey: k } }",
            "is appended",
        ),
        ("{ name: grpc-web, config: { pass_stripped_path: false } }", "grpc-web: {}", ""),
        (
            r#"{ name: request-validator, config: { version: draft4, body_schema: '{"type": "object", "required": ["a"]}', allowed_content_types: [application/json] } }"#,
            r#"body_schema: { $schema: "http://json-schema.org/draft-04/schema#", type: object, required: [a] }, rejected_msg: "request body doesn't conform to schema""#,
            "of another type",
        ),
        (
            r#"{ name: request-validator, config: { version: draft4, body_schema: '{"$schema": "http://json-schema.org/draft-07/schema#"}' } }"#,
            r#"body_schema: { $schema: "http://json-schema.org/draft-04/schema#" }, rejected_msg"#,
            "of another type",
        ),
        (
            "{ name: ai-prompt-guard, config: { allow_patterns: ['[^a]\\^b\\$'] } }",
            r"allow_patterns: ['[^a]\^b\$'], max_req_body_size: 8192",
            "with other prompts",
        ),
        (
            "{ name: ai-prompt-decorator, config: { max_request_body_size: 0, prompts: { append: [{ content: a }] } } }",
            "append: [{ role: system, content: a }] }",
            "without `messages`",
        ),
        (
            &format!(
                "{{ name: oas-validation, config: {{ api_spec: '{spec}', validate_request_header_params: false, validate_response_body: true, verbose_response: true }} }}"
            ),
            "skip_request_header_validation: true, verbose_errors: true, validate_responses: refuse",
            "1 MiB",
        ),
        (
            "{ name: loggly, config: { key: t, host: logs-01.loggly.com, port: 514, log_level: info } }",
            "loggly: { customer_token: t, tags: [kong] }",
            "`log_format`",
        ),
    ] {
        let (found, yaml) = of_plugin(plugin);
        // However maps and lists are laid out, and values quoted.
        let plain = |text: &str| {
            let words = text.split(|char: char| char.is_whitespace() || "\"'{}[],".contains(char));
            words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        };
        assert!(plain(&yaml).contains(&plain(wanted)), "{wanted}: {yaml}");
        assert!(yaml.contains("upstream_id"), "{yaml}");
        assert!(!found.iter().any(|finding| finding.contains("not converted")), "{found:?}");
        assert!(told.is_empty() && found.is_empty() || found.iter().any(|finding| finding.contains(told)), "{found:?}");
    }
}

#[test]
fn plugins_for_bodies_that_would_lose_a_check_close_their_route() {
    let served = r#"{"openapi": "3.0.3", "servers": [{"url": "/v1"}], "paths": {}}"#;
    for (plugin, why) in [
        ("{ name: ai-prompt-decorator, config: { prompts: { prepend: [] } } }", "it has no `prompts`"),
        (
            "{ name: ai-prompt-decorator, config: { prompts: { prepend: [{ content: a }] }, llm_format: gemini } }",
            "OpenAI's chat",
        ),
        ("{ name: ai-prompt-guard, config: { deny_patterns: ['(?=a)'] } }", "look-around"),
        ("{ name: ai-prompt-guard, config: { deny_patterns: [a], text: b } }", "its option `text`"),
        ("{ name: ai-prompt-guard, config: { allow_patterns: ['^a'] } }", "in another order"),
        ("{ name: ai-prompt-guard, config: { deny_patterns: ['a$'] } }", "in another order"),
        ("{ name: ai-prompt-guard, config: { deny_patterns: ['\\Aa'] } }", "in another order"),
        ("{ name: azure-functions, config: { appname: shop } }", "`functionname`"),
        ("{ name: grpc-web, config: { proto: /a.proto } }", "`grpc-transcode`"),
        ("{ name: grpc-web, config: { allow_origin_header: 'https://a' } }", "see `cors`"),
        ("{ name: request-validator, config: { body_schema: '[{}]' } }", "Kong's own form"),
        ("{ name: request-validator, config: { version: draft7, body_schema: '[{}]' } }", "no object"),
        (
            "{ name: request-validator, config: { version: draft7, body_schema: '{}', parameter_schema: [{}, { a: 1 }] } }",
            "`parameter_schema`",
        ),
        (
            "{ name: request-validator, config: { version: draft7, body_schema: '{}', allowed_content_types: [text/plain] } }",
            "than JSON",
        ),
        (
            "{ name: request-validator, config: { version: draft7, body_schema: '{}', allowed_content_types: [application/json-patch+json] } }",
            "than JSON",
        ),
        ("{ name: oas-validation, config: { api_spec: '%7B%22openapi%22' } }", "percent-encoded"),
        ("{ name: oas-validation, config: { api_spec: '{\"swagger\": \"2.0\"}' } }", "not of OpenAPI 3"),
        (&format!("{{ name: oas-validation, config: {{ api_spec: '{served}' }} }}"), "`servers` with paths"),
        (
            r#"{ name: oas-validation, config: { api_spec: '{"openapi": "3.1.0", "paths": {"/a": {"servers": [{"url": "/v1"}]}}}' } }"#,
            "`servers` with paths",
        ),
        (
            r#"{ name: oas-validation, config: { api_spec: '{"openapi": "3.1.0", "paths": {"/a": {"get": {"servers": [{"url": "https://h/v1"}]}}}}' } }"#,
            "`servers` with paths",
        ),
        (
            &format!(
                "{{ name: oas-validation, config: {{ api_spec: '{served}', include_base_path: true, query_parameter_check: true }} }}"
            ),
            "parameters that the definition has not",
        ),
        ("{ name: aws-lambda, config: { function_name: f } }", "write `aws-lambda` with the URL"),
        ("{ name: exit-transformer, config: { functions: [a] } }", "`error-page`"),
    ] {
        let (found, yaml) = of_plugin(plugin);
        assert!(found.iter().any(|finding| finding.contains(why)), "{why}: {found:?}");
        assert!(yaml.contains("http_status: 503") && !yaml.contains("upstream_id"), "{plugin}: {yaml}");
    }
}

#[test]
fn a_redirect_keeps_the_path_if_it_did() {
    let yaml = |config: &str| {
        converted(&format!(
            "{{ _format_version: '3.0', services: [{{ name: a, host: a, routes: [{{ name: r, plugins: [{{ name: redirect, config: {{ {config} }} }}] }}] }}] }}"
        ))
        .yaml()
    };
    assert!(yaml("location: 'https://b.example/x'").contains("redirect: { uri: https://b.example/x, ret_code: 301 }"));
    let kept = yaml("location: 'https://b.example/x', keep_incoming_path: true, status_code: 308");
    assert!(kept.contains("uri: https://b.example$request_uri, ret_code: 308"), "{kept}");
    assert!(yaml("location: 'https://b.example/$a'").contains("http_status: 503"));
}

#[test]
fn calls_of_grpc_keep_their_path() {
    for path in ["/pkg.Svc", "~/pkg.S.*"] {
        let text = format!(
            "{{ _format_version: '3.0', services: [{{ name: g, url: 'grpc://g:50051', routes: [{{ name: r, protocols: [grpc, grpcs], paths: ['{path}'] }}] }}] }}"
        );
        assert!(!converted(&text).yaml().contains("proxy-rewrite"), "{}", converted(&text).yaml());
        let http = text.replace("protocols: [grpc, grpcs], ", "").replace("grpc:", "http:");
        assert!(converted(&http).yaml().contains("proxy-rewrite"), "{}", converted(&http).yaml());
    }
}

#[test]
fn a_custom_id_is_a_label() {
    let text = "{ _format_version: '3.0', consumers: [{ username: jack, custom_id: c-1, acls: [{ group: staff }] }] }";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("labels: { custom_id: c-1, groups: staff }"), "{yaml}");
    assert_eq!(findings(text), [""; 0]);
}

#[test]
fn hosts_with_a_wildcard_at_the_end_and_server_names_are_conditions() {
    let route = |conditions: &str| {
        let text = format!(
            "{{ _format_version: '3.0', services: [{{ name: a, host: a, routes: [{{ name: r, {conditions} }}] }}] }}"
        );
        (converted(&text).yaml(), findings(&text))
    };
    let (yaml, found) = route("hosts: ['partner.*', a.example]");
    assert!(yaml.contains(r"^partner\..+$|^a\.example$") && yaml.contains("upstream_id: a"), "{yaml}");
    assert!(found[0].contains("behaves differently: `hosts` with a wildcard"), "{found:?}");
    let (yaml, _) = route("hosts: ['a.example:8080']");
    assert!(yaml.contains("hosts: [a.example]") && yaml.contains("http_status: 503"), "{yaml}");
    let (yaml, found) = route("snis: [a.example], protocols: [https]");
    assert!(yaml.contains("[ssl_server_name, in, [a.example]]"), "{yaml}");
    assert!(!found.iter().any(|finding| finding.contains("snis")), "{found:?}");
}

/// Routes with `mtls-auth`, whose authorities are these, in one file.
fn with_certificates(authorities: &[&str], rest: &str) -> String {
    let route = |(number, ids): (usize, &&str)| {
        format!(
            "  - {{ name: r{number}, service: {{ name: s }}, paths: [/{number}], plugins: [{{ name: mtls-auth, config: {{ ca_certificates: [{ids}] }} }}] }}\n"
        )
    };
    let routes: String = authorities.iter().enumerate().map(route).collect();
    format!("_format_version: \"3.0\"\nservices: [{{ name: s, url: http://10.0.0.1 }}]\nroutes:\n{routes}{rest}")
}

#[test]
fn client_certificates_become_credentials_and_a_demand_of_the_certificate() {
    let rest = "ca_certificates: [{ id: one, cert: AUTHORITY }]\n\
                certificates: [{ cert: CERT, key: KEY, snis: [a.example] }]\n\
                consumers: [{ username: jack, mtls_auth_credentials: [{ subject_name: jack.example }, { subject_name: j, ca_certificate: { id: one } }] }]\n";
    let text = with_certificates(&["one"], rest);
    let yaml = converted(&text).yaml();
    assert!(yaml.contains("mtls-auth: { consumer_by: [username, custom_id] }"), "{yaml}");
    assert!(yaml.contains("client:") && yaml.contains("AUTHORITY") && yaml.contains("mode: any"), "{yaml}");
    assert!(yaml.contains("mtls-auth: { subject_name: jack.example }"), "{yaml}");
    assert!(yaml.contains("mtls-auth: { subject_name: j }"), "{yaml}");
    let found = findings(&text);
    assert!(!found.iter().any(|line| line.contains("ca_certificates")), "{found:?}");
}

/// A consumer that is found by its own name needs no credential, so leaving those out would not keep it out.
#[test]
fn no_consumer_is_found_by_its_name_if_something_of_one_is_lost() {
    for (lost, consumers) in [
        ("plugins", "{ username: jack, plugins: [{ name: ip-restriction, config: { allow: [10.0.0.0/8] } }] }"),
        ("groups", "{ username: jack, acls: [{ group: bad group }] }"),
        (
            "a credential",
            "{ username: jack, mtls_auth_credentials: [{ subject_name: jim, ca_certificate: { id: two } }] }, { username: jim }",
        ),
    ] {
        let rest = format!("ca_certificates: [{{ id: one, cert: A }}]\nconsumers: [{consumers}]\n");
        let text = with_certificates(&["one"], &rest);
        let (yaml, found) = (converted(&text).yaml(), findings(&text));
        assert!(!yaml.contains("mtls-auth:") && !yaml.contains("subject_name"), "{lost}: {yaml}");
        let is_closed = |line: &String| line.contains("it finds consumers by their names") && line.contains("503");
        assert!(found.iter().any(is_closed), "{lost}: {found:?}");
        let text = text.replace("ca_certificates: [one]", "ca_certificates: [one], consumer_by: []");
        assert!(converted(&text).yaml().contains("mtls-auth: {}"), "{lost}: with credentials alone it is open");
    }
}

#[test]
fn a_route_whose_client_certificates_are_for_other_authorities_is_closed() {
    let both = "ca_certificates: [{ id: one, cert: A }, { id: two, cert: B }]\n";
    for (authorities, rest) in [(&["one", "two"][..], both), (&["one"], ""), (&[""], both)] {
        let text = with_certificates(authorities, rest);
        let found = findings(&text);
        let is_closed =
            |line: &&String| line.contains("the plugin `mtls-auth`: its `ca_certificates`") && line.contains("503");
        assert_eq!(found.iter().filter(is_closed).count(), authorities.len(), "{found:?}");
    }
    let found = findings(&with_certificates(&["one"], both));
    assert!(found.iter().any(|line| line.contains("clients are not asked for certificates, and refused")), "{found:?}");
    let strict = "services: [{ name: s, url: http://10.0.0.1, routes: [{ name: r, paths: [/], plugins: [{ name: mtls-auth, \
                  config: { ca_certificates: [one], revocation_check_mode: STRICT } }] }] }]\n";
    let found = findings(&format!("_format_version: \"3.0\"\n{strict}{both}"));
    assert!(found.iter().any(|line| line.contains("`revocation_check_mode` is not converted")), "{found:?}");
}

#[test]
fn allowed_types_of_a_request_validator_are_required_as_kong_does() {
    let patterns = |options: &str| {
        let text = format!("{{ version: draft7, body_schema: '{{}}', {options} }}");
        let config = crate::document::parse("test", &text).expect("it is YAML");
        let (_, converted) = super::bodies::converted(&config, "request-validator").expect("its name").expect("valid");
        let (_, crate::yaml::Yaml::Map(options)) = converted else { panic!("a map") };
        let yaml = format!("{:?}", options.first());
        assert!(yaml.contains("header_schema") && yaml.contains("Content-Type"), "{yaml}");
        let start = yaml.find("\"^(").expect("a pattern") + 1;
        let end = yaml[start..].find(")$\"").expect("its end") + start + 2;
        let pattern = yaml[start..end].replace("\\\"", "\"").replace("\\\\", "\\").replace("\\t", "\t");
        regex::Regex::new(&pattern).expect("an expression")
    };
    let kinds = [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
        "application/json-patch+json",
        "text/plain",
    ];
    for (options, allowed) in [
        ("verbose_response: true", [true, true, false, false, false, false]),
        ("content_type_parameter_validation: false", [true, true, true, true, false, false]),
        ("allowed_content_types: ['application/json; charset=utf-8']", [false, false, true, true, false, false]),
    ] {
        let pattern = patterns(options);
        assert_eq!(kinds.map(|kind| pattern.is_match(kind)), allowed, "{options}: {pattern}");
    }
}

/// The options of `limit-count`, or the finding that there is none.
fn limit(config: &str, more: &str) -> String {
    let text = format!(
        "_format_version: '3.0'\nplugins: [{{ name: rate-limiting, config: {{ {config} }} }}{more}]\n\
         services:\n- {{ name: a, host: a, routes: [{{ name: r, paths: [/] }}] }}\n"
    );
    let yaml = converted(&text).yaml().replace(['{', '}', '"'], " ");
    let plain = yaml.split_whitespace().collect::<Vec<_>>().join(" ");
    plain.split_once("limit-count: ").map_or_else(|| findings(&text).join("\n"), |(_, options)| options.to_owned())
}

#[test]
fn several_windows_are_rules_of_one_limit() {
    let rules = |key: &str| {
        format!(
            "rules: - count: 5, time_window: 1, key: second {key} - count: 90, time_window: 2592000, key: month {key} rejected_code: 429"
        )
    };
    let windows = "second: 5, month: 90";
    assert_eq!(limit(windows, ""), rules("$remote_addr"));
    assert!(limit(&format!("{windows}, limit_by: ip"), ", { name: key-auth }").starts_with(&rules("$remote_addr")));
    assert!(limit(windows, ", { name: key-auth }").starts_with(&rules("$consumer_name")));
    let without = ", { name: mtls-auth, config: { ca_certificates: [c], skip_consumer_lookup: true } }]\n\
                   ca_certificates: [{ id: c, cert: 'a certificate' }";
    assert!(limit(windows, without).starts_with(&rules("$remote_addr")), "{}", limit(windows, without));
    let header = limit(&format!("{windows}, limit_by: header, header_name: X-Key"), "");
    assert!(header.contains("several windows by a header field"), "{header}");
}

#[test]
fn limits_are_counted_in_the_same_redis() {
    let limited = limit(
        "minute: 5, limit_by: header, header_name: X-Key, policy: redis, redis: { host: r, port: 7, password: p, database: 2, ssl: true }",
        "",
    );
    let expected = "count: 5 time_window: 60 key: http_x_key rejected_code: 429 policy: redis redis_host: r redis_port: 7 \
                    redis_password: p redis_database: 2 redis_ssl: true redis_ssl_verify: false allow_degradation: true";
    assert_eq!(limited.replace(',', ""), expected);
    let older = limit("minute: 5, policy: redis, redis_host: r, redis_ssl: false, fault_tolerant: false", "");
    assert!(older.contains("redis_host: r") && older.contains("allow_degradation: false"), "{older}");
    for (config, told) in [
        ("minute: 5, policy: redis", "it has no server of Redis"),
        ("minute: 5, policy: redis, redis: { host: r, password: '{vault://env/p}' }", "options from a vault"),
        ("minute: 5, policy: redis, redis_host: r, redis_username: '{vault://env/u}'", "options from a vault"),
        ("minute: 5, policy: redis, redis: { host: r, port: '{vault://env/port}' }", "options from a vault"),
        ("minute: 5, policy: redis, redis: { host: r, cluster_nodes: [{ ip: a }] }", "several servers of Redis"),
    ] {
        assert!(limit(config, "").contains(told), "{config}: {}", limit(config, ""));
    }
}
