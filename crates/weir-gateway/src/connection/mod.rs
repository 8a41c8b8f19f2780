//! Client connections: whatever the protocol, they yield exchanges.

pub mod h1;
