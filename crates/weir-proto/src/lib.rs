//! Bytes to events and back. No sockets, no clock, no configuration.
