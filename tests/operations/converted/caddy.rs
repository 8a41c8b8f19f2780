//! Configurations of Caddy.

use std::net::SocketAddr;

use weir_testkit::{Client, DEADLINE, Program, TempDir, eventually, free_port};

use super::{ConvertedCase, ConvertedFile, compare, convert, weir};

const CASES: &[ConvertedCase] = &[
    ConvertedCase {
        file: "caddy/reverse-proxy.caddy",
        findings: &[
            "9: behaves differently: `zstd`: not supported; these clients get another encoding",
            "16: behaves differently: an upstream that sends nothing for 60 s is answered for with 504, see `timeout`; Caddy waits for ever",
            "16: behaves differently: paths are matched case-sensitively; Caddy ignores the case",
        ],
        asked: &[
            ("GET", "/", "shop.example", "X-Tenant: mine\r\n"),
            ("GET", "/api/items?x=1", "shop.example", "X-Client: 7\r\n"),
            ("GET", "/api/", "shop.example", ""),
            ("GET", "/api", "shop.example", ""),
            ("POST", "/orders", "shop.example", "Content-Length: 3\r\n"),
            ("GET", "/long", "shop.example", "Accept-Encoding: gzip\r\n"),
            ("GET", "/short", "shop.example", "Accept-Encoding: gzip\r\n"),
            ("GET", "/", "elsewhere.example", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "caddy/redirects.caddy",
        findings: &[
            "8: behaves differently: requests for hosts that no site names get 404; Caddy answers them with 200 and no content",
            "14: behaves differently: paths are matched case-sensitively; Caddy ignores the case",
            "27: behaves differently: an upstream that sends nothing for 60 s is answered for with 504, see `timeout`; Caddy waits for ever",
        ],
        asked: &[
            ("GET", "/a?b=c", "www.shop.example", ""),
            ("POST", "/", "www.shop.example", ""),
            ("GET", "/old", "shop.example", ""),
            ("GET", "/old/", "shop.example", ""),
            ("GET", "/docs/a?b=c", "shop.example", ""),
            ("GET", "/blog/2024/weir", "shop.example", ""),
            ("GET", "/blog/24/weir", "shop.example", ""),
            ("GET", "/legacy/a/b?c=d", "shop.example", ""),
            ("GET", "/about?x=1", "shop.example", ""),
            ("GET", "/search?q=1", "shop.example", ""),
            ("GET", "/add/7", "shop.example", ""),
            ("GET", "/else", "shop.example", ""),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "caddy/matchers.caddy",
        findings: &[
            "14: behaves differently: an upstream that sends nothing for 60 s is answered for with 504, see `timeout`; Caddy waits for ever",
            "14: behaves differently: paths are matched case-sensitively; Caddy ignores the case",
        ],
        asked: &[
            ("GET", "/", "h", ""),
            ("POST", "/items/1", "h", "Content-Length: 2\r\n"),
            ("PUT", "/carts/1", "h", "Content-Length: 0\r\n"),
            ("POST", "/else", "h", "Content-Length: 0\r\n"),
            ("GET", "/x", "h", "X-Beta: yes\r\n"),
            ("GET", "/x", "h", "X-Beta: no\r\n"),
            ("GET", "/stable/x", "h", "X-Beta: yes\r\n"),
            ("POST", "/items/1", "h", "X-Beta: yes\r\nContent-Length: 0\r\n"),
            ("GET", "/a?debug=1", "h", ""),
            ("GET", "/a?debug=2", "h", ""),
            ("GET", "/b/c.png", "h", ""),
            ("GET", "/b/c.png?debug=yes", "h", ""),
            ("GET", "/b", "h", "User-Agent: Harvester\r\n"),
            ("GET", "/partners/1", "h", ""),
            ("GET", "/partners/1", "h", "X-Partner: 7\r\n"),
            ("GET", "/partners/1.jpg", "h", "X-Partner: 7\r\n"),
            ("GET", "/admin", "h", ""),
            ("GET", "/admin/x", "h", "X-Beta: yes\r\n"),
        ],
        apart: &[(("GET", "/ADMIN", "h", ""), "paths are matched case-sensitively")],
    },
    ConvertedCase {
        file: "caddy/snippets.caddy",
        findings: &[
            "17: behaves differently: paths are matched case-sensitively; Caddy ignores the case",
            "30: behaves differently: requests for hosts that no site names get 404; Caddy answers them with 200 and no content",
        ],
        asked: &[
            ("GET", "/", "one.example", ""),
            ("GET", "/x", "uno.example", "X-Tenant: forged\r\n"),
            ("GET", "/", "two.example", ""),
            ("GET", "/app", "two.example", ""),
            ("GET", "/app/x?y", "two.example", ""),
        ],
        apart: &[(("GET", "/", "three.example", ""), "hosts that no site names")],
    },
    ConvertedCase {
        file: "caddy/login.caddy",
        findings: &[
            "22: behaves differently: an upstream that sends nothing for 60 s is answered for with 504, see `timeout`; Caddy waits for ever",
            "22: behaves differently: paths are matched case-sensitively; Caddy ignores the case",
        ],
        asked: &[
            ("GET", "/", "h", ""),
            ("GET", "/private/x", "h", ""),
            ("GET", "/private/x", "h", "Authorization: Basic YWxpY2U6c2VjcmV0\r\n"),
            ("GET", "/private/x", "h", "Authorization: Basic YWxpY2U6d3Jvbmc=\r\n"),
            ("GET", "/private/greeting", "h", ""),
            ("GET", "/private/greeting", "h", "Authorization: Basic YWxpY2U6c2VjcmV0\r\n"),
            ("GET", "/staff/x", "h", ""),
            ("GET", "/staff/x", "h", "Authorization: Basic Ym9iOnNlY3JldA==\r\n"),
            ("POST", "/uploads/x", "h", "Content-Length: 64\r\n"),
            ("POST", "/other", "h", "Content-Length: 65\r\n"),
        ],
        apart: &[],
    },
    ConvertedCase {
        file: "caddy/wildcard.caddy",
        findings: &[
            "35: not converted: `file_server`: static files are not served; use a file server as an upstream; the route answers with 404",
            "9: behaves differently: `*.shop.example`: the wildcard stands for any number of labels",
            "9: behaves differently: requests for hosts that no site names get 404; Caddy answers them with 200 and no content",
            "15: behaves differently: an upstream that sends nothing for 60 s is answered for with 504, see `timeout`; Caddy waits for ever",
            "23: behaves differently: `reverse_proxy`: a request whose connection fails is tried at another endpoint; `retries: 0` of the upstream prevents this",
            "30: behaves differently: `abort`: connections cannot be closed without a response; the response is 403",
            "35: behaves differently: paths are matched case-sensitively; Caddy ignores the case",
        ],
        asked: &[
            ("GET", "/", "books.shop.example", ""),
            ("GET", "/v1/list", "books.shop.example", ""),
            ("GET", "/", "music.shop.example", ""),
            ("GET", "/charts", "tunes.shop.example", ""),
            ("GET", "/static/x", "books.shop.example", ""),
        ],
        apart: &[(("GET", "/", "a.books.shop.example", ""), "any number of labels")],
    },
    ConvertedCase {
        file: "caddy/balancing.caddy",
        findings: &[
            "41: behaves differently: an upstream that sends nothing for 60 s is answered for with 504, see `timeout`; Caddy waits for ever",
            "41: behaves differently: paths are matched case-sensitively; Caddy ignores the case",
        ],
        asked: &[
            ("GET", "/carts/1", "h", ""),
            ("GET", "/stock/1?x=y", "h", "X-Tenant: mine\r\n"),
            ("GET", "/reports/1", "h", "X-Tenant: 7\r\n"),
            ("GET", "/gone/x", "h", ""),
            ("GET", "/cut/a/b?c", "h", ""),
            ("GET", "/cut/stock/a", "h", ""),
            ("GET", "/forms/1", "h", ""),
            ("GET", "/else", "h", ""),
        ],
        apart: &[],
    },
];

/// A real Caddy, which goes away with the program.
fn started(file: &ConvertedFile) -> Option<(Program, SocketAddr)> {
    let mut command = Program::find("caddy")?;
    let directory = TempDir::new();
    let port = free_port();
    let path = directory.write("Caddyfile", file.at(port));
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(path);
    command
        .env("HOME", directory.path())
        .env("XDG_DATA_HOME", directory.path())
        .env("XDG_CONFIG_HOME", directory.path());
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let program = Program::start(command, directory);
    eventually("Caddy listens", DEADLINE, || Client::try_connect(addr).is_ok());
    Some((program, addr))
}

#[test]
fn seven_configurations_answer_as_caddy_does() {
    let mut wrong = Vec::new();
    for case in CASES {
        let file = ConvertedFile::read(case.file);
        let Some((_caddy, addr)) = started(&file) else { return };
        let (yaml, findings) = convert("caddy", case.file, &file.at(free_port()));
        wrong.extend(compare(case, addr, &weir().start(&yaml), &findings));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
