//! How endpoints are chosen, watched, left out and taken back, over real sockets.

mod consul;
mod eureka;
mod grpc_health;
mod health;
mod lines;
mod names;
mod outages;
mod persistence;
mod placement;
mod registry;
mod shared_address;
mod storms;
mod workers;

use weir_testkit::{Answer, Gateway, Launcher, Origin, Reading};

/// The gateway under test.
fn weir() -> Launcher {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
}

/// An origin that answers with its name.
fn named(name: impl Into<String>) -> Origin {
    let name = name.into();
    Origin::reading(Reading::Strict, move |_| Answer::ok(&name))
}

/// A file with one route for everything, whose upstream has these nodes, each with a weight of 1, and these lines.
fn one_route(origins: &[Origin], upstream: &str) -> String {
    let nodes: Vec<String> = origins.iter().map(|origin| format!("\"{}\": 1", origin.addr())).collect();
    format!("routes:\n  - id: all\n    uri: /*\n    upstream: {{ nodes: {{ {} }}, {upstream} }}\n", nodes.join(", "))
}
