//! POST to a hub: events, subscription requests, and pings.

use std::time::Duration;

use weir_hub::{HubForm, Refusal, known_topic, read_form};
use weir_plugin::{Content, Held, Reply, Stop, form};

use super::call::{HubCall, refuse};
use super::client_events::no_room;

/// The most bytes of a form.
const MAX_FORM_BYTES: usize = 64 << 10;
const FORM: &[u8] = b"application/x-www-form-urlencoded";

/// Responds to an event, or to a form.
pub(super) async fn answer(call: &HubCall, mut content: Content, reply: &mut Reply) -> Result<(), Stop> {
    let answered = match published_topic(call) {
        Ok(Some(topic)) => publish(call, &topic, &mut content).await?,
        Ok(None) => read_and_obey(call, &mut content).await?,
        Err(refusal) => Err(refusal),
    };
    match answered {
        Ok(accepted) => {
            let content = accepted.content(call);
            let (length, seconds) = (content.len().to_string(), accepted.wait_s().map(|seconds| seconds.to_string()));
            let kind = (!content.is_empty()).then_some(("Content-Type", "text/plain; charset=utf-8"));
            let wait = seconds.as_deref().map(|seconds| ("Retry-After", seconds));
            let fields: Vec<_> = kind.into_iter().chain(wait).chain([("Content-Length", &*length)]).collect();
            reply.begin(202, &fields);
            if !content.is_empty() {
                reply.send(content.as_bytes()).await;
            }
            Ok(())
        }
        Err(refusal) => refuse(reply, &refusal).await,
    }
}

/// What was accepted, and the content of the 202.
enum AcceptedForm {
    Event,
    /// A subscription request, and the time until its callback is asked, if it is known.
    Request(Option<Duration>),
}

impl AcceptedForm {
    /// The seconds until the callback is asked, rounded up, for `Retry-After` (RFC 9110 §10.2.3): a subscriber that was not asked by
    /// then may subscribe again. W3C WebSub leaves the fields and the content of the 202 open (§5.1.1).
    fn wait_s(&self) -> Option<u128> {
        match self {
            AcceptedForm::Request(Some(wait)) => Some(wait.as_millis().div_ceil(1_000).max(1)),
            AcceptedForm::Request(None) | AcceptedForm::Event => None,
        }
    }

    /// Tells a subscriber whose verification has to wait why.
    fn content(&self, call: &HubCall) -> String {
        let AcceptedForm::Request(Some(wait)) = self else { return String::new() };
        if *wait < Duration::from_secs(1) {
            return String::new();
        }
        let (seconds, rate) = (wait.as_millis().div_ceil(1_000), call.settings.subscribe.verifications_per_second);
        format!(
            "The callback will be verified within about {seconds} s: its host gets verifications at a rate of at most {rate} per second.\n"
        )
    }
}

/// The topic, if the request has the content of an event itself: from the query, or from the path if that is of a topic.
fn published_topic(call: &HubCall) -> Result<Option<String>, Refusal> {
    if call.argument("hub.mode")?.is_some_and(|mode| mode == "publish") {
        let topic = call.argument("hub.topic")?.or_else(|| call.topic_at_path());
        let missing = || Refusal::new(400, format!("`hub.topic` is missing in the query, and {}", call.other_topics()));
        return topic.ok_or_else(missing).map(Some);
    }
    Ok(call.topic_at_path().filter(|_| !is_form(call)))
}

fn is_form(call: &HubCall) -> bool {
    call.field(b"content-type").is_some_and(|value| {
        let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(FORM)
    })
}

async fn publish(call: &HubCall, topic: &str, content: &mut Content) -> Result<Result<AcceptedForm, Refusal>, Stop> {
    let topic = match known_topic(topic, &call.settings) {
        Ok(topic) => topic,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let content = content.whole(call.settings.publish.max_bytes).await?;
    if let Err(refusal) = call.may_publish(&topic, &content).and_then(|()| call.count_event(&topic, content.len())) {
        return Ok(Err(refusal));
    }
    let Ok(content_type) = std::str::from_utf8(call.field(b"content-type").unwrap_or_default()) else {
        return Ok(Err(Refusal::new(400, "the content type is not UTF-8")));
    };
    Ok(call.hub.publish(&topic, content_type, &content).await.map(|_| AcceptedForm::Event))
}

/// Handles a subscription, an unsubscription, or a ping (§5.1, §6).
async fn read_and_obey(call: &HubCall, content: &mut Content) -> Result<Result<AcceptedForm, Refusal>, Stop> {
    if !is_form(call) {
        let problem = format!(
            "{}; a request to another path subscribes, and is a form (application/x-www-form-urlencoded)",
            call.other_topics()
        );
        return Ok(Err(Refusal::new(415, problem)));
    }
    let content = content.whole(MAX_FORM_BYTES).await?;
    if form::pairs(&content).all(|(name, _)| *name != *b"hub.mode") {
        return Ok(Err(Refusal::new(400, without_mode(call))));
    }
    Ok(obey(call, &content).await)
}

/// The problem of a form without `hub.mode`, which was probably meant as the content of an event: it is the type that some clients
/// send if they are not told another.
fn without_mode(call: &HubCall) -> String {
    let what = "`hub.mode` is missing in this form (application/x-www-form-urlencoded)";
    match call.topic_at_path() {
        Some(topic) => format!(
            "{what}; to publish its content to {topic}, send it with its own `Content-Type`, or add `?hub.mode=publish` to the URL"
        ),
        None => format!("{what}, and {}", call.other_topics()),
    }
}

async fn obey(call: &HubCall, content: &[u8]) -> Result<AcceptedForm, Refusal> {
    match read_form(form::pairs(content), &call.settings)? {
        HubForm::Subscribe(mut request) => {
            call.may_listen(&request.topic)?;
            request.owner = call.consumer().unwrap_or_default().into();
            request.client = call.client();
            request.limits = call.delivery_limits(&request.topic)?;
            // A right that a token gives does not outlive it, so neither does the lease. A lease of an unsubscription is 0.
            if let Some(left) = call.time_left(&request.topic) {
                request.lease_s = request.lease_s.min(left.as_secs().max(1));
            }
            call.hub.request(request).await.map(AcceptedForm::Request)
        }
        HubForm::Ping(topics) => {
            topics.iter().try_for_each(|topic| call.may_publish(topic, content))?;
            // Before it is fetched: how large it is shows only then.
            let mut held = Held::of(call.request.client);
            held.set(call.settings.publish.max_bytes as u64).map_err(no_room)?;
            for topic in topics {
                call.count_event(&topic, 0)?;
                call.hub.ping(&topic).await?;
            }
            Ok(AcceptedForm::Event)
        }
    }
}
