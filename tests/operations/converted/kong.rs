//! Configurations of Kong, which is not there to be asked: the answers stand here.

use weir_testkit::TempDir;

use super::{ConvertedFile, ConvertedRequest, convert, told, weir};

struct KongCase {
    file: &'static str,
    findings: &'static [&'static str],
    answers: &'static [(ConvertedRequest, &'static str)],
}

const CASES: &[KongCase] = &[
    KongCase {
        file: "kong/services.yml",
        findings: &[
            "2: behaves differently: routes with a host take precedence over all routes without one; Kong counts kinds of \
             conditions",
            r"20: behaves differently: `~/items/(?<id>\d+)$`: a route with a longer plain path takes precedence",
        ],
        answers: &[
            (("GET", "/orders", "h.example", ""), "one GET /v2 host=ONE"),
            (("GET", "/orders/7?x=1", "h.example", ""), "one GET /v2/7?x=1 host=ONE"),
            (("GET", "/all/7", "orders.example", ""), "one GET /v2/all/7 host=ONE"),
            (("GET", "/all/7", "h.example", ""), "404"),
            (("GET", "/search/a", "h.example", ""), "two GET /a host=h.example"),
            (("POST", "/search/a", "h.example", ""), "404"),
            (("GET", "/items/12", "h.example", ""), "two GET /items/12 host=TWO"),
            (("GET", "/items/x", "h.example", ""), "404"),
        ],
    },
    KongCase {
        file: "kong/consumers.yml",
        findings: &[],
        answers: &[
            (("GET", "/reports/1", "h", ""), "401"),
            (("GET", "/reports/1", "h", "X-Api-Key: alices-key\r\n"), "x-api-key= "),
            (("GET", "/reports/1", "h", "X-Api-Key: another\r\n"), "401"),
            (("GET", "/inbox/1", "h", ""), "401"),
            (("GET", "/inbox/1", "h", "X-Api-Key: alices-key\r\n"), "401"),
            (("GET", "/inbox/1", "h", "Authorization: Basic YWxpY2U6c2VjcmV0\r\n"), "two GET /inbox/1 host=TWO"),
        ],
    },
    KongCase {
        file: "kong/limits.yml",
        findings: &[
            "14: behaves differently: `rate-limiting`: windows begin with the first request, and each route and gateway \
             counts for itself",
            "32: behaves differently: records have the members of Apache APISIX; `log_format` sets others",
        ],
        answers: &[
            (("POST", "/uploads", "h", "Content-Length: 65\r\n"), "413"),
            (("POST", "/uploads", "h", "Content-Length: 64\r\n"), "one POST / host=ONE"),
            (("GET", "/uploads/again", "h", ""), "429"),
            (("GET", "/office/x", "h", ""), "two GET /x host=TWO"),
            (("GET", "/closed/x", "h", ""), "403"),
        ],
    },
    KongCase {
        file: "kong/balancing.yml",
        findings: &[
            "2: behaves differently: routes with a host take precedence over all routes without one; Kong counts kinds of \
             conditions",
            "4: behaves differently: consistent hashing: clients move to other endpoints once, and `hash_fallback` is not used",
        ],
        answers: &[
            (("GET", "/a", "x.pool.example", "X-Version: 2\r\nX-User: 1\r\n"), "one GET /app/a host=ONE"),
            (("GET", "/a", "x.pool.example", "X-User: 1\r\n"), "404"),
            (("GET", "/a", "pool.example", "X-Version: 2\r\n"), "404"),
            (("GET", "/old/x", "h", ""), "410"),
        ],
    },
    KongCase {
        file: "kong/levels.yml",
        findings: &[
            "37: not converted: the plugin `response-ratelimiting`: there is no conversion for it; the routes that it applies to \
             answer with 503",
        ],
        answers: &[
            (("GET", "/orders/1", "h", ""), "401"),
            (("GET", "/orders/1", "h", "X-Api-Key: alices-key\r\n"), "one GET /orders/1 host=ONE"),
            (("GET", "/orders/old/1", "h", "X-Api-Key: alices-key\r\n"), "401"),
            (("GET", "/orders/old/1", "h", "X-Old-Key: alices-key\r\n"), "one GET /orders/orders/old/1 host=ONE"),
            (("POST", "/mail", "h", "Content-Length: 1\r\n"), "503"),
        ],
    },
];

#[test]
fn five_configurations_of_kong_answer_as_its_documentation_says() {
    for case in CASES {
        let file = ConvertedFile::read(case.file);
        let (yaml, findings) = convert("kong", case.file, &file.at(0));
        assert_eq!(findings, case.findings, "{}", case.file);
        let logs = TempDir::new();
        let yaml = yaml.replace(":8000", "127.0.0.1:0").replace("/var/log", &logs.path().display().to_string());
        let gateway = weir().start(&yaml);
        for &(asked, answer) in case.answers {
            let text = told(gateway.addr(), asked);
            let text = text.replace(&file.one.addr().to_string(), "ONE").replace(&file.two.addr().to_string(), "TWO");
            assert!(format!("{text} ").contains(answer), "{}: {asked:?}: {text}\n{yaml}", case.file);
        }
    }
}
