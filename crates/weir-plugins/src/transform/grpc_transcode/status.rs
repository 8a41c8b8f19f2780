//! The status of a gRPC call, and what it is in HTTP.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use percent_encoding::percent_decode;
use prost::Message;
use prost_reflect::MessageDescriptor;
use prost_reflect::prost_types::Any;
use serde_json::{Value, json};

use super::json::JsonForm;

/// Values of fields that end in `-bin` may be padded or not.
const BIN: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The fields that a status is in.
pub(super) const CODE: &[u8] = b"grpc-status";
pub(super) const MESSAGE: &[u8] = b"grpc-message";
const DETAILS: &[u8] = b"grpc-status-details-bin";

/// A status, as it was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallStatus {
    pub code: u16,
    /// As it stands in the field.
    pub message: Vec<u8>,
    /// `google.rpc.Status`, encoded.
    details: Vec<u8>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct StatusDetails {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// Which details are decoded, and how.
pub(super) struct DetailForm<'a> {
    pub message: Option<&'a MessageDescriptor>,
    pub json: &'a JsonForm,
}

impl CallStatus {
    pub(super) const OK: u16 = 0;
    pub(super) const CANCELLED: u16 = 1;
    const UNKNOWN: u16 = 2;
    pub(super) const DEADLINE_EXCEEDED: u16 = 4;
    const INTERNAL: u16 = 13;
    const UNAVAILABLE: u16 = 14;

    /// The status in the fields of a head or of trailers; `None` if there is none.
    pub(super) fn of<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<CallStatus> {
        let (mut code, mut status) = (None, CallStatus::default());
        for (name, value) in fields {
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            if is(CODE) {
                code =
                    Some(str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(CallStatus::UNKNOWN));
            } else if is(MESSAGE) {
                status.message = value.to_vec();
            } else if is(DETAILS) {
                status.details = BIN.decode(value).unwrap_or_default();
            }
        }
        code.map(|code| CallStatus { code, ..status })
    }

    /// Of a call that has had no answer, by the status that the gateway gives for it.
    pub(super) fn of_gateway(http_status: u16) -> Option<CallStatus> {
        match http_status {
            504 => Some(CallStatus::here(CallStatus::DEADLINE_EXCEEDED, "the service did not answer in time")),
            502 | 503 => Some(CallStatus::here(CallStatus::UNAVAILABLE, "the service could not be reached")),
            _ => None,
        }
    }

    fn here(code: u16, message: &str) -> CallStatus {
        CallStatus { code, message: message.as_bytes().to_vec(), details: Vec::new() }
    }

    /// The server has sent none.
    pub(super) fn missing() -> CallStatus {
        CallStatus::here(CallStatus::UNKNOWN, "the call ended without a status")
    }

    /// What the server has sent cannot be given to the client.
    pub(super) fn not_transcoded(problem: &str) -> CallStatus {
        CallStatus::here(CallStatus::INTERNAL, problem)
    }

    /// The content ended within a message.
    pub(super) fn cut() -> CallStatus {
        CallStatus::here(CallStatus::UNAVAILABLE, "the answer ended within a message")
    }

    pub(super) fn http_status(&self) -> u16 {
        match self.code {
            CallStatus::OK => 200,
            CallStatus::CANCELLED => 499,
            3 | 9 | 11 => 400,
            CallStatus::DEADLINE_EXCEEDED => 504,
            5 => 404,
            6 | 10 => 409,
            7 => 403,
            8 => 429,
            12 => 501,
            CallStatus::UNAVAILABLE => 503,
            16 => 401,
            // UNKNOWN, INTERNAL, DATA_LOSS, and codes that are not defined.
            _ => 500,
        }
    }

    /// `{"error":{"code":5,"message":"…","details":[…]}}`; without details if there are none.
    pub(super) fn to_json(&self, form: &DetailForm<'_>) -> Vec<u8> {
        let message = Value::from(percent_decode(&self.message).decode_utf8_lossy());
        let details = StatusDetails::decode(&*self.details).unwrap_or_default().details;
        let mut out = format!("{{\"error\":{{\"code\":{},\"message\":{message}", self.code).into_bytes();
        for (index, detail) in details.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b",\"details\":[" } else { b"," });
            form.detail(detail, &mut out);
        }
        out.extend_from_slice(if details.is_empty() { b"}}" } else { b"]}}" });
        out
    }
}

impl DetailForm<'_> {
    /// A detail of another type than the one that is decoded has its type and its bytes in base64, as in APISIX.
    fn detail(&self, detail: &Any, out: &mut Vec<u8>) {
        let name = detail.type_url.rsplit('/').next().unwrap_or_default();
        let before = out.len();
        if let Some(message) = self.message.filter(|message| message.full_name() == name)
            && self.json.write(message, &detail.value, out).is_ok()
        {
            return;
        }
        out.truncate(before);
        let other = json!({ "type_url": detail.type_url, "value": BIN.encode(&detail.value) });
        out.extend_from_slice(other.to_string().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::SerializeOptions;
    use weir_plugin::ProtoDefinitions;

    use super::*;

    fn status(fields: &[(&str, &str)]) -> Option<CallStatus> {
        CallStatus::of(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    #[test]
    fn statuses_are_mapped_as_in_apisix() {
        let mapped = [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401, 500];
        for (code, want) in mapped.into_iter().enumerate() {
            let status = status(&[("grpc-status", &code.to_string())]).expect("there is one");
            assert_eq!(status.http_status(), want, "{code}");
        }
        assert_eq!(status(&[("grpc-message", "a")]), None);
        for wrong in ["", "x", "-1", "70000"] {
            assert_eq!(status(&[("Grpc-Status", wrong)]).expect("there is one").http_status(), 500, "{wrong}");
        }
    }

    #[test]
    fn details_are_decoded_if_they_have_the_type() {
        let text = "syntax = \"proto3\"; package t; message Detail { int64 number = 1; }";
        let definitions = ProtoDefinitions::parse(text).expect("valid");
        let message = definitions.pool().get_message_by_name("t.Detail").expect("defined");
        let options = SerializeOptions::new().stringify_64_bit_integers(false);
        let json = JsonForm { options, hexadecimal: false, most: 1000 };
        let detail =
            |name: &str, value: &[u8]| Any { type_url: format!("type.googleapis.com/{name}"), value: value.to_vec() };
        let details = vec![detail("t.Detail", &[8, 7]), detail("t.Other", &[1]), detail("t.Detail", &[255])];
        let encoded = StatusDetails { details }.encode_to_vec();
        let coded = BIN.encode(encoded);
        let told = |coded: &str, message: Option<&MessageDescriptor>| {
            let fields = [("grpc-status", "5"), ("grpc-message", "no%20%22a%22"), ("grpc-status-details-bin", coded)];
            let told = status(&fields).expect("there is one").to_json(&DetailForm { message, json: &json });
            serde_json::from_slice::<Value>(&told).expect("JSON")
        };
        for coded in [&*coded, coded.trim_end_matches('=')] {
            assert_eq!(
                told(coded, Some(&message)),
                json!({"error": {"code": 5, "message": "no \"a\"", "details": [
                    {"number": 7},
                    {"type_url": "type.googleapis.com/t.Other", "value": "AQ=="},
                    {"type_url": "type.googleapis.com/t.Detail", "value": "/w=="},
                ]}})
            );
        }
        let raw = told(&coded, None);
        assert_eq!(raw["error"]["details"][0]["value"], "CAc=");
        for broken in ["", "?", "AAAA"] {
            assert_eq!(told(broken, None), json!({"error": {"code": 5, "message": "no \"a\""}}));
        }
    }
}
