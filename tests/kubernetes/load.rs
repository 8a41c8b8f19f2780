//! Load on a node, by `weir load`.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weir_testkit::{DEADLINE, TempDir, eventually};

/// Requests that are sent until this value is asked for the result.
pub(crate) struct Load {
    child: Child,
    directory: TempDir,
    words: String,
}

impl Load {
    /// `words` are those of `weir load`, without a count or a time.
    #[track_caller]
    pub(crate) fn start(words: &str) -> Load {
        let directory = TempDir::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("load").args(words.split_whitespace()).args(["--duration", "1h", "--quiet"]);
        // A process may stand still for longer than the usual time-outs; an answer that is lost is an error all the same.
        command.args(["--timeout", "60s", "--connect-timeout", "60s", "--json"]);
        command.arg(directory.join("result.json")).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let load = Load { child, directory, words: words.to_owned() };
        eventually("it can be interrupted", DEADLINE, || load.catches_interrupts());
        load
    }

    /// Whether it has begun to catch SIGINT, which would be ignored before, or kill it.
    fn catches_interrupts(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap_or_default();
        caught & (1 << (Signal::INT.as_raw() - 1)) != 0
    }

    /// Ends the load, waits for the answers that are on their way, and returns what was measured.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Value {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        let status = self.child.wait().expect("it is a child of ours");
        assert!(status.success(), "{}: {status}", self.words);
        let text = std::fs::read_to_string(self.directory.join("result.json")).expect("it has been written");
        serde_json::from_str(&text).expect("it is JSON")
    }

    /// The same; each request must have been answered as expected, on connections that only this side has closed. Returns their
    /// number.
    #[track_caller]
    pub(crate) fn finish_unharmed(self) -> u64 {
        let words = self.words.clone();
        let mut result = self.finish();
        let mut total = result["total"].take();
        // Long, and no failure.
        for histogram in ["latency", "service_time", "lag"] {
            total[histogram].take();
        }
        let count = |value: &Value| value.as_u64().expect("a count");
        let no_errors = |errors: &Value| errors.as_object().expect("counts").values().all(|causes| count(causes) == 0);
        // What is due at the moment of the end is not sent any more.
        let sent = count(&total["due"]) - count(&total["missed"]);
        let is_whole = count(&total["completed"]) == sent && count(&total["unexpected"]) == 0;
        assert!(is_whole && no_errors(&total["errors"]), "{words}: {total}");
        let failed = &result["connections"]["failed"];
        assert!(no_errors(failed), "{words}: {failed}");
        count(&total["completed"])
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Fails if it has ended, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
