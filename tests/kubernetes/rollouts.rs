//! Traffic while pods come and go, and while objects change.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, Program, TempDir, eventually, free_port, is_full, scaled};

use crate::control_plane::ControlPlane;
use crate::edge::{Edge, weir};
use crate::load::Load;
use crate::objects::{gateway, route, service};
use crate::stand_in::StandIn;

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/shop/deployments/echo";
/// Of the Gateway, and of the pods; the network is the test's own.
const PORT: u16 = 8080;
const POD_PORT: u16 = 9000;
/// How long all rollouts may take.
const PATIENCE: Duration = Duration::from_secs(1_200);

/// A Deployment of `weir backend`, its Service, and routes to it by HTTP and by gRPC.
fn shop() -> Vec<(&'static str, Value)> {
    let labels = json!({ "app": "echo" });
    let container = json!({
        "name": "echo",
        "image": "weir",
        "args": ["backend", "--listen", format!("0.0.0.0:{POD_PORT}")],
        // A pod that ends serves while other parts of the cluster do not know yet. The controller of EndpointSlices may need seconds
        // for that: if its copy of them is older than its last change, it tries again after 1 s, and then after 2 s.
        "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } },
    });
    let [class, edge] = gateway(PORT);
    let deployment = json!({
        "metadata": { "name": "echo", "namespace": "shop" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": labels },
            "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 2 } },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
        },
    });
    let of_service = json!({
        "metadata": { "name": "echo", "namespace": "shop" },
        "spec": { "selector": labels, "ports": [{ "name": "http", "port": 80, "targetPort": POD_PORT }] },
    });
    let mut web = route("echo", "/");
    web["spec"]["hostnames"] = json!(["web.test"]);
    let calls = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GRPCRoute",
        "metadata": { "name": "calls", "namespace": "shop" },
        "spec": {
            "parentRefs": [{ "name": "edge" }],
            "hostnames": ["calls.test"],
            "rules": [{ "backendRefs": [{ "name": "echo", "port": 80 }] }],
        },
    });
    vec![
        ("/api/v1/namespaces", json!({ "metadata": { "name": "shop" } })),
        ("/apis/apps/v1/namespaces/shop/deployments", deployment),
        ("/api/v1/namespaces/shop/services", of_service),
        ("/apis/gateway.networking.k8s.io/v1/gatewayclasses", class),
        ("/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways", edge),
        ("/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes", web),
        ("/apis/gateway.networking.k8s.io/v1/namespaces/shop/grpcroutes", calls),
    ]
}

/// Changes the Deployment, and waits until it has as many pods as wanted, all of them new and ready, and others are gone.
#[track_caller]
fn roll(plane: &ControlPlane, fields: &Value) {
    plane.patch(DEPLOYMENT, fields);
    eventually(&format!("the Deployment is rolled out: {fields}"), DEADLINE * 3, || {
        let Value::Object(deployment) = plane.get(DEPLOYMENT) else { return false };
        let (wanted, status) = (&deployment["spec"]["replicas"], &deployment["status"]);
        let pods = plane.get("/api/v1/namespaces/shop/pods")["items"].as_array().map_or(0, Vec::len);
        let has_all = ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|key| status[*key] == *wanted);
        has_all && *wanted == pods && status["observedGeneration"] == deployment["metadata"]["generation"]
    });
}

/// gRPC calls, one after another, until it is asked for their number.
struct Calls {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Calls {
    fn start(plane: &ControlPlane) -> Calls {
        let is_over = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&is_over);
        let call = "POST /shop.Echo/Say HTTP/1.1\r\nHost: calls.test\r\nContent-Type: application/grpc\r\nTE: trailers\r\n\
                    Content-Length: 8\r\n\r\n\0\0\0\0\x03abc";
        let work = move || {
            let mut client = Client::connect(SocketAddr::from(([127, 0, 0, 1], PORT))).by_http2();
            let mut count = 0;
            while !of_thread.load(Ordering::Acquire) {
                let answer = client.ask(call).expect("it is answered");
                assert_eq!(answer.trailers.get("grpc-status"), Some("0"), "call {count}: {answer:?}");
                assert_eq!(answer.body, b"\0\0\0\0\x03abc");
                count += 1;
            }
            count
        };
        Calls { is_over, thread: plane.beside(|| std::thread::spawn(work)) }
    }

    fn finish(self) -> u64 {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().expect("each call is answered")
    }
}

/// Deployments are scaled and replaced while requests of each kind are sent: with `WEIR_TEST_FULL` 100,000, of which none may fail.
#[test]
fn no_request_fails_while_pods_come_and_go() {
    let Some(plane) = ControlPlane::start() else { return };
    plane.define_gateway_api();
    let Some(_controllers) = plane.start_controllers() else { return };
    let Some(_agent) = plane.start_agent() else { return };
    for (collection, object) in shop() {
        plane.create(collection, &object);
    }
    let data = TempDir::new();
    let file = format!("{}data_dir: {}\nresource_listeners: [\":{PORT}\"]\n", plane.node(), data.path().display());
    let node = plane.beside(|| weir().start(&file));
    let served = |host: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        plane.beside(|| Client::connect(([127, 0, 0, 1], PORT).into()).ask(request)).is_ok_and(|it| it.status == 200)
    };
    eventually("both routes are served", DEADLINE * 3, || served("web.test") && served("calls.test"));

    let pause = if is_full() { "2ms" } else { "20ms" };
    let load = |url: &str, how: &str| {
        plane.beside(|| Load::start(&format!("{url} --connect-to 127.0.0.1:{PORT} --think {pause} {how}")))
    };
    let loads = [
        load("http://web.test/", "--connections 4"),
        load("http://web.test/", "--protocol http2 --connections 2 --streams 4"),
        load("ws://web.test/", "--protocol websocket-connect --connections 4"),
    ];
    let calls = Calls::start(&plane);
    let (start, mut rounds) = (Instant::now(), 0);
    let wanted = scaled(500, 100_000) as u64;
    // With a margin for requests of this test and those that have no answer yet.
    let is_enough = || plane.beside(|| node.metrics().sum("weir_http_requests_total", &[])) > wanted as f64 * 1.05;
    while rounds == 0 || !is_enough() {
        assert!(start.elapsed() < PATIENCE, "{rounds} rounds, and not {wanted} requests");
        roll(&plane, &json!({ "spec": { "replicas": 6 } }));
        roll(&plane, &json!({ "spec": { "replicas": 2 } }));
        rounds += 1;
        let changed = json!({ "metadata": { "annotations": { "round": rounds.to_string() } } });
        roll(&plane, &json!({ "spec": { "template": changed } }));
    }
    let counts = loads.map(Load::finish_unharmed);
    let all = counts.iter().sum::<u64>() + calls.finish();
    println!("{rounds} rounds in {:?}: {all} requests, {counts:?} of HTTP/1.1, HTTP/2 and WebSocket", start.elapsed());
    assert!(all >= wanted, "{all} requests, and {wanted} are wanted");
}

/// Objects change one after another, each change is served, and WebSockets stay open, with messages on them.
#[test]
fn no_websocket_is_cut_while_objects_change() {
    let (count, changes) = (scaled(100, 1_000), scaled(100, 1_000));
    let cluster = StandIn::start();
    let (first, second) = (free_port(), free_port());
    let backend = |port: u16| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["backend", "--listen", &format!("127.0.0.1:{port}")]);
        Program::start(command, TempDir::new())
    };
    let _backends = [backend(first), backend(second)];
    let endpoints = |ports: &[u16]| {
        let [of_service, mut slice] = service("chat", ([127, 0, 0, 1], ports[0]).into());
        slice["endpoints"][0]["addresses"] = json!(["127.0.0.1"]);
        let mut all = vec![of_service, slice.clone()];
        for port in ports {
            slice["metadata"]["name"] = format!("chat-{port}").into();
            slice["ports"][0]["port"] = (*port).into();
            all.push(slice.clone());
        }
        all
    };
    cluster.apply([route("chat", "/chat")]);
    cluster.apply(endpoints(&[first, second]));
    let edge = Edge::start(&cluster);
    edge.wait("/chat", 200);
    let load = Load::start(&format!(
        "ws://{}/chat --protocol websocket --connections {count} --think 200ms --message-size 20",
        edge.address()
    ));
    for number in 0..changes {
        // Of another route, of the route itself, and of its endpoints.
        cluster.apply([route("other", &format!("/other-{number}"))]);
        match number % 3 {
            0 => cluster.apply(endpoints(&[first, second])),
            1 => cluster.objects().delete("endpointslices", "shop", &format!("chat-{second}")),
            _ => cluster.apply([route("chat", if number % 2 == 0 { "/chat" } else { "/" })]),
        }
        // Its Service does not exist.
        edge.wait(&format!("/other-{number}"), 500);
    }
    let mut result = load.finish();
    let opened = result["connections"]["opened"].as_u64();
    assert_eq!(opened, Some(count as u64), "each was opened once: {}", result["connections"]["failed"]);
    let errors = result["total"]["errors"].take();
    assert!(errors.as_object().is_some_and(|all| all.values().all(|count| *count == 0)), "{errors}");
    assert_eq!(result["total"]["completed"], result["total"]["due"]);
    println!("{changes} changes, {count} WebSockets, {} messages", result["total"]["completed"]);
}
