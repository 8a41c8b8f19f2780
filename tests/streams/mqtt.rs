//! `mqtt-proxy`: the first packet of a client of MQTT is read before a broker is chosen.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use weir_testkit::{Authority, DEADLINE, Gateway, Identity, TempDir, eventually, eventually_some};

use crate::peers::{Endpoint, connect, expect, rest, upstream};
use crate::servers::{Mosquitto, answer};
use crate::{file, weir};

/// A test does not fail because this machine stands still for a while.
const PATIENT: &str = "client_header_timeout: 60s\n";

/// CONNECT with this identifier, that wants no session to be kept.
fn packet(level: u8, id: &str) -> Vec<u8> {
    let properties: &[u8] = if level == 5 { &[0] } else { &[] };
    let id = [&(id.len() as u16).to_be_bytes()[..], id.as_bytes()].concat();
    let body = [&b"\0\x04MQTT"[..], &[level, 2, 0, 60], properties, &id].concat();
    [&[0x10, u8::try_from(body.len()).expect("a short packet")][..], &body].concat()
}

/// The plugin, and an upstream that chooses by the client identifier.
fn by_identifier(level: u8, nodes: &[String]) -> String {
    format!(
        "plugins: {{ mqtt-proxy: {{ protocol_level: {level} }} }}, \
         upstream: {{ scheme: tcp, type: chash, key: mqtt_client_id, nodes: {{ {} }} }}",
        nodes.join(", ")
    )
}

/// A file with a stream route of these keys.
fn text(route: &str) -> String {
    file(route) + PATIENT + "enable_access_log: { path: access.log, format: json }\n"
}

fn start(route: &str) -> (Gateway, SocketAddr) {
    let gateway = weir().start(&text(route));
    let addr = gateway.addrs_of("tcp")[0];
    (gateway, addr)
}

/// Whether the connection was reset, and did not merely stay silent.
fn is_reset(client: &mut TcpStream) -> bool {
    rest(client).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// The bytes received from clients so far.
fn received(gateway: &Gateway) -> f64 {
    gateway.metrics().sum("weir_client_bytes_total", &["received"])
}

/// The streams that have ended, as the access log has them, once there are so many.
#[track_caller]
fn records(gateway: &Gateway, count: usize) -> Vec<Value> {
    let log = gateway.directory().path().join("access.log");
    let text = eventually_some("every stream has a line", DEADLINE, || {
        fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n') && text.lines().count() >= count)
    });
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

fn node(broker: &Mosquitto) -> String {
    format!("\"127.0.0.1:{}\": 1", broker.port)
}

#[test]
fn a_broker_serves_clients_of_both_levels_in_clear_and_over_tls() {
    let Some(broker) = Mosquitto::start() else { return };
    let Identity { certificate, key } = Authority::of_tests().identity(&["localhost"]);
    let directory = TempDir::new();
    let authority = directory.write("ca.pem", &Authority::of_tests().certificate);
    for (level, version) in [(4, "mqttv311"), (5, "mqttv5")] {
        let gateway = weir().start(&format!(
            "listen: [{{ address: \"127.0.0.1:0\", protocol: tcp }}, {{ address: \"127.0.0.1:0\", protocol: tcp, tls: true }}]\n\
             ssls: [{{ id: c, snis: [localhost], cert: {certificate:?}, key: {key:?} }}]\n\
             stream_routes: [{{ id: s, {} }}]\n{PATIENT}",
            by_identifier(level, &[node(&broker)])
        ));
        let client = |name: &str, secured: bool| {
            let port = gateway.addrs_of(if secured { "tls" } else { "tcp" })[0].port();
            let mut client = Mosquitto::client(name, version, port)?;
            client.args(["-q", "1", "-t", version]);
            if secured {
                client.arg("--cafile").arg(&authority);
            }
            Some(client)
        };
        for secured in [false, true] {
            let (Some(mut talker), Some(mut hearer)) =
                (client("mosquitto_pub", secured), client("mosquitto_sub", secured))
            else {
                return;
            };
            // The broker keeps the message for clients that subscribe later. The will makes the first packet a long one.
            let will = "x".repeat(20_000);
            talker.args(["-r", "-m", "21.5", "-i", "sensor-7", "--will-topic", "gone", "--will-payload", &will]);
            answer(talker);
            hearer.args(["-C", "1", "-W", "60", "-i", "display-1"]);
            assert_eq!(answer(hearer), "21.5", "{version}, TLS: {secured}");
        }
    }
}

#[test]
fn a_client_keeps_its_broker_of_two() {
    let (Some(first), Some(second)) = (Mosquitto::start(), Mosquitto::start()) else { return };
    for (broker, name) in [(&first, "first"), (&second, "second")] {
        let Some(mut talker) = Mosquitto::client("mosquitto_pub", "mqttv311", broker.port) else { return };
        talker.args(["-q", "1", "-t", "name", "-r", "-m", name]);
        answer(talker);
    }
    let (_gateway, addr) = start(&by_identifier(4, &[node(&first), node(&second)]));
    let broker_of = |id: &str| {
        let mut hearer = Mosquitto::client("mosquitto_sub", "mqttv311", addr.port()).expect("it was there");
        hearer.args(["-q", "1", "-t", "name", "-C", "1", "-W", "60", "-i", id]);
        answer(hearer)
    };
    let mut found: Vec<(String, String)> = Vec::new();
    for number in 0..100 {
        let id = format!("sensor-{number}");
        let broker = broker_of(&id);
        found.push((id, broker));
        let is_there = |name: &str| found.iter().any(|(_, broker)| broker == name);
        if found.len() >= 8 && is_there("first") && is_there("second") {
            break;
        }
    }
    let of = |name: &str| found.iter().filter(|(_, broker)| broker == name).count();
    assert!(of("first") > 0 && of("second") > 0, "{found:?}");
    assert_eq!(of("first") + of("second"), found.len(), "{found:?}");
    for (id, broker) in &found {
        assert_eq!(&broker_of(id), broker, "{id}");
    }
}

#[test]
fn many_clients_keep_their_endpoints_and_those_without_an_identifier_have_one_by_their_address() {
    let [a, b] = ["a\n", "b\n"].map(Endpoint::echo);
    let (_gateway, addr) = start(&by_identifier(5, &[a.node(), b.node()]));
    let endpoint_of = |id: &str| {
        let (mut client, packet) = (connect(addr), packet(5, id));
        client.write_all(&packet).expect("sent");
        let mut got = vec![0; 2 + packet.len()];
        client.read_exact(&mut got).expect("the greeting, and the packet");
        assert_eq!(got[2..], packet, "it is passed on unchanged");
        got[0]
    };
    let ids: Vec<String> = (0..200).map(|number| format!("device/{number}")).collect();
    let all = || ids.iter().map(|id| endpoint_of(id)).collect::<Vec<_>>();
    let found = all();
    assert!(found.contains(&b'a') && found.contains(&b'b'), "200 clients are at one endpoint");
    assert_eq!(all(), found);
    let nameless: Vec<u8> = (0..8).map(|_| endpoint_of("")).collect();
    assert!(nameless.iter().all(|endpoint| *endpoint == nameless[0]), "{nameless:?}");
}

#[test]
fn bytes_behind_the_first_packet_arrive_after_it() {
    let Some(broker) = Mosquitto::start() else { return };
    let (_gateway, addr) = start(&by_identifier(4, &[node(&broker)]));
    let mut client = connect(addr);
    // CONNECT and PINGREQ, and their answers.
    client.write_all(&[&packet(4, "quick")[..], b"\xc0\0"].concat()).expect("sent");
    let mut got = [0; 6];
    client.read_exact(&mut got).expect("both are answered");
    assert_eq!(got, *b"\x20\x02\0\0\xd0\0");
}

#[test]
fn a_packet_may_come_byte_by_byte_and_no_endpoint_is_asked_before_its_end() {
    let endpoint = Endpoint::echo("in\n");
    let (gateway, addr) = start(&by_identifier(4, &[endpoint.node()]));
    let mut client = connect(addr);
    client.set_nodelay(true).expect("set");
    let (packet, before) = (packet(4, "slow"), received(&gateway));
    for (index, byte) in packet.iter().enumerate() {
        assert_eq!(endpoint.accepted(), 0, "after {index} bytes");
        client.write_all(&[*byte]).expect("sent");
        eventually("the byte is received alone", DEADLINE, || received(&gateway) == before + (index + 1) as f64);
    }
    expect(&mut client, "in\n");
    expect(&mut client, str::from_utf8(&packet).expect("it happens to be text"));
    drop(client);
    assert_eq!(records(&gateway, 1)[0]["bytes_received"], packet.len());
}

#[test]
fn a_client_that_does_not_send_its_packet_in_time_is_reset() {
    let endpoint = Endpoint::echo("in\n");
    let settings = "client_header_timeout: 300ms\nenable_access_log: { path: access.log, format: json }\n";
    let gateway = weir().start(&(file(&by_identifier(4, &[endpoint.node()])) + settings));
    let addr = gateway.addrs_of("tcp")[0];
    for bytes in [&[][..], &packet(4, "slow")[..5]] {
        let mut client = connect(addr);
        // It may be reset before this has sent anything.
        let end = client.write_all(bytes).and_then(|()| rest(&mut client));
        let kind = end.expect_err("it is reset").kind();
        assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{kind}");
    }
    for record in records(&gateway, 2) {
        assert_eq!(
            [&record["status"], &record["error_cause"]],
            [&Value::from(408), &"head_timeout".into()],
            "{record}"
        );
    }
    assert_eq!(endpoint.accepted(), 0);
}

#[test]
fn a_client_that_closes_before_or_within_its_packet_is_gone_and_was_not_refused() {
    let endpoint = Endpoint::echo("in\n");
    let (gateway, addr) = start(&by_identifier(4, &[endpoint.node()]));
    for (index, count) in [0, 9].into_iter().enumerate() {
        let mut client = connect(addr);
        client.write_all(&packet(4, "gone")[..count]).expect("sent");
        client.shutdown(std::net::Shutdown::Write).expect("open");
        assert!(is_reset(&mut client), "{count} bytes");
        let record = &records(&gateway, index + 1)[index];
        assert_eq!([&record["status"], &record["bytes_received"]], [&Value::from(499), &count.into()], "{record}");
        assert_ne!(record["refused_by"], "mqtt-proxy", "{record}");
    }
    assert_eq!(endpoint.accepted(), 0);
}

/// Bytes that are refused at a port for MQTT 3.1.1, and why.
fn refused() -> Vec<(&'static str, Vec<u8>)> {
    let with = |at: usize, byte: u8| {
        let mut packet = packet(4, "ab");
        packet[at] = byte;
        packet
    };
    vec![
        ("mqtt_no_connect", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("mqtt_no_connect", with(0, 0x30)),
        ("mqtt_protocol_level", packet(5, "ab")),
        ("mqtt_protocol_level", with(8, 3)),
        ("mqtt_protocol_name", with(7, b'X')),
        // The rest of the packet does not come.
        ("mqtt_protocol_name", b"\x10\xff\x7f\0\x06MQIsdp".to_vec()),
        ("mqtt_too_large", b"\x10\xff\xff\xff\x7f".to_vec()),
        ("mqtt_bad_length", with(13, 9)),
        ("mqtt_bad_length", with(13, 1)),
        ("mqtt_bad_flags", with(9, 1)),
        ("mqtt_bad_flags", with(9, 0x1e)),
        ("mqtt_bad_text", with(14, 0)),
        ("mqtt_bad_text", with(15, 0xff)),
        ("mqtt_client_id_too_long", [&b"\x10\x8d\x08\0\x04MQTT\x04\x02\0\x3c\x04\x01"[..], &[b'a'; 1025]].concat()),
    ]
}

#[test]
fn another_packet_than_is_expected_is_refused_with_its_cause() {
    let endpoint = Endpoint::echo("in\n");
    let (gateway, addr) = start(&by_identifier(4, &[endpoint.node()]));
    let all = refused();
    for (cause, bytes) in &all {
        let mut client = connect(addr);
        client.write_all(bytes).expect("sent");
        assert!(is_reset(&mut client), "{cause}");
    }
    assert_eq!(endpoint.accepted(), 0);
    let mut told: Vec<String> = records(&gateway, all.len())
        .iter()
        .map(|record| {
            assert_eq!(
                [&record["status"], &record["refused_by"]],
                [&Value::from(400), &"mqtt-proxy".into()],
                "{record}"
            );
            record["error_cause"].as_str().expect("a cause").to_owned()
        })
        .collect();
    let mut expected: Vec<&str> = all.iter().map(|(cause, _)| *cause).collect();
    told.sort();
    expected.sort_unstable();
    assert_eq!(told, expected);
    let metrics = gateway.metrics();
    for (cause, _) in &all {
        let count = expected.iter().filter(|other| *other == cause).count();
        assert_eq!(metrics.sum("weir_stream_errors_total", &[&format!("cause=\"{cause}\"")]), count as f64, "{cause}");
    }
}

#[test]
fn plugins_behind_it_know_the_identifier_and_those_before_it_ask_for_nothing() {
    let [usual, canary] = ["usual\n", "canary\n"].map(Endpoint::echo);
    let route = format!(
        "plugins: {{ ip-restriction: {{ whitelist: [127.0.0.1] }}, mqtt-proxy: {{ protocol_level: 4 }}, \
         traffic-split: {{ rules: [{{ match: [{{ vars: [[mqtt_client_id, \"~~\", \"^test-\"]] }}], \
         weighted_upstreams: [{{ upstream: {{ scheme: tcp, nodes: {{ {} }} }} }}] }}] }} }}, {}",
        canary.node(),
        upstream(&[usual.node()])
    );
    let (gateway, addr) = start(&route);
    for (id, greeting) in [("test-1", "canary\n"), ("sensor-1", "usual\n")] {
        let mut client = connect(addr);
        client.write_all(&packet(4, id)).expect("sent");
        expect(&mut client, greeting);
    }
    gateway.rewrite(&text(&route.replace("127.0.0.1]", "192.0.2.1]")));
    assert!(is_reset(&mut connect(addr)), "it is refused without having sent anything");
}

#[test]
fn a_packet_may_have_64_kib_and_a_larger_one_is_refused_at_its_length() {
    const MOST: usize = 64 * 1024;
    let endpoint = Endpoint::echo("in\n");
    let (gateway, addr) = start(&by_identifier(4, &[endpoint.node()]));
    let header = |length: usize| [0x10, length as u8 | 0x80, (length >> 7) as u8 | 0x80, (length >> 14) as u8];
    let field = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    // With a will, whose text fills it.
    let start = [&header(MOST - 4)[..], b"\0\x04MQTT\x04\x06\0\x3c", &field(b"ab"), &field(b"t")].concat();
    let packet = [&start[..], &field(&vec![b'x'; MOST - start.len() - 2])].concat();
    assert_eq!(packet.len(), MOST);
    let mut client = connect(addr);
    client.write_all(&packet).expect("sent");
    expect(&mut client, "in\n");
    let mut echoed = vec![0; MOST];
    client.read_exact(&mut echoed).expect("all of it");
    assert!(echoed == packet, "it is passed on unchanged");
    drop(client);
    let mut larger = connect(addr);
    larger.write_all(&header(MOST - 3)).expect("sent");
    assert!(is_reset(&mut larger));
    let causes: Vec<Value> = records(&gateway, 2).into_iter().map(|record| record["error_cause"].clone()).collect();
    assert!(causes.contains(&"mqtt_too_large".into()), "{causes:?}");
}
