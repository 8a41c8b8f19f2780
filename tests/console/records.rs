//! The screen of log records: their accounts, and test records.

use weir_testkit::{Answer, BROWSER_DEADLINE, BrowserPage, Origin, eventually, free_port};

use crate::api::{self, Api};
use crate::bench::{Bench, axe};

/// Sends a test record to a destination, and returns what the screen says of it then, once it has this text.
#[track_caller]
fn test(bench: &Bench, sink: &str, text: &str) -> String {
    let button = format!("button[aria-label='Send a test record to {sink}']");
    bench.page.click(&button);
    let said =
        format!("document.querySelector(\"{button}\").closest('section').querySelector('[role=status]').innerText");
    bench.page.wait(&format!("`{text}` at {sink}"), &format!("{said}.includes({text:?})"));
    bench.page.evaluate(&said).as_str().expect("a text").to_owned()
}

#[test]
fn a_test_record_shows_what_became_of_it() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    let taking = Origin::serving(|_| Answer::ok(""));
    let refusing = Origin::serving(|_| Answer::status(400, "this index is closed"));
    let addresses = [taking.addr().to_string(), refusing.addr().to_string(), format!("127.0.0.1:{}", free_port())];
    let mut admin = Api::of(&bench.gateway);
    for (number, address) in addresses.iter().enumerate() {
        let logger = format!(r#"{{"http-logger":{{"uri":"http://{address}/logs"}}}}"#);
        admin.put(&format!("routes/r{number}"), &format!(r#"{{"uri":"/{number}","plugins":{logger}}}"#));
    }
    bench.log_in(api::EDITOR);
    bench.go("#/records");
    let [taken, refused, down] = addresses.map(|address| format!("http-logger http://{address}"));
    bench.page.wait("the destinations", "document.querySelectorAll('.cards section button').length === 3");

    let said = test(&bench, &taken, "was delivered");
    let sent = String::from_utf8(taking.wait_requests(1)[0].body.clone()).expect("text");
    let id = said.rsplit_once("has the value ").map(|(_, id)| id.trim_end_matches(['.', '\n'])).expect("an id");
    assert!(id.len() == 32 && sent.contains(&format!(r#""weir_test_record":"{id}""#)), "{said}: {sent}");
    let delivered = "[...document.querySelectorAll('.cards section')].filter((one) => /Delivered\\s*1\\b/.test(one.innerText)).length";
    bench.page.wait("it is counted", &format!("{delivered} === 1"));

    let said = test(&bench, &refused, "rejects the test record (invalid):");
    assert!(said.contains("this index is closed") && said.contains("400"), "{said}");
    bench.wait_text("Rejected: invalid");
    let said = test(&bench, &down, "It is not sent again");
    assert!(said.contains("refused"), "{said}");

    // By keys: the button keeps the focus, and can be used again.
    let button = format!("document.querySelector(\"button[aria-label='Send a test record to {taken}']\")");
    bench.page.evaluate(&format!("{button}.focus()"));
    bench.page.press("Enter");
    eventually("another one came", BROWSER_DEADLINE, || taking.requests().len() == 2);
    assert_eq!(bench.page.evaluate(&format!("document.activeElement === {button}")), true);
    bench.check_quiet();
}

#[test]
fn a_viewer_is_offered_no_test_record() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    let logger = r#"{"uri":"/","plugins":{"http-logger":{"uri":"http://127.0.0.1:1/"}}}"#;
    Api::of(&bench.gateway).put("routes/r", logger);
    bench.log_in(api::VIEWER);
    bench.go("#/records");
    bench.page.wait("the destination", "document.querySelector('.cards section h2')");
    assert_eq!(bench.page.evaluate("document.querySelectorAll('#content button').length"), 0);
    bench.check_quiet();
}

/// Names of loggers are paths, causes are words of collectors.
#[test]
fn names_and_causes_of_records_stay_texts() {
    const HOSTILE: &str = "<img src=x onerror=window.hacked=1>";
    let collector = Origin::serving(|_| Answer::status(400, HOSTILE));
    let routes = format!(
        "routes:\n- {{ id: file, uri: /file, plugins: {{ file-logger: {{ path: \"{HOSTILE}.log\" }} }} }}\n\
         - {{ id: http, uri: /http, plugins: {{ http-logger: {{ uri: \"http://{}/logs\" }} }} }}\n",
        collector.addr()
    );
    let file = api::file().replace("admin:\n", "admin:\n  store: file\n") + &routes;
    let Some(bench) = Bench::logged_out(&file) else { return };
    bench.log_in(api::ADMIN);
    bench.go("#/records");
    bench.wait_text(&format!("{HOSTILE}.log"));
    let sink = format!("http-logger http://{}", collector.addr());
    let said = test(&bench, &sink, "rejects the test record");
    assert!(said.contains(HOSTILE), "{said}");
    // The cause stands in the account, too.
    bench.page.wait("the cause", "document.querySelector('.cards .problem')?.innerText.includes('<img')");
    assert_eq!(bench.page.evaluate("window.hacked ?? document.querySelectorAll('#content img').length"), 0);
    bench.check_quiet();
}

#[test]
fn records_are_accessible() {
    let (Some(axe), Some(page)) = (axe(), BrowserPage::open()) else { return };
    let (bench, _other) = Bench::with_neighbours(page);
    bench.log_in(api::ADMIN);
    bench.go("#/records");
    bench.page.click(".cards section button");
    bench.wait_text("was delivered");
    bench.page.evaluate(&axe);
    bench.check_accessible(&["#/records"]);
}
