//! Configurations of nginx.

use weir_testkit::{DEADLINE, Nginx, eventually, free_port, skipped};

use super::{ConvertedCase, ConvertedFile, compare, convert, echo, told, weir};

/// The finding about paths with `%2F`, at this place.
macro_rules! encoded_slash {
    ($place:literal) => {
        concat!(
            $place,
            ": `%2F` in a path is no slash; nginx decodes it before it chooses a location, and sends paths on as they came, \
             not normalised; see `allow_encoded_slashes`"
        )
    };
}

/// The finding about answers without a text, at this place.
macro_rules! page {
    ($of:literal) => {
        concat!($of, ": nginx answers a status without a text with its own HTML page; here the body is empty")
    };
}

/// The finding about the port in `Host`, at this place.
macro_rules! port_of_host {
    ($line:literal) => {
        concat!(
            $line,
            ": behaves differently: `proxy_set_header Host $host`: the port in the client's `Host`, if there is one, is passed \
             on, too"
        )
    };
}

const CASES: &[ConvertedCase] = &[
    ConvertedCase {
        file: "nginx/reverse-proxy.conf",
        findings: &[
            port_of_host!("2"),
            "4: behaves differently: `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for`: what clients send in it is dropped; what load balancers send is kept if they are in `trusted_addresses`",
            encoded_slash!("15: behaves differently: `location /reviews/`"),
        ],
        asked: &[
            ("GET", "/", "www.shop.example", ""),
            ("GET", "/a?b=c", "elsewhere.example", ""),
            ("GET", "/reviews/12", "www.shop.example", ""),
            ("GET", "/reviews", "www.shop.example", ""),
            ("POST", "/reviews/new", "www.shop.example", "Content-Length: 3\r\n"),
            ("GET", "/index.php?x=1", "www.shop.example", ""),
            ("GET", "/reviews/a.php", "www.shop.example", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/load-balancing.conf",
        findings: &[port_of_host!("26")],
        asked: &[
            ("GET", "/catalogue/1", "h.example", ""),
            ("GET", "/accounts/1", "h.example", ""),
            ("GET", "/carts?user=1", "h.example", ""),
            ("GET", "/other", "h.example", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/server-names.conf",
        findings: &[page!("38: behaves differently: `return 404`")],
        asked: &[
            ("GET", "/", "shop.example", ""),
            ("GET", "/", "WWW.shop.example", ""),
            ("GET", "/", "a.shop.example", ""),
            ("GET", "/", "a.b.shop.example", ""),
            ("GET", "/", "mail.example", ""),
            ("GET", "/", "mail.co.example", ""),
            ("GET", "/", "node12.cluster.example", ""),
            ("GET", "/", "node.cluster.example", ""),
            ("GET", "/", "unknown.example", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/unknown-hosts.conf",
        findings: &[
            "4: behaves differently: `return 444`: connections cannot be closed without a response; the response is 403",
            encoded_slash!("14: behaves differently: `location /v1/`"),
        ],
        asked: &[
            ("GET", "/", "api.example", ""),
            ("GET", "/v1/orders?id=7", "api.example", ""),
            ("GET", "/v2/orders", "api.example", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/locations.conf",
        findings: &[encoded_slash!("11: behaves differently: `location /manuals/`")],
        asked: &[
            ("GET", "/", "h", ""),
            ("GET", "/index.html", "h", ""),
            ("GET", "/manuals/one", "h", ""),
            ("GET", "/manuals/one.gif", "h", ""),
            ("GET", "/pictures/one.gif", "h", ""),
            ("GET", "/one.JPEG", "h", ""),
            ("GET", "/users/7/avatar", "h", ""),
            ("GET", "/users/x/avatar", "h", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/redirects.conf",
        findings: &[
            encoded_slash!("15: behaves differently: `location /download/`"),
            page!("20: behaves differently: `return 410`"),
        ],
        asked: &[
            ("GET", "/a?b=c", "www.shop.example", ""),
            ("POST", "/a", "shop.test", ""),
            ("GET", "/blog/2024/weir", "shop.example", ""),
            ("GET", "/download/a/media/b.mp3", "shop.example", ""),
            ("GET", "/download/a", "shop.example", ""),
            ("GET", "/closed", "shop.example", ""),
            ("GET", "/else", "shop.example", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/websocket.conf",
        findings: &[encoded_slash!("16: behaves differently: `location /chat/`"), port_of_host!("21")],
        asked: &[("GET", "/chat/room", "chat.example", ""), ("GET", "/", "chat.example", "")],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/access.conf",
        findings: &[
            page!("5: behaves differently: `return 405`"),
            "14: behaves differently: `location /admin/`: paths with `%2F` are refused with 400; nginx decodes it before it chooses a location, and this one may refuse requests; see `allow_encoded_slashes`",
        ],
        asked: &[
            ("GET", "/", "h", ""),
            ("PUT", "/", "h", "Content-Length: 0\r\n"),
            ("DELETE", "/partners/", "h", ""),
            ("GET", "/office/x", "h", "User-Agent: a Scraper/1\r\n"),
            ("GET", "/office/x", "h", "User-Agent: a browser\r\n"),
            ("GET", "/admin/", "h", ""),
            ("GET", "/partners/", "h", ""),
            ("GET", "/partners/", "h", "X-Partner: 12\r\n"),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/limits.conf",
        findings: &[encoded_slash!("15: behaves differently: `location /uploads/`")],
        asked: &[
            ("GET", "/", "h", ""),
            ("POST", "/", "h", "Content-Length: 64\r\n"),
            ("POST", "/", "h", "Content-Length: 65\r\n"),
            ("POST", "/uploads/", "h", "Content-Length: 1024\r\n"),
            ("POST", "/uploads/", "h", "Content-Length: 1025\r\n"),
            ("GET", "/rare/", "h", ""),
            ("GET", "/rare/", "h", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/responses.conf",
        findings: &[
            encoded_slash!("14: behaves differently: `location /api/`"),
            "15: behaves differently: `add_header Cache-Control no-store`: the field is added to responses with any status",
            "24: behaves differently: `expires 1h`: `Cache-Control` is set, and `Expires` is not",
        ],
        asked: &[
            ("GET", "/long", "h", ""),
            ("GET", "/long", "h", "Accept-Encoding: gzip\r\n"),
            ("GET", "/plain/long", "h", "Accept-Encoding: gzip\r\n"),
            ("GET", "/api/long", "h", "Accept-Encoding: gzip\r\n"),
            ("GET", "/api/x", "h", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/encoded-names.conf",
        findings: &[encoded_slash!("10: behaves differently: `location /files/`")],
        asked: &[
            ("GET", "/", "h", "X_Tenant: 7\r\n"),
            ("GET", "/a%2Fb", "h", ""),
            ("GET", "/a%20b?c=%2F", "h", ""),
            ("GET", "/files/a%2Fb", "h", ""),
            ("GET", "/files/index", "h", ""),
            ("GET", "/files/%69ndex", "h", ""),
            ("GET", "/v1/x", "h", ""),
            ("GET", "/v12/", "h", ""),
            ("GET", "/v1/static/x", "h", ""),
            ("GET", "/vx/", "h", ""),
        ],
        apart: &[
            (("GET", "/files%2Fa", "h", ""), "`%2F` in a path is no slash"),
            (("GET", "/files%2Findex", "h", ""), "`%2F` in a path is no slash"),
            (("GET", "/%66iles/x", "h", ""), "not normalised"),
            (("GET", "/files/../x", "h", ""), "not normalised"),
        ],
    },
    ConvertedCase {
        file: "nginx/api.conf",
        findings: &[
            "18: not converted: `location /api/stock/`: static files are not served; the route answers with 404",
            "10: behaves differently: `limit_req_zone $http_x_api_key zone=by_key:1m rate=10r/s`: the limit holds for each route that has it; the routes do not count together",
            encoded_slash!("18: behaves differently: `location /api/stock/`"),
        ],
        asked: &[
            ("GET", "/api/health", "api.shop.example", ""),
            ("GET", "/api/stock/levels/7?x=1", "api.shop.example", "X-Api-Key: a\r\n"),
            ("GET", "/api/stock/places", "api.shop.example", "X-Api-Key: a\r\n"),
            ("GET", "/api/prices/book/7", "api.shop.example", ""),
            ("GET", "/api/prices/BOOK/7", "api.shop.example", ""),
            ("GET", "/api/prices/book/7/", "api.shop.example", ""),
            ("POST", "/api/stock/levels/", "api.shop.example", "Content-Length: 3\r\n"),
            ("GET", "/else", "api.shop.example", ""),
            ("GET", "/api/health", "other.example", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/conditions.conf",
        findings: &[
            page!("50: behaves differently: `return 404`"),
            "60: behaves differently: `location /pictures/`: paths with `%2F` are refused with 400; nginx decodes it before it chooses a location, and this one may refuse requests; see `allow_encoded_slashes`",
        ],
        asked: &[
            ("GET", "/", "shop.example", ""),
            ("GET", "/", "shop.example", "User-Agent: a Crawler/1\r\n"),
            ("GET", "/", "shop.example", "User-Agent: Archive/1\r\n"),
            ("GET", "/", "shop.example", "User-Agent: the Archive/1\r\n"),
            ("GET", "/", "shop.example", "X-Tenant: gold\r\n"),
            ("GET", "/", "shop.example", "X-Tenant: team-a\r\n"),
            ("GET", "/", "shop.example", "X-Tenant: Team-old\r\n"),
            ("GET", "/", "shop.example", "X-Tenant: a team-a\r\n"),
            ("GET", "/inside", "shop.example", ""),
            ("GET", "/outside", "shop.example", ""),
            ("GET", "/pictures/", "shop.example", ""),
            ("GET", "/pictures/", "shop.example", "Referer: http://shop.example/a\r\n"),
            ("GET", "/pictures/", "shop.example", "Referer: https://SHOP.example:8443\r\n"),
            ("GET", "/pictures/", "shop.example", "Referer: http://shop.example.evil.example/\r\n"),
            ("GET", "/pictures/", "shop.example", "Referer: http://a.b.friends.example/\r\n"),
            ("GET", "/pictures/", "shop.example", "Referer: http://friends.example/\r\n"),
            ("GET", "/pictures/", "shop.example", "Referer: http://www.search.example/\r\n"),
            ("GET", "/pictures/", "shop.example", "Referer: http://evil.example/shop.example\r\n"),
            ("GET", "/pictures/", "shop.example", "Referer: removed by a proxy\r\n"),
            ("GET", "/album/", "shop.example", ""),
            ("GET", "/album/", "shop.example", "Referer: http://news.example/archive/1\r\n"),
            ("GET", "/album/", "shop.example", "Referer: http://news.example/ARCHIVE/1\r\n"),
            ("GET", "/album/", "shop.example", "Referer: removed by a proxy\r\n"),
            ("GET", "/rare/", "shop.example", ""),
            ("GET", "/rare/", "shop.example", ""),
            ("GET", "/keyed/", "shop.example", ""),
            ("GET", "/keyed/", "shop.example", ""),
            ("GET", "/keyed/", "shop.example", "X-Api-Version: 2\r\n"),
            ("GET", "/keyed/", "shop.example", "X-Api-Version: 2\r\n"),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/substitutions.conf",
        findings: &[
            "6: behaves differently: `sub_filter get got`: the response is held until it is complete, and one of more than 64 MiB is \
             replaced by 502; event streams pass unchanged",
            encoded_slash!("10: behaves differently: `location /all/`"),
        ],
        asked: &[
            ("GET", "/get?get", "h", ""),
            ("GET", "/all/long", "h", ""),
            ("GET", "/html/get", "h", ""),
            ("GET", "/two/get", "h", "X-Tenant: get\r\n"),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/rewritten-responses.conf",
        findings: &[encoded_slash!("8: behaves differently: `location /below/`")],
        asked: &[
            ("GET", "/moved", "h", ""),
            ("GET", "/below/moved", "h", ""),
            ("GET", "/exact/moved", "h", ""),
            ("GET", "/kept/moved", "h", ""),
            ("GET", "/named/moved", "h", ""),
            ("GET", "/named/page", "h", ""),
            ("GET", "/older/moved", "h", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/client-address.conf",
        findings: &[
            "23: behaves differently: `if ($http_x_forwarded_proto != https )`: `$http_x_forwarded_proto` counts only if an address in `trusted_addresses` sends it; here these are those of `set_real_ip_from`",
        ],
        asked: &[
            ("GET", "/", "h", ""),
            ("GET", "/", "h", "X-Forwarded-For: 203.0.113.9\r\n"),
            ("GET", "/", "h", "X-Forwarded-For: 203.0.113.9, 198.51.100.1\r\n"),
            ("GET", "/", "h", "X-Forwarded-For: 198.51.100.1, 203.0.113.9\r\n"),
            ("GET", "/", "h", "X-Real-IP: 203.0.113.9\r\n"),
            ("GET", "/inside", "h", ""),
            ("GET", "/inside", "h", "X-Forwarded-For: 192.0.2.1\r\n"),
            ("GET", "/inside", "h", "X-Forwarded-For: 192.0.2.1, 127.0.0.1\r\n"),
            ("GET", "/keyed", "h", ""),
            ("GET", "/keyed", "h", ""),
            ("GET", "/keyed", "h", "X-Api-Key: a\r\n"),
            ("GET", "/keyed", "h", "X-Api-Key: a\r\n"),
            ("GET", "/keyed", "h", "X-Api-Key: b\r\n"),
            ("GET", "/secure?a=1", "h", ""),
            ("GET", "/secure", "h", "X-Forwarded-Proto: https\r\n"),
            ("GET", "/.htaccess", "h", ""),
        ],
        apart: &[],
    },
];

/// Cases with modules of others, which are named with each.
const OF_MODULES: &[(&[&str], ConvertedCase)] = &[
    (
        &["http_headers_more_filter"],
        ConvertedCase {
            file: "nginx/headers-more.conf",
            findings: &[
                "15: behaves differently: `more_set_input_headers X-Tenant: a Authorization:`: the upstream gets the field so; conditions, `auth_basic` and logs see that of the client",
                "24: behaves differently: `location /closed/`: paths with `%2F` are refused with 400; nginx decodes it before it chooses a location, and this one may refuse requests; see `allow_encoded_slashes`",
                page!("25: behaves differently: `return 403`"),
            ],
            asked: &[
                ("GET", "/", "h", ""),
                ("GET", "/", "h", "X-Tenant: own\r\nX-Api-Key: 1\r\n"),
                ("GET", "/own/", "h", "X-Tenant: own\r\nX-Api-Key: 1\r\nAuthorization: Basic YTpi\r\n"),
                ("GET", "/own/", "h", ""),
                ("GET", "/later/", "h", "X-Tenant: own\r\n"),
                ("GET", "/closed/", "h", ""),
            ],
            apart: &[],
        },
    ),
    (
        &["http_echo"],
        ConvertedCase {
            file: "nginx/echo.conf",
            findings: &[],
            asked: &[
                ("GET", "/hello", "shop.example", ""),
                ("GET", "/made", "h", ""),
                ("GET", "/closed", "h", ""),
                ("GET", "/open", "h", ""),
                ("GET", "/", "h", "Accept-Encoding: gzip\r\n"),
            ],
            apart: &[],
        },
    ),
    (
        &["http_brotli_filter"],
        ConvertedCase {
            file: "nginx/brotli.conf",
            findings: &[encoded_slash!("17: behaves differently: `location /plain/`")],
            asked: &[
                ("GET", "/long", "h", "Accept-Encoding: br\r\n"),
                ("GET", "/long", "h", "Accept-Encoding: gzip, br\r\n"),
                ("GET", "/long", "h", "Accept-Encoding: gzip\r\n"),
                ("GET", "/long", "h", ""),
                ("GET", "/short", "h", "Accept-Encoding: br\r\n"),
                ("GET", "/plain/long", "h", "Accept-Encoding: br\r\n"),
                ("GET", "/plain/long", "h", "Accept-Encoding: gzip, br\r\n"),
            ],
            apart: &[],
        },
    ),
    (
        &["http_subs_filter"],
        ConvertedCase {
            file: "nginx/subs-filter.conf",
            findings: &[
                "8: behaves differently: `subs_filter get got i`: the response is held until it is complete, and one of more than 64 MiB is replaced by 502; event streams pass unchanged",
                encoded_slash!("12: behaves differently: `location /once/`"),
                "17: behaves differently: `subs_filter x-([a-z]+)= $1 is  r`: the expression is matched against the whole text, not line by line",
            ],
            asked: &[
                ("GET", "/get/long", "h", ""),
                ("GET", "/once/long", "h", ""),
                ("GET", "/groups/", "h", "X-Tenant: a\r\nX-Api-Key: b\r\n"),
            ],
            apart: &[],
        },
    ),
];

#[test]
fn configurations_with_modules_of_others_answer_as_nginx_does() {
    let mut wrong = Vec::new();
    for (modules, case) in OF_MODULES {
        let file = ConvertedFile::read(case.file);
        let Some(nginx) = Nginx::start_with(modules, |port| file.at(port)) else {
            skipped(&format!("there is no nginx with the module {}", modules.join(" and ")));
            continue;
        };
        let (yaml, findings) = convert("nginx", case.file, &file.at(free_port()));
        wrong.extend(compare(case, nginx.addr(), &weir().start(&yaml), &findings));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The second origin gets the copies of what the first one answers.
const COPIES: &str = "\
server {
    listen 127.0.0.1:PORT;
    proxy_redirect off;
    mirror /copy;
    location / { proxy_pass http://ONE; }
    location /fixed/ { mirror /fixed-copy; proxy_set_header Host $host; proxy_pass http://ONE; }
    location /none/ { mirror off; proxy_pass http://ONE; }
    location = /copy { internal; proxy_pass http://TWO$request_uri; }
    location = /fixed-copy { internal; proxy_pass http://TWO/copies; proxy_set_header Host $host; }
}
";

#[test]
fn copies_of_requests_go_where_nginx_sends_them() {
    let file = ConvertedFile { one: echo("one"), two: echo("two"), text: COPIES.to_owned() };
    let Some(nginx) = Nginx::start(|port| file.at(port)) else { return skipped("there is no nginx") };
    let (yaml, _) = convert("nginx", "copies.conf", &file.at(free_port()));
    let gateway = weir().start(&yaml);
    let asked = [
        ("GET", "/a%20b?c=d", "shop.example", ""),
        ("POST", "/orders", "shop.example", "Content-Length: 5\r\n"),
        ("GET", "/fixed/x?y=z", "shop.example", ""),
        ("GET", "/none/x", "shop.example", ""),
        ("GET", "/last", "shop.example", ""),
    ];
    let copies = |addr| {
        let before = file.two.requests().len();
        for request in asked {
            told(addr, request);
        }
        let has_last = || file.two.requests()[before..].iter().any(|copy| copy.target == "/last");
        eventually("the last copy arrives", DEADLINE, has_last);
        eventually("all copies arrive", DEADLINE, || file.two.requests().len() == before + 4);
        let requests = file.two.requests();
        let mut copies: Vec<String> = requests[before..]
            .iter()
            .map(|copy| {
                let host = copy.headers.get("host").unwrap_or_default();
                format!("{} {} {host} {}", copy.method, copy.target, copy.body.len())
            })
            .collect();
        copies.sort();
        copies
    };
    let (theirs, ours) = (copies(nginx.addr()), copies(gateway.addr()));
    assert_eq!(ours, theirs, "{yaml}");
}

#[test]
fn fifteen_configurations_answer_as_nginx_does() {
    let mut wrong = Vec::new();
    for case in CASES {
        let file = ConvertedFile::read(case.file);
        let Some(nginx) = Nginx::start(|port| file.at(port)) else { return skipped("there is no nginx") };
        let (yaml, findings) = convert("nginx", case.file, &file.at(free_port()));
        wrong.extend(compare(case, nginx.addr(), &weir().start(&yaml), &findings));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
