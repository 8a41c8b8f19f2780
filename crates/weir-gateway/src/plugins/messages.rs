//! Plugins that look at messages: of a WebSocket, or the events of an event stream. Without such plugins this code does not
//! run, and bytes go straight from one socket to the other.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_plugin::{
    EarlyEnd, Exchange, MessageFilter, MessageHead, MessageLoss, MessageProtocol, MessageTerms, MessageVerdict, Stop,
    StreamClose,
};
use weir_proto::websocket::CloseCode;
use weir_proto::websocket::extensions::{self, Extensions};
use weir_proto::{Known, field};
use weir_telemetry::metrics::EventCounters;
use weir_telemetry::routes::RouteCells;

use super::chain::Plugins;
use super::guard::guarded;
use crate::context::WorkerContext;
use crate::context::identity_watch::IdentityGuard;
use crate::context::served_exchange::{PolicyFilter, ServedExchange, WebSocketOpening};

const EXTENSIONS: &[u8] = b"Sec-WebSocket-Extensions";
const PROTOCOL: &[u8] = b"Sec-WebSocket-Protocol";

/// The message filters of one exchange. A filter that panics ends its stream and nothing else.
pub(crate) struct MessagePolicies {
    filters: Vec<PolicyFilter>,
    pub terms: MessageTerms,
    /// The filter that has closed the stream.
    closer: Option<usize>,
}

impl MessagePolicies {
    pub(crate) fn of(filters: Vec<PolicyFilter>) -> MessagePolicies {
        let terms = filters.iter().map(|policy| policy.filter.terms());
        let terms = terms.fold(MessageTerms::default(), MessageTerms::strictest_of_both);
        MessagePolicies { filters, terms, closer: None }
    }

    /// Creates the filters of the plugins; `None` if no plugin wants the messages of this exchange.
    pub(crate) fn ask(
        plugins: Plugins<'_>,
        exchange: &mut ServedExchange,
        protocol: MessageProtocol,
    ) -> Result<Option<MessagePolicies>, Stop> {
        let mut filters = Vec::new();
        for link in plugins.messages(exchange) {
            let asked = plugins.pricing.on_content(link, exchange, |exchange| link.step.messages(exchange, protocol));
            filters.extend(asked?.map(|filter| plugins.pricing.policy_filter(link, exchange, filter)));
        }
        Ok((!filters.is_empty()).then(|| MessagePolicies::of(filters)))
    }

    /// Called when a message begins.
    pub(crate) fn begin(&mut self, head: MessageHead) -> MessageVerdict {
        self.decide(|filter| filter.begin(head))
    }

    /// Called when `bytes` more of it are about to follow.
    pub(crate) fn grow(&mut self, head: MessageHead, bytes: u64) -> Result<(), StreamClose> {
        let closer = &mut self.closer;
        let mut grow = |(number, policy): (usize, &mut PolicyFilter)| {
            policy.filter.grow(head, bytes).inspect_err(|_| *closer = Some(number))
        };
        let grown = guarded(|| Ok(self.filters.iter_mut().enumerate().try_for_each(&mut grow)));
        grown.unwrap_or_else(|_| Err(failed()))
    }

    /// The message is larger than what filters read of one: that with the strictest limit has closed the stream.
    pub(crate) fn exceeded(&mut self, head: MessageHead) {
        let limit = |(number, policy): (usize, &PolicyFilter)| {
            let filter = &policy.filter;
            let limits = [filter.wants_whole(head), filter.terms().reads.of(head.source)];
            Some((limits.into_iter().flatten().min()?, number))
        };
        let strictest = guarded(|| Ok(self.filters.iter().enumerate().filter_map(limit).min()));
        self.closer = strictest.ok().flatten().map(|(_, number)| number);
    }

    /// If a filter wants the message whole, how many bytes of it may be held: the least that any filter allows.
    pub(crate) fn wants_whole(&self, head: MessageHead) -> Option<usize> {
        let wanted = guarded(|| Ok(self.filters.iter().filter_map(|policy| policy.filter.wants_whole(head)).min()));
        wanted.unwrap_or(Some(0))
    }

    /// Called when the message is complete.
    pub(crate) fn whole(&mut self, head: MessageHead, content: &[u8]) -> MessageVerdict {
        self.decide(|filter| match filter.wants_whole(head) {
            Some(_) => filter.whole(head, content),
            None => MessageVerdict::Pass,
        })
    }

    fn decide(&mut self, mut decide: impl FnMut(&mut dyn MessageFilter) -> MessageVerdict) -> MessageVerdict {
        let decided = guarded(|| {
            let mut verdicts = self.filters.iter_mut().map(|policy| decide(&mut *policy.filter)).enumerate();
            Ok(verdicts.find(|(_, verdict)| *verdict != MessageVerdict::Pass))
        });
        match decided {
            Ok(None) => MessageVerdict::Pass,
            Ok(Some((number, verdict))) => {
                self.closer = matches!(verdict, MessageVerdict::Close(_)).then_some(number);
                verdict
            }
            Err(_) => MessageVerdict::Close(failed()),
        }
    }

    /// Counts that the stream was closed, if a filter has done so; returns what its exchange tells.
    pub(crate) fn early_end(&self, close: &StreamClose, worker: &WorkerContext) -> EarlyEnd {
        let closer = self.closer.map(|number| &self.filters[number]);
        if let Some(closer) = closer
            && let Some(price) = worker.metrics.route(closer.slot).price.plugin(closer.plugin)
        {
            price.refusals.increment();
        }
        EarlyEnd { stop: close.stop, plugin: closer.map(|closer| closer.name) }
    }

    /// Watches the client's identity, if the stream has to end when it is revoked.
    pub(crate) fn watch_identity(&self, worker: &WorkerContext, exchange: &Exchange) -> Option<IdentityGuard> {
        let identity = exchange.identity.as_ref().filter(|_| self.terms.ends_with_identity)?;
        Some(worker.identities.watch(identity))
    }

    /// How long the stream may last; `None` if that is not limited.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.terms.ends_at.map(|end| end.saturating_sub(now))
    }
}

/// The reason for closing a stream after a plugin has panicked.
fn failed() -> StreamClose {
    StreamClose::new(CloseCode::INTERNAL, "a policy failed")
}

/// The reason for closing a stream whose credential has expired.
pub(crate) fn expired() -> StreamClose {
    credential_ended("the credential has expired")
}

/// The reason for closing a stream whose client's consumer or credential has been removed or changed.
pub(crate) fn revoked() -> StreamClose {
    credential_ended("the credential has been revoked")
}

/// Writes why a stream was ended into its exchange, whose log record and metrics tell it.
pub(crate) fn note_early_end(end: EarlyEnd, exchange: &mut Exchange) {
    if let Some(stop) = end.stop {
        exchange.end_by(stop);
    }
    if let Some(plugin) = end.plugin {
        exchange.set_refused_by(plugin);
    }
}

fn credential_ended(reason: &'static str) -> StreamClose {
    StreamClose { stop: Some(Stop::CredentialEnded), ..StreamClose::new(CloseCode::POLICY, reason) }
}

/// Counts a message that is not passed on.
pub(crate) fn count_lost(counters: &EventCounters, loss: MessageLoss) {
    match loss {
        MessageLoss::Throttled => counters.throttled.increment(),
        MessageLoss::Failed => counters.failed.increment(),
    }
}

/// Called when a request may become a WebSocket: creates the message filters, and makes sure that the upstream can only
/// accept extensions that the gateway can parse.
pub(crate) fn prepare(plugins: Plugins<'_>, exchange: &mut ServedExchange) -> Result<(), Stop> {
    let asked = exchange.request.head.known(Known::Upgrade).unwrap_or_default();
    if !asked.eq_ignore_ascii_case(b"websocket") {
        // Given several protocols, an upstream might choose a WebSocket, whose messages the plugins would not see.
        let is_among_others = field::list(asked).any(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
        exchange.request.upgrade &= !is_among_others;
        return Ok(());
    }
    let Some(policies) = MessagePolicies::ask(plugins, exchange, MessageProtocol::WebSocket)? else { return Ok(()) };
    let head = &mut exchange.request.head;
    let offers = extensions::deflate_offers(head.values(EXTENSIONS), !policies.terms.may_drop);
    head.remove(EXTENSIONS);
    if !offers.is_empty() {
        head.add(EXTENSIONS, &offers).map_err(|_| Stop::Internal)?;
    }
    let offers_compression = !offers.is_empty();
    let (may_drop, filters) = (policies.terms.may_drop, policies.filters);
    let opening = WebSocketOpening { filters, offers_compression, may_drop, compression: None };
    exchange.opening = Some(Box::new(opening));
    Ok(())
}

/// Called when the upstream has accepted a WebSocket. If plugins may leave messages out, tells the client to compress each message by
/// itself.
///
/// # Errors
/// The upstream has accepted an extension that was not offered, or with parameters that it cannot have (RFC 6455 §4.1, RFC 7692 §7.1),
/// so its frames could not be parsed.
pub(crate) fn check_agreed_extensions(exchange: &mut ServedExchange) -> Result<(), Stop> {
    let agreed = extensions::agreed(exchange.response.head.values(EXTENSIONS));
    let Some(opening) = &mut exchange.opening else { return Ok(()) };
    opening.compression = match agreed {
        Extensions::None => None,
        Extensions::Deflate(terms) if opening.offers_compression => Some(terms),
        Extensions::Deflate(_) | Extensions::Unknown => return Err(Stop::BadInterim),
    };
    if let Some(terms) = opening.compression.as_mut().filter(|_| opening.may_drop)
        && std::mem::take(&mut terms.client.keeps_context)
    {
        let head = &mut exchange.response.head;
        let accepted = head.values(EXTENSIONS).map(extensions::without_client_context).find(|it| !it.is_empty());
        head.remove(EXTENSIONS);
        head.add(EXTENSIONS, &accepted.unwrap_or_default()).map_err(|_| Stop::Internal)?;
    }
    Ok(())
}

/// Answers with the subprotocol that a plugin has chosen, if the upstream has chosen none.
pub(crate) fn answer_protocol(exchange: &mut ServedExchange) -> Result<(), Stop> {
    let Some(chosen) = exchange.chosen_websocket_protocol().cloned() else { return Ok(()) };
    let head = &mut exchange.response.head;
    if head.value(PROTOCOL).is_some() { Ok(()) } else { head.add(PROTOCOL, &chosen).map_err(|_| Stop::Internal) }
}
