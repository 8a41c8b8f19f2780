//! The data plane: a snapshot comes in, traffic goes through.

pub mod route;
