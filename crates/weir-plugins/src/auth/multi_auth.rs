use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{Build, CollectAll, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;

/// Tries several auth plugins in turn: the first one that accepts the request identifies the consumer.
///
/// If a plugin fails for a reason other than wrong credentials, for example because a directory does not answer, the
/// request is refused, and the remaining plugins are not tried.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MultiAuth {
    /// At least two auth plugins with their options, each as `{ key-auth: {} }`, in the order in which they are tried.
    #[schemars(length(min = 2))]
    auth_plugins: Vec<NamedPlugins>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, extend("x-weir-form" = "{ key-auth: {} }"))]
struct NamedPlugins(Map<String, Value>);

impl Definition for MultiAuth {
    const NAME: &'static str = "multi-auth";
    const PRIORITY: i32 = 2600;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str =
        "multi-auth: { auth_plugins: [{ key-auth: { header: X-Api-Key } }, { basic-auth: {} }] }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let all = self.auth_plugins.iter().enumerate();
        let named =
            all.flat_map(|(index, plugins)| plugins.0.iter().map(move |(name, options)| (index, name, options)));
        let authenticator = |(index, name, options): (usize, &String, &Value)| {
            let path = format!("auth_plugins[{index}].{name}");
            let entry = crate::REGISTRY.find(name).filter(|entry| entry.credential.is_some());
            let entry = entry.ok_or_else(|| ConfigError::new(&path, "is not an auth plugin of this version"))?;
            let mut part = build.within(&path);
            let step = (entry.build)(options, &mut part).map_err(|error| error.below(&path))?;
            build.warnings.extend(part.warnings.into_iter().map(|warning| warning.below(&path)));
            Ok(step)
        };
        let authenticators: Vec<_> = named.map(authenticator).collect_all()?;
        if authenticators.len() < 2 {
            return Err(ConfigError::new(
                "auth_plugins",
                "needs at least two plugins; add a single plugin to the route directly",
            ));
        }
        let refusal = RefusalResponse::new(401, "message", "Authorization Failed");
        Ok(Arc::new(AuthenticatorChain { authenticators: authenticators.into(), refusal }))
    }
}

/// The challenges of the authenticators that have refused the request.
#[derive(Default)]
struct AuthRefused(Vec<Vec<u8>>);

impl AuthRefused {
    /// Whether the authenticator has accepted the client; `Err` for every failure other than a refusal with 401.
    fn is_accepted(&mut self, exchange: &mut Exchange, end: Result<(), Stop>) -> Result<bool, Stop> {
        match end {
            Ok(()) => {
                exchange.withdraw_response();
                Ok(true)
            }
            Err(Stop::Answered) if exchange.response.status == 401 => {
                self.0.extend(exchange.response.head.values(b"www-authenticate").map(<[u8]>::to_vec));
                Ok(false)
            }
            Err(stop) => Err(stop),
        }
    }

    /// The response when no authenticator has accepted the client.
    fn answer(self, exchange: &mut Exchange, refusal: &RefusalResponse) -> Stop {
        let stop = refusal.send(exchange);
        // RFC 9110 §11.6.1: a client may choose among several challenges.
        for challenge in self.0 {
            if exchange.response.head.add(b"WWW-Authenticate", &challenge).is_err() {
                return Stop::Internal;
            }
        }
        stop
    }
}

/// Tries several authenticators in turn.
struct AuthenticatorChain {
    authenticators: Box<[Arc<dyn Plugin>]>,
    refusal: RefusalResponse,
}

impl AuthenticatorChain {
    fn with_body(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.authenticators.iter().filter(|authenticator| authenticator.phases().request_body)
    }
}

impl Plugin for AuthenticatorChain {
    fn phases(&self) -> Phases {
        self.authenticators.iter().fold(Phases::REQUEST, |phases, authenticator| phases.and(authenticator.phases()))
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(async move {
            let mut refused = AuthRefused::default();
            for authenticator in &self.authenticators {
                let end = match authenticator.on_request(exchange) {
                    Ok(flow) => flow.finish().await,
                    Err(stop) => Err(stop),
                };
                if refused.is_accepted(exchange, end)? {
                    return Ok(());
                }
            }
            Err(refused.answer(exchange, &self.refusal))
        }))
    }

    /// Each authenticator knows from its own notes whether it accepted the client and needs the body.
    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        for authenticator in self.with_body() {
            if let Some(limit) = authenticator.whole_request(exchange)? {
                return Ok(Some(limit));
            }
        }
        Ok(None)
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(async move {
            for authenticator in self.with_body() {
                authenticator.on_request_body(exchange, body)?.finish().await?;
            }
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build_with, exchange, get, on_request, refused, with_consumers};

    #[test]
    fn the_first_that_knows_somebody_counts() {
        let shared = with_consumers(&[
            ("jack", "key-auth", json!({"key": "k1"})),
            ("rose", "basic-auth", json!({"username": "foo", "password": "bar"})),
        ]);
        let options = json!({"auth_plugins": [{"basic-auth": {}}, {"key-auth": {}}]});
        let step = build_with::<MultiAuth>(options, &shared).unwrap_or_else(|error| panic!("{error}"));
        for (fields, name) in [("apikey: k1", "jack"), ("Authorization: Basic Zm9vOmJhcg==", "rose")] {
            let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\n{fields}"));
            assert_eq!(on_request(&step, &mut exchange), Ok(()), "{name}");
            assert_eq!(&*exchange.identity.as_ref().expect("known").consumer.username, name);
            assert!(exchange.body.is_empty() && exchange.response.status == 0);
            exchange.upstream.status = 200;
            assert!(!exchange.is_answered_here(), "the response will be the upstream's");
        }
        let mut nobody = get("/");
        assert_eq!(on_request(&step, &mut nobody), Err(Stop::Answered));
        assert_eq!((nobody.response.status, body(&nobody)), (401, "{\"message\":\"Authorization Failed\"}\n"));
        let challenges: Vec<_> = nobody.response.head.values(b"www-authenticate").collect();
        assert_eq!(challenges, [&b"Basic realm=\"basic\""[..], b"apikey realm=\"key\""]);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"auth_plugins": [{"key-auth": {}}]}), "auth_plugins: has 1 item; at least 2 items are needed"),
            (json!({"auth_plugins": [{"key-auth": {}}, {"cors": {}}]}), "auth_plugins[1].cors: is not an auth plugin"),
            (
                json!({"auth_plugins": [{"multi-auth": {}}, {"key-auth": {}}]}),
                "auth_plugins[0].multi-auth: is not an auth plugin",
            ),
            (
                json!({"auth_plugins": [{"key-auth": {"realm": ""}}, {"basic-auth": {}}]}),
                "auth_plugins[0].key-auth.realm: is empty",
            ),
        ] {
            let error = refused::<MultiAuth>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
