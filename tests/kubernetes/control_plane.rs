//! A real control plane: etcd and kube-apiserver as processes, in a network of their own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use weir_kube::objects::Kind;
use weir_testkit::{
    Authority, Client, DEADLINE, NetworkSide, Program, SplitNetwork, TempDir, TlsClient, eventually, skipped,
};

use crate::chart::rendered_with;

/// The token of the administrator.
const ADMIN: &str = "an-administrator";
/// The namespace of the node's service account and of its Lease.
const NAMESPACE: &str = "weir-system";
/// The kinds of objects of the manifests that are installed.
const INSTALLED: [&str; 9] = [
    "Namespace",
    "Secret",
    "ConfigMap",
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
];
/// How long the API server may take to start on a busy machine.
const START: std::time::Duration = std::time::Duration::from_secs(120);

/// A control plane on the right side of a network. Nodes and endpoints are on the left one.
pub(crate) struct ControlPlane {
    network: SplitNetwork,
    server: Option<Program>,
    _etcd: Program,
    directory: TempDir,
}

impl ControlPlane {
    /// `None`, with a line that reports the test as skipped, if a program is missing.
    pub(crate) fn start() -> Option<ControlPlane> {
        let etcd = Program::find("etcd")?;
        Program::find("kube-apiserver")?;
        if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
            skipped("there is no curl");
            return None;
        }
        let network = SplitNetwork::new()?;
        let directory = TempDir::new();
        write_credentials(&directory);
        let etcd = network.within(NetworkSide::Right, || start_etcd(etcd));
        let mut plane = ControlPlane { network, server: None, _etcd: etcd, directory };
        plane.resume();
        plane.install();
        Some(plane)
    }

    /// Calls `act` on the side of the node.
    pub(crate) fn beside<T>(&self, act: impl FnOnce() -> T) -> T {
        self.network.within(NetworkSide::Left, act)
    }

    /// An address on the side of the node, for an endpoint.
    pub(crate) fn endpoint(port: u16) -> SocketAddr {
        format!("{}:{port}", SplitNetwork::address(NetworkSide::Left)).parse().expect("an address")
    }

    /// Kills the API server.
    pub(crate) fn stop(&mut self) {
        drop(self.server.take());
    }

    /// Starts it again, and waits until it is ready.
    #[track_caller]
    pub(crate) fn resume(&mut self) {
        let file = |name: &str| self.directory.join(name).display().to_string();
        let mut command = Program::find("kube-apiserver").expect("it was there just now");
        command.args([
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            "--bind-address=0.0.0.0",
            &format!("--advertise-address={}", SplitNetwork::address(NetworkSide::Right)),
            &format!("--tls-cert-file={}", file("server.crt")),
            &format!("--tls-private-key-file={}", file("server.key")),
            &format!("--token-auth-file={}", file("tokens.csv")),
            "--authorization-mode=RBAC",
            &format!("--audit-policy-file={}", file("audit.yaml")),
            &format!("--audit-log-path={}", file("audit.log")),
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            &format!("--service-account-key-file={}", file("server.crt")),
            &format!("--service-account-signing-key-file={}", file("server.key")),
        ]);
        self.server = Some(self.network.within(NetworkSide::Right, || Program::start(command, TempDir::new())));
        eventually("the API server is ready", START, || self.ask("GET", "/readyz", None).1 == "ok");
    }

    /// Installs the definitions of the Gateway API.
    #[track_caller]
    pub(crate) fn define_gateway_api(&self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/kubernetes/crds");
        for file in fs::read_dir(folder).expect("they are installed with the programs").flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            let Some(plural) =
                name.strip_prefix("gateway.networking.k8s.io_").and_then(|rest| rest.strip_suffix(".yaml"))
            else {
                continue;
            };
            let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            // A policy for those who install them.
            if plural.starts_with("vap_") {
                continue;
            }
            let body = format!("@{}", file.path().display());
            let (status, answer) = self.send("POST", all, "application/yaml", Some(&body));
            assert_eq!(status, 201, "{name}: {answer}");
            eventually(&format!("{plural} are served"), DEADLINE * 3, || {
                let list =
                    |version| self.ask("GET", &format!("/apis/gateway.networking.k8s.io/{version}/{plural}"), None).0;
                list("v1") == 200 || list("v1beta1") == 200
            });
        }
    }

    /// A request of the administrator: the status and the body of the answer.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        self.send(method, path, kind, body.map(Value::to_string).as_deref())
    }

    /// `body` is a text, or `@` with the name of a file.
    fn send(&self, method: &str, path: &str, kind: &str, body: Option<&str>) -> (u16, String) {
        let url = format!("https://{}:6443{path}", SplitNetwork::address(NetworkSide::Right));
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "20", "--write-out", "\n%{http_code}", "--request", method]);
        command.args([
            "--header",
            &format!("Authorization: Bearer {ADMIN}"),
            "--header",
            &format!("Content-Type: {kind}"),
        ]);
        command.arg("--cacert").arg(self.directory.join("ca.crt"));
        // The operating system limits arguments to 128 KiB.
        match body {
            Some(file) if file.starts_with('@') => drop(command.arg("--data-binary").arg(file)),
            Some(text) => {
                command.arg("--data-binary").arg(format!("@{}", self.directory.write("body", text).display()));
            }
            None => {}
        }
        let output = self.beside(|| command.arg(url).output().expect("curl runs"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap_or(("", "0"));
        (status.parse().unwrap_or(0), body.to_owned())
    }

    /// Creates an object in a collection.
    #[track_caller]
    pub(crate) fn create(&self, collection: &str, object: &Value) {
        let (status, answer) = self.ask("POST", collection, Some(object));
        assert_eq!(status, 201, "{answer}");
    }

    /// Creates many objects over one connection, in their order.
    #[track_caller]
    pub(crate) fn create_all(&self, objects: impl IntoIterator<Item = Value>) {
        let mut client = self.connect();
        for object in objects {
            let (path, text) = (collection(&object), object.to_string());
            let answer = client.ask(written("POST", &path, "application/json", &text)).expect("the API server answers");
            assert_eq!(answer.status, 201, "{path}: {}", answer.text());
        }
    }

    /// A connection of the administrator: other requests start a process each.
    pub(crate) fn connect(&self) -> Client {
        let server = SplitNetwork::address(NetworkSide::Right);
        let address = format!("{server}:6443").parse().expect("an address");
        let tls = TlsClient::trusting(Authority::of_tests());
        self.beside(|| Client::connect_tls(address, &tls, server)).expect("the API server takes connections")
    }

    /// Creates an object, or changes it, by server-side apply.
    #[track_caller]
    pub(crate) fn apply(&self, object: &Value) {
        let (status, answer) = self.try_apply(object);
        assert!(
            matches!(status, 200 | 201),
            "{} {}: {status}: {answer}",
            collection(object),
            object["metadata"]["name"]
        );
    }

    fn try_apply(&self, object: &Value) -> (u16, String) {
        let name = object["metadata"]["name"].as_str().expect("objects have names");
        let path = format!("{}/{name}?fieldManager=tests&fieldValidation=Strict", collection(object));
        self.send("PATCH", &path, "application/apply-patch+yaml", Some(&object.to_string()))
    }

    /// Changes fields of an object.
    #[track_caller]
    pub(crate) fn patch(&self, path: &str, fields: &Value) {
        let (status, answer) = self.ask("PATCH", path, Some(fields));
        assert_eq!(status, 200, "{answer}");
    }

    #[track_caller]
    pub(crate) fn delete(&self, path: &str) {
        let (status, answer) = self.ask("DELETE", path, None);
        assert_eq!(status, 200, "{answer}");
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, answer) = self.ask("GET", path, None);
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).expect("the API server answers with JSON")
    }

    /// The file of a node with the rights that the chart gives, and no others.
    pub(crate) fn node(&self) -> String {
        self.node_with(&format!("publish_addresses: [\"{}\"]", SplitNetwork::address(NetworkSide::Left)))
    }

    /// The same with other settings of the store.
    pub(crate) fn node_with(&self, settings: &str) -> String {
        let kubeconfig = self.directory.join("kubeconfig");
        format!("store: {{ kubernetes: {{ kubeconfig: {}, {settings} }} }}\n", kubeconfig.display())
    }

    /// A kubeconfig file with the rights of an administrator.
    pub(crate) fn administration(&self) -> PathBuf {
        self.directory.join("admin.kubeconfig")
    }

    /// Starts the controllers that make pods of Deployments, and EndpointSlices of pods.
    pub(crate) fn start_controllers(&self) -> Option<Program> {
        let mut command = Program::find("kube-controller-manager")?;
        command.arg("--kubeconfig").arg(self.administration());
        command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
        // They watch over nodes, of which there is one without a network of its own.
        command.arg("--controllers=*,-node-lifecycle-controller,-node-ipam-controller");
        Some(self.network.within(NetworkSide::Right, || Program::start(command, TempDir::new())))
    }

    /// Starts a node that runs pods (`suite/agent.py`), on the side of the gateway.
    pub(crate) fn start_agent(&self) -> Option<Program> {
        let echo = Program::find("echo-basic")?;
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kubernetes/suite/agent.py");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        command.arg("exec python3 \"$@\" >agent.log 2>&1").arg("sh").arg(here);
        command.arg(format!("{}:6443", SplitNetwork::address(NetworkSide::Right))).arg(ADMIN);
        command.arg(SplitNetwork::address(NetworkSide::Left)).arg(echo.get_program()).arg(env!("CARGO_BIN_EXE_weir"));
        let directory = TempDir::new();
        for name in ["ca.crt", "server.crt", "server.key"] {
            let text = fs::read(self.directory.join(name)).expect("it has been written");
            directory.write(name, text);
        }
        Some(self.beside(|| Program::start(command, directory)))
    }

    /// Installs what the chart does beside its workload: the definition of WeirPolicy, and the service account of the node with its
    /// rights.
    fn install(&self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes");
        for file in ["namespace.yaml", "weirpolicies.weir.dev.yaml", "install.yaml"] {
            let text = fs::read_to_string(folder.join(file)).expect("the manifests are there");
            let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("manifests are YAML");
            for object in objects.iter().filter(|object| INSTALLED.iter().any(|kind| object["kind"] == *kind)) {
                self.apply(object);
            }
        }
        self.write_kubeconfig_of("weir");
    }

    /// Installs what the chart renders with a file of values, and returns the settings with which it makes a controller or a node follow
    /// the cluster, with the credentials of the account that it gives it. `None` if there is no helm.
    pub(crate) fn installed_with(&self, values: &str) -> Option<Value> {
        let objects = rendered_with("edge", values)?;
        objects
            .iter()
            .filter(|object| INSTALLED.contains(&text(&object["kind"]).as_str()))
            .for_each(|object| self.apply(object));
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        let config = |file: &str| {
            let text = of_kind("ConfigMap").find_map(|map| map["data"][file].as_str())?;
            serde_saphyr::from_str::<Value>(text).ok()
        };
        let (name, mut settings) = match config("controller.yaml") {
            Some(mut file) => ("edge-weir-controller", file["controller"]["kubernetes"].take()),
            None => ("edge-weir", config("weir.yaml").expect("there is a file")["store"]["kubernetes"].take()),
        };
        let workload = of_kind("Deployment").find(|workload| workload["metadata"]["name"] == name);
        let account = text(&workload.expect("it is deployed")["spec"]["template"]["spec"]["serviceAccountName"]);
        let fields = settings.as_object_mut().expect("a map");
        fields.remove("in_cluster");
        // They would have to be addresses of this machine.
        fields.remove("gateway_addresses");
        fields.insert("kubeconfig".to_owned(), json!(self.write_kubeconfig_of(&account)));
        fields.insert("publish_addresses".to_owned(), json!([SplitNetwork::address(NetworkSide::Left)]));
        Some(settings)
    }

    /// How the chart lets controllers issue certificates with a file of values.
    pub(crate) fn issue_settings(values: &str) -> Option<Value> {
        let objects = rendered_with("edge", values)?;
        let text = objects.iter().find_map(|object| object["data"]["controller.yaml"].as_str())?;
        serde_saphyr::from_str::<Value>(text).ok().map(|mut file| file["controller"]["issue"].take())
    }

    /// Writes a kubeconfig file for a service account, and returns its path.
    fn write_kubeconfig_of(&self, account: &str) -> PathBuf {
        let file = if account == "weir" { "kubeconfig" } else { account };
        write_kubeconfig(&self.directory, file, &self.token_of(account))
    }

    /// A token of a service account of the node's namespace.
    fn token_of(&self, account: &str) -> String {
        self.requested_token(account, &json!({}))
    }

    /// The same for an audience, which belongs to no pod.
    pub(crate) fn token_without_pod(&self, account: &str, audience: &str) -> String {
        self.requested_token(account, &json!({ "audiences": [audience] }))
    }

    /// The same of a pod that runs as the account.
    pub(crate) fn token_for(&self, account: &str, audience: &str) -> String {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": account, "namespace": NAMESPACE },
            "spec": {
                "serviceAccountName": account, "automountServiceAccountToken": false,
                "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": "weir", "image": "weir",
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                }],
            },
        });
        let (status, answer) = self.ask("POST", &format!("/api/v1/namespaces/{NAMESPACE}/pods"), Some(&pod));
        assert!(status == 201 || status == 409, "{status}: {answer}");
        let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": account });
        self.requested_token(account, &json!({ "audiences": [audience], "boundObjectRef": bound }))
    }

    fn requested_token(&self, account: &str, spec: &Value) -> String {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token");
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec });
        let (status, answer) = self.ask("POST", &path, Some(&request));
        assert_eq!(status, 201, "{answer}");
        let answer: Value = serde_json::from_str(&answer).expect("the API server answers with JSON");
        text(&answer["status"]["token"])
    }

    /// Installs the definitions of the kinds of the APISIX ingress controller, and waits until they are served.
    #[track_caller]
    pub(crate) fn define_apisix(&self) {
        let definitions = apisix_definitions();
        definitions.iter().for_each(|definition| self.apply(definition));
        for definition in &definitions {
            self.wait_established(definition["metadata"]["name"].as_str().expect("it has a name"));
        }
    }

    /// What the API server answers when the definition of a kind is applied.
    pub(crate) fn try_define_apisix(&self, kind: &str) -> (u16, String) {
        let definitions = apisix_definitions();
        let definition = definitions.iter().find(|one| one["spec"]["names"]["kind"] == kind).expect("it is there");
        self.try_apply(definition)
    }

    /// Waits until a definition is served, which it is if its schema is structural.
    #[track_caller]
    pub(crate) fn wait_established(&self, name: &str) {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        eventually(&format!("{name} is served"), DEADLINE * 3, || {
            let conditions = self.get(&path)["status"]["conditions"].clone();
            let is = |kind: &str| {
                let mut all = conditions.as_array().into_iter().flatten();
                all.any(|condition| condition["type"] == kind && condition["status"] == "True")
            };
            assert!(!is("NonStructuralSchema"), "{name}: {conditions}");
            is("Established")
        });
        // It can be established before its objects are taken.
        let spec = self.get(&path)["spec"].clone();
        let [group, version, plural] =
            [&spec["group"], &spec["versions"][0]["name"], &spec["names"]["plural"]].map(text);
        eventually(&format!("{plural} are listed"), DEADLINE * 3, || {
            self.ask("GET", &format!("/apis/{group}/{version}/{plural}"), None).0 == 200
        });
    }

    /// Gives the node the rights that the chart renders with a file of values, in place of those without values. `None` if there is no
    /// helm.
    pub(crate) fn grant_by_chart(&self, values: &str) -> Option<()> {
        let objects = rendered_with("weir", values)?;
        objects
            .iter()
            .filter(|object| INSTALLED.contains(&text(&object["kind"]).as_str()))
            // Definitions are those of the test.
            .filter(|object| object["kind"] != "CustomResourceDefinition")
            .for_each(|object| self.apply(object));
        Some(())
    }

    /// The requests of service accounts that have been refused because their user lacks a right: user, verb and path.
    pub(crate) fn refusals(&self) -> Vec<String> {
        let log = fs::read_to_string(self.directory.join("audit.log")).expect("the API server writes it");
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_refusal = |event: &Value| event["annotations"]["authorization.k8s.io/decision"] == "forbid";
        let told =
            |event: Value| [&event["user"]["username"], &event["verb"], &event["requestURI"]].map(text).join(" ");
        events.filter(is_refusal).map(told).collect()
    }

    /// The status of the answer to a request of a service account of the node's namespace.
    pub(crate) fn ask_as(&self, account: &str, path: &str) -> u16 {
        let token = self.token_of(account);
        let url = format!("https://{}:6443{path}", SplitNetwork::address(NetworkSide::Right));
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--max-time",
            "20",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
            "--header",
        ]);
        command.arg(format!("Authorization: Bearer {token}")).arg("--cacert").arg(self.directory.join("ca.crt"));
        let output = self.beside(|| command.arg(url).output().expect("curl runs"));
        String::from_utf8_lossy(&output.stdout).parse().unwrap_or(0)
    }
}

/// Changes the fields of an object that this one has.
#[track_caller]
pub(crate) fn replace(client: &mut Client, object: &Value) {
    let name = object["metadata"]["name"].as_str().expect("objects have names");
    let (path, text) = (format!("{}/{name}", collection(object)), object.to_string());
    let answer = client.ask(written("PATCH", &path, "application/merge-patch+json", &text));
    let answer = answer.expect("the API server answers");
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
}

/// A request of the administrator.
fn written(method: &str, path: &str, kind: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: kubernetes\r\nAuthorization: Bearer {ADMIN}\r\nContent-Type: {kind}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The definitions of the kinds of the APISIX ingress controller.
fn apisix_definitions() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/apisix.apache.org.yaml");
    let text = fs::read_to_string(path).expect("it is there");
    let all: Vec<Value> = serde_saphyr::from_multiple(&text).expect("manifests are YAML");
    all.into_iter().filter(|definition| !definition.is_null()).collect()
}

/// Where the API server has the objects of an object's kind and namespace.
pub(crate) fn collection(object: &Value) -> String {
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let namespace = match text(&object["metadata"]["namespace"]) {
        none if none.is_empty() => none,
        namespace => format!("/namespaces/{namespace}"),
    };
    let plural = match Kind::find(&version, &kind) {
        Some(kind) => kind.plural().to_owned(),
        None => match kind.to_ascii_lowercase().strip_suffix("cy") {
            Some(begin) => format!("{begin}cies"),
            None => format!("{}s", kind.to_ascii_lowercase()),
        },
    };
    format!("{root}{namespace}/{plural}")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn start_etcd(mut command: Command) -> Program {
    let url = "http://127.0.0.1:2379";
    let data = TempDir::in_memory();
    command.arg("--data-dir").arg(data.join("data"));
    command.args(["--listen-client-urls", url, "--advertise-client-urls", url, "--unsafe-no-fsync"]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
    Program::start(command, data)
}

/// Certificate and key of the API server, and the token and the kubeconfig of the administrator.
fn write_credentials(directory: &TempDir) {
    let authority = Authority::of_tests();
    let address = SplitNetwork::address(NetworkSide::Right);
    let identity = authority.identity(&[address]);
    directory.write("ca.crt", &authority.certificate);
    directory.write("server.crt", &identity.certificate);
    directory.write("server.key", &identity.key);
    directory.write("tokens.csv", format!("{ADMIN},admin,1,\"system:masters\"\n"));
    // Only requests of service accounts are told, without their content.
    let told = json!({ "level": "Metadata", "userGroups": ["system:serviceaccounts"] });
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [told],
    });
    directory.write("audit.yaml", policy.to_string());
    write_kubeconfig(directory, "admin.kubeconfig", ADMIN);
}

fn write_kubeconfig(directory: &TempDir, file: &str, token: &str) -> PathBuf {
    let cluster = json!({
        "server": format!("https://{}:6443", SplitNetwork::address(NetworkSide::Right)),
        "certificate-authority": directory.join("ca.crt").display().to_string(),
    });
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test", "namespace": NAMESPACE } }],
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": "test", "user": { "token": token } }],
    });
    directory.write(file, config.to_string())
}
