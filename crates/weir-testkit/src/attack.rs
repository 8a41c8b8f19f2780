//! What tests of attacks share: how clients speak, with how many workers, and what another client waits for meanwhile.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::{Client, TlsClient};

/// How clients speak to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientMode {
    Clear,
    Tls,
    Http2,
}

impl ClientMode {
    pub const ALL: [ClientMode; 3] = [ClientMode::Clear, ClientMode::Tls, ClientMode::Http2];

    /// Checks something in every mode with each of these numbers of workers.
    pub fn with_workers(workers: &[usize], check: impl Fn(ClientMode, usize)) {
        for mode in ClientMode::ALL {
            workers.iter().for_each(|workers| check(mode, *workers));
        }
    }

    /// Connects to a server, which has a certificate for `name` at its address for TLS.
    ///
    /// # Errors
    /// If there is no connection, or no TLS handshake.
    pub fn try_connect(self, address: SocketAddr, tls: &TlsClient, name: &str) -> std::io::Result<Client> {
        match self {
            ClientMode::Clear => Client::try_connect(address),
            ClientMode::Tls => Client::connect_tls(address, tls, name),
            ClientMode::Http2 => Client::try_connect(address).map(Client::by_http2),
        }
    }
}

/// Ends an attack when it is dropped, also when a check fails.
pub struct EndOfAttack<'a>(pub &'a AtomicBool);

impl Drop for EndOfAttack<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The 99th percentile of what requests take; `ask` sends one.
pub fn p99(requests: usize, mut ask: impl FnMut()) -> Duration {
    let timed = |_| {
        let began = Instant::now();
        ask();
        began.elapsed()
    };
    let mut took: Vec<Duration> = (0..requests).map(timed).collect();
    took.sort();
    took[took.len() * 99 / 100]
}

/// What another client may wait for beside an attack, if it waits for `alone` without: a tenth more, or 5 ms.
pub fn most_beside(alone: Duration) -> Duration {
    alone.mul_f64(1.1).max(alone + Duration::from_millis(5))
}
