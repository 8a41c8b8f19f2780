//! The control plane: documents become snapshots.
