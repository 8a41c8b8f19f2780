//! `weir backend`: the built-in backends from the command line.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::backend::behaviour::parse_duration;
use crate::backend::{
    BackendAnswer, BackendCarries, BackendDelay, BackendServer, Behaviour, Config, InjectedFailure, TlsFiles,
};
use crate::cli::print::out;
use crate::engine::allow_files;
use crate::errors::ValueError;

/// Runs a test backend with configurable responses: fixed, of a given size, echoed, slow or failing; for HTTP/1.1, HTTP/2,
/// gRPC, WebSocket and server-sent events, with or without TLS.
///
/// Some paths do not depend on the options: /echo, /bytes/N, /status/N, /delay/10ms, /cpu/50us, /sse?rate=10&bytes=82.
/// WebSocket messages are echoed, or reversed if the path ends in /reverse. With --protocol tcp or udp, there is no HTTP. After
/// SIGTERM it accepts nothing more, and ends once open requests are answered, or after 10 s.
#[derive(Clone, Debug, clap::Args)]
pub struct BackendArguments {
    /// The address to listen on. Given several times, one process runs several backends
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: Vec<SocketAddr>,
    /// The number of threads, each with its own connections
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// What connections carry
    #[arg(short, long, value_enum, default_value_t = BackendCarries::Http)]
    protocol: BackendCarries,
    /// The response: `ok` (the text OK), `echo` (the body of the request), or a size such as 1KiB
    #[arg(short, long, default_value_t = BackendAnswer::Ok)]
    answer: BackendAnswer,
    /// The delay of responses: 10ms, 5ms..50ms (uniform), exp:20ms (exponential), bimodal:1ms,100ms@0.05 (5 % are slow),
    /// alternate:5ms,50ms/10s (changes every 10 s), stall:1s/10s (a stall of 1 s every 10 s)
    #[arg(long, value_name = "DELAY")]
    delay: Option<BackendDelay>,
    /// The processor time to use for each request, such as 50us
    #[arg(long, value_name = "TIME", value_parser = time)]
    work: Option<Duration>,
    /// Fails a share of the requests: 1%:503 (a status), 1%:close, 1%:reset (the connection), 1%:hang (no response)
    #[arg(long, value_name = "SHARE:HOW")]
    fail: Option<InjectedFailure>,
    /// Uses TLS, with a certificate that is generated at start, unless --cert and --key are given
    #[arg(long)]
    tls: bool,
    /// The certificate chain, as a PEM file
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The private key, as a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// Runs the backend until the process is asked to end.
pub fn main(args: BackendArguments) -> ExitCode {
    let tls = match (args.cert, args.key) {
        (Some(certificate), Some(key)) => Some(TlsFiles::Files { certificate, key }),
        _ => args.tls.then_some(TlsFiles::SelfSigned),
    };
    let config = Config {
        listen: args.listen,
        threads: args.threads,
        carries: args.protocol,
        behaviour: Behaviour {
            answer: args.answer,
            delay: args.delay.unwrap_or_default(),
            work_ns: args.work.map_or(0, |time| time.as_nanos() as u64),
            failure: args.fail,
        },
        tls,
    };
    // As many connections as the limit of the system allows.
    let _ = allow_files(1 << 20);
    let backend = match BackendServer::start(&config) {
        Ok(backend) => backend,
        Err(error) => {
            eprintln!("weir backend: {error}");
            return ExitCode::FAILURE;
        }
    };
    let scheme = match (config.carries, config.tls.is_some()) {
        (BackendCarries::Http, false) => "http",
        (BackendCarries::Http, true) => "https",
        (BackendCarries::Tcp, false) => "tcp",
        (BackendCarries::Tcp, true) => "tls",
        (BackendCarries::Udp, _) => "udp",
    };
    // The signal is caught before others learn that it may be sent.
    let (runtime, mut term) = match catch_term() {
        Ok(caught) => caught,
        Err(error) => {
            eprintln!("weir backend: cannot wait for SIGTERM: {error}");
            return ExitCode::FAILURE;
        }
    };
    for address in backend.addresses() {
        out!("listening on {scheme}://{address}");
    }
    runtime.block_on(term.recv());
    backend.drain();
    ExitCode::SUCCESS
}

/// Catches SIGTERM from now on; the signal is received on the runtime.
fn catch_term() -> io::Result<(Runtime, Signal)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let term = runtime.block_on(async { signal(SignalKind::terminate()) })?;
    Ok((runtime, term))
}

fn time(text: &str) -> Result<Duration, ValueError> {
    parse_duration(text).ok_or_else(|| ValueError::new(text, "a time", "50us, 10ms or 2s"))
}
