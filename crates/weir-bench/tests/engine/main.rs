//! The load engine and the backends, over real sockets.

mod backend;
mod echo;
mod flow;
mod grpc;
mod http1;
mod peer;
mod streams;
mod websub;
