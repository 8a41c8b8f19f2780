//! Running plugins, and measuring what they cost where chance has picked the exchange. One that panics takes its own
//! exchange with it and nothing else: the request is answered with 500, never let through.

use std::future::poll_fn;
use std::iter::Peekable;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use weir_plugin::{AsyncPlugin, Exchange, Plugin, Step, Stop, Waiting};

use super::price::{PricedPhase, note};
use crate::context::WorkerContext;
use crate::message::sides::unless_left;
use crate::snapshot::{Chain, Link, Overlay, Reach};
use crate::worker::snapshot::WorkerSnapshot;

/// The plugins of an exchange: its route's, and once it is clear who the consumer is, also those of the consumer.
///
/// They are merged while they run: that costs no memory, however many consumers use however many routes.
#[derive(Clone, Copy)]
pub struct Plugins<'a> {
    chain: &'a Chain,
    overlays: &'a [Overlay],
    /// Where prices are written down; nowhere in some tests.
    pub(super) site: Option<(&'a Rc<WorkerContext>, &'a WorkerSnapshot)>,
}

impl<'a> Plugins<'a> {
    pub fn of(worker: &'a Rc<WorkerContext>, current: &'a WorkerSnapshot, exchange: &Exchange) -> Plugins<'a> {
        let snapshot = &*current.snapshot;
        let chain = match &exchange.route {
            Some(route) => &snapshot.routes[route.number()].chain,
            None => &snapshot.unmatched,
        };
        Plugins { chain, overlays: &snapshot.overlays, site: Some((worker, current)) }
    }

    fn overlay(self, exchange: &Exchange) -> Option<&'a Overlay> {
        let number = exchange.identity.as_ref()?.consumer.overlay?;
        self.overlays.get(number as usize)
    }

    /// `poll_leave` ends what a plugin waits for when nobody needs it any more.
    pub async fn on_request(
        self,
        exchange: &mut Exchange,
        poll_leave: impl FnMut(&mut Context<'_>) -> Poll<Stop>,
    ) -> Result<(), Stop> {
        match exchange.measured {
            false => self.requests::<false>(exchange, poll_leave).await,
            true => Box::pin(self.requests::<true>(exchange, poll_leave)).await,
        }
    }

    async fn requests<const MEASURED: bool>(
        self,
        exchange: &mut Exchange,
        mut poll_leave: impl FnMut(&mut Context<'_>) -> Poll<Stop>,
    ) -> Result<(), Stop> {
        let (anonymous, rest) = self.chain.request.split_at(self.chain.anonymous);
        for link in anonymous {
            match &link.step {
                Step::Sync(plugin) => self.run::<MEASURED>(link, plugin, exchange)?,
                Step::Async(plugin) => self.wait::<MEASURED>(link, plugin, exchange, &mut poll_leave).await?,
            }
        }
        let Some(overlay) = self.overlay(exchange) else {
            for link in rest {
                match &link.step {
                    Step::Sync(plugin) => self.run::<MEASURED>(link, plugin, exchange)?,
                    Step::Async(plugin) => self.wait::<MEASURED>(link, plugin, exchange, &mut poll_leave).await?,
                }
            }
            return Ok(());
        };
        // What a route has said of a plugin that ran before anybody was known is not said again.
        let is_new =
            |link: &&Link| !anonymous.iter().any(|ran| ran.plugin == link.plugin && ran.rank.reach == Reach::Own);
        let added = overlay.chain.request.iter().filter(is_new);
        for link in merged(rest, added, &overlay.overrides, |one, other| one.rank < other.rank) {
            match &link.step {
                Step::Sync(plugin) => self.run::<MEASURED>(link, plugin, exchange)?,
                Step::Async(plugin) => self.wait::<MEASURED>(link, plugin, exchange, &mut poll_leave).await?,
            }
        }
        Ok(())
    }

    /// Most plugins wait for nothing, and need no future.
    fn run<const MEASURED: bool>(
        self,
        link: &Link,
        plugin: &Arc<dyn Plugin>,
        exchange: &mut Exchange,
    ) -> Result<(), Stop> {
        let price = self.price_if::<MEASURED>(link, exchange);
        self.measure(price, PricedPhase::Request, || guarded(|| plugin.on_request(exchange)))
            .inspect_err(|stop| self.stopped(link, exchange, *stop))
    }

    async fn wait<const MEASURED: bool>(
        self,
        link: &Link,
        plugin: &Arc<dyn AsyncPlugin>,
        exchange: &mut Exchange,
        poll_leave: &mut impl FnMut(&mut Context<'_>) -> Poll<Stop>,
    ) -> Result<(), Stop> {
        let price = self.price_if::<MEASURED>(link, exchange);
        note(price, PricedPhase::Request);
        let waiting = waiting(|| plugin.on_request(exchange));
        let end = match MEASURED {
            true => self.attend(price, waiting, poll_leave).await,
            false => unless_left(waiting, poll_leave).await,
        };
        end.inspect_err(|stop| self.stopped(link, exchange, *stop))
    }

    /// `Err(Stop::Answered)`: a plugin has replaced the response, and those after it have seen the new one.
    pub fn on_response(self, exchange: &mut Exchange) -> Result<(), Stop> {
        match exchange.measured {
            false => self.responses::<false>(exchange),
            true => self.responses::<true>(exchange),
        }
    }

    fn responses<const MEASURED: bool>(self, exchange: &mut Exchange) -> Result<(), Stop> {
        let respond = |link: &Link, exchange: &mut Exchange| {
            let price = self.price_if::<MEASURED>(link, exchange);
            match self.measure(price, PricedPhase::Response, || guarded(|| link.step.on_response(exchange))) {
                Err(Stop::Answered) => {
                    exchange.response_replaced = true;
                    Ok(())
                }
                end => end.inspect_err(|stop| self.stopped(link, exchange, *stop)),
            }
        };
        match self.overlay(exchange) {
            None => self.chain.response.iter().try_for_each(|link| respond(link, exchange))?,
            Some(Overlay { chain, overrides }) => {
                merged(&self.chain.response, chain.response.iter(), overrides, is_earlier)
                    .try_for_each(|link| respond(link, exchange))?;
            }
        }
        if exchange.response_replaced { Err(Stop::Answered) } else { Ok(()) }
    }

    /// Somebody may look into the content of the request.
    pub fn see_request_bodies(self, exchange: &Exchange) -> bool {
        !self.chain.request_body.is_empty()
            || self.overlay(exchange).is_some_and(|overlay| !overlay.chain.request_body.is_empty())
    }

    /// Somebody may look into the content of the response.
    pub fn see_response_bodies(self, exchange: &Exchange) -> bool {
        !self.chain.response_body.is_empty()
            || self.overlay(exchange).is_some_and(|overlay| !overlay.chain.response_body.is_empty())
    }

    /// Those that may look into the content of the request, in order.
    pub fn request_bodies(self, exchange: &Exchange) -> impl Iterator<Item = &'a Link> + use<'a> {
        let (added, overrides) = match self.overlay(exchange) {
            Some(Overlay { chain, overrides }) => (&*chain.request_body, &**overrides),
            None => (&[][..], &[][..]),
        };
        merged(&self.chain.request_body, added.iter(), overrides, |one, other| one.rank < other.rank)
    }

    /// Those that may look into the content of the response, in order.
    pub fn response_bodies(self, exchange: &Exchange) -> impl Iterator<Item = &'a Link> + use<'a> {
        let (added, overrides) = match self.overlay(exchange) {
            Some(Overlay { chain, overrides }) => (&*chain.response_body, &**overrides),
            None => (&[][..], &[][..]),
        };
        merged(&self.chain.response_body, added.iter(), overrides, is_earlier)
    }

    pub fn on_log(self, exchange: &Exchange) {
        match exchange.measured {
            false => self.logs::<false>(exchange),
            true => self.logs::<true>(exchange),
        }
    }

    fn logs<const MEASURED: bool>(self, exchange: &Exchange) {
        let log = |link: &Link| {
            if exchange.notes.keep_content() {
                self.hold(&[link], exchange, link.step.kept_bytes(exchange));
            }
            // The exchange is over; there is nobody left to answer.
            let price = self.price_if::<MEASURED>(link, exchange);
            let _ = self.measure(price, PricedPhase::Log, || {
                guarded(|| {
                    link.step.on_log(exchange);
                    Ok(())
                })
            });
        };
        match self.overlay(exchange) {
            None => self.chain.log.iter().for_each(log),
            Some(Overlay { chain, overrides }) => {
                merged(&self.chain.log, chain.log.iter(), overrides, is_earlier).for_each(log);
            }
        }
    }
}

/// Responses and the log know no stages.
fn is_earlier(one: &Link, other: &Link) -> bool {
    (one.rank.reach, one.rank.priority) < (other.rank.reach, other.rank.priority)
}

/// Two lists in running order as one, without those of `base` that are overridden.
fn merged<'a>(
    base: &'a [Link],
    added: impl Iterator<Item = &'a Link>,
    overrides: &'a [u16],
    is_earlier: impl Fn(&Link, &Link) -> bool,
) -> impl Iterator<Item = &'a Link> {
    let is_kept = |link: &&Link| link.rank.reach == Reach::Global || !overrides.contains(&link.plugin);
    let mut base = base.iter().filter(is_kept).peekable();
    let mut added = added.peekable();
    std::iter::from_fn(move || next(&mut base, &mut added, &is_earlier))
}

fn next<'a>(
    base: &mut Peekable<impl Iterator<Item = &'a Link>>,
    added: &mut Peekable<impl Iterator<Item = &'a Link>>,
    is_earlier: impl Fn(&Link, &Link) -> bool,
) -> Option<&'a Link> {
    match (base.peek(), added.peek()) {
        (Some(own), Some(other)) if is_earlier(other, own) => added.next(),
        (None, _) => added.next(),
        _ => base.next(),
    }
}

/// A plugin that waits.
pub async fn waiting<'a>(begin: impl FnOnce() -> Waiting<'a>) -> Result<(), Stop> {
    let mut waiting = guarded(|| Ok(begin()))?;
    poll_fn(|context| guarded(|| Ok(waiting.as_mut().poll(context))).unwrap_or_else(|stop| Poll::Ready(Err(stop))))
        .await
}

pub fn guarded<T>(call: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Stop::Internal))
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::Rank;
    use weir_plugin::{AsyncPlugin, Consumer, Credential, Phases, Plugin, Stage};

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

    fn link(step: Step, plugin: u16, stage: Stage, reach: Reach, priority: i32) -> Link {
        Link { step, rank: Rank { stage, reach, priority: Reverse(priority) }, plugin, identifies: false }
    }

    #[tokio::test]
    async fn f31_a_panic_is_a_500_for_that_exchange() {
        let chain = |step| Chain::new(vec![link(step, 0, Stage::Rewrite, Reach::Own, 0)]);
        let panics = chain(Step::new(Panics));
        let plugins = Plugins { chain: &panics, overlays: &[], site: None };
        let mut exchange = Exchange::default();
        assert_eq!(plugins.on_request(&mut exchange, |_| Poll::Pending).await, Err(Stop::Internal));
        assert_eq!(plugins.on_response(&mut exchange), Err(Stop::Internal));
        plugins.on_log(&exchange);
        let waits = chain(Step::waiting(Panics));
        let waiting = Plugins { chain: &waits, overlays: &[], site: None };
        assert_eq!(waiting.on_request(&mut exchange, |_| Poll::Pending).await, Err(Stop::Internal));
    }

    /// Writes its text into the body; the text `@` identifies the client.
    struct Mark(&'static str);

    impl Plugin for Mark {
        fn phases(&self) -> Phases {
            Phases::REQUEST.and(Phases::RESPONSE)
        }
        fn on_request(&self, exchange: &mut Exchange) -> Result<(), Stop> {
            exchange.body.extend_from_slice(self.0.as_bytes());
            if self.0 == "@" {
                let consumer = Arc::new(Consumer { overlay: Some(0), ..Consumer::default() });
                let options = serde_json::Value::Null;
                exchange.identify(&Arc::new(Credential { consumer, id: "".into(), options }))?;
            }
            Ok(())
        }
        fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
            exchange.body.extend_from_slice(self.0.as_bytes());
            Ok(())
        }
    }

    #[tokio::test]
    async fn what_a_consumer_says_counts_from_where_it_is_known() {
        use {
            Reach::{Global, Own},
            Stage::{Access, Rewrite},
        };
        let mark = |text, plugin, stage, reach, priority| link(Step::new(Mark(text)), plugin, stage, reach, priority);
        let auth = Link { identifies: true, ..mark("@", 0, Rewrite, Own, 50) };
        let chain = Chain::new(vec![
            mark("early ", 1, Rewrite, Own, 60),
            auth,
            mark("late ", 2, Rewrite, Own, 40),
            mark("Global ", 3, Access, Global, 1),
            mark("access ", 3, Access, Own, 10),
            mark("off ", 4, Access, Own, 5),
        ]);
        let overlay = Overlay {
            chain: Chain::new(vec![
                mark("EARLY ", 1, Rewrite, Own, 60),
                mark("NEW ", 5, Rewrite, Own, 70),
                mark("LATE ", 2, Rewrite, Own, 40),
                mark("ACCESS ", 3, Access, Own, 20),
            ]),
            overrides: [1, 2, 3, 4, 5].into(),
        };
        let overlays = [overlay];
        let plugins = Plugins { chain: &chain, overlays: &overlays, site: None };
        let mut exchange = Exchange::default();
        assert_eq!(plugins.on_request(&mut exchange, |_| Poll::Pending).await, Ok(()));
        assert_eq!(str::from_utf8(&exchange.body), Ok("early @NEW LATE Global ACCESS "));
        exchange.body.clear();
        assert_eq!(plugins.on_response(&mut exchange), Ok(()));
        assert_eq!(str::from_utf8(&exchange.body), Ok("Global NEW EARLY @LATE ACCESS "));
        let mut stranger = Exchange::default();
        assert_eq!(Plugins { chain: &chain, overlays: &[], site: None }.on_response(&mut stranger), Ok(()));
        assert_eq!(str::from_utf8(&stranger.body), Ok("Global early @late access off "));
    }
}
