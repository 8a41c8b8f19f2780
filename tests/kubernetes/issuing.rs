//! Certificates that controllers issue, to themselves and to nodes.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};
use weir_testkit::{
    Answer, Client, DEADLINE, Identity, KeyKind, Origin, Response, Signal, SigningRequest, TempDir, TlsClient,
    TlsServer, eventually, eventually_some, free_port,
};

use crate::controllers::cluster;
use crate::edge::Edge;
use crate::load::Load;
use crate::objects::{gateway, route, service};
use crate::pulling::{RunningController, pulling_by};
use crate::stand_in::{ObjectPath, StandIn};

const AUDIENCE: &str = "weir-controller";
const NODE: &str = "system:serviceaccount:weir-system:weir";

/// A cluster whose controllers issue certificates, and the files that a pod of a node has of it.
struct Issuing {
    cluster: StandIn,
    origin: Origin,
    pod: TempDir,
}

impl Issuing {
    /// With the token of a node.
    fn new() -> Issuing {
        let (cluster, origin) = cluster();
        let pod = TempDir::new();
        pod.write("token", cluster.token(NODE, AUDIENCE));
        Issuing { cluster, origin, pod }
    }

    /// Starts a controller; `more` are further settings of `issue`.
    #[track_caller]
    fn start(&self, more: &str) -> RunningController {
        let issue = format!("issue: {{ names: [\"127.0.0.1\"], accounts: [weir-system/weir]{more} }}");
        let controller = RunningController::with_certificates(&self.cluster.settings(""), &issue, "");
        controller.wait_listening();
        controller
    }

    /// The same, and waits until it is ready. The public half is where a kubelet puts it.
    #[track_caller]
    fn ready(&self, more: &str) -> RunningController {
        let controller = self.start(more);
        controller.wait_ready();
        self.mount();
        controller
    }

    fn stored(&self, plural: &str) -> Option<Value> {
        self.cluster.objects().get(&ObjectPath {
            plural: plural.to_owned(),
            namespace: Some("weir-system".to_owned()),
            name: Some("weir-controller-ca".to_owned()),
        })
    }

    /// The authorities that are published.
    fn published(&self) -> String {
        let map = self.stored("configmaps").unwrap_or_default();
        map["data"]["ca.crt"].as_str().unwrap_or_default().to_owned()
    }

    /// The certificate of the authority that issues.
    fn active(&self) -> String {
        self.stored("secrets").unwrap_or_default()["data"]["active.crt"].to_string()
    }

    /// Whether another authority was published beside these while this one still issued, at any time.
    fn was_another_published(&self, active: &str, published: &str) -> bool {
        let (mut issuing, mut trusted) = (String::new(), String::new());
        self.cluster.objects().changes().into_iter().any(|change| {
            if change.object["metadata"]["name"] != "weir-controller-ca" {
                return false;
            }
            match &*change.plural {
                "secrets" => issuing = change.object["data"]["active.crt"].to_string(),
                "configmaps" => trusted = change.object["data"]["ca.crt"].as_str().unwrap_or_default().to_owned(),
                _ => return false,
            }
            issuing == active && trusted != published && trusted.contains(published)
        })
    }

    /// Does what a kubelet does after the ConfigMap has changed.
    fn mount(&self) {
        let new = self.pod.write("new", self.published());
        std::fs::rename(new, self.pod.join("ca.crt")).expect("it can be replaced");
    }

    fn settings_of_node(&self) -> String {
        let [token, ca] = ["token", "ca.crt"].map(|name| self.pod.join(name).display().to_string());
        format!("enrolment: {{ token: {token}, ca: {ca} }}")
    }

    /// Starts a node.
    #[track_caller]
    fn node(&self, controllers: &[&RunningController]) -> Edge {
        let port = free_port();
        self.cluster.apply(gateway(port));
        let addresses: Vec<SocketAddr> = controllers.iter().map(|controller| controller.address).collect();
        pulling_by(port, &self.settings_of_node(), &addresses, "")
    }

    /// Asks for a certificate, without one.
    #[track_caller]
    fn ask(&self, controller: &RunningController, token: &str, request: &[u8]) -> Response {
        ask(controller.address, &self.published(), token, request)
    }

    /// A client with a new certificate of a node; `None` if none is issued now, or the controller cannot be trusted now: its own certificate
    /// may be over as soon.
    fn client(&self, controller: &RunningController) -> Option<TlsClient> {
        let request = SigningRequest::new(&[], KeyKind::Ecdsa);
        let tls = TlsClient::trusting_certificate(&self.published());
        let mut client = Client::connect_tls(controller.address, &tls, "127.0.0.1").ok()?;
        let issued = ask_on(&mut client, &self.cluster.token(NODE, AUDIENCE), &request.der);
        let identity = Identity { certificate: issued.text(), key: request.key };
        (issued.status == 200).then(|| TlsClient::known_to(&self.published(), &identity))
    }

    /// What a client without a certificate gets.
    #[track_caller]
    fn ask_without_certificate(&self, controller: &RunningController, path: &str) -> Response {
        let tls = TlsClient::trusting_certificate(&self.published());
        let mut client = eventually_some("the controller is trusted", DEADLINE, || {
            Client::connect_tls(controller.address, &tls, "127.0.0.1").ok()
        });
        client.ask(format!("GET {path} HTTP/1.1\r\nHost: controller\r\n\r\n")).expect("an answer")
    }
}

/// Whether a controller answers a node with this certificate.
fn is_answered(controller: SocketAddr, tls: &TlsClient) -> bool {
    let Ok(mut client) = Client::connect_tls(controller, tls, "127.0.0.1") else { return false };
    client.ask("GET /v1/nodes HTTP/1.1\r\nHost: controller\r\n\r\n").is_ok_and(|answer| answer.status == 200)
}

/// Asks for a certificate of a controller that these authorities verify.
#[track_caller]
pub(crate) fn ask(address: SocketAddr, authorities: &str, token: &str, request: &[u8]) -> Response {
    let tls = TlsClient::trusting_certificate(authorities);
    let mut client = Client::connect_tls(address, &tls, "127.0.0.1").expect("its certificate is trusted");
    ask_on(&mut client, token, request)
}

#[track_caller]
fn ask_on(client: &mut Client, token: &str, request: &[u8]) -> Response {
    let head = format!(
        "POST /v1/certificate HTTP/1.1\r\nHost: controller\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        request.len()
    );
    client.ask([head.as_bytes(), request].concat()).expect("an answer")
}

fn request() -> Vec<u8> {
    SigningRequest::new(&[], KeyKind::Ecdsa).der
}

/// What the chart makes.
fn empty(kind: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": "weir-controller-ca", "namespace": "weir-system" } })
}

#[test]
fn a_node_gets_a_certificate_for_its_token_and_serves_the_cluster() {
    let bed = Issuing::new();
    let mut controller = bed.ready("");
    let mut edge = bed.node(&[&controller]);
    edge.wait("/orders", 200);
    controller.wait_nodes(1);
    let secret = bed.stored("secrets").expect("the authority is stored");
    assert!(secret["data"]["active.key"].is_string() && secret["data"]["next.key"].is_null(), "{secret}");
    let map = bed.stored("configmaps").expect("it is published");
    assert!(!map.to_string().contains("PRIVATE KEY") && map["data"].as_object().expect("data").len() == 1, "{map}");
    assert_eq!(controller.page()["certificates"]["issued"], 1);
    // Neither end makes anything new that nodes would have to learn.
    controller.crash();
    controller.restart();
    assert_eq!(bed.stored("secrets"), Some(secret));
    bed.cluster.apply([route("orders", "/after")]);
    edge.wait("/after", 200);
    // The key of a node is in its memory alone.
    edge.restart();
    edge.wait("/after", 200);
    controller.wait_nodes(1);
    let mut places = vec![edge.data().path().to_owned()];
    let mut files = 0;
    while let Some(place) = places.pop() {
        if place.is_dir() {
            places.extend(std::fs::read_dir(&place).expect("a directory").flatten().map(|entry| entry.path()));
        } else if let Ok(content) = std::fs::read(&place) {
            files += 1;
            assert!(!String::from_utf8_lossy(&content).contains("PRIVATE KEY"), "{}", place.display());
        }
    }
    assert!(files > 0, "it keeps its copy");
}

#[test]
fn two_controllers_have_one_authority() {
    let bed = Issuing::new();
    bed.cluster.apply([empty("Secret"), empty("ConfigMap")]);
    let controllers = [bed.start(""), bed.start("")];
    controllers.iter().for_each(RunningController::wait_ready);
    bed.mount();
    for controller in &controllers {
        eventually("its certificate is of the published authority", DEADLINE, || {
            let tls = TlsClient::trusting_certificate(&bed.published());
            Client::connect_tls(controller.address, &tls, "127.0.0.1").is_ok()
        });
    }
    let token = bed.cluster.token(NODE, AUDIENCE);
    let request = SigningRequest::new(&[], KeyKind::Ecdsa);
    let issued = bed.ask(&controllers[0], &token, &request.der);
    assert_eq!(issued.status, 200, "{}", issued.text());
    // What one has issued, the other takes.
    let identity = Identity { certificate: issued.text(), key: request.key };
    let tls = TlsClient::known_to(&bed.published(), &identity);
    let mut client = Client::connect_tls(controllers[1].address, &tls, "127.0.0.1").expect("it is trusted");
    let answer = client.ask("GET /v1/nodes HTTP/1.1\r\nHost: controller\r\n\r\n").expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn tokens_and_requests_that_are_not_of_nodes_get_no_certificate() {
    let bed = Issuing::new();
    let controller = bed.ready("");
    let good = bed.cluster.token(NODE, AUDIENCE);
    let of_other_audience = bed.cluster.token(NODE, "another");
    let other = |user: &str| bed.cluster.token(user, AUDIENCE);
    for (token, status, told) in [
        ("", 401, "a token of 1 to"),
        ("made-up", 401, "is not valid for the audience `weir-controller`"),
        (&of_other_audience, 401, "is not valid for the audience `weir-controller`"),
        (&other("system:serviceaccount:weir-system:other"), 403, "nodes are weir-system/weir"),
        (&other("system:serviceaccount:shop:weir"), 403, "is that of `system:serviceaccount:shop:weir`"),
        (&other("weir-system:weir"), 403, "nodes are"),
        (&other("system:serviceaccount:weir-system:weir:more"), 403, "nodes are"),
    ] {
        let answer = bed.ask(&controller, token, &request());
        assert_eq!(answer.status, status, "{token}: {}", answer.text());
        assert!(answer.text().contains(told), "{}", answer.text());
    }
    let rsa = SigningRequest::new(&[], KeyKind::Rsa).der;
    for (request, status) in [(&b"nothing"[..], 400), (&rsa, 400), (&vec![0; 5_000], 413)] {
        assert_eq!(bed.ask(&controller, &good, request).status, status);
    }
    let nodes = bed.ask_without_certificate(&controller, "/v1/nodes");
    assert!(nodes.status == 401 && nodes.text().contains("POST /v1/certificate"), "{}", nodes.text());
    assert_eq!(bed.ask_without_certificate(&controller, "/v1/state?node=a").status, 401);
}

#[test]
fn names_that_a_request_asks_for_are_not_given() {
    let bed = Issuing::new();
    let controller = bed.ready("");
    let request = SigningRequest::new(&["127.0.0.1", "weir-controller.weir-system.svc"], KeyKind::Ecdsa);
    let issued = bed.ask(&controller, &bed.cluster.token(NODE, AUDIENCE), &request.der);
    assert_eq!(issued.status, 200, "{}", issued.text());
    // A node that plays a controller is not believed: neither by its name nor by the purpose of its certificate.
    let identity = Identity { certificate: issued.text(), key: request.key };
    let server = TlsServer::new(&identity);
    let origin = Origin::serving_tls(&server, |_| Answer::ok("not a controller"));
    let tls = TlsClient::trusting_certificate(&bed.published());
    for name in ["127.0.0.1", "weir-node"] {
        assert!(Client::connect_tls(origin.addr(), &tls, name).is_err(), "{name}");
    }
}

#[test]
fn a_certificate_that_is_over_is_not_taken() {
    let bed = Issuing::new();
    let controller = bed.ready(", lifetime: 3s, authority_lifetime: 60s");
    // Each may be over before it is shown, on a busy machine.
    let taken = eventually_some("a certificate is taken", 2 * DEADLINE, || {
        bed.client(&controller).filter(|tls| is_answered(controller.address, tls))
    });
    eventually("it is over", DEADLINE, || !is_answered(controller.address, &taken));
    // What it fails for is not the certificate of the controller.
    assert_eq!(bed.ask_without_certificate(&controller, "/v1/nodes").status, 401);
    assert!(!is_answered(controller.address, &taken));
}

#[test]
fn certificates_are_not_asked_for_without_end() {
    let bed = Issuing::new();
    let controller = bed.ready("");
    let before = bed.cluster.requests("tokenreviews");
    let tls = TlsClient::trusting_certificate(&bed.published());
    let mut client = Client::connect_tls(controller.address, &tls, "127.0.0.1").expect("its certificate is trusted");
    let begun = Instant::now();
    let answers: Vec<u16> = (0..100).map(|_| ask_on(&mut client, "made-up", &request()).status).collect();
    assert!(answers[..16].iter().all(|status| *status == 401), "{answers:?}");
    // 16 at once, and two more in each second.
    let most = 17 + (begun.elapsed().as_secs_f64() * 2.0) as usize;
    let reviews = bed.cluster.requests("tokenreviews") - before;
    assert!(reviews <= most, "{reviews} requests to the API server, and {most} at most");
    let of = |status: u16| answers.iter().filter(|answer| **answer == status).count();
    assert_eq!((of(401), of(503)), (reviews, 100 - reviews), "the API server is not asked");
}

#[test]
fn authorities_are_replaced_while_a_node_follows_and_serves() {
    let bed = Issuing::new();
    let short = ", lifetime: 3s, authority_lifetime: 24s";
    let mut controllers = [bed.ready(short), bed.ready(short)];
    let edge = bed.node(&[&controllers[0], &controllers[1]]);
    edge.wait("/orders", 200);
    bed.cluster.apply([route("steady", "/steady")]);
    bed.cluster.apply(service("steady", bed.origin.addr()));
    edge.wait("/steady", 200);
    let load = Load::start(&format!("http://{}/steady --connections 4 --rate 200", edge.address()));
    let (first, published) = (bed.active(), bed.published());
    let (mut change, mut is_replaced) = (0, false);
    let end = Instant::now() + 4 * DEADLINE;
    // Until the first one is not trusted any more.
    while bed.published().contains(&published) {
        assert!(Instant::now() < end, "the authority is replaced");
        bed.mount();
        // Each change arrives, whatever authority is the active one.
        change += 1;
        bed.cluster.apply([route("orders", &format!("/change-{change}"))]);
        edge.wait(&format!("/change-{change}"), 200);
        if !is_replaced && bed.active() != first {
            is_replaced = true;
            // New connections, with certificates of both authorities.
            for controller in &mut controllers {
                controller.crash();
                controller.restart();
            }
        }
    }
    assert_ne!(bed.active(), first, "another one issues");
    assert!(bed.was_another_published(&first, &published), "the next one is trusted before it is used");
    let issued: u64 = controllers.iter().filter_map(|one| one.page()["certificates"]["issued"].as_u64()).sum();
    assert!(issued > 0, "the certificate of the node is renewed");
    edge.wait_store(true);
    assert!(load.finish_unharmed() > 0);
}

#[test]
fn a_node_whose_certificate_is_over_comes_back_by_its_token() {
    let bed = Issuing::new();
    let mut controller = bed.ready(", lifetime: 4s, authority_lifetime: 60s");
    let edge = bed.node(&[&controller]);
    edge.wait("/orders", 200);
    edge.node.signal(Signal::STOP);
    controller.crash();
    bed.cluster.apply([route("orders", "/after")]);
    controller.restart();
    controller.wait_ready();
    // One that was issued later is not taken any more, so that of the node is not.
    let later = eventually_some("there is a later one", DEADLINE, || bed.client(&controller));
    eventually("the certificate is over", DEADLINE, || !is_answered(controller.address, &later));
    edge.node.signal(Signal::CONT);
    edge.wait("/after", 200);
    controller.wait_nodes(1);
}

#[test]
fn an_authority_whose_secret_is_emptied_is_replaced_and_nodes_learn_the_new_one() {
    let bed = Issuing::new();
    let controller = bed.ready(", lifetime: 4s, authority_lifetime: 60s");
    let edge = bed.node(&[&controller]);
    edge.wait("/orders", 200);
    let (before, published) = (bed.active(), bed.published());
    bed.cluster.apply([empty("Secret")]);
    eventually("there is a new one", DEADLINE, || bed.active() != before && bed.published() != published);
    bed.mount();
    let mut controller = controller;
    controller.crash();
    bed.cluster.apply([route("orders", "/after")]);
    controller.restart();
    // The pauses between attempts to get a certificate grow.
    eventually("the node is back", 4 * DEADLINE, || edge.get("/after").status == 200);
}

#[test]
fn a_node_whose_certificate_is_refused_gets_another_before_it_is_over() {
    let bed = Issuing::new();
    let mut controller = bed.ready(", lifetime: 1h, authority_lifetime: 60h");
    let edge = bed.node(&[&controller]);
    edge.wait("/orders", 200);
    let (before, published) = (bed.active(), bed.published());
    controller.crash();
    bed.cluster.apply([empty("Secret"), route("orders", "/after")]);
    controller.restart();
    eventually("there is a new one", DEADLINE, || bed.active() != before && bed.published() != published);
    bed.mount();
    // It is not asked for while the certificate is young.
    eventually("the node is back", 4 * DEADLINE, || edge.get("/after").status == 200);
    controller.wait_nodes(1);
}

#[test]
fn a_config_map_that_holds_something_else_is_never_overwritten() {
    let bed = Issuing::new();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "weir-controller-ca", "namespace": "weir-system" },
        "data": { "ca.crt": weir_testkit::Authority::new().certificate },
    });
    bed.cluster.apply([map]);
    let before = bed.stored("configmaps");
    let controller = bed.start("");
    eventually("it says so", DEADLINE, || {
        controller.page()["certificates"]["problem"].to_string().contains("is not what controllers write")
    });
    assert_eq!(bed.stored("configmaps"), before);
    assert!(!controller.is_ready() && bed.stored("secrets").is_none());
}

#[test]
fn a_node_without_a_token_serves_its_copy_and_says_what_is_missing() {
    let bed = Issuing::new();
    let controller = bed.ready("");
    let mut edge = bed.node(&[&controller]);
    edge.wait("/orders", 200);
    edge.wait_store(true);
    let token = std::fs::read(bed.pod.join("token")).expect("it has one");
    std::fs::remove_file(bed.pod.join("token")).expect("it is there");
    edge.restart();
    edge.wait("/orders", 200);
    let told = eventually_some("it says what is missing", DEADLINE, || {
        let problem = edge.node.status()["configuration"]["store"]["problem"].to_string();
        problem.contains("token").then_some(problem)
    });
    assert!(told.contains("mount a projected ServiceAccount token there"), "{told}");
    bed.pod.write("token", token);
    edge.wait_store(true);
}

#[test]
fn a_controller_without_a_right_says_which() {
    let bed = Issuing::new();
    let problem_has = |controller: &RunningController, part: &str| {
        eventually(&format!("it says: {part}"), DEADLINE, || {
            controller.page()["certificates"]["problem"].to_string().contains(part)
        });
    };
    bed.cluster.forbid(Some("configmaps"));
    let controller = bed.start("");
    problem_has(&controller, "ConfigMap weir-system/weir-controller-ca");
    problem_has(&controller, "cannot get resource");
    bed.cluster.forbid(Some("secrets"));
    let other = bed.start("");
    problem_has(&other, "Secret weir-system/weir-controller-ca");
    assert!(!other.is_ready(), "no node would trust it");
    bed.cluster.forbid(Some("tokenreviews"));
    other.wait_ready();
    let answer = bed.ask(&other, &bed.cluster.token(NODE, AUDIENCE), &request());
    assert!(answer.status == 503 && !answer.text().contains("cannot create"), "{}", answer.text());
    problem_has(&other, "the right to create tokenreviews");
    bed.cluster.forbid(None);
    eventually("nothing is missing any more", DEADLINE, || controller.page()["certificates"]["problem"].is_null());
}

#[test]
fn a_secret_that_holds_something_else_is_never_overwritten() {
    let bed = Issuing::new();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": "weir-controller-ca", "namespace": "weir-system" },
        "data": { "password": "aHVudGVyMg==" },
    });
    bed.cluster.apply([secret]);
    let before = bed.stored("secrets");
    let controller = bed.start("");
    eventually("it says so", DEADLINE, || {
        controller.page()["certificates"]["problem"].to_string().contains("it is never overwritten")
    });
    assert_eq!(bed.stored("secrets"), before);
    assert!(!controller.is_ready());
}
