//! Error codes (RFC 9114 §8.1, RFC 9204 §6), and how much an error ends.

/// Why a stream or a connection ends. Unknown codes have no special meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3ErrorCode(pub u64);

/// Declares the codes and their names, as the RFCs write them.
macro_rules! codes {
    ($($name:ident = $code:literal,)*) => {
        impl H3ErrorCode {
            $(pub const $name: H3ErrorCode = H3ErrorCode($code);)*

            /// The name in the RFC.
            pub fn name(self) -> &'static str {
                match self {
                    $(H3ErrorCode::$name => stringify!($name),)*
                    _ => "unknown",
                }
            }
        }
    };
}

codes! {
    H3_NO_ERROR = 0x100,
    H3_GENERAL_PROTOCOL_ERROR = 0x101,
    H3_INTERNAL_ERROR = 0x102,
    H3_STREAM_CREATION_ERROR = 0x103,
    H3_CLOSED_CRITICAL_STREAM = 0x104,
    H3_FRAME_UNEXPECTED = 0x105,
    H3_FRAME_ERROR = 0x106,
    H3_EXCESSIVE_LOAD = 0x107,
    H3_ID_ERROR = 0x108,
    H3_SETTINGS_ERROR = 0x109,
    H3_MISSING_SETTINGS = 0x10a,
    H3_REQUEST_REJECTED = 0x10b,
    H3_REQUEST_CANCELLED = 0x10c,
    H3_REQUEST_INCOMPLETE = 0x10d,
    H3_MESSAGE_ERROR = 0x10e,
    H3_CONNECT_ERROR = 0x10f,
    H3_VERSION_FALLBACK = 0x110,
    QPACK_DECOMPRESSION_FAILED = 0x200,
    QPACK_ENCODER_STREAM_ERROR = 0x201,
    QPACK_DECODER_STREAM_ERROR = 0x202,
}

/// What was done against the rules, and what ends by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum H3Fault {
    /// The connection ends: what its peer sends cannot be understood.
    Connection(H3ErrorCode),
    /// Only the stream ends.
    Stream(H3ErrorCode),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_the_specification() {
        assert_eq!(H3ErrorCode::H3_NO_ERROR.name(), "H3_NO_ERROR");
        assert_eq!(H3ErrorCode(0x107).name(), "H3_EXCESSIVE_LOAD");
        assert_eq!(H3ErrorCode(0x202).name(), "QPACK_DECODER_STREAM_ERROR");
        assert_eq!(H3ErrorCode(0x21).name(), "unknown");
    }
}
