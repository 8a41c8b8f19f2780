//! The numbers of proxy-wasm's binary interface.

/// What a host function answers (`proxy_status_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum HostStatus {
    Ok = 0,
    NotFound = 1,
    BadArgument = 2,
    ParseFailure = 4,
    InvalidMemoryAccess = 6,
    CasMismatch = 8,
    InternalFailure = 10,
    Unimplemented = 12,
}

/// What a callback answers (`proxy_action_t`); older plugins have other words for pauses, with higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallbackAction {
    Continue,
    Pause,
}

impl CallbackAction {
    pub(crate) fn of(number: u32) -> CallbackAction {
        if number == 0 { CallbackAction::Continue } else { CallbackAction::Pause }
    }
}

/// The header maps (`proxy_header_map_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapKind {
    Request,
    RequestTrailers,
    Response,
    ResponseTrailers,
    CallAnswer,
    CallTrailers,
}

impl MapKind {
    /// `None`: unknown, or of gRPC calls, which there are none of.
    pub(crate) fn of(number: u32) -> Option<MapKind> {
        Some(match number {
            0 => MapKind::Request,
            1 => MapKind::RequestTrailers,
            2 => MapKind::Response,
            3 => MapKind::ResponseTrailers,
            6 => MapKind::CallAnswer,
            7 => MapKind::CallTrailers,
            _ => return None,
        })
    }
}

/// The buffers (`proxy_buffer_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferKind {
    RequestBody,
    ResponseBody,
    CallAnswer,
    VmConfiguration,
    PluginConfiguration,
}

impl BufferKind {
    /// `None`: unknown, or of streams without HTTP, gRPC calls and foreign functions, which there are none of.
    pub(crate) fn of(number: u32) -> Option<BufferKind> {
        Some(match number {
            0 => BufferKind::RequestBody,
            1 => BufferKind::ResponseBody,
            4 => BufferKind::CallAnswer,
            6 => BufferKind::VmConfiguration,
            7 => BufferKind::PluginConfiguration,
            _ => return None,
        })
    }
}

/// The streams that can be continued and closed (`proxy_stream_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Request,
    Response,
}

impl StreamKind {
    pub(crate) fn of(number: u32) -> Option<StreamKind> {
        match number {
            0 => Some(StreamKind::Request),
            1 => Some(StreamKind::Response),
            _ => None,
        }
    }
}

/// The exports by which a plugin says which version it was made for.
pub(crate) const VERSIONS: [&str; 3] =
    ["proxy_abi_version_0_2_1", "proxy_abi_version_0_2_0", "proxy_abi_version_0_1_0"];
