//! A plugin that waits, and filters responses.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Filter, Flow, Phases, Plugin, Stage, Stop};

use crate::Rig;

/// Lets requests with `X-Wait` wait, and changes responses to capitals.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShoutLater {
    /// How long, in milliseconds.
    wait_ms: u64,
}

impl Definition for ShoutLater {
    const NAME: &'static str = "shout-later";
    const PRIORITY: i32 = 3;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "shout-later: { wait_ms: 5 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self))
    }
}

impl Plugin for ShoutLater {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::RESPONSE_BODY)
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        if exchange.request.head.value(b"x-wait").is_none() {
            return Ok(Flow::Continue);
        }
        Ok(Flow::wait(async move {
            tokio::time::sleep(Duration::from_millis(self.wait_ms)).await;
            exchange.request.head.remove(b"X-Wait");
            Ok(())
        }))
    }

    fn response_filter(&self, _: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        Ok(Some(Box::new(Capitals)))
    }
}

struct Capitals;

impl Filter for Capitals {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        out.extend(piece.iter().map(u8::to_ascii_uppercase));
        Ok(())
    }
}

#[test]
fn one_plugin_waits_and_filters() {
    let rig = Rig::start("shout-later: { wait_ms: 5 }, echo: {}");
    let mut client = rig.client();
    for wait in ["", "X-Wait: yes\r\n"] {
        let head = format!("POST /echo HTTP/1.1\r\nHost: t\r\n{wait}Content-Length: 5\r\n\r\nhello");
        let response = client.ask(head).expect("a response");
        assert_eq!((response.status, &*response.body), (200, &b"HELLO"[..]), "{wait}");
    }
}

#[test]
fn the_guide_shows_this_file() {
    let page = include_str!("../../../../docs/guide/writing-a-plugin.md");
    let own = include_str!("shouts_later.rs");
    let shown: Vec<&str> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(shown.len(), 6);
    for code in shown {
        assert!(own.contains(code), "docs/guide/writing-a-plugin.md shows what this file does not say:\n{code}");
    }
}
