use super::*;

fn no_files(pattern: &str) -> Result<Vec<(String, String)>, String> {
    Err(format!("{pattern} is not there"))
}

fn converted(text: &str) -> Converted {
    convert("nginx.conf", text, &no_files).expect("correct")
}

/// The findings, without the file's name.
fn findings(text: &str) -> Vec<String> {
    converted(text).findings.iter().map(|finding| finding.to_string().replace("nginx.conf:", "")).collect()
}

#[test]
fn a_reverse_proxy_reads_as_one_would_write_it() {
    let text = "\
events {}
http {
  upstream orders {
    least_conn;
    server 10.0.0.1:8080 weight=2;
    server 10.0.0.2:8080 backup;
  }
  server {
    listen 80;
    server_name shop.example;
    location /orders/ {
      proxy_pass http://orders/;
      proxy_set_header Host $host;
      proxy_set_header X-Tenant a;
      proxy_read_timeout 5s;
    }
  }
}
";
    let yaml = converted(text).yaml();
    assert_eq!(
        yaml,
        r#"# To be checked:
#   nginx.conf:11: behaves differently: `location /orders/`: `%2F` in a path is no slash; nginx decodes it before it chooses a location, and sends paths on as they came, not normalised; see `allow_encoded_slashes`

listen: ":80"
worker_processes: auto
client_max_body_size: "1m"
allow_encoded_slashes: true

upstreams:
  # nginx.conf:3: upstream orders
  - id: orders
    type: least_conn
    nodes:
      - { host: "10.0.0.1", port: 8080, weight: 2 }
      - { host: "10.0.0.2", port: 8080, weight: 1, priority: -1 }

routes:
  # nginx.conf:11: location /orders/
  - uri: /orders/*
    upstream_id: orders
    timeout: { connect: 60, send: 60, read: 5 }
    plugins:
      proxy-rewrite:
        regex_uri: ["^/orders/(.*)", /$1]
        headers: { set: { X-Tenant: a } }
  # nginx.conf:11: location /orders/
  - uri: /orders
    plugins: { redirect: { uri: /orders/$is_args$args, ret_code: 301 } }
"#
    );
}

#[test]
fn what_is_lost_is_told_with_its_place() {
    let text = "\
server {
  listen 80;
  location / { proxy_pass http://a; proxy_next_upstream error http_502 non_idempotent; proxy_cache_min_uses 2; error_page 502 /oops; }
  location /files { root /var/www; }
  location /var { proxy_pass http://$backend; }
}
";
    assert_eq!(
        findings(text),
        [
            "3: not converted: `proxy_next_upstream non_idempotent`: requests are not retried for these reasons",
            "3: not converted: `proxy_cache_min_uses 2`: the first response is kept already",
            "3: not converted: `error_page 502 /oops`: write `response-rewrite` with `vars: [[status, ...]]`",
            "4: not converted: `location /files`: static files are not served; the route answers with 404",
            "4: not converted: `root /var/www`: static files are not served; use a file server as an upstream",
            "5: not converted: `proxy_pass http://$backend`: a variable cannot select the upstream; use `traffic-split` \
             or routes",
        ]
    );
}

#[test]
fn a_cache_is_carried_over() {
    let text = "\
proxy_cache_path /var/cache keys_zone=assets:10m inactive=2h;
server {
  proxy_cache assets;
  location /a {
    proxy_pass http://a;
    proxy_cache_key $host$uri$cookie_lang;
    proxy_cache_valid 200 10m;
    proxy_cache_valid 404 1m;
    proxy_cache_use_stale error updating http_404;
    proxy_cache_bypass $arg_fresh;
    proxy_cache_lock on;
  }
  location /b { proxy_pass http://a; proxy_cache off; }
  location /c { proxy_pass http://a; }
}
";
    let yaml = converted(text).yaml();
    let plugin = "proxy-cache:
        cache_zone: assets
        cache_ttl: 60
        cache_http_status: [200, 404]
        cache_key: [$host$uri$cookie_lang]
        cache_bypass: [$arg_fresh]
        stale_if_error: 7200
        stale_while_revalidate: 7200";
    assert!(yaml.contains(plugin), "{yaml}");
    assert_eq!(yaml.matches("proxy-cache:").count(), 2, "{yaml}");
    assert_eq!(
        findings(text),
        [
            "9: not converted: `proxy_cache_use_stale error updating http_404`: old responses are used for 500, 502, 503 \
             and 504 only",
            "3: behaves differently: responses that say nothing about their lifetime are kept for a second; nginx does not \
             keep them",
            "7: behaves differently: `proxy_cache_valid`: one lifetime holds for all statuses, the shortest: 60 s",
        ]
    );
}

#[test]
fn settings_of_one_of_several_servers_are_told() {
    let text = "\
underscores_in_headers on;
server { underscores_in_headers on; access_log /var/log/a.log; location / { return 204; resolver 10.0.0.1; } }
server { underscores_in_headers off; listen 81; location / { return 204; } }
";
    let advice = "this is a setting of the whole node; write it there if all servers need it";
    let expected = [
        format!("2: not converted: `access_log /var/log/a.log`: {advice}"),
        format!("2: not converted: `resolver 10.0.0.1`: {advice}"),
        format!("3: not converted: `underscores_in_headers off`: {advice}"),
    ];
    assert_eq!(findings(text), expected);
}

#[test]
fn the_only_server_sets_up_the_node() {
    let text = "server { underscores_in_headers on; keepalive_timeout 5s; location / { return 204; access_log off; } }";
    let converted = converted(text);
    let yaml = converted.yaml();
    assert!(yaml.contains("underscores_in_headers: true\n") && yaml.contains("keepalive_timeout: \"5s\"\n"), "{yaml}");
    assert_eq!(findings(text).len(), 1, "{:?}", findings(text));
}

#[test]
fn an_upstream_that_is_used_in_two_ways_becomes_two() {
    let text = "\
upstream a { server 127.0.0.1:1; }
server {
  location /one { proxy_pass http://a; }
  location /two { proxy_pass http://a; proxy_set_header Host $host; }
  location /three { proxy_pass http://a; proxy_set_header Host $host; }
}
";
    let converted = converted(text);
    let ids: Vec<_> = converted.upstreams.iter().map(|item| item.members[0].1.clone()).collect();
    assert_eq!(ids, ["a", "a-2"].map(crate::yaml::Yaml::text));
}

#[test]
fn included_files_stand_where_they_are_included() {
    let include = |pattern: &str| match pattern {
        "conf.d/*.conf" => Ok(vec![("conf.d/a.conf".to_owned(), "server { location / { return 204; } }".to_owned())]),
        "loop.conf" => Ok(vec![("loop.conf".to_owned(), "include loop.conf;".to_owned())]),
        other => Err(format!("{other} is not there")),
    };
    let converted = convert("n", "http { include conf.d/*.conf; include mime.types; include gone; }", &include);
    let converted = converted.expect("correct");
    assert!(converted.yaml().contains("# conf.d/a.conf:1: location /"), "{}", converted.yaml());
    assert_eq!(converted.findings[0].to_string(), "n:1: not converted: `include gone`: gone is not there");
    let error = convert("n", "include loop.conf;", &include).expect_err("endless");
    assert!(error.text.contains("more than 16 levels deep"), "{error}");
}
