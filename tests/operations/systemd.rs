//! What a service manager sees: sd_notify(3) and sd_listen_fds(3).

use std::fs;
use std::iter;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use weir_control::document::WrittenDocument;
use weir_control::text::yaml::TextLimits;
use weir_testkit::{DEADLINE, Gateway, Signal, TempDir, eventually_some};

use crate::load::{origin, routes};
use crate::{script, weir};

/// The service manager's end of the notification socket.
struct Manager {
    socket: UnixDatagram,
    place: TempDir,
}

impl Manager {
    fn new() -> Manager {
        let place = TempDir::new();
        let socket = UnixDatagram::bind(place.join("notify")).expect("its own directory");
        socket.set_read_timeout(Some(DEADLINE)).expect("not zero");
        Manager { socket, place }
    }

    fn address(&self) -> String {
        self.place.join("notify").to_str().expect("ASCII").to_owned()
    }

    /// Waits for a message with a line that begins so, and returns the rest of the line.
    #[track_caller]
    fn wait(&self, beginning: &str) -> String {
        iter::from_fn(|| {
            let mut message = [0; 4096];
            let length = self.socket.recv(&mut message).unwrap_or_else(|error| panic!("no {beginning}: {error}"));
            Some(String::from_utf8_lossy(&message[..length]).into_owned())
        })
        .find_map(|message| message.lines().find_map(|line| line.strip_prefix(beginning).map(str::to_owned)))
        .expect("the sequence does not end")
    }
}

#[test]
fn the_service_manager_hears_of_every_turn() {
    let (origin, manager) = (origin(), Manager::new());
    let mut gateway = weir().env("NOTIFY_SOCKET", &manager.address()).start(&routes(&origin));
    manager.wait("READY=1");
    gateway.signal(Signal::HUP);
    manager.wait("RELOADING=1");
    manager.wait("READY=1");
    gateway.replace_file("routes: nonsense\n");
    gateway.signal(Signal::HUP);
    manager.wait("RELOADING=1");
    manager.wait("READY=1");
    gateway.replace_file(&routes(&origin));
    gateway.signal(Signal::USR2);
    // From two processes, in either order.
    let main: u64 = manager.wait("MAINPID=").parse().expect("a number");
    assert!(gateway.wait_exit(DEADLINE).success());
    let now = eventually_some("the new process serves", DEADLINE, || gateway.status()["pid"].as_u64());
    assert_eq!(main, now);
    let process = rustix::process::Pid::from_raw(main as i32).expect("not 0");
    rustix::process::kill_process(process, Signal::TERM).expect("it runs");
    manager.wait("STOPPING=1");
}

/// A node that stops waits until load balancers have noticed, finishes its exchanges, and delivers its last metrics and records.
#[test]
fn the_unit_leaves_a_node_the_time_to_stop() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let read = |name: &str| fs::read_to_string(deploy.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let unit = read("weir.service");
    let limit = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s'));
    let limit: u64 = limit.expect("the unit has a limit").parse().expect("seconds");
    let installed = WrittenDocument::parse("weir.yaml", &read("weir.yaml"), &|_| None, TextLimits::default());
    let settings = installed.expect("YAML").without_secrets().settings;
    let stopping = (settings.shutdown_delay + settings.worker_shutdown_timeout).as_secs();
    assert!(stopping >= 40, "the installed file and the default: {stopping} s");
    // 3 s for metrics and 5 s for log records.
    assert!(limit >= stopping + 8, "{limit} s are not enough for {stopping} s and the last metrics and records");
}

#[test]
fn the_watchdog_is_fed_also_after_an_upgrade() {
    let (origin, manager) = (origin(), Manager::new());
    let mut gateway =
        weir().env("NOTIFY_SOCKET", &manager.address()).env("WATCHDOG_USEC", "100000").start(&routes(&origin));
    manager.wait("WATCHDOG=1");
    gateway.signal(Signal::USR2);
    // Read while the processes change places: a manager that does not listen holds them up.
    manager.wait("MAINPID=");
    assert!(gateway.wait_exit(DEADLINE).success());
    manager.wait("WATCHDOG=1");
}

#[test]
fn sockets_of_the_service_manager_are_served_and_not_opened_again() {
    let origin = origin();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let addr = listener.local_addr().expect("it is bound");
    let fd = listener.as_raw_fd();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).expect("it is open");
    let place = TempDir::new();
    let script = script(
        &place,
        "weir",
        &format!(
            "#!/bin/bash\nexec 3<&{fd}\n[ {fd} = 3 ] || exec {fd}<&-\nLISTEN_PID=$$ LISTEN_FDS=1 exec {} \"$@\"\n",
            env!("CARGO_BIN_EXE_weir")
        ),
    );
    let gateway =
        Gateway::with_binary(script).start(&format!("listen: [\"{addr}\"]\nworker_processes: 2\n{}", routes(&origin)));
    assert_eq!(gateway.addr(), addr);
    drop(listener);
    for _ in 0..20 {
        assert_eq!(gateway.get("/a").text(), "GET /a 0");
    }
}
