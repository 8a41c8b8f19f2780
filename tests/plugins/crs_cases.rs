//! The rule set's own regression cases, sent through the gateway to the firewall of deploy/recipes/crs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use weir_testkit::{Answer, Gateway, Origin, TempDir, runs_for_minutes};

use crate::crs::{Firewall, guarded};

/// What the cases suppose: bounds of arguments and files, and that encodings are looked at.
const SETUP: &str = r#"SecAction "id:200,phase:1,pass,nolog,\
setvar:tx.crs_validate_utf8_encoding=1,setvar:tx.arg_name_length=100,setvar:tx.arg_length=400,setvar:tx.total_arg_length=64000,\
setvar:tx.max_num_args=255,setvar:tx.max_file_size=64100,setvar:tx.combined_file_sizes=65535"
"#;

/// The folder of the cases in Go's module with the rules.
fn folder() -> PathBuf {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/recipes/crs");
    let list = ["list", "-m", "-f", "{{.Dir}}", "github.com/corazawaf/coraza-coreruleset/v4"];
    let output = Command::new("go").current_dir(recipe).args(list).output().expect("it has built the firewall");
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("tests")
}

/// One request with what is expected of it. The name is that of the rule, with the number of the case.
struct Case {
    name: String,
    input: Value,
    output: Value,
}

/// The cases of the groups of rules for requests, in the order of their files.
fn cases() -> Vec<Case> {
    let entries = |path: &Path| {
        let entries = std::fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.collect::<BTreeSet<PathBuf>>()
    };
    let mut cases = Vec::new();
    let is_of_requests = |path: &PathBuf| path.is_dir() && path.to_string_lossy().contains("/REQUEST-");
    for file in entries(&folder()).into_iter().filter(is_of_requests).flat_map(|group| entries(&group)) {
        let text = std::fs::read_to_string(&file).expect("a readable file");
        let written: Value = serde_saphyr::from_str(&text).expect("YAML");
        for case in written["tests"].as_array().into_iter().flatten() {
            let name = format!("{}-{}", written["rule_id"], case["test_id"]);
            for stage in case["stages"].as_array().expect("stages") {
                cases.push(Case { name: name.clone(), input: stage["input"].clone(), output: stage["output"].clone() });
            }
        }
    }
    cases
}

/// The content with what the templates in it stand for, such as `{{ "1" | repeat 152 }}`.
fn expanded(data: &str) -> String {
    let Some((before, template)) = data.split_once("{{ \"1\" | repeat ") else { return data.to_owned() };
    let (count, after) = template.split_once(" }}").expect("the template ends");
    format!("{before}{}{}", "1".repeat(count.parse().expect("a number")), expanded(after))
}

/// The bytes of the request.
fn bytes_of(input: &Value) -> Vec<u8> {
    if let Some(encoded) = input["encoded_request"].as_str() {
        let lines: String = encoded.split_ascii_whitespace().collect();
        return STANDARD.decode(lines).expect("base64");
    }
    let text = |key: &str, other: &str| input[key].as_str().unwrap_or(other).to_owned();
    let mut head = format!("{} {} {}\r\n", text("method", "GET"), text("uri", "/"), text("version", "HTTP/1.1"));
    let data = expanded(&text("data", ""));
    let fields = input["headers"].as_object().cloned().unwrap_or_default();
    for (name, value) in &fields {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        head += &format!("{name}: {value}\r\n");
    }
    let has = |wanted: &str| fields.keys().any(|name| name.eq_ignore_ascii_case(wanted));
    if input["autocomplete_headers"] != false {
        if !data.is_empty() && !has("Content-Type") {
            head += "Content-Type: application/x-www-form-urlencoded\r\n";
        }
        if !data.is_empty() && !has("Content-Length") && !has("Transfer-Encoding") {
            head += &format!("Content-Length: {}\r\n", data.len());
        }
        if !has("Connection") {
            head += "Connection: close\r\n";
        }
    }
    format!("{head}\r\n{data}").into_bytes()
}

/// What came of a case.
#[derive(Debug, PartialEq)]
enum Outcome {
    AsExpected,
    /// The gateway has answered by itself: the request has not come to the upstream.
    AnsweredBefore(u16),
    /// The firewall has judged the request otherwise than the case says.
    JudgedOtherwise(String),
    NoAnswer(String),
}

/// Why cases come out otherwise than their files say.
struct Explanation {
    why: &'static str,
    /// The status with which the gateway answers by itself. None if the firewall judges the request.
    answered_with: &'static [u16],
    /// What the requests have in common. The text is in lower case.
    concerns: fn(&str) -> bool,
    cases: &'static [&'static str],
}

impl Explanation {
    fn holds(&self, case: &Case, outcome: &Outcome) -> bool {
        let text = String::from_utf8_lossy(&bytes_of(&case.input)).to_ascii_lowercase();
        let is_the_outcome = match outcome {
            Outcome::AnsweredBefore(status) => self.answered_with.contains(status),
            Outcome::JudgedOtherwise(_) => self.answered_with.is_empty(),
            Outcome::AsExpected | Outcome::NoAnswer(_) => false,
        };
        is_the_outcome && (self.concerns)(&text)
    }
}

fn target_of(request: &str) -> &str {
    request.split(' ').nth(1).unwrap_or_default()
}

fn has_field(request: &str, is_it: fn(&str) -> bool) -> bool {
    request.lines().skip(1).take_while(|line| !line.is_empty()).any(|line| line.split(':').next().is_some_and(is_it))
}

/// All other cases come out as their files say.
const EXPLAINED: &[Explanation] = &[
    Explanation {
        why: "the gateway refuses the request: its syntax, its version, its fields or its target",
        answered_with: &[400, 501, 505],
        concerns: |_| true,
        cases: &[
            "920100-4", "920100-6", "920100-7", "920180-4", "920181-1", "920290-2", "920290-4", "920300-3", "920430-4",
            "920430-5", "920430-8", "921140-1", "931131-1",
        ],
    },
    Explanation {
        why: "the gateway refuses bytes in a target that are not of ASCII (RFC 3986)",
        answered_with: &[400],
        concerns: |request| request.lines().next().is_some_and(|line| !line.is_ascii()),
        cases: &["934120-23", "934120-24", "934120-25", "934120-26", "934120-39"],
    },
    Explanation {
        why: "the gateway refuses `%2F` in a path, unless the route allows it",
        answered_with: &[400],
        concerns: |request| target_of(request).contains("%2f"),
        cases: &["932380-6"],
    },
    Explanation {
        why: "the gateway answers `OPTIONS *` by itself",
        answered_with: &[200, 204],
        concerns: |request| request.starts_with("options * "),
        cases: &["920100-3", "920300-2"],
    },
    Explanation {
        why: "fields of the connection end at the gateway",
        answered_with: &[],
        concerns: |request| has_field(request, |name| ["connection", "transfer-encoding"].contains(&name)),
        cases: &["920171-2", "920171-3", "920210-2", "920210-3", "920210-4", "920210-6", "920210-7"],
    },
    Explanation {
        why: "the gateway leaves out fields with `_` in their names",
        answered_with: &[],
        concerns: |request| has_field(request, |name| name.contains('_')),
        cases: &["933110-3", "933110-13", "933110-14", "933220-2", "944140-3", "944140-8"],
    },
    Explanation {
        why: "the gateway makes `/` of a target without a path",
        answered_with: &[],
        concerns: |request| target_of(request) == "http://localhost",
        cases: &["920100-16"],
    },
    Explanation {
        why: "a missing Host is an empty one to the service, which another rule finds",
        answered_with: &[],
        concerns: |request| !has_field(request, |name| name == "host"),
        cases: &["920280-1"],
    },
    Explanation {
        why: "the service sees both values of a field where Apache httpd sees a list",
        answered_with: &[],
        concerns: |request| request.matches("\ncontent-type:").count() == 2,
        cases: &["920620-1"],
    },
    Explanation {
        why: "the body has more bytes than the service takes, so that the sum of the sizes of its files is less",
        answered_with: &[],
        concerns: |request| request.len() > 64 << 10,
        cases: &["920410-1"],
    },
];

/// The sentences of docs/guide/content.md with these numbers.
fn sentences(passed: usize, otherwise: usize, others: usize) -> [String; 3] {
    let grouped = |count: usize| format!("{},{:03}", count / 1_000, count % 1_000);
    let count = |fits: fn(&Explanation) -> bool| -> usize {
        EXPLAINED.iter().filter(|one| fits(one)).map(|one| one.cases.len()).sum()
    };
    let refused = count(|one| one.answered_with.contains(&400));
    let answered = count(|one| one.answered_with.contains(&200));
    let all = grouped(passed + otherwise + others);
    [
        format!("{all} requests, with `-paranoia 4 -observe`. {} come out as the cases say", grouped(passed)),
        format!("{otherwise} come out otherwise: the gateway refuses {refused} and answers {answered} by itself"),
        format!("The other {others} look at"),
    ]
}

fn numbers(list: &Value) -> BTreeSet<u64> {
    list.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// `None` for a case that looks at something else than at the rules that match.
fn outcome(gateway: &Gateway, case: &Case) -> Option<Outcome> {
    let (wanted, unwanted) =
        (numbers(&case.output["log"]["expect_ids"]), numbers(&case.output["log"]["no_expect_ids"]));
    if wanted.is_empty() && unwanted.is_empty() {
        return None;
    }
    let mut client = gateway.client();
    // It may answer, and close, before all is sent.
    let _ = client.try_send(bytes_of(&case.input));
    let method = case.input["method"].as_str().unwrap_or("GET");
    let answer = match client.response_to(method) {
        Ok(answer) => answer,
        Err(error) => return Some(Outcome::NoAnswer(format!("{error:?}"))),
    };
    if answer.headers.get("x-origin").is_none() {
        return Some(Outcome::AnsweredBefore(answer.status));
    }
    let rules = answer.headers.get("x-rules").expect("the gateway sets it");
    let matched: BTreeSet<u64> = rules.split(' ').filter_map(|rule| rule.parse().ok()).collect();
    let missing: Vec<_> = wanted.difference(&matched).collect();
    let more: Vec<_> = unwanted.intersection(&matched).collect();
    Some(match (missing.is_empty(), more.is_empty()) {
        (true, true) => Outcome::AsExpected,
        _ => Outcome::JudgedOtherwise(format!("{} missing {missing:?}, unwanted {more:?}, of {rules}", answer.status)),
    })
}

#[test]
fn crs_recipe_finds_what_the_regression_cases_of_the_rules_expect() {
    if !runs_for_minutes("it sends thousands of requests through a firewall of Go modules") {
        return;
    }
    let place = TempDir::new();
    let setup = place.write("setup.conf", SETUP);
    let more = ["-paranoia", "4", "-observe", "-methods", "GET HEAD POST OPTIONS", "-setup", &*setup.to_string_lossy()];
    let Some(firewall) = Firewall::start_with(&more) else { return };
    let origin = Origin::serving(|_| Answer::with(200, "X-Origin: 1\r\n", ""));
    let gateway = guarded(&firewall, &origin);
    let (mut passed, mut others, mut wrong, mut is_other) = (0, 0, Vec::new(), BTreeSet::new());
    for case in cases() {
        let explanation = EXPLAINED.iter().find(|one| one.cases.contains(&&*case.name));
        match (outcome(&gateway, &case), explanation) {
            (None, _) => others += 1,
            (Some(Outcome::AsExpected), _) => passed += 1,
            (Some(outcome), Some(stated)) if stated.holds(&case, &outcome) => {
                is_other.insert(case.name);
            }
            (Some(outcome), stated) => {
                let stated = stated.map(|stated| stated.why);
                wrong.push(format!("{}: {outcome:?}, explained by {stated:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let explained = EXPLAINED.iter().flat_map(|one| one.cases);
    let gone: Vec<_> = explained.filter(|name| !is_other.contains(**name)).collect();
    assert!(gone.is_empty(), "these come out as expected by now: {gone:?}");
    let guide = include_str!("../../docs/guide/content.md").split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in sentences(passed, is_other.len(), others) {
        assert!(guide.contains(&sentence), "docs/guide/content.md should say: {sentence}");
    }
}
