use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Consumer, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;

/// Allows or refuses requests by the labels of the consumer.
///
/// A label of a consumer has one value, or several: `team: "blue,green"` and `team: '["blue","green"]'` both have two. A request
/// without a consumer is refused with 401.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acl {
    /// Only consumers that have at least one of these values of at least one of these labels are allowed.
    #[schemars(extend("minProperties" = 1))]
    allow_labels: Option<BTreeMap<String, Vec<String>>>,
    /// Consumers that have one of these values of one of these labels are refused, even if `allow_labels` allows them.
    #[schemars(extend("minProperties" = 1))]
    deny_labels: Option<BTreeMap<String, Vec<String>>>,
    /// The status of a refusal, 200 to 999.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 200, max = 999))]
    rejected_code: u16,
    /// The message in the body of a refusal: `{"message":"..."}`.
    rejected_msg: Option<String>,
}

fn default_rejected_code() -> u16 {
    403
}

impl Definition for Acl {
    const NAME: &'static str = "acl";
    const PRIORITY: i32 = 2410;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "acl: { allow_labels: { team: [blue, green] } }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.allow_labels.is_none() && self.deny_labels.is_none() {
            return Err(ConfigError::new("", "needs `allow_labels` or `deny_labels`"));
        }
        for (option, labels) in [("allow_labels", &self.allow_labels), ("deny_labels", &self.deny_labels)] {
            let Some(labels) = labels else { continue };
            for (label, _) in labels.iter().filter(|(_, values)| values.is_empty()) {
                build.fault(format!("{option}.{label}"), "is empty; name at least one value");
            }
        }
        let refused = self.rejected_msg.as_deref().unwrap_or("The consumer is forbidden.");
        Ok(Arc::new(LabelAccessList {
            refusal: RefusalResponse::new(self.rejected_code, "message", refused),
            unknown: RefusalResponse::new(401, "message", "Missing authentication."),
            allowed: self.allow_labels,
            denied: self.deny_labels.unwrap_or_default(),
        }))
    }
}

struct LabelAccessList {
    allowed: Option<BTreeMap<String, Vec<String>>>,
    denied: BTreeMap<String, Vec<String>>,
    unknown: RefusalResponse,
    refusal: RefusalResponse,
}

impl LabelAccessList {
    fn admits(&self, consumer: &Consumer) -> bool {
        !has_one_of(consumer, &self.denied) && self.allowed.as_ref().is_none_or(|labels| has_one_of(consumer, labels))
    }
}

/// Whether the consumer has one of the values of one of the labels.
fn has_one_of(consumer: &Consumer, labels: &BTreeMap<String, Vec<String>>) -> bool {
    labels.iter().any(|(label, wanted)| {
        let value = consumer.label(label).unwrap_or_default();
        values_of(value).iter().any(|value| wanted.iter().any(|wanted| wanted == value))
    })
}

/// The values of a label: a JSON array of text, or a list with commas.
fn values_of(text: &str) -> Vec<Cow<'_, str>> {
    let array = text.starts_with('[').then(|| serde_json::from_str::<Vec<String>>(text).ok()).flatten();
    match array {
        Some(values) => values.into_iter().map(Cow::Owned).collect(),
        None => text.split(',').map(str::trim).filter(|value| !value.is_empty()).map(Cow::Borrowed).collect(),
    }
}

impl Plugin for LabelAccessList {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        match exchange.identity.as_ref().map(|credential| &*credential.consumer) {
            Some(consumer) if self.admits(consumer) => Ok(Flow::Continue),
            Some(_) => Err(self.refusal.send(exchange)),
            None => Err(self.unknown.send(exchange)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{body, build, get, identify, on_request, refused};

    fn passes(options: &Value, labels: &[(&str, &str)]) -> bool {
        let mut exchange = get("/");
        identify(&mut exchange, labels);
        match on_request(&build::<Acl>(options.clone()), &mut exchange) {
            Ok(()) => true,
            Err(stop) => {
                assert_eq!((stop, exchange.response.status), (Stop::Answered, 403));
                assert_eq!(body(&exchange), "{\"message\":\"The consumer is forbidden.\"}\n");
                false
            }
        }
    }

    #[test]
    fn labels_decide() {
        let allow = json!({"allow_labels": {"team": ["blue", "green"]}});
        for team in ["blue", "red,green", "red , green", r#"["red","blue"]"#] {
            assert!(passes(&allow, &[("team", team)]), "{team}");
        }
        for labels in
            [&[("team", "red")][..], &[("team", "bluegreen")], &[("group", "blue")], &[("team", "[blue")], &[]]
        {
            assert!(!passes(&allow, labels), "{labels:?}");
        }
        let deny = json!({"deny_labels": {"team": ["red"], "plan": ["free"]}});
        assert!(passes(&deny, &[]) && passes(&deny, &[("team", "blue"), ("plan", "paid")]));
        assert!(!passes(&deny, &[("team", "red")]) && !passes(&deny, &[("team", "blue"), ("plan", "free")]));
        let both = json!({"allow_labels": {"team": ["blue"]}, "deny_labels": {"plan": ["free"]}});
        assert!(passes(&both, &[("team", "blue")]) && !passes(&both, &[("team", "blue"), ("plan", "free")]));
    }

    #[test]
    fn an_anonymous_request_is_refused() {
        let mut exchange = get("/");
        let plugin = build::<Acl>(json!({"deny_labels": {"team": ["red"]}}));
        assert_eq!(on_request(&plugin, &mut exchange), Err(Stop::Answered));
        assert_eq!(exchange.response.status, 401);
        assert_eq!(body(&exchange), "{\"message\":\"Missing authentication.\"}\n");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, expected) in [
            (json!({}), "needs `allow_labels` or `deny_labels`"),
            (json!({"deny_labels": {"team": []}}), "deny_labels.team: is empty"),
        ] {
            let error = refused::<Acl>(options);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
