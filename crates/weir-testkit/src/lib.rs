//! For tests: a gateway as a process, an origin that records and follows a script, and a client that sends raw bytes.
//!
//! Everything here is plain threads and blocking sockets, and shares no code with the gateway: a bug in the gateway's
//! parser cannot hide behind the same bug in its tests. Nothing sleeps to synchronise. Tests wait for facts with
//! [`eventually`], and open [`Gate`]s when a scripted peer may go on. Helpers panic with a description when a test's
//! expectation about its own peers fails; what the gateway answers is returned as a value for the test to judge.

#![forbid(unsafe_code)]

mod attack;
mod browser;
mod client;
mod dns;
mod gate;
mod gateway;
pub mod http2;
mod nginx;
mod origin;
mod place;
mod program;
mod reading;
mod scale;
mod secured;
mod sessions;
mod skipped;
mod small_disk;
mod split_network;
pub mod timing;
mod tls;
mod wait;
mod wire;

pub use attack::{ClientMode, EndOfAttack, most_beside, p99};
pub use browser::{BROWSER_DEADLINE, BrowserPage, Uses, chromium};
pub use client::Client;
pub use dns::Dns;
pub use gate::Gate;
pub use gateway::{Gateway, Launcher, ScrapedMetrics};
pub use nginx::Nginx;
pub use origin::{Answer, Origin, OriginConnection};
pub use place::{TempDir, free_port, shrink_backlog};
pub use program::Program;
pub use reading::{ReadError, Reading};
pub use rustix::process::Signal;
pub use scale::{is_full, scaled};
pub use skipped::{runs_for_minutes, skipped};
pub use small_disk::on_small_disk;
pub use split_network::{NetworkSide, SplitNetwork};
pub use tls::{Authority, Identity, KeyKind, NegotiatedTls, SigningRequest, TlsClient, TlsServer};
pub use wait::{DEADLINE, eventually, eventually_some};
pub use wire::{BodyFraming, Fields, Request, Response, latin1, latin1_bytes};
