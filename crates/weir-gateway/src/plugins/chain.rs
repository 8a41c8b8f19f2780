//! Runs the plugins of an exchange, phase by phase, and measures their cost in exchanges that the meter has picked.

use std::rc::Rc;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Instant;

use weir_plugin::{Flow, PluginTurn, Stop};

use super::guard::{guarded, guarded_wait};
use super::price::{PricedPhase, Pricing};
use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;
use crate::message::sides::until_client_disconnects;
use crate::snapshot::{Chain, ChainReach, ConsumerPlugins, Link};
use crate::worker::snapshot::WorkerSnapshot;

/// The plugins of an exchange: those of its route and, once the consumer is identified, those of the consumer.
///
/// The two lists are merged while they run, which needs no memory, however many consumers use however many routes.
#[derive(Clone, Copy)]
pub(crate) struct Plugins<'a> {
    chain: &'a Chain,
    overlays: &'a [ConsumerPlugins],
    pub(super) pricing: Pricing<'a>,
}

/// The plugins of a subrequest, which a responder sends: none.
static NO_PLUGINS: LazyLock<Chain> = LazyLock::new(Chain::default);

/// Records how long a plugin ran in a phase of an observed exchange, from `began` to now.
#[inline]
fn note_turn(exchange: &mut ServedExchange, link: &Link, phase: &'static str, began: Option<Instant>) {
    if let Some(began) = began {
        let ns = began.elapsed().as_nanos() as u64;
        exchange.note_turn(PluginTurn { plugin: link.name, phase, ns });
    }
}

impl<'a> Plugins<'a> {
    pub(crate) fn of(
        worker: &'a Rc<WorkerContext>,
        current: &'a WorkerSnapshot,
        exchange: &ServedExchange,
    ) -> Plugins<'a> {
        let snapshot = &*current.snapshot;
        let chain = match &exchange.route {
            Some(route) => &snapshot.routes[route.number()].chain,
            None if exchange.is_subrequest => &NO_PLUGINS,
            None => &snapshot.unmatched,
        };
        Plugins { chain, overlays: &snapshot.overlays, pricing: Pricing::of(worker, current) }
    }

    fn overlay(self, exchange: &ServedExchange) -> Option<&'a ConsumerPlugins> {
        let number = exchange.identity.as_ref()?.consumer.overlay?;
        self.overlays.get(number as usize)
    }

    /// Whether any plugin runs on requests. Plugins of a consumer do so only after one of these has identified the
    /// consumer.
    pub(crate) fn see_requests(self) -> bool {
        !self.chain.request.is_empty()
    }

    /// Whether any of them reads the first bytes of a stream.
    pub(crate) fn read_first_bytes(self) -> bool {
        self.chain.reads_first_bytes
    }

    /// `poll_leave` ends the wait of a plugin when the exchange no longer needs it.
    pub(crate) async fn on_request(
        self,
        exchange: &mut ServedExchange,
        poll_leave: impl FnMut(&mut Context<'_>) -> Poll<Stop>,
    ) -> Result<(), Stop> {
        match exchange.observed {
            false => self.requests::<false>(exchange, poll_leave).await,
            true => Box::pin(self.requests::<true>(exchange, poll_leave)).await,
        }
    }

    async fn requests<const OBSERVED: bool>(
        self,
        exchange: &mut ServedExchange,
        mut poll_leave: impl FnMut(&mut Context<'_>) -> Poll<Stop>,
    ) -> Result<(), Stop> {
        let (anonymous, identified) = self.chain.request.split_at(self.chain.anonymous);
        let mut links = PhasePlugins::of(anonymous, Order::ByStage);
        loop {
            for link in &mut links {
                let began = if OBSERVED { Some(Instant::now()) } else { None };
                let end = self.turn::<OBSERVED>(link, exchange, &mut poll_leave).await;
                note_turn(exchange, link, "request", began);
                end?;
            }
            if links.anonymous.is_some() {
                return Ok(());
            }
            links = PhasePlugins::of(identified, Order::ByStage).with(self.overlay(exchange), |chain| &chain.request);
            links.anonymous = Some(anonymous);
        }
    }

    /// Runs one plugin on a request. Most plugins wait for nothing, and need no future.
    async fn turn<const OBSERVED: bool>(
        self,
        link: &Link,
        exchange: &mut ServedExchange,
        poll_leave: &mut impl FnMut(&mut Context<'_>) -> Poll<Stop>,
    ) -> Result<(), Stop> {
        let price = self.pricing.price_if::<OBSERVED>(link, exchange);
        let end = match self.pricing.measure(price, PricedPhase::Request, || guarded(|| link.step.on_request(exchange)))
        {
            Ok(Flow::Continue) => return Ok(()),
            // Boxed: the future of a waiting plugin must not take room in every exchange.
            Ok(Flow::Wait(waiting)) if OBSERVED => {
                Box::pin(self.pricing.attend(price, guarded_wait(waiting), poll_leave)).await
            }
            Ok(Flow::Wait(waiting)) => Box::pin(until_client_disconnects(guarded_wait(waiting), poll_leave)).await,
            Err(stop) => Err(stop),
        };
        self.pricing.ended(link, exchange, end)
    }

    /// `Err(Stop::Answered)`: a plugin has replaced the response, and those after it have seen the new one.
    pub(crate) fn on_response(self, exchange: &mut ServedExchange) -> Result<(), Stop> {
        match exchange.observed {
            false => self.responses::<false>(exchange),
            true => self.responses::<true>(exchange),
        }
    }

    fn responses<const OBSERVED: bool>(self, exchange: &mut ServedExchange) -> Result<(), Stop> {
        let respond = |link: &Link, exchange: &mut ServedExchange| {
            let price = self.pricing.price_if::<OBSERVED>(link, exchange);
            let began = if OBSERVED { Some(Instant::now()) } else { None };
            let end =
                self.pricing.measure(price, PricedPhase::Response, || guarded(|| link.step.on_response(exchange)));
            note_turn(exchange, link, "response", began);
            match end {
                Err(Stop::Answered) => {
                    exchange.response_replaced = true;
                    exchange.replace_response();
                    Ok(())
                }
                end => end.inspect_err(|stop| self.pricing.stopped(link, exchange, *stop)),
            }
        };
        self.links(Order::ByPriority, exchange, |chain| &chain.response)
            .try_for_each(|link| respond(link, exchange))?;
        if exchange.response_replaced { Err(Stop::Answered) } else { Ok(()) }
    }

    /// Whether a plugin may want the content of the request.
    pub(crate) fn see_request_bodies(self, exchange: &ServedExchange) -> bool {
        !self.chain.request_body.is_empty()
            || self.overlay(exchange).is_some_and(|overlay| !overlay.chain.request_body.is_empty())
    }

    /// Whether a plugin may want the content of the response.
    pub(crate) fn see_response_bodies(self, exchange: &ServedExchange) -> bool {
        !self.chain.response_body.is_empty()
            || self.overlay(exchange).is_some_and(|overlay| !overlay.chain.response_body.is_empty())
    }

    /// Whether a plugin may want the messages of a WebSocket or of an event stream.
    pub(crate) fn see_messages(self, exchange: &ServedExchange) -> bool {
        !self.chain.messages.is_empty()
            || self.overlay(exchange).is_some_and(|overlay| !overlay.chain.messages.is_empty())
    }

    /// The plugins that may want messages, in order.
    pub(crate) fn messages(self, exchange: &ServedExchange) -> PhasePlugins<'a> {
        self.links(Order::ByStage, exchange, |chain| &chain.messages)
    }

    /// The plugins that may want the content of the request, in order.
    pub(crate) fn request_bodies(self, exchange: &ServedExchange) -> PhasePlugins<'a> {
        self.links(Order::ByStage, exchange, |chain| &chain.request_body)
    }

    /// The plugins that may want the content of the response, in order.
    pub(crate) fn response_bodies(self, exchange: &ServedExchange) -> PhasePlugins<'a> {
        self.links(Order::ByPriority, exchange, |chain| &chain.response_body)
    }

    /// The plugins of one phase: the route's, merged with the consumer's.
    fn links(self, order: Order, exchange: &ServedExchange, phase: fn(&Chain) -> &Vec<Link>) -> PhasePlugins<'a> {
        PhasePlugins::of(phase(self.chain), order).with(self.overlay(exchange), phase)
    }

    /// Removes secrets from the copy of the exchange that is recorded. Runs before any record is made, whatever the order
    /// of plugins.
    pub(crate) fn mask(self, exchange: &mut ServedExchange) {
        let is_masked = |chain: &Chain| !chain.mask.is_empty();
        if !is_masked(self.chain) && !self.overlay(exchange).is_some_and(|overlay| is_masked(&overlay.chain)) {
            return;
        }
        let links = self.links(Order::ByPriority, exchange, |chain| &chain.mask);
        exchange.mask_copy_for_records(|exchange, shown| {
            for link in links {
                guarded(|| {
                    link.step.mask(exchange, shown);
                    Ok(())
                })?;
            }
            Ok::<(), Stop>(())
        });
    }

    /// Counts that the service of a plugin has failed, which answers the exchange in place of an upstream.
    pub(crate) fn count_failure_of(self, plugin: &str, exchange: &ServedExchange) {
        self.with_link_of(plugin, exchange, |link| self.pricing.failed(link, exchange));
    }

    /// Counts that the service of a plugin has answered in place of the upstream.
    pub(crate) fn count_refusal_of(self, plugin: &str, exchange: &ServedExchange) {
        self.with_link_of(plugin, exchange, |link| self.pricing.refused(link, exchange));
    }

    fn with_link_of(self, plugin: &str, exchange: &ServedExchange, count: impl FnOnce(&Link)) {
        let of_consumer = self.overlay(exchange).map(|overlay| &overlay.chain.request);
        let mut links = of_consumer.into_iter().flatten().chain(&self.chain.request);
        if let Some(link) = links.find(|link| link.name == plugin) {
            count(link);
        }
    }

    pub(crate) fn on_log(self, exchange: &ServedExchange) {
        match exchange.observed {
            false => self.logs::<false>(exchange),
            true => self.logs::<true>(exchange),
        }
    }

    fn logs<const OBSERVED: bool>(self, exchange: &ServedExchange) {
        let log = |link: &Link| {
            if exchange.notes.keep_content() {
                self.pricing.hold(&[link], exchange, link.step.kept_bytes(exchange));
            }
            // The exchange is over; a failure can no longer change its response.
            let price = self.pricing.price_if::<OBSERVED>(link, exchange);
            let _ = self.pricing.measure(price, PricedPhase::Log, || {
                guarded(|| {
                    link.step.on_log(exchange);
                    Ok(())
                })
            });
        };
        self.links(Order::ByPriority, exchange, |chain| &chain.log).for_each(log);
    }
}

/// What determines the order of plugins.
#[derive(Clone, Copy)]
enum Order {
    /// Requests pass one stage after another, and within a stage by priority.
    ByStage,
    /// Responses and log records have no stages.
    ByPriority,
}

impl Order {
    fn is_earlier(self, one: &Link, other: &Link) -> bool {
        match self {
            Order::ByStage => one.rank < other.rank,
            Order::ByPriority => one.rank.in_responses() < other.rank.in_responses(),
        }
    }
}

/// The plugins of one phase in running order: those of the route, without those that the consumer overrides, merged with
/// those that the consumer adds.
pub(crate) struct PhasePlugins<'a> {
    route: &'a [Link],
    order: Order,
    added: &'a [Link],
    overrides: &'a [u16],
    /// Set once the consumer is identified: the plugins that ran before that.
    anonymous: Option<&'a [Link]>,
}

impl<'a> PhasePlugins<'a> {
    fn of(route: &'a [Link], order: Order) -> PhasePlugins<'a> {
        PhasePlugins { route, order, added: &[], overrides: &[], anonymous: None }
    }

    fn with(self, overlay: Option<&'a ConsumerPlugins>, phase: fn(&Chain) -> &Vec<Link>) -> PhasePlugins<'a> {
        match overlay {
            Some(ConsumerPlugins { chain, overrides }) => PhasePlugins { added: phase(chain), overrides, ..self },
            None => self,
        }
    }

    /// Whether the route's configuration of this plugin has run before the consumer was identified; then it does not run
    /// again.
    fn has_run(&self, link: &Link) -> bool {
        let is_same = |ran: &Link| ran.plugin == link.plugin && ran.rank.reach == ChainReach::Own;
        self.anonymous.is_some_and(|anonymous| anonymous.iter().any(is_same))
    }

    fn next_merged(&mut self) -> Option<&'a Link> {
        let is_overridden =
            |link: &Link| link.rank.reach != ChainReach::Global && self.overrides.contains(&link.plugin);
        while let Some((_, rest)) = self.route.split_first().filter(|(link, _)| is_overridden(link)) {
            self.route = rest;
        }
        while let Some((_, rest)) = self.added.split_first().filter(|(link, _)| self.has_run(link)) {
            self.added = rest;
        }
        let takes_added = match (self.route.first(), self.added.first()) {
            (Some(own), Some(added)) => self.order.is_earlier(added, own),
            (own, _) => own.is_none(),
        };
        let list = if takes_added { &mut self.added } else { &mut self.route };
        let (first, rest) = list.split_first()?;
        *list = rest;
        Some(first)
    }
}

impl<'a> Iterator for PhasePlugins<'a> {
    type Item = &'a Link;

    #[inline]
    fn next(&mut self) -> Option<&'a Link> {
        if !self.added.is_empty() || !self.overrides.is_empty() {
            return self.next_merged();
        }
        let (first, rest) = self.route.split_first()?;
        self.route = rest;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::Rank;
    use weir_plugin::{Consumer, Credential, Exchange, Phases, Plugin, Stage};

    struct Panics;

    impl Plugin for Panics {
        fn phases(&self) -> Phases {
            Phases::REQUEST.and(Phases::RESPONSE).and(Phases::LOG)
        }
        fn on_request(&self, _: &mut Exchange) -> Result<Flow<'static>, Stop> {
            panic!("F31: on_request")
        }
        fn on_response(&self, _: &mut Exchange) -> Result<(), Stop> {
            panic!("F31: on_response")
        }
        fn on_log(&self, _: &Exchange) {
            panic!("F31: on_log")
        }
    }

    struct PanicsLater;

    impl Plugin for PanicsLater {
        fn on_request(&self, _: &mut Exchange) -> Result<Flow<'static>, Stop> {
            Ok(Flow::wait(async { panic!("F31: waiting") }))
        }
    }

    fn link(step: Arc<dyn Plugin>, plugin: u16, stage: Stage, reach: ChainReach, priority: i32) -> Link {
        let first_in_responses = step.phases().first_in_responses;
        let rank = Rank { stage, reach, priority: Reverse(priority), first_in_responses };
        Link { step, rank, plugin, name: "test", identifies: false }
    }

    #[tokio::test]
    async fn f31_a_panic_is_a_500_for_that_exchange() {
        let chain = |step: Arc<dyn Plugin>| Chain::new(vec![link(step, 0, Stage::Rewrite, ChainReach::Own, 0)]);
        let panics = chain(Arc::new(Panics));
        let plugins = Plugins { chain: &panics, overlays: &[], pricing: Pricing::default() };
        let mut exchange = ServedExchange::default();
        assert_eq!(plugins.on_request(&mut exchange, |_| Poll::Pending).await, Err(Stop::Internal));
        assert_eq!(plugins.on_response(&mut exchange), Err(Stop::Internal));
        plugins.on_log(&exchange);
        let waits = chain(Arc::new(PanicsLater));
        let waiting = Plugins { chain: &waits, overlays: &[], pricing: Pricing::default() };
        assert_eq!(waiting.on_request(&mut exchange, |_| Poll::Pending).await, Err(Stop::Internal));
    }

    /// Appends its text to the body; the text `@` identifies the client.
    struct Mark(&'static str);

    impl Plugin for Mark {
        fn phases(&self) -> Phases {
            Phases::REQUEST.and(Phases::RESPONSE)
        }
        fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
            exchange.body.extend_from_slice(self.0.as_bytes());
            if self.0 == "@" {
                let consumer = Arc::new(Consumer { overlay: Some(0), ..Consumer::default() });
                let options = serde_json::Value::Null;
                exchange.identify(&Arc::new(Credential { consumer, id: "".into(), options }))?;
            }
            Ok(Flow::Continue)
        }
        fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
            exchange.body.extend_from_slice(self.0.as_bytes());
            Ok(())
        }
    }

    #[tokio::test]
    async fn plugins_of_a_consumer_apply_from_where_the_consumer_is_known() {
        use {
            ChainReach::{Global, Own},
            Stage::{Access, Rewrite},
        };
        let mark = |text, plugin, stage, reach, priority| link(Arc::new(Mark(text)), plugin, stage, reach, priority);
        let auth = Link { identifies: true, ..mark("@", 0, Rewrite, Own, 50) };
        let chain = Chain::new(vec![
            mark("early ", 1, Rewrite, Own, 60),
            auth,
            mark("late ", 2, Rewrite, Own, 40),
            mark("Global ", 3, Access, Global, 1),
            mark("access ", 3, Access, Own, 10),
            mark("off ", 4, Access, Own, 5),
        ]);
        let overlay = ConsumerPlugins {
            chain: Chain::new(vec![
                mark("EARLY ", 1, Rewrite, Own, 60),
                mark("NEW ", 5, Rewrite, Own, 70),
                mark("LATE ", 2, Rewrite, Own, 40),
                mark("ACCESS ", 3, Access, Own, 20),
            ]),
            overrides: [1, 2, 3, 4, 5].into(),
        };
        let overlays = [overlay];
        let plugins = Plugins { chain: &chain, overlays: &overlays, pricing: Pricing::default() };
        let mut exchange = ServedExchange::default();
        assert_eq!(plugins.on_request(&mut exchange, |_| Poll::Pending).await, Ok(()));
        assert_eq!(str::from_utf8(&exchange.body), Ok("early @NEW LATE Global ACCESS "));
        exchange.body.clear();
        assert_eq!(plugins.on_response(&mut exchange), Ok(()));
        assert_eq!(str::from_utf8(&exchange.body), Ok("Global NEW EARLY @LATE ACCESS "));
        let mut stranger = ServedExchange::default();
        assert_eq!(
            Plugins { chain: &chain, overlays: &[], pricing: Pricing::default() }.on_response(&mut stranger),
            Ok(())
        );
        assert_eq!(str::from_utf8(&stranger.body), Ok("Global early @late access off "));
    }
}
