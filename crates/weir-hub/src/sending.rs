//! The hub's requests: notifications, verifications, denials, and fetches of topics.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use weir_client::{
    AddressFilter, AnswerContent, CallError, CallSettings, HttpClient, HttpClientSettings, IdleConnections, ServiceUrl,
};

use crate::attempt::{DeliveryFailure, DeliveryOutcome, NoAnswerReason};
use crate::engine::{Delivery, Denial, Verification};
use crate::form::{Refusal, with_parameters};
use crate::record::Event;
use crate::settings::HubSettings;
use crate::signature::{sign, sign_standard};
use crate::topic::origin_of;
use crate::verification::VerificationFailure;

const HUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature");
const AGENT: &str = concat!("Weir-Hub/", env!("CARGO_PKG_VERSION"));
/// Random bytes of a challenge.
const CHALLENGE_BYTES: usize = 24;
/// How long a subscriber may take to answer a verification, connecting included.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(30);
/// An answer's content does not matter (W3C WebSub §7). This much of it is read so that the connection can be used again.
const MAX_ANSWER_BYTES: usize = 64 << 10;
const ANSWER_CONTENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends the hub's requests.
#[derive(Clone)]
pub(crate) struct HubSender {
    settings: Arc<HubSettings>,
    base: HttpClientSettings,
    /// Connects only to publicly routed addresses, except those that the configuration allows.
    callbacks: HttpClient,
    /// Fetches from origins that the configuration names.
    topics: HttpClient,
    how: CallSettings,
}

impl HubSender {
    /// `base` has the node's settings for resolving names and trusting certificates.
    pub(crate) fn new(settings: Arc<HubSettings>, base: &HttpClientSettings) -> HubSender {
        let allowed = settings.subscribe.callbacks.allow.clone();
        let addresses = AddressFilter { public_only: true, allowed, denied: Vec::new() };
        let callbacks = HttpClient::new(HttpClientSettings { addresses, ..base.clone() });
        let timeout = settings.delivery.timeout;
        let max_per_origin = settings.delivery.in_flight_per_host as usize;
        let how = CallSettings {
            connect_timeout: timeout.min(Duration::from_secs(5)),
            timeout,
            idle: IdleConnections { max_per_origin, ..IdleConnections::default() },
            max_content_bytes: MAX_ANSWER_BYTES,
            ..CallSettings::default()
        };
        HubSender { settings, base: base.clone(), callbacks, topics: HttpClient::new(base.clone()), how }
    }

    /// A sender with other settings. It keeps the open connections unless the settings concern them.
    pub(crate) fn with(&self, settings: Arc<HubSettings>, base: &HttpClientSettings) -> HubSender {
        let of_connections = |settings: &HubSettings| {
            let HubSettings { subscribe, delivery, .. } = settings;
            (subscribe.callbacks.allow.clone(), delivery.timeout, delivery.in_flight_per_host)
        };
        match self.base == *base && of_connections(&self.settings) == of_connections(&settings) {
            true => HubSender { settings, ..self.clone() },
            false => HubSender::new(settings, base),
        }
    }

    /// One attempt at a notification (§7).
    pub(crate) async fn deliver(&self, delivery: &Delivery, event: &Event) -> DeliveryOutcome {
        let Ok(to) = ServiceUrl::parse(&delivery.callback) else {
            return DeliveryOutcome::NoAnswer(NoAnswerReason::Unknown);
        };
        let mut request = Request::new(event.content.clone());
        *request.method_mut() = Method::POST;
        let fields = request.headers_mut();
        fields.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Ok(content_type) = HeaderValue::from_str(&event.content_type)
            && !event.content_type.is_empty()
        {
            fields.insert(CONTENT_TYPE, content_type);
        }
        if let Ok(links) = HeaderValue::from_str(&links(&self.settings.url, &event.topic)) {
            fields.insert(LINK, links);
        }
        if let Some(secret) = &delivery.secret {
            let signature = sign(self.settings.subscribe.signature, secret, &event.content);
            fields.insert(HUB_SIGNATURE, HeaderValue::try_from(signature).expect("a name and hexadecimal digits"));
        }
        if self.settings.subscribe.standard_webhooks {
            put_standard(fields, delivery, event);
        }
        match self.callbacks.open(&to, request, &self.how).await {
            Ok(answer) => {
                let outcome = outcome_of(&answer);
                let rest = pass_over(answer.into_body());
                let _ = tokio::time::timeout(ANSWER_CONTENT_TIMEOUT, rest).await;
                outcome
            }
            Err(error) => DeliveryOutcome::NoAnswer(NoAnswerReason::of(&error)),
        }
    }

    /// Asks a subscriber to confirm its request (§5.3): only a 2xx with exactly the challenge as content confirms it.
    ///
    /// # Errors
    /// Why it is not confirmed.
    pub(crate) async fn verify(&self, verification: &Verification) -> Result<(), VerificationFailure> {
        let mut random = [0; CHALLENGE_BYTES];
        rand::fill(&mut random).map_err(|_| NoAnswerReason::Unknown)?;
        let challenge = URL_SAFE_NO_PAD.encode(random);
        let lease = verification.lease_s.to_string();
        let mut parameters = vec![
            ("hub.mode", verification.mode.name()),
            ("hub.topic", &*verification.topic),
            ("hub.challenge", &*challenge),
        ];
        if verification.lease_s > 0 {
            parameters.push(("hub.lease_seconds", &lease));
        }
        let how = CallSettings { timeout: VERIFICATION_TIMEOUT, max_content_bytes: 4 << 10, ..self.how.clone() };
        let answer = self.get(&self.callbacks, &with_parameters(&verification.callback, &parameters), &how).await;
        let answer = answer.map_err(|error| match error {
            // The challenge is shorter.
            CallError::AnswerTooLarge { .. } => VerificationFailure::WrongChallenge,
            error => NoAnswerReason::of(&error).into(),
        })?;
        match answer.status() {
            status if !status.is_success() => {
                Err(VerificationFailure::Failed(DeliveryFailure::Status(status.as_u16())))
            }
            _ if answer.body() != challenge.as_bytes() => Err(VerificationFailure::WrongChallenge),
            _ => Ok(()),
        }
    }

    /// Informs a subscriber that its subscription was ended (§5.2). The answer is ignored.
    pub(crate) async fn deny(&self, denial: &Denial) {
        let parameters = [("hub.mode", "denied"), ("hub.topic", &*denial.topic), ("hub.reason", &*denial.reason)];
        let url = with_parameters(&denial.callback, &parameters);
        let _ = self.get(&self.callbacks, &url, &self.how).await;
    }

    /// Fetches the content of a topic; returns its type and the content.
    ///
    /// # Errors
    /// The configuration does not allow to fetch from this origin, or the fetch failed.
    pub(crate) async fn fetch(&self, topic: &str) -> Result<(Box<str>, Bytes), Refusal> {
        let origin = origin_of(topic).unwrap_or_default();
        if !self.settings.publish.fetch.iter().any(|allowed| **allowed == *origin) {
            let reason = "this hub does not fetch content from this origin: send the content in the request";
            return Err(Refusal::new(403, reason));
        }
        let max_content_bytes = self.settings.publish.max_bytes;
        let how = CallSettings { timeout: VERIFICATION_TIMEOUT, max_content_bytes, ..self.how.clone() };
        let failed =
            |reason: String| Refusal::new(502, format!("the content of the topic could not be fetched: {reason}"));
        let answer = self.get(&self.topics, topic, &how).await.map_err(|error| failed(error.to_string()))?;
        if !answer.status().is_success() {
            return Err(failed(format!("the response status was {}", answer.status().as_u16())));
        }
        let content_type = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Ok((content_type.into(), answer.into_body()))
    }

    async fn get(&self, client: &HttpClient, url: &str, how: &CallSettings) -> Result<Response<Bytes>, CallError> {
        let to = ServiceUrl::parse(url).map_err(|error| CallError::Request(error.to_string()))?;
        let request = Request::get(to.target().clone()).header(USER_AGENT, AGENT).body(Bytes::new());
        client.call(&to, request.map_err(|error| CallError::Request(error.to_string()))?, how).await
    }
}

/// Adds the fields of Standard Webhooks. The id of an event is the same for all attempts and all subscribers.
fn put_standard(fields: &mut HeaderMap, delivery: &Delivery, event: &Event) {
    let id = format!("{}-{}", event.time_ms, event.seq);
    let timestamp_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if let Some(secret) = &delivery.secret {
        let signature = sign_standard(secret, &id, timestamp_s, &event.content);
        fields.insert("webhook-signature", HeaderValue::try_from(signature).expect("a version and base64"));
    }
    fields.insert("webhook-id", HeaderValue::try_from(id).expect("numbers"));
    fields.insert("webhook-timestamp", HeaderValue::from(timestamp_s));
}

/// The value of `Link`: at least one `hub`, and exactly one `self`, in one field (§7).
pub fn links(hub: &str, topic: &str) -> String {
    format!("<{hub}>; rel=\"hub\", <{topic}>; rel=\"self\"")
}

fn outcome_of(answer: &Response<AnswerContent>) -> DeliveryOutcome {
    match answer.status() {
        status if status.is_success() => DeliveryOutcome::Delivered,
        StatusCode::GONE => DeliveryOutcome::Gone,
        status => {
            let wait_ms = answer.headers().get(RETRY_AFTER).and_then(|value| retry_after_ms(value, SystemTime::now()));
            DeliveryOutcome::Refused { status: status.as_u16(), wait_ms }
        }
    }
}

/// Parses `Retry-After`: seconds, or a date (RFC 9110 §10.2.3).
fn retry_after_ms(value: &HeaderValue, now: SystemTime) -> Option<u64> {
    let text = value.to_str().ok()?.trim();
    match text.parse::<u64>() {
        Ok(seconds) => Some(seconds.saturating_mul(1_000)),
        Err(_) => {
            let at = httpdate::parse_http_date(text).ok()?;
            Some(at.duration_since(now).unwrap_or_default().as_millis() as u64)
        }
    }
}

async fn pass_over(mut content: AnswerContent) {
    while let Ok(Some(_)) = content.next().await {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_webhooks_have_an_id_that_stays_and_the_time_of_the_attempt() {
        let (topic, content) = ("http://t/".into(), Bytes::from_static(b"content"));
        let event = Event { seq: 7, time_ms: 1_000, topic, content_type: Box::default(), content };
        let mut delivery =
            Delivery { subscription: 1, seq: 7, callback: "http://c/".into(), secret: None, is_replay: false };
        let mut unsigned = HeaderMap::new();
        put_standard(&mut unsigned, &delivery, &event);
        assert_eq!(unsigned["webhook-id"], "1000-7");
        assert!(!unsigned.contains_key("webhook-signature"));
        delivery.secret = Some(Box::from(*b"secret"));
        let mut signed = HeaderMap::new();
        put_standard(&mut signed, &delivery, &event);
        let timestamp_s = signed["webhook-timestamp"].to_str().expect("digits").parse().expect("seconds");
        assert_eq!(signed["webhook-id"], unsigned["webhook-id"]);
        assert_eq!(signed["webhook-signature"], sign_standard(b"secret", "1000-7", timestamp_s, b"content"));
    }

    #[test]
    fn waits_are_seconds_or_dates() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let wait = |text: &'static str| retry_after_ms(&HeaderValue::from_static(text), now);
        assert_eq!(wait("120"), Some(120_000));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:47 GMT"), Some(10_000));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:27 GMT"), Some(0));
        assert_eq!(wait("soon"), None);
    }
}
