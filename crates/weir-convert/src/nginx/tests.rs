use super::*;
use crate::yaml::Yaml;

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

/// The `vars` of all routes.
fn vars(converted: &Converted) -> Vec<String> {
    let vars = |route: &crate::output::ConvertedResource| {
        route.members.iter().find(|(name, _)| name == "vars").map_or(String::new(), |(_, vars)| vars.flow())
    };
    converted.routes.iter().map(vars).collect()
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
  - id: location-orders
    uri: /orders/*
    upstream_id: orders
    timeout: { connect: 60, send: 60, read: 5 }
    merge_slashes: true
    plugins:
      proxy-rewrite:
        regex_uri: ["^/orders/(.*)", /$1]
        headers: { set: { X-Tenant: a } }
      reverse-rewrite:
        redirects: [{ from: http://orders/, to: /orders/ }]
  # nginx.conf:11: location /orders/
  - id: location-orders-2
    uri: /orders
    plugins: { redirect: { uri: /orders/$is_args$args, ret_code: 301 } }
"#
    );
}

#[test]
fn directives_that_are_not_converted_are_reported_with_their_line() {
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
            "3: not converted: `error_page 502 /oops`: write `error-page` with the text of a page for each status",
            "4: not converted: `location /files`: static files are not served; the route answers with 404",
            "4: not converted: `root /var/www`: static files are not served; use a file server as an upstream",
            "5: not converted: `proxy_pass http://$backend`: a variable cannot select the upstream; write a route with \
             `vars` and an upstream for each value of `$backend`",
            "5: not converted: `proxy_pass http://$backend`: the route answers with 502",
        ]
    );
}

#[test]
fn error_pages_that_are_texts_are_carried_over() {
    let text = "\
default_type text/html;
server {
  location / { proxy_pass http://a; proxy_redirect off; }
  location /api/ { proxy_pass http://a/api/; proxy_redirect off; proxy_intercept_errors on; error_page 404 429 = @no; }
  error_page 404 /404.html;
  error_page 500 502 404 /down.html;
  location = /404.html { internal; return 404 '<h1>nothing</h1>'; }
  location = /down.html { return 503 down; }
  location @no { default_type application/json; return 404 '{}'; }
}
";
    let pages = |text: &str| {
        let converted = converted(text);
        let of = |route: &crate::output::ConvertedResource| {
            let plugins = route.members.iter().find(|(name, _)| name == "plugins").map(|(_, plugins)| plugins);
            let Some(Yaml::Map(plugins)) = plugins else { return None };
            plugins.iter().find(|(name, _)| name == "error-page").map(|(_, options)| options.flow())
        };
        converted.routes.iter().filter_map(of).collect::<Vec<_>>()
    };
    let html = "error_404: { body: \"<h1>nothing</h1>\", content_type: text/html }, error_500: { body: down, content_type: text/html }, \
                error_502: { body: down, content_type: text/html }";
    assert_eq!(pages(text), [format!("{{ {html} }}")]);
    assert!(findings(text).iter().any(|found| found.contains("`error_page 404 429 = @no`")), "429 would become 404");
    let kept = text.replace("404 429 = @no", "404 = @no");
    let json = "{ error_404: { body: '{}', content_type: application/json }, upstream_errors: true }";
    assert_eq!(pages(&kept).iter().filter(|page| page.replace('"', "'") == json).count(), 1, "{:?}", pages(&kept));
    assert!(
        !findings(&kept).iter().any(|found| found.contains("error_page") || found.contains("intercept")),
        "{:?}",
        findings(&kept)
    );
}

#[test]
fn a_cache_is_carried_over() {
    let text = "\
proxy_cache_path /var/cache keys_zone=assets:10m inactive=2h;
server {
  proxy_cache assets;
  location /a {
    proxy_pass http://a; proxy_redirect off;
    proxy_cache_key $host$uri$cookie_lang;
    proxy_cache_valid 200 10m;
    proxy_cache_valid 404 1m;
    proxy_cache_use_stale error updating http_404;
    proxy_cache_bypass $arg_fresh;
    proxy_cache_lock on;
  }
  location /b { proxy_pass http://a; proxy_redirect off; proxy_cache off; }
  location /c { proxy_pass http://a; proxy_redirect off; }
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
            "9: not converted: `proxy_cache_use_stale error updating http_404`: old responses are also used if the upstream \
             answers with 500, 502, 503, 504",
            "9: not converted: `proxy_cache_use_stale error updating http_404`: old responses are used for 500, 502, 503 \
             and 504 only",
            "1: behaves differently: `proxy_cache_path /var/cache keys_zone=assets:10m inactive=2h`: responses are kept in \
             memory; `plugin_metadata` of `proxy-cache` has the sizes of zones",
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
        format!(
            "2: not converted: `access_log /var/log/a.log`: {advice}, or `file-logger` in the routes, whose records are JSON"
        ),
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
    assert_eq!(
        converted.findings[0].to_string(),
        "n:1: not converted: `include gone`: gone is not there; the routes that it applies to answer with 503"
    );
    let error = convert("n", "include loop.conf;", &include).expect_err("endless");
    assert!(error.text.contains("more than 16 levels deep"), "{error}");
}

#[test]
fn texts_have_the_media_type_of_their_paths() {
    let include = |pattern: &str| match pattern {
        "mime.types" => Ok(vec![(pattern.to_owned(), "types { text/html html; text/x-own own; }".to_owned())]),
        other => Err(format!("{other} is not there")),
    };
    let text = "\
http { include mime.types; default_type application/octet-stream;
server {
  error_page 502 503 /maintenance.html;
  location = /maintenance.html { internal; return 503 '<h1>soon</h1>'; }
  location = /b.html { return 200 '<h1>x</h1>'; }
  location = /c.own { return 200 x; }
  location /robots.txt { return 200 x; }
  location /api/ { proxy_pass http://127.0.0.1:1; proxy_redirect off; }
  location / { return 200 x; }
} }
";
    let yaml = |text: &str| convert("n", text, &include).expect("correct").yaml();
    let told = yaml(text);
    let kinds = ["text/html", "text/x-own", "application/octet-stream"]
        .map(|kind| told.matches(&format!("Content-Type: {kind} ")).count());
    assert_eq!(kinds, [1, 1, 2], "`/robots.txt` is not in `types`, and `/` has no extension: {told}");
    let page = |status: u16| format!("error_{status}: {{ body: <h1>soon</h1>, content_type: text/html }}");
    let pages = told.replace('"', "").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!([502, 503].iter().all(|status| pages.contains(&page(*status))), "{told}");
    let absent = yaml(&text.replace("include mime.types", "include /etc/nginx/mime.types"));
    assert!(absent.contains("text/plain") && !absent.contains("text/x-own"), "the usual types of nginx: {absent}");
    assert_eq!(
        findings("server { location ~ \\.html$ { return 200 x; } location ~ ^/a { return 200 x; } }"),
        [
            "1: behaves differently: `return 200 x`: the media type is text/plain; nginx takes that of the path's extension"
        ]
    );
}

#[test]
fn clients_that_have_to_show_certificates_are_not_let_in_without() {
    let text = "\
server { listen 443 ssl; ssl_certificate a; ssl_certificate_key b; server_name a.example ~^a; ssl_verify_client on;
  ssl_client_certificate ca; ssl_verify_depth 3; location / { proxy_pass http://a; proxy_redirect off; } }
server { listen 443 ssl; ssl_certificate a; ssl_certificate_key b; server_name b.example; ssl_verify_client on;
  location / { proxy_pass http://a; proxy_redirect off; } }
server { listen 443 ssl; ssl_certificate a; ssl_certificate a2; ssl_certificate_key b; server_name c.example;
  ssl_verify_client optional; location / { proxy_pass http://a; proxy_redirect off; } }
server { listen 443 ssl; ssl_certificate a; ssl_certificate_key b; server_name d.example; ssl_client_certificate ca;
  ssl_verify_client optional; location / { proxy_pass http://a; proxy_redirect off; } }
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("client: { ca: ca, depth: 3 }"), "{yaml}");
    assert!(yaml.contains("client: { ca: ca, mode: optional }"), "{yaml}");
    // The route for all hosts can be reached on a connection for another name.
    let has_certificate = r#"[[OR, [ssl_client_verify, "==", SUCCESS], [scheme, "==", http]]]"#;
    assert_eq!(vars(&converted(text)), [has_certificate, "", "", ""]);
    let closed = "host: b.example\n    plugins:\n      fault-injection: { abort: { http_status: 503 } }\n";
    assert!(yaml.contains(closed), "{yaml}");
    assert_eq!(
        findings(text),
        [
            "3: not converted: `ssl_verify_client on`: there is no `ssl_client_certificate`; the server answers with 503",
            "5: not converted: `ssl_certificate a`: an entry of `ssls` has one certificate",
            "6: not converted: `ssl_verify_client optional`: clients are not asked for certificates; \
             `$ssl_client_verify` is always `NONE`",
        ]
    );
}

#[test]
fn the_certificate_of_a_default_server_is_for_all_other_names() {
    let server = |listen: &str, name: &str| {
        format!(
            "server {{ listen {listen}; ssl_certificate c; ssl_certificate_key k; {name} location / {{ return 204; }} }}\n"
        )
    };
    let first = server("443 ssl", "server_name a.example;") + &server("443 ssl", "server_name b.example;");
    let yaml = converted(&first).yaml();
    assert!(yaml.contains("snis: [a.example, \"*\"]") && yaml.contains("snis: [b.example]"), "{yaml}");
    let marked = server("443 ssl", "server_name a.example;") + &server("443 ssl default_server", "");
    let yaml = converted(&marked).yaml();
    assert!(yaml.contains("snis: [a.example]") && yaml.contains("snis: [\"*\"]"), "{yaml}");
    assert_eq!(findings(&marked), [""; 0]);
    let two = server("443 ssl", "server_name a.example;") + &server("444 ssl", "server_name b.example;");
    assert!(findings(&two)[0].starts_with("2: not converted: a second certificate for names"), "{:?}", findings(&two));
    // The default server of the port has none: handshakes for other names fail there, too.
    let none = format!("server {{ listen 443 ssl default_server; ssl_reject_handshake on; }}\n{first}");
    assert!(!converted(&none).yaml().contains("\"*\""), "{}", converted(&none).yaml());
}

#[test]
fn a_server_that_is_not_reachable_stays_so() {
    let text = "\
server { listen 80; location / { return 204; } }
server { listen unix:/run/admin.sock; location / { proxy_pass http://a; } }
server { listen 443 quic; location / { proxy_pass http://a; } }
server { listen 80; return 444; }
server { listen 80; server_name _; return 444; }
";
    let converted = converted(text);
    assert!(converted.yaml().contains("listen: \":80\"\n"), "{}", converted.yaml());
    assert_eq!(converted.routes.len(), 1, "{}", converted.yaml());
    assert_eq!(
        findings(text),
        [
            "2: not converted: `listen unix:/run/admin.sock`: Unix sockets are not supported",
            "3: not converted: `listen 443 quic`: HTTP/3 is served beside HTTPS only; write `{ address: \":443\", tls: true, \
             http3: true }` in `listen`",
            "4: not converted: a server without names that is not the default of its addresses: no request is known to be for it",
        ]
    );
}

#[test]
fn http3_is_switched_on_where_a_listen_says_quic() {
    let server = |inside: &str| {
        format!("server {{ {inside} ssl_certificate c; ssl_certificate_key k; location / {{ return 204; }} }}\n")
    };
    let both =
        server("listen 443 ssl; listen [::]:443 ssl; listen 443 quic reuseport; listen [::]:443 quic; http3 on;");
    let shown = |text: &str| converted(text).yaml().lines().find(|line| line.starts_with("listen:")).map(str::to_owned);
    let on = Some("listen: { address: \":443\", tls: true, http3: true }".to_owned());
    assert_eq!(shown(&both), on);
    assert_eq!(findings(&both), [""; 0]);
    let later = server("listen 443 quic; server_name a;") + &server("listen 443 ssl; server_name b;");
    assert_eq!(shown(&later), on, "the address is one for all servers");
    let behind = server("listen 443 ssl proxy_protocol; listen 443 quic;");
    let told = findings(&behind);
    assert!(told.iter().any(|found| found.contains("an address with `proxy_protocol` has no HTTP/3")), "{told:?}");
    let off = server("listen 443 ssl; listen 443 quic; http3 off;");
    assert_eq!(shown(&off), Some("listen: { address: \":443\", tls: true }".to_owned()));
    assert_eq!(findings(&off), [""; 0]);
    // The socket for all addresses of the port accepts the connections to one of them.
    for one in ["listen 10.0.0.1:443 ssl; server_name b;", "listen 10.0.0.1:443 ssl; listen 10.0.0.1:443 quic;"] {
        for all in ["listen 443 ssl;", "listen 443 ssl; listen 443 quic;"] {
            let expected = if one.contains("quic") || all.contains("quic") { ", http3: true" } else { "" };
            let expected = format!("listen: {{ address: \":443\", tls: true{expected} }}");
            assert_eq!(shown(&(server(all) + &server(one))), Some(expected), "{all} {one}");
        }
    }
}

#[test]
fn sticky_clients_stay_sticky() {
    let persistence = |sticky: &str| {
        let text = format!(
            "upstream a {{ server 127.0.0.1:1 route=x; {sticky} }} server {{ location / {{ proxy_pass http://a; proxy_redirect off; }} }}"
        );
        let converted = converted(&text);
        let found = converted.upstreams[0].members.iter().find(|(name, _)| name == "persistence");
        let (secrets, others): (Vec<_>, Vec<_>) =
            findings(&text).into_iter().partition(|found| found.contains("write the same `persistence.secret`"));
        assert_eq!(
            secrets.len(),
            usize::from(found.is_some_and(|(_, options)| options.flow().contains("type: cookie"))),
            "{sticky}"
        );
        (found.map(|(_, options)| options.flow()), others)
    };
    for (sticky, expected) in [
        ("sticky cookie srv httponly;", "{ type: cookie, name: srv }"),
        (
            "sticky cookie srv expires=1h domain=.example.com path=/a secure samesite=strict;",
            "{ type: cookie, name: srv, max_age: 3600, domain: example.com, path: /a, secure: true, same_site: Strict, \
             http_only: false }",
        ),
        ("sticky cookie srv expires=max httponly;", "{ type: cookie, name: srv, max_age: 31536000 }"),
        ("sticky name=srv hash=md5 httponly;", "{ type: cookie, name: srv }"),
        ("sticky;", "{ type: cookie, name: route, http_only: false }"),
        ("sticky no_fallback httponly;", "{ type: cookie, name: route, when_gone: refuse }"),
        (
            "sticky learn create=$upstream_cookie_sid lookup=$cookie_sid zone=s:1m timeout=1h;",
            "{ type: app_cookie, name: sid, idle: 3600 }",
        ),
    ] {
        assert_eq!(persistence(sticky), (Some(expected.to_owned()), Vec::new()), "{sticky}");
    }
    for (sticky, expected) in [
        ("sticky route $cookie_r $uri;", "`sticky route $cookie_r $uri`: a request cannot name its endpoint"),
        ("sticky learn create=$upstream_http_x lookup=$cookie_x zone=s:1m;", "write `persistence: { type: app_cookie"),
        (
            "sticky learn create=$upstream_cookie_x lookup=$cookie_x lookup=$arg_x zone=s:1m;",
            "write `persistence: { type: app_cookie",
        ),
        ("sticky cookie srv samesite=none httponly;", "`samesite=none` in `sticky`: see `persistence` of the upstream"),
        ("sticky cookie srv domain=$host httponly;", "`domain=$host` in `sticky`: see `persistence` of the upstream"),
    ] {
        let found = persistence(sticky).1;
        assert!(found.len() == 1 && found[0].contains(expected), "{sticky}: {found:?}");
    }
}

/// The options of `proxy-rewrite` for a location, and the findings.
fn path_told(location: &str) -> (String, Vec<String>) {
    let text = format!("server {{ proxy_redirect off; {location} }}");
    let converted = converted(&text);
    let route = converted.routes.iter().find_map(|route| {
        let Some((_, Yaml::Map(plugins))) = route.members.iter().find(|(name, _)| name == "plugins") else {
            return None;
        };
        plugins.iter().find(|(name, _)| name == "proxy-rewrite").map(|(_, options)| options.flow())
    });
    let told = findings(&text).into_iter().filter(|found| !found.contains("%2F")).collect::<Vec<_>>();
    (route.unwrap_or_default(), told)
}

#[test]
fn groups_of_a_location_are_parts_of_the_path_for_the_upstream() {
    for (location, expected) in [
        (
            r"location ~ ^/api/(v[12])/(.*)$ { proxy_pass http://a/$1/svc/$2$is_args$args; }",
            r#"{ regex_uri: ["^/api/(v[12])/(.*)$", /$1/svc/$2] }"#,
        ),
        (
            r"location ~* ^/t/(?<tenant>[a-z]+)/ { proxy_pass http://a/x/${tenant}?$args; }",
            r#"{ regex_uri: ["(?i)^(?:/t/(?<tenant>[a-z]+)/).*$", /x/$1] }"#,
        ),
        (
            r"location ~ ^/(?<ho>.)(?<hos>.) { proxy_pass http://a/${ho}0/$10/$hos/$host/$ho-?$args; }",
            r#"{ regex_uri: ["^(?:/(?<ho>.)(?<hos>.)).*$", "/${1}0/${1}0/$2/$host/$1-"] }"#,
        ),
        (
            r"location /u { rewrite ^/u(?<id>\d)$ /${id}0/$10 break; proxy_pass http://a; }",
            r#"{ regex_uri: ['^/u(?<id>\d)$', "/${1}0/${1}0"] }"#,
        ),
        (
            "location /q { rewrite ^/q(.*)$ /r$1?$query_string break; proxy_pass http://a; }",
            r#"{ regex_uri: ["^/q(.*)$", /r$1] }"#,
        ),
        ("location / { proxy_pass http://a/base$request_uri; }", "{ uri: /base$request_uri }"),
        ("location /x/ { proxy_pass http://a/$host$uri$is_args$args; }", "{ uri: /$host$uri }"),
        ("location /x/ { proxy_pass http://a$request_uri; rewrite ^/x/(.*) /$1 break; }", ""),
    ] {
        let (options, found) = path_told(location);
        assert_eq!((&*options, found), (expected, Vec::new()), "{location}");
    }
}

#[test]
fn paths_for_the_upstream_that_weir_cannot_send_are_told() {
    for (location, expected) in [
        (
            r"location ~ ^/u/(\d+)$ { proxy_pass http://a/$1; }",
            "behaves differently: `proxy_pass http://a/$1`: the query",
        ),
        (
            "location /u/ { proxy_pass http://a/$1$is_args$args; }",
            "groups of an expression that the location does not have",
        ),
        ("location ~ /(u) { proxy_pass http://a/$1$is_args$args/x; }", "cannot stand elsewhere"),
        ("location ~ /(u) { proxy_pass http://a/$1?$args&x=1; }", "cannot stand elsewhere"),
        ("location ~ /(u) { proxy_pass 'http://a/$1 b'; }", "must be percent-encoded"),
        ("location ~ /(u) { proxy_pass http://a/$1#b; }", "must be percent-encoded"),
        ("location ~ /(u) { proxy_pass http://a/\u{fc}/$1; }", "must be percent-encoded"),
        ("location ~ /(u) { proxy_pass http://a/../$1; }", "a segment `.` or `..`"),
        ("location /u/ { proxy_pass http://a/\u{fc}/; }", "must be percent-encoded"),
        ("location = /u { proxy_pass http://a/./u; }", "a segment `.` or `..`"),
        ("location /u { rewrite ^/u(.*)$ /\u{fc}$1 break; proxy_pass http://a; }", "must be percent-encoded"),
        ("location ~ /(u) { proxy_pass http://a$1; }", "the upstream is `a` if `$1` begins with a slash"),
        ("location / { proxy_pass http://a$uri; }", "the upstream is `a`; write it in the route"),
        ("location ~ /(u) { proxy_pass http://a/$1/$tenant?$args; }", "Weir has no variable `$tenant`"),
        (
            "location ~ /(u) { rewrite ^/u(.*) /v$1 break; proxy_pass http://a/$1?$args; }",
            "its path contains variables, after a `rewrite`",
        ),
    ] {
        let found = path_told(location).1;
        assert!(found.iter().any(|found| found.contains(expected)), "{location}: {found:?}");
    }
}

#[test]
fn the_name_for_the_certificate_of_an_upstream_is_carried_over() {
    let tls = |name: &str| {
        let text = format!(
            "server {{ location / {{ proxy_pass https://10.0.0.1; proxy_redirect off; proxy_ssl_verify on; {name} }} }}"
        );
        let yaml = converted(&text).yaml();
        (yaml.contains("server_name: a.example }"), findings(&text).len())
    };
    assert_eq!(tls("proxy_ssl_name a.example;"), (true, 0));
    assert_eq!(tls("proxy_ssl_name a.example:8443;"), (true, 0));
    assert_eq!(tls("proxy_ssl_name $proxy_host;"), (false, 0));
    assert_eq!(tls("proxy_ssl_name $host;"), (false, 1));
}

#[test]
fn servers_are_told_apart_by_address_where_nginx_does() {
    let text = "\
server { listen 80; listen 443 ssl; location / { return 204; } }
server { listen 127.0.0.1:80; server_name admin; location / { return 200; } }
server { listen 443; server_name b; location / { return 200; } }
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("listen: [\":80\", { address: \":443\", tls: true }]\n"), "{yaml}");
    assert_eq!(
        vars(&converted(text)),
        [
            r#"[[server_port, "==", "443"]]"#,
            r#"[[server_port, "==", "80"], [server_addr, "!", in, ["127.0.0.1"]]]"#,
            r#"[[server_port, "==", "80"], [server_addr, "==", "127.0.0.1"]]"#,
            r#"[[server_port, "==", "443"]]"#,
        ]
    );
}

#[test]
fn a_directive_that_is_not_known_closes_its_routes_unless_it_is_off() {
    let text = "\
worker_magic on;
http {
  server {
    location /a { guard on; proxy_pass http://a; }
    location /b { guard off; proxy_pass http://a; }
    location /c { proxy_pass http://a; proxy_magic on; auth_basic off; }
    location /d { guard on; return 204; }
  }
}
";
    let yaml = converted(text).yaml();
    assert_eq!(yaml.matches("http_status: 503").count(), 1, "{yaml}");
    let told: Vec<String> = findings(text).into_iter().filter(|finding| finding.contains("not converted")).collect();
    assert_eq!(
        told,
        [
            "1: not converted: `worker_magic on`: there is no counterpart",
            "4: not converted: `guard on`: this directive is not known; the routes that it applies to answer with 503",
            "5: not converted: `guard off`: this directive is not known",
            "6: not converted: `proxy_magic on`: there is no counterpart",
            "7: not converted: `guard on`: this directive is not known; the routes that it applies to answer with 503",
        ]
    );
}

#[test]
fn rules_that_are_not_addresses_close_the_route() {
    let text = "server { location / { allow intranet; deny all; proxy_pass http://a; proxy_redirect off; } }";
    assert!(converted(text).yaml().contains("fault-injection: { abort: { http_status: 503 } }"));
    assert_eq!(
        findings(text),
        [
            "1: not converted: `allow intranet`: this is neither an address nor a network; the routes that it applies to \
          answer with 503"
        ]
    );
}

#[test]
fn fields_that_are_not_sent_as_written_are_told() {
    let text = "\
map $http_upgrade $way { default upgrade; }
map $host $tenant { default a; }
set_real_ip_from 10.0.0.0/8;
server {
  server_name a;
  location / {
    proxy_pass http://a;
    proxy_set_header Host www.$host;
    proxy_set_header X-Tenant $tenant;
    proxy_set_header Connection $way;
    proxy_set_header Upgrade TLS/1.0;
    proxy_set_header X-Forwarded-For $http_cf_connecting_ip;
    proxy_set_header X-Real-IP $remote_addr;
    grpc_set_header X-Ignored 1;
  }
}
";
    let yaml = converted(text).yaml();
    assert!(
        yaml.contains("headers: { set: { X-Forwarded-For: $http_cf_connecting_ip, X-Real-IP: $remote_addr } }"),
        "{yaml}"
    );
    // `real_ip_header` is `X-Real-IP` unless it is written.
    let rule = "real-ip: { source: http_x_real_ip, trusted_addresses: [\"10.0.0.0/8\"], recursive: false }";
    assert!(yaml.contains(rule) && yaml.contains("\ntrusted_addresses: [\"10.0.0.0/8\"]"), "{yaml}");
    let told: Vec<String> =
        findings(text).into_iter().map(|finding| finding.split(": ").take(3).collect::<Vec<_>>().join(": ")).collect();
    assert_eq!(
        told,
        [
            "2: not converted: `map $host $tenant`",
            "8: not converted: `proxy_set_header Host www.$host`",
            "9: not converted: `proxy_set_header X-Tenant $tenant`",
            "11: not converted: `proxy_set_header Upgrade TLS/1.0`",
            "12: behaves differently: `proxy_set_header X-Forwarded-For $http_cf_connecting_ip`",
        ]
    );
}

#[test]
fn limits_that_routes_share_in_nginx_are_told() {
    let text = "\
limit_req_zone $binary_remote_addr$host zone=a:1m rate=1r/s;
limit_conn_zone $tenant zone=b:1m;
server {
  location /a { limit_req zone=a; limit_conn b 1; proxy_pass http://a; proxy_redirect off; }
  location /b { limit_req zone=a; proxy_pass http://a; proxy_redirect off; }
  location /c { limit_req zone=a; limit_req_dry_run on; proxy_pass http://a; proxy_redirect off; }
}
";
    let yaml = converted(text).yaml();
    assert_eq!(yaml.matches("key: $remote_addr$host").count(), 2, "{yaml}");
    assert_eq!(
        findings(text),
        [
            "2: not converted: `limit_conn_zone $tenant zone=b:1m`: Weir has no variable `$tenant`; the limit holds for \
             each client address, also where the key of nginx is empty, which means no limit",
            "6: not converted: `limit_req_dry_run on`: there is no counterpart",
            "1: behaves differently: `limit_req_zone $binary_remote_addr$host zone=a:1m rate=1r/s`: the limit holds for \
             each route that has it; the routes do not count together",
        ]
    );
}

#[test]
fn a_place_that_becomes_several_routes_has_its_limit_in_each() {
    let text = "\
limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;
server {
  listen 80 default_server;
  server_name shop.example;
  location /a { limit_req zone=a; proxy_pass http://a; proxy_redirect off; }
}
server {
  listen 80;
  server_name *.tenants.example;
  location / { proxy_pass http://a; proxy_redirect off; }
}
";
    let yaml = converted(text).yaml();
    assert_eq!(yaml.matches("limit-req:").count(), 2, "{yaml}");
    let told: Vec<String> = findings(text).into_iter().filter(|finding| finding.contains("limit_req")).collect();
    assert_eq!(
        told,
        [
            "5: behaves differently: `limit_req zone=a`: this place becomes several routes, such as one with its hosts and one \
          without; each has the limit for itself, so a client may use it in each of them"
        ]
    );
}

#[test]
fn why_no_service_can_be_asked_is_told() {
    let with = |auth: &str| {
        let text = format!(
            "upstream gold {{ server 10.0.0.1:80; server 10.0.0.2:80 backup; }}\n\
             server {{\n\
             location / {{ auth_request /auth; proxy_pass http://a; proxy_redirect off; }}\n\
             {auth}\n\
             }}\n"
        );
        findings(&text).into_iter().find(|finding| finding.contains("auth_request")).unwrap_or_default()
    };
    let several = with("location = /auth { internal; proxy_pass http://gold/status; }");
    assert!(several.contains("of the auth service (`gold` has several servers"), "{several}");
    let none = with("");
    assert!(none.contains("(no location is for `/auth` alone, or it does more than pass requests on)"), "{none}");
    let one = with("location = /auth { internal; proxy_pass http://10.0.0.1/status; }");
    assert!(one.contains("behaves differently"), "{one}");
}

#[test]
fn rates_of_responses_are_limited_where_they_are_numbers() {
    let text = "\
server {
  proxy_redirect off;
  limit_rate 100k;
  location /a { limit_rate_after 1m; proxy_pass http://a; }
  location /b { limit_rate 0; proxy_pass http://a; }
  location /c { limit_rate $pace; limit_rate_after 1m; proxy_pass http://a; }
  location /d { limit_rate 9000g; limit_rate_after $free; proxy_pass http://a; }
  location /e { limit_rate 0; limit_rate_after $free; proxy_pass http://a; }
}
";
    let yaml = converted(text).yaml();
    let found: Vec<&str> = yaml.lines().filter(|line| line.contains("rate:")).map(str::trim).collect();
    let options = ["rate: 102400, after: 1048576", "rate: 1000000000000"];
    assert_eq!(found, options.map(|options| format!("plugins: {{ limit-rate: {{ {options} }} }}")), "{yaml}");
    assert_eq!(
        findings(text),
        [
            "6: not converted: `limit_rate $pace`: `limit-rate` takes a number, and no variable",
            "7: not converted: `limit_rate_after $free`: `limit-rate` takes a number, and no variable; the rate holds from the first byte",
        ]
    );
}

const BCRYPT_HASH: &str = "$2y$10$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC";
const APR1_HASH: &str = "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/";

/// The files of users, by their names; a name that is a hash is the file of a user with it.
fn users_included(pattern: &str) -> Result<Vec<(String, String)>, String> {
    let text = match pattern {
        "staff" => format!("# staff\nann:{BCRYPT_HASH}:Ann\n\nbob:{APR1_HASH}\nann:{APR1_HASH}\n"),
        "mixed" => format!("ann:{BCRYPT_HASH}\neve:{{SHA}}x\neve:{APR1_HASH}\n"),
        "old" => "eve:{SHA}x\n".to_owned(),
        hash if hash.starts_with('$') => format!("ann:{BCRYPT_HASH}\neve:{hash}\n:{APR1_HASH}\n"),
        other => return Err(format!("{other} is not there")),
    };
    Ok(vec![(pattern.to_owned(), text)])
}

/// The configuration for a server with such files, and the findings.
fn users_told(server: &str) -> (String, Vec<String>) {
    let text = format!("server {{ proxy_redirect off; {server} }}");
    let converted = convert("n", &text, &users_included).expect("correct");
    let findings: Vec<String> = converted.findings.iter().map(ToString::to_string).collect();
    (converted.yaml(), findings.into_iter().filter(|found| !found.contains("%2F")).collect::<Vec<_>>())
}

#[test]
fn users_of_a_file_log_in_as_before() {
    let (yaml, found) = users_told(
        "auth_basic Staff; auth_basic_user_file staff; location / { proxy_pass http://a; } location /open/ { auth_basic off; proxy_pass http://a; }",
    );
    let plugin = format!(
        "basic-auth:
        realm: Staff
        hide_credentials: false
        users:
          - username: ann
            password: {BCRYPT_HASH}
          - {{ username: bob, password: {APR1_HASH} }}
"
    );
    assert!(yaml.contains(&plugin), "{yaml}");
    // The route of `/`, and that of `/open`, which nginx redirects, but not the one of `/open/`.
    let open = yaml.split("  - id: ").find(|route| route.contains("uri: /open/*")).expect("a route");
    assert!(!open.contains("basic-auth") && !yaml.contains("503"), "{yaml}");
    let copied = "n:1: behaves differently: `auth_basic_user_file staff`: its users are copied, and changes of the file have \
                  no effect";
    assert_eq!(found, [copied]);
    let (yaml, found) = users_told("location / { auth_basic x; auth_basic_user_file mixed; proxy_pass http://a; }");
    assert!(yaml.contains("ann") && !yaml.contains("username: eve"), "{yaml}");
    assert!(
        found[0]
            .contains("only complete hashes of `htpasswd -B` up to cost 15, and `$apr1$`, are read; refused are `eve`"),
        "{found:?}"
    );
}

#[test]
fn users_that_basic_auth_refuses_are_left_out() {
    for hash in [
        &BCRYPT_HASH.replace("$10$", "$16$"),
        &BCRYPT_HASH.replace("$10$", "$+9$"),
        &BCRYPT_HASH[..59],
        &APR1_HASH[..36],
        &APR1_HASH.replace("$r31.....$", "$$"),
        &APR1_HASH.replace("$r31.....$", "$r31......$"),
        "$argon2id$v=19$m=256",
    ] {
        let (yaml, found) =
            users_told(&format!("location / {{ auth_basic x; auth_basic_user_file '{hash}'; proxy_pass http://a; }}"));
        assert!(yaml.contains("username: ann") && !yaml.contains("username: eve"), "{hash}: {yaml}");
        assert!(!yaml.contains("username: \"\""), "{yaml}");
        assert!(found[0].contains("refused are `eve`"), "{hash}: {found:?}");
    }
    for realm in ["Bücher", "a\"b", "a\\b", &"x".repeat(129)] {
        let written = realm.replace('\\', "\\\\");
        let (yaml, found) = users_told(&format!(
            "location / {{ auth_basic '{written}'; auth_basic_user_file staff; proxy_pass http://a; }}"
        ));
        assert!(yaml.contains("username: ann") && !yaml.contains("realm:"), "{realm}: {yaml}");
        assert!(found.iter().any(|found| found.contains("a `realm` has at most 128")), "{realm}: {found:?}");
    }
}

#[test]
fn users_that_cannot_be_told_close_their_routes() {
    for closed in [
        "location / { auth_basic x; auth_basic_user_file old; proxy_pass http://a; }",
        "location / { auth_basic x; auth_basic_user_file gone; proxy_pass http://a; }",
        "location / { auth_basic $host; auth_basic_user_file staff; proxy_pass http://a; }",
        "location / { satisfy any; auth_basic x; auth_basic_user_file staff; proxy_pass http://a; }",
        "auth_basic x; auth_basic_user_file staff; location / { auth_basic_user_file mixed; proxy_pass http://a; }",
        "auth_basic_user_file staff; location / { auth_basic x; proxy_pass http://a; }",
    ] {
        let (yaml, found) = users_told(closed);
        assert!(yaml.contains("http_status: 503") && !yaml.contains("basic-auth:"), "{closed}: {yaml}");
        assert!(found.iter().any(|found| found.contains("answer with 503")), "{closed}: {found:?}");
        let is_told_why = found.iter().any(|found| found.contains("cannot be read: gone is not there"));
        assert_eq!(is_told_why, closed.contains("gone"), "{closed}: {found:?}");
    }
}

#[test]
fn a_satisfy_closes_its_own_location_and_no_other() {
    let (yaml, found) = users_told(
        "location /any/ { satisfy any; allow 10.0.0.0/8; deny all; auth_basic x; auth_basic_user_file staff; proxy_pass http://a; }
         location /all/ { satisfy all; auth_basic x; auth_basic_user_file staff; proxy_pass http://a; }
         location /b/ { auth_basic x; auth_basic_user_file staff; proxy_pass http://a; }",
    );
    let route =
        |uri: &str| yaml.split("  - id: ").find(|route| route.contains(&format!("uri: {uri}\n"))).unwrap_or_default();
    assert!(route("/any/*").contains("http_status: 503") && !route("/any/*").contains("basic-auth:"), "{yaml}");
    for open in ["/all/*", "/b/*"] {
        assert!(route(open).contains("username: ann") && !route(open).contains("503"), "{yaml}");
    }
    let told = "`satisfy any`: that an address or a log-in is enough cannot be said of a route";
    assert_eq!(found.iter().filter(|found| found.contains(told)).count(), 1, "{found:?}");
}

#[test]
fn a_route_that_answers_by_itself_says_with_which_status() {
    let text = "map $cookie_b $up { default a; } server { location / { proxy_pass http://$http_x/; } location ~ /\\.ht { deny all; } location /f/ { allow 10.0.0.0/8; deny all; } }";
    let (yaml, found) = (converted(text).yaml(), findings(text));
    assert!(
        found.iter().any(|found| found.contains("`proxy_pass http://$http_x/`: the route answers with 502")),
        "{found:?}"
    );
    let hidden = yaml.split("  - id: ").find(|route| route.contains("/\\.ht'")).unwrap_or_default();
    assert!(hidden.contains("http_status: 403") && !hidden.contains("404"), "{yaml}");
    assert!(!found.iter().any(|found| found.contains("ht`: static files")), "{found:?}");
    assert!(
        found
            .iter()
            .any(|found| found.contains("`location /f/`: static files are not served; the route answers with 404"))
    );
}

#[test]
fn a_location_controls_access_before_its_named_location_answers() {
    let include = |file: &str| Ok(vec![(file.to_owned(), format!("{file}:{APR1_HASH}\n"))]);
    let told = |server: &str| {
        let text = format!(
            "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s; limit_req_zone $binary_remote_addr zone=y:1m rate=2r/s; server {{ proxy_redirect off; {server} }}"
        );
        let converted = convert("n", &text, &include).expect("correct");
        let yaml = converted.yaml();
        let route = yaml.split("  - id: ").find(|route| route.contains("uri: /x/app/*")).unwrap_or_default().to_owned();
        (route, converted.findings.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let users = "auth_basic a; auth_basic_user_file ann;";
    let passed = "location @app { proxy_pass http://b; }";
    let within = |demand: &str, named: &str| {
        format!("location /x/ {{ {demand} proxy_pass http://a; location /x/app/ {{ try_files $uri @app; }} }} {named}")
    };
    for server in [
        within(users, passed),
        within(users, &passed.replace("@app {", "@app { auth_basic off;")),
        within(users, &passed.replace("@app {", &format!("@app {{ {users}"))),
        format!("{users} {}", within("", &passed.replace("@app {", "@app { auth_basic off;"))),
    ] {
        let (route, found) = told(&server);
        assert_eq!(route.matches("basic-auth:").count(), 1, "{server}: {route}");
        assert!(!route.contains("503") && route.contains("b:80"), "{server}: {route}");
        assert!(!found.iter().any(|found| found.contains("controls access differently")), "{found:?}");
    }
    let (route, _) = told(&within("deny 10.0.0.0/8;", &passed.replace("@app {", "@app { limit_req zone=y;")));
    assert!(route.contains(r#"blacklist: ["10.0.0.0/8"]"#) && route.contains("rate: 2"), "{route}");
    let (route, _) = told(&within("limit_req zone=z;", &passed.replace("@app {", "@app { limit_req zone=y;")));
    assert!(route.contains("rate: 1") && !route.contains("rate: 2"), "{route}");
    let (route, _) = told(&within("auth_jwt a;", &passed.replace("@app {", "@app { auth_jwt off;")));
    assert_eq!(route.matches("http_status: 503").count(), 1, "{route}");
    let other = passed.replace("@app {", "@app { auth_basic a; auth_basic_user_file bob;");
    let (route, found) = told(&within(users, &other));
    assert!(route.contains("http_status: 503"), "{route}");
    assert!(found.iter().any(|found| found.contains("controls access differently, by `basic-auth`")), "{found:?}");
}

#[test]
fn a_file_that_cannot_be_read_may_control_access() {
    let text = "server { location /a { include access.conf; proxy_pass http://a; proxy_redirect off; } location /b { proxy_pass http://a; proxy_redirect off; } }";
    let yaml = converted(text).yaml();
    assert_eq!(yaml.matches("http_status: 503").count(), 1, "{yaml}");
    assert_eq!(findings(text).len(), 1, "{:?}", findings(text));
}

#[test]
fn encoded_slashes_are_refused_where_they_would_lead_around_a_location() {
    let text = "\
server {
  location / { proxy_pass http://a; }
  location /a/ { proxy_pass http://a; if ($request_method = OPTIONS) { return 204; } location /a/b/ { WHAT proxy_pass http://b; } }
}
";
    for (what, is_allowed) in [
        ("", true),
        ("deny 10.0.0.0/8;", false),
        ("auth_basic x;", false),
        ("return 404;", false),
        ("return 301 /;", true),
        ("if ($arg_x) { return 302 /login; }", false),
    ] {
        let converted = converted(&text.replace("WHAT", what));
        let is_set = converted.settings.iter().any(|(name, _)| name == "allow_encoded_slashes");
        assert_eq!(is_set, is_allowed, "{what}");
        let told = converted.findings.iter().find(|finding| finding.text.contains("%2F")).expect("told");
        assert_eq!(told.text.contains("`location /a/b/`: paths with `%2F` are refused"), !is_allowed, "{what}: {told}");
    }
}

#[test]
fn a_new_path_does_not_lead_around_a_location() {
    let text = "\
server {
  rewrite ^/x /admin/;
  location /a/ { rewrite ^/a/(.*)$ /admin/$1 last; rewrite ^/a/(.*)$ /b/$1 break; proxy_pass http://a; }
  location /admin/ { WHAT proxy_pass http://a; }
}
";
    let (open, closed) = (text.replace("WHAT", ""), text.replace("WHAT", "deny all;"));
    assert_eq!(converted(&open).yaml().matches("http_status: 503").count(), 0);
    let yaml = converted(&closed).yaml();
    assert_eq!(yaml.matches("http_status: 503").count(), 2, "{yaml}");
    assert!(
        vars(&converted(&closed)).contains(&r#"[[uri, "~~", "^/a/(.*)$"]]"#.to_owned()),
        "{:?}",
        vars(&converted(&closed))
    );
    assert_eq!(findings(&closed).iter().filter(|finding| finding.ends_with("are answered with 503")).count(), 2);
}

#[test]
fn cache_is_left_out_if_its_conditions_are_not_known() {
    let text = "\
server {
  proxy_cache assets;
  proxy_cache_valid 1m;
  location /a { proxy_no_cache $personal; proxy_pass http://a; proxy_redirect off; }
  location /b { proxy_cache_key $proxy_host$uri; proxy_pass http://a; proxy_redirect off; }
}
";
    let yaml = converted(text).yaml();
    assert_eq!(yaml.matches("proxy-cache:").count(), 1, "{yaml}");
    assert!(yaml.contains("cache_key: [$host$uri]"), "{yaml}");
    assert_eq!(
        findings(text),
        ["4: not converted: `proxy_no_cache $personal`: Weir has no variable `$personal`; nothing is kept in a cache"]
    );
}

#[test]
fn settings_that_are_not_carried_over_are_told_unless_they_say_what_is_so_anyway() {
    let text = "\
log_format own escape=json a;
access_log /var/log/a own;
access_log syslog:server=a;
access_log /var/log/b combined if=$arg_x;
server {
  listen 80 proxy_protocol;
  ssl_ciphers HIGH; merge_slashes on; charset off; large_client_header_buffers 4 8k; ssl_conf_command a b;
  location / { proxy_pass http://a; proxy_redirect off; proxy_ssl_ciphers HIGH; }
  location /a { proxy_pass http://a; proxy_redirect http://a/ /; }
  location @named { proxy_pass http://a; }
}
";
    let heads: Vec<String> =
        findings(text).into_iter().map(|finding| finding.split(": ").nth(2).unwrap_or_default().to_owned()).collect();
    assert_eq!(
        heads,
        [
            "`access_log /var/log/a own`",
            "`access_log /var/log/b combined if=$arg_x`",
            "`listen 80 proxy_protocol`",
            "`ssl_ciphers HIGH`",
            "`large_client_header_buffers 4 8k`",
            "`ssl_conf_command a b`",
            "`proxy_ssl_ciphers HIGH`",
            "`location @named`",
            "`access_log syslog:server=a`",
            "`access_log /var/log/b combined if=$arg_x`",
        ]
    );
}

#[test]
fn directives_of_grpc_apply_to_grpc_upstreams() {
    let text = "\
server {
  proxy_ssl_certificate other;
  grpc_ssl_verify on;
  grpc_ssl_trusted_certificate ca;
  grpc_next_upstream error timeout http_502;
  grpc_next_upstream_tries 2;
  location / { grpc_pass grpcs://a:443; }
  location /h { proxy_pass https://b; proxy_redirect off; proxy_next_upstream off; }
}
";
    let yaml = converted(text).yaml();
    for want in ["tls: { verify: true, ca: ca }", "retries: 1", "retry_on: [read_timeout, http_502]", "retries: 0"] {
        assert!(yaml.contains(want), "{want}: {yaml}");
    }
    assert!(yaml.contains("tls: { verify: false, client_cert: other }"), "{yaml}");
    assert_eq!(findings(text).len(), 1, "{:?}", findings(text));
}

#[test]
fn the_last_place_of_try_files_gets_all_requests() {
    let text = "\
upstream app { server 10.0.0.1:80; }
server {
  server_name a.example;
  location / { root /srv; try_files $uri @app; }
  location /static/ { rewrite ^/static/(.*)$ /$1 break; try_files $uri @app; }
  location /admin/ { deny all; try_files $uri @app; }
  location @app { proxy_set_header Host $host; proxy_pass http://app; }
}
";
    let converted = converted(text);
    let yaml = converted.yaml();
    assert_eq!(yaml.matches("upstream_id: app\n").count(), 2, "{yaml}");
    assert!(yaml.contains(r#"proxy-rewrite: { regex_uri: ["^/static/(.*)$", /$1] }"#), "{yaml}");
    assert_eq!(
        findings(text),
        [
            "4: not converted: `root /srv`: static files are not served; use a file server as an upstream",
            "6: not converted: `try_files $uri @app`: static files are not served",
            "4: behaves differently: `try_files $uri @app`: files are not looked for; all requests are for the named location",
            "5: behaves differently: `try_files $uri @app`: files are not looked for; all requests are for the named location",
            "6: behaves differently: `location /admin/`: paths with `%2F` are refused with 400; nginx decodes it before it \
             chooses a location, and this one may refuse requests; see `allow_encoded_slashes`",
        ]
    );
}

#[test]
fn expressions_that_weir_cannot_read_close_what_they_would_refuse() {
    let text = r"
server {
  server_name a.example;
  location / { proxy_pass http://a; proxy_set_header Host $http_host; }
  location ~ /\.(?!well-known) { deny all; }
  location ~ (.)\1 { return 200; }
  location ~ ^/(?=x) { deny all; }
  rewrite ^/(?<!a)b /c permanent;
}
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains(r#"[uri, "~~", '/\.(?:$|[^w]|w(?:$|[^e]|"#), "{yaml}");
    assert_eq!(yaml.matches("http_status: 503").count(), 2, "{yaml}");
    let told: Vec<String> = findings(text).into_iter().filter(|finding| finding.contains("look-around")).collect();
    let lacks = "look-around and back-references are not supported";
    assert_eq!(
        told,
        [
            format!(r"6: not converted: `location ~ (.)\1`: {lacks}; other locations take its requests"),
            format!("7: not converted: `location ~ ^/(?=x)`: {lacks}, and it refuses requests; /* answer with 503"),
            format!(
                "8: not converted: `rewrite ^/(?<!a)b /c permanent`: {lacks}; all requests that reach it are answered with 503"
            ),
        ]
    );
}

#[test]
fn fields_and_settings_that_weir_does_not_have_are_told() {
    let text = "\
log_format timed '$remote_addr $pipe'; access_log /var/log/a.log timed;
resolver dns.example; set_real_ip_from lb.example; keepalive_timeout 0;
server {
  listen 80 http2;
  location / {
    proxy_pass http://a; proxy_redirect off;
    proxy_set_header Content-Length '';
    add_header Connection close;
    proxy_hide_header Transfer-Encoding;
    add_header X-Cached $upstream_cache_status;
  }
}
";
    let yaml = converted(text).yaml();
    for written in
        ["format: $remote_addr -", "keepalive_requests: 1\n", "X-Cached: \"${sent_http_apisix_cache_status}\""]
    {
        assert!(yaml.contains(written), "{written}: {yaml}");
    }
    let own = "the gateway writes this field itself, or its name is not valid";
    assert_eq!(
        findings(text),
        [
            "1: not converted: `log_format timed`: Weir has no variable `$pipe`".to_owned(),
            "2: not converted: `set_real_ip_from lb.example`: only addresses and networks are trusted".to_owned(),
            "2: not converted: `resolver dns.example`: write the addresses of the DNS servers".to_owned(),
            format!("7: not converted: `proxy_set_header Content-Length `: {own}"),
            format!("8: not converted: `add_header Connection close`: {own}"),
            format!("9: not converted: `proxy_hide_header Transfer-Encoding`: {own}"),
            "1: behaves differently: `access_log /var/log/a.log timed`: while nginx runs, both write to this file; try Weir \
             with another `path`"
                .to_owned(),
            "10: behaves differently: `add_header X-Cached $upstream_cache_status`: the field is sent also if the variable \
             is empty"
                .to_owned(),
        ]
    );
}

#[test]
fn a_path_with_characters_that_are_special_in_a_uri_matches_only_itself() {
    let text = "server {
  location = /a* { proxy_pass http://a; proxy_redirect off; }
  location /v1/:id { proxy_pass http://a; proxy_redirect off; }
}
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains(r#"vars: [[uri, "==", /a*]]"#), "{yaml}");
    assert!(yaml.contains(r#"vars: [[uri, "~~", "^/v1/:id"]]"#), "{yaml}");
    let told =
        "3: behaves differently: `location /v1/:id`: only paths of as many segments are matched, not those below";
    assert!(findings(text).iter().any(|found| found == told), "{:?}", findings(text));
}

#[test]
fn empty_segments_are_removed_where_an_expression_changes_the_path() {
    let text = "server {
  location /a { rewrite ^/a/(.*)$ /b/$1 break; proxy_pass http://a; proxy_redirect off; }
  location /c/ { rewrite ^/c/(.*)$ /d/$1 permanent; proxy_pass http://a; proxy_redirect off; }
  location /e { proxy_pass http://a; proxy_redirect off; }
}
";
    let count = |text: &str| converted(text).yaml().matches("merge_slashes: true").count();
    assert_eq!(count(text), 2, "{}", converted(text).yaml());
    assert_eq!(count(&text.replace("server {", "server { merge_slashes off;")), 0);
}

#[test]
fn an_if_of_a_server_holds_for_the_redirects_that_are_added() {
    let text = "server { listen 80; if ($http_x_block) { return 403; } location /app/ { proxy_pass http://a; } location / { \
                proxy_pass http://a; } }";
    let yaml = converted(text).yaml();
    let route = yaml.split("- id: ").find(|route| route.starts_with("if-")).unwrap_or_default();
    assert!(route.contains("uris: [/*, /app/*, /app]"), "{yaml}");
    assert!(yaml.contains("uri: /app\n"), "the redirect: {yaml}");
}

#[test]
fn a_location_without_files_is_not_told_to_have_some() {
    let text =
        "server { listen 80; location /status { stub_status; } location /php/ { fastcgi_pass 127.0.0.1:9000; } }";
    let told = findings(text);
    for says in ["`location /status`: metrics are at the address `status`", "`location /php/`: FastCGI is not spoken"] {
        assert!(told.iter().any(|told| told.contains(says)), "{told:?}");
    }
    assert!(!told.iter().any(|told| told.contains("static files")), "{told:?}");
}
