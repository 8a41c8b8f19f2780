//! Limits of what a peer can make the gateway buffer before a head is parsed.

/// Limits of one head. The configuration file uses the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Start line and fields together, in bytes.
    pub head_bytes: usize,
    /// Number of field lines; at most [`MAX_FIELDS`].
    pub fields: usize,
    /// Length of the request target in bytes.
    pub target_bytes: usize,
    /// Field names with `_` are dropped unless this is set: CGI-like upstreams map `X_User` and `X-User` to one variable.
    pub underscores_in_names: bool,
    /// The authority of an absolute-form target replaces a `Host` that differs (RFC 9112 §3.2.2); otherwise such a request is
    /// refused.
    pub target_replaces_host: bool,
    /// `;` and `%3B` in paths are refused: an upstream that strips path parameters sees another path than the router does.
    pub refuse_path_parameters: bool,
}

/// Upper bound of [`Limits::fields`].
pub const MAX_FIELDS: usize = 256;

impl Limits {
    pub const DEFAULT: Limits = Limits {
        head_bytes: 32 * 1024,
        fields: 100,
        target_bytes: 16 * 1024,
        underscores_in_names: false,
        target_replaces_host: false,
        refuse_path_parameters: false,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}
