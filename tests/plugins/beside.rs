//! What attacks cost others: the latency of another client beside them, and the memory they take; in the clear, over TLS and
//! over HTTP/2, with one worker and with two.
//!
//! Memory has its bound everywhere. Times have theirs where nothing else runs on the machine, with full counts (`make
//! test-full`): at the 99th percentile at most a tenth more than without the attack, or 5 ms. Without the attack means alone,
//! or, where attackers send so much that sending it keeps the machine busy, beside clients who send the same to a route that
//! does nothing with it. `--nocapture` shows them.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use weir_testkit::{
    Answer, Authority, Client, ClientMode, DEADLINE, EndOfAttack, Gateway, Identity, Origin, OriginConnection, Reading,
    TlsClient, eventually, is_full, most_beside, p99, scaled,
};

use crate::redis::Redis;

const MIB: u64 = 1 << 20;
/// Clients that attack at a time.
const ATTACKERS: usize = 4;

/// A gateway that is attacked.
struct Site {
    gateway: Gateway,
    _origin: Origin,
    tls: TlsClient,
    mode: ClientMode,
    workers: usize,
}

/// What an attacker does again and again.
type AttackRound<'a> = &'a (dyn Fn(&Site) -> Option<Client> + Sync);

/// What an attack is, and what it may cost.
struct Attack<'a> {
    name: &'a str,
    /// The other client makes a connection for each request.
    new_connections: bool,
    most_memory: u64,
    /// Done by each attacker again and again. It keeps the connections it returns until the end, the last hundred of them.
    round: AttackRound<'a>,
    /// The same without harm, where that alone keeps the machine busy.
    harmless: Option<AttackRound<'a>>,
    /// Whether it has got to where it harms.
    is_under_way: &'a dyn Fn(&Site) -> bool,
}

fn everywhere(attack: impl Fn(ClientMode, usize)) {
    ClientMode::with_workers(&[1, 2], attack);
}

fn certificate(identity: &Identity) -> String {
    let indented = |text: &str| text.lines().map(|line| format!("      {line}\n")).collect::<String>();
    let (certificate, key) = (indented(&identity.certificate), indented(&identity.key));
    format!("ssls:\n  - snis: [a.example]\n    cert: |\n{certificate}    key: |\n{key}")
}

impl Site {
    /// Routes everything to an origin, `/attacked` with these plugins.
    fn start(mode: ClientMode, workers: usize, settings: &str, plugins: &str) -> Site {
        Site::with_origin(Origin::serving(|_| Answer::ok("ok")), mode, workers, settings, plugins)
    }

    fn with_origin(origin: Origin, mode: ClientMode, workers: usize, settings: &str, plugins: &str) -> Site {
        let authority = Authority::of_tests();
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "worker_processes: {workers}
listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", tls: true }}]
{settings}{}routes:
  - {{ uri: /attacked, plugins: {plugins}, upstream: {{ type: roundrobin, nodes: {{ \"{origin}\": 1 }} }} }}
  - {{ uri: /*, upstream: {{ type: roundrobin, nodes: {{ \"{origin}\": 1 }} }} }}
",
            certificate(&authority.identity(&["a.example"])),
            origin = origin.addr()
        ));
        Site { gateway, _origin: origin, tls: TlsClient::trusting(authority), mode, workers }
    }

    fn client(&self) -> Client {
        let address = if self.mode == ClientMode::Tls { self.gateway.tls_addr() } else { self.gateway.addr() };
        self.mode.try_connect(address, &self.tls, "a.example").expect("a connection")
    }

    /// The 99th percentile of what another client waits for.
    fn p99(&self, new_connections: bool) -> Duration {
        let mut client = self.client();
        p99(scaled(200, 3_000), || {
            if new_connections {
                client = self.client();
            }
            assert_eq!(client.get("/other").expect("an answer").status, 200);
        })
    }

    /// The 99th percentile of what another client waits for beside attackers that do this, and the memory that is taken then.
    fn p99_beside(
        &self,
        attack: &Attack,
        round: AttackRound<'_>,
        is_under_way: &dyn Fn(&Site) -> bool,
    ) -> (Duration, u64) {
        let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        let attacker = || {
            let mut kept = Vec::new();
            while !stop.load(Relaxed) {
                kept.extend(round(self));
                if kept.len() > 100 {
                    kept.remove(0);
                }
                rounds.fetch_add(1, Relaxed);
            }
        };
        thread::scope(|scope| {
            (0..ATTACKERS).for_each(|_| _ = scope.spawn(attacker));
            let _end = EndOfAttack(&stop);
            eventually(attack.name, 2 * DEADLINE, || rounds.load(Relaxed) >= ATTACKERS && is_under_way(self));
            let beside = self.p99(attack.new_connections);
            (beside, self.gateway.rss())
        })
    }

    fn stand(&self, attack: &Attack) {
        let alone = match attack.harmless {
            None => self.p99(attack.new_connections),
            Some(round) => self.p99_beside(attack, round, &|_| true).0,
        };
        let before = self.gateway.rss();
        let (beside, after) = self.p99_beside(attack, attack.round, attack.is_under_way);
        let grown = after.saturating_sub(before);
        println!(
            "{}, {:?}, workers: {}: p99 {alone:?} without, {beside:?} beside; {} KiB more memory",
            attack.name,
            self.mode,
            self.workers,
            grown / 1024
        );
        assert!(grown <= attack.most_memory, "{}: {grown} bytes more", attack.name);
        if is_full() {
            assert!(beside <= most_beside(alone), "{}: {beside:?} beside it, {alone:?} without", attack.name);
        }
    }
}

fn post(body: &str) -> String {
    format!("POST /attacked HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn u01_bodies_that_are_validated_cost_others_little() {
    let numbers = post(&format!("[{}1]", "1,".repeat(400_000)));
    everywhere(|mode, workers| {
        let plugins = "{ request-validation: { body_schema: { type: array }, max_req_body_size: 16777216 } }";
        Site::start(mode, workers, "held_content_max: 32MiB\n", plugins).stand(&Attack {
            name: "bodies of many values, whole and half",
            new_connections: false,
            // What may be held, and as much again for how memory is handed out.
            most_memory: 64 * MIB,
            harmless: None,
            round: &|site| {
                // Who is refused early may not get to send the rest.
                if let Ok(refused) = site.client().ask(&numbers) {
                    assert!([400, 413, 503].contains(&refused.status), "{}", refused.status);
                }
                let mut half = site.client();
                let _ = half.try_send(numbers[..200_000].replacen("Content-Length: ", "Content-Length: 1", 1));
                Some(half)
            },
            is_under_way: &|_| true,
        });
    });
}

#[test]
fn u02_silent_connections_cost_others_little() {
    everywhere(|mode, workers| {
        Site::start(mode, workers, "client_max_connections: 100\n", "{}").stand(&Attack {
            name: "silent connections",
            new_connections: true,
            most_memory: 16 * MIB,
            harmless: None,
            round: &|site| {
                let addr = if site.mode == ClientMode::Tls { site.gateway.tls_addr() } else { site.gateway.addr() };
                let mut silent = Client::connect_from([127, 0, 0, 2].into(), addr).ok()?;
                if site.mode == ClientMode::Http2 {
                    let _ = silent.try_send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
                }
                thread::sleep(Duration::from_millis(1)); // 4,000 a second: this test is not about the cost of accepting
                Some(silent)
            },
            is_under_way: &|site| site.gateway.metrics().sum("weir_client_connections_over_share_total", &[]) >= 100.0,
        });
    });
}

#[test]
fn u03_records_that_nobody_takes_cost_others_little() {
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let uri = format!("http://{}/", deaf.local_addr().expect("it has one"));
    let large = post(&"x".repeat(512 << 10));
    let unrecorded = large.replacen("/attacked", "/elsewhere", 1);
    everywhere(|mode, workers| {
        let plugins = format!("{{ http-logger: {{ uri: \"{uri}\", include_req_body: true }} }}");
        Site::start(mode, workers, "", &plugins).stand(&Attack {
            name: "posts to a logger that nobody answers",
            new_connections: false,
            // 64 MiB of records that wait, those that are encoded, and copies of requests on their way.
            most_memory: 160 * MIB,
            harmless: Some(&|site| {
                assert_eq!(site.client().ask(&unrecorded).expect("an answer").status, 200);
                None
            }),
            round: &|site| {
                assert_eq!(site.client().ask(&large).expect("an answer").status, 200);
                None
            },
            is_under_way: &|site| site.gateway.metrics().sum("weir_log_records_total", &["outcome=\"dropped\""]) >= 1.0,
        });
    });
}

#[test]
fn u04_a_server_of_limits_that_does_not_answer_costs_others_little() {
    let Some(redis) = Redis::start(&[]) else { return };
    let port = redis.port;
    let plugins = format!(
        "{{ limit-conn: {{ conn: 100, burst: 0, default_conn_delay: 0.1, key: remote_addr, policy: redis, redis_host: \
         127.0.0.1, redis_port: {port}, redis_timeout: 200 }} }}"
    );
    everywhere(|mode, workers| {
        let site = Site::start(mode, workers, "", &plugins);
        assert_eq!(site.client().get("/attacked").expect("an answer").status, 200);
        site.stand(&Attack {
            name: "requests counted by a Redis that hangs",
            new_connections: false,
            most_memory: 16 * MIB,
            harmless: None,
            round: &|site| {
                let answer = site.client().get("/attacked").expect("an answer");
                assert!([200, 500].contains(&answer.status), "{}", answer.status);
                None
            },
            is_under_way: &|site| {
                redis.freeze();
                site.client().get("/attacked").expect("an answer").status == 500
            },
        });
        redis.thaw();
    });
}

/// Answers requests for `/events` with an event stream that begins with a megabyte and does not end, and others with `ok`.
fn send_many_events(connection: &mut OriginConnection) {
    let event = format!("data: {}\n\n", "x".repeat(1_000));
    let piece = event.repeat(50);
    while let Ok(request) = connection.request() {
        if !request.target.contains("events") {
            if connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
            continue;
        }
        let mut sent =
            connection.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..20 {
            sent = sent.and_then(|()| connection.send(format!("{:x}\r\n{piece}\r\n", piece.len())));
        }
        return if sent.is_ok() {
            connection.wait_gone()
        };
    }
}

#[test]
fn u05_event_streams_that_nobody_shares_cost_others_little() {
    everywhere(|mode, workers| {
        let origin = Origin::scripted(Reading::Strict, send_many_events);
        let number = AtomicUsize::new(0);
        let ask = |site: &Site, path: &str, statuses: &[u16]| {
            let number = number.fetch_add(1, Relaxed);
            let mut client = Client::connect(site.gateway.addr());
            client.send(format!("GET {path}?events={number} HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n"));
            let status = client.response_head("GET").expect("an answer").status;
            assert!(statuses.contains(&status), "{status}");
            // Half of them stay, and do not read.
            number.is_multiple_of(2).then_some(client)
        };
        let plugins = "{ sse-fanout: { keep_open: 3600 } }";
        Site::with_origin(origin, mode, workers, "held_content_max: 32MiB\n", plugins).stand(&Attack {
            name: "event streams, each for one client",
            new_connections: false,
            // The client's share of held content, 8 MiB, and 200 KiB for each stream: the two connections and their buffers.
            most_memory: (8 + 20 + 16) * MIB,
            harmless: Some(&|site| ask(site, "/elsewhere", &[200]).filter(|_| false)),
            round: &|site| ask(site, "/attacked", &[200, 413, 429]),
            is_under_way: &|site| {
                let refused = |metric| site.gateway.metrics().sum(metric, &["limit=\"client\""]);
                refused("weir_sse_fanout_refused_streams_total") + refused("weir_held_content_refused_total") >= 1.0
            },
        });
    });
}

/// Sends interim responses for as long as they are read.
fn send_interim_responses(connection: &mut OriginConnection) {
    let many = "HTTP/1.1 102 Processing\r\n\r\n".repeat(1_000);
    if connection.request().is_ok() {
        while connection.send(&many).is_ok() {}
    }
}

#[test]
fn u06_endless_interim_responses_to_the_gateway_cost_others_little() {
    let endless = Origin::scripted(Reading::Strict, send_interim_responses);
    let url = format!("http://{}", endless.addr());
    everywhere(|mode, workers| {
        for plugins in [
            format!("{{ proxy-mirror: {{ host: \"{url}\" }}, http-logger: {{ uri: \"{url}/\", batch_max_size: 1 }} }}"),
            format!("{{ forward-auth: {{ uri: \"{url}/\" }} }}"),
            format!(
                "{{ openid-connect: {{ client_id: a, client_secret: b, discovery: \"{url}/d\", bearer_only: true }} }}"
            ),
        ] {
            let asked = endless.connections();
            Site::start(mode, workers, "", &plugins).stand(&Attack {
                name: "interim responses for ever",
                new_connections: false,
                most_memory: 32 * MIB,
                // The origin sends without end, which keeps the machine busy without the gateway as well.
                harmless: Some(&|site| {
                    assert_eq!(site.client().get("/elsewhere").expect("an answer").status, 200);
                    let mut direct = Client::connect(endless.addr());
                    direct.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
                    assert_eq!(direct.next_head().expect("an interim response").status, 102);
                    None
                }),
                round: &|site| {
                    let request = "GET /attacked HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer a.b.c\r\n\r\n";
                    let status = site.client().ask(request).expect("an answer").status;
                    assert!([200, 401, 403, 500, 502, 503].contains(&status), "{status}");
                    None
                },
                is_under_way: &|_| endless.connections() > asked,
            });
        }
    });
}
