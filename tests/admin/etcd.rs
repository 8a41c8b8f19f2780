//! Nodes that share an etcd with each other and with other writers.

mod console;
mod import;
mod logins;
mod partition;

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, Gateway, Program, Signal, TempDir, eventually, free_port, scaled};

use crate::api::{ADMIN, Api, admin_addr, file};
use crate::set_aside::wait_warnings;
use crate::weir;

/// The longest time after a fault until all nodes have the current state: detecting a dead member, and electing a new leader.
const CONVERGENCE: Duration = Duration::from_secs(60);

/// A cluster of real etcd members.
pub(crate) struct Etcd {
    members: Vec<Member>,
}

struct Member {
    address: String,
    client: u16,
    peer: u16,
    data: TempDir,
    program: Option<Program>,
}

impl Member {
    fn url(&self, port: u16) -> String {
        format!("http://{}:{port}", self.address)
    }
}

impl Etcd {
    /// `None` if etcd is not installed.
    pub(crate) fn of(count: usize) -> Option<Etcd> {
        let mut etcd = Etcd::at(&vec!["127.0.0.1"; count])?;
        (0..count).for_each(|member| etcd.start(member));
        etcd.wait();
        Some(etcd)
    }

    /// Members at these addresses that are not started yet. `None` if etcd is not installed.
    fn at(addresses: &[&str]) -> Option<Etcd> {
        Program::find("etcd").and(Program::find("etcdctl"))?;
        let member = |address: &&str| Member {
            address: (*address).to_owned(),
            client: free_port(),
            peer: free_port(),
            data: TempDir::in_memory(),
            program: None,
        };
        Some(Etcd { members: addresses.iter().map(member).collect() })
    }

    fn start(&mut self, member: usize) {
        self.start_with(member, &[]);
    }

    /// Starts a member with further options.
    fn start_with(&mut self, member: usize, options: &[&str]) {
        let mut command = Program::find("etcd").expect("it was there just now");
        let peer_of = |(number, member): (usize, &Member)| format!("m{number}={}", member.url(member.peer));
        let cluster: Vec<String> = self.members.iter().enumerate().map(peer_of).collect();
        let started = &mut self.members[member];
        let (client, peer) = (started.url(started.client), started.url(started.peer));
        let Member { data, program, .. } = started;
        command.arg("--name").arg(format!("m{member}")).arg("--data-dir").arg(data.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &cluster.join(","), "--logger", "zap"]).args(options);
        *program = Some(Program::start(command, TempDir::new()));
    }

    /// Puts a backup in place of the data of the only member, which does not run.
    fn restore(&self, backup: &Path) {
        let member = &self.members[0];
        let (data, peer) = (&member.data, member.url(member.peer));
        fs::remove_dir_all(data.join("data")).expect("a directory");
        let (backup, data) = (backup.to_str().expect("a path"), data.join("data"));
        let cluster = format!("m0={peer}");
        let identity = ["--name", "m0", "--initial-cluster", &cluster, "--initial-advertise-peer-urls", &peer];
        let directory = ["--data-dir", data.to_str().expect("a path")];
        self.ctl(&[&["snapshot", "restore", backup][..], &identity, &directory].concat());
    }

    fn wait(&self) {
        eventually("etcd answers", DEADLINE, || self.try_ctl(&["get", "nothing"]).is_some());
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.url(member.client)).collect()
    }

    fn try_ctl(&self, arguments: &[&str]) -> Option<String> {
        let mut command: Command = Program::find("etcdctl").expect("it was there just now");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.endpoints().join(",")).args(arguments);
        let output = command.output().expect("it runs");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Puts values in transactions of a hundred.
    fn put_many<'v>(&self, values: impl Iterator<Item = (String, &'v str)>) {
        let values: Vec<String> = values.map(|(key, value)| format!("put {key} '{value}'\n")).collect();
        for some in values.chunks(100) {
            let mut command: Command = Program::find("etcdctl").expect("it was there just now");
            command.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.endpoints().join(",")).arg("txn");
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it runs");
            // No conditions, these operations, and none for the case that the conditions do not hold.
            let text = format!("\n{}\n\n", some.concat());
            child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
            assert!(child.wait().expect("it ends").success());
        }
    }

    #[track_caller]
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        self.try_ctl(arguments).unwrap_or_else(|| panic!("etcdctl {arguments:?} failed"))
    }

    fn member(&mut self, member: usize) -> &mut Program {
        self.members[member].program.as_mut().expect("it runs")
    }

    /// The file of a node. The node's own data is in `directory`.
    pub(crate) fn node(&self, directory: &TempDir) -> String {
        let directory = directory.path().display();
        format!("worker_processes: 1\n{}data_dir: {directory}\n{}", file(), self.settings())
    }

    /// The setting of a node that keeps its resources here.
    pub(crate) fn settings(&self) -> String {
        let hosts = serde_json::to_string(&self.endpoints()).expect("texts");
        format!("store: {{ etcd: {{ hosts: {hosts} }} }}\n")
    }
}

#[test]
fn a_node_that_is_started_before_etcd_waits_for_it() {
    let Some(mut etcd) = Etcd::of(1) else { return };
    etcd.member(0).crash();
    let (late, never) = (TempDir::new(), TempDir::new());
    let gateway = weir().spawn(&etcd.node(&late));
    let mut other = weir().spawn(&etcd.node(&never).replace("http://", "http://127.0.0.2:1\", \"http://"));
    gateway.wait_stderr("that it waits", |line| line.contains("cannot be used yet, trying for 20 seconds"));
    // Requests that come too early do not end it.
    gateway.signal(Signal::HUP);
    gateway.signal(Signal::USR1);
    etcd.start(0);
    gateway.wait_stderr("that it is ready", |line| line.starts_with("weir: ready"));
    // A list of members of which one answers.
    other.wait_stderr("that it is ready", |line| line.starts_with("weir: ready"));
    assert!(!other.has_exited());

    etcd.member(0).crash();
    let nothing = TempDir::new();
    let mut alone = weir().spawn(&etcd.node(&nothing));
    assert_eq!(alone.wait_exit(CONVERGENCE).code(), Some(5), "a service manager starts it again");
    assert!(alone.stderr().contains("starts without etcd, from the copy"), "it says what to do: {}", alone.stderr());
}

pub(crate) fn mocking(text: &str) -> String {
    json!({"uri": "/r", "plugins": {"mocking": {"response_example": text}}}).to_string()
}

pub(crate) fn serves(gateway: &Gateway, path: &str, text: &str) -> bool {
    gateway.get(path).text() == text
}

#[test]
fn resources_are_those_of_apisix_and_others_may_write_them() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    etcd.ctl(&["put", "/apisix/routes/", "init_dir"]);
    etcd.ctl(&["put", "/apisix/routes/before", &mocking("before").replace("/r", "/before")]);
    let gateway = weir().start(&etcd.node(&directory));
    assert_eq!(gateway.get("/before").text(), "before");
    let mut api = Api::of(&gateway);
    let made = api.put("routes/r", &mocking("own"));
    assert_eq!(made.status, 201);
    assert_eq!(gateway.get("/r").text(), "own", "it is served when it is answered");
    let stored: Value =
        serde_json::from_str(&etcd.ctl(&["get", "--print-value-only", "/apisix/routes/r"])).expect("JSON");
    assert_eq!((&stored["uri"], &stored["id"]), (&json!("/r"), &json!("r")));
    let one = api.get("routes/r");
    let header: Value = serde_json::from_str(&etcd.ctl(&["get", "-w", "json", "/apisix/routes/r"])).expect("JSON");
    assert_eq!(one["modifiedIndex"], header["kvs"][0]["mod_revision"], "revisions are etcd's");
    assert_eq!(one["createdIndex"], header["kvs"][0]["create_revision"]);

    etcd.ctl(&["put", "/apisix/routes/r", &mocking("others")]);
    eventually("a change by others is served", DEADLINE, || serves(&gateway, "/r", "others"));
    etcd.ctl(&["put", "/apisix/routes/r", "{\"uri\": 7}"]);
    etcd.ctl(&["put", "/apisix/routes/bad", "no JSON"]);
    etcd.ctl(&["put", "/apisix/routes/never", "{\"uri\": \"/never\", \"plugins\": {\"mocking\": 7}}"]);
    etcd.ctl(&["put", "/apisix/routes/good", &mocking("good").replace("/r", "/good")]);
    eventually("the rest is served", DEADLINE, || serves(&gateway, "/good", "good"));
    assert_eq!(gateway.get("/r").text(), "others", "its last good version serves on");
    let fault = "the value in the store is not JSON: expected ident at line 1 column 2";
    let named = ["routes/r\"", "routes/bad", fault];
    wait_warnings(&gateway, |warnings| named.iter().all(|what| warnings.contains(what)));
    gateway.wait_stderr("it is logged", |line| line.contains("routes/bad") && line.contains(fault));
    let (kept, closed) =
        ("its last good version stays in use", "the route is closed, and its requests are answered with 503");
    for (resource, stands_in) in [("routes/r", kept), ("routes/never", closed)] {
        gateway.wait_stderr(stands_in, |line| line.contains(resource) && line.contains(stands_in));
    }
    wait_warnings(&gateway, |warnings| warnings.contains(kept) && warnings.contains(closed));
    assert_eq!(gateway.get("/never").status, 503);
    let bad = api.get("routes/bad");
    assert_eq!((&bad["value"], &bad["error"]), (&Value::Null, &json!(fault)));
    let patched = api.ask("PATCH", "routes/bad", "", "{\"uri\": \"/bad\"}");
    assert_eq!(patched.status, 400);
    assert!(patched.text().contains(fault) && patched.text().contains("PUT"), "{}", patched.text());
    etcd.ctl(&["del", "/apisix/routes/bad"]);
    etcd.ctl(&["put", "/apisix/routes/r", &mocking("better")]);
    eventually("it is right again", DEADLINE, || serves(&gateway, "/r", "better"));
    gateway.wait_stderr("the repair", |line| line.contains("routes/r") && line.contains("can be served again"));
    etcd.ctl(&["del", "/apisix/routes/r"]);
    eventually("it is gone", DEADLINE, || gateway.get("/r").status == 404);
    wait_warnings(&gateway, |warnings| !warnings.contains("routes/r"));
}

#[test]
fn one_bad_value_among_ten_thousand_is_named_and_the_rest_is_served() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let mut gateway = weir().start(&etcd.node(&directory));
    let mut api = Api::of(&gateway);
    let count = scaled(2_000, 10_000);
    for first in (0..count).step_by(100) {
        let one = |number: usize| {
            let value = mocking(&format!("r{number}")).replace("/r", &format!("/r{number}"));
            let value: Value = serde_json::from_str(&value).expect("JSON");
            json!({"put": format!("routes/r{number}"), "value": value})
        };
        let operations: Vec<Value> = (first..(first + 100).min(count)).map(one).collect();
        let answer = api.ask("PATCH", "configs", "", &json!({"operations": operations}).to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let good = etcd.ctl(&["get", "--print-value-only", "/apisix/routes/r700"]);
    etcd.ctl(&["put", "/apisix/routes/r700", "{\"uri\": \"/r700\", \"plugins\": {\"mocking\": 7}}"]);
    etcd.ctl(&["put", "/apisix/routes/more", &mocking("more").replace("/r", "/more")]);
    eventually("the rest is served", DEADLINE, || serves(&gateway, "/more", "more"));
    let named = |gateway: &Gateway| {
        let of = |one: &Value| one["path"].as_str().unwrap_or_default().starts_with("routes/r700");
        let count = |warnings: &str| {
            let warnings = serde_json::from_str::<Vec<Value>>(warnings).expect("a list");
            warnings.iter().filter(|one| of(one)).count()
        };
        wait_warnings(gateway, |warnings| count(warnings) == 1);
    };
    named(&gateway);
    assert_eq!(gateway.get("/r700").text(), "r700", "its last good version serves on");
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);
    // A node that never saw the good version serves all others.
    let gateway = weir().start(&etcd.node(&directory));
    named(&gateway);
    assert_eq!(gateway.get("/r700").status, 503, "no wider route takes its requests");
    for number in [0, count / 2, count - 1] {
        assert_eq!(gateway.get(&format!("/r{number}")).text(), format!("r{number}"));
    }
    etcd.ctl(&["put", "/apisix/routes/r700", good.trim()]);
    eventually("it is right again", DEADLINE, || serves(&gateway, "/r700", "r700"));
}

#[test]
fn history_is_shared_and_resources_expire() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directories = [TempDir::new(), TempDir::new()];
    let [one, other] = directories.each_ref().map(|directory| weir().start(&etcd.node(directory)));
    let (mut api, mut elsewhere) = (Api::of(&one), Api::of(&other));
    api.put("routes/r", &mocking("first"));
    let first = elsewhere.get("history")["list"][0]["revision"].as_u64().expect("a revision");
    elsewhere.put("routes/r", &mocking("second"));
    let history = api.get("history?key=routes/r");
    let list = history["list"].as_array().expect("a list");
    assert_eq!(list.len(), 2, "{history}");
    assert_eq!(list[1]["revision"], first);
    assert_eq!(list[0]["changes"][0]["members"][0]["after"], "second", "{history}");
    assert_eq!(api.get("history?before=1")["list"], json!([]), "nothing is before the first revision");
    let answer = api.ask("POST", &format!("history/{first}/rollback?wait=60s"), "", "");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(other.get("/r").text(), "first", "every node serves it when the wait is over");
    // etcd itself removes it when the lease expires.
    let short = mocking("short").replace("/r", "/short");
    api.put("routes/short?ttl=600&wait=60s", &short);
    assert_eq!(other.get("/short").text(), "short");
    api.put("routes/short?ttl=1", &short);
    eventually("it has expired", DEADLINE, || one.get("/short").status == 404 && other.get("/short").status == 404);
    let deleted = elsewhere.ask("DELETE", "routes/r?wait=60s", "", "");
    assert_eq!(deleted.status, 200, "{}", deleted.text());
    assert_eq!(one.get("/r").status, 404);
}

/// The number of successful changes by racing clients.
fn raced(addresses: &[SocketAddr], clients: usize, condition: bool) -> usize {
    let won = Arc::new(AtomicUsize::new(0));
    let racing = (0..clients).map(|client| {
        let (address, won) = (addresses[client % addresses.len()], Arc::clone(&won));
        thread::spawn(move || {
            let mut api = Api::with_key(address, ADMIN);
            for round in 0..scaled(4, 20) {
                let current = api.get("routes/raced")["modifiedIndex"].as_u64().expect("a revision");
                let condition = if condition { format!("If-Match: \"{current}\"\r\n") } else { String::new() };
                let body = json!({"uri": "/raced", "plugins": {}, "name": format!("c{client}-{round}")}).to_string();
                let answer = api.ask("PUT", "routes/raced", &condition, &body);
                match answer.status {
                    200 => drop(won.fetch_add(1, Relaxed)),
                    412 => {}
                    status => panic!("{status}: {}", answer.text()),
                }
            }
        })
    });
    racing.collect::<Vec<_>>().into_iter().for_each(|client| client.join().expect("every answer is one of these"));
    won.load(Relaxed)
}

#[test]
fn if_match_holds_over_two_nodes() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directories = [TempDir::new(), TempDir::new()];
    let nodes = directories.each_ref().map(|directory| weir().start(&etcd.node(directory)));
    let mut api = Api::of(&nodes[0]);
    api.put("routes/raced?wait=60s", &json!({"uri": "/raced", "plugins": {}}).to_string());
    let before = api.get("history?key=routes/raced&count=1000")["list"].as_array().map_or(0, Vec::len);
    let won = raced(&nodes.each_ref().map(admin_addr), 16, true);
    let after = api.get("history?key=routes/raced&count=1000");
    let list = after["list"].as_array().expect("a list");
    assert_eq!(list.len() - before, won, "every success is in history, and nothing else");
    // Each revision builds on the one before it.
    let revisions: Vec<u64> = list.iter().filter_map(|record| record["revision"].as_u64()).collect();
    assert!(revisions.windows(2).all(|pair| pair[0] > pair[1]), "{revisions:?}");
    assert!(won > 0);
}

#[test]
fn resource_that_is_referred_to_cannot_be_deleted_by_another_node() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directories = [TempDir::new(), TempDir::new()];
    let nodes = directories.each_ref().map(|directory| weir().start(&etcd.node(directory)));
    let addresses = nodes.each_ref().map(admin_addr);
    for _ in 0..scaled(10, 100) {
        let [mut one, mut other] = addresses.map(|address| Api::with_key(address, ADMIN));
        one.put("upstreams/u", &json!({"nodes": {"127.0.0.1:9": 1}}).to_string());
        let deleting = thread::spawn(move || other.ask("DELETE", "upstreams/u", "", "").status);
        let put = one.ask("PUT", "routes/refers", "", &json!({"uri": "/x", "upstream_id": "u"}).to_string()).status;
        let deleted = deleting.join().expect("an answer");
        assert!(matches!((put, deleted), (201, 400) | (400, 200)), "put {put}, deleted {deleted}");
        if put == 201 {
            assert_eq!(one.ask("DELETE", "routes/refers", "", "").status, 200);
        }
    }
}

/// Continuous requests, none of which may fail.
struct Traffic {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl Traffic {
    fn of(gateways: &[Gateway], path: &'static str) -> Traffic {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = gateways.iter().map(|gateway| {
            let (stop, served, address) = (Arc::clone(&stop), Arc::clone(&served), gateway.addr());
            thread::spawn(move || {
                let mut connection = Client::connect(address);
                while !stop.load(Relaxed) {
                    let answer = connection.get(path).expect("an answer");
                    assert_eq!((answer.status, answer.text().as_str()), (200, "steady"));
                    served.fetch_add(1, Relaxed);
                }
            })
        });
        Traffic { clients: clients.collect(), stop, served }
    }

    fn end(self) -> usize {
        self.stop.store(true, Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("no request fails"));
        self.served.load(Relaxed)
    }
}

/// Changes a route until the change is accepted, and prints how long it takes until all nodes serve it.
fn converge(fault: &str, nodes: &[Gateway], text: &str) {
    let began = Instant::now();
    let address = admin_addr(&nodes[0]);
    eventually("a change is made", CONVERGENCE, || {
        let answer = Api::with_key(address, ADMIN).ask("PUT", "routes/r", "", &mocking(text));
        matches!(answer.status, 200 | 201)
    });
    let written = began.elapsed();
    eventually("all nodes serve it", CONVERGENCE, || nodes.iter().all(|node| serves(node, "/r", text)));
    println!("{fault}: a change is made after {written:.1?}, and served by all nodes after {:.1?}", began.elapsed());
}

#[test]
fn faults_of_etcd_cost_no_request_and_nodes_converge() {
    let Some(mut etcd) = Etcd::of(3) else { return };
    let directories = [TempDir::new(), TempDir::new()];
    let mut nodes: Vec<Gateway> = directories.iter().map(|directory| weir().start(&etcd.node(directory))).collect();
    Api::of(&nodes[0]).put("routes/steady?wait=60s", &mocking("steady").replace("/r", "/steady"));
    let traffic = Traffic::of(&nodes, "/steady");
    converge("nothing wrong", &nodes, "sound");
    for member in 0..3 {
        etcd.member(member).crash();
        converge(&format!("member {member} killed"), &nodes, &format!("killed {member}"));
        etcd.start(member);
        etcd.wait();
        etcd.member(member).freeze();
        converge(&format!("member {member} frozen"), &nodes, &format!("frozen {member}"));
        etcd.member(member).thaw();
        etcd.wait();
    }
    // Without a majority, nothing can be changed, but all routes are served.
    etcd.member(0).crash();
    etcd.member(1).crash();
    let refused = Api::of(&nodes[0]).ask("PUT", "routes/r", "", &mocking("nobody"));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(nodes.iter().all(|node| serves(node, "/r", "frozen 2")));
    // A node that starts meanwhile serves its copy.
    eventually("the copy is written", DEADLINE, || directories[1].join("etcd-copy.redb").exists());
    let served = traffic.end();
    let mut stopped = nodes.remove(1);
    stopped.signal(Signal::TERM);
    stopped.wait_exit(DEADLINE);
    nodes.push(weir().start(&etcd.node(&directories[1])));
    assert!(nodes.iter().all(|node| serves(node, "/r", "frozen 2")), "it serves its copy");
    let traffic = Traffic::of(&nodes, "/steady");
    etcd.start(0);
    etcd.start(1);
    converge("two members away and back", &nodes, "back");

    // While the watches are disconnected, more changes are made than etcd's history keeps.
    (0..3).for_each(|member| etcd.member(member).crash());
    (0..3).for_each(|member| etcd.start(member));
    etcd.wait();
    for number in 0..20 {
        etcd.ctl(&["put", "/apisix/routes/r", &mocking(&format!("compacted {number}"))]);
    }
    let header: Value = serde_json::from_str(&etcd.ctl(&["get", "-w", "json", "nothing"])).expect("JSON");
    etcd.ctl(&["compact", &header["header"]["revision"].to_string()]);
    eventually("all nodes serve it", CONVERGENCE, || nodes.iter().all(|node| serves(node, "/r", "compacted 19")));
    converge("compacted", &nodes, "after compaction");
    println!("{} requests served beside it", served + traffic.end());
}

#[test]
fn an_etcd_that_is_down_is_logged_as_that_and_no_configuration_is_rejected() {
    let Some(mut etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let gateway = weir().start(&etcd.node(&directory));
    let mut api = Api::of(&gateway);
    api.put("routes/r", &mocking("kept"));
    let store = |gateway: &Gateway| gateway.status()["configuration"]["store"].clone();
    eventually("it is connected", DEADLINE, || store(&gateway)["connected"] == true);
    etcd.member(0).crash();
    gateway.wait_stderr("that it is down", |line| {
        line.contains(
            "the configuration store does not answer, the last known resources stay in use; it is tried again",
        ) && line.contains("etcd http://")
    });
    eventually("status says so", DEADLINE, || store(&gateway)["problem"].is_string());
    assert!(gateway.metrics().get("weir_store_up") == Some(0.0));
    let refused = api.ask("PUT", "routes/r", "", &mocking("refused"));
    assert_eq!(refused.status, 503);
    let told = refused.text();
    assert!(told.contains("etcd http://") && told.contains("the change was not made"), "{told}");
    assert!(serves(&gateway, "/r", "kept"));
    etcd.start(0);
    eventually("status says so", DEADLINE, || store(&gateway)["problem"].is_null());
    assert!(!gateway.stderr().contains("rejected"), "{}", gateway.stderr());
    assert_eq!(gateway.status()["configuration"]["last_error"], Value::Null);
}

/// The outcome of a change is what etcd has, however the response was lost.
#[test]
fn a_change_without_a_response_is_found_out() {
    let Some(mut etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let gateway = weir().start(&etcd.node(&directory));
    Api::of(&gateway).put("routes/r", &mocking("before"));
    let address = admin_addr(&gateway);
    let send = |id: &'static str| {
        thread::spawn(move || {
            let body = mocking(id).replace("/r\"", &format!("/{id}\""));
            let answer = Api::with_key(address, ADMIN).ask("PUT", &format!("routes/{id}"), "", &body);
            (answer.status, answer.text())
        })
    };
    let is_lost = || gateway.status()["configuration"]["store"]["problem"].is_string();

    etcd.member(0).freeze();
    let (status, told) = send("never").join().expect("an answer");
    assert_eq!(status, 503, "{told}");
    assert!(told.contains("etcd http://") && told.contains("has not confirmed the change"), "{told}");
    assert!(told.contains("it is not known whether the change was made"), "{told}");
    assert!(told.contains("read the resource before you repeat the change"), "{told}");
    etcd.member(0).thaw();
    eventually("it is connected again", CONVERGENCE, || !is_lost());

    let mut unknown = 0;
    for round in ["one", "two", "three"] {
        etcd.member(0).freeze();
        let sent = send(round);
        eventually("the connection is given up", CONVERGENCE, || {
            Api::with_key(address, ADMIN).ask("GET", "nodes", "", "").status == 503
        });
        etcd.member(0).thaw();
        let (status, told) = sent.join().expect("an answer");
        let stored = !etcd.ctl(&["get", &format!("/apisix/routes/{round}")]).is_empty();
        match status {
            201 => assert!(stored && serves(&gateway, &format!("/{round}"), round), "{told}"),
            503 if told.contains("the change was not made") => assert!(!stored, "{told}"),
            // It was frozen for longer than it is asked.
            503 if told.contains("it is not known whether the change was made") => unknown += 1,
            _ => panic!("{status} {told}"),
        }
        eventually("it is connected again", CONVERGENCE, || !is_lost());
    }
    assert!(unknown < 3, "no outcome was found out");
    // Settling an outcome leaves entries that are no revisions: what is shown has to pass them.
    Api::of(&gateway).put("routes/last", &mocking("last").replace("/r\"", "/last\""));
    let history = Api::of(&gateway).get("history?count=2");
    assert_eq!(history["list"].as_array().map(Vec::len), Some(2), "{history}");
}

#[test]
fn an_etcd_restored_from_an_old_backup_is_followed() {
    let Some(mut etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let nodes = [weir().start(&etcd.node(&directory))];
    let mut api = Api::of(&nodes[0]);
    api.put("routes/steady", &mocking("steady").replace("/r", "/steady"));
    api.put("routes/r", &mocking("backed up"));
    let backup = directory.join("backup.db");
    etcd.ctl(&["snapshot", "save", backup.to_str().expect("a path")]);
    for number in 0..5 {
        api.put("routes/r", &mocking(&format!("later {number}")));
    }
    api.put("routes/later", &mocking("later").replace("/r", "/later"));
    let traffic = Traffic::of(&nodes, "/steady");
    etcd.member(0).crash();
    etcd.restore(&backup);
    etcd.start(0);
    etcd.wait();
    let began = Instant::now();
    eventually("the backup is served", CONVERGENCE, || serves(&nodes[0], "/r", "backed up"));
    println!("restored: the backup is served after {:.1?}", began.elapsed());
    eventually("what is not in it is gone", DEADLINE, || nodes[0].get("/later").status == 404);
    converge("restored", &nodes, "after the backup");
    assert!(traffic.end() > 0);
}

#[test]
fn an_etcd_that_was_emptied_empties_no_node() {
    let Some(mut etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let nodes = [&directory, &TempDir::new()].map(|directory| weir().start(&etcd.node(directory)));
    Api::of(&nodes[0]).put("routes/steady", &mocking("steady").replace("/r", "/steady"));
    for round in 0..20 {
        Api::of(&nodes[0]).put("routes/known", &mocking(&format!("{round}")).replace("/r", "/known"));
        Api::of(&nodes[0]).put("routes/foreign", &mocking(&format!("{round}")).replace("/r", "/foreign"));
    }
    let traffic = Traffic::of(&nodes, "/steady");
    etcd.member(0).crash();
    fs::remove_dir_all(etcd.members[0].data.join("data")).expect("a directory");
    etcd.start(0);
    etcd.wait();
    for node in &nodes {
        node.wait_stderr("that etcd is empty", |line| line.contains("is reached and has lost its resources"));
        eventually("its nodes say so", CONVERGENCE, || {
            let nodes = Api::of(node).ask("GET", "nodes", "", "");
            nodes.status == 200 && nodes.text().contains("all resources are gone")
        });
        assert_eq!(node.metrics().get("weir_store_up"), Some(0.0));
    }
    let deleted = Api::of(&nodes[0]).ask("DELETE", "routes/foreign", "", "");
    assert!(deleted.text().contains("there is nothing to delete"), "{} {}", deleted.status, deleted.text());
    assert!(traffic.end() > 0);
    for node in &nodes {
        assert!(serves(node, "/steady", "steady") && serves(node, "/foreign", "19"));
    }
    // A resource that the nodes know is written again, although revisions begin anew. From then on etcd is believed.
    let again = Api::of(&nodes[0]).ask("PUT", "routes/known", "", &mocking("again").replace("/r", "/known"));
    assert!(matches!(again.status, 200 | 201), "{}", again.text());
    assert!(etcd.ctl(&["get", "/apisix/routes/known"]).contains("again"));
    for node in &nodes {
        eventually("nodes serve what etcd holds", CONVERGENCE, || {
            serves(node, "/known", "again") && ["/steady", "/foreign"].iter().all(|path| node.get(path).status == 404)
        });
        eventually("and say that all is well", DEADLINE, || node.metrics().get("weir_store_up") == Some(1.0));
        node.wait_stderr("that the store is back", |line| line.contains("the configuration store answers again"));
    }
    etcd.ctl(&["put", "/apisix/routes/foreign", &mocking("by others").replace("/r", "/foreign")]);
    for node in &nodes {
        eventually("the value of others is served", DEADLINE, || serves(node, "/foreign", "by others"));
    }
    converge("emptied", &nodes, "anew");
}

/// Another program deletes all keys of the resources at once: running nodes and one that starts from its copy keep serving.
#[test]
fn a_prefix_that_others_delete_empties_no_node() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directories = [TempDir::new(), TempDir::new()];
    let [steady, mut restarted] = [0, 1].map(|node| weir().start(&etcd.node(&directories[node])));
    for name in ["one", "two"] {
        Api::of(&steady).put(&format!("routes/{name}"), &mocking(name).replace("/r", &format!("/{name}")));
        eventually("both serve it", CONVERGENCE, || serves(&restarted, &format!("/{name}"), name));
    }
    let keeps = |node: &Gateway| {
        node.wait_stderr("that the resources are gone", |line| line.contains("has lost its resources"));
        eventually("the metric says so", DEADLINE, || node.metrics().get("weir_store_up") == Some(0.0));
        assert!(serves(node, "/one", "one") && serves(node, "/two", "two"));
    };
    etcd.ctl(&["del", "--prefix", "/apisix/"]);
    [&steady, &restarted].into_iter().for_each(keeps);
    let deleted = Api::of(&steady).ask("DELETE", "routes/one", "", "");
    assert!(deleted.text().contains("there is nothing to delete"), "{} {}", deleted.status, deleted.text());
    // It has its copy on disk when it ends.
    restarted.signal(Signal::TERM);
    restarted.wait_exit(DEADLINE);
    let restarted = weir().start(&etcd.node(&directories[1]));
    keeps(&restarted);
    etcd.ctl(&["put", "/apisix/routes/one", &mocking("by others").replace("/r", "/one")]);
    for node in [&steady, &restarted] {
        eventually("nodes serve what etcd holds", CONVERGENCE, || {
            serves(node, "/one", "by others") && node.get("/two").status == 404
        });
        eventually("and say that all is well", DEADLINE, || node.metrics().get("weir_store_up") == Some(1.0));
    }
}

#[test]
fn resources_that_weir_has_deleted_one_by_one_are_gone_for_a_node_that_was_away() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directories = [TempDir::new(), TempDir::new()];
    let [node, mut away] = [0, 1].map(|node| weir().start(&etcd.node(&directories[node])));
    for name in ["one", "two"] {
        Api::of(&node).put(&format!("routes/{name}"), &mocking(name).replace("/r", &format!("/{name}")));
        eventually("both serve it", CONVERGENCE, || serves(&away, &format!("/{name}"), name));
    }
    away.signal(Signal::TERM);
    away.wait_exit(DEADLINE);
    for name in ["one", "two"] {
        assert_eq!(Api::of(&node).ask("DELETE", &format!("routes/{name}"), "", "").status, 200);
    }
    let back = weir().start(&etcd.node(&directories[1]));
    eventually("it serves neither", CONVERGENCE, || ["/one", "/two"].iter().all(|path| back.get(path).status == 404));
    eventually("its store is in order", DEADLINE, || back.metrics().get("weir_store_up") == Some(1.0));
}

#[test]
fn a_node_that_was_started_from_its_copy_reports_itself_when_etcd_is_back() {
    let Some(mut etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let mut gateway = weir().start(&etcd.node(&directory));
    Api::of(&gateway).put("routes/r", &mocking("kept"));
    let node = |gateway: &Gateway| {
        let answer = Api::of(gateway).ask("GET", "nodes", "", "");
        let nodes: Value = serde_json::from_str(&answer.text()).unwrap_or_default();
        nodes["list"][0].clone()
    };
    eventually("it is reported", DEADLINE, || node(&gateway)["revision"].as_u64() > Some(0));
    let before = node(&gateway);
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);
    etcd.member(0).crash();
    let gateway = weir().start(&etcd.node(&directory));
    assert!(serves(&gateway, "/r", "kept"));
    etcd.start(0);
    etcd.wait();
    eventually("it is listed", CONVERGENCE, || {
        node(&gateway)["started_ms"] != before["started_ms"] && !node(&gateway)["id"].is_null()
    });
    eventually("with what it serves", DEADLINE, || node(&gateway)["in_step"] == true);
}

#[test]
fn a_thousand_resources_that_cannot_be_served_are_set_aside() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let value = r#"{"uri": "/bad", "plugins": {"no-plugin-of-this-name": {}}}"#;
    etcd.put_many((0..1_100).map(|number| (format!("/apisix/routes/bad{number}"), value)));
    etcd.ctl(&["put", "/apisix/routes/r", &mocking("good")]);
    let gateway = weir().start(&etcd.node(&directory));
    assert!(serves(&gateway, "/r", "good"));
    let written = Api::of(&gateway).ask("PUT", "routes/r", "", &mocking("better"));
    assert_eq!(written.status, 200, "{}", written.text());
    assert!(serves(&gateway, "/r", "better"));
    let warnings = gateway.status()["configuration"]["warnings"].as_array().map_or(0, Vec::len);
    assert_eq!(warnings, 1_100);
}
