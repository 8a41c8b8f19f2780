//! Content that plugins look at or change. Without such plugins this code does not run, and bodies go straight from one
//! socket to the other.

use std::future::poll_fn;
use std::task::{Context, Poll};

use weir_plugin::{EarlyEnd, Exchange, Filter, Filters, Held, Plugin, Stop};
use weir_proto::{Framing, Trailers};

use super::chain::Plugins;
use super::events;
use super::guard::guarded;
use super::pace::{ContentPace, PaceStep};
use super::price::{HeldTime, PricedPhase};
use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::context::served_exchange::{ContentTaken, ServedExchange};
use crate::message::body::BodyTransfer;
use crate::message::deadlines;
use crate::message::forward::{self, HopFraming};
use crate::message::sides::ClientSide;
use crate::message::turn::ConnectionTurn;
use crate::snapshot::{ClientSettings, Link};

/// The plugins that want the whole content of one message, in order, and the most bytes that it may have.
struct WholeBody<'a> {
    links: Vec<&'a Link>,
    limit: u64,
    /// The plugin that set the limit.
    narrowest: Option<&'a Link>,
}

impl<'a> WholeBody<'a> {
    fn ask(
        plugins: Plugins<'a>,
        (links, phase): (impl Iterator<Item = &'a Link>, PricedPhase),
        exchange: &mut ServedExchange,
        wants: impl Fn(&dyn Plugin, &mut Exchange) -> Result<Option<u64>, Stop>,
    ) -> Result<WholeBody<'a>, Stop> {
        let mut whole = WholeBody { links: Vec::new(), limit: u64::MAX, narrowest: None };
        for link in links {
            plugins.pricing.count_content_decision(link, exchange, phase);
            if let Some(limit) = plugins.pricing.on_content(link, exchange, |exchange| wants(&*link.step, exchange))? {
                whole.links.push(link);
                if limit < whole.limit {
                    (whole.limit, whole.narrowest) = (limit, Some(link));
                }
            }
        }
        Ok(whole)
    }

    /// The end of an exchange whose response has more bytes than a plugin takes.
    #[cold]
    fn too_large(&self, exchange: &ServedExchange) -> Stop {
        if let Some(plugin) = self.narrowest {
            let route = exchange.route.as_ref().map_or("", |route| &route.route_id);
            tracing::warn!(
                "a response of the route `{route}` is replaced by a 502, since it has more than {} bytes, the limit of its plugin {}",
                self.limit,
                plugin.name
            );
        }
        Stop::ResponseTooLarge
    }
}

/// Adds the filters that the plugins put on the content, in order.
fn add_filters<'a>(
    filters: &mut Filters,
    (plugins, links): (Plugins<'a>, impl Iterator<Item = &'a Link>),
    exchange: &mut ServedExchange,
    filter: impl Fn(&dyn Plugin, &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop>,
) -> Result<(), Stop> {
    for link in links {
        if let Some(filter) = plugins.pricing.on_content(link, exchange, |exchange| filter(&*link.step, exchange))? {
            filters.add(plugins.pricing.priced(link, exchange, filter));
        }
    }
    Ok(())
}

/// Before anything is forwarded: gives the plugins the whole content of a request if they want it, and creates their
/// filters.
pub(crate) async fn request(
    worker: &WorkerContext,
    settings: &ClientSettings,
    plugins: Plugins<'_>,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
) -> Result<(), Stop> {
    // A plugin gives content only to a request without any: the client's is read whatever a plugin does.
    let has_body = exchange.request.framing.has_body();
    let is_given = !has_body && exchange.request_body().is_some();
    if !has_body && !is_given {
        return Ok(());
    }
    let links = (plugins.request_bodies(exchange), PricedPhase::RequestContent);
    let whole = WholeBody::ask(plugins, links, exchange, |plugin, exchange| plugin.whole_request(exchange))?;
    if whole.links.is_empty() && !is_given {
        exchange.request_filters = filters_of_request(plugins, exchange)?;
        return Ok(());
    }
    let _held_time = plugins.pricing.held_time(&whole.links, exchange);
    let mut body = exchange.take_request_body().unwrap_or_default();
    let taken = match is_given {
        false => read_whole_body(worker, settings, client, exchange, whole.limit, &mut body).await,
        // There is none from the client.
        true => {
            exchange.body_taken = ContentTaken::All;
            Ok(())
        }
    };
    plugins.pricing.hold(&whole.links, exchange, body.len());
    taken.map_err(|stop| match whole.narrowest {
        Some(link) if stop == Stop::BodyTooLarge && whole.limit < exchange.body_limit => {
            guarded(|| Ok(link.step.too_much_content(exchange))).unwrap_or_else(|stop| stop)
        }
        _ => stop,
    })?;
    for link in whole.links {
        let leave = |context: &mut Context<'_>| client.poll_leave(context);
        plugins.pricing.on_request_body(link, exchange, &mut body, leave).await?;
        exchange.hold(body.capacity() as u64)?;
    }
    exchange.request.framing = Framing::Sized(body.len() as u64);
    let mut filters = filters_of_request(plugins, exchange)?;
    let body = filtered(&mut filters, body, &mut Trailers::default())?;
    exchange.request.framing = Framing::Sized(body.len() as u64);
    exchange.set_request_body(body);
    Ok(())
}

/// Passes a whole body through the filters.
fn filtered(filters: &mut Filters, body: Vec<u8>, trailers: &mut Trailers) -> Result<Vec<u8>, Stop> {
    if filters.is_empty() {
        return Ok(body);
    }
    let mut out = Vec::new();
    filters.end(&body, trailers, &mut out)?;
    Ok(out)
}

fn filters_of_request(plugins: Plugins<'_>, exchange: &mut ServedExchange) -> Result<Filters, Stop> {
    let mut filters = Filters::default();
    let links = (plugins, plugins.request_bodies(exchange));
    add_filters(&mut filters, links, exchange, |plugin, exchange| plugin.request_filter(exchange))?;
    Ok(filters)
}

/// Reads the whole content of a request.
async fn read_whole_body(
    worker: &WorkerContext,
    settings: &ClientSettings,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    limit: u64,
    content: &mut Vec<u8>,
) -> Result<(), Stop> {
    let limit = limit.min(exchange.body_limit);
    if matches!(exchange.request.framing, Framing::Sized(length) if length > limit) {
        return Err(Stop::BodyTooLarge);
    }
    let mut taking = BodyReader {
        worker,
        settings,
        body: BodyTransfer::new(exchange.request.framing, settings.limits.head_bytes),
        content,
        limit,
        since_ns: worker.now_ns(),
    };
    let invites = std::mem::take(&mut exchange.request.expects_continue);
    let mut is_invited = !invites;
    poll_fn(|context| {
        worker.wake_up();
        if !is_invited {
            is_invited = true;
            send_continue(worker, client, exchange, context)?;
        }
        if client.is_blocked() && client.poll_flush(context).map_err(|_| Stop::ClientGone)?.is_pending() {
            return taking.wait(client);
        }
        taking.poll(client, exchange, context)
    })
    .await
}

/// Sends a 100 (RFC 9110 §10.1.1): the client waits for one, and the upstream, which usually sends it, is not connected
/// yet.
fn send_continue(
    worker: &WorkerContext,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    context: &mut Context<'_>,
) -> Result<(), Stop> {
    exchange.response.clear();
    exchange.response.status = 100;
    let sent = worker.buffers.with_write_buffer(|out| {
        client.interim_head(out, exchange);
        exchange.response_bytes += out.len() as u64;
        client.send(context, out)
    });
    exchange.response.clear();
    sent.map(|_| ()).map_err(|_| Stop::ClientGone)
}

/// Reads the content of a request.
struct BodyReader<'a> {
    worker: &'a WorkerContext,
    settings: &'a ClientSettings,
    body: BodyTransfer,
    content: &'a mut Vec<u8>,
    limit: u64,
    since_ns: u64,
}

impl BodyReader<'_> {
    fn poll(
        &mut self,
        client: &mut impl ClientSide,
        exchange: &mut ServedExchange,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Stop>> {
        let (worker, mut turn) = (self.worker, ConnectionTurn::default());
        while !self.body.is_done() {
            if !client.unread_bytes().is_empty() {
                let mut stash = std::mem::take(client.unread_bytes());
                let used = self.take(&stash, exchange);
                worker.buffers.consume(&mut stash, *used.as_ref().unwrap_or(&0));
                *client.unread_bytes() = stash;
                used?;
                continue;
            }
            let read = worker.buffers.with_read_buffer(|buffer| match client.poll_read(context, buffer) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => {
                    let used = self.take(&buffer[..count], exchange)?;
                    worker.buffers.append_unread(client.unread_bytes(), &buffer[used..count]);
                    Poll::Ready(Ok(()))
                }
                Poll::Ready(Ok(_)) => {
                    exchange.body_taken = ContentTaken::All;
                    Poll::Ready(self.body.close(client.take_trailers()).map_err(|_| Stop::ClientGone))
                }
                Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::ClientGone)),
            });
            match read {
                Poll::Ready(read) => read?,
                Poll::Pending => return self.wait(client),
            }
            if turn.ends_with_piece(context) {
                return self.wait(client);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the bytes that belong to the body; returns how many of `received` these are.
    fn take(&mut self, received: &[u8], exchange: &mut ServedExchange) -> Result<usize, Stop> {
        exchange.body_taken = ContentTaken::Part;
        let moved = self.body.transfer(received, HopFraming::Plain, self.content).map_err(|_| Stop::BadRequestBody)?;
        exchange.request_bytes += moved.consumed as u64;
        if self.body.is_done() {
            exchange.body_taken = ContentTaken::All;
        }
        exchange.hold(self.content.capacity() as u64)?;
        if self.content.len() as u64 > self.limit { Err(Stop::BodyTooLarge) } else { Ok(moved.consumed) }
    }

    /// Checks the deadlines when there is nothing to read, and sets the timer to the earliest.
    fn wait(&self, client: &impl ClientSide) -> Poll<Result<(), Stop>> {
        if client.service().phase() == WorkerPhase::Stopping {
            return Poll::Ready(Err(Stop::Shutdown));
        }
        let until_ns = deadlines::earliest_ns(
            self.worker.now_ns(),
            [
                (client.half_close_deadline_ns(self.settings), Stop::ClientGone),
                (self.settings.body_deadline_ns(self.since_ns, self.content.len() as u64), Stop::BodyTimeout),
                (client.call_deadline_ns(), Stop::CallTimeout),
            ],
        );
        match until_ns {
            Ok(until_ns) => client.set_deadline(until_ns),
            Err(stop) => return Poll::Ready(Err(stop)),
        }
        Poll::Pending
    }
}

/// The content of a response from an upstream, as it passes the plugins.
pub(crate) struct ResponseContent<'a> {
    plugins: Plugins<'a>,
    /// The plugins that want it whole; if there are any, nothing is sent on before all of it has been received.
    whole: WholeBody<'a>,
    held: Vec<u8>,
    _held_time: HeldTime<'a>,
    /// Counts `held`, or what waits for its time, against the limits of held content.
    counted: Held,
    /// The filters it passes if no plugin wants it whole.
    filters: Filters,
    /// The content passes unchanged: see [`ResponseContent::observe`].
    only_observes: bool,
    /// No filter can hold anything back, since all were flushed after the last piece.
    is_flushed: bool,
    /// The rate of the response, if it is limited. While the content is held, the rate is not known: plugins that want the whole of
    /// it decide before those that filter it.
    pace: Option<Box<ContentPace>>,
    /// The plugins have seen the end: what is left is sent as its rate allows.
    has_ended: bool,
}

impl<'a> ResponseContent<'a> {
    /// Asks the plugins what they want of the response, whose head is in the exchange; adapts the head to the framing of
    /// the changed content. `None` if the content passes unchanged.
    pub(crate) fn new(
        plugins: Plugins<'a>,
        exchange: &mut ServedExchange,
        now_ns: u64,
    ) -> Result<Option<Box<ResponseContent<'a>>>, Stop> {
        let whole = whole_of_response(plugins, exchange)?;
        let is_held = !whole.links.is_empty();
        let mut filters = Filters::default();
        if !is_held || exchange.response.framing == Framing::None {
            filters = filters_of_response(plugins, exchange)?;
        }
        let pace = if is_held { None } else { pace_of(exchange, now_ns) };
        if !is_held && filters.is_empty() && pace.is_none() {
            return Ok(None);
        }
        match exchange.response.framing {
            Framing::None if filters.only_observe() && !is_held => return Ok(None),
            Framing::None => {
                // The length after filtering is unknown before the content is there, so a HEAD does not name one (RFC 9110
                // §9.3.2).
                exchange.response.head.remove(b"Content-Length");
                return Ok(None);
            }
            Framing::Sized(length) if length > whole.limit => return Err(whole.too_large(exchange)),
            _ if !is_held && !filters.only_observe() => exchange.response.framing = Framing::Chunked,
            _ => {}
        }
        Ok(Some(Box::new(ResponseContent {
            only_observes: !is_held && filters.only_observe() && pace.is_none(),
            _held_time: plugins.pricing.held_time(&whole.links, exchange),
            plugins,
            whole,
            held: Vec::new(),
            counted: Held::of(exchange.client.addr),
            filters,
            is_flushed: true,
            pace,
            has_ended: false,
        })))
    }

    /// Whether nothing is sent on before all of it has been received.
    pub(crate) fn is_held(&self) -> bool {
        !self.whole.links.is_empty()
    }

    /// All content passes as it is, and is shown to the filters by [`ResponseContent::observe`].
    pub(crate) fn only_observes(&self) -> bool {
        self.only_observes
    }

    /// Shows the filters a piece of content that is sent on.
    pub(crate) fn observe(&mut self, piece: &[u8]) -> Result<(), Stop> {
        self.filters.observe(piece)
    }

    /// Takes a piece of content; appends to `out` what can be sent on.
    pub(crate) fn piece(&mut self, exchange: &ServedExchange, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        if self.is_held() {
            self.held.extend_from_slice(piece);
            // Running out of memory for held content is not the client's fault: it was the gateway that asked the upstream
            // for it.
            self.counted.set(self.held.capacity() as u64).map_err(|_| Stop::HeldContent)?;
            self.plugins.pricing.hold(&self.whole.links, exchange, piece.len());
            let is_too_large = self.held.len() as u64 > self.whole.limit;
            return if is_too_large { Err(self.whole.too_large(exchange)) } else { Ok(()) };
        }
        self.is_flushed = false;
        self.filters.piece(piece, out)
    }

    /// A filter has ended the content: the response is complete, whatever else the upstream sends.
    pub(crate) fn is_over(&self) -> bool {
        self.filters.are_over()
    }

    /// Why a filter has ended the content.
    pub(crate) fn early_end(&self) -> Option<EarlyEnd> {
        self.filters.early_end()
    }

    /// Called when no content is available for now: appends what filters hold back, and what they send by the clock.
    pub(crate) fn flush(&mut self, now_ns: u64, out: &mut Vec<u8>) -> Result<(), Stop> {
        let has_flushed = std::mem::replace(&mut self.is_flushed, true);
        if has_flushed && now_ns < self.flush_due_ns() { Ok(()) } else { self.filters.flush(out) }
    }

    /// When a filter has to be flushed even if no content comes.
    pub(crate) fn flush_due_ns(&self) -> u64 {
        if self.is_held() || self.has_ended { u64::MAX } else { self.filters.flush_due_ns() }
    }

    /// When something has to be done even if no content comes: a filter is flushed, or content sent that waits for its time.
    pub(crate) fn due_ns(&self) -> u64 {
        match &self.pace {
            Some(pace) if pace.is_waiting() => pace.due_ns(),
            Some(pace) => pace.due_ns().min(self.flush_due_ns()),
            None => self.flush_due_ns(),
        }
    }

    /// Whether the rate of the response is limited.
    pub(crate) fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// Whether content waits for its time.
    pub(crate) fn is_waiting(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.is_waiting())
    }

    /// Takes content for the client; returns what is sent now. The rest waits, or is sent at once if no memory is spare for it: then
    /// what follows waits for longer.
    pub(crate) fn paced(&mut self, now_ns: u64, content: Vec<u8>) -> Vec<u8> {
        let Some(pace) = &mut self.pace else { return content };
        let sent = pace.take(now_ns, content.len());
        if sent == content.len() {
            return content;
        }
        let mut now = content[..sent].to_vec();
        pace.keep(content, sent);
        if !self.counted.set_if_spare(pace.held_bytes() as u64) {
            now.append(&mut pace.hurry(now_ns));
            self.count_waiting();
        }
        now
    }

    /// Takes the content of a response that was held, now that plugins have seen all of it; returns what is sent now.
    pub(crate) fn paced_whole(&mut self, exchange: &ServedExchange, now_ns: u64, content: Vec<u8>) -> Vec<u8> {
        self.pace = pace_of(exchange, now_ns);
        self.whole.links.clear();
        let now = self.paced(now_ns, content);
        self.count_waiting();
        now
    }

    /// What comes next of a response whose rate is limited; `None` if it is not.
    pub(crate) fn next_step(&mut self, now_ns: u64) -> Option<PaceStep> {
        let pace = self.pace.as_mut()?;
        let step = pace.step(now_ns);
        if matches!(step, PaceStep::Send(_)) {
            self.count_waiting();
        }
        Some(step)
    }

    /// Counts what waits, once it has become less.
    fn count_waiting(&mut self) {
        let bytes = self.pace.as_ref().map_or(0, |pace| pace.held_bytes());
        self.counted.set(bytes as u64).expect("less than before is always allowed");
    }

    /// Whether so little of the response is sent in a second that its upstream should not send much ahead of it.
    pub(crate) fn is_slow(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.is_slow())
    }

    /// Ends the limit of the rate; returns what waits.
    pub(crate) fn lift_pace(&mut self, now_ns: u64) -> Vec<u8> {
        self.pace.as_mut().map(|pace| pace.lift(now_ns)).unwrap_or_default()
    }

    /// Called at the end of the content: appends the rest, or all of it if it was held. Only the first call does something.
    pub(crate) fn end(
        &mut self,
        exchange: &mut ServedExchange,
        trailers: &mut Trailers,
        out: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        if !self.is_held() {
            return self.filters.end(b"", trailers, out);
        }
        let body = std::mem::take(&mut self.held);
        out.append(&mut seen(&self.whole, self.plugins, exchange, body, trailers)?);
        self.counted.set(out.capacity() as u64).map_err(|_| Stop::HeldContent)?;
        Ok(())
    }

    /// The filters for the rest of the content, if the gateway has to end it in place of the upstream. None, if they have been
    /// ended.
    pub(crate) fn into_filters(self) -> Filters {
        if self.has_ended { Filters::default() } else { self.filters }
    }
}

/// Gives the whole content of a response to the plugins that want it, and filters it. Sets the framing to the resulting
/// length.
fn seen(
    whole: &WholeBody<'_>,
    plugins: Plugins<'_>,
    exchange: &mut ServedExchange,
    mut body: Vec<u8>,
    trailers: &mut Trailers,
) -> Result<Vec<u8>, Stop> {
    let has_trailers = !trailers.is_empty();
    if has_trailers {
        *exchange.response_trailers() = std::mem::take(trailers);
    }
    for link in &whole.links {
        let end =
            plugins.pricing.on_content(link, exchange, |exchange| link.step.on_response_body(exchange, &mut body));
        // It can be larger once it is decoded.
        end.map_err(|stop| if stop == Stop::ResponseTooLarge { whole.too_large(exchange) } else { stop })?;
    }
    if has_trailers {
        *trailers = std::mem::take(exchange.response_trailers());
    }
    exchange.response.framing = Framing::Sized(body.len() as u64);
    let mut filters = filters_of_response(plugins, exchange)?;
    let body = filtered(&mut filters, body, trailers)?;
    exchange.response.framing = Framing::Sized(body.len() as u64);
    Ok(body)
}

fn pace_of(exchange: &ServedExchange, now_ns: u64) -> Option<Box<ContentPace>> {
    exchange.response_rate().map(|rate| Box::new(ContentPace::new(rate, now_ns)))
}

fn has_content(exchange: &ServedExchange) -> bool {
    !forward::is_bodiless(exchange.response.status)
}

fn whole_of_response<'a>(plugins: Plugins<'a>, exchange: &mut ServedExchange) -> Result<WholeBody<'a>, Stop> {
    let links = plugins.response_bodies(exchange).filter(|_| has_content(exchange)).collect::<Vec<_>>();
    WholeBody::ask(plugins, (links.into_iter(), PricedPhase::ResponseContent), exchange, |plugin, exchange| {
        plugin.whole_response(exchange)
    })
}

fn filters_of_response(plugins: Plugins<'_>, exchange: &mut ServedExchange) -> Result<Filters, Stop> {
    let mut filters = Filters::default();
    if !has_content(exchange) {
        return Ok(filters);
    }
    // Message filters come first: they see the events as the upstream sent them, before any compression.
    if plugins.see_messages(exchange)
        && let Some(events) = events::filter(plugins, exchange)?
    {
        filters.add(events);
    }
    let links = (plugins, plugins.response_bodies(exchange));
    add_filters(&mut filters, links, exchange, |plugin, exchange| plugin.response_filter(exchange))?;
    Ok(filters)
}

/// Gives the plugins the content of the gateway's own answer, which is in the exchange. `Err(Stop::Answered)`: a plugin has
/// replaced the answer.
pub(crate) fn answer(plugins: Plugins<'_>, exchange: &mut ServedExchange) -> Result<(), Stop> {
    exchange.response.framing = Framing::Sized(exchange.body.len() as u64);
    let whole = whole_of_response(plugins, exchange)?;
    if exchange.body.len() as u64 > whole.limit {
        return Err(Stop::ResponseTooLarge);
    }
    let body = std::mem::take(&mut exchange.body);
    exchange.body = seen(&whole, plugins, exchange, body, &mut Trailers::default())?;
    Ok(())
}
