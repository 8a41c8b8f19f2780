//! Replays what fuzzing has found, as it is and with small changes, on a stable toolchain: a few seconds in every
//! `make test`. The changes follow from a fixed seed, so that a failure happens again. With FUZZ_SECONDS, each target goes on for as long.

#[path = "targets.rs"]
mod targets;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, panic};

use weir_testkit::scaled;

/// Changed copies tried for each file of a corpus, and with full counts.
const CHANGES: (usize, usize) = (500, 2000);
/// Inputs tried of each corpus; what fuzzing keeps can be thousands.
const MOST: usize = 2000;
/// The longest input that is changed further.
const LONGEST: usize = 4096;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.truncate(MOST);
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("a readable file"))).collect()
}

/// xorshift64*: enough to choose where to cut and what to write.
struct BalancerRandom(u64);

impl BalancerRandom {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

/// Bytes and words that parsers stumble over.
const ODD: &[&[u8]] = &[
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b"/",
    b"%2f",
    b"%00",
    b"..",
    b";",
    b"\xff",
    b"0",
    b"\"",
    b"chunked",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"[",
    b"]",
    b"{",
    b"}",
    b"${{A:=",
    b"&a *a",
];

fn changed(data: &[u8], other: &[u8], dice: &mut BalancerRandom) -> Vec<u8> {
    let mut out = data.to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(out.len() + 1);
        match dice.below(5) {
            0 => out.truncate(at),
            1 if at < out.len() => out[at] = dice.below(256) as u8,
            2 => drop(out.splice(at..at, ODD[dice.below(ODD.len())].iter().copied())),
            3 if at < out.len() => drop(out.remove(at)),
            _ => {
                let from = dice.below(other.len() + 1);
                let count = dice.below(32).min(other.len() - from);
                out.splice(at..at, other[from..from + count].iter().copied());
            }
        }
    }
    out
}

fn replay(name: &str) {
    let (_, target) = targets::ALL.iter().find(|(own, _)| *own == name).expect("a target of this name");
    let corpus = corpus(name);
    let mut dice = BalancerRandom(0x9E37_79B9_7F4A_7C15);
    let changes = scaled(CHANGES.0, CHANGES.1);
    for (path, data) in &corpus {
        run(target, data, &path.display().to_string());
        for _ in 0..changes {
            let other = &corpus[dice.below(corpus.len())].1;
            run(target, &changed(data, other, &mut dice), &format!("{}, changed", path.display()));
        }
    }
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (start, mut count) = (Instant::now(), 0_u64);
    // Changes of changes lead further away from the corpus.
    let mut data = corpus[0].1.clone();
    while start.elapsed() < Duration::from_secs(seconds) {
        if dice.below(16) == 0 || data.len() > LONGEST {
            data.clone_from(&corpus[dice.below(corpus.len())].1);
        }
        data = changed(&data, &corpus[dice.below(corpus.len())].1, &mut dice);
        run(target, &data, "changed again");
        count += 1;
    }
    println!("{name}: {count} more inputs");
}

fn run(target: &targets::Target, data: &[u8], what: &str) {
    if panic::catch_unwind(|| target(data)).is_err() {
        panic!("{what}: {}", data.escape_ascii());
    }
}

/// A test for each target.
macro_rules! replays {
    ($($name:ident)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )*
    };
}

replays! {
    request_head response_head h2_head h2_connection h2_frames hpack qpack h3_message h3_streams chunked path vars configuration include edit proxy_header mqtt_connect template
    cached_response
    json xml wasm_pairs wasm_host_calls body_values body_template graphql lua oas_definition prompts grpc_web proto_text transcoding bulk_answer otlp_answer journal kafka_batch websocket_frames websocket_deflate event_stream
    trace_context convert log_lines minisign folded_stacks
}

#[test]
fn every_target_is_replayed() {
    let names: Vec<&str> = targets::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(REPLAYED, names);
}
