use crate::nginx::convert;
use crate::output::Converted;

fn converted(text: &str) -> Converted {
    let no_files = |pattern: &str| Err(format!("{pattern} is not there"));
    convert("nginx.conf", text, &no_files).expect("correct")
}

/// The findings, without the file's name.
fn findings(text: &str) -> Vec<String> {
    converted(text).findings.iter().map(|finding| finding.to_string().replace("nginx.conf:", "")).collect()
}

/// The stream routes, each on a line.
fn routes(text: &str) -> Vec<String> {
    let route = |route: &crate::output::ConvertedResource| crate::yaml::Yaml::Map(route.members.clone()).flow();
    converted(text).stream_routes.iter().map(route).collect()
}

#[test]
fn a_database_behind_a_stream_server_reads_as_one_would_write_it() {
    let text = "\
stream {
  upstream db {
    least_conn;
    server 10.0.0.1:5432 weight=2;
    server 10.0.0.2:5432 backup;
  }
  server {
    listen 5432;
    allow 10.0.0.0/8;
    deny all;
    proxy_connect_timeout 5s;
    proxy_timeout 8h;
    proxy_protocol on;
    proxy_next_upstream_tries 2;
    proxy_pass db;
  }
  server { listen 127.0.0.1:53 udp; proxy_pass 10.0.0.3:53; }
}
";
    assert_eq!(
        converted(text).yaml(),
        r#"listen: [{ address: ":5432", protocol: tcp }, { address: "127.0.0.1:53", protocol: udp }]
worker_processes: auto

upstreams:
  # nginx.conf:2: upstream db
  - id: db
    type: least_conn
    nodes:
      - { host: "10.0.0.1", port: 5432, weight: 2 }
      - { host: "10.0.0.2", port: 5432, weight: 1, priority: -1 }
    scheme: tcp
    proxy_protocol: v1
    retries: 1
    timeout: { connect: 5, send: 60, read: 60 }

stream_routes:
  # nginx.conf:8: listen 5432
  - id: listen-5432
    server_port: 5432
    idle_timeout: 28800
    plugins:
      ip-restriction: { whitelist: ["10.0.0.0/8"] }
    upstream_id: db
  # nginx.conf:17: listen 127.0.0.1:53 udp
  - id: listen-127-0-0-1-53-udp
    server_port: 53
    idle_timeout: 600
    upstream: { nodes: { "10.0.0.3:53": 1 }, scheme: udp }
"#
    );
}

#[test]
fn a_map_of_server_names_becomes_a_stream_route_for_each_target() {
    let text = "\
stream {
  map $ssl_preread_server_name $backend {
    hostnames;
    bank.example 10.0.0.1:443;
    .shop.example shop;
    *.bank.example 10.0.0.1:443;
    ~^a 10.0.0.9:443;
    closed.example \"\";
    default 10.0.0.3:443;
  }
  upstream shop { server 10.0.0.2:443; }
  server { listen 443; ssl_preread on; proxy_pass $backend; }
}
";
    assert_eq!(
        routes(text),
        [
            "{ id: listen-443, server_port: 443, snis: [bank.example, \"*.bank.example\"], upstream: { nodes: { \"10.0.0.1:443\": 1 }, scheme: tcp } }",
            "{ id: listen-443-2, server_port: 443, snis: [shop.example, \"*.shop.example\"], upstream_id: shop }",
            "{ id: listen-443-3, server_port: 443, sni: closed.example, plugins: { ip-restriction: { whitelist: [\"255.255.255.255\"] } }, \
             upstream: { nodes: { \"10.0.0.3:443\": 1 }, scheme: tcp } }",
            "{ id: listen-443-4, server_port: 443, upstream: { nodes: { \"10.0.0.3:443\": 1 }, scheme: tcp } }",
        ]
    );
    assert!(converted(text).yaml().starts_with("# To be checked:"));
    assert!(converted(text).yaml().contains("listen: { address: \":443\", protocol: tcp, tls_passthrough: true }\n"));
    assert_eq!(
        findings(text),
        ["7: not converted: `~^a 10.0.0.9:443`: a server name is a name, or a wildcard such as `*.example.com`"]
    );
}

#[test]
fn servers_at_one_address_are_told_apart_by_name() {
    let text = "\
stream {
  server { listen 443 ssl; server_name a.example; ssl_certificate a.pem; ssl_certificate_key a.key; proxy_pass 10.0.0.1:1; }
  server { listen 443 ssl; server_name *.b.example; ssl_certificate b.pem; ssl_certificate_key b.key; proxy_pass 10.0.0.2:1; }
}
";
    assert_eq!(
        routes(text),
        [
            "{ id: listen-443-ssl, server_port: 443, sni: a.example, upstream: { nodes: { \"10.0.0.1:1\": 1 }, scheme: tcp } }",
            "{ id: listen-443-ssl-2, server_port: 443, upstream: { nodes: { \"10.0.0.1:1\": 1 }, scheme: tcp } }",
            "{ id: listen-443-ssl-3, server_port: 443, sni: \"*.b.example\", upstream: { nodes: { \"10.0.0.2:1\": 1 }, scheme: tcp } }",
        ]
    );
    let yaml = converted(text).yaml();
    assert!(yaml.contains("listen: { address: \":443\", protocol: tcp, tls: true }\n"), "{yaml}");
    assert!(yaml.contains("snis: [\"*.b.example\"]\n    cert: b.pem\n"), "{yaml}");
}

#[test]
fn addresses_of_one_port_are_told_apart() {
    let text = "\
stream {
  server { listen 127.0.0.1:1; proxy_pass 10.0.0.1:1; }
  server { listen [::1]:1; proxy_pass 10.0.0.2:1; }
}
";
    assert_eq!(
        routes(text),
        [
            "{ id: listen-127-0-0-1-1, server_port: 1, server_addr: \"127.0.0.1\", upstream: { nodes: { \"10.0.0.1:1\": 1 }, scheme: tcp } }",
            "{ id: listen-1-1, server_port: 1, server_addr: \"::1\", upstream: { nodes: { \"10.0.0.2:1\": 1 }, scheme: tcp } }",
        ]
    );
}

#[test]
fn tls_to_the_endpoint_is_carried_over() {
    let text = "\
stream {
  server {
    listen 127.0.0.1:6379;
    proxy_ssl on;
    proxy_ssl_verify on;
    proxy_ssl_trusted_certificate ca.pem;
    proxy_ssl_name cache.example;
    proxy_next_upstream off;
    proxy_pass 10.0.0.1:6380;
  }
}
";
    assert_eq!(
        routes(text),
        [
            "{ id: listen-127-0-0-1-6379, server_port: 6379, upstream: { nodes: { \"10.0.0.1:6380\": 1 }, scheme: tls, retries: 0, \
          tls: { verify: true, ca: ca.pem, server_name: cache.example } } }"
        ]
    );
    assert_eq!(findings(text), [""; 0]);
}

#[test]
fn directives_that_a_stream_cannot_carry_are_reported_with_their_line() {
    let text = "\
stream {
  log_format basic '$remote_addr';
  server { listen 9000-9010; proxy_pass 10.0.0.1:1; }
  server { listen unix:/a; proxy_pass 10.0.0.1:1; }
  server { listen 1; return $remote_addr; }
  server { listen 2; proxy_pass $upstream; proxy_download_rate 1k; }
  server { listen 3; proxy_pass unix:/b; }
  server { listen 4 proxy_protocol; proxy_pass 10.0.0.1:1; js_access a.b; }
}
";
    assert_eq!(
        findings(text),
        [
            "2: not converted: `log_format basic $remote_addr`: streams are logged as `enable_access_log` says, with requests",
            "3: not converted: `listen 9000-9010`: write a `listen` with one port for each",
            "4: not converted: `listen unix:/a`: Unix sockets are not supported",
            "5: not converted: a server of `stream` without `proxy_pass`: its addresses are not listened on",
            "5: not converted: `return $remote_addr`: a stream route answers nothing itself",
            "6: not converted: `proxy_pass $upstream`: only a `map` of `$ssl_preread_server_name` can select the upstream",
            "6: not converted: `proxy_download_rate 1k`: the rate of a stream is not limited",
            "7: not converted: `unix:/b` is neither `host:port` nor the name of an upstream",
            "8: not converted: `listen 4 proxy_protocol`: only peers in `trusted_addresses` may connect; there is no \
             `set_real_ip_from` that names them",
            "8: not converted: `js_access a.b`: there is no counterpart; the stream routes that it applies to refuse all clients",
        ]
    );
    assert_eq!(
        routes(text),
        [
            "{ id: listen-4-proxy-protocol, server_port: 4, plugins: { ip-restriction: { whitelist: [\"255.255.255.255\"] } }, \
          upstream: { nodes: { \"10.0.0.1:1\": 1 }, scheme: tcp } }"
        ]
    );
}

#[test]
fn certificates_of_clients_are_demanded_or_the_route_is_closed() {
    let server = |more: &str| {
        let text = format!(
            "stream {{ server {{ listen 1 ssl; ssl_certificate a; ssl_certificate_key b; ssl_verify_client on; {more} \
             proxy_pass 10.0.0.1:1; }} }}"
        );
        (routes(&text)[0].contains("255.255.255.255"), converted(&text).yaml().contains("client: { ca: ca.pem }"))
    };
    assert_eq!(server(""), (true, false));
    assert!(server("ssl_client_certificate ca.pem;").0);
    assert_eq!(server("ssl_client_certificate ca.pem; server_name a.example;"), (false, true));
}

#[test]
fn peers_that_send_the_proxy_header_are_trusted() {
    let text = "\
stream {
  set_real_ip_from 10.0.0.1;
  server { listen 25 proxy_protocol; set_real_ip_from 10.0.0.0/24; proxy_pass 10.0.2.1:25; }
}
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("trusted_addresses: [\"10.0.0.1\", \"10.0.0.0/24\"]\n"), "{yaml}");
    assert!(yaml.contains("proxy_protocol: true"), "{yaml}");
}
