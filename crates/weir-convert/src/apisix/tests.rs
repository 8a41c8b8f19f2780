use super::*;

fn converted(text: &str) -> Converted {
    convert("config.yaml", text).expect("correct")
}

fn findings(text: &str) -> Vec<String> {
    converted(text).findings.iter().map(|finding| finding.to_string().replace("config.yaml:", "")).collect()
}

#[test]
fn a_node_with_etcd_reads_as_one_would_write_it() {
    let text = "\
apisix:
  node_listen: 9080
  ssl:
    enable: true
    listen: [{ port: 9443 }]
    ssl_trusted_certificate: /etc/ssl/ca.pem
  data_encryption:
    keyring: [0123456789abcdef]
nginx_config:
  worker_processes: auto
  http:
    enable_access_log: false
    keepalive_timeout: 60s
    real_ip_from: [10.0.0.0/8, 'unix:']
deployment:
  role: traditional
  role_traditional:
    config_provider: etcd
  admin:
    admin_key:
      - name: ops
        key: a-key-of-our-own-0123456789
        role: admin
    allow_admin: [127.0.0.0/24]
  etcd:
    host: ['https://etcd-1:2379']
    prefix: /apisix
    user: weir
    password: secret
";
    assert_eq!(
        converted(text).yaml(),
        r#"# To be checked:
#   config.yaml:14: not converted: `nginx_config.http.real_ip_from`: the client's address is that of the connection until the store has a global rule with `real-ip: { source: http_x_real_ip, trusted_addresses: ["10.0.0.0/8"], recursive: false }`

listen: [":9080", { address: ":9443", tls: true }]
worker_processes: auto
keepalive_timeout: "60s"
underscores_in_headers: true
allow_encoded_slashes: true
ssl_trusted_certificate: /etc/ssl/ca.pem
admin:
  listen: "127.0.0.1:9180"
  keys: [{ name: ops, key: a-key-of-our-own-0123456789, role: admin }]
store:
  etcd:
    hosts: [https://etcd-1:2379]
    prefix: /apisix
    user: weir
    password: secret
    tls: { ca: /etc/ssl/ca.pem }
data_encryption: { keyring: ["0123456789abcdef"] }
trusted_addresses: ["10.0.0.0/8"]

routes: []
"#
    );
}

#[test]
fn a_node_with_a_file_includes_it() {
    let yaml = converted("deployment: { role: data_plane, role_data_plane: { config_provider: yaml } }\n").yaml();
    assert!(yaml.contains("include: [apisix.yaml]\n"), "{yaml}");
    assert!(!yaml.contains("admin:") && !yaml.contains("store:"), "{yaml}");
}

#[test]
fn the_address_that_a_trusted_peer_names_is_that_of_the_client() {
    let told = |http: &str| {
        let text = format!(
            "nginx_config: {{ http: {{ enable_access_log: false, {http} }} }}\nplugins: [cors]\ndeployment: {{ role: data_plane, role_data_plane: {{ config_provider: yaml }} }}\n"
        );
        // On one line, without the marks of maps, so that it does not matter how long they are.
        let yaml = converted(&text).yaml().replace(['{', '}'], " ").split_whitespace().collect::<Vec<_>>().join(" ");
        (yaml, findings(&text))
    };
    let (yaml, found) =
        told("real_ip_header: X-Forwarded-For, real_ip_recursive: 'on', real_ip_from: [127.0.0.1, 10.1.0.0/16]");
    let rule = "source: http_x_forwarded_for trusted_addresses: [\"127.0.0.1\", \"10.1.0.0/16\"] recursive: true";
    assert!(yaml.contains("global_rules:") && yaml.contains(rule), "{yaml}");
    assert!(yaml.contains("trusted_addresses: [\"127.0.0.1\", \"10.1.0.0/16\"] global_rules"), "{yaml}");
    assert!(yaml.contains("plugins: [ name: cors , name: real-ip ]"), "{yaml}");
    assert_eq!(found, [""; 0]);
    let (yaml, _) = told("real_ip_header: X-Forwarded-For");
    let rule = "source: http_x_forwarded_for, trusted_addresses: [\"127.0.0.1\"], recursive: false";
    assert!(yaml.contains(rule), "{yaml}");
    let (yaml, found) = told("real_ip_header: proxy_protocol, real_ip_from: [10.1.0.0/16]");
    assert!(yaml.contains("trusted_addresses: [\"10.1.0.0/16\"]") && !yaml.contains("real-ip"), "{yaml}");
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_file_without_an_admin_api_and_with_http3_needs_no_words() {
    let text = "\
apisix:
  enable_admin: false
  ssl: { listen: [{ port: 9443, enable_quic: true }] }
nginx_config: { http: { enable_access_log: false } }
deployment: { role: data_plane, role_data_plane: { config_provider: yaml } }
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains(r#"{ address: ":9443", tls: true, http3: true }"#), "{yaml}");
    assert_eq!(findings(text), [""; 0]);
}

#[test]
fn a_relative_access_log_needs_its_folder() {
    let text = "\
nginx_config: { http: { access_log_format: '$remote_addr' } }
deployment: { role: data_plane, role_data_plane: { config_provider: yaml } }
";
    let found = findings(text);
    assert!(found[0].contains("`access_log: logs/access.log`: relative to the directory"), "{found:?}");
}

#[test]
fn unconverted_settings_are_reported_with_their_line() {
    let text = "\
apisix:
  node_listen: [{ port: 80, enable_http2: true }]
  delete_uri_tail_slash: true
  stream_proxy: { tcp: [{ addr: 9100, proxy_protocol_to_upstream: true }], udp: [9200] }
  lru: { secret: { ttl: 300 } }
nginx_config:
  http_configuration_snippet: gzip on;
  http:
    enable_access_log: false
    upstream: { keepalive: 320 }
  unheard_of: 1
deployment:
  role_traditional: { config_provider: yaml }
plugin_attr:
  prometheus:
    export_addr: { port: 9091 }
  skywalking: { service_name: x }
";
    assert_eq!(
        findings(text),
        [
            "3: not converted: `apisix.delete_uri_tail_slash`: write routes for both paths",
            "4: not converted: the PROXY header for endpoints is a matter of the upstream: write `proxy_protocol: v1` there",
            "7: not converted: `nginx_config.http_configuration_snippet`: configuration of nginx is not read",
            "10: not converted: `nginx_config.http.upstream`: set `keepalive_pool` of the upstreams",
            "11: not converted: `nginx_config.unheard_of`: there is no such setting",
            "16: not converted: `plugin_attr.prometheus`: metrics are at `/metrics` of the address `status`",
            "17: not converted: `plugin_attr.skywalking`: the attributes of plugins are options of the plugin, or \
             `plugin_metadata`",
        ]
    );
}

#[test]
fn ports_of_stream_routes_become_listeners() {
    let text = "\
apisix:
  proxy_mode: http&stream
  ssl: { enable: false }
  proxy_protocol: { enable_tcp_pp: true }
  stream_proxy:
    tcp: [9100, \"127.0.0.1:9101\", { addr: 9102, tls: true, proxy_protocol: false }, \"9103-9104\"]
";
    let converted = converted(text);
    for entry in [
        "{ address: \":9100\", protocol: tcp, proxy_protocol: true }",
        "{ address: \"127.0.0.1:9101\", protocol: tcp, proxy_protocol: true }",
        "{ address: \":9102\", protocol: tcp, tls: true }",
        "{ address: \":9103\", protocol: tcp, proxy_protocol: true }",
        "{ address: \":9104\", protocol: tcp, proxy_protocol: true }",
    ] {
        assert!(converted.yaml().contains(entry), "{entry}: {}", converted.yaml());
    }
    assert!(!findings(text).iter().any(|finding| finding.contains("not converted")), "{:?}", findings(text));
}

#[test]
fn an_admin_api_that_is_off_stays_off() {
    let text = "\
apisix: { enable_admin: false }
deployment:
  admin: { admin_key: [{ name: admin, key: a-key-of-our-own-0123456789, role: admin }], allow_admin: [0.0.0.0/0] }
  etcd: { host: ['http://127.0.0.1:2379'] }
";
    let converted = converted(text);
    assert!(!converted.yaml().contains("admin:") && converted.yaml().contains("store:"), "{}", converted.yaml());
    assert!(!findings(text).iter().any(|finding| finding.contains("admin")), "{:?}", findings(text));
    let on = super::convert("config.yaml", &text.replace("false", "true")).expect("correct");
    assert!(on.yaml().contains("listen: \"0.0.0.0:9180\""), "{}", on.yaml());
    assert!(!on.findings.iter().any(|finding| finding.text.contains("enable_admin")), "{:?}", on.findings);
}

#[test]
fn each_public_key_is_replaced_by_one_of_its_own() {
    let text = "\
deployment:
  admin:
    admin_key:
      - { name: admin, key: edd1c9f034335f136f87ad84b625c8f1, role: admin }
      - { name: viewer, key: 4054f7cf07e344346cd3f287985e76a2, role: viewer }
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("key: \"${{WEIR_ADMIN_KEY}}\", role: admin"), "{yaml}");
    assert!(yaml.contains("key: \"${{WEIR_VIEWER_KEY}}\", role: viewer"), "{yaml}");
}

#[test]
fn an_address_has_http3_and_its_family_for_streams_as_for_requests() {
    let text = "apisix: { enable_ipv6: false, node_listen: [21080], ssl: { listen: [{ port: 21443, enable_http3: true, backlog: 5 }] }, stream_proxy: { tcp: [21432, '10.0.0.1:5'], udp: ['*:21053'] } }\n";
    let yaml = converted(text).yaml();
    for wanted in
        ["\"0.0.0.0:21443\", tls: true, http3: true", "\"0.0.0.0:21432\"", "\"10.0.0.1:5\"", "\"0.0.0.0:21053\""]
    {
        assert!(yaml.contains(wanted), "{wanted}: {yaml}");
    }
    assert!(findings(text).join("\n").contains("1: not converted: `backlog` of an address"), "{:?}", findings(text));
}

#[test]
fn an_admin_api_that_a_data_plane_has_not_is_not_reported() {
    for provider in ["yaml", "etcd"] {
        let text = format!(
            "deployment: {{ role: data_plane, role_data_plane: {{ config_provider: {provider} }}, admin: {{ admin_key: [{{ name: a, key: b, role: admin }}] }} }}\n"
        );
        assert!(!converted(&text).yaml().contains("admin:"), "{}", converted(&text).yaml());
        assert!(!findings(&text).iter().any(|finding| finding.contains("deployment.admin")), "{:?}", findings(&text));
    }
}

#[test]
fn servers_of_dns_discovery_become_the_resolver() {
    let text = "deployment: { role_traditional: { config_provider: yaml } }\ndiscovery: { dns: { servers: ['127.0.0.1:8600'], order: [SRV] }, nacos: { host: [] } }\n";
    assert!(converted(text).yaml().contains("dns_resolver: [\"127.0.0.1:8600\"]"), "{}", converted(text).yaml());
    let found = findings(text).join("\n");
    assert!(found.contains("`discovery.dns.servers`: asked for all names"), "{found}");
    assert!(found.contains("`discovery.dns.order`: a `service_name` without a port"), "{found}");
    assert!(found.contains("`discovery.nacos`: there is no such registry"), "{found}");
    let both = format!("apisix: {{ dns_resolver: [127.0.0.1] }}\n{text}");
    assert!(converted(&both).yaml().contains("dns_resolver: [\"127.0.0.1\"]"), "{}", converted(&both).yaml());
    assert!(findings(&both).join("\n").contains("not converted: `discovery.dns.servers`"), "{:?}", findings(&both));
}

#[test]
fn public_keys_are_not_carried_over_and_an_open_admin_api_is_named() {
    let text = "\
deployment:
  admin:
    admin_key: [{ name: admin, key: edd1c9f034335f136f87ad84b625c8f1, role: admin }]
    allow_admin: [0.0.0.0/0]
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("key: \"${{WEIR_ADMIN_KEY}}\"") && !yaml.contains("edd1c9"), "{yaml}");
    assert!(yaml.contains("listen: \"0.0.0.0:9180\""), "{yaml}");
    let found = findings(text).join("\n");
    assert!(found.contains("an admin key that is empty or public"), "{found}");
    assert!(found.contains("`deployment.admin.allow_admin`"), "{found}");
}

#[test]
fn another_file_is_refused_with_the_right_thing_to_do() {
    for (text, want) in [
        ("routes: [{ uri: / }]\n", "config.yaml:1: is an `apisix.yaml` with resources"),
        ("services: []\nfoo: 1\n", "config.yaml:1: is an `apisix.yaml` with resources"),
        // A docker-compose.yaml.
        ("services: { web: {} }\n", "config.yaml:1: is no `config.yaml` of APISIX"),
        ("http: {}\n", "config.yaml:1: is no `config.yaml` of APISIX"),
    ] {
        let error = convert("config.yaml", text).expect_err("wrong").to_string();
        assert!(error.starts_with(want), "{error}");
    }
}

#[test]
fn without_ipv6_the_addresses_are_those_of_ipv4() {
    let text = "apisix:\n  enable_ipv6: false\n  node_listen: [80, { ip: 10.0.0.1, port: 81 }]\n  ssl: { listen: [{ port: 443 }] }\n";
    let yaml = converted(text).yaml();
    for address in ["0.0.0.0:80", "10.0.0.1:81", "0.0.0.0:443"] {
        assert!(yaml.contains(address), "{yaml}");
    }
    let both = converted(&text.replace("false", "true")).yaml();
    assert!(both.contains(":80") && !both.contains("0.0.0.0"), "{both}");
}
