use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{Build, ConfigError, Definition, Exchange, Phases, Plugin, Stage, Step, Stop};

use crate::answer::Refusal;

/// Lets consumers in by the first of several auth plugins that knows them.
///
/// A plugin that cannot tell, because something is broken, ends the search: nobody is let in by luck.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MultiAuth {
    /// At least two auth plugins with their options, each as `{ key-auth: {} }`, in the order in which they are asked.
    #[schemars(length(min = 2))]
    auth_plugins: Vec<Map<String, Value>>,
}

impl Definition for MultiAuth {
    const NAME: &'static str = "multi-auth";
    const PRIORITY: i32 = 2600;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str =
        "multi-auth: { auth_plugins: [{ key-auth: { header: X-Api-Key } }, { basic-auth: {} }] }";

    fn build(self, build: &mut Build) -> Result<Step, ConfigError> {
        let mut doors = Vec::new();
        for (index, plugins) in self.auth_plugins.iter().enumerate() {
            for (name, options) in plugins {
                let path = format!("auth_plugins[{index}].{name}");
                let entry = crate::REGISTRY.find(name).filter(|entry| entry.credential.is_some());
                let entry = entry.ok_or_else(|| ConfigError::new(&path, "is no auth plugin of this version"))?;
                let mut part = build.within(&path);
                let step = (entry.build)(options, &mut part).map_err(|error| error.below(&path))?;
                build.warnings.extend(part.warnings.into_iter().map(|warning| warning.below(&path)));
                match step {
                    Step::Sync(plugin) => doors.push(plugin),
                    Step::Async(_) => return Err(ConfigError::new(path, "waits for somebody, and has to stand alone")),
                }
            }
        }
        if doors.len() < 2 {
            return Err(ConfigError::new("auth_plugins", "needs at least two plugins; one can stand alone"));
        }
        Ok(Step::new(Doors { doors: doors.into(), refusal: Refusal::new(401, "message", "Authorization Failed") }))
    }
}

struct Doors {
    doors: Box<[std::sync::Arc<dyn Plugin>]>,
    refusal: Refusal,
}

impl Plugin for Doors {
    fn phases(&self) -> Phases {
        self.doors.iter().fold(Phases::REQUEST, |phases, door| phases.and(door.phases()))
    }

    /// A door knows by its notes whether it was the one that let somebody in.
    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        for door in self.doors.iter().filter(|door| door.phases().request_body) {
            if let Some(limit) = door.whole_request(exchange)? {
                return Ok(Some(limit));
            }
        }
        Ok(None)
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let mut doors = self.doors.iter().filter(|door| door.phases().request_body);
        doors.try_for_each(|door| door.on_request_body(exchange, body))
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let mut challenges: Vec<Vec<u8>> = Vec::new();
        for door in &self.doors {
            match door.on_request(exchange) {
                Ok(()) => {
                    // What those before it would have answered.
                    exchange.response.clear();
                    exchange.body.clear();
                    return Ok(());
                }
                Err(Stop::Answered) if exchange.response.status == 401 => {
                    challenges.extend(exchange.response.head.values(b"www-authenticate").map(<[u8]>::to_vec));
                }
                Err(stop) => return Err(stop),
            }
        }
        let stop = self.refusal.send(exchange);
        // RFC 9110 §11.6.1: a client may choose among challenges.
        for challenge in challenges {
            exchange.response.head.add(b"WWW-Authenticate", &challenge).map_err(|_| Stop::Internal)?;
        }
        Err(stop)
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
            (json!({"auth_plugins": [{"key-auth": {}}]}), "auth_plugins: needs at least two"),
            (json!({"auth_plugins": [{"key-auth": {}}, {"cors": {}}]}), "auth_plugins[1].cors: is no auth plugin"),
            (json!({"auth_plugins": [{"multi-auth": {}}]}), "auth_plugins[0].multi-auth: is no auth plugin"),
            (
                json!({"auth_plugins": [{"key-auth": {"realm": ""}}, {"basic-auth": {}}]}),
                "auth_plugins[0].key-auth.realm: must have",
            ),
        ] {
            let error = refused::<MultiAuth>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
