//! The Admin API of a running gateway: the behaviour that clients of Apache APISIX rely on, and durability.

mod adc;
mod api;
mod audit;
mod checks;
mod churn;
mod commands;
mod console;
mod draft;
mod durability;
mod encryption;
mod environments;
mod equality;
mod etcd;
mod examples;
mod file_mode;
mod history;
mod hostile_input;
mod lab;
mod listeners;
mod mcp;
mod membership;
mod migration;
mod oidc;
mod outside;
mod own_addresses;
mod resource_access;
mod samples;
mod scopes;
mod security;
mod sessions;
mod set_aside;
mod standalone;
mod strangers;
mod tables;
mod test_records;
mod tokens;
mod turns;
mod unix_socket;
mod unread;
mod writes;
mod wrong_requests;

use weir_testkit::{Gateway, Launcher};

/// The gateway under test.
fn weir() -> Launcher {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
}
