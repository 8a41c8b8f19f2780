//! Running a route's plugins. One that panics takes its own exchange with it and nothing else: the request is answered
//! with 500, never let through.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use weir_plugin::{Exchange, Step, Stop};

use crate::connection::unless_left;
use crate::snapshot::Chain;

/// `poll_leave` ends what a plugin waits for when nobody needs it any more.
pub async fn on_request(
    chain: &Chain,
    exchange: &mut Exchange,
    mut poll_leave: impl FnMut(&mut Context<'_>) -> Poll<Stop>,
) -> Result<(), Stop> {
    for step in &chain.request {
        match step {
            Step::Sync(plugin) => guarded(|| plugin.on_request(exchange))?,
            Step::Async(plugin) => {
                let mut waiting = guarded(|| Ok(plugin.on_request(exchange)))?;
                let waiting = poll_fn(|context| {
                    guarded(|| Ok(waiting.as_mut().poll(context))).unwrap_or_else(|stop| Poll::Ready(Err(stop)))
                });
                unless_left(waiting, &mut poll_leave).await?;
            }
        }
    }
    Ok(())
}

/// `Err(Stop::Answered)`: a plugin has replaced the response, and those after it have seen the new one.
pub fn on_response(chain: &Chain, exchange: &mut Exchange) -> Result<(), Stop> {
    for step in &chain.response {
        match guarded(|| step.on_response(exchange)) {
            Ok(()) => {}
            Err(Stop::Answered) => exchange.response_replaced = true,
            Err(stop) => return Err(stop),
        }
    }
    if exchange.response_replaced { Err(Stop::Answered) } else { Ok(()) }
}

pub fn on_log(chain: &Chain, exchange: &Exchange) {
    for step in &chain.log {
        // The exchange is over; there is nobody left to answer.
        let _ = guarded(|| {
            step.on_log(exchange);
            Ok(())
        });
    }
}

fn guarded<T>(call: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Stop::Internal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_plugin::{AsyncPlugin, Phases, Plugin, Waiting};

    struct Panics;

    impl Plugin for Panics {
        fn phases(&self) -> Phases {
            Phases::REQUEST.and(Phases::RESPONSE).and(Phases::LOG)
        }
        fn on_request(&self, _: &mut Exchange) -> Result<(), Stop> {
            panic!("F31: on_request")
        }
        fn on_response(&self, _: &mut Exchange) -> Result<(), Stop> {
            panic!("F31: on_response")
        }
        fn on_log(&self, _: &Exchange) {
            panic!("F31: on_log")
        }
    }

    impl AsyncPlugin for Panics {
        fn on_request<'a>(&'a self, _: &'a mut Exchange) -> Waiting<'a> {
            Box::pin(async { panic!("F31: waiting") })
        }
    }

    #[tokio::test]
    async fn f31_a_panic_is_a_500_for_that_exchange() {
        let chain = Chain::new([Step::new(Panics)]);
        let mut exchange = Exchange::default();
        assert_eq!(on_request(&chain, &mut exchange, |_| Poll::Pending).await, Err(Stop::Internal));
        assert_eq!(on_response(&chain, &mut exchange), Err(Stop::Internal));
        on_log(&chain, &exchange);
        let waiting = Chain::new([Step::waiting(Panics)]);
        assert_eq!(on_request(&waiting, &mut exchange, |_| Poll::Pending).await, Err(Stop::Internal));
    }
}
