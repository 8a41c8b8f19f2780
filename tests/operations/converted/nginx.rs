//! Configurations of nginx.

use weir_testkit::{Nginx, free_port, skipped};

use super::{ConvertedCase, ConvertedFile, compare, convert, weir};

const CASES: &[ConvertedCase] = &[
    ConvertedCase {
        file: "nginx/reverse-proxy.conf",
        findings: &[],
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
        findings: &[],
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
        findings: &[
            "18: behaves differently: `server_name mail.*`: a more specific path of the default server takes precedence",
            r"26: behaves differently: `server_name ~^node(?<number>\d+)\.cluster\.example$`: a more specific path of the default server takes precedence",
        ],
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
        findings: &[],
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
        findings: &[],
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
        findings: &[],
        asked: &[("GET", "/chat/room", "chat.example", ""), ("GET", "/", "chat.example", "")],
        apart: &[],
    },
    ConvertedCase {
        file: "nginx/access.conf",
        findings: &[],
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
        findings: &[],
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
            "24: not converted: `expires 1h`: write `response-rewrite` with `headers.set: { Cache-Control: ... }`",
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
];

#[test]
fn ten_configurations_answer_as_nginx_does() {
    let mut wrong = Vec::new();
    for case in CASES {
        let file = ConvertedFile::read(case.file);
        let Some(nginx) = Nginx::start(|port| file.at(port)) else { return skipped("there is no nginx") };
        let (yaml, findings) = convert("nginx", case.file, &file.at(free_port()));
        wrong.extend(compare(case, nginx.addr(), &weir().start(&yaml), &findings));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
