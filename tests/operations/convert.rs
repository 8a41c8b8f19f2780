//! Configurations of nginx that were carried over answer as the real nginx does.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_testkit::{Answer, Client, Fields, Gateway, Nginx, Origin, Reading, Request, TempDir, free_port, skipped};

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
        name: "allow and deny: the first rule that matches, of the innermost block that has any",
        http: "deny all;
            server { listen 127.0.0.1:PORT; allow 127.0.0.0/8;
            location /inherits { proxy_pass http://ONE; }
            location /one { deny 10.0.0.5; deny all; proxy_pass http://ONE; }
            location /all { allow all; deny all; proxy_pass http://ONE; }
            location /first { deny all; allow 127.0.0.1; proxy_pass http://ONE; }
            location /only { deny 192.0.2.1; proxy_pass http://ONE; }
            location /mixed { deny 127.0.0.1; allow 127.0.0.0/8; deny all; proxy_pass http://ONE; }
            location /out { deny 127.0.0.2; allow 127.0.0.0/8; deny all; proxy_pass http://ONE; }
            location /returns { deny all; return 200 anyway; } }",
        asked: &[
            ("GET", "/inherits", "h", ""),
            ("GET", "/one", "h", ""),
            ("GET", "/all", "h", ""),
            ("GET", "/first", "h", ""),
            ("GET", "/only", "h", ""),
            ("GET", "/mixed", "h", ""),
            ("GET", "/out", "h", ""),
            ("GET", "/returns", "h", ""),
        ],
    },
    Case {
        name: "methods that limit_except does not name",
        http: "server { listen 127.0.0.1:PORT;
            location /read { limit_except GET { deny all; } proxy_pass http://ONE; }
            location /local { limit_except get post { allow 127.0.0.1; deny all; } deny all; proxy_pass http://ONE; }
            location ~ ^/re { limit_except POST { deny all; } proxy_pass http://TWO; } }",
        asked: &[
            ("GET", "/read", "h", ""),
            ("HEAD", "/local", "h", ""),
            ("POST", "/read", "h", "Content-Length: 0\r\n"),
            ("DELETE", "/local", "h", ""),
            ("GET", "/local", "h", ""),
            ("GET", "/re/x", "h", ""),
            ("POST", "/re/x", "h", "Content-Length: 0\r\n"),
        ],
    },
    Case {
        name: "locations that are internal",
        http: "server { listen 127.0.0.1:PORT;
            location / { proxy_pass http://ONE; }
            location /protected/ { internal; proxy_pass http://TWO; }
            location ~ \\.secret$ { internal; proxy_pass http://TWO; } }",
        asked: &[
            ("GET", "/", "h", ""),
            ("GET", "/protected/x", "h", ""),
            ("GET", "/a.secret", "h", ""),
        ],
    },
    Case {
        name: "the names of the default server beside patterns of others",
        http: "server { listen 127.0.0.1:PORT; server_name www.a.example; location / { proxy_pass http://ONE; } }
            server { listen 127.0.0.1:PORT; server_name *.a.example;
                     return 301 https://www.a.example$request_uri; }
            server { listen 127.0.0.1:PORT; server_name ~^.+\\.example$; return 200 expression; }
            server { listen 127.0.0.1:PORT; server_name ~^b.*\\.example$; return 200 second; }",
        asked: &[
            ("GET", "/x", "www.a.example", ""),
            ("GET", "/x", "b.a.example", ""),
            ("GET", "/x", "a.example", ""),
            ("GET", "/x", "b.example", ""),
            ("GET", "/x", "elsewhere", ""),
        ],
    },
    Case {
        name: "expressions of the default server and of others, in their order, after names with a wildcard",
        http: "server { listen 127.0.0.1:PORT; server_name ~^a; location / { return 200 first; } }
            server { listen 127.0.0.1:PORT; server_name ~^ab; location / { return 200 second; } }
            server { listen 127.0.0.1:PORT; server_name abc.*; location / { return 200 wildcard; } }
            server { listen 127.0.0.1:PORT; server_name abc.d.*; location / { return 200 longer; } }",
        asked: &[
            ("GET", "/", "ab", ""),
            ("GET", "/", "abc.e", ""),
            ("GET", "/", "abc.d.e", ""),
            ("GET", "/", "b", ""),
        ],
    },
    Case {
        name: "expressions and the paths of other servers",
        http: "server { listen 127.0.0.1:PORT; location / { return 200 any; } location /api/ { proxy_pass http://ONE; }
                location = /exact { return 200 exact; } location ~ \\.x$ { return 200 any-x; } }
            server { listen 127.0.0.1:PORT; server_name ~^admin; deny all; location / { proxy_pass http://TWO; } }
            server { listen 127.0.0.1:PORT; server_name part.*; location /api { return 200 part; } location ~ y$ { return 200 y; } }
            server { listen 127.0.0.1:PORT; server_name gone.*; if ($arg_a) { return 403; } return 410; }
            server { listen 127.0.0.1:PORT; server_name a.example; location /api/v1/ { return 200 v1; } }",
        asked: &[
            ("GET", "/api/x", "admin.example", ""),
            ("GET", "/api", "admin.example", ""),
            ("GET", "/api/v1/x", "admin.example", ""),
            ("GET", "/exact", "admin.example", ""),
            ("GET", "/a.x", "admin.example", ""),
            ("GET", "/api/x", "part.example", ""),
            ("GET", "/apix", "part.example", ""),
            ("GET", "/api/y", "part.example", ""),
            ("GET", "/exact", "part.example", ""),
            ("GET", "/y", "part.example", ""),
            ("GET", "/z", "part.example", ""),
            ("GET", "/api/x", "gone.example", ""),
            ("GET", "/exact?a=1", "gone.example", ""),
            ("GET", "/api/v1/x", "a.example", ""),
            ("GET", "/api/x", "a.example", ""),
            ("GET", "/api/v1/x", "other.example", ""),
            ("GET", "/a.x", "other.example", ""),
        ],
    },
    Case {
        name: "a server on another address of the same port",
        http: "server { listen 127.0.0.1:PORT; location / { return 200 public; } }
            server { listen 127.0.0.2:PORT; server_name admin.example; location / { proxy_pass http://ONE; } }",
        asked: &[("GET", "/", "h", ""), ("GET", "/", "admin.example", "")],
    },
    Case {
        name: "what a server is called",
        http: "server { listen 127.0.0.1:PORT; server_name new.example old.example;
            location / { return 301 https://$server_name$request_uri; }
            location /to { proxy_pass http://ONE; proxy_set_header X-Tenant $server_name; } }",
        asked: &[("GET", "/a?b", "old.example", ""), ("GET", "/to", "old.example", "")],
    },
    Case {
        name: "fields about the client with values of their own",
        http: "server { listen 127.0.0.1:PORT; proxy_set_header Host $host; proxy_set_header X-Forwarded-Proto https;
            proxy_set_header X-Real-IP $http_x_client; proxy_set_header X-Scheme $scheme;
            proxy_set_header X-Forwarded-Server $host; proxy_set_header X-Forwarded-Port 443;
            proxy_set_header X-Forwarded-Host shop.example; proxy_set_header X-Forwarded-For $remote_addr;
            location /about { proxy_pass http://ONE; }
            location /about/usual { proxy_set_header Host $host; proxy_set_header X-Real-IP $remote_addr;
                proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host;
                proxy_set_header X-Forwarded-Port $server_port; proxy_set_header X-Forwarded-For $remote_addr;
                proxy_set_header X-Tenant a; proxy_set_header X-Tenant b; proxy_pass http://TWO; } }",
        asked: &[
            ("GET", "/about", "h", "X-Client: 192.0.2.7\r\n"),
            ("GET", "/about/usual", "h", "X-Forwarded-For: 1.2.3.4\r\n"),
        ],
    },
    Case {
        name: "fields that are added several times, to some statuses, beside hidden ones",
        http: "add_header X-All yes;
            server { listen 127.0.0.1:PORT; 
            location / { add_header X-Own 1; add_header X-Own 2; proxy_pass http://ONE; }
            location /added { add_header X-Origin 1; add_header X-Origin 2; proxy_pass http://ONE; }
            location /hidden { proxy_hide_header X-Origin; add_header X-Origin no always; proxy_pass http://ONE; }
            location /fails { proxy_pass http://ONE; }
            location /fails/always { add_header X-All always always; proxy_pass http://ONE; }
            location /moved { return 302 /x; }
            location /gone { return 410 gone; }
            location /if { if ($request_method = OPTIONS) { add_header X-Own if; return 204; } proxy_pass http://ONE; } }",
        asked: &[
            ("GET", "/", "h", ""),
            ("GET", "/added", "h", ""),
            ("GET", "/hidden", "h", ""),
            ("GET", "/fails", "h", ""),
            ("GET", "/fails/always", "h", ""),
            ("GET", "/moved", "h", ""),
            ("GET", "/gone", "h", ""),
            ("OPTIONS", "/if", "h", ""),
            ("GET", "/if", "h", ""),
        ],
    },
    Case {
        name: "answers before the rest of a block, in their order",
        http: "server { listen 127.0.0.1:PORT;
            rewrite ^/old/(.*)$ https://a.example/$1 permanent;
            if ($http_x_stop) { return 403; }
            location / { if ($request_method = POST) { return 405; } proxy_pass http://ONE; }
            location ~ \\.php$ { proxy_pass http://TWO; }
            location ~ \\.x$ { if ($arg_a) { return 401; } if ($arg_b) { return 402; } proxy_pass http://TWO; }
            location ~ x$ { if ($arg_b) { return 404; } proxy_pass http://TWO; }
            location /r/ { rewrite ^/r/a/(.*)$ https://a.example/$1 permanent; rewrite ^/r/(.*)$ https://b.example/$1 redirect;
                return 404; }
            location /late/ { return 200 first; if ($arg_a) { return 403; } }
            location /agent/ { if ($http_user_agent ~ ^$) { return 403; } if ($http_x !~ ^(a|b)?$) { return 404; }
                proxy_pass http://ONE; } }
            server { listen 127.0.0.1:PORT; server_name away.example;
                rewrite ^/one https://c.example/ permanent; return 301 https://d.example/; }",
        asked: &[
            ("GET", "/old/x", "h", "X-Stop: yes\r\n"),
            ("GET", "/", "h", "X-Stop: yes\r\n"),
            ("POST", "/", "h", "Content-Length: 0\r\n"),
            ("POST", "/a.php", "h", "Content-Length: 0\r\n"),
            ("GET", "/a.x?b=1", "h", ""),
            ("GET", "/a.x?a=1&b=1", "h", ""),
            ("GET", "/ax?b=1", "h", ""),
            ("GET", "/a.x", "h", ""),
            ("GET", "/r/a/b", "h", ""),
            ("GET", "/r/b", "h", ""),
            ("GET", "/late/?a=1", "h", ""),
            ("GET", "/agent/", "h", ""),
            ("GET", "/agent/", "h", "User-Agent: x\r\n"),
            ("GET", "/agent/", "h", "User-Agent: x\r\nX: c\r\n"),
            ("GET", "/agent/", "h", "User-Agent: x\r\nX: a\r\n"),
            ("GET", "/one", "away.example", ""),
            ("GET", "/two", "away.example", ""),
        ],
    },
    Case {
        name: "a path for the upstream of variables",
        http: "server { listen 127.0.0.1:PORT;
            location ~ ^/api/(v[12])/(.*)$ { proxy_pass http://ONE/$1/svc/$2$is_args$args; }
            location ~* ^/of/(?<tenant>[a-z]+)/ { proxy_pass http://TWO/x/${tenant}$is_args$args; }
            location /base/ { proxy_pass http://ONE/b$request_uri; }
            location /host/ { proxy_pass http://TWO/$host$uri$is_args$args; }
            location /kept/ { rewrite ^/kept/(.*) /$1 break; proxy_pass http://ONE$request_uri; } }",
        asked: &[
            ("GET", "/api/v1/a/b?x=1", "h", ""),
            ("GET", "/api/v2/", "h", ""),
            ("GET", "/api//v1//a", "h", ""),
            ("GET", "/of/ann/z?q=1", "h", ""),
            ("GET", "/OF/ANN/z", "h", ""),
            ("GET", "/base/q?a=b", "h", ""),
            ("GET", "/base/a%20b", "h", ""),
            ("GET", "/host/a?b=1", "h", ""),
            ("GET", "/kept/a?b=1", "h", ""),
        ],
    },
    Case {
        name: "an upstream that variables select",
        http: "upstream blue { server ONE; } upstream green { server TWO; }
            map $http_x_tenant $backend { default blue; acme green; \"\" TWO; ~^b[0-9]+$ TWO; ~*^C green; none \"\"; }
            map $host $site { hostnames; default http://blue; .b.example http://green; *.x.b.example http://ONE; b.* http://ONE;
                a.example http://TWO; ~^r http://green; }
            geo $arg_from $area { default blue; 10.0.0.0/8 green; 10.1.0.0/16 ONE; 10.1.2.3 TWO; }
            split_clients $remote_addr $all { * green; }
            map $arg_canary $part { default blue; yes $all; more $backend; }
            server { listen 127.0.0.1:PORT;
            location / { proxy_pass http://$backend; }
            location /host/ { proxy_set_header Host $host; proxy_pass http://${backend}; }
            location /path/ { proxy_pass http://$backend/fixed$is_args$args; }
            location /own/ { proxy_pass http://$backend$request_uri; }
            location ~ ^/groups/(.*)$ { proxy_pass http://$backend/g/$1$is_args$args; }
            location /site/ { proxy_pass $site; }
            location /area/ { proxy_pass http://$area; }
            location /part/ { proxy_pass http://$part; } }",
        asked: &[
            ("GET", "/a?b=1", "h", ""),
            ("GET", "/a?b=1", "h", "X-Tenant: acme\r\n"),
            ("GET", "/", "h", "X-Tenant: ACME\r\n"),
            ("GET", "/", "h", "X-Tenant: acme2\r\n"),
            ("GET", "/", "h", "X-Tenant: b7\r\n"),
            ("GET", "/", "h", "X-Tenant: B7\r\n"),
            ("GET", "/", "h", "X-Tenant: cc\r\n"),
            ("GET", "/", "h", "X-Tenant: none\r\n"),
            ("GET", "/", "h", "X-Tenant: other\r\n"),
            ("GET", "/host/", "h", "X-Tenant: acme\r\n"),
            ("GET", "/host/", "h", ""),
            ("GET", "/path/x?q=1", "h", "X-Tenant: acme\r\n"),
            ("GET", "/path/x", "h", ""),
            ("GET", "/own/x?q=1", "h", "X-Tenant: acme\r\n"),
            ("GET", "/groups/x/y?q=1", "h", "X-Tenant: acme\r\n"),
            ("GET", "/site/", "a.example", ""),
            ("GET", "/site/", "A.Example:81", ""),
            ("GET", "/site/", "b.example", ""),
            ("GET", "/site/", "w.b.example", ""),
            ("GET", "/site/", "w.x.b.example", ""),
            ("GET", "/site/", "x.b.example", ""),
            ("GET", "/site/", "b.org", ""),
            ("GET", "/site/", "r.org", ""),
            ("GET", "/site/", "z.org", ""),
            ("GET", "/area/?from=10.2.0.1", "h", ""),
            ("GET", "/area/?from=10.1.0.1", "h", ""),
            ("GET", "/area/?from=10.1.2.3", "h", ""),
            ("GET", "/area/?from=192.0.2.1", "h", ""),
            ("GET", "/area/", "h", ""),
            ("GET", "/part/", "h", ""),
            ("GET", "/part/?canary=yes", "h", ""),
            ("GET", "/part/?canary=more", "h", "X-Tenant: b7\r\n"),
            ("GET", "/part/?canary=more", "h", "X-Tenant: other\r\n"),
            ("GET", "/part/?canary=more", "h", "X-Tenant: none\r\n"),
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

/// Fields in which upstreams are told about the client.
const ABOUT_CLIENTS: [&str; 7] = [
    "x-real-ip",
    "x-scheme",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-server",
];

/// All values of a field, or a dash.
fn values(fields: &Fields, name: &str) -> String {
    let values: Vec<&str> = fields.all(name).collect();
    if values.is_empty() { "-".to_owned() } else { values.join("|") }
}

fn echo(name: &'static str) -> Origin {
    Origin::reading(Reading::Strict, move |request: &Request| {
        let values = |field: &str| values(&request.headers, field);
        let mut told = ["host", "x-tenant"].map(|field| format!("{field}={}", values(field))).to_vec();
        // The gateway tells the upstream about the client in any case; nginx only where its configuration says so.
        if request.target.starts_with("/about") {
            told.extend(ABOUT_CLIENTS.map(|field| format!("{field}={}", values(field))));
        }
        let body = format!("{name} {} {} {}", request.method, request.target, told.join(" "));
        let status = if request.target.starts_with("/fails") { 500 } else { 200 };
        Answer::with(status, "X-Origin: yes\r\n", body)
    })
}

/// What is compared: the status, the place of a redirect, the body of a success, and fields that were asked for.
fn told(addr: SocketAddr, (method, target, host, fields): RouteQuestion) -> String {
    let length = fields.split("Content-Length: ").nth(1).and_then(|rest| rest.trim().parse().ok()).unwrap_or(0);
    let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{}", "b".repeat(length));
    let response = Client::connect(addr).ask(request).expect("an answer");
    let fields = ["location", "x-all", "x-own", "x-origin"].map(|field| values(&response.headers, field));
    let body = if response.status == 200 { response.text() } else { String::new() };
    let told = format!("{} {} {body}", response.status, fields.join(" "));
    // A `Location` on the server itself may be absolute or relative, and the two servers have different ports.
    let port = addr.port().to_string();
    told.replace(&format!("http://{host}:{port}/"), "/").replace(&port, "PORT")
}

/// Starts nginx with a configuration, and a gateway with the converted one; returns them with the findings. `None` without nginx.
fn both(http: &str, origins: [&Origin; 2]) -> Option<(Nginx, Gateway, String, String)> {
    let [one, two] = origins.map(|origin| origin.addr().to_string());
    let text = |port: u16| http.replace("PORT", &port.to_string()).replace("ONE", &one).replace("TWO", &two);
    let nginx = Nginx::start(text)?;
    let directory = TempDir::new();
    let file = directory.write("nginx.conf", format!("http {{ {} }}", text(free_port())));
    let output =
        Command::new(env!("CARGO_BIN_EXE_weir")).args(["convert", "nginx"]).arg(&file).output().expect("it runs");
    let (yaml, findings) = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text")).into();
    assert!(output.status.success(), "{findings}");
    Some((nginx, weir().start(&yaml), yaml, findings))
}

#[test]
fn configurations_of_nginx_answer_as_nginx_does() {
    let (one, two) = (echo("one"), echo("two"));
    let mut wrong = Vec::new();
    for case in CASES {
        let Some((nginx, gateway, yaml, _)) = both(case.http, [&one, &two]) else {
            return skipped("there is no nginx");
        };
        for &asked in case.asked {
            let (theirs, ours) = (told(nginx.addr(), asked), told(gateway.addr(), asked));
            if ours != theirs {
                wrong.push(format!("{}: {asked:?}\n  theirs: {theirs}\n    ours: {ours}\n{yaml}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Servers whose location `/` nginx does not let a request pass to the upstream, with something that has no counterpart; and a
/// part of the finding that says so.
const CLOSED: &[(&str, &str)] = &[
    ("location / { auth_basic staff; auth_basic_user_file /dev/null; proxy_pass http://ONE; }", "write `basic-auth`"),
    (
        "auth_request /auth; location / { proxy_pass http://ONE; } location = /auth { internal; return 401; }",
        "`forward-auth`",
    ),
    (
        "auth_basic staff; auth_basic_user_file /dev/null; location / { satisfy any; deny all; proxy_pass http://ONE; }",
        "`satisfy any`",
    ),
    (
        "valid_referers blocked shop.example; if ($invalid_referer) { return 403; } location / { proxy_pass http://ONE; }",
        "`if ($invalid_referer)`",
    ),
    (
        "location / { valid_referers shop.example ~a^b; if ($invalid_referer) { return 403; } proxy_pass http://ONE; }",
        "`if ($invalid_referer)`",
    ),
    ("set $ok 0; if ($ok = 0) { return 403; } location / { proxy_pass http://ONE; }", "`if ($ok = 0)`"),
    (
        "location / { if ($http_x_token != $cookie_token) { return 401; } proxy_pass http://ONE; }",
        "`if ($http_x_token != $cookie_token)`",
    ),
    (
        "location / { secure_link $arg_md5; secure_link_md5 secret; if ($secure_link = '') { return 403; } proxy_pass http://ONE; }",
        "`if ($secure_link =  )`",
    ),
    (
        "location / { rewrite ^ /admin/x last; proxy_pass http://ONE; } location /admin/ { deny all; proxy_pass http://ONE; }",
        "`rewrite ^ /admin/x last`",
    ),
    (
        "location / { limit_except POST { auth_basic staff; auth_basic_user_file /dev/null; } proxy_pass http://ONE; }",
        "write `basic-auth`",
    ),
];

#[test]
fn request_refused_by_nginx_for_an_unconverted_reason_is_refused() {
    let (one, two) = (echo("one"), echo("two"));
    for (server, told) in CLOSED {
        let http = format!("server {{ listen 127.0.0.1:PORT; {server} }}");
        let Some((nginx, gateway, yaml, findings)) = both(&http, [&one, &two]) else {
            return skipped("there is no nginx");
        };
        let ask = |addr: SocketAddr| {
            Client::connect(addr).ask("GET / HTTP/1.1\r\nHost: h\r\nX-Token: a\r\n\r\n").expect("an answer")
        };
        let (theirs, ours) = (ask(nginx.addr()).status, ask(gateway.addr()).status);
        assert!([401, 403].contains(&theirs), "{server}: nginx answered {theirs}");
        assert_eq!(ours, 503, "{server}:\n{yaml}");
        let found = findings.lines().find(|line| line.contains(told));
        assert!(found.is_some() && findings.contains("503"), "{server}: {findings}");
    }
    assert!(one.requests().is_empty(), "a request reached the upstream");
}

/// By `openssl passwd -apr1` and `htpasswd -B`. The second line of a name has no effect.
const USERS: &str = "\
ann:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/
bob:$2y$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC
bob:$apr1$r31.....$G/cElGhD0cboYkZN5h5Ne/
";

#[test]
fn users_of_nginx_log_in_as_before() {
    let (one, two) = (echo("one"), echo("two"));
    let directory = TempDir::new();
    let login = format!("auth_basic staff; auth_basic_user_file {};", directory.write("users", USERS).display());
    let http = format!(
        "server {{ listen 127.0.0.1:PORT; {login} location / {{ proxy_pass http://ONE; }}
            location /open/ {{ auth_basic off; proxy_pass http://TWO; }}
            location /app/ {{ try_files $uri @app; }}
            location @app {{ auth_basic off; proxy_pass http://TWO; }} }}"
    );
    let Some((nginx, gateway, yaml, _)) = both(&http, [&one, &two]) else {
        return skipped("there is no nginx");
    };
    let credentials =
        [("ann:myPassword", 200), ("ann:mypassword", 401), ("bob:right", 200), ("bob:secret", 401), ("eve:right", 401)];
    for (credentials, expected) in credentials {
        let field = format!("Authorization: Basic {}\r\n", STANDARD.encode(credentials));
        for target in ["/", "/app/x"] {
            let ask = |addr: SocketAddr, field: &str| {
                Client::connect(addr)
                    .ask(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{field}\r\n"))
                    .expect("an answer")
            };
            let answers = [nginx.addr(), gateway.addr()].map(|addr| [ask(addr, &field).status, ask(addr, "").status]);
            assert_eq!(answers, [[expected, 401]; 2], "{credentials} {target}:\n{yaml}");
        }
    }
    let open = ("GET", "/open/", "h", "");
    assert_eq!(told(gateway.addr(), open), told(nginx.addr(), open), "{yaml}");
}

/// Runs the command in a directory; returns its exit status and what it said.
fn converted(arguments: &[&str], directory: &TempDir) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.arg("convert").args(arguments).current_dir(directory.path()).output().expect("it runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_file_without_its_format_names_the_command_that_is_right() {
    let directory = TempDir::new();
    directory.write("gateway", "");
    for (file, right) in [
        ("nginx.conf", "`weir convert nginx nginx.conf`"),
        ("/etc/caddy/Caddyfile", "`weir convert caddy /etc/caddy/Caddyfile`"),
        ("gateway", "`weir convert FORMAT gateway`"),
    ] {
        let (status, said) = converted(&[file], &directory);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(right), "{said}");
    }
    assert!(converted(&["ngnix", "gateway"], &directory).1.contains("a similar value exists: 'nginx'"));
}

#[test]
fn the_converted_file_is_written_where_the_option_says_and_a_fault_leaves_the_old_one() {
    let directory = TempDir::new();
    directory.write("good.conf", "http { server { listen 8080; location / { return 204; } } }");
    directory.write("bad.conf", "http {");
    let (status, said) = converted(&["nginx", "good.conf", "-o", "weir.yaml"], &directory);
    assert_eq!(status, Some(0), "{said}");
    let file = directory.path().join("weir.yaml");
    let written = std::fs::read_to_string(&file).expect("the file");
    assert!(written.contains("routes:"), "{written}");
    assert_eq!(converted(&["nginx", "bad.conf", "-o", "weir.yaml"], &directory).0, Some(1));
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), written);
    let (status, said) = converted(&["nginx", "good.conf", "-o", "nowhere/weir.yaml"], &directory);
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains("nowhere/weir.yaml: cannot be written"), "{said}");
}

#[test]
fn a_file_with_copied_users_is_one_of_its_owner_alone() {
    let directory = TempDir::new();
    directory.write("users", USERS);
    let server = "http { server { listen 8080; location / { LOGIN proxy_pass http://127.0.0.1:1; } } }";
    for (file, login, expected) in
        [("open", "", None), ("staff", "auth_basic staff; auth_basic_user_file users;", Some(0o600))]
    {
        directory.write("nginx.conf", server.replace("LOGIN", login));
        let (status, said) = converted(&["nginx", "nginx.conf", "-o", file], &directory);
        assert_eq!(status, Some(0), "{said}");
        let mode = std::fs::metadata(directory.path().join(file)).expect("the file").permissions().mode() & 0o777;
        assert_eq!((mode == 0o600).then_some(mode), expected, "{mode:o}");
    }
}

#[test]
fn a_file_of_users_that_is_none_is_told() {
    let directory = TempDir::new();
    let large = std::fs::File::create(directory.path().join("large")).expect("a file");
    large.set_len((16 << 20) + 1).expect("it is sparse");
    for (file, told) in
        [("/dev/zero", "is not a regular file"), ("large", "has more than 16 MiB"), ("gone", "there is no such file")]
    {
        let server = format!("server {{ location / {{ auth_basic a; auth_basic_user_file {file}; return 200; }} }}");
        directory.write("nginx.conf", server);
        let (status, said) = converted(&["nginx", "nginx.conf"], &directory);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains("cannot be read: ") && said.contains(told), "{file}: {said}");
    }
}

#[test]
fn a_format_that_is_wrong_or_without_a_converter_is_told() {
    let directory = TempDir::new();
    directory.write("nginx.conf", "http {\n  server {\n    listen 8080;\n    location / { return 204; }\n  }\n}\n");
    let (status, said) = converted(&["caddy", "nginx.conf"], &directory);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("`weir convert nginx nginx.conf`"), "{said}");
    for gateway in ["haproxy", "envoy"] {
        let (status, said) = converted(&[gateway, "nginx.conf"], &directory);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains("docs/guide/from-haproxy-and-envoy.md"), "{said}");
    }
}
