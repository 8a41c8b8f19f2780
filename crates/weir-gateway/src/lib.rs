//! The data plane: a snapshot comes in, traffic goes through.
