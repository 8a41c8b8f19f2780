//! `weir backend`: the built-in backends from the command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::backend::behaviour::parse_duration;
use crate::backend::{BackendAnswer, BackendDelay, BackendServer, Behaviour, Config, InjectedFailure, TlsFiles};
use crate::cli::print::out;
use crate::engine::allow_files;

/// Run a test backend with configurable answers: constant, sized, echoed, slow or failing; HTTP/1.1, HTTP/2 and gRPC,
/// WebSocket and server-sent events, with or without TLS.
///
/// Some paths behave the same whatever the options are: /echo, /bytes/N, /status/N, /delay/10ms, /cpu/50us,
/// /sse?rate=10&bytes=82. WebSocket messages are echoed, and reversed when the path ends in /reverse.
#[derive(Clone, Debug, clap::Args)]
pub struct BackendArguments {
    /// Address to listen on; give several for several backends in one process
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: Vec<SocketAddr>,
    /// Number of threads; each accepts connections by itself
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// The answer: ok (nginx's `return 200 'OK'`), echo, or a size such as 1KiB
    #[arg(short, long, default_value_t = BackendAnswer::Ok)]
    answer: BackendAnswer,
    /// Delay of answers: 10ms, 5ms..50ms, exp:20ms, bimodal:1ms,100ms@0.05, alternate:5ms,50ms/10s, stall:1s/10s
    #[arg(long, value_name = "DELAY")]
    delay: Option<BackendDelay>,
    /// Processor time to use per request, such as 50us
    #[arg(long, value_name = "TIME", value_parser = time)]
    work: Option<Duration>,
    /// Fail a share of the requests: 1%:503, 1%:close, 1%:reset, 1%:hang
    #[arg(long, value_name = "SHARE:HOW")]
    fail: Option<InjectedFailure>,
    /// Use TLS, with a certificate generated at start unless --cert and --key are given
    #[arg(long)]
    tls: bool,
    /// Certificate chain, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// Runs the backend until the process is ended.
pub fn main(args: BackendArguments) -> ExitCode {
    let tls = match (args.cert, args.key) {
        (Some(certificate), Some(key)) => Some(TlsFiles::Files { certificate, key }),
        _ => args.tls.then_some(TlsFiles::SelfSigned),
    };
    let config = Config {
        listen: args.listen,
        threads: args.threads,
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
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    for address in backend.addresses() {
        out!("listening on {scheme}://{address}");
    }
    loop {
        std::thread::park();
    }
}

fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| format!("{text:?} is not a time; try 50us, 10ms or 2s"))
}
