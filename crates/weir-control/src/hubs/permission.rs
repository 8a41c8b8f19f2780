//! Whether a caller has a right for a topic: by its consumer, and by the claims of its token.

use std::time::Duration;

use serde_json::{Map, Value};
use weir_hub::{PermittedCallers, Refusal, TopicPattern};
use weir_plugin::{CallerClaims, Credential};

/// The caller of a hub.
#[derive(Clone, Copy)]
pub(super) struct HubCaller<'a> {
    pub(super) identity: Option<&'a Credential>,
    pub(super) claims: Option<&'a CallerClaims>,
}

/// Refuses a caller that does not have a right for a topic; `action` is the verb of the right.
pub(super) fn permit(
    permitted: &PermittedCallers,
    caller: HubCaller<'_>,
    topic: &str,
    action: &str,
) -> Result<(), Refusal> {
    let has_name = match caller.identity {
        Some(identity) => permitted.include(&identity.consumer.username, &identity.consumer.group_id),
        None => permitted.include("", ""),
    };
    let unauthenticated = || Refusal::new(401, format!("to {action} here needs an auth plugin of the route"));
    if !has_name {
        return Err(match caller.identity {
            Some(_) => Refusal::new(403, format!("this consumer may not {action} here")),
            None => unauthenticated(),
        });
    }
    if !permitted.ask_for_claims() {
        return Ok(());
    }
    let claims = caller.claims.ok_or_else(|| match caller.identity {
        Some(_) => Refusal::new(403, format!("to {action} here needs a token")),
        None => unauthenticated(),
    })?;
    permit_by_claims(permitted, &claims.object(), topic, action)
}

/// How long the token with these claims is still valid (`exp`, RFC 7519 §4.1.4), at a time since 1970; `None` if it does not say.
pub(super) fn time_left(claims: &CallerClaims, now: Duration) -> Option<Duration> {
    let end_s = claims.object().get("exp")?.as_f64()?;
    let end = Duration::try_from_secs_f64(end_s.max(0.0)).ok()?;
    Some(end.saturating_sub(now))
}

fn permit_by_claims(
    permitted: &PermittedCallers,
    claims: &Map<String, Value>,
    topic: &str,
    action: &str,
) -> Result<(), Refusal> {
    let granted = ["scope", "scp"].into_iter().filter_map(|claim| claims.get(claim)).flat_map(words);
    if !permitted.scopes.is_empty()
        && !granted.into_iter().any(|scope| permitted.scopes.iter().any(|it| **it == *scope))
    {
        // RFC 6750 §3.1.
        let scopes = permitted.scopes.join(" ");
        let challenge = Some(format!("Bearer error=\"insufficient_scope\", scope=\"{scopes}\""));
        return Err(Refusal { challenge, ..Refusal::new(403, format!("the token has no scope to {action} here")) });
    }
    let Some(path) = &permitted.topic_claim else { return Ok(()) };
    match claim_at(claims, path).is_some_and(|listed| words(listed).any(|pattern| covers(pattern, topic))) {
        true => Ok(()),
        false => Err(Refusal::new(403, format!("the token does not allow to {action} under this topic"))),
    }
}

/// The values of a claim: those of a list, or the words of a text, which spaces separate (RFC 8693 §4.2).
fn words(claim: &Value) -> Box<dyn Iterator<Item = &str> + '_> {
    match claim {
        Value::String(text) => Box::new(text.split(' ').filter(|word| !word.is_empty())),
        Value::Array(list) => Box::new(list.iter().filter_map(Value::as_str)),
        _ => Box::new(std::iter::empty()),
    }
}

/// A claim by its name, or by a JSON Pointer (RFC 6901).
fn claim_at<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let Some(pointer) = path.strip_prefix('/') else { return claims.get(path) };
    let (first, rest) = pointer.split_at(pointer.find('/').unwrap_or(pointer.len()));
    claims.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
}

/// Whether an entry of a token's list covers a topic: a topic, a prefix of topics that ends in `*`, or `*` for all.
fn covers(entry: &str, topic: &str) -> bool {
    entry == "*" || TopicPattern::parse(entry).is_some_and(|pattern| pattern.matches(topic))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use serde_json::json;
    use weir_plugin::Consumer;

    use super::*;

    const TOPIC: &str = "https://t.example/orders/7";

    fn status(permitted: &PermittedCallers, username: Option<&str>, claims: Option<Value>) -> u16 {
        let identity = username.map(|username| {
            let consumer = Consumer { username: username.into(), ..Consumer::default() };
            Credential { consumer: Arc::new(consumer), id: Box::default(), options: json!({}) }
        });
        let claims = claims.map(|claims| {
            let Value::Object(claims) = claims else { panic!("an object") };
            CallerClaims::Object(Rc::new(claims))
        });
        let caller = HubCaller { identity: identity.as_ref(), claims: claims.as_ref() };
        permit(permitted, caller, TOPIC, "publish").map_or_else(|refusal| refusal.status, |()| 200)
    }

    #[test]
    fn one_of_the_scopes_is_enough() {
        let scopes = ["orders:write", "admin"].map(Box::from).to_vec();
        let permitted = PermittedCallers { scopes, ..PermittedCallers::default() };
        for (claims, want) in [
            (json!({"scope": "openid orders:write"}), 200),
            (json!({"scp": ["admin"]}), 200),
            (json!({"scope": "orders:writer"}), 403),
            (json!({"scope": {"admin": true}}), 403),
            (json!({}), 403),
        ] {
            assert_eq!(status(&permitted, None, Some(claims.clone())), want, "{claims}");
        }
        assert_eq!((status(&permitted, None, None), status(&permitted, Some("jack"), None)), (401, 403));
        let refusal = permit_by_claims(&permitted, &Map::new(), TOPIC, "publish").expect_err("no scope");
        assert_eq!(
            refusal.challenge.as_deref(),
            Some("Bearer error=\"insufficient_scope\", scope=\"orders:write admin\"")
        );
    }

    #[test]
    fn a_claim_lists_topics() {
        let by = |path: &str| PermittedCallers { topic_claim: Some(path.into()), ..PermittedCallers::default() };
        for (path, claims, want) in [
            ("topics", json!({"topics": ["https://t.example/orders/7"]}), 200),
            ("topics", json!({"topics": "https://t.example/a https://t.example/orders/*"}), 200),
            ("topics", json!({"topics": ["https://t.example/%6frders/7"]}), 200),
            ("topics", json!({"topics": ["https://t.example/orders"]}), 403),
            ("topics", json!({"topics": ["https://t.example/invoices/*", 7]}), 403),
            ("topics", json!({"topics": true}), 403),
            ("/mercure/publish", json!({"mercure": {"publish": ["*"]}}), 200),
            ("/mercure/publish", json!({"mercure": {"subscribe": ["*"]}}), 403),
            ("/mercure/publish", json!({"/mercure/publish": ["*"]}), 403),
            ("https://example.com/topics", json!({"https://example.com/topics": ["*"]}), 200),
            ("/https:~1~1example.com/a", json!({"https://example.com": {"a": ["*"]}}), 200),
        ] {
            assert_eq!(status(&by(path), None, Some(claims.clone())), want, "{path} {claims}");
        }
    }

    #[test]
    fn a_token_says_when_it_ends() {
        for (claims, want) in [
            (json!({"exp": 1_007}), Some(7.0)),
            (json!({"exp": 1_007.5}), Some(7.5)),
            (json!({"exp": 999}), Some(0.0)),
            (json!({"exp": -1}), Some(0.0)),
            (json!({"exp": 1e300}), None),
            (json!({"exp": "1007"}), None),
            (json!({}), None),
        ] {
            let Value::Object(object) = claims.clone() else { panic!("an object") };
            let left = time_left(&CallerClaims::Object(Rc::new(object)), Duration::from_secs(1_000));
            assert_eq!(left.map(|left| left.as_secs_f64()), want, "{claims}");
        }
    }

    #[test]
    fn every_condition_has_to_hold() {
        let permitted = PermittedCallers {
            consumers: vec!["jack".into()],
            scopes: vec!["a".into()],
            ..PermittedCallers::default()
        };
        let claims = || Some(json!({"scope": "a"}));
        assert_eq!(status(&permitted, Some("jack"), claims()), 200);
        assert_eq!(status(&permitted, Some("jill"), claims()), 403);
        assert_eq!(status(&permitted, None, claims()), 401);
        assert_eq!(status(&permitted, Some("jack"), Some(json!({}))), 403);
    }
}
