//! The gateway under test, as its users run it: a process with a configuration file.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::client::Client;
use crate::place::TempDir;
use crate::program::anonymous_memory;
use crate::secured;
use crate::wait::{DEADLINE, eventually, eventually_some};
use crate::wire::Response;

/// The gateway to start: its binary, arguments, environment and additional files.
#[derive(Clone, Debug)]
pub struct Launcher {
    binary: PathBuf,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    files: Vec<(String, String)>,
    working_directory: Option<PathBuf>,
}

impl Launcher {
    /// An environment variable for the process.
    pub fn env(mut self, name: &str, value: &str) -> Launcher {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// One more argument after `run FILE`.
    pub fn arg(mut self, argument: &str) -> Launcher {
        self.arguments.push(argument.to_owned());
        self
    }

    /// A file beside the configuration; `name` may contain directories.
    pub fn file(mut self, name: &str, content: &str) -> Launcher {
        self.files.push((name.to_owned(), content.to_owned()));
        self
    }

    /// Starts the process in this directory, and not in that of the configuration.
    pub fn working_directory(mut self, path: &Path) -> Launcher {
        self.working_directory = Some(path.to_owned());
        self
    }

    /// Starts the gateway with a file of this content, and waits until it is ready. By default it listens on a free
    /// loopback port, has a status address, and runs one worker. Panics with its output if it does not become ready.
    #[track_caller]
    pub fn start(self, yaml: &str) -> Gateway {
        let gateway = self.spawn(yaml);
        gateway.stderr.wait("weir: ready", |line| line.starts_with("weir: ready"));
        gateway
    }

    /// Starts the gateway without waiting until it is ready, for files that it must refuse.
    #[track_caller]
    pub fn spawn(self, yaml: &str) -> Gateway {
        let directory = TempDir::new();
        for (name, content) in &self.files {
            directory.write(name, content);
        }
        let file = directory.write("weir.yaml", complete(yaml));
        let mut command = Command::new(&self.binary);
        command.arg("run").arg(&file).args(&self.arguments).envs(self.environment);
        command.current_dir(self.working_directory.as_deref().unwrap_or(directory.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // A process group of its own, so that a successor that it starts can be ended as well.
        command.process_group(0);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", self.binary.display()));
        let stderr = Stderr::collect(BufReader::new(child.stderr.take().expect("stderr is piped")));
        Gateway { child, stderr, directory, file }
    }
}

/// A running gateway. Dropping it ends its process and the processes that it has started.
pub struct Gateway {
    child: Child,
    stderr: Stderr,
    directory: TempDir,
    file: PathBuf,
}

impl Gateway {
    /// Names the binary to start, in a test `env!("CARGO_BIN_EXE_weir")`.
    pub fn with_binary(path: impl AsRef<Path>) -> Launcher {
        Launcher {
            binary: path.as_ref().to_owned(),
            environment: Vec::new(),
            arguments: Vec::new(),
            files: Vec::new(),
            working_directory: None,
        }
    }

    /// The address for clients: that of its first plain HTTP listener.
    #[track_caller]
    pub fn addr(&self) -> SocketAddr {
        self.addrs()[0]
    }

    /// All its plain HTTP listeners, in the file's order.
    #[track_caller]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.addrs_of("http")
    }

    /// The address for clients with TLS: that of its first such listener.
    #[track_caller]
    pub fn tls_addr(&self) -> SocketAddr {
        self.addrs_of("https")[0]
    }

    /// All its listeners of a kind: `http`, `https`, `h2c`, `proxy-http`, `proxy-https` or `proxy-h2c`.
    #[track_caller]
    pub fn addrs_of(&self, scheme: &str) -> Vec<SocketAddr> {
        self.stderr.wait("an address it listens on", |line| line.starts_with("weir: listening on "));
        let state = self.stderr.state();
        // A listener that uses TLS only because all tests run with TLS counts as a plain one.
        let secured = scheme == "http" && secured::is_configured(&self.file);
        let scheme = if secured { "https" } else { scheme };
        let addresses = state.lines.iter().filter_map(|line| line.strip_prefix("weir: listening on "));
        let of_scheme = addresses.filter_map(|rest| rest.strip_suffix(&format!(" ({scheme})")));
        let addresses: Vec<SocketAddr> = of_scheme.filter_map(|address| address.parse().ok()).collect();
        if secured {
            secured::remember(&addresses);
        }
        addresses
    }

    /// Its status address.
    #[track_caller]
    pub fn status_addr(&self) -> SocketAddr {
        let line = self.stderr.wait("its status address", |line| line.starts_with("weir: status on "));
        let address = line.trim_start_matches("weir: status on ").split(' ').next().unwrap_or_default();
        address.parse().unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// A new connection to [`Gateway::addr`].
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect_either(self.addr())
    }

    /// Sends a GET on a new connection.
    #[track_caller]
    pub fn get(&self, target: &str) -> Response {
        self.client().get(target).unwrap_or_else(|error| panic!("GET {target}: {error}\n{}", self.stderr()))
    }

    /// The directory of this gateway, with its configuration file; also its working directory.
    pub fn directory(&self) -> &TempDir {
        &self.directory
    }

    /// Its configuration file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Everything it wrote to stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.state().lines.join("\n")
    }

    /// Waits for a line on stderr for which `wanted` is true, including lines that have been written already.
    #[track_caller]
    pub fn wait_stderr(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        self.stderr.wait(what, wanted)
    }

    /// Stops reading its stderr, so that the pipe fills up.
    pub fn stop_reading_stderr(&self) {
        self.stderr.state().paused = true;
    }

    /// Reads what has been written to stderr meanwhile, and continues to read.
    pub fn resume_reading_stderr(&self) {
        self.stderr.state().paused = false;
        self.stderr.0.1.notify_all();
    }

    /// Sends a request to the status address, and returns the response, whatever its status.
    #[track_caller]
    pub fn ask_status(&self, target: &str) -> Response {
        self.try_ask_status(target).unwrap_or_else(|error| panic!("GET {target}: {error}\n{}", self.stderr()))
    }

    /// The same, where a process that ends may have taken the connection.
    pub fn try_ask_status(&self, target: &str) -> Result<Response, crate::reading::ReadError> {
        let closed = |error: std::io::Error| crate::reading::ReadError::Reset { partial: error.to_string() };
        let mut client = Client::try_connect(self.status_addr()).map_err(closed)?;
        client.ask(format!("GET {target} HTTP/1.1\r\nHost: status\r\nConnection: close\r\n\r\n"))
    }

    /// The content of `/status`.
    #[track_caller]
    pub fn status(&self) -> Value {
        let text = self.ask_status("/status").text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("/status is not JSON: {error}\n{text}"))
    }

    /// The content of `/metrics`.
    #[track_caller]
    pub fn metrics(&self) -> ScrapedMetrics {
        ScrapedMetrics::parse(&self.ask_status("/metrics").text())
    }

    /// The revision of the configuration that all workers serve; `None` while they differ.
    #[track_caller]
    pub fn revision(&self) -> Option<u64> {
        let status = self.status();
        let revision = status["revision"].as_u64().expect("/status has a revision");
        let workers = status["workers"].as_array().expect("/status has workers");
        workers.iter().all(|worker| worker["revision"].as_u64() == Some(revision)).then_some(revision)
    }

    /// Replaces the configuration file in one step and waits until every worker serves it.
    #[track_caller]
    pub fn rewrite(&self, yaml: &str) {
        let before = eventually_some("workers agree", DEADLINE, || self.revision());
        self.replace_file(yaml);
        let mut now = None;
        let deadline = Instant::now() + DEADLINE;
        while now.is_none_or(|now| now <= before) {
            assert!(Instant::now() < deadline, "the new file is not served (revision {before}):\n{}", self.stderr());
            now = self.revision();
        }
    }

    /// Replaces the configuration file in one step and returns at once.
    #[track_caller]
    pub fn replace_file(&self, yaml: &str) {
        let next = self.directory.write("weir.yaml.next", complete(yaml));
        fs::rename(next, &self.file).expect("its own directory");
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the process a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap_or_else(|error| panic!("cannot signal {pid:?}: {error}"));
    }

    /// Waits until the process has ended, and its output has been read to the end.
    #[track_caller]
    pub fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        let group = Pid::from_child(&self.child);
        let child = &mut self.child;
        let status = eventually_some("the gateway exits", deadline, || child.try_wait().expect("it is our child"));
        eventually("its stderr ends", DEADLINE, || {
            let state = self.stderr.state();
            // A successor that it has started continues to write there.
            state.ended || state.paused || rustix::process::test_kill_process_group(group).is_ok()
        });
        status
    }

    /// Whether the process has ended.
    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// The [`anonymous_memory`] of the process in bytes.
    #[track_caller]
    pub fn rss(&self) -> u64 {
        anonymous_memory(self.pid())
    }

    /// The CPU time of its threads in milliseconds, with a resolution of ten.
    pub fn cpu_ms(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.pid());
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        // proc(5): the name in parentheses may have spaces; utime and stime are fields 14 and 15, in ticks of 1/100 s.
        let (_, fields) = text.rsplit_once(')').expect("a process has a name");
        fields.split_ascii_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number") * 10).sum()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The child has not been reaped yet, so its group cannot belong to another process, unless a test has waited
        // for its exit: then the group exists only while a successor lives in it.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- the gateway wrote:\n{}\n---", self.stderr());
        }
    }
}

/// Adds the node settings that the file of a test leaves out. The number of workers is one, unless `WEIR_TEST_WORKERS`
/// sets another.
fn complete(yaml: &str) -> String {
    let has = |key: &str| yaml.lines().any(|line| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')));
    let mut file = String::new();
    if secured::is_wanted() && !["listen", "ssls", "admin", "store"].into_iter().any(has) {
        file.push_str(secured::settings());
    } else if !has("listen") {
        file.push_str("listen: [\"127.0.0.1:0\"]\n");
    }
    let workers = std::env::var("WEIR_TEST_WORKERS").unwrap_or_else(|_| "1".to_owned());
    for (key, value) in [("status", "\"127.0.0.1:0\""), ("worker_processes", &*workers)] {
        if !has(key) {
            file.push_str(&format!("{key}: {value}\n"));
        }
    }
    file + yaml
}

/// The samples of a Prometheus page by series, as `name{label="value"}`.
#[derive(Clone, Debug, Default)]
pub struct ScrapedMetrics(BTreeMap<String, f64>);

impl ScrapedMetrics {
    fn parse(text: &str) -> ScrapedMetrics {
        let samples = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let split = samples.filter_map(|line| line.rsplit_once(' '));
        ScrapedMetrics(split.filter_map(|(series, value)| Some((series.to_owned(), value.parse().ok()?))).collect())
    }

    /// The value of one series, spelled as on the page.
    pub fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// The sum over all series of a metric that have all of `labels` (`name="value"`).
    pub fn sum(&self, metric: &str, labels: &[&str]) -> f64 {
        let matching = self.0.iter().filter(|(series, _)| {
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            name == metric && labels.iter().all(|label| rest.contains(label))
        });
        matching.map(|(_, value)| value).sum()
    }

    /// All series and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(series, &value)| (series.as_str(), value))
    }

    /// How many series there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The lines that a process has written so far, collected by a thread.
#[derive(Clone)]
struct Stderr(Arc<(Mutex<Lines>, Condvar)>);

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    /// Whether reading is suspended.
    paused: bool,
    ended: bool,
}

impl Stderr {
    fn collect(mut source: impl BufRead + Send + 'static) -> Stderr {
        let stderr = Stderr(Arc::default());
        let own = stderr.clone();
        thread::spawn(move || {
            let mut line = Vec::new();
            while source.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                let mut state = own.state();
                while state.paused {
                    state = own.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                drop(state);
                own.state().lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
                own.0.1.notify_all();
                line.clear();
            }
            own.state().ended = true;
            own.0.1.notify_all();
        });
        stderr
    }

    fn state(&self) -> MutexGuard<'_, Lines> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[track_caller]
    fn wait(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let found = |state: &Lines| state.lines.iter().find(|line| wanted(line)).cloned();
        let state = self.state();
        let (state, _) = self
            .0
            .1
            .wait_timeout_while(state, DEADLINE, |state| !state.ended && found(state).is_none())
            .unwrap_or_else(PoisonError::into_inner);
        found(&state).unwrap_or_else(|| panic!("the gateway did not write {what}:\n{}", state.lines.join("\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_only_the_settings_a_file_leaves_out() {
        let file = complete("worker_processes: 2\nroutes: []\n");
        assert_eq!(file, "listen: [\"127.0.0.1:0\"]\nstatus: \"127.0.0.1:0\"\nworker_processes: 2\nroutes: []\n");
    }

    #[test]
    fn sums_series_by_label() {
        let page = "# TYPE a counter\na{class=\"2xx\",route=\"r\"} 3\na{class=\"5xx\",route=\"r\"} 4\nab 9\n";
        let metrics = ScrapedMetrics::parse(page);
        assert_eq!(metrics.sum("a", &[]), 7.0);
        assert_eq!(metrics.sum("a", &["class=\"5xx\""]), 4.0);
        assert_eq!(metrics.get("ab"), Some(9.0));
    }

    #[test]
    fn reports_what_a_process_wrote_when_it_is_not_what_was_expected() {
        let stderr = Stderr::collect(BufReader::new(&b"weir: cannot listen\n"[..]));
        let outcome = std::panic::catch_unwind(|| stderr.wait("weir: ready", |line| line == "weir: ready"));
        let message = *outcome.expect_err("it never wrote that").downcast::<String>().expect("a message");
        assert!(message.contains("cannot listen"), "{message}");
        eventually("ended", DEADLINE, || stderr.state().ended);
    }
}
