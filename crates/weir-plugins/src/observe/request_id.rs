use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

use crate::options::headers::header_name;

/// Adds an id to each request, for the upstream, the client and the logs.
///
/// An id that the client sends is kept.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestId {
    /// The header field that carries the id.
    #[serde(default = "default_header_name")]
    header_name: String,
    /// Adds the id to the response, unless the response has one already.
    #[serde(default = "default_true")]
    include_in_response: bool,
    /// The algorithm that generates ids.
    #[serde(default)]
    algorithm: IdAlgorithm,
    /// The form of ids with the algorithm `range_id`.
    #[serde(default)]
    #[schemars(extend("x-weir-only-if" = { "algorithm": ["range_id"] }))]
    range_id: RangeId,
}

/// The algorithm that generates ids.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum IdAlgorithm {
    /// A random UUID (RFC 9562, version 4).
    #[default]
    Uuid,
    /// A UUID that sorts by time (RFC 9562, version 7).
    UuidV7,
    /// 21 random characters of `A-Za-z0-9_-`.
    NanoId,
    /// Random characters, as the option `range_id` defines.
    #[serde(rename = "range_id")]
    RangeId,
    /// 27 characters that sort by time: the seconds since May 2014, and 128 random bits.
    Ksuid,
}

/// The form of ids with the algorithm `range_id`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RangeId {
    /// The number of characters, at least 6.
    #[serde(default = "default_length")]
    #[schemars(range(min = 6, max = 256))]
    length: usize,
    /// The characters ids are made of, at least 6.
    #[serde(default = "default_char_set")]
    #[schemars(length(min = 6))]
    char_set: String,
}

impl Default for RangeId {
    fn default() -> RangeId {
        RangeId { length: default_length(), char_set: default_char_set() }
    }
}

fn default_header_name() -> String {
    "X-Request-Id".to_owned()
}

fn default_true() -> bool {
    true
}

fn default_length() -> usize {
    16
}

fn default_char_set() -> String {
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIGKLMNOPQRSTUVWXYZ0123456789".to_owned()
}

impl Definition for RequestId {
    const NAME: &'static str = "request-id";
    const PRIORITY: i32 = 12015;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "request-id: { algorithm: uuidv7 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let RangeId { length, char_set } = self.range_id;
        if !char_set.bytes().all(|byte| byte.is_ascii_graphic()) {
            build.fault("range_id.char_set", "has a character that is not visible ASCII");
        }
        let name = header_name(&self.header_name, "header_name")?.into();
        let maker = match self.algorithm {
            IdAlgorithm::Uuid => IdGenerator::Uuid,
            IdAlgorithm::UuidV7 => IdGenerator::UuidV7,
            IdAlgorithm::NanoId => IdGenerator::Characters { length: 21, of: NANO_ID.into() },
            IdAlgorithm::RangeId => IdGenerator::Characters { length, of: char_set.into_bytes().into() },
            IdAlgorithm::Ksuid => IdGenerator::Ksuid,
        };
        Ok(Arc::new(Identifier { name, maker, include_in_response: self.include_in_response }))
    }
}

const NANO_ID: &[u8] = b"useandom-26T198340PX75pxJACKVERYMINDBUSHWOLF_GQZbfghjklqvwyzrict";
const BASE_62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The epoch of KSUIDs, in seconds since 1970.
const KSUID_EPOCH: u64 = 1_400_000_000;

struct Identifier {
    name: Box<[u8]>,
    maker: IdGenerator,
    include_in_response: bool,
}

enum IdGenerator {
    Uuid,
    UuidV7,
    Characters { length: usize, of: Box<[u8]> },
    Ksuid,
}

impl IdGenerator {
    fn make(&self) -> Vec<u8> {
        let since_1970 = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let hyphenated = |uuid: uuid::Uuid| uuid.hyphenated().encode_lower(&mut [0; 36]).as_bytes().to_vec();
        match self {
            IdGenerator::Uuid => hyphenated(uuid::Builder::from_random_bytes(rand::random()).into_uuid()),
            IdGenerator::UuidV7 => {
                let ms = since_1970().as_millis() as u64;
                hyphenated(uuid::Builder::from_unix_timestamp_millis(ms, &rand::random()).into_uuid())
            }
            IdGenerator::Characters { length, of } => {
                (0..*length).map(|_| of[rand::random_range(0..of.len())]).collect()
            }
            IdGenerator::Ksuid => {
                let seconds = since_1970().as_secs().saturating_sub(KSUID_EPOCH) as u32;
                ksuid(seconds, rand::random())
            }
        }
    }
}

/// The KSUID in base 62: 160 bits in 27 digits, the most significant first.
fn ksuid(seconds: u32, random: u128) -> Vec<u8> {
    let mut words = [seconds, (random >> 96) as u32, (random >> 64) as u32, (random >> 32) as u32, random as u32];
    let mut digits = vec![0; 27];
    for digit in digits.iter_mut().rev() {
        let mut remainder = 0u64;
        for word in &mut words {
            let value = remainder << 32 | u64::from(*word);
            *word = (value / 62) as u32;
            remainder = value % 62;
        }
        *digit = BASE_62[remainder as usize];
    }
    digits
}

impl Plugin for Identifier {
    fn phases(&self) -> Phases {
        if self.include_in_response { Phases::REQUEST.and(Phases::RESPONSE) } else { Phases::REQUEST }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let head = &mut exchange.request.head;
        let id = match head.value(&self.name) {
            Some(id) if !id.is_empty() => id.to_vec(),
            _ => {
                let id = self.maker.make();
                head.set(&self.name, &id).map_err(|_| Stop::Internal)?;
                id
            }
        };
        exchange.set_request_id(id);
        Ok(Flow::Continue)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if let Some(id) = exchange.request.head.value(&self.name)
            && exchange.response.head.value(&self.name).is_none()
        {
            exchange.response.head.add(&self.name, id).map_err(|_| Stop::Internal)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{build, exchange, get, on_request, refused, sent};

    fn id(options: Value) -> String {
        let mut exchange = get("/");
        let step = build::<RequestId>(options);
        on_request(&step, &mut exchange).expect("let through");
        step.on_response(&mut exchange).expect("let through");
        let id = sent(&exchange, "x-request-id").expect("an id").to_owned();
        assert_eq!(exchange.request.head.value(b"x-request-id"), Some(id.as_bytes()));
        id
    }

    #[test]
    fn ids_have_the_shape_of_their_algorithm() {
        let uuid = id(json!({}));
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"));
        assert_ne!(uuid, id(json!({})));
        let (first, second) = (id(json!({"algorithm": "uuidv7"})), id(json!({"algorithm": "uuidv7"})));
        assert!(first[..8] <= second[..8] && &first[14..15] == "7", "{first} {second}");
        assert_eq!(id(json!({"algorithm": "nanoid"})).len(), 21);
        assert_eq!(id(json!({"algorithm": "ksuid"})).len(), 27);
        let range = id(json!({"algorithm": "range_id", "range_id": {"length": 8, "char_set": "abcdef"}}));
        assert!(range.len() == 8 && range.bytes().all(|byte| (b'a'..=b'f').contains(&byte)), "{range}");
    }

    #[test]
    fn a_ksuid_is_a_number_in_base_62() {
        assert_eq!(ksuid(0, 0), [b'0'; 27]);
        assert_eq!(ksuid(0, 62), [[b'0'; 25].as_slice(), b"10"].concat());
        assert_eq!(ksuid(u32::MAX, u128::MAX), b"aWgEPTl1tmebfsQzFP4bxwgy80V");
    }

    #[test]
    fn existing_request_id_stays() {
        let step = build::<RequestId>(json!({}));
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h\nx-request-id: abc");
        on_request(&step, &mut exchange).expect("let through");
        step.on_response(&mut exchange).expect("let through");
        assert_eq!(sent(&exchange, "x-request-id"), Some("abc"));
        exchange.response.head.set(b"X-Request-Id", b"upstream's").expect("valid");
        step.on_response(&mut exchange).expect("let through");
        assert_eq!(sent(&exchange, "x-request-id"), Some("upstream's"));
        let silent = build::<RequestId>(json!({"include_in_response": false}));
        assert!(!silent.phases().response);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"header_name": "a b"}), "header_name: is not the name"),
            (json!({"algorithm": "snowflake"}), "algorithm: `snowflake` is not an allowed value"),
        ] {
            let error = refused::<RequestId>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
