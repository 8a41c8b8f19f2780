//! Which extensions a handshake offers and agrees to (RFC 6455 §9.1). The one that matters is the compression of messages
//! (RFC 7692); a reader of frames cannot read what another extension has changed.

const DEFLATE: &[u8] = b"permessage-deflate";

/// What a server has agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extensions {
    None,
    /// `permessage-deflate` and nothing else.
    Deflate,
    /// Something that nobody here can read.
    Unknown,
}

/// The elements of a list that may have commas in quoted parameters.
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

/// Of what a client offers: the offers of compression, as they stand there. Empty if there are none.
pub fn deflate_offers<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let offers: Vec<&[u8]> = values.flat_map(elements).filter(|element| is_deflate(element)).collect();
    offers.join(&b", "[..])
}

/// What the fields of a response agree to.
pub fn agreed<'a>(values: impl Iterator<Item = &'a [u8]>) -> Extensions {
    let mut agreed = Extensions::None;
    for element in values.flat_map(elements) {
        // RFC 7692 §5: a second one would want the bit of the first.
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
