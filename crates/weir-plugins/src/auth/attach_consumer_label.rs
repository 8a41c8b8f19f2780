use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::field::Name;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::options::headers::header_name;

/// Sends labels of the consumer to the upstream, each in a header field.
///
/// Such a field in the client's own request is removed always, so the upstream can trust it. A label that the consumer does not
/// have is not sent.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachConsumerLabel {
    /// The label for each header field, written as `$label`: `{ X-Consumer-Team: $team }`.
    #[schemars(extend("minProperties" = 1))]
    headers: BTreeMap<String, String>,
}

impl Definition for AttachConsumerLabel {
    const NAME: &'static str = "attach-consumer-label";
    const PRIORITY: i32 = 2399;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "attach-consumer-label: { headers: { X-Consumer-Team: $team } }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let read = |(field, value): (String, String)| {
            let option = format!("headers.{field}");
            let label = value.strip_prefix('$').filter(|label| !label.is_empty()).ok_or_else(|| {
                ConfigError::new(option.as_str(), "must be the name of a label after a `$`, such as `$team`")
            });
            let (name, label) = (header_name(&field, &option), label).all_of()?;
            Ok((Name::new(name).expect("it was validated"), label.into()))
        };
        let labels = self.headers.into_iter().map(read).collect_all()?;
        Ok(Arc::new(LabelFields { labels }))
    }
}

struct LabelFields {
    labels: Box<[(Name, Box<str>)]>,
}

impl Plugin for LabelFields {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        for (name, label) in &self.labels {
            exchange.request.head.remove(name.as_bytes());
            let Some(credential) = &exchange.identity else { continue };
            let Some(value) = credential.consumer.label(label) else { continue };
            // A label that no header field can hold is not sent, as one that is absent.
            exchange.request.head.add_prepared_name(name, value.as_bytes()).ok();
        }
        Ok(Flow::Continue)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, identify, on_request, refused};

    #[test]
    fn labels_replace_what_the_client_says() {
        let plugin = build::<AttachConsumerLabel>(json!({"headers": {"X-Team": "$team", "X-Plan": "$plan"}}));
        let forged = "GET / HTTP/1.1\nHost: h\nX-TEAM: forged\nx-plan: forged";
        let mut known = exchange(forged);
        identify(&mut known, &[("team", "blue")]);
        let mut anonymous = exchange(forged);
        for (exchange, team) in [(&mut known, Some(&b"blue"[..])), (&mut anonymous, None)] {
            on_request(&plugin, exchange).expect("it goes on");
            let head = &exchange.request.head;
            assert_eq!((head.value(b"X-Team"), head.value(b"X-Plan")), (team, None));
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, expected) in [
            (json!({"headers": {}}), "headers: is empty"),
            (json!({"headers": {"X-Team": "team"}}), "headers.X-Team: must be the name of a label after a `$`"),
            (json!({"headers": {"X Team": "$team"}}), "headers.X Team: is not the name of a header field"),
            (json!({"headers": {"Content-Length": "$team"}}), "headers.Content-Length: controls the framing"),
        ] {
            let error = refused::<AttachConsumerLabel>(options);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
