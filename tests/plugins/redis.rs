//! Redis servers for tests: one alone, a cluster, and one with a replica that a sentinel watches.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use weir_testkit::{DEADLINE, Program, TempDir, eventually, eventually_some, free_port};

pub(crate) struct Redis {
    program: Program,
    pub port: u16,
}

impl Redis {
    /// `None` if Redis is not installed on this machine; a message has been printed then.
    pub(crate) fn start(arguments: &[&str]) -> Option<Redis> {
        Redis::start_on(free_port(), arguments)
    }

    pub(crate) fn start_on(port: u16, arguments: &[&str]) -> Option<Redis> {
        Redis::start_in(TempDir::new(), port, &[&["--save", ""], arguments].concat())
    }

    /// A server that keeps its data in `directory`, so that a restart restores it.
    pub(crate) fn keeping(directory: &TempDir, port: u16) -> Option<Redis> {
        let kept = directory.path().to_string_lossy();
        Redis::start_on(port, &["--appendonly", "yes", "--appendfsync", "always", "--dir", &kept])
    }

    fn start_in(directory: TempDir, port: u16, arguments: &[&str]) -> Option<Redis> {
        let mut command = Program::find("redis-server")?;
        command.args(arguments).args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        let redis = Redis { program: Program::start(command, directory), port };
        // A server that still loads its data answers each command with an error.
        eventually("Redis answers", DEADLINE, || {
            redis.try_ask("PING").is_some_and(|pong| !pong.starts_with("-LOADING"))
        });
        Some(redis)
    }

    /// Three masters that share the slots.
    pub(crate) fn cluster() -> Option<Vec<Redis>> {
        let node = |_| {
            let bus = free_port().to_string();
            let options = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-announce-bus-port", &bus];
            Some((Redis::start(&options)?, bus))
        };
        let nodes = (0..3).map(node).collect::<Option<Vec<_>>>()?;
        for ((node, _), slots) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
            assert_eq!(node.ask(&format!("CLUSTER ADDSLOTSRANGE {slots}")), "+OK");
        }
        for (node, bus) in &nodes {
            assert_eq!(nodes[0].0.ask(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port)), "+OK");
        }
        let nodes: Vec<Redis> = nodes.into_iter().map(|(node, _)| node).collect();
        let is_whole = |node: &Redis| {
            let info = node.ask("CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        };
        eventually("the cluster is whole", DEADLINE, || nodes.iter().all(is_whole));
        Some(nodes)
    }

    /// A master, its replica, and a sentinel that knows them as `counters`.
    pub(crate) fn watched() -> Option<(Redis, Redis, Redis)> {
        let master = Redis::start(&[])?;
        let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port.to_string()])?;
        eventually("the replica follows", DEADLINE, || {
            replica.ask("INFO replication").contains("master_link_status:up")
        });
        let directory = TempDir::new();
        let file = directory.write(
            "sentinel.conf",
            format!(
                "sentinel monitor counters 127.0.0.1 {} 1\nsentinel down-after-milliseconds counters 2000\n\
                 sentinel failover-timeout counters 5000\n",
                master.port
            ),
        );
        let sentinel = Redis::start_in(directory, free_port(), &[&file.to_string_lossy(), "--sentinel"])?;
        eventually("the sentinel knows the replica", DEADLINE, || {
            sentinel.ask("SENTINEL master counters").contains("num-slaves\n1\n")
        });
        Some((master, replica, sentinel))
    }

    /// The value of its only key.
    pub(crate) fn counted(&self) -> String {
        let key = self.ask("KEYS *");
        self.ask(&format!("GET {key}"))
    }

    pub(crate) fn freeze(&self) {
        self.program.freeze();
    }

    pub(crate) fn thaw(&self) {
        self.program.thaw();
    }

    /// The answer to a command: numbers and statuses in the protocol's form, `:1` and `+OK`; of a list, one line per element.
    #[track_caller]
    pub(crate) fn ask(&self, command: &str) -> String {
        eventually_some("Redis answers", DEADLINE, || self.try_ask(command))
    }

    fn try_ask(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        // Some commands cannot be sent again.
        stream.set_read_timeout(Some(DEADLINE)).ok()?;
        stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
        answer(&mut BufReader::new(stream))
    }
}

fn answer(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let line = line.trim_end();
    match (line.get(..1)?, line[1..].parse::<usize>()) {
        ("$", Ok(length)) => {
            let mut text = vec![0; length + 2];
            reader.read_exact(&mut text).ok()?;
            String::from_utf8(text).ok().map(|text| text.trim_end().to_owned())
        }
        ("*", Ok(count)) => {
            (0..count).map(|_| answer(reader)).collect::<Option<Vec<_>>>().map(|lines| lines.join("\n"))
        }
        _ => Some(line.to_owned()),
    }
}
