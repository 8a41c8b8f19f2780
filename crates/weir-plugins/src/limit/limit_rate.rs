use std::num::NonZeroU64;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Filter, Phases, Plugin, ResponseRate, Stage, Stop};

/// Limits how fast the content of each response is sent to its client, so that downloads leave bandwidth for others.
///
/// Each response has the rate for itself, over all protocols: two downloads at once, on one connection of HTTP/2 or on two
/// connections, take twice as much. Content is sent in steps of a twentieth of a second, or at low rates in pieces of 512 bytes, and
/// the head of a response at once. A response that fell behind, because its upstream or its client was slow, may catch up by at most
/// the bytes of one second. After an upgrade, as for a WebSocket, and for what the gateway answers itself, such as an error, there is
/// no limit.
///
/// The upstream is read only as fast as the client is sent content. What has come ahead waits: up to 64 KiB that came with the head, or
/// all content that another plugin wanted whole, which count as held content, and from an upstream of HTTP/2 up to 64 KiB more, or 256 KiB
/// if the rate is 1 MiB or more. Content waits only while at most a quarter of `held_content_max`, and of the client's part of it, is in
/// use: otherwise it is sent at once, which `weir_response_rates_exceeded_total` counts, and what follows it waits for longer.
///
/// The time-outs of the upstream, and those of a client that takes nothing, do not count the time for which the gateway waits. The
/// deadline of a gRPC call and a time-out of the whole request do count it: what has not come from the upstream by then is not sent. A node
/// that ends or is upgraded keeps the rate, and cuts what is not sent within `worker_shutdown_timeout`: for downloads of an hour, allow an
/// hour, or let clients fetch the rest by a range. To limit how many downloads a client has at once, use `limit-conn` beside it. Of several such plugins for one response, such as that of
/// a global rule and that of a route, the one with the lowest `rate` counts, with its own `after`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitRate {
    /// The bytes of content that are sent in a second.
    #[schemars(range(min = 1, max = ResponseRate::MOST))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    rate: NonZeroU64,
    /// The bytes at the beginning of each response that are sent without a limit.
    #[serde(default)]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    after: u64,
}

impl Definition for LimitRate {
    const NAME: &'static str = "limit-rate";
    const PRIORITY: i32 = 1000;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "limit-rate: { rate: 102400, after: 1048576 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(LimitedRate(ResponseRate { bytes_per_second: self.rate, at_once: self.after })))
    }
}

struct LimitedRate(ResponseRate);

impl Plugin for LimitedRate {
    fn phases(&self) -> Phases {
        Phases::RESPONSE_BODY
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        exchange.limit_response_rate(self.0);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, refused};

    #[test]
    fn the_lowest_rate_of_several_counts_with_what_it_sends_at_once() {
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h");
        for options in [json!({"rate": 2_000}), json!({"rate": 1_000, "after": 7}), json!({"rate": 3_000, "after": 5})]
        {
            let step = build::<LimitRate>(options);
            assert_eq!(step.phases(), Phases::RESPONSE_BODY);
            assert!(step.response_filter(&mut exchange).expect("it refuses nothing").is_none());
        }
        let rate = exchange.response_rate().expect("it is limited");
        assert_eq!((rate.bytes_per_second.get(), rate.at_once), (1_000, 7));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"rate": true}), "rate: expected"),
            (json!({"rate": 0}), "rate: expected a whole number of bytes from 1"),
            (json!({"after": 1}), "the option `rate` is missing"),
            (json!({"rate": 1, "rate_after": 1}), "rate_after: the option `rate_after` is not known"),
        ] {
            let error = refused::<LimitRate>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
