//! B3, the trace context of Zipkin: the single field `b3`, or several fields `X-B3-…`.

use super::hex;

/// The sampling decision of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum B3Sampling {
    /// No decision: the receiver decides.
    Deferred,
    Denied,
    Accepted,
    /// Recorded regardless of samplers.
    Debug,
}

/// The span of the caller. Its ids are never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct B3Span {
    pub trace: u128,
    /// Whether the trace id has 16 digits instead of 32.
    pub is_short: bool,
    pub span: u64,
    pub parent: Option<u64>,
}

/// A context. Without a span, it only has the sampling decision for a new trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct B3Context {
    pub span: Option<B3Span>,
    pub sampling: B3Sampling,
}

/// The values of the fields `X-B3-…`.
#[derive(Clone, Copy, Debug, Default)]
pub struct B3Fields<'a> {
    pub trace: Option<&'a [u8]>,
    pub span: Option<&'a [u8]>,
    pub parent: Option<&'a [u8]>,
    pub sampled: Option<&'a [u8]>,
    pub flags: Option<&'a [u8]>,
}

impl B3Context {
    /// From the field `b3`: `{trace}-{span}-{state}-{parent}`, without the last one or two parts, or the state alone.
    /// `None` if it has another form.
    pub fn of_field(field: &[u8]) -> Option<B3Context> {
        if let Some(sampling) = state(field) {
            return Some(B3Context { span: None, sampling });
        }
        let mut parts = field.split(|&byte| byte == b'-');
        let (trace, is_short) = trace(parts.next()?)?;
        let span = hex::id(parts.next()?, 16)? as u64;
        let sampling = parts.next().map_or(Some(B3Sampling::Deferred), state)?;
        let parent = parts.next().map(|parent| hex::id(parent, 16).ok_or(())).transpose().ok()?.map(|id| id as u64);
        let span = Some(B3Span { trace, is_short, span, parent });
        parts.next().is_none().then_some(B3Context { span, sampling })
    }

    /// From the fields `X-B3-…`. If the ids are invalid or incomplete, a new trace begins.
    pub fn of_fields(fields: &B3Fields<'_>) -> B3Context {
        let sampling = match (fields.flags, fields.sampled) {
            (Some(b"1"), _) => B3Sampling::Debug,
            (_, Some(b"1" | b"true")) => B3Sampling::Accepted,
            (_, Some(b"0" | b"false")) => B3Sampling::Denied,
            _ => B3Sampling::Deferred,
        };
        let parent = fields.parent.and_then(|parent| hex::id(parent, 16)).map(|id| id as u64);
        let span = fields.trace.and_then(trace).zip(fields.span.and_then(|span| hex::id(span, 16)));
        let span = span.map(|((trace, is_short), span)| B3Span { trace, is_short, span: span as u64, parent });
        B3Context { span, sampling }
    }

    /// The value of the field `b3`; `None` if it would be empty.
    pub fn field(&self) -> Option<String> {
        let state = match self.sampling {
            B3Sampling::Deferred => None,
            B3Sampling::Denied => Some("0"),
            B3Sampling::Accepted => Some("1"),
            B3Sampling::Debug => Some("d"),
        };
        let Some(span) = &self.span else { return state.map(str::to_owned) };
        let mut field = format!("{}-{:016x}", span.trace_text(), span.span);
        if let Some(state) = state {
            field.push('-');
            field.push_str(state);
            // The format allows the parent only after the state.
            if let Some(parent) = span.parent {
                field.push_str(&format!("-{parent:016x}"));
            }
        }
        Some(field)
    }
}

impl B3Span {
    /// The trace id, with as many digits as it came with.
    pub fn trace_text(&self) -> String {
        let digits = if self.is_short { 16 } else { 32 };
        format!("{:0digits$x}", self.trace)
    }
}

fn state(text: &[u8]) -> Option<B3Sampling> {
    match text {
        b"0" => Some(B3Sampling::Denied),
        b"1" => Some(B3Sampling::Accepted),
        b"d" => Some(B3Sampling::Debug),
        _ => None,
    }
}

/// Parses a trace id; returns whether it is a short one as well.
fn trace(digits: &[u8]) -> Option<(u128, bool)> {
    let is_short = digits.len() == 16;
    Some((hex::id(digits, if is_short { 16 } else { 32 })?, is_short))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "80f198ee56343ba864fe8b2a57d3eff7";
    const SPAN: &str = "e457b5a2e4d86bd1";
    const PARENT: &str = "05e3ac9a4f6e3b90";

    #[test]
    fn one_field_is_read_and_written() {
        for (field, sampling) in [
            ("0".to_owned(), B3Sampling::Denied),
            ("1".to_owned(), B3Sampling::Accepted),
            ("d".to_owned(), B3Sampling::Debug),
            (format!("{TRACE}-{SPAN}"), B3Sampling::Deferred),
            (format!("{TRACE}-{SPAN}-0"), B3Sampling::Denied),
            (format!("{TRACE}-{SPAN}-1-{PARENT}"), B3Sampling::Accepted),
            (format!("{}-{SPAN}-d", &TRACE[..16]), B3Sampling::Debug),
        ] {
            let context = B3Context::of_field(field.as_bytes()).unwrap_or_else(|| panic!("{field}"));
            assert_eq!((context.field(), context.sampling), (Some(field.clone()), sampling));
            assert_eq!(context.span.is_some(), field.len() > 1);
        }
    }

    #[test]
    fn a_field_of_another_form_is_none() {
        for field in [
            String::new(),
            "2".to_owned(),
            "true".to_owned(),
            TRACE.to_owned(),
            format!("{TRACE}-"),
            format!("{TRACE}-{SPAN}-"),
            format!("{TRACE}-{SPAN}-2"),
            format!("{TRACE}-{SPAN}-1-"),
            format!("{TRACE}-{SPAN}-1-{PARENT}-"),
            format!("{TRACE}-{}-1", "0".repeat(16)),
            format!("{}-{SPAN}-1", "0".repeat(32)),
            format!("{}-{SPAN}-1", &TRACE[1..]),
            format!("{}-{SPAN}-1", TRACE.to_uppercase()),
        ] {
            assert_eq!(B3Context::of_field(field.as_bytes()), None, "{field}");
        }
    }

    #[test]
    fn several_fields_say_the_same() {
        let bytes = |text: &'static str| Some(text.as_bytes());
        let fields = B3Fields { trace: bytes(TRACE), span: bytes(SPAN), parent: bytes(PARENT), ..B3Fields::default() };
        for (sampled, flags, state) in [
            (Some("1"), None, Some("1")),
            (Some("true"), None, Some("1")),
            (Some("0"), None, Some("0")),
            (Some("false"), None, Some("0")),
            (Some("0"), Some("1"), Some("d")),
            (Some("1"), Some("0"), Some("1")),
            (None, None, None),
        ] {
            let context = B3Context::of_fields(&B3Fields {
                sampled: sampled.and_then(bytes),
                flags: flags.and_then(bytes),
                ..fields
            });
            let end = state.map_or_else(String::new, |state| format!("-{state}-{PARENT}"));
            assert_eq!(context.field(), Some(format!("{TRACE}-{SPAN}{end}")));
        }
    }

    #[test]
    fn several_fields_without_a_whole_context_begin_a_new_trace() {
        let bytes = |text: &'static str| Some(text.as_bytes());
        for (trace, span) in [(bytes(TRACE), None), (None, bytes(SPAN)), (bytes("x"), bytes(SPAN)), (None, None)] {
            let fields = B3Fields { trace, span, sampled: bytes("0"), ..B3Fields::default() };
            assert_eq!(B3Context::of_fields(&fields), B3Context { span: None, sampling: B3Sampling::Denied });
        }
    }
}
