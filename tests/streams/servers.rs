//! Real servers of protocols that Weir does not know: PostgreSQL, Mosquitto (MQTT) and dnsmasq (DNS).

use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use weir_testkit::{Authority, DEADLINE, Identity, Program, TempDir, eventually, free_port};

/// Runs a client to its end.
#[track_caller]
pub(crate) fn run(mut command: Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

/// What a client has written, if it says that all is well.
#[track_caller]
pub(crate) fn answer(command: Command) -> String {
    let output = run(command);
    let [written, complaint] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{written}{complaint}");
    written.trim_end().to_owned()
}

fn identity_in(directory: &TempDir, name: &str) -> (PathBuf, PathBuf) {
    let Identity { certificate, key } = Authority::of_tests().identity(&[name]);
    (directory.write("server.crt", certificate), directory.write("server.key", key))
}

pub(crate) struct Postgres {
    pub program: Program,
    pub port: u16,
}

impl Postgres {
    /// A database that knows its `name`, and takes TLS too. `None` if PostgreSQL is not installed; a message has been printed then.
    pub(crate) fn start(name: &str) -> Option<Postgres> {
        let directory = TempDir::new();
        let data = directory.join("data");
        let mut init = Postgres::command("initdb")?;
        init.args(["--username", "weir", "--auth", "trust", "--no-sync", "--pgdata"]).arg(&data);
        answer(init);
        let (certificate, key) = identity_in(&directory, "db.test");
        private(&key);
        let port = free_port();
        let settings = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            format!("unix_socket_directories={}", directory.path().display()),
            format!("cluster_name={name}"),
            format!("ssl_cert_file={}", certificate.display()),
            format!("ssl_key_file={}", key.display()),
            "ssl=on".to_owned(),
            "fsync=off".to_owned(),
        ];
        let mut command = Postgres::command("postgres")?;
        command.arg("-D").arg(&data);
        settings.iter().for_each(|setting| {
            command.args(["-c", setting]);
        });
        let postgres = Postgres { program: Program::start(command, directory), port };
        eventually("PostgreSQL answers", DEADLINE, || {
            Postgres::client(port, "disable").is_some_and(|mut client| {
                client.args(["-c", "select 1"]);
                run(client).status.success()
            })
        });
        Some(postgres)
    }

    /// `psql` for a database at a port of this machine, that prints bare values.
    pub(crate) fn client(port: u16, tls: &str) -> Option<Command> {
        let mut command = Program::find("psql")?;
        let database = format!("host=127.0.0.1 port={port} user=weir dbname=postgres sslmode={tls} connect_timeout=10");
        command.args(["--no-psqlrc", "--tuples-only", "--no-align", &database]);
        Some(command)
    }

    /// Its programs refuse to run as root: in a user namespace of their own they are another user, whom root's files belong to.
    /// What they share with each other in memory is in a namespace that ends with them.
    fn command(name: &str) -> Option<Command> {
        let command = Program::find(name)?;
        let mut inside = Command::new("unshare");
        inside.args(["--user", "--ipc", "--map-user=1000", "--map-group=1000", "--"]).arg(command.get_program());
        command.get_envs().for_each(|(name, value)| {
            inside.env(name, value.unwrap_or_default());
        });
        Some(inside)
    }
}

fn private(key: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("it is ours");
}

pub(crate) struct Mosquitto {
    #[expect(dead_code, reason = "it ends with this")]
    program: Program,
    pub port: u16,
}

impl Mosquitto {
    pub(crate) fn start() -> Option<Mosquitto> {
        let mut command = Program::find("mosquitto")?;
        let port = free_port();
        let directory = TempDir::new();
        let settings = format!("listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n");
        command.arg("-c").arg(directory.write("mosquitto.conf", settings));
        let program = Program::start(command, directory);
        eventually("Mosquitto listens", DEADLINE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Mosquitto { program, port })
    }

    /// `mosquitto_pub` or `mosquitto_sub`, by a version such as `mqttv5`, towards a port of this machine.
    pub(crate) fn client(name: &str, version: &str, port: u16) -> Option<Command> {
        let mut command = Program::find(name)?;
        command.args(["-h", "localhost", "-V", version, "-p", &port.to_string()]);
        Some(command)
    }
}

pub(crate) struct Dnsmasq {
    #[expect(dead_code, reason = "it ends with this")]
    program: Program,
    pub port: u16,
}

impl Dnsmasq {
    /// Answers for `one.test` over UDP and TCP, and for `long.test` with more than a datagram of 512 bytes takes.
    pub(crate) fn start() -> Option<Dnsmasq> {
        let mut command = Program::find("dnsmasq")?;
        let port = port_of_both();
        let directory = TempDir::new();
        let long: String = (0..60).map(|n| format!("host-record=long.test,10.9.8.{n}\n")).collect();
        let settings = format!(
            "port={port}\nlisten-address=127.0.0.1\nbind-interfaces\nno-resolv\nno-hosts\npid-file={}/pid\nuser=\ngroup=\n\
             host-record=one.test,10.1.2.3\n{long}",
            directory.path().display()
        );
        let file = directory.write("dnsmasq.conf", settings);
        command.args(["--keep-in-foreground", &format!("--conf-file={}", file.display())]);
        let program = Program::start(command, directory);
        eventually("dnsmasq listens", DEADLINE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Dnsmasq { program, port })
    }

    /// `kdig` towards a port of this machine; it prints the addresses alone.
    pub(crate) fn client(port: u16, options: &[&str]) -> Option<Command> {
        let mut command = Program::find("kdig")?;
        command.args(["@127.0.0.1", "-p", &port.to_string(), "+short"]).args(options);
        Some(command)
    }
}

/// A port that is free over TCP and over UDP.
pub(crate) fn port_of_both() -> u16 {
    loop {
        let port = free_port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
