//! One request to a hub: its arguments, and the rights of its caller.

use std::sync::Arc;
use std::time::Duration;

use weir_hub::{Hub, HubSettings, PermittedConsumers, Refusal, TopicRights, is_signed, links};
use weir_plugin::{PublishRefusal, Reply, ResponderRequest, Stop, form};

/// The interval of comments or pings in an idle stream, so that proxies in between do not cut it off.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// The most events taken from the hub at once.
pub(super) const BATCH: usize = 64;

/// One request to a hub.
pub(super) struct HubCall {
    pub(super) hub: Arc<Hub>,
    pub(super) settings: Arc<HubSettings>,
    pub(super) request: ResponderRequest,
}

/// Responds with a refusal's status and reason (W3C WebSub §5.1.2: errors in plain text).
pub(super) async fn refuse(reply: &mut Reply, refusal: &Refusal) -> Result<(), Stop> {
    let content = format!("{}\n", refusal.reason);
    let (length, wait) = (content.len().to_string(), refusal.retry_after_s.map(|seconds| seconds.to_string()));
    let mut fields = vec![("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", &*length)];
    fields.extend(wait.as_deref().map(|seconds| ("Retry-After", seconds)));
    reply.begin(refusal.status, &fields);
    reply.send(content.as_bytes()).await;
    Ok(())
}

impl HubCall {
    /// The topic whose URL has the path of this request.
    pub(super) fn topic_at_path(&self) -> Option<String> {
        let path = std::str::from_utf8(self.request.head.path()).ok()?;
        self.settings.topics.iter().find_map(|pattern| pattern.at_path(path))
    }

    /// The value of a query argument.
    pub(super) fn argument(&self, name: &[u8]) -> Option<String> {
        let query = self.request.head.query()?;
        let (_, value) = form::pairs(query).find(|(key, _)| **key == *name)?;
        String::from_utf8(value.into_owned()).ok()
    }

    pub(super) fn field(&self, name: &[u8]) -> Option<&[u8]> {
        self.request.head.head.value(name)
    }

    fn rights(&self, topic: &str) -> Option<&TopicRights> {
        self.settings.rights.iter().find(|rights| rights.topics.iter().any(|pattern| pattern.matches(topic)))
    }

    /// Refuses a caller that is not among these consumers.
    fn permit(&self, permitted: &PermittedConsumers, what: &str) -> Result<(), Refusal> {
        match &self.request.identity {
            _ if permitted.are_all() => Ok(()),
            Some(identity) if permitted.include(&identity.consumer.username, &identity.consumer.group_id) => Ok(()),
            Some(_) => Err(Refusal::new(403, format!("this consumer may not {what} here"))),
            None => Err(Refusal::new(401, format!("to {what} here needs an auth plugin of the route"))),
        }
    }

    pub(super) fn consumer(&self) -> Option<&str> {
        self.request.identity.as_ref().map(|credential| &*credential.consumer.username)
    }

    /// Whether the caller may publish this content. A signature is enough for every topic.
    pub(super) fn may_publish(&self, topic: &str, content: &[u8]) -> Result<(), Refusal> {
        let publish = &self.settings.publish;
        if let Some(secret) = &publish.secret
            && let Some(signature) = self.field(publish.signature_header.as_bytes())
        {
            return match is_signed(secret.as_bytes(), content, signature) {
                true => Ok(()),
                false => Err(Refusal::new(401, "the signature does not match the content")),
            };
        }
        if !publish.anonymous {
            if self.consumer().is_none() {
                return Err(Refusal::new(401, "publishing needs an auth plugin of the route, or a signature"));
            }
            self.permit(&publish.permitted, "publish")?;
        }
        self.rights(topic).map_or(Ok(()), |rights| self.permit(&rights.publish, "publish"))
    }

    /// Counts an event against the quotas of the route's plugins.
    pub(super) fn count_event(&self, topic: &str, bytes: usize) -> Result<(), Refusal> {
        for quota in &self.request.publish_quotas {
            quota.take(topic, bytes as u64).map_err(|PublishRefusal { status, reason, retry_after_s }| Refusal {
                status,
                reason,
                retry_after_s,
            })?;
        }
        Ok(())
    }

    /// Whether the caller may subscribe to the events of a topic, read them and stream them.
    pub(super) fn may_listen(&self, topic: &str) -> Result<(), Refusal> {
        self.permit(&self.settings.subscribe.permitted, "subscribe")?;
        self.rights(topic).map_or(Ok(()), |rights| self.permit(&rights.subscribe, "subscribe"))
    }

    /// The last event that the client has seen, from `Last-Event-ID` or the argument `last_event_id`; otherwise the newest one.
    pub(super) async fn after_last_seen(&self, topic: &str) -> Result<u64, Refusal> {
        let newest = self.hub.latest(topic).await?.map_or(0, |event| event.seq);
        let last = self.field(b"last-event-id").and_then(|value| std::str::from_utf8(value).ok().map(str::to_owned));
        let last = last.or_else(|| self.argument(b"last_event_id"));
        // An id that is greater than the newest one is from a lost log, and is ignored.
        Ok(last.and_then(|text| position(text.trim())).filter(|seq| *seq <= newest).unwrap_or(newest))
    }

    /// The `Link` field with the hub and the topic (§4).
    pub(super) fn links(&self, topic: &str) -> String {
        links(&self.settings.url, topic)
    }
}

/// The position after an event: its id, or before the oldest one.
pub(super) fn position(text: &str) -> Option<u64> {
    match text {
        "earliest" => Some(0),
        text => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_ids_or_the_beginning() {
        assert_eq!(
            (position("earliest"), position("12"), position("x"), position("-1")),
            (Some(0), Some(12), None, None)
        );
    }
}
