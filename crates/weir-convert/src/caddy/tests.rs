use super::*;

fn no_files(pattern: &str) -> Result<Vec<(String, String)>, String> {
    Err(format!("{pattern} is not there"))
}

fn converted(text: &str) -> Converted {
    convert("Caddyfile", text, &no_files).expect("correct")
}

/// The findings, without the file's name.
fn findings(text: &str) -> Vec<String> {
    converted(text).findings.iter().map(|finding| finding.to_string().replace("Caddyfile:", "")).collect()
}

/// The routes in the output.
fn routes(text: &str) -> String {
    let yaml = converted(text).yaml();
    yaml.split_once("routes:\n").expect("routes").1.to_owned()
}

#[test]
fn a_site_reads_as_one_would_write_it() {
    let text = "\
{
	email ops@shop.example
}
shop.example {
	encode gzip
	handle_path /api/* {
		reverse_proxy 10.0.0.1:8080 10.0.0.2:8080 {
			lb_policy least_conn
			lb_retries 1
		}
	}
	reverse_proxy 10.0.0.3:3000
}
";
    let yaml = converted(text).yaml();
    let (head, rest) = yaml.split_once("global_rules:").expect("global rules");
    assert_eq!(
        head,
        r#"# To be checked:
#   Caddyfile:7: behaves differently: an upstream that sends nothing for 60 s is answered for with 504, see `timeout`; Caddy waits for ever
#   Caddyfile:7: behaves differently: paths are matched case-sensitively; Caddy ignores the case

listen: [":80", { address: ":443", tls: true }]
allow_encoded_slashes: true
acme: { hosts: [shop.example], terms_of_service_agreed: true, email: "ops@shop.example" }

"#
    );
    assert_eq!(
        rest.split_once("routes:\n").expect("routes").1,
        r#"  # Caddyfile:7: reverse_proxy 10.0.0.1:8080 10.0.0.2:8080
  - id: reverse-proxy-10-0-0-1-8080-10-0-0-2-8080
    uri: /api/*
    host: shop.example
    upstream: { nodes: { "10.0.0.1:8080": 1, "10.0.0.2:8080": 1 }, type: least_conn, retries: 1 }
    plugins:
      proxy-rewrite: { regex_uri: ["^/api/(.*)", /$1] }
  # Caddyfile:12: reverse_proxy 10.0.0.3:3000
  - id: reverse-proxy-10-0-0-3-3000
    uri: /*
    host: shop.example
    upstream: { nodes: { "10.0.0.3:3000": 1 } }
"#
    );
    assert!(rest.contains("gzip:") && rest.contains("uri: https://$host$request_uri"), "{rest}");
}

#[test]
fn directives_that_are_not_converted_are_reported_with_their_line() {
    let text = "\
:8080 {
	root * /srv
	@inside expression path('/x')
	header @inside A b
	handle @inside {
		respond inside
	}
	php_fastcgi /app/* localhost:9000
	reverse_proxy /api/* unix//run/app.sock
}
";
    assert_eq!(
        findings(text),
        [
            "2: not converted: `root * /srv`: static files are not served; use a file server as an upstream",
            "4: not converted: `header @inside A b`: `expression path('/x')`: the condition is not converted",
            "5: not converted: `handle @inside`: `expression path('/x')`: the condition is not converted; the route answers \
             with 503",
            "8: not converted: `php_fastcgi /app/* localhost:9000`: only HTTP upstreams are supported; use a server that \
             speaks HTTP in front of PHP; the route answers with 404",
            "9: not converted: `reverse_proxy /api/* unix//run/app.sock`: `unix//run/app.sock`: Unix sockets are not supported; \
             an endpoint needs an address and a port; the route answers with 503",
        ]
    );
}

#[test]
fn route_with_unconverted_access_control_answers_503() {
    for text in [
        ":80 {\n basic_auth {\n  alice plain\n }\n reverse_proxy a:1\n}",
        ":80 {\n forward_auth a:1 b:2 {\n  uri /x\n }\n reverse_proxy a:1\n}",
        ":80 {\n @a vars x y\n respond @a 403\n reverse_proxy a:1\n}",
        ":80 {\n reverse_proxy {http.vars.backend}\n}",
        ":80 {\n imaginary\n reverse_proxy a:1\n}",
    ] {
        let routes = routes(text);
        assert!(routes.contains("http_status: 503") && !routes.contains("nodes"), "{routes}");
    }
}

#[test]
fn the_address_that_a_trusted_proxy_names_is_that_of_the_client() {
    let text = |servers: &str, matcher: &str| {
        format!(
            "{{\n servers {{\n{servers}\n }}\n}}\n:80 {{\n @in {matcher} 11.0.0.0/8\n respond @in 403\n reverse_proxy a:1\n}}"
        )
    };
    let strict = "trusted_proxies static 10.0.0.0/8\ntrusted_proxies_strict";
    let yaml = converted(&text(strict, "remote_ip")).yaml();
    let rule = "real-ip: { source: http_x_forwarded_for, trusted_addresses: [\"10.0.0.0/8\"], recursive: true }";
    assert!(yaml.contains(rule) && yaml.contains("trusted_addresses: [\"10.0.0.0/8\"]\n"), "{yaml}");
    assert!(yaml.contains("realip_remote_addr, ipmatch") && !yaml.contains("503"), "{yaml}");
    let closed = converted(&text(strict, "client_ip")).yaml();
    assert!(closed.contains("http_status: 503") && !closed.contains("ipmatch"), "{closed}");
    assert!(closed.contains("before `real-ip` finds the client's"), "{closed}");
    let open = converted(&text("", "client_ip")).yaml();
    assert!(open.contains("remote_addr, ipmatch") && !open.contains("503") && !open.contains("real-ip"), "{open}");
    let found = findings(&text("trusted_proxies static 10.0.0.0/8\nclient_ip_headers X-A X-B", "remote_ip"));
    assert!(
        found[0].contains("only `X-A` is read")
            && found.iter().any(|found| found.contains("Caddy takes the first one")),
        "{found:?}"
    );
}

#[test]
fn a_redirect_by_a_field_of_the_load_balancer_names_the_setting_that_it_needs() {
    let site = ":80 {\n @http header X-Forwarded-Proto http\n redir @http https://{host}{uri}\n reverse_proxy a:1\n}";
    let told =
        |text: &str| findings(text).into_iter().find(|found| found.contains("`$http_x_forwarded_proto` counts only"));
    assert!(told(site).is_some_and(|found| found.contains("not converted")));
    let trusted = format!("{{\n servers {{\n trusted_proxies static 10.0.0.0/8\n }}\n}}\n{site}");
    assert!(told(&trusted).is_some_and(|found| found.contains("behaves differently")));
    assert!(told(&site.replace("-Proto", "-For")).is_none());
}

#[test]
fn an_answer_behind_a_login_comes_after_it() {
    let text = ":80 {\n basic_auth {\n  alice $2a$14$x\n }\n respond secret\n}";
    let routes = routes(text);
    assert!(routes.contains("mocking:") && routes.contains("_meta: { priority: 1 }"), "{routes}");
    assert!(!routes.contains("fault-injection") && !routes.contains("consumer-restriction"), "{routes}");
}

#[test]
fn a_condition_stands_with_the_paths_of_later_routes() {
    let text =
        ":80 {\n @bot header User-Agent *bot*\n respond @bot 403\n reverse_proxy /a/* a:1\n reverse_proxy b:1\n}";
    assert!(routes(text).contains("uris: [/*, /a/*]\n    vars: [[http_user_agent, \"~~\", bot]]\n    priority: 1\n"));
}

#[test]
fn a_field_for_some_responses_needs_no_further_route() {
    let text = ":80 {\n header /static/* Cache-Control max-age=60\n reverse_proxy a:1\n}";
    let routes = routes(text);
    assert!(routes.contains("vars: [[uri, \"~~\", ^/static/]]") || routes.contains("^/static/"), "{routes}");
    assert_eq!(routes.matches("- id").count(), 1, "{routes}");
}

#[test]
fn directives_that_caddy_joins_are_told() {
    let text = ":80 {\n handle /A {\n  respond a\n }\n handle /A {\n  respond b\n }\n}";
    assert!(findings(text).iter().any(|found| found.starts_with("5: behaves differently: `handle /A`: Caddy joins")));
}

#[test]
fn too_many_ways_through_a_site_close_it() {
    let matchers: String = (0..40).map(|n| format!(" @m{n} query a{n}=1\n request_header @m{n} A{n} b\n")).collect();
    let routes = routes(&format!(":80 {{\n{matchers} reverse_proxy a:1\n}}"));
    assert!(routes.contains("http_status: 503") && routes.matches("- id").count() == 1, "{routes}");
}

#[test]
fn sites_on_several_ports_are_told_apart() {
    let text = "http://a.example {\n respond a\n}\nhttps://a.example {\n tls cert.pem key.pem\n respond b\n}\n:8080 {\n respond c\n}";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("listen: [\":80\", \":8080\", { address: \":443\", tls: true }]"), "{yaml}");
    for port in ["80", "443", "8080"] {
        assert!(yaml.contains(&format!("vars: [[server_port, \"==\", \"{port}\"]]")), "{yaml}");
    }
    assert!(yaml.contains("snis: [a.example]") && !yaml.contains("redirect"), "{yaml}");
}

#[test]
fn snippets_and_files_stand_where_they_are_imported() {
    let include = |pattern: &str| match pattern {
        "sites/*" => Ok(vec![("sites/a".to_owned(), "a.example {\n import answer {args[0]}\n}".to_owned())]),
        "loop" => Ok(vec![("loop".to_owned(), "import loop".to_owned())]),
        other => Err(format!("{other} is not there")),
    };
    let text = "(answer) {\n respond {args[0]} 202\n}\nimport sites/* hello\nimport gone.conf";
    let converted = convert("Caddyfile", text, &include).expect("correct");
    assert!(converted.yaml().contains("# Caddyfile:2: respond hello 202"), "{}", converted.yaml());
    let told: Vec<_> = converted.findings.iter().map(ToString::to_string).collect();
    assert!(
        told.contains(&"Caddyfile:5: not converted: `import gone.conf`: gone.conf is not there".to_owned()),
        "{told:?}"
    );
    let error = convert("c", "import loop", &include).expect_err("endless");
    assert!(error.text.contains("more than 16 levels deep"), "{error}");
}

#[test]
fn failures_of_endpoints_are_counted_as_far_as_checks_do() {
    let text = ":80 {\n reverse_proxy a:1 b:1 {\n  fail_duration 5s\n  max_fails 300\n }\n}";
    assert!(converted(text).yaml().contains("tcp_failures: 254"), "{}", converted(text).yaml());
    assert!(findings(text).iter().any(|found| found.contains("`max_fails 300`: at most 254")), "{:?}", findings(text));
    let text = ":80 {\n reverse_proxy a:1 b:1 {\n  max_fails 3\n  unhealthy_status 5xx\n }\n}";
    for told in ["`max_fails 3`: without `fail_duration`", "`unhealthy_status 5xx`: without `fail_duration`"] {
        assert!(findings(text).iter().any(|found| found.contains(told)), "{:?}", findings(text));
    }
}
