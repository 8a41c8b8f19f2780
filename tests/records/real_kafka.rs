//! A real Kafka, from its packages.

use std::fmt::Write;
use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use weir_testkit::{Authority, Program, TempDir, eventually, free_port, skipped};

/// It starts in ten seconds on an idle machine.
const START: Duration = Duration::from_secs(240);

/// One broker, which is its own controller. It listens in the clear, and in TLS for those who log in.
pub(crate) struct Kafka {
    child: Child,
    pub port: u16,
    pub secure_port: u16,
    jars: PathBuf,
    directory: TempDir,
}

impl Kafka {
    /// `None` where there is no Java, or no Kafka.
    pub(crate) fn start() -> Option<Kafka> {
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

    /// Runs Java with Kafka's classes.
    pub(crate) fn java(&self) -> Command {
        java(&self.jars, &self.directory)
    }

    fn wait(&self) {
        listens(self.port);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    pub(crate) fn restart(&mut self) {
        self.child = run(&self.jars, &self.directory, "server.properties");
        self.wait();
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
pub(crate) const CLUSTER: &str = "4L6g3nShT-eMCtK--X86sw";

/// `None` where there is no Java, or no Kafka.
pub(crate) fn jars() -> Option<PathBuf> {
    let jars = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/kafka");
    Program::java()?;
    if !jars.is_dir() {
        skipped("there is no Kafka");
        return None;
    }
    Some(jars)
}

/// Waits until a broker does.
pub(crate) fn listens(port: u16) {
    eventually("Kafka listens", START, || TcpStream::connect(("127.0.0.1", port)).is_ok());
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

pub(crate) fn java(jars: &Path, directory: &TempDir) -> Command {
    let mut command = Program::java().expect("it was found");
    command.current_dir(directory.path()).args(["-Xmx384m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]);
    command.arg(jars.canonicalize().expect("it is there").join("*")).stdin(Stdio::null());
    let said = File::options().append(true).create(true).open(directory.join("said.log")).expect("its own directory");
    command.stdout(said.try_clone().expect("a file")).stderr(said);
    command
}

/// Runs our program that creates or changes a topic: `create cleanup.policy=compact`, `create 1,2,1,2`, `set cleanup.policy=delete`.
pub(crate) fn change_topic(mut java: Command, port: u16, topic: &str, (verb, what): (&str, &str)) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/records/KafkaTopic.java");
    java.arg(program).arg(port.to_string()).args([topic, verb, what]);
    assert!(java.status().expect("Java starts").success(), "{verb} {what} of topic {topic}");
}

pub(crate) fn run(jars: &Path, directory: &TempDir, properties: &str) -> Child {
    java(jars, directory).args(["kafka.Kafka", properties]).spawn().expect("Java starts")
}
