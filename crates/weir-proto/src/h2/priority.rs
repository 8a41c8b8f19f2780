//! Priorities of responses (RFC 9218).

/// The parameters of a `Priority` field, or of a PRIORITY_UPDATE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 is the most urgent, 7 the least.
    pub urgency: u8,
    /// The client can use parts of the response, so responses of equal urgency may be interleaved.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Parses the `u` and `i` parameters; members that are not understood are ignored (RFC 9218 §4).
    pub fn parse(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in value.split(|&byte| byte == b',') {
            match crate::field::trim(member) {
                [b'u', b'=', urgency @ b'0'..=b'7'] => priority.urgency = urgency - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_ignores_members_that_are_not_understood() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=1", 1, false),
            ("u=5, i", 5, true),
            ("i=?1,u=0", 0, true),
            ("i, i=?0", 3, false),
            ("u=9, x=1, i=1", 3, false),
            ("u=-1,u=7", 7, false),
        ] {
            assert_eq!(Priority::parse(value.as_bytes()), Priority { urgency, incremental }, "{value}");
        }
    }
}
