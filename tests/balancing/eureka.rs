//! Upstreams whose endpoints come from a real Eureka server.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Gateway, Origin, Program, Signal, TempDir, TlsServer, eventually, free_port,
    skipped,
};

use crate::registry::{SteadyClients, endpoints, wait_endpoints};
use crate::{named, weir};

/// It starts in five seconds on an idle machine.
const START: Duration = Duration::from_secs(120);

struct Eureka {
    port: u16,
    program: Program,
}

impl Eureka {
    /// `None` where there is no Java, or no Eureka.
    fn start(port: u16) -> Option<Eureka> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let jars = root.join(".cache/eureka");
        let mut command = Program::java()?;
        if !jars.is_dir() {
            skipped("there is no Eureka");
            return None;
        }
        command.args(["-Xmx256m", "-cp"]).arg(jars.join("*"));
        command.arg(root.join("tests/balancing/Eureka.java"));
        command.args(["--server.address=127.0.0.1", &format!("--server.port={port}")]);
        // The server alone, which shows every change at once, and drops instances whose lease has ended.
        command.args(["--eureka.client.register-with-eureka=false", "--eureka.client.fetch-registry=false"]);
        command.arg("--eureka.server.use-read-only-response-cache=false");
        command.arg("--eureka.server.enable-self-preservation=false");
        command.arg("--eureka.server.eviction-interval-timer-in-ms=500");
        let eureka = Eureka { port, program: Program::start(command, TempDir::new()) };
        eventually("Eureka answers", START, || eureka.ask("GET", "", "") == Some(200));
        Some(eureka)
    }

    fn ask(&self, method: &str, target: &str, body: &str) -> Option<u16> {
        let mut client = Client::try_connect(([127, 0, 0, 1], self.port).into()).ok()?;
        let length = body.len();
        let fields = format!("Host: t\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n");
        let answer = client.ask(format!("{method} /eureka/apps{target} HTTP/1.1\r\n{fields}\r\n{body}"));
        answer.ok().map(|answer| answer.status)
    }

    fn register(&self, application: &str, id: &str, instance: Value) {
        let mut whole = json!({
            "instanceId": id, "app": application, "hostName": "orders.test", "ipAddr": "127.0.0.1", "status": "UP",
            "port": { "$": 1, "@enabled": "false" }, "securePort": { "$": 1, "@enabled": "false" },
            "dataCenterInfo": { "@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn" },
            "leaseInfo": { "durationInSecs": 600 },
        });
        let Value::Object(own) = instance else { panic!("not an object: {instance}") };
        whole.as_object_mut().expect("it is one").extend(own);
        let status = self.ask("POST", &format!("/{application}"), &json!({ "instance": whole }).to_string());
        assert_eq!(status, Some(204), "{id} is registered");
    }

    fn register_origin(&self, id: &str, origin: &Origin) {
        self.register("ORDERS", id, json!({ "port": { "$": origin.addr().port(), "@enabled": "true" } }));
    }

    fn deregister(&self, id: &str) {
        assert_eq!(self.ask("DELETE", &format!("/ORDERS/{id}"), ""), Some(200), "{id} is deregistered");
    }
}

/// A gateway that asks once a second, with one route to the application `orders`.
fn gateway(eureka: &Eureka, upstream: &str) -> Gateway {
    weir().start(&format!(
        "discovery:\n  eureka: {{ host: [\"http://127.0.0.1:{}\"], fetch_interval: 1 }}
routes:
  - id: all
    uri: /*
    upstream: {{ service_name: orders, discovery_type: eureka, {upstream} }}\n",
        eureka.port
    ))
}

#[test]
fn instances_come_and_go_and_the_server_too_without_a_failed_request() {
    let port = free_port();
    let Some(mut eureka) = Eureka::start(port) else { return };
    let (first, second) = (named("first"), named("second"));
    let gateway = gateway(&eureka, "retries: 0");
    assert_eq!(gateway.get("/").status, 503);
    gateway.wait_stderr("which service it is, and why", |line| {
        line.contains("the service `ORDERS` has no instances: Eureka has no application of this name")
    });
    eureka.register_origin("first", &first);
    wait_endpoints(&gateway, 1);
    let clients = SteadyClients::of(&gateway);
    for _ in 0..3 {
        eureka.register_origin("second", &second);
        wait_endpoints(&gateway, 2);
        eureka.deregister("second");
        wait_endpoints(&gateway, 1);
    }
    // One that is kept by its heartbeats, until they end.
    let own = json!({
        "port": { "$": second.addr().port(), "@enabled": "true" },
        "leaseInfo": { "durationInSecs": 2 }, "metadata": { "weight": "7" },
    });
    eureka.register("ORDERS", "beating", own.clone());
    eventually("its own weight", DEADLINE, || {
        // One whose heartbeat comes too late registers again, as Eureka's own clients do.
        if eureka.ask("PUT", "/ORDERS/beating", "") != Some(200) {
            eureka.register("ORDERS", "beating", own.clone());
        }
        let mut weights = endpoints(&gateway);
        weights.sort_unstable();
        weights == [7, 100]
    });
    wait_endpoints(&gateway, 1);

    eureka.program.crash();
    eventually("it is away", DEADLINE, || gateway.metrics().get("weir_discovery_up{registry=\"eureka\"}") == Some(0.0));
    gateway.wait_stderr("that it is away", |line| line.contains("no Eureka server answers"));
    let before = gateway.revision();
    gateway.signal(Signal::HUP);
    eventually("the file is loaded again", DEADLINE, || gateway.revision() > before);
    assert_eq!(endpoints(&gateway).len(), 1, "a reload does not forget the last instances");
    drop(eureka);
    let eureka = Eureka::start(port).expect("it was there before");
    // Its registry is empty at first.
    gateway.wait_stderr("that the service is gone", |line| line.contains("a service has no instances"));
    let up = || gateway.metrics().get("weir_discovery_up{registry=\"eureka\"}");
    eventually("it answers again", DEADLINE, || up() == Some(1.0));
    eureka.register_origin("first", &first);
    eureka.register_origin("second", &second);
    wait_endpoints(&gateway, 2);
    assert!(clients.end() > 100);
    let answers: Vec<String> = (0..20).map(|_| gateway.get("/").text()).collect();
    assert!(answers.iter().any(|text| text == "second"), "{answers:?}");
}

#[test]
fn with_tls_the_secure_port_is_used_and_the_certificate_is_of_the_host_name() {
    let Some(eureka) = Eureka::start(free_port()) else { return };
    let authority = Authority::of_tests();
    let origin = |identity: &str| {
        Origin::serving_tls(&TlsServer::new(&authority.identity(&[identity])), |request| {
            Answer::ok(request.headers.get("host").unwrap_or_default())
        })
    };
    let (right, wrong) = (origin("orders.test"), origin("other.test"));
    let register = |id: &str, origin: &Origin| {
        let secure = json!({ "$": origin.addr().port(), "@enabled": "true" });
        eureka.register("ORDERS", id, json!({ "port": { "$": 9, "@enabled": "true" }, "securePort": secure }));
    };
    register("right", &right);
    let tls = format!("scheme: https, pass_host: node, tls: {{ verify: true, ca: {:?} }}", authority.certificate);
    let gateway = gateway(&eureka, &tls);
    let answer = gateway.get("/");
    assert_eq!((answer.status, answer.text()), (200, format!("orders.test:{}", right.addr().port())));
    eureka.deregister("right");
    register("wrong", &wrong);
    eventually("the other is used, and not trusted", DEADLINE, || gateway.get("/").status == 502);
}
