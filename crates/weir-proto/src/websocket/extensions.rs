//! The extensions a handshake offers and accepts (RFC 6455 §9.1). Only message compression (RFC 7692) is supported;
//! [`super::FrameReader`] cannot read frames that another extension has changed.

const DEFLATE: &[u8] = b"permessage-deflate";

/// The extensions a server has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extensions {
    None,
    /// `permessage-deflate` and nothing else.
    Deflate,
    /// An extension that the frame reader does not support.
    Unknown,
}

/// The elements of a list in which quoted parameters may contain commas.
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    let mut escaped = false;
    let split = move |byte: &u8| {
        let was_escaped = std::mem::take(&mut escaped);
        match byte {
            b'\\' if quoted && !was_escaped => escaped = true,
            b'"' if !was_escaped => quoted = !quoted,
            _ => {}
        }
        *byte == b',' && !quoted
    };
    value.split(split).map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

fn is_deflate(element: &[u8]) -> bool {
    let name = element.split(|byte| *byte == b';').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(DEFLATE)
}

/// The offers of `permessage-deflate` among a client's extension fields, unchanged. Empty if there are none.
pub fn deflate_offers<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let offers: Vec<&[u8]> = values.flat_map(elements).filter(|element| is_deflate(element)).collect();
    offers.join(&b", "[..])
}

/// The extensions accepted in the fields of a response.
pub fn agreed<'a>(values: impl Iterator<Item = &'a [u8]>) -> Extensions {
    let mut agreed = Extensions::None;
    for element in values.flat_map(elements) {
        // RFC 7692 §5: a second compression would use the same reserved bit.
        agreed =
            if is_deflate(element) && agreed == Extensions::None { Extensions::Deflate } else { Extensions::Unknown };
    }
    agreed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offers_of_compression_are_left() {
        for (offered, want) in [
            ("", ""),
            ("permessage-deflate", "permessage-deflate"),
            (
                "x-webkit-deflate-frame, Permessage-Deflate; client_max_window_bits",
                "Permessage-Deflate; client_max_window_bits",
            ),
            (
                "permessage-deflate; server_max_window_bits=\"10\", permessage-deflate",
                "permessage-deflate; server_max_window_bits=\"10\", permessage-deflate",
            ),
            ("bbf; a=\"x, permessage-deflate, \\\" y\"", ""),
            (", ,", ""),
            ("permessage-deflate-2", ""),
        ] {
            let left = deflate_offers([offered.as_bytes()].into_iter());
            assert_eq!(String::from_utf8_lossy(&left), want, "{offered}");
        }
    }

    #[test]
    fn what_was_agreed_to_is_known_or_not() {
        for (said, want) in [
            (&[][..], Extensions::None),
            (&[""], Extensions::None),
            (&["permessage-deflate; server_no_context_takeover"], Extensions::Deflate),
            (&["permessage-deflate, permessage-deflate"], Extensions::Unknown),
            (&["permessage-deflate", "x"], Extensions::Unknown),
            (&["x"], Extensions::Unknown),
        ] {
            assert_eq!(agreed(said.iter().map(|value| value.as_bytes())), want, "{said:?}");
        }
    }
}
