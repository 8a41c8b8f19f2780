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
        "{ _format_version: '3.0', plugins: [{ name: proxy-cache }], services: [{ host: a, routes: [{ name: r }] }] }";
    assert!(converted(text).yaml().contains("upstream_id: a"));
    assert!(findings(text)[0].starts_with("1: not converted: plugin `proxy-cache`"), "{:?}", findings(text));
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
