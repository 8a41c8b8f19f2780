//! Configurations of nginx that were carried over answer as the real nginx does.

use std::process::Command;

use weir_testkit::{Answer, Client, Nginx, Origin, Reading, Request, TempDir, free_port, skipped};

use crate::weir;

/// What a configuration is asked: method, target, host, and further fields.
type RouteQuestion = (&'static str, &'static str, &'static str, &'static str);

struct Case {
    name: &'static str,
    /// What `http` holds. `PORT` is the one to listen on, `ONE` and `TWO` are origins.
    http: &'static str,
    asked: &'static [RouteQuestion],
}

const CASES: &[Case] = &[
    Case {
        name: "prefixes, the longest of which counts, and exact paths",
        http: "server { listen 127.0.0.1:PORT;
            location / { proxy_pass http://ONE; }
            location /a { proxy_pass http://TWO; }
            location /a/b/ { return 200 deep; }
            location = /a/exact { return 200 exact; } }",
        asked: &[
            ("GET", "/", "h", ""),
            ("GET", "/x?q=1", "h", ""),
            ("GET", "/a", "h", ""),
            ("GET", "/abc", "h", ""),
            ("GET", "/a/b", "h", ""),
            ("GET", "/a/b/", "h", ""),
            ("GET", "/a/b/c", "h", ""),
            ("GET", "/a/exact", "h", ""),
            ("GET", "/a/exact/", "h", ""),
            ("POST", "/a/c", "h", ""),
        ],
    },
    Case {
        name: "regular expressions in their order, and prefixes that stop them",
        http: "server { listen 127.0.0.1:PORT; proxy_set_header Host $host;
            location / { proxy_pass http://ONE; }
            location ^~ /static/ { return 200 static; }
            location /img/ { proxy_pass http://TWO; }
            location ~ \\.php$ { return 200 php; }
            location ~* \\.(PNG|php5?)$ { return 200 picture; } }",
        asked: &[
            ("GET", "/a.php", "h", ""),
            ("GET", "/a.PHP", "h", ""),
            ("GET", "/static/a.php", "h", ""),
            ("GET", "/img/a.png", "h", ""),
            ("GET", "/img/a.gif", "h", ""),
            ("GET", "/img/a.php", "h", ""),
            ("GET", "/x.png?a=b", "h", ""),
            ("GET", "/x.png/y", "h", ""),
        ],
    },
    Case {
        name: "servers by name",
        http: "server { listen 127.0.0.1:PORT; server_name a.example www.a.example; location / { return 200 a; } }
            server { listen 127.0.0.1:PORT; server_name *.b.example; location /only { return 200 b; } }
            server { listen 127.0.0.1:PORT; server_name .c.example; location / { return 200 c; } }
            server { listen 127.0.0.1:PORT; server_name d.*; location / { return 200 d; } }",
        asked: &[
            ("GET", "/", "a.example", ""),
            ("GET", "/", "WWW.A.example", ""),
            ("GET", "/", "elsewhere", ""),
            ("GET", "/only", "x.b.example", ""),
            ("GET", "/only", "x.y.b.example", ""),
            ("GET", "/other", "x.b.example", ""),
            ("GET", "/", "b.example", ""),
            ("GET", "/", "c.example", ""),
            ("GET", "/", "x.c.example", ""),
            ("GET", "/", "d.com", ""),
        ],
    },
    Case {
        name: "a default server that is marked",
        http: "server { listen 127.0.0.1:PORT; server_name one; location / { return 200 one; } }
            server { listen 127.0.0.1:PORT default_server; server_name two; location / { return 200 two; } }",
        asked: &[("GET", "/", "one", ""), ("GET", "/", "two", ""), ("GET", "/", "three", "")],
    },
    Case {
        name: "a path in proxy_pass replaces that of the location",
        http: "server { listen 127.0.0.1:PORT;
            location /api/ { proxy_pass http://ONE/v1/; }
            location /same/ { proxy_pass http://ONE/same/; }
            location /cut/ { proxy_pass http://ONE/; }
            location = /one { proxy_pass http://ONE/exactly; }
            location /keep/ { proxy_pass http://TWO; } }",
        asked: &[
            ("GET", "/api/x/y?z=1", "h", ""),
            ("GET", "/api/", "h", ""),
            ("GET", "/same/x", "h", ""),
            ("GET", "/cut/x", "h", ""),
            ("GET", "/one?a=1", "h", ""),
            ("GET", "/keep/x", "h", ""),
        ],
    },
    Case {
        name: "the Host that upstreams get",
        http: "upstream pool { server ONE; }
            server { listen 127.0.0.1:PORT;
            location /default { proxy_pass http://pool; }
            location /direct { proxy_pass http://ONE; }
            location /client { proxy_pass http://pool; proxy_set_header Host $host; }
            location /fixed { proxy_pass http://pool; proxy_set_header Host fixed.example; } }",
        asked: &[
            ("GET", "/default", "client.example", ""),
            ("GET", "/direct", "client.example", ""),
            ("GET", "/client", "client.example", ""),
            ("GET", "/fixed", "client.example", ""),
        ],
    },
    Case {
        name: "fields that are set, removed and inherited",
        http: "proxy_set_header X-Tenant outer;
            server { listen 127.0.0.1:PORT; proxy_set_header Host $host;
            location /inherits { proxy_pass http://ONE; proxy_set_header Host $host; proxy_set_header X-Tenant $arg_t; }
            location /removes { proxy_pass http://ONE; proxy_set_header X-Tenant ''; proxy_set_header Host $host; }
            location / { proxy_pass http://ONE; } }",
        asked: &[
            ("GET", "/inherits?t=7", "h", "X-Tenant: forged\r\n"),
            ("GET", "/removes", "h", "X-Tenant: forged\r\n"),
            ("GET", "/", "h", "X-Tenant: mine\r\n"),
        ],
    },
    Case {
        name: "redirects",
        http: "server { listen 127.0.0.1:PORT; server_name old.example; return 301 https://new.example$request_uri; }
            server { listen 127.0.0.1:PORT; server_name b.example;
            location /moved { return 302 https://$host/elsewhere; }
            location /see { return 303 https://c.example/; }
            location ~ ^/user/(\\d+)$ { return 307 https://c.example/u?id=$1; }
            location /r/ { rewrite ^/r/(.*)$ https://c.example/$1 permanent; return 404; } }",
        asked: &[
            ("GET", "/a/b?c=d", "old.example", ""),
            ("POST", "/", "old.example", ""),
            ("GET", "/moved", "b.example", ""),
            ("GET", "/see", "b.example", ""),
            ("GET", "/user/12", "b.example", ""),
            ("GET", "/user/x", "b.example", ""),
        ],
    },
    Case {
        name: "paths that are rewritten for the upstream",
        http: "server { listen 127.0.0.1:PORT;
            location /a/ { rewrite ^/a/(.*)$ /b/$1 break; proxy_pass http://ONE; }
            location /c/ { rewrite old /new break; proxy_pass http://ONE; }
            location /d/ { rewrite ^/d/one /first break; rewrite ^/d/two /second break; proxy_pass http://ONE; } }",
        asked: &[
            ("GET", "/a/x?q=1", "h", ""),
            ("GET", "/c/very/old/path", "h", ""),
            ("GET", "/c/other", "h", ""),
            ("GET", "/d/one/x", "h", ""),
            ("GET", "/d/two", "h", ""),
            ("GET", "/d/three", "h", ""),
        ],
    },
    Case {
        name: "conditions that answer",
        http: "server { listen 127.0.0.1:PORT;
            if ($request_method = DELETE) { return 405; }
            if ($http_user_agent ~* badbot) { return 403; }
            location / { proxy_pass http://ONE; }
            location /x/ { if ($arg_debug) { return 404; } if ($http_x_a != yes) { return 401; } proxy_pass http://TWO; } }",
        asked: &[
            ("DELETE", "/", "h", ""),
            ("DELETE", "/x/", "h", "X-A: yes\r\n"),
            ("GET", "/", "h", "User-Agent: a BadBot 1\r\n"),
            ("GET", "/x/", "h", "X-A: yes\r\n"),
            ("GET", "/x/?debug=1", "h", "X-A: yes\r\n"),
            ("GET", "/x/?debug=0", "h", "X-A: yes\r\n"),
            ("GET", "/x/", "h", ""),
            ("GET", "/", "h", "User-Agent: curl\r\n"),
        ],
    },
    Case {
        name: "addresses",
        http: "server { listen 127.0.0.1:PORT;
            location /open { allow 127.0.0.0/8; deny all; return 200 open; }
            location /shut { deny 127.0.0.1; allow all; proxy_pass http://ONE; }
            location /none { deny all; proxy_pass http://ONE; }
            location /pass { allow 127.0.0.1; deny all; proxy_pass http://ONE; } }",
        asked: &[("GET", "/shut", "h", ""), ("GET", "/none", "h", ""), ("GET", "/pass", "h", "")],
    },
    Case {
        name: "the size of bodies",
        http: "client_max_body_size 10;
            server { listen 127.0.0.1:PORT;
            location / { proxy_pass http://ONE; }
            location /large { client_max_body_size 1k; proxy_pass http://ONE; } }",
        asked: &[
            ("POST", "/", "h", "Content-Length: 10\r\n"),
            ("POST", "/", "h", "Content-Length: 11\r\n"),
        ],
    },
    Case {
        name: "fields of responses",
        http: "add_header X-All yes;
            server { listen 127.0.0.1:PORT;
            location / { proxy_pass http://ONE; }
            location /own { add_header X-Own $host; proxy_hide_header X-Origin; proxy_pass http://ONE; } }",
        asked: &[("GET", "/", "h", ""), ("GET", "/own", "h.example", "")],
    },
    Case {
        name: "locations within locations",
        http: "server { listen 127.0.0.1:PORT;
            location / { proxy_pass http://ONE; }
            location /a/ { proxy_pass http://TWO; location /a/b/ { return 200 inner; } location ~ \\.x$ { return 200 inner-x; } }
            location ~ \\.[xy]$ { return 200 outer; } }",
        asked: &[
            ("GET", "/a/1", "h", ""),
            ("GET", "/a/b/1", "h", ""),
            ("GET", "/a/1.x", "h", ""),
            ("GET", "/a/1.y", "h", ""),
            ("GET", "/1.x", "h", ""),
        ],
    },
    Case {
        name: "quotes, braces and comments",
        http: "server { listen 127.0.0.1:PORT; # a comment; with { braces }
            location / { return 200 \"it's {here}; \\\"now\\\"\"; }
            location ~ \"^/\\d{3}$\" { return 200 'three digits'; } }",
        asked: &[("GET", "/", "h", ""), ("GET", "/123", "h", ""), ("GET", "/1234", "h", "")],
    },
];

fn echo(name: &'static str) -> Origin {
    Origin::reading(Reading::Strict, move |request: &Request| {
        let told = ["host", "x-tenant"].map(|field| format!("{field}={}", request.headers.get(field).unwrap_or("-")));
        let body = format!("{name} {} {} {}", request.method, request.target, told.join(" "));
        Answer::with(200, "X-Origin: yes\r\n", body)
    })
}

/// What is compared: the status, the place of a redirect, the body of a success, and fields that were asked for.
fn told(addr: std::net::SocketAddr, (method, target, host, fields): RouteQuestion) -> String {
    let length = fields.split("Content-Length: ").nth(1).and_then(|rest| rest.trim().parse().ok()).unwrap_or(0);
    let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{}", "b".repeat(length));
    let response = Client::connect(addr).ask(request).expect("an answer");
    let fields =
        ["location", "x-all", "x-own", "x-origin"].map(|field| response.headers.get(field).unwrap_or("-").to_owned());
    let body = if response.status == 200 { response.text() } else { String::new() };
    format!("{} {} {body}", response.status, fields.join(" "))
}

#[test]
fn configurations_of_nginx_answer_as_nginx_does() {
    let (one, two) = (echo("one"), echo("two"));
    let text = |case: &Case, port: u16| {
        let text = case.http.replace("PORT", &port.to_string()).replace("ONE", &one.addr().to_string());
        text.replace("TWO", &two.addr().to_string())
    };
    for case in CASES {
        let Some(nginx) = Nginx::start(|port| text(case, port)) else { return skipped("there is no nginx") };
        let port = free_port();
        let directory = TempDir::new();
        let file = directory.write("nginx.conf", format!("http {{ {} }}", text(case, port)));
        let output =
            Command::new(env!("CARGO_BIN_EXE_weir")).args(["convert", "nginx"]).arg(&file).output().expect("it runs");
        let yaml = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let gateway = weir().start(&yaml);
        for &asked in case.asked {
            let (theirs, ours) = (told(nginx.addr(), asked), told(gateway.addr(), asked));
            assert_eq!(ours, theirs, "{}: {asked:?}\n{yaml}", case.name);
        }
    }
}
