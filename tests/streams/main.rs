//! Stream routes: connections without HTTP, from the client's first byte to the log record.

mod lifecycle;
mod limits;
mod mqtt;
mod peers;
mod protocols;
mod records;
#[path = "../plugins/redis.rs"]
#[expect(dead_code, reason = "the tests of limits use more of it")]
mod redis;
mod refusals;
mod servers;
mod tcp;
mod tls;
mod udp;

use weir_testkit::{Gateway, Launcher};

fn weir() -> Launcher {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
}

/// A file with a plain HTTP listener and one for streams, whose stream route has these keys.
fn file(route: &str) -> String {
    format!(
        "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", protocol: tcp }}]\nstream_routes: [{{ id: s, {route} }}]\n"
    )
}

/// A gateway with one listener for streams, and that address.
#[track_caller]
fn start(route: &str) -> (Gateway, std::net::SocketAddr) {
    let gateway = weir().start(&file(route));
    let addr = gateway.addrs_of("tcp")[0];
    (gateway, addr)
}
