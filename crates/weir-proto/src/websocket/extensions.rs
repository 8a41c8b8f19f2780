//! The extensions a handshake offers and accepts (RFC 6455 §9.1). Only message compression (RFC 7692) is supported;
//! [`super::FrameReader`] cannot read frames that another extension has changed.

const DEFLATE: &[u8] = b"permessage-deflate";
const SERVER_NO_CONTEXT: &[u8] = b"server_no_context_takeover";
const CLIENT_NO_CONTEXT: &[u8] = b"client_no_context_takeover";

/// The extensions a server has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extensions {
    None,
    /// `permessage-deflate` and nothing else.
    Deflate(DeflateTerms),
    /// An extension that the frame reader does not support, or parameters that RFC 7692 §7.1 does not have.
    Unknown,
}

/// How messages are compressed (RFC 7692 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeflateTerms {
    pub client: SenderTerms,
    pub server: SenderTerms,
}

/// How one side compresses the messages that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderTerms {
    /// A message may refer to data of those before it (context takeover).
    pub keeps_context: bool,
    /// The size of the window, 8 to 15: the logarithm to base 2 of its bytes.
    pub window_bits: u8,
}

impl Default for SenderTerms {
    fn default() -> SenderTerms {
        SenderTerms { keeps_context: true, window_bits: 15 }
    }
}

/// Whether a place of a text is within quotes.
#[derive(Clone, Copy, Default)]
struct QuoteState {
    is_quoted: bool,
    is_escaped: bool,
}

impl QuoteState {
    fn pass(&mut self, byte: u8) {
        let was_escaped = std::mem::take(&mut self.is_escaped);
        match byte {
            b'\\' if self.is_quoted && !was_escaped => self.is_escaped = true,
            b'"' if !was_escaped => self.is_quoted = !self.is_quoted,
            _ => {}
        }
    }
}

/// The parts of a text between separators outside of quotes.
fn parts(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut state = QuoteState::default();
    let split = move |byte: &u8| {
        state.pass(*byte);
        *byte == separator && !state.is_quoted
    };
    value.split(split).map(<[u8]>::trim_ascii)
}

/// Whether every quote of a text is closed. What is added to another one would be a part of its last value.
fn has_closed_quotes(text: &[u8]) -> bool {
    let mut state = QuoteState::default();
    text.iter().for_each(|byte| state.pass(*byte));
    !state.is_quoted
}

/// The elements of a list in which quoted parameters may contain commas.
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    parts(value, b',').filter(|element| !element.is_empty())
}

fn is_deflate(element: &[u8]) -> bool {
    let name = element.split(|byte| *byte == b';').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(DEFLATE)
}

/// The valid offers of `permessage-deflate` among a client's extension fields. Empty if there are none. They are unchanged, unless the server
/// may not keep its context: then each offer says so (RFC 7692 §7.1.1.1).
pub fn deflate_offers<'a>(values: impl Iterator<Item = &'a [u8]>, server_keeps_context: bool) -> Vec<u8> {
    let offer = |element: &[u8]| {
        let mut offer = element.to_vec();
        if !server_keeps_context && !has_parameter(element, SERVER_NO_CONTEXT) {
            offer.extend_from_slice(b"; ");
            offer.extend_from_slice(SERVER_NO_CONTEXT);
        }
        offer
    };
    let offers: Vec<Vec<u8>> = values
        .flat_map(elements)
        .filter(|element| is_deflate(element) && has_closed_quotes(element))
        .map(offer)
        .collect();
    offers.join(&b", "[..])
}

/// What a response says with which the client may not keep its context either (§7.1.1.2): a server may say so to any offer.
pub fn without_client_context(element: &[u8]) -> Vec<u8> {
    let mut accepted = element.to_vec();
    if !has_parameter(element, CLIENT_NO_CONTEXT) {
        accepted.extend_from_slice(b"; ");
        accepted.extend_from_slice(CLIENT_NO_CONTEXT);
    }
    accepted
}

/// Name and value of each parameter of an extension. A value may be quoted (RFC 6455 §9.1).
fn parameters(element: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    parts(element, b';').skip(1).map(|parameter| match parameter.iter().position(|byte| *byte == b'=') {
        None => (parameter, None),
        Some(at) => {
            let value = parameter[at + 1..].trim_ascii();
            let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
            (parameter[..at].trim_ascii_end(), Some(unquoted.unwrap_or(value)))
        }
    })
}

fn has_parameter(element: &[u8], name: &[u8]) -> bool {
    parameters(element).any(|(other, _)| other.eq_ignore_ascii_case(name))
}

/// The parameters of an accepted `permessage-deflate`; `None` if there is one that a response cannot have (RFC 7692 §7.1).
fn accepted_terms(element: &[u8]) -> Option<DeflateTerms> {
    let (mut client, mut server) = (SenderTerms::default(), SenderTerms::default());
    let mut seen: Vec<&[u8]> = Vec::new();
    for (name, value) in parameters(element) {
        if seen.iter().any(|other| other.eq_ignore_ascii_case(name)) {
            return None;
        }
        seen.push(name);
        let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
        match value {
            None if is(SERVER_NO_CONTEXT) => server.keeps_context = false,
            None if is(CLIENT_NO_CONTEXT) => client.keeps_context = false,
            Some(value) if is(b"server_max_window_bits") => server.window_bits = window_bits(value)?,
            Some(value) if is(b"client_max_window_bits") => client.window_bits = window_bits(value)?,
            _ => return None,
        }
    }
    Some(DeflateTerms { client, server })
}

/// §7.1.2: a decimal number from 8 to 15 without leading zeros.
fn window_bits(value: &[u8]) -> Option<u8> {
    match value {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// The extensions accepted in the fields of a response.
pub fn agreed<'a>(values: impl Iterator<Item = &'a [u8]>) -> Extensions {
    let mut agreed = Extensions::None;
    for element in values.flat_map(elements) {
        let terms = accepted_terms(element).filter(|_| is_deflate(element) && agreed == Extensions::None);
        // RFC 7692 §5: a second compression would use the same reserved bit.
        agreed = terms.map_or(Extensions::Unknown, Extensions::Deflate);
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
            ("permessage-deflate; client_max_window_bits=\"10", ""),
        ] {
            let left = deflate_offers([offered.as_bytes()].into_iter(), true);
            assert_eq!(String::from_utf8_lossy(&left), want, "{offered}");
        }
    }

    #[test]
    fn a_server_can_be_told_to_keep_no_context() {
        let offered = b"permessage-deflate; client_max_window_bits, permessage-deflate; Server_No_Context_Takeover";
        let want = "permessage-deflate; client_max_window_bits; server_no_context_takeover, \
                    permessage-deflate; Server_No_Context_Takeover";
        assert_eq!(String::from_utf8_lossy(&deflate_offers([&offered[..]].into_iter(), false)), want);
        let accepted = without_client_context(b"permessage-deflate; server_no_context_takeover");
        assert_eq!(accepted, b"permessage-deflate; server_no_context_takeover; client_no_context_takeover");
        assert_eq!(without_client_context(&accepted), accepted);
    }

    #[test]
    fn agreed_extensions_are_read_or_unknown() {
        let deflate = |client, server| Extensions::Deflate(DeflateTerms { client, server });
        let terms = |keeps_context, window_bits| SenderTerms { keeps_context, window_bits };
        let default = SenderTerms::default();
        for (said, want) in [
            (&[][..], Extensions::None),
            (&[""], Extensions::None),
            (&["permessage-deflate"], deflate(default, default)),
            (&["permessage-deflate; server_no_context_takeover"], deflate(default, terms(false, 15))),
            (
                &[
                    "permessage-deflate; client_no_context_takeover; client_max_window_bits=\"8\"; server_max_window_bits=10",
                ],
                deflate(terms(false, 8), terms(true, 10)),
            ),
            (&["permessage-deflate, permessage-deflate"], Extensions::Unknown),
            (&["permessage-deflate", "x"], Extensions::Unknown),
            (&["x"], Extensions::Unknown),
            // RFC 7692 §7.1: unknown, repeated and wrong parameters.
            (&["permessage-deflate; x"], Extensions::Unknown),
            (&["permessage-deflate; server_no_context_takeover; server_no_context_takeover"], Extensions::Unknown),
            (&["permessage-deflate; server_no_context_takeover=1"], Extensions::Unknown),
            (&["permessage-deflate; client_max_window_bits"], Extensions::Unknown),
            (&["permessage-deflate; client_max_window_bits=7"], Extensions::Unknown),
            (&["permessage-deflate; client_max_window_bits=16"], Extensions::Unknown),
            (&["permessage-deflate; server_max_window_bits=08"], Extensions::Unknown),
            (&["permessage-deflate; server_max_window_bits="], Extensions::Unknown),
        ] {
            assert_eq!(agreed(said.iter().map(|value| value.as_bytes())), want, "{said:?}");
        }
    }
}
