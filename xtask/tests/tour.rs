//! What `make run` prints to try next, tried as it is printed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use weir_testkit::{TempDir, skipped};

/// The demo with its gateway, ended with the test.
struct Demo(std::process::Child);

impl Drop for Demo {
    fn drop(&mut self) {
        // As Ctrl-C does: the whole group.
        let _ = Command::new("kill").args(["-INT", "--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

/// What a line prints, up to this answer or to its end: the stream has no end of its own.
fn said(line: &str, answer: &str) -> String {
    let mut shell = Command::new("timeout");
    let mut shell =
        shell.args(["60", "sh", "-c", &format!("exec 2>&1\n{line}")]).stdout(Stdio::piped()).spawn().expect("a shell");
    let mut output = BufReader::new(shell.stdout.take().expect("it is piped"));
    let mut said = Vec::new();
    let has_answer = |said: &[u8]| String::from_utf8_lossy(said).contains(answer);
    while !has_answer(&said) && output.read_until(b'\n', &mut said).expect("a pipe can be read") > 0 {}
    // What goes on to write ends, since nothing reads it any more.
    drop(output);
    let _ = shell.wait();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn every_line_of_the_tour_works_as_printed() {
    let binary = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("weir");
    if !binary.exists() {
        return skipped("`weir` is not built");
    }
    let place = TempDir::new();
    // Any free ports, so that several can run.
    let file = include_str!("../../demo/weir.yaml").replace("127.0.0.1:9080", "127.0.0.1:0").replace(":7085", ":0");
    let file = place.write("weir.yaml", file);
    let mut demo = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let log = place.path().join("stderr");
    demo.args(["demo", "--binary"]).arg(&binary).arg(&file).stdout(Stdio::piped());
    demo.stderr(std::fs::File::create(&log).expect("the directory is ours"));
    demo.process_group(0);
    let mut demo = Demo(demo.spawn().expect("it was built"));
    let printed = BufReader::new(demo.0.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let tour = printed.skip_while(|line| !line.starts_with("Try next")).take_while(|line| !line.starts_with("Edit"));
    let tour: Vec<String> = tour.filter(|line| line.starts_with("    ")).collect();
    let expected = [
        ("/anything", "The demo backend was asked:"),
        ("/fixed", "This answer stands in weir.yaml"),
        ("/events", "data: event 1"),
        ("/status", "\"revision\""),
        ("/metrics", "weir_http_requests_total"),
        (" check ", "is valid"),
    ];
    assert_eq!(tour.len(), expected.len(), "{tour:?}");
    for (line, (part, answer)) in tour.iter().zip(expected) {
        assert!(line.contains(part), "{line}");
        let said = said(line, answer);
        // What weir logged names the cause, such as the first failure of an endpoint.
        assert!(said.contains(answer), "{line}: {said}\n{}", std::fs::read_to_string(&log).unwrap_or_default());
    }
}
