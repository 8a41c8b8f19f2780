//! What a peer may make us hold before its message is understood.

/// Limits of one head. The same names stand in the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Start line and fields together, in bytes.
    pub head_bytes: usize,
    /// Number of field lines; at most [`MAX_FIELDS`].
    pub fields: usize,
    /// Length of the request target in bytes.
    pub target_bytes: usize,
    /// Field names with `_` are dropped unless this is set: `X_User` and `X-User` are one variable to CGI-like upstreams.
    pub underscores_in_names: bool,
    /// The authority of an absolute target replaces a `Host` that names another (RFC 9112 §3.2.2), which is refused
    /// otherwise.
    pub target_replaces_host: bool,
    /// `;` and `%3B` in paths are refused: upstreams that take parameters out of segments see another path than routes do.
    pub refuse_path_parameters: bool,
}

/// The most fields a head can be told to hold.
pub const MAX_FIELDS: usize = 256;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head_bytes: 32 * 1024,
            fields: 100,
            target_bytes: 16 * 1024,
            underscores_in_names: false,
            target_replaces_host: false,
            refuse_path_parameters: false,
        }
    }
}
