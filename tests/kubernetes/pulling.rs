//! Controllers as processes, and nodes that pull from them.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::{Authority, Client, DEADLINE, Identity, Program, TempDir, TlsClient, eventually, free_port};

use crate::edge::{Edge, binary};
use crate::objects::gateway;
use crate::stand_in::StandIn;

/// What the certificates of controllers and nodes are issued by.
pub(crate) struct MutualTrust {
    pub authority: Authority,
    files: TempDir,
}

/// A node of which a test says what it reports: over one connection.
pub(crate) struct ScriptedNode {
    client: Client,
    text: String,
}

/// A controller that runs.
pub(crate) struct RunningController {
    program: Program,
    file: String,
    pub address: SocketAddr,
    status: SocketAddr,
}

impl MutualTrust {
    pub(crate) fn new() -> MutualTrust {
        let trust = MutualTrust { authority: Authority::new(), files: TempDir::new() };
        trust.write("controller", &trust.authority.identity(&["127.0.0.1"]));
        trust.write("node", &trust.authority.identity(&["weir-node"]));
        trust
    }

    /// Writes the files of one end. Both ends trust this authority.
    pub(crate) fn write(&self, end: &str, identity: &Identity) {
        self.files.write(&format!("{end}.crt"), &identity.certificate);
        self.files.write(&format!("{end}.key"), &identity.key);
        self.trust(end, &self.authority);
    }

    /// Lets one end trust this authority from now on.
    pub(crate) fn trust(&self, end: &str, authority: &Authority) {
        self.files.write(&format!("{end}-ca.crt"), &authority.certificate);
    }

    fn settings(&self, end: &str) -> String {
        let path = |name: String| self.files.join(&name).display().to_string();
        let [cert, key, ca] = [".crt", ".key", "-ca.crt"].map(|kind| path(format!("{end}{kind}")));
        format!("tls: {{ cert: {cert}, key: {key}, ca: {ca} }}")
    }

    /// A client with the certificate of a node.
    pub(crate) fn client(&self) -> TlsClient {
        TlsClient::known_as(&self.authority, &self.authority.identity(&["weir-node"]))
    }
}

impl ScriptedNode {
    /// Opens a stream, over HTTP/1.1. Returns the lines of the state as well.
    #[track_caller]
    pub(crate) fn connect(
        controller: &RunningController,
        trust: &MutualTrust,
        name: &str,
    ) -> (ScriptedNode, Vec<Value>) {
        let client = Client::connect_tls(controller.address, &trust.client(), "127.0.0.1").expect("a node");
        let mut node = ScriptedNode { client, text: String::new() };
        node.client.send(format!("GET /v1/state?node={name} HTTP/1.1\r\nHost: controller\r\n\r\n"));
        assert_eq!(node.client.response_head("GET").expect("an answer").status, 200);
        let state = node.lines_to_end();
        (node, state)
    }

    /// Reads lines up to the end of the state or the change, without beats.
    #[track_caller]
    pub(crate) fn lines_to_end(&mut self) -> Vec<Value> {
        let mut lines: Vec<Value> = Vec::new();
        while lines.last().is_none_or(|line| line["end"].is_null()) {
            self.text += &String::from_utf8(self.client.chunk().expect("a piece")).expect("it is UTF-8");
            let whole = self.text.rfind('\n').map_or(0, |end| end + 1);
            let text: String = self.text.drain(..whole).collect();
            lines.extend(text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")));
        }
        lines.retain(|line| line["beat"].is_null());
        lines
    }
}

/// Reports that the node of a stream, whose state this was, serves the newest revision.
#[track_caller]
pub(crate) fn report_newest(controller: &RunningController, trust: &MutualTrust, state: &[Value]) {
    report_without(controller, trust, state, &json!({}));
}

/// The same, but for these resources, each with a problem.
#[track_caller]
pub(crate) fn report_without(controller: &RunningController, trust: &MutualTrust, state: &[Value], set_aside: &Value) {
    let mut reporter = Client::connect_tls(controller.address, &trust.client(), "127.0.0.1").expect("a node");
    let revision = &controller.page()["revision"];
    let report = json!({ "stream": state[0]["stream"], "revision": revision, "set_aside": set_aside }).to_string();
    let post = "POST /v1/report HTTP/1.1\r\nHost: controller\r\nContent-Length:";
    let answer = reporter.ask(format!("{post} {}\r\n\r\n{report}", report.len())).expect("an answer");
    assert_eq!(answer.status, 204, "{}", answer.text());
}

impl RunningController {
    /// Starts one with further settings of `controller`, and does not wait until it has read the cluster.
    #[track_caller]
    pub(crate) fn start(cluster: &StandIn, trust: &MutualTrust, more: &str) -> RunningController {
        RunningController::following(&cluster.settings(", publish_addresses: [\"203.0.113.7\"]"), trust, more)
    }

    /// The same with these settings of the cluster.
    #[track_caller]
    pub(crate) fn following(cluster: &str, trust: &MutualTrust, more: &str) -> RunningController {
        RunningController::with_certificates(cluster, &trust.settings("controller"), more)
    }

    /// The same with the setting that says where its certificates come from.
    #[track_caller]
    pub(crate) fn with_certificates(cluster: &str, certificates: &str, more: &str) -> RunningController {
        let [address, status] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let file = format!(
            "status: \"{status}\"\ncontroller:\n  kubernetes: {cluster}\n  listen: \"{address}\"\n  {certificates}\n  {more}\n"
        );
        RunningController { program: program(&file), file, address, status }
    }

    /// The same, and waits until it serves the state of the cluster.
    #[track_caller]
    pub(crate) fn ready(cluster: &StandIn, trust: &MutualTrust) -> RunningController {
        RunningController::ready_with(cluster, trust, "")
    }

    /// The same with further settings of `controller`.
    #[track_caller]
    pub(crate) fn ready_with(cluster: &StandIn, trust: &MutualTrust, more: &str) -> RunningController {
        let controller = RunningController::start(cluster, trust, more);
        controller.wait_ready();
        controller
    }

    #[track_caller]
    pub(crate) fn wait_ready(&self) {
        eventually("the controller is ready", DEADLINE, || self.is_ready());
    }

    /// Whether it serves the state of the cluster.
    pub(crate) fn is_ready(&self) -> bool {
        let answer = Client::try_connect(self.status).ok().and_then(|mut client| client.get("/readyz").ok());
        answer.is_some_and(|answer| answer.status == 200)
    }

    /// Waits until it answers about itself.
    #[track_caller]
    pub(crate) fn wait_listening(&self) {
        eventually("the controller listens", DEADLINE, || Client::try_connect(self.status).is_ok());
    }

    /// Kills the process.
    #[track_caller]
    pub(crate) fn crash(&mut self) {
        self.program.crash();
    }

    /// Stops the process, as a machine does that is suspended.
    #[track_caller]
    pub(crate) fn freeze(&self) {
        self.program.freeze();
    }

    /// Continues it.
    #[track_caller]
    pub(crate) fn thaw(&self) {
        self.program.thaw();
    }

    /// Ends the process as a service manager does.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        assert!(self.program.end().success());
    }

    /// Starts it again, after a crash.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.program = program(&self.file);
        self.wait_ready();
    }

    /// The memory of the process in bytes.
    #[track_caller]
    pub(crate) fn memory(&self) -> u64 {
        self.program.rss()
    }

    /// What it says about itself.
    #[track_caller]
    pub(crate) fn page(&self) -> Value {
        let answer = Client::connect(self.status).get("/status").expect("it answers");
        serde_json::from_str(&answer.text()).expect("it is JSON")
    }

    /// Waits until so many nodes are connected that serve what there is.
    #[track_caller]
    pub(crate) fn wait_nodes(&self, count: usize) {
        eventually(&format!("{count} nodes serve the newest revision"), DEADLINE, || {
            let page = self.page();
            let nodes = page["nodes"].as_array().expect("a list").clone();
            nodes.len() == count && nodes.iter().all(|node| node["served_revision"] == page["revision"])
        });
    }
}

fn program(file: &str) -> Program {
    let directory = TempDir::new();
    let path = directory.write("controller.yaml", file);
    let mut command = Command::new(binary());
    command.arg("controller").arg("--config").arg(path);
    Program::start(command, directory)
}

/// Puts a Gateway into the cluster, and starts a node that pulls from controllers at these addresses; `more` are further settings of it.
#[track_caller]
pub(crate) fn pulling_from(cluster: &StandIn, trust: &MutualTrust, addresses: &[SocketAddr], more: &str) -> Edge {
    let port = free_port();
    cluster.apply(gateway(port));
    pulling_at(port, trust, addresses, more)
}

/// Starts a node that pulls from controllers at these addresses, and may listen at this port.
#[track_caller]
pub(crate) fn pulling_at(port: u16, trust: &MutualTrust, addresses: &[SocketAddr], more: &str) -> Edge {
    pulling_by(port, &trust.settings("node"), addresses, more)
}

/// The same with the setting that says where its certificate comes from.
#[track_caller]
pub(crate) fn pulling_by(port: u16, certificates: &str, addresses: &[SocketAddr], more: &str) -> Edge {
    let hosts: Vec<String> = addresses.iter().map(|address| format!("\"https://{address}\"")).collect();
    let data = TempDir::new();
    let file = format!(
        "store: {{ controller: {{ hosts: [{}], {certificates} }} }}\ndata_dir: {}\nresource_listeners: [\":{port}\"]\n{more}",
        hosts.join(", "),
        data.path().display()
    );
    Edge::with_file(file, data, port)
}

/// The same from these controllers.
#[track_caller]
pub(crate) fn pulling_with(
    cluster: &StandIn,
    trust: &MutualTrust,
    controllers: &[&RunningController],
    more: &str,
) -> Edge {
    let addresses: Vec<SocketAddr> = controllers.iter().map(|controller| controller.address).collect();
    pulling_from(cluster, trust, &addresses, more)
}

/// The same without further settings.
#[track_caller]
pub(crate) fn pulling(cluster: &StandIn, trust: &MutualTrust, controllers: &[&RunningController]) -> Edge {
    pulling_with(cluster, trust, controllers, "")
}
