//! HTTP/3 by the client of ngtcp2 as it comes with Debian, with GnuTLS: other addresses, new keys, sessions, and settings that other
//! clients do not have.

use weir_testkit::{Origin, Program};

use crate::client::NAME;
use crate::programs::{accepted, origin};
use crate::{Served, file, serve_names};

/// The name that this client asks for whenever it is given an address.
const LOCAL: &str = "localhost";

/// The requests of each connection.
const OBJECTS: usize = 20;

struct Serving {
    origin: Origin,
    served: Served,
}

impl Serving {
    /// A gateway with two workers, so that a datagram that came to the wrong one would not be understood.
    fn start() -> Serving {
        let origin = origin();
        let served = serve_names(&[NAME, LOCAL], |identity| {
            let names = [format!("snis: [{NAME}]"), format!("snis: [{NAME}, {LOCAL}]")];
            file(identity, &origin, "worker_processes: 2\n").replace(&names[0], &names[1])
        });
        Serving { origin, served }
    }

    /// Asks for the objects over a connection with these options, and returns the log of the client; `None` if it is not installed.
    fn ask(&self, options: &[&str]) -> Option<String> {
        let mut command = Program::find("gtlsclient")?;
        let address = self.served.gateway.tls_addr();
        command.args(["--no-quic-dump", "--exit-on-all-streams-close"]).args(options);
        command.args([address.ip().to_string(), address.port().to_string()]);
        command.args((0..OBJECTS).map(|number| format!("https://{NAME}/object/{number}")));
        let before = (self.origin.requests().len(), accepted(&self.served));
        let output = command.output().expect("it is installed");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options:?}: {said}");
        assert_eq!(said.matches("[:status: 200]").count(), OBJECTS, "{options:?}: {said}");
        let after = (self.origin.requests().len(), accepted(&self.served));
        assert_eq!(after, (before.0 + OBJECTS, before.1 + 1), "{options:?}: {said}");
        Some(said.into_owned())
    }
}

/// The requests wait, so that the client does before what it is told to do after 100 ms.
const WAITS: &str = "--delay-stream=1s";

#[test]
fn ngtcp2_moves_to_another_address() {
    let Some(said) = Serving::start().ask(&[WAITS, "--change-local-addr=100ms"]) else { return };
    assert!(said.contains("Path validation against path") && said.contains("succeeded"), "{said}");
}

#[test]
fn ngtcp2_keeps_its_connection_behind_a_nat_that_changes_its_port() {
    let Some(said) = Serving::start().ask(&[WAITS, "--change-local-addr=100ms", "--nat-rebinding"]) else { return };
    // The gateway asks for a proof of the new address.
    let has = |direction: &str, frame: &str| said.lines().any(|line| line.contains(direction) && line.contains(frame));
    assert!(has("frm rx", "PATH_CHALLENGE") && has("frm tx", "PATH_RESPONSE"), "{said}");
}

#[test]
fn ngtcp2_takes_new_keys() {
    let Some(said) = Serving::start().ask(&[WAITS, "--key-update=100ms"]) else { return };
    assert!(said.contains("key update confirmed"), "{said}");
}

#[test]
fn ngtcp2_resumes_a_session_and_its_early_data_is_refused() {
    let serving = Serving::start();
    let path = |name: &str| serving.served.gateway.directory().join(name).display().to_string();
    let (session, parameters) =
        (format!("--session-file={}", path("session")), format!("--tp-file={}", path("parameters")));
    let options = [&*session, &*parameters];
    if serving.ask(&options).is_none() {
        return;
    }
    let said = serving.ask(&options).expect("it is installed");
    assert!(said.contains("Early data was rejected by server"), "{said}");
    let resumed = serving.served.gateway.metrics().sum("weir_tls_handshakes_total", &["outcome=\"resumed\""]);
    assert_eq!(resumed as u64, 1);
}

#[test]
fn ngtcp2_agrees_on_a_version() {
    let Some(said) = Serving::start().ask(&["--version=0x1a2a3a4a", "--preferred-versions=v1"]) else { return };
    assert!(said.contains("VN v=0x00000001"), "{said}");
}

#[test]
fn ngtcp2_has_unusual_settings() {
    let serving = Serving::start();
    let ciphers = "--ciphers=NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305";
    for options in [
        &["--scid="][..], // a connection id of no bytes
        &["--dcid=000102030405060708090a0b0c0d0e0f1011"],
        &["--max-udp-payload-size=1200", "--no-pmtud"],
        &["--ack-thresh=20"],
        &["--max-data=200", "--max-stream-data-bidi-local=100"],
        &["--groups=-GROUP-ALL:+GROUP-SECP384R1"],
        &[ciphers],
    ] {
        if serving.ask(options).is_none() {
            return;
        }
    }
}
