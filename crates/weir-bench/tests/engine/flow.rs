//! Requests that are made of data, and what is done with their answers.

use std::io::Write as _;
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::peer::{PeerDefinition, Seen, Then, answer};
use weir_bench::backend::{BackendServer, Config, TlsFiles};
use weir_bench::engine::{
    AnswerCheck, AnswerCheckTally, AtEnd, CsvData, CsvOrder, FormPart, LoadPlan, LoadResult, Pacing, PlanVariable,
    Protocol, Rate, RequestBody, RequestTemplate, Selection, Spacing, StatusPattern, StopCondition, Take, Think, run,
};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK";

/// A peer that remembers what it has seen.
struct Remembering {
    peer: PeerDefinition,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Remembering {
    /// Answers as `script` says of each request.
    fn start(script: impl Fn(&Seen) -> String + Send + Sync + 'static) -> Self {
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let kept = seen.clone();
        let peer = PeerDefinition::start(move |request, stream| {
            kept.lock().expect("no panic").push(request.clone());
            answer(stream, &script(request))
        });
        Self { peer, seen }
    }

    fn ok() -> Self {
        Self::start(|_| OK.to_owned())
    }

    /// The targets of all requests, in their order.
    fn targets(&self) -> Vec<String> {
        let seen = self.seen.lock().expect("no panic");
        seen.iter().map(|seen| seen.line.split(' ').nth(1).expect("a target").to_owned()).collect()
    }

    fn sorted_targets(&self) -> Vec<String> {
        let mut targets = self.targets();
        targets.sort();
        targets
    }
}

/// A file that is removed at the end.
struct DataFile(PathBuf);

impl DataFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-flow-{}-{name}.csv", std::process::id()));
        std::fs::write(&path, text).expect("the directory of temporary files is writable");
        Self(path)
    }

    fn read(&self, order: CsvOrder, at_end: AtEnd) -> CsvData {
        CsvData { order, at_end, ..CsvData::of(&self.0) }
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn load(plan: &LoadPlan) -> LoadResult {
    let result = run(plan, &mut |_| {}).expect("the plan is good");
    let total = &result.total;
    assert_eq!(total.due, total.completed + total.errors.sum() + total.missed, "every request has one outcome");
    result
}

/// One client that sends these requests once, one after the other.
fn steps(requests: Vec<RequestTemplate>, passes: u64) -> LoadPlan {
    let stop = StopCondition::after_count(passes * requests.len() as u64);
    LoadPlan { requests, selection: Selection::Sequence, ..LoadPlan::closed("", 1, stop) }
}

fn named(name: &str, url: String) -> RequestTemplate {
    RequestTemplate { name: Some(name.to_owned()), ..RequestTemplate::get(url) }
}

fn checks(result: &LoadResult) -> &[AnswerCheckTally] {
    &result.flow.as_ref().expect("the plan has checks").checks
}

fn json(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn values_of_a_file_are_encoded_where_they_stand() {
    let peer = Remembering::ok();
    let file = DataFile::new("parts", "user,text\nann,plain\n\"b/ö&\",\"say \"\"hi\"\"\nnow\"\n");
    let mut plan =
        LoadPlan::closed(format!("{}u/${{user}}?q=${{user}}", peer.peer.url()), 1, StopCondition::after_ms(60_000));
    plan.requests[0].method = "POST".to_owned();
    plan.requests[0].headers = vec![("X-User".to_owned(), "is ${user}".to_owned())];
    plan.requests[0].body = RequestBody::Text("{\"text\": \"${text}\"}".to_owned());
    plan.data.csv = vec![file.read(CsvOrder::Sequential, AtEnd::Stop)];
    // The end of the file ends the run, long before its time.
    let result = load(&plan);
    assert_eq!((result.total.completed, result.total.class(2)), (2, 2));
    assert_eq!(peer.targets(), ["/u/ann?q=ann", "/u/b%2F%C3%B6%26?q=b%2F%C3%B6%26"]);
    let seen = peer.seen.lock().expect("no panic");
    assert!(seen[1].fields.contains(&"X-User: is b/ö&".to_owned()), "{:?}", seen[1].fields);
    let body: serde_json::Value = serde_json::from_slice(&seen[1].body).expect("JSON");
    assert_eq!(body["text"], "say \"hi\"\nnow");
    let sent: u64 = result.total.bytes_sent;
    assert!(sent > seen.iter().map(|seen| (seen.line.len() + seen.body.len()) as u64).sum(), "{sent}");
}

#[test]
fn rows_are_shared_by_the_clients_as_the_order_says() {
    let file = DataFile::new("order", "id\na\nb\nc\n");
    let targets = |order, at_end, connections, threads, count| {
        let peer = Remembering::ok();
        let url = format!("{}${{id}}", peer.peer.url());
        let stop = StopCondition { duration_ms: Some(60_000), count };
        let mut plan = LoadPlan { threads, ..LoadPlan::closed(url, connections, stop) };
        plan.data.csv = vec![file.read(order, at_end)];
        load(&plan);
        peer.sorted_targets()
    };
    assert_eq!(targets(CsvOrder::Sequential, AtEnd::Stop, 2, 2, None), ["/a", "/b", "/c"]);
    assert_eq!(targets(CsvOrder::Sequential, AtEnd::Again, 1, 1, Some(4)), ["/a", "/a", "/b", "/c"]);
    assert_eq!(targets(CsvOrder::EveryClient, AtEnd::Stop, 2, 1, None), ["/a", "/a", "/b", "/b", "/c", "/c"]);
    let kept = targets(CsvOrder::PerClient, AtEnd::Again, 2, 1, Some(40));
    assert!(kept.iter().all(|target| target == "/a" || target == "/b"), "{kept:?}");
    assert!(kept.contains(&"/a".to_owned()) && kept.contains(&"/b".to_owned()), "{kept:?}");
}

#[test]
fn numbers_of_an_open_loop_are_used_once() {
    let peer = Remembering::ok();
    let mut plan = LoadPlan::closed(format!("{}${{n}}/${{id}}", peer.peer.url()), 4, StopCondition::after_count(60));
    plan.pacing = Pacing::Open { rate: Rate::Constant(2_000.0), spacing: Spacing::Even };
    plan.threads = 2;
    plan.data.variables =
        [("n".to_owned(), PlanVariable::Sequence { from: 1, step: 1 }), ("id".to_owned(), PlanVariable::Uuid)].into();
    assert_eq!(load(&plan).total.completed, 60);
    let targets = peer.targets();
    let part = |at: usize| targets.iter().map(move |target| target.split('/').nth(at).expect("two parts").to_owned());
    let mut numbers: Vec<u64> = part(1).map(|number| number.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=60).collect::<Vec<u64>>());
    assert_eq!(part(2).collect::<std::collections::BTreeSet<_>>().len(), 60);
}

#[test]
fn failed_checks_are_counted_with_an_example() {
    let peer = Remembering::start(|seen| match seen.number % 4 {
        0 => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
        // In pieces, so that the parts of a body are put together.
        1 => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{\"a\": \r\n2\r\n5}\r\n0\r\n\r\n".to_owned(),
        _ => json("{\"a\": 4}"),
    });
    let mut plan = LoadPlan::closed(peer.peer.url(), 1, StopCondition::after_count(40));
    let text = |text: &str| Some(text.to_owned());
    plan.requests[0].check = vec![
        AnswerCheck { status: vec![StatusPattern::Class("2xx".to_owned())], ..AnswerCheck::default() },
        AnswerCheck { json: text("/a"), equals: text("4"), ..AnswerCheck::default() },
        AnswerCheck { field: text("content-length"), ..AnswerCheck::default() },
    ];
    let result = load(&plan);
    let counted: Vec<(u64, u64)> = checks(&result).iter().map(|check| (check.passed, check.failed)).collect();
    assert_eq!(counted, [(30, 10), (20, 20), (30, 10)]);
    let examples: Vec<&str> = checks(&result).iter().filter_map(|check| check.example.as_deref()).collect();
    assert_eq!(examples[0], "it was 404");
    assert!(examples[1].starts_with("the body was not JSON: "), "{examples:?}");
    assert_eq!(examples[2], "there was no such field");
    assert_eq!((result.total.completed, result.total.unexpected, result.total.failed_checks), (40, 10, 10));
    assert_eq!(result.total.failed(), 20);
    // A status that is checked is no failure, whatever else would be one.
    plan.requests[0].check = vec![AnswerCheck {
        status: vec![StatusPattern::Code(404), StatusPattern::Code(200)],
        ..AnswerCheck::default()
    }];
    assert_eq!(load(&plan).total.unexpected, 0);
}

/// A shop that gives a token, demands it with its cookie, and ends the session.
fn shop(seen: &Seen) -> String {
    let has = |field: &str| seen.fields.iter().any(|known| known == field);
    match seen.line.as_str() {
        "POST /login HTTP/1.1" => {
            let user = String::from_utf8_lossy(&seen.body).into_owned();
            let body = format!("{{\"token\": \"t-{user}\", \"next\": [\"/cart?user={user}\"]}}");
            format!(
                "HTTP/1.1 200 OK\r\nSet-Cookie: session={user}; Path=/\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        }
        "GET /cart?user=ann HTTP/1.1" if has("Authorization: Bearer t-ann") && has("Cookie: session=ann") => {
            OK.to_owned()
        }
        "GET /cart?user=bob HTTP/1.1" if has("Authorization: Bearer t-bob") && has("Cookie: session=bob") => {
            OK.to_owned()
        }
        _ => "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_owned(),
    }
}

fn shopping(url: &str) -> LoadPlan {
    let log_in = RequestTemplate {
        method: "POST".to_owned(),
        body: RequestBody::Text("${user}".to_owned()),
        take: [
            ("token".to_owned(), Take { json: Some("/token".to_owned()), ..Take::default() }),
            ("cart".to_owned(), Take { json: Some("/next/0".to_owned()), ..Take::default() }),
        ]
        .into(),
        ..named("log in", format!("{url}login"))
    };
    let cart = RequestTemplate {
        headers: vec![("Authorization".to_owned(), "Bearer ${token}".to_owned())],
        ..named("cart", format!("{}${{cart:raw}}", url.trim_end_matches('/')))
    };
    LoadPlan { cookies: true, ..steps(vec![log_in, cart], 20) }
}

#[test]
fn each_client_uses_what_it_has_taken_from_answers() {
    let peer = Remembering::start(shop);
    let file = DataFile::new("users", "user\nann\nbob\n");
    let mut plan = shopping(&peer.peer.url());
    (plan.connections, plan.threads) = (4, 2);
    plan.data.csv = vec![file.read(CsvOrder::PerClient, AtEnd::Again)];
    let result = load(&plan);
    assert_eq!((result.total.completed, result.total.class(2)), (40, 40));
    let names: Vec<(&str, u64)> =
        result.requests.iter().map(|request| (request.name.as_str(), request.tally.completed)).collect();
    assert!(names[0].1 >= 20 && names[1].1 <= 20 && names[1].1 > 0, "{names:?}");
    let passes = result.flow.as_ref().and_then(|flow| flow.passes.as_ref()).expect("several requests in sequence");
    assert_eq!((passes.completed, passes.abandoned, passes.time.count()), (names[1].1, 0, names[1].1));
    assert!(passes.time.quantile(0.5) >= result.requests[0].tally.latency.min());
}

#[test]
fn client_without_a_value_begins_again() {
    let peer = Remembering::start(|seen| match (seen.line.starts_with("POST"), seen.number) {
        (true, 0) => json("{\"error\": \"busy\"}"),
        (true, _) => json("{\"token\": \"t\", \"next\": [\"/cart\"]}"),
        (false, _) => OK.to_owned(),
    });
    let mut plan = shopping(&peer.peer.url());
    plan.data.variables = [("user".to_owned(), PlanVariable::Value("ann".to_owned()))].into();
    plan.stop = StopCondition::after_count(3);
    let result = load(&plan);
    assert_eq!(peer.targets(), ["/login", "/login", "/cart"]);
    let passes = result.flow.as_ref().and_then(|flow| flow.passes.as_ref()).expect("several requests in sequence");
    assert_eq!((passes.completed, passes.abandoned), (1, 1));
    let token = checks(&result).iter().find(|check| check.check.contains("token")).expect("it is counted");
    assert_eq!((token.passed, token.failed, token.example.as_deref()), (1, 1, Some("there was no such place")));
    // With a default, the pass goes on.
    for take in plan.requests[0].take.values_mut() {
        take.default = Some("/none".to_owned());
    }
    let peer = Remembering::start(|_| json("{}"));
    plan.requests[0].url = format!("{}login", peer.peer.url());
    plan.requests[1].url = format!("http://{}${{cart:raw}}", peer.peer.address);
    plan.stop = StopCondition::after_count(2);
    load(&plan);
    assert_eq!(peer.targets(), ["/login", "/none"]);
}

#[test]
fn redirects_are_followed_up_to_their_bound() {
    let peer = Remembering::start(|seen| {
        let to = |status: u16, location: &str| {
            format!(
                "HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\nSet-Cookie: at={}; Path=/\r\n\r\n",
                seen.number
            )
        };
        match seen.line.split(' ').nth(1).expect("a target") {
            "/a/" => to(302, "b"),
            "/a/b" => to(307, "/c?d"),
            "/elsewhere" => to(302, "http://192.0.2.1/"),
            "/loop" => to(302, "/loop"),
            _ => OK.to_owned(),
        }
    });
    let url = peer.peer.url();
    let following = |path: &str, follow_redirects| RequestTemplate {
        method: "POST".to_owned(),
        body: RequestBody::Text("x".to_owned()),
        follow_redirects,
        ..named(path, format!("{url}{path}"))
    };
    for keep_alive in [true, false] {
        let before = peer.targets().len();
        let plan = LoadPlan { cookies: true, keep_alive, ..steps(vec![following("a/", 2)], 1) };
        let result = load(&plan);
        assert_eq!(peer.targets()[before..], ["/a/", "/a/b", "/c?d"]);
        assert_eq!((result.total.completed, result.total.statuses.get(&200)), (1, Some(&1)));
        assert_eq!(result.connections.opened, if keep_alive { 1 } else { 3 });
        let seen = peer.seen.lock().expect("no panic");
        let last = seen.last().expect("three requests");
        assert!(last.line.starts_with("GET ") && last.body.is_empty(), "{last:?}");
        assert!(last.fields.iter().any(|field| field.starts_with("Cookie: at=")), "{last:?}");
    }
    let failed = |request: RequestTemplate| {
        let result = load(&steps(vec![request], 1));
        assert_eq!((result.total.statuses.get(&302), result.total.failed_checks), (Some(&1), 1));
        checks(&result)[0].example.clone().expect("it failed")
    };
    assert_eq!(failed(following("loop", 3)), "it was one redirect more than 3");
    assert!(failed(following("elsewhere", 3)).starts_with("it leads to http://192.0.2.1/, and only those within"));
}

/// Of the connections to a port, those whose client has closed first, and so keeps its own port: FIN_WAIT1, FIN_WAIT2, TIME_WAIT.
fn closed_by_the_client(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has this table");
    let closed_first = |line: &&str| {
        let mut columns = line.split_whitespace().skip(2);
        let (remote, state) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
        remote.ends_with(&format!(":{port:04X}")) && matches!(state, "04" | "05" | "06")
    };
    table.lines().filter(closed_first).count()
}

#[test]
fn connection_of_a_redirect_is_closed_by_the_server_that_has_said_so() {
    // The server closes the first connection only when the next request has come over another one.
    let (next_came, wait_for_next) = std::sync::mpsc::channel();
    let (first_closed, wait_for_close) = std::sync::mpsc::channel();
    let (wait_for_next, wait_for_close) = (Mutex::new(wait_for_next), Mutex::new(wait_for_close));
    let limit = std::time::Duration::from_secs(20);
    let peer = PeerDefinition::start(move |request, stream| {
        if request.line.starts_with("GET /next") {
            let _ = next_came.send(());
            wait_for_close.lock().expect("no panic").recv_timeout(limit).expect("the first connection is closed");
            answer(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK");
            return Then::Close;
        }
        answer(stream, "HTTP/1.1 302 Found\r\nLocation: /next\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        wait_for_next.lock().expect("no panic").recv_timeout(limit).expect("the next request comes");
        let _ = stream.shutdown(Shutdown::Both);
        let _ = first_closed.send(());
        Then::Close
    });
    let following = RequestTemplate { follow_redirects: 1, ..RequestTemplate::get(peer.url()) };
    for keep_alive in [true, false] {
        let result = load(&LoadPlan { keep_alive, ..steps(vec![following.clone()], 5) });
        assert_eq!((result.total.completed, result.total.failed(), result.connections.opened), (5, 0, 10));
        assert_eq!(closed_by_the_client(peer.address.port()), 0);
    }
}

#[test]
fn forms_are_sent_in_parts_with_values() {
    let peer = Remembering::ok();
    let file = DataFile::new("form", "the file has ${id}");
    let mut plan = LoadPlan::closed(peer.peer.url(), 1, StopCondition::after_count(1));
    plan.requests[0].method = "POST".to_owned();
    let part = |name: &str| FormPart { name: name.to_owned(), ..FormPart::default() };
    plan.requests[0].body = RequestBody::Multipart(vec![
        FormPart { value: Some("${id}".to_owned()), ..part("id") },
        FormPart { file: Some(file.0.clone()), content_type: Some("text/plain".to_owned()), ..part("file") },
    ]);
    plan.data.variables = [("id".to_owned(), PlanVariable::Value("seven".to_owned()))].into();
    load(&plan);
    let seen = peer.seen.lock().expect("no panic");
    let boundary =
        seen[0].fields.iter().find_map(|field| field.strip_prefix("Content-Type: multipart/form-data; boundary="));
    let body = String::from_utf8(seen[0].body.clone()).expect("text");
    let parts: Vec<&str> = body.split(&format!("--{}", boundary.expect("a form"))).collect();
    assert_eq!((parts.len(), parts[3]), (4, "--\r\n"), "{body}");
    assert!(parts[1].contains("name=\"id\"\r\n\r\nseven\r\n"), "{body}");
    assert!(
        parts[2].contains("; filename=\"weir-flow-") && parts[2].contains("\r\n\r\nthe file has ${id}\r\n"),
        "{body}"
    );
}

#[test]
fn steps_have_their_own_think_times() {
    let peer = Remembering::ok();
    let mut plan = steps(vec![named("a", peer.peer.url()), named("b", peer.peer.url())], 2);
    plan.requests[0].think = Some(Think::FixedMs(60.0));
    let result = load(&plan);
    let passes = result.flow.as_ref().and_then(|flow| flow.passes.as_ref()).expect("several requests in sequence");
    assert_eq!((passes.completed, result.total.completed), (2, 4));
    assert!(passes.time.min() >= 59_000_000, "{}", passes.time.min());
}

#[test]
fn first_byte_and_tls_are_measured_apart() {
    // Longer than a busy machine delays the first byte of each of three answers.
    let gap = std::time::Duration::from_millis(400);
    let peer = PeerDefinition::start(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nO");
        let _ = stream.flush();
        std::thread::sleep(gap);
        answer(stream, "K")
    });
    let mut plan = LoadPlan::closed(peer.url(), 1, StopCondition::after_count(3));
    assert_eq!(load(&plan).total.first_byte, None);
    plan.first_byte = true;
    let result = load(&plan);
    let first = result.total.first_byte.as_ref().expect("it was measured");
    assert_eq!(first.count(), 3);
    assert!(
        first.min() + 200_000_000 < result.total.service_time.min(),
        "{} {}",
        first.min(),
        result.total.service_time.min()
    );
    assert_eq!(result.connections.tls_time, None);
    for protocol in [Protocol::Http1, Protocol::Http2 { streams: 1 }] {
        let backend = backend();
        let plan = LoadPlan::closed(format!("https://{}/", backend.addresses()[0]), 3, StopCondition::after_count(9));
        let result = load(&LoadPlan { protocol, first_byte: true, ..plan });
        let tls = result.connections.tls_time.as_ref().expect("it was measured");
        assert_eq!((tls.count(), result.total.first_byte.expect("it was measured").count()), (3, 9));
        assert!(tls.max() <= result.connections.connect_time.max());
    }
}

fn backend() -> BackendServer {
    BackendServer::start(&Config { tls: Some(TlsFiles::SelfSigned), ..Config::default() }).expect("a free port")
}

#[test]
fn flows_are_the_same_over_http2() {
    let backend = backend();
    let url = format!("https://{}", backend.addresses()[0]);
    let file = DataFile::new("http2", "user\nann\n\"b \"\"ob\"\n");
    let ask = RequestTemplate {
        method: "POST".to_owned(),
        body: RequestBody::Text("{\"user\": \"${user}\"}".to_owned()),
        take: [("name".to_owned(), Take { json: Some("/user".to_owned()), ..Take::default() })].into(),
        check: vec![AnswerCheck {
            json: Some("/user".to_owned()),
            equals: Some("${user}".to_owned()),
            ..AnswerCheck::default()
        }],
        ..named("ask", format!("{url}/echo"))
    };
    let use_it = RequestTemplate {
        method: "POST".to_owned(),
        body: RequestBody::Text("is ${name}".to_owned()),
        check: vec![AnswerCheck { matches: Some("^is (ann|b \"ob)$".to_owned()), ..AnswerCheck::default() }],
        ..named("use", format!("{url}/echo?${{name}}"))
    };
    let mut plan = steps(vec![ask, use_it], 10);
    (plan.protocol, plan.connections) = (Protocol::Http2 { streams: 1 }, 2);
    plan.data.csv = vec![file.read(CsvOrder::EveryClient, AtEnd::Stop)];
    let result = load(&plan);
    // Two clients, two rows each, two requests for each row: the data ends the run before its count does.
    assert_eq!((result.total.completed, result.total.class(2), result.total.failed()), (8, 8, 0));
    assert_eq!(checks(&result).iter().map(|check| (check.passed, check.failed)).collect::<Vec<_>>(), [(4, 0); 3]);
    assert!(result.total.first_byte.is_some_and(|times| times.count() == 8));
}

#[test]
fn fault_of_a_plan_has_its_place() {
    let peer = PeerDefinition::ok();
    let fault = |change: &dyn Fn(&mut LoadPlan)| {
        let mut plan = steps(vec![named("a", peer.url()), named("b", peer.url())], 1);
        plan.data.variables = [("id".to_owned(), PlanVariable::Uuid)].into();
        change(&mut plan);
        run(&plan, &mut |_| {}).expect_err("the plan is wrong").to_string()
    };
    let take = || [("t".to_owned(), Take { json: Some("/t".to_owned()), ..Take::default() })].into();
    let unknown = fault(&|plan| plan.requests[1].url += "${ids}");
    assert!(unknown.starts_with("requests[1].url: ${ids} is not a name of `data` or `take` (id)"), "{unknown}");
    let host = fault(&|plan| plan.requests[0].url = "http://${id}/".to_owned());
    assert!(host.starts_with("requests[0].url: ") && host.contains("in its host or port"), "{host}");
    let open = fault(&|plan| {
        plan.requests[0].take = take();
        plan.pacing = Pacing::Open { rate: Rate::Constant(1.0), spacing: Spacing::Even };
    });
    assert!(open.starts_with("requests[0].take: needs a closed loop"), "{open}");
    let weighted = fault(&|plan| (plan.requests[0].take, plan.selection) = (take(), Selection::Weighted));
    assert!(weighted.starts_with("requests[0].take: needs `selection: sequence`"), "{weighted}");
    let streams = fault(&|plan| (plan.cookies, plan.protocol) = (true, Protocol::Http2 { streams: 2 }));
    assert!(streams.starts_with("cookies: needs one stream"), "{streams}");
    let check = fault(&|plan| plan.requests[1].check = vec![AnswerCheck::default()]);
    assert!(check.starts_with("requests[1].check[0]: has no comparison"), "{check}");
    let twice = fault(&|plan| plan.requests[1].take = [("id".to_owned(), Take::default())].into());
    assert!(twice.starts_with("requests[1].take.id: is also a name of `data`"), "{twice}");
    let other = fault(&|plan| plan.protocol = Protocol::Tcp { message_bytes: 5 });
    assert!(other.starts_with("protocol: "), "{other}");
    let line = fault(&|plan| {
        plan.data.variables.insert("bad".to_owned(), PlanVariable::Value("a\r\nb".to_owned()));
        plan.requests[0].headers = vec![("X".to_owned(), "${bad}".to_owned())];
    });
    assert!(
        line.starts_with("requests[0].headers: the value of X would have a control character, from data.variables.bad"),
        "{line}"
    );
    let file = DataFile::new("stop", "a\n1\n");
    let stop = fault(&|plan| {
        plan.data.csv = vec![file.read(CsvOrder::Random, AtEnd::Stop)];
    });
    assert!(stop.starts_with("data.csv[0]: `at_end: stop` needs an order that has an end"), "{stop}");
}
