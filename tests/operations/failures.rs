//! What a node depends on is killed: the error log at `info`, `/metrics` and `weir top` each tell it.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Dns, Gateway, KeyKind, Launcher, Origin, Program, ScrapedMetrics, Signal,
    TempDir, eventually, free_port, is_full,
};

use crate::top::Terminal;
use crate::weir;

/// How a failure is told.
struct Signs {
    /// Parts of one line of the error log.
    log: &'static [&'static str],
    metric: fn(&ScrapedMetrics) -> bool,
    /// A part of what `weir top` shows.
    top: &'static str,
}

const UPSTREAM: Signs = Signs {
    log: &["WARN an endpoint is out of rotation", "endpoint=127.0.0.1:"],
    metric: |metrics| metrics.sum("weir_upstream_endpoint_up", &[]) == 0.0,
    top: "is out of rotation",
};
const RESOLVER: Signs = Signs {
    log: &["WARN a name cannot be resolved, its last answer stays in use", "name=origin.test"],
    metric: |metrics| metrics.get("weir_names_unresolved") == Some(1.0),
    top: "! names that cannot be resolved: 1",
};
const REDIS: Signs = Signs {
    log: &["ERROR limits cannot be counted in the Redis at 127.0.0.1:"],
    metric: |metrics| metrics.sum("weir_policy_errors_total", &["policy=\"limit-count\""]) > 0.0,
    top: "! the plugin limit-count of the route all fails",
};
const DISK: Signs = Signs {
    log: &["ERROR access log ", "No space left on device", "lines are lost"],
    metric: |metrics| metrics.get("weir_access_log_write_errors_total") > Some(0.0),
    top: "! the access log loses ",
};
const CERTIFICATE: Signs = Signs {
    log: &["weir: configuration rejected, the previous one stays in use"],
    metric: |metrics| metrics.get("weir_config_last_reload_successful") == Some(0.0),
    top: "! the last configuration was rejected",
};
const EXPIRY: Signs = Signs {
    log: &["WARN a certificate expires within 7 days", "certificate=a.test"],
    metric: |metrics| {
        metrics.sum("weir_certificate_expiry_timestamp_seconds", &["certificate=\"a.test\""]) < in_days(7)
    },
    top: "! the certificate of a.test expires in 3 d",
};

/// Seconds since 1970.
fn in_days(days: u64) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970");
    (now + Duration::from_secs(days * 86_400)).as_secs_f64()
}

/// Requests are made until it is dropped.
struct OngoingRequests(Arc<AtomicBool>);

impl Drop for OngoingRequests {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Kills something while requests are made, and waits until all signs are there. The log and `/metrics` have two seconds for it,
/// and `weir top` looks once a second; where all tests are to prove what they show (`WEIR_TEST_FULL`), this is measured.
#[track_caller]
fn told(gateway: &Gateway, signs: &Signs, kill: impl FnOnce()) {
    let mut terminal = Terminal::show(gateway, 160);
    let screen = terminal.screen();
    screen.wait("Routes");
    assert!(!(signs.metric)(&gateway.metrics()), "the sign is there before");
    thread::scope(|scope| {
        let load = OngoingRequests(Arc::default());
        let is_over = Arc::clone(&load.0);
        scope.spawn(move || {
            // Some fail, as they must, and some of those end their connection.
            while !is_over.load(Relaxed) {
                let mut client = gateway.client();
                while !is_over.load(Relaxed) && client.get("/").is_ok() {}
            }
        });
        let killed = Instant::now();
        kill();
        gateway.wait_stderr("the failure", |line| signs.log.iter().all(|part| line.contains(part)));
        eventually("the metric", DEADLINE, || (signs.metric)(&gateway.metrics()));
        let told = killed.elapsed();
        screen.wait(signs.top);
        let shown = killed.elapsed();
        println!("told after {told:?}, shown after {shown:?}");
        assert!(!is_full() || told <= Duration::from_secs(2) && shown <= Duration::from_secs(3));
    });
}

fn origin() -> Origin {
    Origin::serving(|_| Answer::ok("ok"))
}

/// One route to one endpoint, with more of the route.
fn start(launcher: Launcher, settings: &str, endpoint: &str, more: &str) -> Gateway {
    launcher.start(&format!(
        "error_log_level: info\n{settings}routes:\n- id: all\n  uri: /*\n{more}  upstream:\n    nodes: {{ \"{endpoint}\": 1 }}\n    \
         checks: {{ active: {{ type: tcp }}, passive: {{ unhealthy: {{ tcp_failures: 2 }} }} }}\n"
    ))
}

#[test]
fn a_dead_upstream_is_told() {
    let origin = origin();
    let gateway = start(weir(), "", &origin.addr().to_string(), "");
    told(&gateway, &UPSTREAM, || drop(origin));
}

#[test]
fn a_dead_resolver_is_told() {
    let (dns, origin) = (Dns::start(), origin());
    dns.addresses("origin.test", 1, [Ipv4Addr::LOCALHOST]);
    let settings = format!("dns_resolver: [\"{}\"]\n", dns.addr());
    let gateway = start(weir(), &settings, &format!("origin.test:{}", origin.addr().port()), "");
    told(&gateway, &RESOLVER, || drop(dns));
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn a_dead_redis_is_told() {
    let (origin, port) = (origin(), free_port());
    let Some(mut command) = Program::find("redis-server") else { return };
    command.args(["--save", "", "--bind", "127.0.0.1", "--port", &port.to_string()]);
    let mut redis = Program::start(command, TempDir::new());
    eventually("Redis listens", DEADLINE, || Client::try_connect(([127, 0, 0, 1], port).into()).is_ok());
    let limit = format!(
        "  plugins: {{ limit-count: {{ count: 1000000, time_window: 60, policy: redis, redis_host: 127.0.0.1, \
         redis_port: {port} }} }}\n"
    );
    let gateway = start(weir(), "", &origin.addr().to_string(), &limit);
    assert_eq!(gateway.get("/").status, 200);
    told(&gateway, &REDIS, || redis.crash());
}

/// Lines go to a file on a disk that has become full.
#[test]
fn a_full_disk_is_told() {
    let origin = origin();
    let gateway = start(weir(), "enable_access_log: access.log\n", &origin.addr().to_string(), "");
    let log = gateway.directory().join("access.log");
    told(&gateway, &DISK, || {
        fs::remove_file(&log).expect("it was opened");
        symlink("/dev/full", &log).expect("its own directory");
        gateway.signal(Signal::USR1);
    });
}

/// A gateway with the certificate of `a.test`, good for so many days.
fn with_certificate(origin: &Origin, days: u64) -> Gateway {
    let identity = Authority::of_tests().identity_with(&["a.test"], KeyKind::Ecdsa, |params| {
        params.not_after = (SystemTime::now() + Duration::from_secs(days * 86_400)).into();
    });
    let launcher = weir().file("site.pem", &identity.certificate).file("site.key", &identity.key);
    let listen = "listen: [\"127.0.0.1:0\", { address: \"127.0.0.1:0\", tls: true }]\n";
    let settings = format!("{listen}ssls: [{{ sni: a.test, cert: site.pem, key: site.key }}]\n");
    start(launcher, &settings, &origin.addr().to_string(), "")
}

#[test]
fn a_destroyed_certificate_is_told() {
    let origin = origin();
    let gateway = with_certificate(&origin, 90);
    told(&gateway, &CERTIFICATE, || {
        gateway.directory().write("site.pem", "no certificate");
    });
}

#[test]
fn a_certificate_that_is_about_to_expire_is_told() {
    let origin = origin();
    let gateway = with_certificate(&origin, 90);
    let soon = Authority::of_tests().identity_with(&["a.test"], KeyKind::Ecdsa, |params| {
        params.not_after = (SystemTime::now() + Duration::from_secs(3 * 86_400)).into();
    });
    told(&gateway, &EXPIRY, || {
        for (name, text) in [("site.pem", &soon.certificate), ("site.key", &soon.key)] {
            gateway.directory().write(name, text);
        }
    });
}
