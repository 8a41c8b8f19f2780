//! Protocols that Weir carries without knowing them, as their own servers and clients speak them.

use std::fmt::Write as _;
use std::process::Stdio;

use weir_testkit::{Authority, DEADLINE, Identity, TempDir, eventually, eventually_some};

use crate::servers::{Dnsmasq, Mosquitto, Postgres, answer, port_of_both};
use crate::{start, weir};

/// A database and its standby, as in the guide.
fn with_standby(first: u16, second: u16) -> String {
    let node = |port, priority| format!("{{ host: 127.0.0.1, port: {port}, weight: 1, priority: {priority} }}");
    format!("upstream: {{ scheme: tcp, nodes: [{}, {}] }}", node(first, 1), node(second, 0))
}

/// What a database answers to these statements, sent to a port.
#[track_caller]
fn query(port: u16, tls: &str, statements: &str) -> Option<String> {
    let mut client = Postgres::client(port, tls)?;
    client.args(["-v", "ON_ERROR_STOP=1", "-c", statements]);
    Some(answer(client))
}

#[test]
fn postgresql_is_carried_in_clear_and_with_its_own_tls() {
    let Some(database) = Postgres::start("first") else { return };
    let (gateway, addr) =
        start(&format!("upstream: {{ scheme: tcp, nodes: {{ \"127.0.0.1:{}\": 1 }} }}", database.port));
    let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    for (tls, expected) in [("disable", "f"), ("require", "t")] {
        let Some(found) = query(addr.port(), tls, encrypted) else { return };
        assert_eq!(found, expected, "sslmode={tls}");
    }
    // Megabytes in both directions of one session.
    let lines: String = (0..20_000).fold(String::new(), |mut text, n| {
        writeln!(text, "{n}\t{}", "x".repeat(100)).expect("memory");
        text
    });
    let directory = TempDir::new();
    let file = directory.write("rows", &lines);
    let mut client = Postgres::client(addr.port(), "disable").expect("it was there");
    client.args([
        "-q",
        "-c",
        "create table t (n int, text text)",
        "-c",
        &format!("\\copy t from '{}'", file.display()),
    ]);
    answer(client);
    let back = query(addr.port(), "require", "copy t to stdout").expect("it was there");
    assert_eq!(back, lines.trim_end());
    eventually("every session has a metric and an end", DEADLINE, || {
        let metrics = gateway.metrics();
        metrics.get("weir_streams") == Some(0.0) && metrics.get("weir_streams_opened_total") == Some(4.0)
    });
}

#[test]
fn postgresql_clients_get_the_standby_when_the_first_database_is_gone() {
    let (Some(mut first), Some(second)) = (Postgres::start("first"), Postgres::start("second")) else { return };
    let (_gateway, addr) = start(&with_standby(first.port, second.port));
    let name = || query(addr.port(), "disable", "show cluster_name").expect("psql is there");
    assert_eq!([name(), name()], ["first", "first"]);
    first.program.end();
    assert_eq!([name(), name()], ["second", "second"]);
}

#[test]
fn mqtt_devices_speak_tls_and_the_broker_does_not() {
    let Some(broker) = Mosquitto::start() else { return };
    let Identity { certificate, key } = Authority::of_tests().identity(&["localhost"]);
    let gateway = weir().start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", protocol: tcp, tls: true }}]\n\
         ssls: [{{ id: c, snis: [localhost], cert: {certificate:?}, key: {key:?} }}]\n\
         stream_routes: [{{ id: s, upstream: {{ scheme: tcp, type: chash, key: remote_addr, nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}]\n",
        broker.port
    ));
    let port = gateway.addrs_of("tls")[0].port();
    let directory = TempDir::new();
    let authority = directory.write("ca.pem", &Authority::of_tests().certificate);
    let secured = |name: &str| {
        let mut client = Mosquitto::client(name, "mqttv5", port)?;
        client.arg("--cafile").arg(&authority).args(["-t", "plant/1", "-q", "1"]);
        Some(client)
    };
    let heard = directory.join("heard");
    let (Some(mut listener), Some(mut talker)) = (secured("mosquitto_sub"), secured("mosquitto_pub")) else { return };
    listener.args(["-C", "2"]).stdout(std::fs::File::create(&heard).expect("a file")).stderr(Stdio::null());
    let mut listener = listener.spawn().expect("it starts");
    // A message that is kept reaches the listener whenever it subscribes.
    talker.args(["-r", "-m", "21.5"]);
    answer(talker);
    eventually("the first message is heard", DEADLINE, || {
        std::fs::read_to_string(&heard).is_ok_and(|text| text == "21.5\n")
    });
    // One device speaks without TLS to the broker itself: both are clients of one broker.
    let mut plain = Mosquitto::client("mosquitto_pub", "mqttv5", broker.port).expect("it was there");
    plain.args(["-t", "plant/1", "-q", "1", "-m", &"y".repeat(100_000)]);
    answer(plain);
    let status = eventually_some("the listener has heard both", DEADLINE, || listener.try_wait().expect("a child"));
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(&heard).expect("a file"), format!("21.5\n{}\n", "y".repeat(100_000)));
}

#[test]
fn dns_is_answered_over_udp_over_tcp_and_over_tls() {
    let Some(server) = Dnsmasq::start() else { return };
    let port = port_of_both();
    let Identity { certificate, key } = Authority::of_tests().identity(&["dns.test"]);
    let node = format!("nodes: {{ \"127.0.0.1:{}\": 1 }}", server.port);
    let gateway = weir().start(&format!(
        "listen:\n- {{ address: \"127.0.0.1:{port}\", protocol: udp }}\n- {{ address: \"127.0.0.1:{port}\", protocol: tcp }}\n\
         - {{ address: \"127.0.0.1:0\", protocol: tcp, tls: true }}\n\
         ssls: [{{ id: c, snis: [dns.test], cert: {certificate:?}, key: {key:?} }}]\n\
         stream_routes:\n- {{ id: udp, server_port: {port}, upstream: {{ scheme: udp, {node} }} }}\n\
         - {{ id: tcp, upstream: {{ scheme: tcp, {node} }} }}\n"
    ));
    let tls_port = gateway.addrs_of("tls")[0].port();
    let ask = |port: u16, options: &[&str]| Some(answer(Dnsmasq::client(port, options)?));
    let all = |text: String| {
        let mut lines: Vec<_> = text.lines().filter(|line| line.starts_with("10.")).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let Some(directly) = ask(server.port, &["+tcp", "long.test"]) else { return };
    let directly = all(directly);
    assert_eq!(directly.len(), 60);
    let ways: [(u16, &[&str]); 3] =
        [(port, &["+noignore"]), (port, &["+tcp"]), (tls_port, &["+tls", "+tls-sni=dns.test"])];
    for (port, way) in ways {
        assert_eq!(ask(port, &[way, &["one.test"]].concat()).as_deref(), Some("10.1.2.3"), "{way:?}");
        // Over UDP, the server cuts what is longer than the client takes, and the client asks again over TCP at the same port.
        let found = ask(port, &[way, &["+bufsize=512", "long.test"]].concat()).expect("it was there");
        assert_eq!(all(found), directly, "{way:?}");
    }
    assert!(gateway.metrics().sum("weir_streams_opened_total", &[]) >= 7.0);
}
