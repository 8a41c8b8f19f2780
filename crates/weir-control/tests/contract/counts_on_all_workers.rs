//! A plugin with state that all workers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::{Rig, count};

/// Tells in `X-Count` how many requests with this name there were.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CountAll {
    /// What is counted together.
    name: String,
}

impl Definition for CountAll {
    const NAME: &'static str = "count-all";
    const PRIORITY: i32 = 2;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "count-all: { name: a }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(SharedCounter(build.shared("requests", &self.name, AtomicU64::default))))
    }
}

struct SharedCounter(Arc<AtomicU64>);

impl Plugin for SharedCounter {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let stop = exchange.respond(200, "text/plain", b"");
        let told = exchange.response.head.add(b"X-Count", count.to_string().as_bytes());
        Err(told.map_or(Stop::Internal, |()| stop))
    }
}

#[test]
fn all_workers_count_together_over_reloads() {
    let rig = Rig::start("count-all: { name: together }");
    let mut clients: Vec<_> = (0..8).map(|_| rig.client()).collect();
    let counts: Vec<u64> = clients.iter_mut().map(count).collect();
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8]);
    rig.reload("count-all: { name: together }");
    assert_eq!(count(&mut clients[0]), 9);
}
