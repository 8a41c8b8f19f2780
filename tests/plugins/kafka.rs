//! `kafka-logger` before a real Kafka.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use weir_testkit::{Answer, Authority, Gateway, Origin, TempDir, eventually, free_port, skipped};

/// It starts in ten seconds on an idle machine.
const START: Duration = Duration::from_secs(240);
const SETTLE: Duration = Duration::from_secs(120);

/// One broker, which is its own controller. It listens in the clear, and in TLS for those who log in.
struct Kafka {
    child: Child,
    port: u16,
    secure_port: u16,
    jars: PathBuf,
    directory: TempDir,
}

impl Kafka {
    /// `None` where there is no Java, or no Kafka.
    fn start() -> Option<Kafka> {
        let jars = jars()?;
        let directory = TempDir::new();
        let [port, secure_port, controller] = [free_port(), free_port(), free_port()];
        directory.write("server.properties", properties(&directory, port, secure_port, controller));
        let mut format = java(&jars, &directory);
        format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", "server.properties"]);
        for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
            format.arg("--add-scram").arg(format!("{mechanism}=[name=weir,password=w0rd]"));
        }
        assert!(format.status().expect("Java starts").success(), "its storage cannot be made");
        let child = run(&jars, &directory, "server.properties");
        let kafka = Kafka { child, port, secure_port, jars, directory };
        kafka.wait();
        Some(kafka)
    }

    fn wait(&self) {
        listens(self.port);
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    fn restart(&mut self) {
        self.child = run(&self.jars, &self.directory, "server.properties");
        self.wait();
    }

    /// All messages of a topic.
    fn messages(&self, topic: &str) -> Vec<Value> {
        said(&self.jars, &self.directory, "KafkaMessages", self.port, topic)
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The id of every cluster.
pub const CLUSTER: &str = "4L6g3nShT-eMCtK--X86sw";

/// `None` where there is no Java, or no Kafka.
pub fn jars() -> Option<PathBuf> {
    let jars = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/kafka");
    let has_java = Command::new("java").arg("-version").stderr(Stdio::null()).status().is_ok_and(|it| it.success());
    if !has_java || !jars.is_dir() {
        skipped("there is no Kafka");
        return None;
    }
    Some(jars)
}

pub fn listens(port: u16) {
    eventually("Kafka listens", START, || TcpStream::connect(("127.0.0.1", port)).is_ok());
}

/// What one of our programs says of a topic, a value a line.
pub fn said(jars: &Path, directory: &TempDir, program: &str, port: u16, topic: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/plugins/{program}.java"));
    let mut reader = java(jars, directory);
    reader.arg(file).arg(port.to_string()).arg(topic);
    let said = reader.stdout(Stdio::piped()).output().expect("Java starts");
    let text = String::from_utf8(said.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

fn properties(directory: &TempDir, port: u16, secure_port: u16, controller: u16) -> String {
    let identity = Authority::of_tests().identity(&["localhost", "127.0.0.1"]);
    let pem = |text: &str| text.trim().replace('\n', "\\n");
    let plain = "org.apache.kafka.common.security.plain.PlainLoginModule required user_weir=\"w0rd\";";
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let mut text = format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure_port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config={plain}
ssl.keystore.type=PEM
ssl.keystore.certificate.chain={}
ssl.keystore.key={}
log.dirs={}
num.partitions=3
message.max.bytes=100000
",
        pem(&identity.certificate),
        pem(&identity.key),
        directory.join("data").display()
    );
    for mechanism in ["scram-sha-256", "scram-sha-512"] {
        writeln!(text, "listener.name.sasl_ssl.{mechanism}.sasl.jaas.config={scram}")
            .expect("a String takes everything");
    }
    for (name, value) in [
        ("offsets.topic.replication.factor", 1),
        ("transaction.state.log.replication.factor", 1),
        ("transaction.state.log.min.isr", 1),
        ("share.coordinator.state.topic.replication.factor", 1),
        ("share.coordinator.state.topic.min.isr", 1),
        ("group.initial.rebalance.delay.ms", 0),
    ] {
        writeln!(text, "{name}={value}").expect("a String takes everything");
    }
    text
}

pub fn java(jars: &Path, directory: &TempDir) -> Command {
    let mut command = Command::new("java");
    command.current_dir(directory.path()).args(["-Xmx384m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]);
    command.arg(jars.canonicalize().expect("it is there").join("*")).stdin(Stdio::null());
    let said = File::options().append(true).create(true).open(directory.join("said.log")).expect("its own directory");
    command.stdout(said.try_clone().expect("a file")).stderr(said);
    command
}

pub fn run(jars: &Path, directory: &TempDir, properties: &str) -> Child {
    java(jars, directory).args(["kafka.Kafka", properties]).spawn().expect("Java starts")
}

pub fn gateway(options: &str, data: &TempDir, origin: &Origin) -> Gateway {
    let trusted = data.write("authority.pem", &Authority::of_tests().certificate);
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "data_dir: {}
ssl_trusted_certificate: {}
routes:
  - uri: /*
    plugins: {{ kafka-logger: {{ {options}, inactive_timeout: 1, spool: {{}} }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        data.path().display(),
        trusted.display(),
        origin.addr()
    ))
}

fn sink(gateway: &Gateway) -> Value {
    let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
    report["sinks"][0].clone()
}

pub fn ask(gateway: &Gateway, count: usize) {
    let mut client = gateway.client();
    (0..count).for_each(|turn| assert_eq!(client.get(&format!("/a?turn={turn}")).expect("an answer").status, 200));
}

pub fn delivered(gateway: &Gateway, count: u64) {
    eventually("every record is delivered", SETTLE, || {
        let sink = sink(gateway);
        assert_eq!((&sink["rejected"], &sink["dropped"]), (&serde_json::json!({}), &serde_json::json!({})), "{sink:#}");
        sink["delivered"]["records"] == count
    });
}

/// How often each record is in a topic.
pub fn counts(messages: Vec<Value>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for message in messages {
        let records = if let Value::Array(list) = message { list } else { vec![message] };
        for record in records {
            *counts.entry(record["record_id"].to_string()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_real_kafka_has_every_record_once_though_it_was_killed() {
    let Some(mut kafka) = Kafka::start() else { return };
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let options = |topic: &str, more: &str| {
        format!("brokers: [{{ host: 127.0.0.1, port: {} }}], kafka_topic: {topic}{more}", kafka.port)
    };
    let single = gateway(&options("single", ", batch_max_size: 1"), &data, &origin);
    let lists = gateway(&options("lists", ", key: k, required_acks: 1"), &TempDir::new(), &origin);
    ask(&single, 300);
    ask(&lists, 300);
    delivered(&single, 300);
    delivered(&lists, 300);
    // While records come, and a batch may be on its way.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&single, 3000));
        kafka.kill();
        asking.join().expect("every request has its answer");
    });
    eventually("it is said", SETTLE, || sink(&single)["last_error"].is_string());
    kafka.restart();
    delivered(&single, 3300);
    let stored = counts(kafka.messages("single"));
    assert_eq!((stored.len(), stored.values().all(|count| *count == 1)), (3300, true));
    let lists = kafka.messages("lists");
    assert!(lists.iter().all(Value::is_array), "a message is a batch");
    assert_eq!(counts(lists).len(), 300);
}

#[test]
fn a_real_kafka_is_logged_in_to_over_tls() {
    let Some(kafka) = Kafka::start() else { return };
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let start = |mechanism: &str, password: &str, data: &TempDir| {
        let options = format!(
            "brokers: [{{ host: 127.0.0.1, port: {}, sasl_config: {{ mechanism: {mechanism}, user: weir, password: {password} }} }}],
                kafka_topic: secure, tls: {{ verify: true }}",
            kafka.secure_port
        );
        gateway(&options, data, &origin)
    };
    let mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];
    for mechanism in mechanisms {
        let data = TempDir::new();
        let gateway = start(mechanism, "w0rd", &data);
        ask(&gateway, 20);
        delivered(&gateway, 20);
    }
    assert_eq!(counts(kafka.messages("secure")).len(), 60);
    let data = TempDir::new();
    let gateway = start("SCRAM-SHA-256", "wrong", &data);
    ask(&gateway, 5);
    eventually("the login is refused", SETTLE, || {
        sink(&gateway)["last_error"].as_str().is_some_and(|error| error.contains("the login was refused"))
    });
    assert_eq!(sink(&gateway)["delivered"]["records"], 0);
}
