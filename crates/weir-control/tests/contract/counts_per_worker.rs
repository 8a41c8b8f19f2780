//! A plugin with state that each worker has for itself.

use std::cell::Cell;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, PerWorker, Plugin, Stage, Stop};

use crate::{Rig, count};

/// Tells in `X-Count` how many requests its worker has seen.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CountOwn {}

impl Definition for CountOwn {
    const NAME: &'static str = "count-own";
    const PRIORITY: i32 = 1;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "count-own: {}";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(OwnCounter(build.per_worker("requests", build.identity(), || Cell::new(0)))))
    }
}

struct OwnCounter(PerWorker<Cell<u64>>);

impl Plugin for OwnCounter {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let count = self.0.get();
        count.set(count.get() + 1);
        let stop = exchange.respond(200, "text/plain", b"");
        let told = exchange.response.head.add(b"X-Count", count.get().to_string().as_bytes());
        Err(told.map_or(Stop::Internal, |()| stop))
    }
}

#[test]
fn a_worker_counts_what_it_sees_over_reloads() {
    let rig = Rig::start("count-own: {}");
    let mut client = rig.client();
    assert_eq!([count(&mut client), count(&mut client)], [1, 2]);
    rig.reload("count-own: {}");
    assert_eq!(count(&mut client), 3, "the same options, the same state");
}
