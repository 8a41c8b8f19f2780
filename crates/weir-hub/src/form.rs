//! Parses the requests of subscribers and publishers to a hub (W3C WebSub §5.1, §6), from the request alone.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::limit::DeliveryLimit;
use crate::settings::HubSettings;
use crate::topic::{is_http_url, normalized};

/// A request in the form of §5.1, or a publisher's ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubForm {
    Subscribe(SubscriptionRequest),
    /// These topics have new content, which the hub fetches (§6).
    Ping(Vec<Box<str>>),
}

/// A request to subscribe or unsubscribe.
#[derive(Clone, PartialEq, Eq)]
pub struct SubscriptionRequest {
    pub mode: SubscriptionMode,
    pub topic: Box<str>,
    pub callback: Box<str>,
    /// The granted lease, in seconds.
    pub lease_s: u64,
    pub secret: Option<Box<[u8]>>,
    /// The consumer that sent the request; empty if none.
    pub owner: Box<str>,
    /// The client that sent the request: its consumer, or its address.
    pub client: Box<str>,
    /// Limits of the deliveries to the subscription.
    pub limits: Box<[DeliveryLimit]>,
}

impl fmt::Debug for SubscriptionRequest {
    /// Omits the secret, and the callback's path and query, which may contain another.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriptionRequest")
            .field("mode", &self.mode)
            .field("topic", &self.topic)
            .field("callback", &crate::topic::origin_of(&self.callback))
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionMode {
    Subscribe,
    Unsubscribe,
}

impl SubscriptionMode {
    pub fn name(self) -> &'static str {
        match self {
            SubscriptionMode::Subscribe => "subscribe",
            SubscriptionMode::Unsubscribe => "unsubscribe",
        }
    }
}

/// A refusal: a status, and the reason for the caller in plain text (§5.1.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub reason: String,
    pub retry_after_s: Option<u64>,
    /// The value of `WWW-Authenticate`.
    pub challenge: Option<String>,
}

impl Refusal {
    pub fn new(status: u16, reason: impl Into<String>) -> Refusal {
        Refusal { status, reason: reason.into(), retry_after_s: (status == 503).then_some(1), challenge: None }
    }
}

/// §5.1: the secret is less than 200 bytes.
const MAX_SECRET_BYTES: usize = 199;
/// The most topics in one ping.
const MAX_PINGS: usize = 100;

/// Parses the decoded pairs of a form. Unknown fields are ignored (§5.1).
///
/// # Errors
/// A field is missing, repeated or invalid.
pub fn read<'a>(
    pairs: impl Iterator<Item = (std::borrow::Cow<'a, [u8]>, std::borrow::Cow<'a, [u8]>)>,
    settings: &HubSettings,
) -> Result<HubForm, Refusal> {
    let mut form = FormFields::default();
    for (name, value) in pairs {
        form.add(&name, &value)?;
    }
    match form.mode.as_deref() {
        Some("subscribe") => form.subscription(SubscriptionMode::Subscribe, settings).map(HubForm::Subscribe),
        Some("unsubscribe") => form.subscription(SubscriptionMode::Unsubscribe, settings).map(HubForm::Subscribe),
        Some("publish") => form.ping(settings).map(HubForm::Ping),
        Some(_) => Err(Refusal::new(400, "`hub.mode` is neither `subscribe`, `unsubscribe` nor `publish`")),
        None => Err(Refusal::new(400, "`hub.mode` is missing")),
    }
}

#[derive(Default)]
struct FormFields {
    mode: Option<String>,
    callback: Option<String>,
    topics: Vec<String>,
    urls: Vec<String>,
    lease: Option<String>,
    secret: Option<Vec<u8>>,
}

impl FormFields {
    fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if name == b"hub.secret" {
            return match self.secret.replace(value.to_vec()) {
                None => Ok(()),
                Some(_) => Err(Refusal::new(400, "`hub.secret` is given twice")),
            };
        }
        let one = match name {
            b"hub.mode" => &mut self.mode,
            b"hub.callback" => &mut self.callback,
            b"hub.lease_seconds" => &mut self.lease,
            b"hub.topic" | b"hub.url" => {
                let list = if name == b"hub.topic" { &mut self.topics } else { &mut self.urls };
                list.push(text(name, value)?);
                return Ok(());
            }
            _ => return Ok(()),
        };
        match one.replace(text(name, value)?) {
            None => Ok(()),
            Some(_) => Err(Refusal::new(400, format!("`{}` is given twice", String::from_utf8_lossy(name)))),
        }
    }

    fn subscription(self, mode: SubscriptionMode, settings: &HubSettings) -> Result<SubscriptionRequest, Refusal> {
        let callback = self.callback.ok_or_else(|| Refusal::new(400, "`hub.callback` is missing"))?;
        let [topic] = <[String; 1]>::try_from(self.topics).map_err(|topics| match topics.len() {
            0 => Refusal::new(400, "`hub.topic` is missing"),
            _ => Refusal::new(400, "`hub.topic` is given twice"),
        })?;
        if !is_http_url(&callback) {
            let reason =
                "`hub.callback` is not an absolute http or https URL of ASCII characters, without user and fragment";
            return Err(Refusal::new(400, reason));
        }
        if settings.subscribe.callbacks.require_https && !callback.starts_with("https://") {
            return Err(Refusal::new(400, "`hub.callback` is not an https URL, and this hub requires https"));
        }
        let secret = self.secret.filter(|secret| !secret.is_empty());
        if secret.as_ref().is_some_and(|secret| secret.len() > MAX_SECRET_BYTES) {
            return Err(Refusal::new(400, "`hub.secret` is longer than 199 bytes"));
        }
        let lease_s = match mode {
            SubscriptionMode::Subscribe => settings.subscribe.lease.granted_s(lease(self.lease.as_deref())?),
            // §5.1: the lease of an unsubscription is ignored.
            SubscriptionMode::Unsubscribe => 0,
        };
        Ok(SubscriptionRequest {
            mode,
            topic: known_topic(&topic, settings)?,
            callback: callback.into(),
            lease_s,
            secret: secret.map(Box::from),
            owner: Box::default(),
            client: Box::default(),
            limits: Box::default(),
        })
    }

    /// PubSubHubbub publishers send `hub.url`, others `hub.topic`.
    fn ping(self, settings: &HubSettings) -> Result<Vec<Box<str>>, Refusal> {
        let named = self.topics.into_iter().chain(self.urls);
        let mut topics = named.map(|topic| known_topic(&topic, settings)).collect::<Result<Vec<_>, _>>()?;
        topics.dedup();
        match topics.len() {
            0 => Err(Refusal::new(400, "`hub.topic` or `hub.url` is required")),
            1..=MAX_PINGS => Ok(topics),
            _ => Err(Refusal::new(400, format!("more than {MAX_PINGS} topics"))),
        }
    }
}

fn text(name: &[u8], value: &[u8]) -> Result<String, Refusal> {
    String::from_utf8(value.to_vec())
        .map_err(|_| Refusal::new(400, format!("`{}` is not UTF-8", String::from_utf8_lossy(name))))
}

/// Digits of any length; a value that overflows counts as longer than any lease.
fn lease(text: Option<&str>) -> Result<Option<u64>, Refusal> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && text.bytes().any(|byte| byte != b'0');
    match is_number {
        true => Ok(Some(text.parse().unwrap_or(u64::MAX))),
        false => Err(Refusal::new(400, "`hub.lease_seconds` is not a positive whole number")),
    }
}

/// The normalised form of a topic of this hub.
///
/// # Errors
/// The hub has no such topic.
pub fn known_topic(topic: &str, settings: &HubSettings) -> Result<Box<str>, Refusal> {
    let topic = normalized(topic);
    let is_known = is_http_url(&topic) && settings.has_topic(&topic);
    match is_known {
        true => Ok(topic.into()),
        // The topics are not listed: the caller may have no right to any.
        false => Err(Refusal::new(404, "this hub has no such topic; its option `topics` lists those that it has")),
    }
}

/// All but unreserved characters (RFC 3986 §2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A callback with the parameters of a verification or denial appended; its own stay as they are (§5.2, §5.3).
pub(crate) fn with_parameters(callback: &str, parameters: &[(&str, &str)]) -> String {
    let mut url = callback.to_owned();
    let mut separator = if callback.contains('?') { '&' } else { '?' };
    for (name, value) in parameters {
        url.push(separator);
        url.push_str(name);
        url.push('=');
        url.extend(utf8_percent_encode(value, RESERVED));
        separator = '&';
    }
    url
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::engine::tests::settings;

    fn read_pairs(pairs: &[(&str, &[u8])]) -> Result<HubForm, Refusal> {
        let pairs = pairs.iter().map(|(name, value)| (Cow::from(name.as_bytes()), Cow::from(*value)));
        read(pairs, &settings())
    }

    fn subscription(more: &[(&str, &[u8])]) -> Result<SubscriptionRequest, Refusal> {
        let required: &[(&str, &[u8])] = &[
            ("hub.mode", b"subscribe"),
            ("hub.topic", b"http://t.example/1"),
            ("hub.callback", b"http://c.example/?a=b"),
        ];
        match read_pairs(&[required, more].concat())? {
            HubForm::Subscribe(request) => Ok(request),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn websub_5_1_the_three_required_fields_do() {
        let request = subscription(&[("foo", b"bar"), ("hub.foo", b"hub.bar")]).expect("taken");
        assert_eq!((&*request.topic, &*request.callback), ("http://t.example/1", "http://c.example/?a=b"));
        assert_eq!((request.secret, request.lease_s), (None, 864_000));
    }

    #[test]
    fn websub_5_1_leases_are_positive_numbers_within_bounds() {
        for (asked, granted) in
            [("600", 600), ("1", 300), ("1000000000000", 2_592_000), ("99999999999999999999999", 2_592_000)]
        {
            assert_eq!(
                subscription(&[("hub.lease_seconds", asked.as_bytes())]).expect(asked).lease_s,
                granted,
                "{asked}"
            );
        }
        for wrong in ["0", "-1", "soon", "1.5", "00"] {
            assert_eq!(
                subscription(&[("hub.lease_seconds", wrong.as_bytes())]).expect_err(wrong).status,
                400,
                "{wrong}"
            );
        }
    }

    #[test]
    fn websub_5_1_a_secret_has_less_than_200_bytes() {
        let secret = |length| subscription(&[("hub.secret", &vec![b's'; length])]);
        assert_eq!(secret(199).expect("taken").secret.map(|secret| secret.len()), Some(199));
        assert_eq!(secret(200).expect_err("too long").status, 400);
        assert!(!format!("{:?}", subscription(&[("hub.secret", b"hidden")]).expect("taken")).contains("hidden"));
    }

    #[test]
    fn malformed_requests_are_refused() {
        let mode: (&str, &[u8]) = ("hub.mode", b"subscribe");
        let topic: (&str, &[u8]) = ("hub.topic", b"http://t.example/1");
        let callback: (&str, &[u8]) = ("hub.callback", b"http://c.example/");
        for (pairs, status) in [
            (vec![topic, callback], 400),
            (vec![mode, callback], 400),
            (vec![mode, topic], 400),
            (vec![mode, mode, topic, callback], 400),
            (vec![mode, topic, topic, callback], 400),
            (vec![("hub.mode", b"list".as_slice()), topic, callback], 400),
            (vec![mode, ("hub.topic", b"http://other.example/"), callback], 404),
            (vec![mode, topic, ("hub.callback", b"ftp://c.example/")], 400),
            (vec![mode, topic, ("hub.callback", b"http://u:p@c.example/")], 400),
            (vec![mode, topic, ("hub.callback", b"http://c.example/\xff")], 400),
        ] {
            assert_eq!(read_pairs(&pairs).expect_err("refused").status, status, "{pairs:?}");
        }
    }

    #[test]
    fn pings_name_topics_in_either_way() {
        let publish: (&str, &[u8]) = ("hub.mode", b"publish");
        let pings = |pairs: &[(&str, &[u8])]| read_pairs(&[&[publish], pairs].concat());
        let topics = |topics: &[&str]| Ok(HubForm::Ping(topics.iter().map(|topic| (*topic).into()).collect()));
        assert_eq!(pings(&[("hub.url", b"http://t.example/1")]), topics(&["http://t.example/1"]));
        let two: &[(&str, &[u8])] = &[("hub.url", b"http://t.example/1"), ("hub.url", b"http://t.example/%7E2")];
        assert_eq!(pings(two), topics(&["http://t.example/1", "http://t.example/~2"]));
        assert_eq!(pings(&[]).expect_err("nothing is published").status, 400);
    }

    #[test]
    fn websub_5_3_parameters_are_appended_to_the_callback() {
        let parameters = [("hub.mode", "subscribe"), ("hub.topic", "http://a/?b=c&d")];
        let appended = "hub.mode=subscribe&hub.topic=http%3A%2F%2Fa%2F%3Fb%3Dc%26d";
        assert_eq!(with_parameters("http://c/x", &parameters), format!("http://c/x?{appended}"));
        let callback = "http://c/x?hub.mode=mine";
        assert_eq!(with_parameters(callback, &parameters), format!("{callback}&{appended}"));
    }
}
