//! `sw8`, the trace context of SkyWalking (cross process propagation headers, version 3).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The longest text in a context, in bytes. SkyWalking's own are about 60.
const MOST_BYTES: usize = 512;

/// The context of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sw8Context {
    pub is_sampled: bool,
    pub trace: String,
    /// The segment of the caller, and the number of the span in it that has called.
    pub segment: String,
    pub span: u32,
    pub service: String,
    pub instance: String,
    /// The endpoint of the caller.
    pub endpoint: String,
    /// The address by which the caller knows the callee.
    pub address: String,
}

impl Sw8Context {
    /// From the field `sw8`: eight parts with hyphens between them; `None` if it has another form.
    pub fn of_field(field: &[u8]) -> Option<Sw8Context> {
        let field = str::from_utf8(field).ok()?;
        let parts: Vec<&str> = field.splitn(9, '-').collect();
        let [sampled, trace, segment, span, service, instance, endpoint, address] = parts.try_into().ok()?;
        let is_sampled = match sampled {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        let text = |part: &str| {
            let part = (part.len() <= MOST_BYTES).then(|| STANDARD.decode(part).ok()).flatten()?;
            String::from_utf8(part).ok()
        };
        let id = |part: &str| text(part).filter(|id| !id.is_empty());
        Some(Sw8Context {
            is_sampled,
            trace: id(trace)?,
            segment: id(segment)?,
            // SkyWalking's number is an `int32`, and refuses a list with a larger one.
            span: span.parse().ok().filter(|span| *span <= i32::MAX as u32)?,
            service: text(service)?,
            instance: text(instance)?,
            endpoint: text(endpoint)?,
            address: text(address)?,
        })
    }

    /// The id of the trace as a number, if it is a UUID, with or without hyphens.
    pub fn trace_number(&self) -> Option<u128> {
        let digits = self.trace.replace('-', "");
        let is_uuid = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_uuid.then(|| u128::from_str_radix(&digits, 16).ok()).flatten().filter(|number| *number != 0)
    }

    /// The value of the field `sw8`.
    pub fn field(&self) -> String {
        let text = |text: &str| STANDARD.encode(text);
        [
            if self.is_sampled { "1" } else { "0" }.to_owned(),
            text(&self.trace),
            text(&self.segment),
            self.span.to_string(),
            text(&self.service),
            text(&self.instance),
            text(&self.endpoint),
            text(&self.address),
        ]
        .join("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: &str = "1-YS5iLmM=-ZC5lLmY=-3-c2hvcA==-c2hvcC0x-L29yZGVycw==-MTAuMC4wLjE6ODA=";

    #[test]
    fn a_context_is_read_and_written() {
        let context = Sw8Context::of_field(FIELD.as_bytes()).expect("valid");
        let texts = [&context.trace, &context.segment, &context.service, &context.instance, &context.endpoint];
        assert_eq!(texts, ["a.b.c", "d.e.f", "shop", "shop-1", "/orders"]);
        assert_eq!((context.is_sampled, context.span, &*context.address), (true, 3, "10.0.0.1:80"));
        assert_eq!(context.field(), FIELD);
        let denied = format!("0{}", &FIELD[1..]);
        assert!(!Sw8Context::of_field(denied.as_bytes()).expect("valid").is_sampled);
    }

    #[test]
    fn a_field_of_another_form_is_none() {
        let long = STANDARD.encode("a".repeat(MOST_BYTES));
        for field in [
            String::new(),
            "1".to_owned(),
            format!("2{}", &FIELD[1..]),
            format!("{FIELD}-"),
            FIELD.replace("-3-", "-x-"),
            FIELD.replace("-3-", "--"),
            FIELD.replace("-3-", "-2147483648-"),
            FIELD.replace("YS5iLmM=", ""),
            FIELD.replace("YS5iLmM=", "!"),
            FIELD.replace("YS5iLmM=", "/w=="),
            FIELD.replace("YS5iLmM=", &long),
        ] {
            assert_eq!(Sw8Context::of_field(field.as_bytes()), None, "{field}");
        }
    }
}
