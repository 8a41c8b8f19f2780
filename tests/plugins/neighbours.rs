//! What other routes notice of a service that a policy waits for, while it is slow, stands still, or is gone.
//!
//! The full test prints how long the requests of the other route took. It judges by what is answered, since times belong
//! to the machine it runs on.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, eventually, scaled};

use crate::oidc::server::{Provider, SECRET};
use crate::redis::Redis;
use crate::slapd::Slapd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Well,
    /// Everything comes 20 ms later, each way.
    Slow,
    /// Takes connections, and says nothing.
    Frozen,
    /// Ends every connection.
    Gone,
}

const ALL: [Health; 4] = [Health::Well, Health::Slow, Health::Frozen, Health::Gone];
const LATER: Duration = Duration::from_millis(20);

/// The way to a service, whose health it decides.
struct Line {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    health: Health,
    open: Vec<TcpStream>,
}

fn now(state: &Mutex<State>) -> Health {
    state.lock().unwrap_or_else(PoisonError::into_inner).health
}

impl Line {
    fn to(service: SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let addr = listener.local_addr().expect("it is bound");
        let state = Arc::new(Mutex::new(State { health: Health::Well, open: Vec::new() }));
        let own = Arc::clone(&state);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if now(&own) == Health::Gone {
                    continue;
                }
                let Ok(far) = TcpStream::connect(service) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a socket can be copied");
                own.lock().unwrap_or_else(PoisonError::into_inner).open.extend([copy(&near), copy(&far)]);
                for (from, to) in [(copy(&near), copy(&far)), (far, near)] {
                    let state = Arc::clone(&own);
                    thread::spawn(move || carry(from, to, &state));
                }
            }
        });
        Line { addr, state }
    }

    fn set(&self, health: Health) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.health = health;
        if health == Health::Gone {
            state.open.drain(..).for_each(|stream| _ = stream.shutdown(Shutdown::Both));
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, state: &Mutex<State>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        while now(state) == Health::Frozen {
            thread::sleep(Duration::from_millis(1));
        }
        if now(state) == Health::Slow {
            thread::sleep(LATER);
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// How many seconds a policy waits for a service that says nothing, and for any other: a busy machine must not pass for a slow service.
const HASTY_S: u64 = 1;
const PATIENT_S: u64 = 20;

/// A policy that waits for a service, and what it answers while that is well and while it says nothing.
struct Case {
    name: &'static str,
    line: Line,
    /// `TIMEOUT_S` and `TIMEOUT_MS` stand for how long it waits.
    plugins: String,
    /// Of a request, by its number.
    fields: fn(usize) -> String,
    well: u16,
    fails: u16,
}

/// How often clients of the route that waits ask, each of them: the same in all states of the service.
const PACE: Duration = Duration::from_millis(5);
const WAITING: usize = 8;

impl Case {
    fn gateway(&self, origin: &Origin, timeout_s: u64) -> Gateway {
        let plugins = self.plugins.replace("TIMEOUT_MS", &(timeout_s * 1_000).to_string());
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "routes:
  - {{ id: waits, uri: /waits, plugins: {}, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
  - {{ id: free, uri: /free, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
consumers:
  - {{ username: jack, plugins: {{ ldap-auth: {{ user_dn: \"cn=jack,ou=users,dc=example,dc=org\" }} }} }}
",
            plugins.replace("TIMEOUT_S", &timeout_s.to_string()),
            addr = origin.addr()
        ))
    }

    fn ask(&self, gateway: &Gateway, number: usize) -> u16 {
        let fields = (self.fields)(number);
        let request = format!("GET /waits HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
        gateway.client().ask(request).expect("an answer").status
    }

    /// How long requests of the other route take, while clients of this one wait.
    fn others(&self, gateway: &Gateway, status: u16, requests: usize) -> Vec<Duration> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for client in 0..WAITING {
                let done = &done;
                scope.spawn(move || {
                    for number in (client..).step_by(WAITING).take_while(|_| !done.load(Relaxed)) {
                        assert_eq!(self.ask(gateway, number), status, "{}", self.name);
                        thread::sleep(PACE);
                    }
                });
            }
            let mut client = gateway.client();
            let mut took = Vec::with_capacity(requests);
            for _ in 0..requests {
                let began = Instant::now();
                let status = client.get("/free").expect("an answer").status;
                took.push(began.elapsed());
                assert_eq!(status, 200, "{}: the other route is not served", self.name);
            }
            done.store(true, Relaxed);
            took
        })
    }

    /// Goes through all states, more than once, so that a slow phase of the machine meets them all.
    fn run(&self) {
        let origin = Origin::serving(|_| Answer::ok("ok"));
        let [patient, hasty] = [PATIENT_S, HASTY_S].map(|timeout_s| self.gateway(&origin, timeout_s));
        let mut took = ALL.map(|_| Vec::new());
        for _ in 0..scaled(1, 5) {
            for (health, took) in ALL.into_iter().zip(&mut took) {
                let gateway = if health == Health::Frozen { &hasty } else { &patient };
                let answers = |status: u16, health: Health| {
                    self.line.set(health);
                    eventually(&format!("{} answers {status} while it is {health:?}", self.name), DEADLINE, || {
                        self.ask(gateway, 0) == status
                    });
                };
                if health == Health::Frozen {
                    // It stands still with connections that were in use.
                    answers(self.well, Health::Well);
                }
                let status = if matches!(health, Health::Well | Health::Slow) { self.well } else { self.fails };
                answers(status, health);
                took.extend(self.others(gateway, status, scaled(200, 10_000)));
            }
        }
        let mut line = format!("{:13}", self.name);
        for (health, took) in ALL.into_iter().zip(&mut took) {
            took.sort();
            let at = |share: f64| took[(took.len() as f64 * share) as usize].as_secs_f64() * 1e6;
            line += &format!("  {health:?}: p50 {:.0} µs, p99 {:.0} µs", at(0.5), at(0.99));
        }
        println!("{line}");
    }
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[test]
fn f26_other_routes_do_not_wait_for_a_redis() {
    let Some(redis) = Redis::start(&[]) else { return };
    let line = Line::to(local(redis.port));
    let plugins = format!(
        "{{ limit-count: {{ count: 100000000, time_window: 86400, policy: redis, redis_host: 127.0.0.1, redis_port: {}, \
         redis_timeout: TIMEOUT_MS }} }}",
        line.addr.port()
    );
    Case { name: "Redis", line, plugins, fields: |_| String::new(), well: 200, fails: 500 }.run();
}

#[test]
fn f26_other_routes_do_not_wait_for_a_directory() {
    let Some(slapd) = Slapd::start(None) else { return };
    let line = Line::to(local(slapd.port));
    let plugins = format!(
        "{{ ldap-auth: {{ base_dn: \"ou=users,dc=example,dc=org\", ldap_uri: \"{}\", cache_ttl: 0, timeout: TIMEOUT_MS }} }}",
        line.addr
    );
    let fields = |_| format!("Authorization: Basic {}\r\n", STANDARD.encode("jack:jacks:word"));
    Case { name: "LDAP", line, plugins, fields, well: 200, fails: 503 }.run();
}

#[test]
fn f26_other_routes_do_not_wait_for_a_provider() {
    let Some(provider) = Provider::start() else { return };
    let line = Line::to(local(provider.port));
    let plugins = format!(
        "{{ openid-connect: {{ client_id: opaque, client_secret: \"{SECRET}\", bearer_only: true, timeout: TIMEOUT_S, \
         discovery: \"http://127.0.0.1:{}/.well-known/openid-configuration\", \
         introspection_endpoint: \"http://{}/token/introspection\" }} }}",
        provider.port, line.addr
    );
    // A token of its own each, so that none is remembered.
    let fields = |number| format!("Authorization: Bearer nonsense-{number}\r\n");
    Case { name: "OpenID", line, plugins, fields, well: 401, fails: 503 }.run();
}

#[test]
fn f26_other_routes_do_not_wait_for_an_auth_service() {
    let service = Origin::serving(|_| Answer::ok(""));
    let line = Line::to(service.addr());
    let plugins = format!("{{ forward-auth: {{ uri: \"http://{}/\", timeout: TIMEOUT_MS }} }}", line.addr);
    Case { name: "forward-auth", line, plugins, fields: |_| String::new(), well: 200, fails: 403 }.run();
}

#[test]
fn f26_other_routes_do_not_wait_for_a_policy_of_opa() {
    let service = Origin::serving(|_| Answer::ok(r#"{"result":{"allow":true}}"#));
    let line = Line::to(service.addr());
    let plugins = format!("{{ opa: {{ host: \"http://{}\", policy: a, timeout: TIMEOUT_MS }} }}", line.addr);
    Case { name: "opa", line, plugins, fields: |_| String::new(), well: 200, fails: 403 }.run();
}

#[test]
fn f26_other_routes_do_not_wait_for_a_decision_of_keycloak() {
    let service = Origin::serving(|_| Answer::ok(r#"{"result":true}"#));
    let line = Line::to(service.addr());
    let plugins = format!(
        "{{ authz-keycloak: {{ token_endpoint: \"http://{}/\", client_id: a, permissions: [a], timeout: TIMEOUT_MS }} }}",
        line.addr
    );
    let fields = |_| "Authorization: Bearer t\r\n".to_owned();
    Case { name: "Keycloak", line, plugins, fields, well: 200, fails: 503 }.run();
}
