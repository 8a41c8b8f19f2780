//! `kafka-logger` before two real brokers, of which the one that leads partitions is killed.

use std::path::PathBuf;
use std::process::Child;

use serde_json::Value;
use weir_testkit::{Answer, Origin, TempDir, free_port};

use crate::kafka::{ask, counts, delivered, gateway, said};
use crate::real_kafka::{CLUSTER, change_topic, jars, java, listens, run};

/// Two brokers with a copy of each partition. The first, with the number 1, is the controller; the second can be killed.
struct Pair {
    brokers: [Child; 2],
    ports: [u16; 2],
    jars: PathBuf,
    directory: TempDir,
}

impl Pair {
    fn start() -> Option<Pair> {
        let ports = [free_port(), free_port()];
        Pair::start_at(ports, ports)
    }

    /// Starts brokers at these ports, which tell clients other ports.
    fn start_at(ports: [u16; 2], told: [u16; 2]) -> Option<Pair> {
        let (jars, directory) = (jars()?, TempDir::new());
        let controller = free_port();
        let brokers = [1, 2].map(|number| {
            let file = format!("{number}.properties");
            directory
                .write(&file, pair_properties(&directory, number, (ports[number - 1], told[number - 1]), controller));
            let mut format = java(&jars, &directory);
            format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", &file]);
            assert!(format.status().expect("Java starts").success(), "its storage cannot be made");
            run(&jars, &directory, &file)
        });
        let pair = Pair { brokers, ports, jars, directory };
        pair.ports.iter().for_each(|port| listens(*port));
        Some(pair)
    }

    /// The brokers that lead partitions of a topic, as the first broker says it.
    fn leaders(&self, topic: &str) -> Vec<Value> {
        said(java(&self.jars, &self.directory), "KafkaLeaders", self.ports[0], topic)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for broker in &mut self.brokers {
            // It may have ended already.
            let _ = broker.kill();
            let _ = broker.wait();
        }
    }
}

fn pair_properties(directory: &TempDir, number: usize, (port, told): (u16, u16), controller: u16) -> String {
    let (roles, listener) = match number {
        1 => ("broker,controller", format!(",CONTROLLER://127.0.0.1:{controller}")),
        _ => ("broker", String::new()),
    };
    format!(
        "process.roles={roles}
node.id={number}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port}{listener}
advertised.listeners=PLAINTEXT://127.0.0.1:{told}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={}
num.partitions=4
default.replication.factor=2
min.insync.replicas=1
broker.session.timeout.ms=9000
broker.heartbeat.interval.ms=500
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
",
        directory.join(&format!("data-{number}")).display()
    )
}

#[test]
fn a_leader_that_is_killed_costs_no_record_and_repeats_none() {
    let Some(mut pair) = Pair::start() else { return };
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let brokers = pair.ports.map(|port| format!("{{ host: 127.0.0.1, port: {port} }}")).join(", ");
    let gateway = gateway(&format!("brokers: [{brokers}], kafka_topic: moved, batch_max_size: 1"), &data, &origin);
    ask(&gateway, 300);
    delivered(&gateway, 300);
    assert!(pair.leaders("moved").contains(&2.into()), "the second leads some");
    // While records come, and a batch may be on its way.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&gateway, 3000));
        pair.brokers[1].kill().expect("it is ours");
        pair.brokers[1].wait().expect("it is ours");
        asking.join().expect("every request has its answer");
    });
    delivered(&gateway, 3300);
    assert_eq!(pair.leaders("moved"), vec![Value::from(1); 4], "the first leads all");
    pair.brokers[1] = run(&pair.jars, &pair.directory, "2.properties");
    ask(&gateway, 300);
    delivered(&gateway, 3600);
    let stored = counts(said(java(&pair.jars, &pair.directory), "KafkaMessages", pair.ports[0], "moved"));
    assert_eq!((stored.len(), stored.values().all(|count| *count == 1)), (3600, true));
}

#[test]
fn partitions_that_have_no_leader_any_more_do_not_stop_the_others() {
    let Some(mut pair) = Pair::start() else { return };
    // Each partition is at one broker alone.
    change_topic(java(&pair.jars, &pair.directory), pair.ports[0], "alone", ("create", "1,2,1,2"));
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let brokers = pair.ports.map(|port| format!("{{ host: 127.0.0.1, port: {port} }}")).join(", ");
    let gateway = gateway(
        &format!("brokers: [{brokers}], kafka_topic: alone, batch_max_size: 1, producer_batch_num: 20"),
        &data,
        &origin,
    );
    ask(&gateway, 300);
    delivered(&gateway, 300);
    // While records come: the outcome of a batch on its way will never be known.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&gateway, 1000));
        pair.brokers[1].kill().expect("it is ours");
        pair.brokers[1].wait().expect("it is ours");
        asking.join().expect("every request has its answer");
    });
    delivered(&gateway, 1300);
    ask(&gateway, 300);
    delivered(&gateway, 1600);
}

#[test]
fn a_producer_id_is_assigned_though_the_leader_of_the_first_partition_is_unreachable() {
    let ports = [free_port(), free_port()];
    // Nothing listens where clients look for the second.
    let Some(pair) = Pair::start_at(ports, [ports[0], free_port()]) else { return };
    change_topic(java(&pair.jars, &pair.directory), ports[0], "half", ("create", "2,1"));
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let brokers = format!("brokers: [{{ host: 127.0.0.1, port: {} }}]", ports[0]);
    let gateway = gateway(&format!("{brokers}, kafka_topic: half, batch_max_size: 1"), &data, &origin);
    ask(&gateway, 100);
    delivered(&gateway, 100);
}
