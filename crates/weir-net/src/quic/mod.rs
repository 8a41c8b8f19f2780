//! QUIC: endpoints on UDP sockets, steering of datagrams to workers, TLS with the certificates of this node. The protocol itself is
//! that of `quinn-proto`; what is spoken above is not known here.

mod config;
mod connection_ids;
mod cubic;
mod endpoint;
mod group;
mod hand_over;
mod hello;
mod processes;
mod session;
mod socket;
mod steering;

pub use bytes::Bytes;
pub use config::{QuicLimits, QuicSecrets, QuicTerms};
pub use connection_ids::WorkerConnectionIds;
pub use endpoint::{EndpointEvent, QuicEndpoint};
pub use group::SocketGroup;
pub use hand_over::{InheritedGroup, InheritedQuic, ProcessLife, QuicHandOver};
pub use hello::ChooseServer;
pub use processes::{OtherProcesses, ProcessTag, SuccessorWatch};
pub use quinn_proto::{
    Chunk, Connection, ConnectionError, ConnectionEvent, ConnectionHandle, Dir, Event, FinishError, Incoming,
    ReadError, ReadableError, Side, StreamEvent, StreamId, VarInt, WriteError,
};
pub use quinn_udp::{EcnCodepoint, RecvMeta, Transmit};
pub use session::QuicHandshake;
pub use socket::{QuicLink, QuicSocket};
pub use steering::SocketBlock;
