//! `make run`: starts weir before a small backend in this process, and sends a first request through it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, thread, time::Duration};

use crate::Problems;

/// What it starts with, kept where it can be edited without changing the checkout.
const EXAMPLE: &str = "demo/weir.yaml";
const FILE: &str = "weir.yaml";

/// Runs the weir that was built beside this program, until interrupted. With `once`: on ports that are free, until the first answer.
pub(crate) fn demo(once: bool) -> Result<(), Problems> {
    let failed = |error: std::io::Error| vec![error.to_string()];
    let binary = std::env::current_exe().map_err(failed)?.with_file_name("weir");
    if !binary.is_file() {
        return Err(vec![format!("{} is not built; `make run` builds it", binary.display())]);
    }
    let here = std::env::current_dir().map_err(failed)?;
    let shown = binary.strip_prefix(&here).unwrap_or(&binary);
    let copy = |to: &Path, text: &str| fs::write(to, text).map_err(|error| vec![format!("{}: {error}", to.display())]);
    let example = fs::read_to_string(EXAMPLE).map_err(|error| vec![format!("{EXAMPLE}: {error}")])?;
    if once {
        let file = binary.with_file_name(FILE);
        copy(&file, &example.replace("127.0.0.1:9080", "127.0.0.1:0").replace("127.0.0.1:7085", "127.0.0.1:0"))?;
        return run(shown, &file.display().to_string(), true);
    }
    if !Path::new(FILE).exists() {
        copy(Path::new(FILE), &example)?;
    }
    run(shown, FILE, false)
}

/// Runs a binary with a file before a backend of its own.
pub(crate) fn run(binary: &Path, file: &str, once: bool) -> Result<(), Problems> {
    let backend = backend().map_err(|error| vec![format!("the demo backend: {error}")])?;
    let mut weir = Command::new(binary)
        .args(["run", file])
        .env("DEMO_BACKEND", backend.to_string())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| vec![format!("weir: {error}")])?;
    let stderr = BufReader::new(weir.stderr.take().expect("stderr is piped"));
    let check = format!("{} check {file}", binary.display());
    let outcome = follow(stderr, &check, once);
    if once {
        // It may have ended already; there is nothing more to wait for either way.
        let _ = weir.kill();
    }
    let status = weir.wait().map_err(|error| vec![format!("weir: {error}")])?;
    match outcome {
        Ok(()) if once || status.success() => Ok(()),
        Ok(()) => Err(vec![format!("weir ended: {status}")]),
        Err(problems) => Err(problems),
    }
}

/// Passes on what weir says, and once it is ready asks it something. Returns when weir has ended, or after the first
/// answer.
fn follow(stderr: impl BufRead, check: &str, once: bool) -> Result<(), Problems> {
    let (mut listens, mut status) = (None, None);
    let address =
        |line: &str, before: &str| -> Option<SocketAddr> { line.strip_prefix(before)?.split(' ').next()?.parse().ok() };
    let mut answered = false;
    for line in stderr.lines().map_while(Result::ok) {
        eprintln!("{line}");
        listens = listens.or_else(|| address(&line, "weir: listening on "));
        status = status.or_else(|| address(&line, "weir: status on "));
        if line.starts_with("weir: ready")
            && let (Some(listens), Some(status)) = (listens, status)
        {
            first_request(listens, status, check).map_err(|error| vec![format!("the first request: {error}")])?;
            answered = true;
            if once {
                return Ok(());
            }
        }
    }
    if answered { Ok(()) } else { Err(vec!["weir ended before it was ready; see above".to_owned()]) }
}

fn first_request(listens: SocketAddr, status: SocketAddr, check: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(listens)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("GET /hello HTTP/1.1\r\nHost: {listens}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let mut text = String::new();
    let _ = writeln!(text, "\nGET http://{listens}/hello, through weir to a backend and back:\n");
    for line in answer.lines() {
        let _ = writeln!(text, "    {line}");
    }
    let _ = write!(
        text,
        "
Try next, from another terminal:

    curl -i http://{listens}/anything            # through weir to the demo backend
    curl -i http://{listens}/fixed               # answered by weir itself (the mocking plugin)
    curl -N http://{listens}/events              # a stream, event by event; Ctrl-C ends it
    curl http://{status}/status                  # the configuration each worker serves
    curl http://{status}/metrics                 # everything it counts
    {check}                   # whether the file is valid, and what is wrong with it

Edit the file and save: the next request is served by the new version. A mistake is refused whole and named here,
and the last good version keeps serving. Ctrl-C stops. This build is not optimised: measure the one of `make release`.
"
    );
    println!("{text}");
    Ok(())
}

/// A backend that says what it was asked, with a thread for each connection.
fn backend() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A peer that goes away ends its connection and nothing else.
            thread::spawn(move || serve(&stream));
        }
    });
    Ok(address)
}

fn serve(stream: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        std::io::copy(&mut (&mut reader).take(length.unwrap_or(0)), &mut std::io::sink())?;
        let mut out = stream;
        if head.starts_with("GET /events ") {
            return events(out);
        }
        let body = format!("The demo backend was asked:\n\n{}", head.trim_end().replace('\r', "")) + "\n";
        let fields = format!("Content-Type: text/plain\r\nContent-Length: {}", body.len());
        out.write_all(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{body}").as_bytes())?;
    }
}

/// One event a second until the client leaves.
fn events(mut out: &TcpStream) -> std::io::Result<()> {
    out.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    for number in 1_u64.. {
        let event = format!("data: event {number}\n\n");
        out.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())?;
        thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}
