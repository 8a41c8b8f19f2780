//! The statuses of gRPC. In counts they stand beside those of HTTP, which begin at 100.

/// The names, in the order of their numbers.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

pub(in crate::engine) const OK: u16 = 0;
const UNKNOWN: u16 = 2;
pub(in crate::engine) const DEADLINE_EXCEEDED: u16 = 4;

/// Whether this is a status of gRPC.
pub(in crate::engine) fn is_status(status: u16) -> bool {
    usize::from(status) < NAMES.len()
}

/// A status as reports write it: the number of one of HTTP, the name of one of gRPC.
pub(crate) fn status_words(status: u16) -> String {
    NAMES.get(usize::from(status)).map_or_else(|| status.to_string(), |name| (*name).to_owned())
}

/// The number of a status of gRPC that is written as a name or as a number.
pub(in crate::engine) fn status_named(text: &str) -> Option<u16> {
    let by_name = NAMES.iter().position(|name| name.eq_ignore_ascii_case(text));
    by_name.or_else(|| text.parse().ok().filter(|number| *number < NAMES.len())).map(|number| number as u16)
}

/// The status that a server has sent; one without a meaning is UNKNOWN.
pub(in crate::engine) fn status_sent(value: &[u8]) -> u16 {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u16>().ok());
    number.filter(|number| usize::from(*number) < NAMES.len()).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_grpc_have_names() {
        assert_eq!([status_words(0), status_words(16), status_words(503)], ["OK", "UNAUTHENTICATED", "503"]);
        assert_eq!(
            ["unavailable", "14", "0", "17", "x", "-1"].map(status_named),
            [Some(14), Some(14), Some(0), None, None, None]
        );
        assert_eq!([&b"5"[..], b"99", b"", b"\xff"].map(status_sent), [5, UNKNOWN, UNKNOWN, UNKNOWN]);
    }
}
