use std::process::{Child, Command, Stdio};

use crate::result::Instructions;

/// Whether `perf stat` can count instructions on this machine; virtual machines often have no counters.
pub fn available() -> bool {
    let output = Command::new("perf").args(["stat", "-x,", "-e", "instructions:u", "true"]).output();
    output.is_ok_and(|output| parse(&String::from_utf8_lossy(&output.stderr)).is_some_and(|counts| counts.user > 0))
}

/// A `perf stat` of running processes.
pub(super) struct Counting(Child);

impl Counting {
    /// Counts for `seconds` from now.
    pub(super) fn start(pids: &[u32], seconds: f64) -> Option<Counting> {
        let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let seconds = format!("{seconds}");
        let arguments = ["stat", "-x,", "-e", "instructions:u,instructions:k", "-p", &list, "--", "sleep", &seconds];
        let child = Command::new("perf")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        child.ok().map(Counting)
    }

    pub(super) fn finish(self) -> Option<Instructions> {
        let output = self.0.wait_with_output().ok()?;
        parse(&String::from_utf8_lossy(&output.stderr))
    }
}

/// Reads `count,unit,event,…` lines; `<not supported>` is not a count.
fn parse(text: &str) -> Option<Instructions> {
    let mut counts = Instructions::default();
    let mut found = false;
    for line in text.lines() {
        let mut fields = line.split(',');
        let (Some(count), _, Some(event)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let Ok(count) = count.parse::<u64>() else { continue };
        match event {
            "instructions:u" => counts.user = count,
            "instructions:k" => counts.kernel = count,
            _ => continue,
        }
        found = true;
    }
    found.then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counts_and_their_absence() {
        let counts = parse("1234,,instructions:u,100,100.00,,\n99,,instructions:k,100,100.00,,\n").unwrap();
        assert_eq!((counts.user, counts.kernel), (1234, 99));
        assert!(parse("<not supported>,,instructions:u,0,100.00,,\n").is_none());
    }
}
