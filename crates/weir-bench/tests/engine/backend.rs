//! The built-in backends against curl, where it is the independent client, and against the engine.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_bench::backend::{
    BackendAnswer, BackendDelay, BackendServer, Behaviour, Config, InjectedFailure, InjectedFailureKind, TlsFiles,
};
use weir_bench::engine::{Errors, LoadPlan, LoadResult, RequestBody, StopCondition, run};

use crate::http1::PATIENT_MS;

fn backend(behaviour: Behaviour, tls: bool) -> (BackendServer, String) {
    let tls_files = tls.then_some(TlsFiles::SelfSigned);
    let backend =
        BackendServer::start(&Config { behaviour, tls: tls_files, ..Config::default() }).expect("a free port");
    let url = format!("{}://{}", if tls { "https" } else { "http" }, backend.addresses()[0]);
    (backend, url)
}

fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl").args(["-sSk", "--max-time", "20"]).args(arguments).output();
    let output = output.expect("curl is installed");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn load(url: &str, change: impl FnOnce(&mut LoadPlan)) -> LoadResult {
    let mut plan = LoadPlan::closed(url, 4, StopCondition::after_count(400));
    change(&mut plan);
    run(&plan, &mut |_| {}).expect("the plan is good")
}

#[test]
fn answers_curl_over_every_protocol() {
    for tls in [false, true] {
        let (_backend, url) = backend(Behaviour::default(), tls);
        let shown = ["-w", " %{http_version} %{http_code}"];
        let ask = |more: &[&str], path: &str| curl(&[&shown, more, &[&format!("{url}{path}")]].concat());
        let second = if tls { "--http2" } else { "--http2-prior-knowledge" };
        for (version, number) in [("--http1.1", "1.1"), (second, "2")] {
            assert_eq!(ask(&[version], "/"), format!("OK {number} 200"));
            assert_eq!(ask(&[version, "-d", "hello"], "/echo"), format!("hello {number} 200"));
            assert_eq!(ask(&[version], "/bytes/5"), format!("abcde {number} 200"));
            assert_eq!(ask(&[version], "/status/404"), format!("OK {number} 404"));
            assert_eq!(ask(&[version], "/delay/20ms"), format!("OK {number} 200"));
            assert_eq!(ask(&[version], "/cpu/10us"), format!("OK {number} 200"));
        }
        assert_eq!(ask(&["--http1.0"], "/x"), "OK 1.1 200");
        assert_eq!(ask(&["--http1.1", "-H", "Transfer-Encoding: chunked", "-d", "hello"], "/echo"), "hello 1.1 200");
        let events = ask(&["--http1.1"], "/sse?rate=200&bytes=60&count=3");
        assert_eq!(events.matches("data: ").count(), 3, "{events}");
    }
}

#[test]
fn a_backend_that_drains_answers_open_requests_and_waits_for_no_idle_connection() {
    let (backend, _) = backend(Behaviour::default(), false);
    let connect = || TcpStream::connect(backend.addresses()[0]).expect("it listens");
    let [mut idle, mut open] = [connect(), connect()];
    idle.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").expect("it is sent");
    let mut first = [0; 256];
    assert!(idle.read(&mut first).expect("an answer") > 0);
    open.write_all(b"GET /delay/300ms HTTP/1.1\r\nHost: t\r\n\r\n").expect("it is sent");
    let began = Instant::now();
    backend.drain();
    assert!(began.elapsed() < Duration::from_secs(8), "the idle connection is not waited for");
    let mut answer = String::new();
    open.read_to_string(&mut answer).expect("it is answered");
    assert!(answer.contains("200 OK") && answer.contains("Connection: close") && answer.ends_with("OK"), "{answer}");
}

#[test]
fn the_engine_gets_what_the_backend_says() {
    for tls in [false, true] {
        let (_backend, url) = backend(Behaviour { answer: BackendAnswer::Sized(50_000), ..Behaviour::default() }, tls);
        let result = load(&url, |_| {});
        assert_eq!((result.total.completed, result.total.errors), (400, Errors::default()));
        assert!(result.total.bytes_received > 400 * 50_000);
        assert_eq!(result.connections.handshakes, if tls { 4 } else { 0 });
        let echoed = load(&format!("{url}/echo"), |plan| {
            plan.requests[0].method = "POST".into();
            plan.requests[0].body = RequestBody::Sized(200_000);
        });
        assert_eq!((echoed.total.completed, echoed.total.errors), (400, Errors::default()));
        assert!(echoed.total.bytes_received > 400 * 200_000 && echoed.total.bytes_sent > 400 * 200_000);
    }
}

#[test]
fn tls_sessions_are_resumed_only_when_asked() {
    let (_backend, url) = backend(Behaviour::default(), true);
    let opened = |resume| {
        let result = load(&url, |plan| {
            plan.keep_alive = false;
            plan.tls.resume = resume;
            plan.stop = StopCondition::after_count(40);
        });
        assert_eq!((result.total.completed, result.connections.handshakes), (40, 40));
        result.connections.resumed
    };
    assert_eq!(opened(false), 0);
    assert!(opened(true) >= 30);
}

#[test]
fn a_certificate_nobody_vouches_for_is_refused_when_asked() {
    let (_backend, url) = backend(Behaviour::default(), true);
    let made = rcgen::generate_simple_self_signed(vec!["elsewhere".to_owned()]).expect("a certificate");
    let file = std::env::temp_dir().join(format!("weir-bench-ca-{}.pem", std::process::id()));
    std::fs::write(&file, made.cert.pem()).expect("a temporary file");
    let result = load(&url, |plan| {
        plan.tls.ca_file = Some(file.clone());
        plan.stop = StopCondition::after_count(1);
    });
    let _ = std::fs::remove_file(&file);
    assert_eq!(result.total.errors, Errors { tls: 1, ..Errors::default() });
}

#[test]
fn delays_and_failures_are_seen() {
    let fixed = Behaviour { delay: BackendDelay::Fixed(std::time::Duration::from_millis(20)), ..Behaviour::default() };
    let (_backend, url) = backend(fixed, false);
    let result = load(&url, |plan| plan.stop = StopCondition::after_count(40));
    assert!(result.total.service_time.min() >= 20_000_000);

    let failing = |how| {
        let behaviour = Behaviour { failure: Some(InjectedFailure { share: 1.0, how }), ..Behaviour::default() };
        let (_backend, url) = backend(behaviour, false);
        load(&url, |plan| {
            plan.stop = StopCondition::after_count(4);
            // One that does not come is waited for until then.
            plan.timeouts.response_ms = if how == InjectedFailureKind::Hang { 200 } else { PATIENT_MS };
        })
        .total
    };
    assert_eq!(failing(InjectedFailureKind::Status(503)).statuses[&503], 4);
    assert_eq!(failing(InjectedFailureKind::Close).errors.closed, 4);
    assert_eq!(failing(InjectedFailureKind::Reset).errors.reset, 4);
    assert_eq!(failing(InjectedFailureKind::Hang).errors.timeout, 4);
}

#[test]
fn several_addresses_and_threads_are_served() {
    let free = Config::default().listen[0];
    let config = Config { listen: vec![free; 3], threads: 2, ..Config::default() };
    let backend = BackendServer::start(&config).expect("free ports");
    for address in backend.addresses() {
        assert_eq!(curl(&[&format!("http://{address}/")]), "OK");
    }
    let addresses = backend.addresses().to_vec();
    drop(backend);
    assert!(std::net::TcpStream::connect(addresses[0]).is_err(), "a dropped backend is gone");
}

/// What the backend sends waits for the peer's window, so a peer that never opens it costs the others nothing.
#[test]
fn u17_a_peer_with_a_window_of_zero_does_not_hold_up_others() {
    let (backend, url) = backend(Behaviour::default(), false);
    let address = backend.addresses()[0];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (sent, all_sent) = std::sync::mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let silent = std::thread::spawn(move || {
        runtime.block_on(async move {
            let stream = tokio::net::TcpStream::connect(address).await.expect("the backend listens");
            let (client, connection) =
                h2::client::Builder::new().initial_window_size(0).handshake::<_, bytes::Bytes>(stream).await.unwrap();
            let connection = tokio::spawn(connection);
            let mut client = client.ready().await.unwrap();
            let mut responses = Vec::new();
            for _ in 0..500 {
                let request = http::Request::get(format!("http://{address}/bytes/64m")).body(()).unwrap();
                client = client.ready().await.unwrap();
                responses.push(client.send_request(request, true).unwrap().0);
            }
            // The heads come without a window; their content never does.
            for response in responses.drain(..1) {
                assert_eq!(response.await.unwrap().status(), 200);
            }
            sent.send(()).unwrap();
            let _ = ended.await;
            connection.abort();
        });
    });
    all_sent.recv_timeout(std::time::Duration::from_secs(60)).expect("500 requests are sent");
    assert_eq!(curl(&["--http1.1", &url]), "OK");
    assert_eq!(curl(&["--http2-prior-knowledge", &format!("{url}/bytes/100k")]).len(), 100 * 1024);
    end.send(()).unwrap();
    silent.join().unwrap();
}

#[test]
fn an_address_in_use_is_refused_by_its_name() {
    let backend = BackendServer::start(&Config { threads: 2, ..Config::default() }).expect("a free port");
    let taken = backend.addresses()[0];
    let error = BackendServer::start(&Config { listen: vec![taken], ..Config::default() }).err();
    let told = error.expect("two backends would share the connections").to_string();
    assert!(told.contains(&format!("cannot listen on {taken}")), "{told}");
}

#[test]
fn an_address_given_twice_is_told_as_such() {
    let free = BackendServer::start(&Config::default()).expect("a free port").addresses()[0];
    let error = BackendServer::start(&Config { listen: vec![free, free], ..Config::default() }).err();
    let told = error.expect("it is refused").to_string();
    assert!(told.contains(&format!("the address {free} is given twice")), "{told}");
    let any = Config::default().listen[0];
    BackendServer::start(&Config { listen: vec![any, any], ..Config::default() }).expect("two free ports");
}
