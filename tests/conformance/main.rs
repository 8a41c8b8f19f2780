//! Whether the gateway can be made to disagree with its neighbours about where a message begins and ends, or to break
//! when they do. The numbers (S01, R02, F03 …) name an attack or a fault and stay with it.
//!
//! The oracle is the same everywhere (`harness`): an origin records every byte it is sent, and after each attack a
//! canary on the same connection and a canary from another client must get their own answers. A status alone proves
//! nothing.

mod chunks;
mod connections;
mod exhaustion;
mod faults;
mod framing;
mod h2spec;
mod harness;
mod http2;
mod paths;
mod responses;
mod scanners;
mod syntax;
mod tls;
mod waiting;
