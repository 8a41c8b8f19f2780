//! The lab on several machines: agents in network namespaces of their own, and on this machine.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use weir_testkit::{
    DEADLINE, NetworkSide, Program, SplitNetwork, TempDir, eventually, eventually_some, scaled, skipped,
};

use crate::script;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
/// How long a run may take to begin, with a target that is not optimised.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of the slow cable, in each direction.
const DELAY_MS: f64 = 10.0;

/// A directory with a key file, and the processes of a test.
struct Lab {
    directory: TempDir,
}

/// An agent that runs. Dropping it ends it as a service manager does.
struct Agent {
    process: Child,
    address: String,
}

impl Lab {
    fn new() -> Lab {
        let lab = Lab { directory: TempDir::new() };
        let made = lab.command(&["agent", "--new-key", "key"]).output().expect("it starts");
        assert!(made.status.success(), "{}", text(&made));
        lab
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(WEIR);
        command.arg("bench").args(arguments).current_dir(self.directory.path());
        command
    }

    /// Starts an agent on this address, with a free port; `name` is that of its directory.
    fn agent(&self, name: &str, address: &str, more: &[&str]) -> Agent {
        let (listen, program) = (format!("{address}:0"), format!("weir={WEIR}"));
        let own = ["agent", "--key", "key", "--listen", &listen, "--cache", name, "--program", &program];
        let arguments = [&own, more].concat();
        self.started(self.command(&arguments))
    }

    fn started(&self, mut command: Command) -> Agent {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line).expect("it says where");
        let address = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        Agent { process, address }
    }

    fn run(&self, scenario: &str, out: &str, arguments: &[&str]) -> Command {
        let file = format!("{out}.yaml");
        self.directory.write(&file, scenario);
        self.command(&[&["run", &file, "--out", out, "--cache", out], arguments].concat())
    }

    /// The only result in a directory.
    fn result(&self, out: &str, printed: &str) -> Value {
        let files = fs::read_dir(self.directory.join(out)).unwrap_or_else(|_| panic!("{printed}"));
        let is_result = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "json");
        let file = files.map(|file| file.expect("an entry").path()).find(is_result);
        let file = file.unwrap_or_else(|| panic!("no result: {printed}"));
        serde_json::from_slice(&fs::read(file).expect("it is there")).expect("JSON")
    }
}

impl Agent {
    fn kill(&mut self) {
        self.process.kill().expect("it is a child of ours");
        self.process.wait().expect("it is a child of ours");
    }

    /// The processes that it has started, without the one that keeps them.
    fn programs(&self) -> Vec<u32> {
        children(self.process.id()).into_iter().filter(|pid| !command_line(*pid).contains("--keeper")).collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            // `unshare` leaves it to the agent that it has started to end.
            for pid in [vec![self.process.id()], self.programs()].concat() {
                let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
                if let Some(pid) = pid {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
            }
        }
        let _ = self.process.wait();
    }
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_task = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks
        .map(of_task)
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn command_line(pid: u32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).replace('\0', " ")
}

/// Whether a process runs; one that nothing waits for any more does not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn run_of<'a>(result: &'a Value, row: &str, target: &str) -> &'a Value {
    let cells = result["cells"].as_array().expect("a list");
    let cell = cells.iter().find(|cell| cell["row"] == row && cell["target"] == target).expect("each has one");
    assert_eq!(cell["status"], "measured", "{}", cell["reason"]);
    &cell["runs"][0]
}

/// The requests of the measurement that were answered.
fn answered(run: &Value) -> f64 {
    run["load"]["total"]["completed"].as_f64().expect("a number")
}

/// How many of them there were in each second. Those that a busy machine answers late count as well.
fn rate(run: &Value) -> f64 {
    answered(run) * 1e9 / run["load"]["measured_ns"].as_f64().expect("a number")
}

/// The plan of a published test: five backends with answers of 1 KB, at a rate and with clients that pause.
fn plan(targets: &str, seconds: f64, clients: u64, rate: u64) -> String {
    let pausing = clients.div_ceil(4);
    let baseline = targets.split(',').next().expect("there is one");
    format!(
        "name: plan
title: Five backends on other machines
about: A rate, and clients that pause.
targets: [{targets}]
baseline: {baseline}
connections: [{clients}]
backend: {{ kind: builtin, instances: 5, body_bytes: 1024 }}
method: {{ warmup_s: 0.5, measured_s: {seconds}, repeats: 1 }}
rows:
  - name: rate
    rate: {rate}
    request: {{ path: /stocks }}
  - name: pauses
    connections: [{pausing}]
    pacing: {{ kind: closed, think: {{ fixed_ms: 100 }} }}
    request: {{ path: /stocks }}
"
    )
}

/// Two namespaces with a cable that delays every packet by [`DELAY_MS`]. `None`, and the test is reported as skipped, without.
struct SlowCable {
    network: SplitNetwork,
    _ends: Vec<CableEnd>,
}

/// A process at one end of a cable, which is killed with this value.
struct CableEnd(Child);

impl Drop for CableEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl SlowCable {
    fn new() -> Option<SlowCable> {
        let network = SplitNetwork::new()?;
        if fs::metadata("/dev/net/tun").is_err() {
            skipped("there is no /dev/net/tun");
            return None;
        }
        let (to_right, from_left) = std::io::pipe().expect("pipes are there");
        let (to_left, from_right) = std::io::pipe().expect("pipes are there");
        let sides = [NetworkSide::Left, NetworkSide::Right];
        let pipes = [(to_left, from_left), (to_right, from_right)];
        let mut ends = Vec::new();
        for (side, (input, output)) in sides.into_iter().zip(pipes) {
            let mut command = Program::find("python3")?;
            command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/operations/agents/slow_cable.py"));
            command.args(["slow", &DELAY_MS.to_string()]);
            let set_up = format!(
                "ip tuntap add dev slow mode tun && ip address add {}/24 dev slow && ip link set slow up",
                SlowCable::address(side)
            );
            let made = network.within(side, || shell(&set_up));
            if let Err(reason) = made {
                skipped(&format!("TUN devices cannot be used: {reason}"));
                return None;
            }
            command.stdin(input).stdout(output);
            ends.push(CableEnd(network.within(side, || command.spawn()).expect("it starts")));
        }
        Some(SlowCable { network, _ends: ends })
    }

    fn address(side: NetworkSide) -> &'static str {
        match side {
            NetworkSide::Left => "10.98.0.1",
            NetworkSide::Right => "10.98.0.2",
        }
    }
}

fn shell(script: &str) -> Result<(), String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output =
        Command::new("sh").args(["-c", script]).env("PATH", path).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(text(&output).trim().to_owned()) }
}

#[test]
fn two_machines_and_a_slow_cable_agree_with_one_machine() {
    let Some(cable) = SlowCable::new() else { return };
    let lab = Lab::new();
    let (seconds, clients, asked) = (scaled(3, 20) as f64, scaled(40, 500) as u64, scaled(50, 1_000) as u64);
    let scenario = plan("weir, none", seconds, clients, asked);
    let alone = lab.run(&scenario, "one", &[]).output().expect("it starts");
    let one = lab.result("one", &text(&alone));
    let [left, right] = [NetworkSide::Left, NetworkSide::Right].map(SlowCable::address);
    let generators = cable.network.within(NetworkSide::Left, || {
        // A machine whose monotonic clock is far ahead, where the kernel can do that.
        let mut ahead = match fs::exists("/proc/self/timens_offsets") {
            Ok(true) => Command::new("unshare"),
            _ => Command::new("env"),
        };
        if ahead.get_program() == "unshare" {
            ahead.args(["--time", "--monotonic", "100000", "--fork", "--kill-child"]);
        }
        ahead.args([WEIR, "bench", "agent"]);
        ahead.args(["--key", "key", "--listen", &format!("{left}:0"), "--cache", "ahead"]);
        ahead.current_dir(lab.directory.path());
        [lab.agent("left", left, &[]), lab.started(ahead)]
    });
    let servers = cable.network.within(NetworkSide::Right, || lab.agent("right", right, &[]));
    let flags = [
        "--key",
        "key",
        "--generator-on",
        &generators[0].address,
        "--generator-on",
        &generators[1].address,
        "--gateway-on",
        &servers.address,
        "--backend-on",
        &servers.address,
    ];
    let spread =
        cable.network.within(NetworkSide::Left, || lab.run(&scenario, "two", &flags).output().expect("it starts"));
    let two = lab.result("two", &text(&spread));
    assert_eq!(two["machines"].as_array().map(Vec::len), Some(3), "{}", text(&spread));
    for target in ["weir", "none"] {
        let (here, there) = (run_of(&one, "rate", target), run_of(&two, "rate", target));
        let (here_rate, there_rate) = (rate(here), rate(there));
        assert!((there_rate / here_rate - 1.0).abs() < 0.03, "{target}: {there_rate} and {here_rate}");
        assert!((there_rate / asked as f64 - 1.0).abs() < 0.03, "{target}: {there_rate} of {asked}");
        for share in there["generators"].as_array().expect("a list") {
            let late_us = share["late_us"].as_f64().expect("a number");
            let uncertain_us = share["clock_uncertainty_us"].as_f64().expect("a number");
            assert!(share["answered"].as_u64() > Some(0) && share.get("lost").is_none(), "{share}");
            // Far less than the clocks are apart; a machine may stand still for seconds.
            assert!(late_us < 60e6 && uncertain_us < 60e6, "{share}");
        }
        assert_eq!(there["load"]["total"]["errors"], here["load"]["total"]["errors"]);
        // A client that pauses sends less often the longer it waits, so this rate depends on the network.
        for (result, delay_s) in [(&one, 0.0), (&two, DELAY_MS * 2e-3)] {
            let run = run_of(result, "pauses", target);
            // Each client begins at once, and again after each pause and round trip.
            let most = clients.div_ceil(4) as f64 * (seconds / (0.1 + delay_s) + 1.0);
            assert!((1.0..=most).contains(&answered(run)), "{target}: {} and at most {most}", answered(run));
        }
    }
    let processes = run_of(&two, "rate", "weir")["processes"].as_array().expect("a list");
    let roles: Vec<&Value> = processes.iter().map(|process| &process["role"]).collect();
    assert_eq!(roles, ["target", "backend"], "from the agent of their machine");
}

/// A run that goes on until a test ends it.
fn long() -> String {
    plan("weir", 600.0, 4, 50)
}

/// Starts a long run on agents, and waits until the target and the backend are there and the load begins.
fn running(lab: &Lab, flags: &[&str], servers: &Agent) -> (Child, Vec<u32>) {
    let mut command = lab.run(&long(), "long", flags);
    let commander = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    eventually("their agent takes samples of the load", PATIENCE, || has_thread(servers.process.id(), "sampler"));
    let programs = servers.programs();
    for words in ["backend", " run "] {
        assert!(programs.iter().any(|pid| command_line(*pid).contains(words)), "{words} is among the programs");
    }
    (commander, programs)
}

#[test]
fn a_killed_commander_leaves_nothing_behind() {
    let lab = Lab::new();
    let (generator, servers) = (lab.agent("one", "127.0.0.1", &[]), lab.agent("two", "127.0.0.1", &[]));
    let flags = [
        "--key",
        "key",
        "--generator-on",
        &generator.address,
        "--gateway-on",
        &servers.address,
        "--backend-on",
        &servers.address,
    ];
    let (mut commander, programs) = running(&lab, &flags, &servers);
    commander.kill().expect("it is a child of ours");
    commander.wait().expect("it is a child of ours");
    eventually("all programs have ended", DEADLINE, || programs.iter().all(|pid| !runs(*pid)));
    // The agents serve the next commander.
    let scenario = plan("none", 1.0, 4, 50);
    let mut next = lab.run(&scenario, "next", &flags);
    eventually("the agents are free", PATIENCE, || {
        let output = next.output().expect("it starts");
        let is_busy = text(&output).contains("one at a time");
        assert!(is_busy || output.status.code().is_some_and(|code| code < 2), "{}", text(&output));
        !is_busy
    });
}

#[test]
fn a_killed_agent_of_the_gateway_leaves_nothing_and_the_result_says_so() {
    let lab = Lab::new();
    let mut servers = lab.agent("two", "127.0.0.1", &[]);
    let flags = ["--key", "key", "--gateway-on", &servers.address.clone(), "--backend-on", &servers.address.clone()];
    let (commander, programs) = running(&lab, &flags, &servers);
    servers.kill();
    // The load ends long before its time.
    eventually("the keeper has ended all programs", DEADLINE, || programs.iter().all(|pid| !runs(*pid)));
    let output = commander.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(2), "nothing was measured: {}", text(&output));
    assert!(text(&output).contains(&format!("{} is lost", servers.address)), "{}", text(&output));
}

#[test]
fn a_lost_generator_makes_the_figures_invalid() {
    let lab = Lab::new();
    let mut generators = ["one", "two"].map(|name| lab.agent(name, "127.0.0.1", &[]));
    let addresses = generators.each_ref().map(|agent| agent.address.clone());
    let servers = lab.agent("three", "127.0.0.1", &[]);
    let flags = [
        "--key",
        "key",
        "--generator-on",
        &addresses[0],
        "--generator-on",
        &addresses[1],
        "--gateway-on",
        &servers.address,
        "--backend-on",
        &servers.address,
    ];
    let scenario = plan("none", 5.0, 40, 100);
    let mut command = lab.run(&scenario, "long", &flags);
    let commander = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let process = generators[1].process.id();
    eventually("the generator has its orders", PATIENCE, || has_thread(process, "sampler"));
    generators[1].kill();
    let output = commander.wait_with_output().expect("it ends");
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("the agent at {} is lost", addresses[1])), "{printed}");
    let result = lab.result("long", &printed);
    let runs = result["cells"].as_array().expect("a list").iter().flat_map(|cell| cell["runs"].as_array()).flatten();
    let lost = runs.flat_map(|run| run["generators"].as_array()).flatten().filter(|share| share.get("lost").is_some());
    let machines: Vec<&Value> = lost.map(|share| &share["machine"]).collect();
    assert_eq!(machines, [&addresses[1]], "{printed}");
}

#[test]
fn an_agent_gives_no_program_its_environment() {
    let lab = Lab::new();
    let mut command = lab.command(&["agent", "--key", "key", "--listen", "127.0.0.1:0", "--cache", "one"]);
    command.env("A_SECRET", "of-the-user-of-the-agent");
    let agent = lab.started(command);
    let mut processes = children(agent.process.id());
    assert!(!processes.is_empty(), "its keeper");
    processes.push(agent.process.id());
    for pid in processes {
        // While a process begins another program, it has none.
        let environment = eventually_some("it has an environment", PATIENCE, || {
            let environment = fs::read(format!("/proc/{pid}/environ")).expect("it is a process of ours");
            Some(String::from_utf8_lossy(&environment).into_owned()).filter(|text| text.contains("PATH="))
        });
        assert!(!environment.contains("A_SECRET"), "{environment}");
    }
}

/// Whether a process has a thread of this name.
fn has_thread(pid: u32, name: &str) -> bool {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_it = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name);
    tasks.any(is_it)
}

#[test]
fn a_program_that_the_agent_does_not_list_is_not_started() {
    let lab = Lab::new();
    let servers = lab.agent("two", "127.0.0.1", &[]);
    let flags = ["--key", "key", "--gateway-on", &servers.address, "--backend-on", &servers.address];
    let refused = lab.started(lab.command(&["agent", "--key", "key", "--listen", "127.0.0.1:0", "--cache", "none"]));
    let other = ["--key", "key", "--gateway-on", &refused.address, "--backend-on", &refused.address];
    let printed = text(&lab.run(&plan("weir", 1.0, 4, 50), "refused", &other).output().expect("it starts"));
    assert!(printed.contains("weir is not in the list of the agent"), "{printed}");
    let scenario = plan("weir, nginx", 1.0, 4, 50);
    let output = lab.run(&scenario, "run", &flags).output().expect("it starts");
    let printed = text(&output);
    let words = "nginx is not in the list of the agent; its owner adds it by --program nginx=PATH";
    assert!(printed.contains(words), "{printed}");
    let result = lab.result("run", &printed);
    assert!(rate(run_of(&result, "rate", "weir")) > 0.0);
}

#[test]
fn another_key_or_none_is_refused_before_anything_starts() {
    let lab = Lab::new();
    let servers = lab.agent("two", "127.0.0.1", &[]);
    let made = lab.command(&["agent", "--new-key", "other"]).output().expect("it starts");
    assert!(made.status.success(), "{}", text(&made));
    let ended = |flags: &[&str]| {
        let output = lab.run(&plan("none", 1.0, 1, 10), "run", flags).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        text(&output)
    };
    let printed = ended(&["--key", "other", "--gateway-on", &servers.address]);
    assert!(printed.contains("has another key: both machines need a copy of the same key file"), "{printed}");
    let printed = ended(&["--gateway-on", &servers.address]);
    assert!(printed.contains("--key <FILE>"), "{printed}");
    let printed = ended(&["--key", "key"]);
    assert!(printed.contains("--gateway-on"), "{printed}");
    let printed = ended(&["--key", "key", "--gateway-on", &servers.address, "--valgrind"]);
    assert!(printed.contains("--valgrind"), "{printed}");
    assert!(servers.programs().is_empty());
}

#[test]
fn a_run_behind_a_network_with_a_delay_waits_for_it() {
    let lab = Lab::new();
    let scenario = plan("weir", 1.0, 4, 50);
    let output = lab.run(&scenario, "slow", &["--delay", "10ms"]).output().expect("it starts");
    let printed = text(&output);
    if output.status.code() == Some(2) {
        let is_named = ["/dev/net/tun", "package", "root"].iter().any(|word| printed.contains(word));
        assert!(printed.contains("network: ") && is_named, "it says what is missing: {printed}");
        skipped(printed.lines().next().unwrap_or_default());
        return;
    }
    let result = lab.result("slow", &printed);
    let run = run_of(&result, "rate", "weir");
    let in_flight = run["load"]["generator"]["in_flight_mean"].as_f64().expect("a number");
    // Little's law: each request is in flight for at least two delays.
    assert!(in_flight >= rate(run) * DELAY_MS * 2e-3 * 0.97, "{in_flight}");
}

#[test]
fn two_versions_of_a_program_take_turns() {
    let lab = Lab::new();
    let started = lab.directory.join("started");
    let wrapper = format!("#!/bin/sh\necho \"$1\" >> {}\nexec {WEIR} \"$@\"\n", started.display());
    let old = script(&lab.directory, "old", &wrapper);
    let scenario = plan("weir@old, weir", 1.0, 4, 50).replace("repeats: 1", "slices: 2, repeats: 1");
    let program = format!("weir@old={}", old.display());
    let output = lab.run(&scenario, "both", &["--row", "rate", "--program", &program]).output().expect("it starts");
    let result = lab.result("both", &text(&output));
    for target in ["weir@old", "weir"] {
        let run = run_of(&result, "rate", target);
        assert!(answered(run) > 0.0, "{target}: {}", text(&output));
        assert_eq!(run["slices"].as_array().map(Vec::len), Some(2), "{target} has had its turns");
    }
    let started = fs::read_to_string(lab.directory.join("started")).expect("the old version has left it");
    assert!(started.lines().any(|command| command == "run"), "{started}");
    let output = lab.run(&scenario, "none", &["--row", "rate"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("--program weir@old=PATH"), "{}", text(&output));
}
