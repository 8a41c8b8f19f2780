//! Which controller writes statuses, and how nodes and it find each other.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testkit::{DEADLINE, eventually};

use crate::controllers::{cluster, is_accepted};
use crate::load::Load;
use crate::objects::{gateway, route};
use crate::pulling::{MutualTrust, RunningController, ScriptedNode, pulling, pulling_from, report_newest};
use crate::stand_in::{ObjectPath, StandIn};

/// How long a writer waits for nodes that were connected to the one before, or to it.
const FINDING: Duration = Duration::from_secs(10);

fn is_writer(controller: &RunningController) -> bool {
    controller.page()["leader"] == true
}

/// Two controllers: the one that writes, and the other one.
fn writer_and_other(cluster: &StandIn, trust: &MutualTrust) -> [RunningController; 2] {
    let first = RunningController::ready(cluster, trust);
    eventually("it writes the statuses", DEADLINE, || is_writer(&first));
    let second = RunningController::ready(cluster, trust);
    eventually("the other one knows the writer", DEADLINE, || second.page()["writer"] == first.page()["writer"]);
    [first, second]
}

#[test]
fn a_new_writer_waits_for_the_nodes_of_the_one_before() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let [mut writer, other] = writer_and_other(&cluster, &trust);
    cluster.apply(gateway(weir_testkit::free_port()));
    let (_node, state) = ScriptedNode::connect(&other, &trust, "node");
    let begun = Instant::now();
    writer.crash();
    // It would stay for 15 seconds.
    cluster.objects().delete("leases", "weir-system", "weir-status-writer");
    eventually("the other one writes", DEADLINE, || is_writer(&other));
    report_newest(&other, &trust, &state);
    eventually("the status is written", 3 * DEADLINE, || {
        let is_written = is_accepted(&cluster, "orders");
        if other.page()["statuses_wait_for_nodes"] == true {
            assert!(!is_written, "it may be that a node that has not come yet does not serve it");
        }
        is_written
    });
    assert!(begun.elapsed() >= FINDING, "it waits");
}

#[test]
fn a_controller_that_ends_leaves_the_writing_to_another_one() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let [mut writer, other] = writer_and_other(&cluster, &trust);
    let name = writer.page()["writer"].clone();
    let begun = Instant::now();
    writer.end();
    let lease = ObjectPath {
        plural: "leases".to_owned(),
        namespace: Some("weir-system".to_owned()),
        name: Some("weir-status-writer".to_owned()),
    };
    let lease = cluster.objects().get(&lease).expect("it is there");
    assert_ne!(lease["spec"]["holderIdentity"], name);
    eventually("the other one writes", DEADLINE, || is_writer(&other));
    let waits = other.page()["statuses_wait_for_nodes"] == true;
    assert!(waits || begun.elapsed() >= FINDING);
}

#[test]
fn a_frozen_writer_is_replaced_and_writes_nothing_when_it_goes_on() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let [writer, second] = writer_and_other(&cluster, &trust);
    let third = RunningController::ready(&cluster, &trust);
    let edge = pulling(&cluster, &trust, &[&writer, &second, &third]);
    edge.wait("/orders", 200);
    eventually("it is written that the route is accepted", DEADLINE, || is_accepted(&cluster, "orders"));
    let load = Load::start(&format!("http://{}/orders --connections 2 --rate 100", edge.address()));
    writer.freeze();
    // It would stay for 15 seconds.
    cluster.objects().delete("leases", "weir-system", "weir-status-writer");
    eventually("another one writes", DEADLINE, || is_writer(&second) || is_writer(&third));
    cluster.apply([route("second", "/second")]);
    eventually("the change is served", DEADLINE * 3, || edge.get("/second").status != 404);
    eventually("and its status written", DEADLINE * 3, || is_accepted(&cluster, "second"));
    let written = cluster.objects().write_count();
    writer.thaw();
    eventually("it has noticed that it does not write any more", DEADLINE, || !is_writer(&writer));
    cluster.apply([route("third", "/third")]);
    eventually("the next status is written", DEADLINE * 3, || is_accepted(&cluster, "third"));
    assert!(is_accepted(&cluster, "orders") && is_accepted(&cluster, "second"));
    let since: Vec<ObjectPath> = cluster.objects().writes().split_off(written);
    let is_of_third = |path: &ObjectPath| path.name.as_deref() == Some("third");
    let others: Vec<_> = since.iter().filter(|path| path.plural == "httproutes" && !is_of_third(path)).collect();
    assert!(others.is_empty(), "nothing is written again: {others:?}");
    assert!(load.finish_unharmed() > 0, "no request is harmed");
}

#[test]
fn a_node_whose_connection_breaks_is_waited_for() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let controller = RunningController::ready(&cluster, &trust);
    eventually("it writes the statuses", DEADLINE, || is_writer(&controller));
    let (_stays, of_stays) = ScriptedNode::connect(&controller, &trust, "stays");
    let (breaks, of_breaks) = ScriptedNode::connect(&controller, &trust, "breaks");
    report_newest(&controller, &trust, &of_breaks);
    let begun = Instant::now();
    drop(breaks);
    eventually("it is away, or was", DEADLINE, || {
        controller.page()["away"] == json!(["breaks"]) || begun.elapsed() >= FINDING
    });
    cluster.apply(gateway(weir_testkit::free_port()));
    eventually("the status is written", 3 * DEADLINE, || {
        report_newest(&controller, &trust, &of_stays);
        let is_written = is_accepted(&cluster, "orders");
        if controller.page()["away"] == json!(["breaks"]) {
            assert!(!is_written, "it may not serve the route yet");
        }
        is_written
    });
    assert!(begun.elapsed() >= FINDING, "it is waited for");
}

#[test]
fn a_node_that_ends_is_not_waited_for() {
    let (cluster, _origin) = cluster();
    let trust = MutualTrust::new();
    let controller = RunningController::ready(&cluster, &trust);
    let mut edge = pulling_from(&cluster, &trust, &[controller.address], "");
    edge.wait("/orders", 200);
    controller.wait_nodes(1);
    edge.node.signal(weir_testkit::Signal::TERM);
    edge.node.wait_exit(DEADLINE);
    eventually("its stream has ended", DEADLINE, || controller.page()["nodes"] == json!([]));
    assert_eq!(controller.page()["away"], json!([]));
}

pub(crate) fn lease_of_another(renewal: u32) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "weir-status-writer", "namespace": "weir-system" },
        "spec": {
            "holderIdentity": "another",
            "leaseDurationSeconds": 15,
            "renewTime": format!("2026-01-01T00:00:{:02}.000000Z", renewal % 60),
        },
    })
}

/// Whether the other end has not closed a connection.
fn is_open(mut connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).expect("it is a socket");
    loop {
        match connection.read(&mut [0; 1_024]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn a_controller_that_does_not_answer_delays_nothing_that_another_one_says() {
    let (cluster, _origin) = cluster();
    cluster.apply([lease_of_another(0)]);
    let trust = MutualTrust::new();
    let controller = RunningController::ready(&cluster, &trust);
    let silent = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
    let of_silent = silent.local_addr().expect("it has an address");
    let edge = pulling_from(&cluster, &trust, &[controller.address, of_silent], "");
    edge.wait("/orders", 200);
    silent.set_nonblocking(true).expect("it is a socket");
    let mut round = 0;
    eventually("a change is served while the other controller is waited for", DEADLINE, || {
        // The connections up to now are those of former rounds.
        let Some((connection, _)) = std::iter::from_fn(|| silent.accept().ok()).last() else { return false };
        round += 1;
        cluster.apply([lease_of_another(round), route("orders", &format!("/round-{round}"))]);
        edge.wait(&format!("/round-{round}"), 200);
        is_open(&connection)
    });
    assert!(!is_writer(&controller));
}

/// How many connections to these ports are open.
fn open_connections(ports: [u16; 2]) -> usize {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string("/proc/net/tcp").expect("this is Linux");
    let is_one = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().take(4).collect();
        let [_, _, remote, state] = fields[..] else { return false };
        state == ESTABLISHED && ports.iter().any(|port| remote.ends_with(&format!(":{port:04X}")))
    };
    table.lines().filter(is_one).count()
}

#[test]
fn a_look_for_the_writer_leaves_no_connection_open() {
    let (cluster, _origin) = cluster();
    cluster.apply([lease_of_another(0)]);
    let trust = MutualTrust::new();
    let controllers = [RunningController::ready(&cluster, &trust), RunningController::ready(&cluster, &trust)];
    let [one, other] = controllers.each_ref().map(|controller| controller.address);
    let closing = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
    let of_closing = closing.local_addr().expect("it has an address");
    let edge = pulling_from(&cluster, &trust, &[one, other, of_closing], "");
    edge.wait("/orders", 200);
    closing.set_nonblocking(true).expect("it is a socket");
    let (mut renewal, mut looks) = (0, 0);
    let mut renew = || {
        renewal += 1;
        cluster.apply([lease_of_another(renewal)]);
    };
    // It looks at one after the other, so between two of these it has looked at a controller that does not write.
    eventually("it has looked at all of them", DEADLINE, || {
        renew();
        looks += std::iter::from_fn(|| closing.accept().ok()).count();
        looks >= 2
    });
    eventually("nothing but its stream is open", DEADLINE, || {
        renew();
        open_connections([one.port(), other.port()]) == 1
    });
    assert!(!controllers.iter().any(is_writer));
}
