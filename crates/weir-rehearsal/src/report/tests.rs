use super::*;
use crate::compare::AnswerDifference;

fn findings() -> RehearsalFindings {
    let totals = RehearsalTotals { lines: 5, sent: 4, compared: 4, unreadable: 1, ..RehearsalTotals::default() };
    let problems = vec!["line 5 is not JSON".to_owned()];
    let mut findings = RehearsalFindings { totals, problems, ..RehearsalFindings::default() };
    for (shape, target) in [("GET a/x", "/x?token=abc"), ("GET a/x", "/x"), ("GET a/<y>", "/<y>")] {
        let found = AnswerDifference {
            key: (DifferenceCause::FieldMissing, "x-a".to_owned()),
            old: "<1>".to_owned(),
            new: String::new(),
        };
        findings.add(shape, vec![found], true, || ExampleRequest {
            method: "GET".to_owned(),
            host: "a".to_owned(),
            target: target.to_owned(),
            fields: Vec::new(),
            client: None,
        });
    }
    findings.learn("GET a/x", [(DifferenceCause::BodyValues, "$.id".to_owned())]);
    findings
}

fn report() -> RehearsalReport {
    RehearsalReport::of(findings(), &mut |example| example.target.contains('x').then(|| "route orders".to_owned()))
}

#[test]
fn reports_group_differences_by_cause_with_their_routes() {
    let text = report().text();
    let expected = "The gateways answered 3 of 4 compared requests differently.\n\
        5 lines read, 4 requests sent, 1 of an unknown format.\n\
        \x20 line 5 is not JSON\n\n\
        Field missing [field-missing]\n\
        \x20 The old gateway sends the field, the new one does not: set it with `response-rewrite`, if clients need it.\n\
        \x20 x-a: 3 requests\n\
        \x20   old: <1>\n\
        \x20   new: (nothing)\n\
        \x20   2 in GET a/x\n\
        \x20   1 in GET a/<y>\n\
        \x20   as GET a/<y>\n\
        \x20   as GET a/x?token=*** (route orders)\n\n\
        Not compared, since it varies in the answers of the old gateway:\n\
        \x20 GET a/x: body-values $.id\n\n\
        Mean time of an answer: old 0.0 ms, new 0.0 ms.\n";
    assert_eq!(text, expected);
}

#[test]
fn values_of_one_request_are_not_told_as_those_of_all() {
    let told = |values: &[(&str, &str)]| {
        let mut findings = RehearsalFindings::default();
        for (shape, new) in values {
            let key = (DifferenceCause::FieldChanged, "location".to_owned());
            let found = AnswerDifference { key, old: "/a".to_owned(), new: (*new).to_owned() };
            findings.add(shape, vec![found], true, || ExampleRequest {
                method: "GET".to_owned(),
                host: "a".to_owned(),
                target: "/x".to_owned(),
                fields: Vec::new(),
                client: None,
            });
        }
        let report = RehearsalReport::of(findings, &mut |_| None);
        [report.text(), report.html("", &[])].map(|page| page.contains("others have other values"))
    };
    assert_eq!(told(&[("GET a/x", "/b"), ("GET a/x", "/b"), ("GET a/y", "/b")]), [false; 2]);
    assert_eq!(told(&[("GET a/x", "/b"), ("GET a/x", "/c")]), [true; 2]);
    assert_eq!(told(&[("GET a/x", "/b"), ("GET a/y", "/c")]), [true; 2]);
}

#[test]
fn pages_escape_what_gateways_and_logs_say() {
    let page = report().html("", &[("Old", "http://<a>".to_owned())]);
    assert!(
        page.contains("&lt;1&gt;") && page.contains("http://&lt;a&gt;") && page.contains("GET a/&lt;y&gt;"),
        "{page}"
    );
    assert!(
        !page.contains("<1>") && !page.contains("<y>") && !page.contains("token=abc") && !page.contains("<script"),
        "{page}"
    );
}

#[test]
fn json_has_all_that_the_text_has() {
    let told = serde_json::to_value(report()).expect("JSON");
    assert_eq!(told["differing"], 3);
    assert_eq!(told["causes"][0]["cause"], "field-missing");
    assert_eq!(told["causes"][0]["differences"][0]["examples"][1]["route"], "route orders");
    assert_eq!(told["totals"]["compared"], 4);
}

#[test]
fn shares_of_differences_are_compared_with_a_limit() {
    let report = report();
    assert!(
        report.differs_by_more_than(0.0) && report.differs_by_more_than(74.0) && !report.differs_by_more_than(75.0)
    );
    let alike = RehearsalReport::of(RehearsalFindings::default(), &mut |_| None);
    assert!(!alike.differs_by_more_than(0.0) && alike.text().starts_with("No request was compared."));
}

#[test]
fn texts_of_logs_cannot_steer_a_terminal() {
    let mut findings = findings();
    let hostile = "a\u{1b}]0;x\u{7}\u{9b}31m\u{202e}\r";
    findings.problems.push(hostile.to_owned());
    findings.stopped = Some(hostile.to_owned());
    let found = AnswerDifference {
        key: (DifferenceCause::FieldAdded, hostile.to_owned()),
        old: hostile.to_owned(),
        new: String::new(),
    };
    findings.add(hostile, vec![found], true, || ExampleRequest {
        method: hostile.to_owned(),
        host: hostile.to_owned(),
        target: hostile.to_owned(),
        fields: Vec::new(),
        client: None,
    });
    findings.learn(hostile, [(DifferenceCause::BodyText, hostile.to_owned())]);
    let report = RehearsalReport::of(findings, &mut |_| Some(hostile.to_owned()));
    let is_steering = |char: char| is_hidden(char) && char != '\n';
    assert!(!report.text().contains(is_steering), "{:?}", report.text());
    assert!(!report.html("", &[("Log", hostile.to_owned())]).contains(is_steering));
}

#[test]
fn few_compared_requests_are_told() {
    let totals = RehearsalTotals { sent: 10, compared: 8, ..RehearsalTotals::default() };
    let report = RehearsalReport::of(RehearsalFindings { totals, ..RehearsalFindings::default() }, &mut |_| None);
    assert!(report.compares_too_few() && report.text().contains("only 8 of 10 were compared"), "{}", report.text());
}
