//! A few plugins to compile documents with.

#![allow(dead_code, reason = "their options are read, and nothing more")]

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::definition::Entry;
use weir_plugin::{
    Authenticator, Build, ConfigError, Definition, Exchange, Flow, HasMetadata, Phases, Plugin, PluginMetadata,
    Registry, Stage, Stop,
};

pub(crate) static REGISTRY: Registry = Registry::new(&[
    Entry::of::<Early>(),
    Entry::of::<Late>(),
    Entry::of::<Access>(),
    Entry::of::<Refuse>(),
    Entry::described::<Guarded>(),
    Entry::authenticating::<Door>(),
    Entry::of::<Guard>().identifying(),
]);

/// The same, and one that tells others something.
pub(crate) static TELLING: Registry = Registry::new(&[
    Entry::of::<Early>(),
    Entry::of::<Late>(),
    Entry::of::<Access>(),
    Entry::described::<Guarded>(),
    Entry::authenticating::<Door>(),
    Entry::of::<NotePlugin>(),
    Entry::of::<Port>(),
]);

/// Writes its text into the body, in the request and the response phase.
struct Mark(String);

impl Plugin for Mark {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::RESPONSE)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        exchange.body.extend_from_slice(self.0.as_bytes());
        Ok(Flow::Continue)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        self.on_request(exchange).map(|_| ())
    }
}

macro_rules! mark {
    ($type:ident, $name:literal, $priority:literal, $stage:ident) => {
        #[derive(Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $type {
            text: String,
        }

        impl Definition for $type {
            const NAME: &'static str = $name;
            const PRIORITY: i32 = $priority;
            const STAGE: Stage = Stage::$stage;
            const EXAMPLE: &'static str = concat!($name, ": { text: a }");

            fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
                Ok(Arc::new(Mark(self.text)))
            }
        }
    };
}

mark!(Early, "mark-early", 100, Rewrite);
mark!(Late, "mark-late", 10, Rewrite);
mark!(Access, "mark-access", 1000, Access);

/// Answers with a status, in one of the two ways there are.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refuse {
    status: u16,
    #[serde(default)]
    body: Option<String>,
}

impl Definition for Refuse {
    const NAME: &'static str = "refuse";
    const PRIORITY: i32 = 50;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "refuse: { status: 403 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self))
    }
}

impl Plugin for Refuse {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        match &self.body {
            None => Err(Stop::Respond(self.status)),
            Some(body) => Err(exchange.respond(self.status, "text/plain", body.as_bytes())),
        }
    }
}

/// Has options with an inside, a check of its own, and a warning.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guarded {
    limits: Vec<Limit>,
    #[serde(default)]
    old: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Limit {
    count: u32,
}

impl Definition for Guarded {
    const NAME: &'static str = "guarded";
    const PRIORITY: i32 = 1;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "guarded: { limits: [{ count: 1 }] }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if let Some(index) = self.limits.iter().position(|limit| limit.count == 0) {
            return Err(ConfigError::new(format!("limits[{index}].count"), "must be at least 1"));
        }
        if self.old {
            build.warnings.push(ConfigError::new("old", "has no effect any more"));
        }
        let least = build.metadata::<Guarded>().least;
        Ok(Arc::new(Mark(if least == 0 { String::new() } else { format!("{least}") })))
    }
}

/// What holds wherever `guarded` is used.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GuardedMetadata {
    least: u32,
}

impl HasMetadata for Guarded {
    type Metadata = GuardedMetadata;
}

impl PluginMetadata for GuardedMetadata {
    fn check(self) -> Result<(), ConfigError> {
        match self.least {
            0 => Err(ConfigError::new("least", "must be at least 1")),
            _ => Ok(()),
        }
    }
}

/// Lets everybody in who has a key, as the first consumer with one.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Door {}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    key: String,
}

impl Definition for Door {
    const NAME: &'static str = "door";
    const PRIORITY: i32 = 75;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "door: {}";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(Lets(build.consumers().credentials("door").first().cloned())))
    }
}

impl Authenticator for Door {
    type Credential = Key;

    fn check(credential: Key) -> Result<String, ConfigError> {
        match credential.key.as_str() {
            "" => Err(ConfigError::new("key", "is empty")),
            _ => Ok(credential.key),
        }
    }
}

struct Lets(Option<std::sync::Arc<weir_plugin::Credential>>);

impl Plugin for Lets {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        self.0.as_ref().map_or(Err(Stop::Respond(401)), |credential| exchange.identify(credential).map(Flow::from))
    }
}

/// Finds out who somebody is without credentials.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guard {}

impl Definition for Guard {
    const NAME: &'static str = "guard";
    const PRIORITY: i32 = 76;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "guard: {}";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(Lets(None)))
    }
}

/// Shows where TLS is spoken.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Port {}

impl Definition for Port {
    const NAME: &'static str = "port";
    const PRIORITY: i32 = 4;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "port: {}";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(Mark(format!("{:?}", build.https_port()))))
    }
}

/// Tells what other plugins go by, and shows what it knows of what others have told.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NotePlugin {
    secret: String,
    terms: String,
}

impl Definition for NotePlugin {
    const NAME: &'static str = "tells";
    const PRIORITY: i32 = 5;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "tells: { secret: x, terms: a }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        build.secret_field(self.secret.as_bytes());
        build.secret_argument(&self.secret.as_bytes().into());
        match build.agree("terms", &self.terms) {
            true => Ok(Arc::new(Knows(build.secret_fields()))),
            false => Err(ConfigError::new("terms", "are other ones elsewhere")),
        }
    }
}

struct Knows(Arc<weir_plugin::SecretFields>);

impl Plugin for Knows {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        for name in self.0.names().iter() {
            exchange.body.extend_from_slice(name);
            exchange.body.push(b',');
        }
        Ok(Flow::Continue)
    }
}
