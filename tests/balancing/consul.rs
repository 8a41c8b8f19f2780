//! Upstreams whose endpoints come from a real Consul agent.

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, Gateway, Origin, Program, Signal, TempDir, eventually, free_port};

use crate::registry::{SteadyClients, endpoints, wait_endpoints};
use crate::{named, weir};

const TOKEN: &str = "00000000-1111-2222-3333-444444444444";

struct Consul {
    port: u16,
    program: Program,
}

impl Consul {
    /// `None` where there is no Consul. Its state is in memory, and only clients with the token may read it.
    fn start(port: u16) -> Option<Consul> {
        let mut command = Program::find("consul")?;
        command.args(["agent", "-dev", "-log-level=err", "-bind=127.0.0.1", "-client=127.0.0.1"]);
        command.arg(format!("-http-port={port}"));
        command.args(["-grpc-port=-1", "-grpc-tls-port=-1", "-dns-port=-1", "-serf-wan-port=-1"]);
        command.arg(format!("-serf-lan-port={}", free_port())).arg(format!("-server-port={}", free_port()));
        let tokens = format!("tokens {{ initial_management = \"{TOKEN}\" agent = \"{TOKEN}\" }}");
        command.arg("-hcl").arg(format!("acl {{ enabled = true default_policy = \"deny\" {tokens} }}"));
        let consul = Consul { port, program: Program::start(command, TempDir::new()) };
        // Registering needs the leader, and its token.
        eventually("Consul has a leader", DEADLINE, || consul.ask("PUT", "catalog/register", &node()) == Some(200));
        Some(consul)
    }

    fn ask(&self, method: &str, target: &str, body: &Value) -> Option<u16> {
        let mut client = Client::try_connect(([127, 0, 0, 1], self.port).into()).ok()?;
        let body = body.to_string();
        let fields = format!("Host: t\r\nX-Consul-Token: {TOKEN}\r\nContent-Length: {}\r\n", body.len());
        let answer = client.ask(format!("{method} /v1/{target} HTTP/1.1\r\n{fields}\r\n{body}"));
        answer.ok().map(|answer| answer.status)
    }

    /// Registers an instance of `orders` with a check that is passing.
    fn register(&self, id: &str, origin: &Origin, weights: Value) {
        let check = json!({"TTL": "1h", "Status": "passing"});
        let mut service = json!({
            "ID": id, "Name": "orders", "Address": "127.0.0.1", "Port": origin.addr().port(), "Check": check,
        });
        if weights.is_object() {
            service["Weights"] = weights;
        }
        assert_eq!(self.ask("PUT", "agent/service/register", &service), Some(200), "{id} is registered");
    }

    fn act(&self, target: &str) {
        assert_eq!(self.ask("PUT", target, &Value::Null), Some(200), "{target}");
    }
}

fn node() -> Value {
    json!({"Node": "other", "Address": "127.0.0.1"})
}

/// A gateway with one route to the service `orders`.
fn gateway(consul: &Consul, discovery: &str) -> Gateway {
    weir().start(&format!(
        "discovery:\n  consul: {{ servers: [\"http://127.0.0.1:9\", \"http://127.0.0.1:{}\"], {discovery} }}
routes:
  - id: all
    uri: /*
    upstream: {{ service_name: orders, discovery_type: consul, retries: 0 }}\n",
        consul.port
    ))
}

#[test]
fn passing_instances_come_and_go_and_the_server_too_without_a_failed_request() {
    let port = free_port();
    let Some(mut consul) = Consul::start(port) else { return };
    let (first, second) = (named("first"), named("second"));
    let gateway = gateway(&consul, &format!("token: {TOKEN}"));
    assert_eq!(gateway.get("/").status, 503);
    gateway.wait_stderr("which service it is, and why", |line| {
        line.contains("the service `orders` has no instances: Consul has no instance of this name")
    });
    consul.register("first", &first, Value::Null);
    wait_endpoints(&gateway, 1);
    let clients = SteadyClients::of(&gateway);
    for _ in 0..3 {
        consul.register("second", &second, Value::Null);
        wait_endpoints(&gateway, 2);
        consul.act("agent/service/deregister/second");
        wait_endpoints(&gateway, 1);
    }
    consul.register("second", &second, json!({"Passing": 7, "Warning": 1}));
    let weights = |gateway: &Gateway| {
        let mut weights = endpoints(gateway);
        weights.sort_unstable();
        weights
    };
    eventually("its own weight", DEADLINE, || weights(&gateway) == [1, 7]);
    for check in ["fail", "warn"] {
        consul.act(&format!("agent/check/{check}/service:second"));
        wait_endpoints(&gateway, 1);
        consul.act("agent/check/pass/service:second");
        wait_endpoints(&gateway, 2);
    }
    consul.act("agent/check/fail/service:second");
    wait_endpoints(&gateway, 1);
    consul.act("agent/check/fail/service:first");
    gateway.wait_stderr("that no instance is left", |line| line.contains("a service has no instances"));
    assert_eq!(endpoints(&gateway).len(), 1, "the last one stays in use");

    let up = |gateway: &Gateway| gateway.metrics().get("weir_discovery_up{registry=\"consul\"}");
    eventually("it has answered", DEADLINE, || up(&gateway) == Some(1.0));
    consul.program.crash();
    eventually("it is away", DEADLINE, || up(&gateway) == Some(0.0));
    gateway.wait_stderr("that it is away", |line| line.contains("no Consul server answers"));
    let before = gateway.revision();
    gateway.signal(Signal::HUP);
    eventually("the file is loaded again", DEADLINE, || gateway.revision() > before);
    assert_eq!(endpoints(&gateway).len(), 1, "a reload does not forget the last instances");
    drop(consul);
    // It has forgotten everything, and its index begins anew.
    let consul = Consul::start(port).expect("it was there before");
    eventually("it answers again", DEADLINE, || up(&gateway) == Some(1.0));
    consul.register("first", &first, Value::Null);
    consul.register("second", &second, Value::Null);
    wait_endpoints(&gateway, 2);
    assert!(clients.end() > 100);
    let answers: Vec<String> = (0..20).map(|_| gateway.get("/").text()).collect();
    assert!(answers.iter().any(|text| text == "second"), "{answers:?}");
}

#[test]
fn without_blocking_queries_it_is_asked_at_intervals() {
    let Some(consul) = Consul::start(free_port()) else { return };
    let (first, second) = (named("first"), named("second"));
    consul.register("first", &first, Value::Null);
    let gateway = gateway(&consul, &format!("token: {TOKEN}, keepalive: false, fetch_interval: 1"));
    assert_eq!(gateway.get("/").text(), "first");
    consul.register("second", &second, Value::Null);
    wait_endpoints(&gateway, 2);
}

#[test]
fn a_wrong_token_is_told() {
    let Some(consul) = Consul::start(free_port()) else { return };
    let gateway = gateway(&consul, "token: 00000000-0000-0000-0000-000000000001");
    gateway.wait_stderr("that the token is wrong", |line| {
        line.contains(
            "the service `orders` has no instances: the `token` of `discovery.consul` may not read this service",
        )
    });
    assert_eq!(gateway.get("/").status, 503);
}
