//! W3C Trace Context: the fields `traceparent` and `tracestate`.

use super::hex;

/// The flag that the sender may have recorded the request.
const SAMPLED: u8 = 1;
/// The flag that the trace id is random (level 2).
const RANDOM: u8 = 2;

const MAX_MEMBERS: usize = 32;
const MAX_KEY: usize = 256;
const MAX_VALUE: usize = 256;

/// The content of `traceparent`. Its ids are never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traceparent {
    pub trace: u128,
    pub span: u64,
    pub is_sampled: bool,
    pub is_random: bool,
}

impl Traceparent {
    /// Parses all fields of this name. `None` if there are several, or if it is invalid; then a new trace begins.
    pub fn read<'a>(mut fields: impl Iterator<Item = &'a [u8]>) -> Option<Traceparent> {
        let field = fields.next()?;
        match fields.next() {
            None => Traceparent::parse(field),
            Some(_) => None,
        }
    }

    fn parse(field: &[u8]) -> Option<Traceparent> {
        let field = trimmed(field);
        let (known, more) = field.split_at_checked(55)?;
        let version = hex::number(&known[..2], 2)?;
        // Later versions may append parts, which are ignored. The version ff is forbidden.
        let is_whole = more.is_empty() || (version > 0 && more[0] == b'-');
        if version == 0xff || !is_whole || [2, 35, 52].iter().any(|&at| known[at] != b'-') {
            return None;
        }
        let flags = hex::number(&known[53..], 2)? as u8;
        Some(Traceparent {
            trace: hex::id(&known[3..35], 32)?,
            span: hex::id(&known[36..52], 16)? as u64,
            is_sampled: flags & SAMPLED != 0,
            is_random: flags & RANDOM != 0,
        })
    }

    /// The field in version 00, which is forwarded regardless of the version received.
    pub fn field(&self) -> String {
        let flags = if self.is_sampled { SAMPLED } else { 0 } | if self.is_random { RANDOM } else { 0 };
        format!("00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

/// Whether the fields `tracestate`, which together form one list, are valid and can be forwarded unchanged. Otherwise
/// all of them are removed.
pub fn is_tracestate<'a>(fields: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut members = fields.flat_map(|field| field.split(|&byte| byte == b',')).map(trimmed);
    let mut count = 0;
    members.all(|member| {
        // Empty members are allowed, and not counted.
        count += usize::from(!member.is_empty());
        count <= MAX_MEMBERS && (member.is_empty() || is_member(member))
    })
}

fn is_member(member: &[u8]) -> bool {
    let Some(equals) = member.iter().position(|&byte| byte == b'=') else { return false };
    let (key, value) = (&member[..equals], &member[equals + 1..]);
    let is_value = (1..=MAX_VALUE).contains(&value.len())
        && value.iter().all(|byte| (b' '..=b'~').contains(byte) && *byte != b'=');
    is_value && is_key(key)
}

/// Whether this is a key of level 2, which allows `@` anywhere but at the beginning. Level 1 allows it once, between names of at most
/// 241 and 14 characters; keys of both levels are forwarded.
fn is_key(key: &[u8]) -> bool {
    let begins = key.first().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let goes_on = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(byte);
    begins && key.len() <= MAX_KEY && key.iter().all(goes_on)
}

/// Without the spaces and tabs around it.
fn trimmed(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "12345678901234567890123456789012";
    const SPAN: &str = "1234567890123456";

    fn read(fields: &[&str]) -> Option<Traceparent> {
        Traceparent::read(fields.iter().map(|field| field.as_bytes()))
    }

    #[test]
    fn a_parent_is_read_and_written() {
        let parent = read(&[&format!("00-{TRACE}-{SPAN}-01")]).expect("valid");
        let (trace, span) = (0x1234_5678_9012_3456_7890_1234_5678_9012, 0x1234_5678_9012_3456);
        assert_eq!(parent, Traceparent { trace, span, is_sampled: true, is_random: false });
        assert_eq!(parent.field(), format!("00-{TRACE}-{SPAN}-01"));
        for (flags, sent) in [("00", "00"), ("02", "02"), ("ff", "03"), ("fc", "00")] {
            let parent = read(&[&format!("00-{TRACE}-{SPAN}-{flags}")]).expect("valid");
            assert_eq!(parent.field(), format!("00-{TRACE}-{SPAN}-{sent}"));
        }
    }

    #[test]
    fn parents_of_every_form_are_taken_or_begin_a_new_trace() {
        let zeros = "0".repeat(32);
        for (field, is_taken) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!(" \t00-{TRACE}-{SPAN}-01\t "), true),
            (format!("cc-{TRACE}-{SPAN}-01"), true),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"), true),
            (format!("cc-{TRACE}-{SPAN}-01."), false),
            (format!("cc-{TRACE}-{SPAN}-01.what"), false),
            (format!("ff-{TRACE}-{SPAN}-01"), false),
            (format!(".0-{TRACE}-{SPAN}-01"), false),
            (format!("0.-{TRACE}-{SPAN}-01"), false),
            (format!("000-{TRACE}-{SPAN}-01"), false),
            (format!("0-{TRACE}-{SPAN}-01"), false),
            (format!("00-{TRACE}-{SPAN}-01-"), false),
            (format!("00-{TRACE}-{SPAN}-01-more"), false),
            (format!("00-{zeros}-{SPAN}-01"), false),
            (format!("00-.{}-{SPAN}-01", &TRACE[1..]), false),
            (format!("00-{}A-{SPAN}-01", &TRACE[1..]), false),
            (format!("00-{TRACE}1-{SPAN}-01"), false),
            (format!("00-{}-{SPAN}-01", &TRACE[1..]), false),
            (format!("00-{TRACE}-{}-01", &zeros[..16]), false),
            (format!("00-{TRACE}-.{}-01", &SPAN[1..]), false),
            (format!("00-{TRACE}-{SPAN}1-01"), false),
            (format!("00-{TRACE}-{}-01", &SPAN[1..]), false),
            (format!("00-{TRACE}-{SPAN}-.0"), false),
            (format!("00-{TRACE}-{SPAN}-0."), false),
            (format!("00-{TRACE}-{SPAN}-001"), false),
            (format!("00-{TRACE}-{SPAN}-1"), false),
            (format!("00_{TRACE}-{SPAN}-01"), false),
            (String::new(), false),
        ] {
            assert_eq!(read(&[&field]).is_some(), is_taken, "{field}");
        }
        let field = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!((read(&[]), read(&[&field, &field])), (None, None), "none, and more than one");
    }

    #[test]
    fn states_of_every_form_are_sent_on_or_left_out() {
        let list = |count| (0..count).map(|number| format!("bar{number:02}=1")).collect::<Vec<_>>().join(",");
        let keyed = |tenant, system| format!("{}@{}=1", "t".repeat(tenant), "v".repeat(system));
        for (fields, is_sent) in [
            (vec!["foo=1,bar=2".to_owned()], true),
            (vec!["foo=1".to_owned(), "bar=2".to_owned()], true),
            (vec![String::new()], true),
            (vec!["foo=1".to_owned(), String::new()], true),
            (vec!["foo=1 \t , \t bar=2, \t baz=3".to_owned()], true),
            (vec!["foo=1,foo=2".to_owned()], true),
            (vec!["0a_-*/z=1".to_owned()], true),
            (vec!["foo= !\"#$%&'()*+-./:;<>?@[\\]^_`{|}~".to_owned()], true),
            (vec!["foo@bar=1".to_owned()], true),
            (vec![list(32)], true),
            (vec![list(33)], false),
            (vec![list(16), list(17)], false),
            (vec![format!("{}=1", "z".repeat(256))], true),
            (vec![format!("{}=1", "z".repeat(257))], false),
            (vec![keyed(241, 14)], true),
            (vec![keyed(1, 254)], true),
            (vec![keyed(254, 1)], true),
            (vec![keyed(254, 2)], false),
            (vec![format!("foo={}", "v".repeat(256))], true),
            (vec![format!("foo={}", "v".repeat(257))], false),
            (vec!["foo =1".to_owned()], false),
            (vec!["FOO=1".to_owned()], false),
            (vec!["foo.bar=1".to_owned()], false),
            (vec!["foo@=1,bar=2".to_owned()], true),
            (vec!["@foo=1,bar=2".to_owned()], false),
            (vec!["foo@@bar=1,bar=2".to_owned()], true),
            (vec!["foo@bar@baz=1,bar=2".to_owned()], true),
            (vec!["foo=bar=baz".to_owned()], false),
            (vec!["foo=,bar=3".to_owned()], false),
            (vec!["foo=\u{7f}".to_owned()], false),
            (vec!["foo".to_owned()], false),
        ] {
            assert_eq!(is_tracestate(fields.iter().map(|field| field.as_bytes())), is_sent, "{fields:?}");
        }
    }
}
