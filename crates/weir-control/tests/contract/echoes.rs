//! A responder that streams, and the plugin that sends exchanges to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    Build, ConfigError, Content, Definition, Exchange, Flow, Plugin, Reply, Responder, ResponderRequest, Responding,
    Stage, Stop,
};

/// Answers with the request's content, as it comes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Echo {}

impl Definition for Echo {
    const NAME: &'static str = "echo";
    const PRIORITY: i32 = 4;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "echo: {}";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(EchoPlugin(Arc::new(Echoes))))
    }
}

struct EchoPlugin(Arc<dyn Responder>);

impl Plugin for EchoPlugin {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        exchange.answer_by(&self.0);
        Ok(Flow::Continue)
    }
}

struct Echoes;

/// Bytes of the endless answer that were taken.
static FLOODED: AtomicU64 = AtomicU64::new(0);
const FLOOD: u64 = 64 << 20;

impl Responder for Echoes {
    fn respond(self: Arc<Self>, request: ResponderRequest, mut content: Content, mut reply: Reply) -> Responding {
        Box::pin(async move {
            match request.head.path() {
                b"/early" => reply.begin(409, &[("Content-Length", "0")]),
                b"/fails" => return Err(Stop::Respond(418)),
                b"/panics" => panic!("as asked"),
                b"/flood" => {
                    reply.begin(200, &[]);
                    while FLOODED.load(Ordering::Relaxed) < FLOOD {
                        reply.send(&[b'x'; 65536]).await;
                        FLOODED.fetch_add(65536, Ordering::Relaxed);
                    }
                }
                _ => {
                    reply.begin(200, &[("Content-Type", "text/plain")]);
                    while let Some(piece) = content.next().await {
                        reply.send(&piece).await;
                    }
                }
            }
            Ok(())
        })
    }
}

mod tests;
