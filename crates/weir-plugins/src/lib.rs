//! The plugins, one file each, and the list of them.
