//! The end of an exchange: a `Stop` becomes a response, metrics are counted, the log record is written.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use weir_plugin::{EndedBy, Exchange, Held, PageRequest, Stop};
use weir_proto::h2::ErrorCode;
use weir_proto::head::reason;
use weir_proto::{Framing, Known, Method, Trailers, Version};
use weir_telemetry::exemplar::SampledTrace;

use super::page::{self, PageUpstreams};
use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::context::served_exchange::{ContentTaken, ServedExchange};
use crate::message::AfterExchange;
use crate::message::body;
use crate::message::forward::{self, HopFraming};
use crate::message::sides::ClientSide;
use crate::plugins::chain::Plugins;
use crate::plugins::content;
use crate::tail;
use crate::worker::snapshot::WorkerSnapshot;

/// The largest request body read and thrown away, so that a connection can be used again after a refusal.
const MOST_DRAINED: u64 = 64 * 1024;
const DRAIN_NS: u64 = 1_000_000_000;

/// Ends an exchange, whether it succeeded or not; returns what to do with the client's connection.
pub(crate) async fn finish(
    worker: &Rc<WorkerContext>,
    current: &WorkerSnapshot,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    end: Result<AfterExchange, Stop>,
    pages: &impl PageUpstreams,
) -> AfterExchange {
    let plugins = Plugins::of(worker, current, exchange);
    let after = match end {
        Ok(after) => after,
        Err(stop) => Box::pin(refuse(worker, current, plugins, client, exchange, (stop, pages))).await,
    };
    record(worker, current, plugins, exchange);
    after
}

/// Answers an exchange that ended early, if the client is still connected; a response that has begun is cut short.
async fn refuse(
    worker: &WorkerContext,
    current: &WorkerSnapshot,
    plugins: Plugins<'_>,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    (stop, pages): (Stop, &impl PageUpstreams),
) -> AfterExchange {
    let ending = stop.ending();
    if ending.blame != EndedBy::Policy {
        exchange.end_by(stop);
    }
    if exchange.response_begun {
        let coding = forward::response_coding(exchange);
        if (ending.blame == EndedBy::Upstream || stop == Stop::CallTimeout) && takes_outcome(exchange, coding) {
            return end_grpc_call(worker, current, client, exchange, coding, stop).await;
        }
        // RFC 9112 §8: the client must see that the response is incomplete. Where the close of the connection is the end of
        // the body, only a reset shows that.
        return if coding == HopFraming::UntilClose { AfterExchange::Reset } else { AfterExchange::Abort };
    }
    if matches!(stop, Stop::ClientGone | Stop::ClientStalled) {
        return leave_unanswered(exchange, stop);
    }
    let _page = match make_answer(plugins, client, exchange, (stop, pages)).await {
        Ok(page) => page,
        Err(stop) => {
            exchange.end_by(stop);
            return leave_unanswered(exchange, stop);
        }
    };
    let drainable = remaining_body_to_drain(exchange);
    let keep_alive = exchange.request.keep_alive
        && !ending.close
        && drainable.is_some_and(|rest| client.may_ask_again(rest))
        && client.service().phase() == WorkerPhase::Serving
        && current.snapshot.clients.keepalive_requests.is_none_or(|most| exchange.client.connection_requests < most);
    if send(worker, current, client, exchange, !keep_alive).await.is_err() {
        return AfterExchange::Abort;
    }
    match drainable {
        Some(rest) if keep_alive && drain(worker, client, rest).await => AfterExchange::KeepAlive,
        _ => AfterExchange::Close,
    }
}

fn leave_unanswered(exchange: &mut ServedExchange, stop: Stop) -> AfterExchange {
    exchange.response.clear();
    exchange.response.status = stop.ending().status;
    AfterExchange::Abort
}

/// Makes the answer, which plugins see and change. What is returned counts a page of another upstream until it has been sent.
///
/// # Errors
/// The client has left.
async fn make_answer(
    plugins: Plugins<'_>,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    (stop, pages): (Stop, &impl PageUpstreams),
) -> Result<Option<Held>, Stop> {
    if stop != Stop::Answered {
        write_answer(exchange, stop.ending().status, stop);
    }
    if !exchange.response_replaced {
        match plugins.on_response(exchange) {
            Ok(()) | Err(Stop::Answered) => {}
            Err(stop) => replace_answer(exchange, stop),
        }
    }
    let page = match exchange.take_page_request() {
        Some(request) if may_have_page(stop) => insert_page(client, exchange, (*request, pages)).await?,
        _ => None,
    };
    if plugins.see_response_bodies(exchange) {
        match content::answer(plugins, exchange) {
            Ok(()) | Err(Stop::Answered) => {}
            Err(stop) => replace_answer(exchange, stop),
        }
    }
    deny_success_of_connect(exchange);
    Ok(page)
}

/// What is refused for lack of room or time, or is no valid request, must not cost another request.
fn may_have_page(stop: Stop) -> bool {
    let is_costly = matches!(stop, Stop::Rejected(_) | Stop::HeadTimeout | Stop::BodyTimeout | Stop::BadRequestBody);
    !is_costly && !matches!(stop, Stop::Overloaded | Stop::HeldContent | Stop::HeldByClient | Stop::Shutdown)
}

/// Puts the page of another upstream in the place of the answer, or the gateway's own if there is neither.
async fn insert_page(
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    (request, pages): (PageRequest, &impl PageUpstreams),
) -> Result<Option<Held>, Stop> {
    let page = page::insert(pages, client, exchange, request).await?;
    if page.is_none() && exchange.body.is_empty() {
        let (content_type, body) = own_page(exchange, exchange.response.status);
        exchange.body.extend_from_slice(body.as_bytes());
        exchange.response.head.set(b"Content-Type", content_type.as_bytes()).expect("constant and valid");
    }
    Ok(page)
}

/// A plugin cannot let the gateway's own answer pass.
fn replace_answer(exchange: &mut ServedExchange, stop: Stop) {
    if exchange.stop().is_none() && stop.ending().blame != EndedBy::Policy {
        exchange.end_by(stop);
    }
    write_answer(exchange, stop.ending().status, stop);
}

/// RFC 8441 §5: a 2xx would tell the client of HTTP/2 that its WebSocket is established.
fn deny_success_of_connect(exchange: &mut ServedExchange) {
    if exchange.request.client_method() == Method::Connect && (200..300).contains(&exchange.response.status) {
        write_answer(exchange, 502, Stop::Respond(502));
    }
}

/// Whether the response is that of a gRPC call whose status can still be sent in trailers.
fn takes_outcome(exchange: &Exchange, coding: HopFraming) -> bool {
    let has_trailers = match exchange.request.version {
        Version::Http2 | Version::Http3 => true,
        Version::Http11 => coding == HopFraming::Chunked && exchange.request.takes_trailers,
        Version::Http10 => false,
    };
    has_trailers && exchange.request.is_grpc() && exchange.response.is_grpc()
}

/// The gRPC status of a call that its server did not end ("gRPC over HTTP2", HTTP2 Transport Mapping). `UNAVAILABLE` (14)
/// invites a retry, which is right where the server has not processed the call.
fn grpc_status(stop: Stop) -> &'static [u8] {
    match stop {
        Stop::CallTimeout => b"4",
        Stop::UpstreamReset(ErrorCode::CANCEL) => b"1",
        Stop::UpstreamReset(ErrorCode::ENHANCE_YOUR_CALM) => b"8",
        Stop::UpstreamReset(ErrorCode::INADEQUATE_SECURITY) => b"7",
        Stop::UpstreamReset(ErrorCode::REFUSED_STREAM) => b"14",
        Stop::UpstreamReset(_) => b"13",
        _ => b"14",
    }
}

/// Ends a gRPC call, whose response has begun, by sending its status in trailers: a client would report a reset as an error
/// of the transport.
async fn end_grpc_call(
    worker: &WorkerContext,
    current: &WorkerSnapshot,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    coding: HopFraming,
    stop: Stop,
) -> AfterExchange {
    let mut trailers = Trailers::default();
    for (field, value) in [("grpc-status", grpc_status(stop)), ("grpc-message", stop.ending().name.as_bytes())] {
        trailers.add(field.as_bytes(), value).expect("both are words");
    }
    let (mut rest, mut out) = (Vec::new(), Vec::new());
    if exchange.broken_filters.end(b"", &mut trailers, &mut rest).is_err() {
        return AfterExchange::Abort;
    }
    body::write(&mut out, coding, &rest);
    exchange.body_bytes += rest.len() as u64;
    client.end(&mut out, coding, Some(&trailers));
    exchange.response_bytes += out.len() as u64;
    match flush(worker, current, client, |context, client| client.send(context, &out)).await {
        Ok(()) => AfterExchange::Close,
        Err(_) => AfterExchange::Abort,
    }
}

/// Writes the gateway's own short answer, as JSON or HTML as the client prefers. It shows no detail of the upstream.
fn write_answer(exchange: &mut ServedExchange, status: u16, stop: Stop) {
    let is_outcome = matches!(stop, Stop::UpstreamReset(_)) && exchange.request.is_grpc();
    if stop == Stop::CallTimeout || is_outcome {
        // A "Trailers-Only" response. From another HTTP status than 200 a client would derive another gRPC status.
        let _ = exchange.respond(200, "application/grpc", b"");
        let head = &mut exchange.response.head;
        for (name, value) in [("grpc-status", grpc_status(stop)), ("grpc-message", stop.ending().name.as_bytes())] {
            head.add(name.as_bytes(), value).expect("both are words");
        }
        return;
    }
    let _ = match stop {
        Stop::NoRoute => exchange.respond(status, "application/json", b"{\"error_msg\":\"404 Route Not Found\"}\n"),
        _ => {
            let (content_type, body) = own_page(exchange, status);
            exchange.respond(status, content_type, body.as_bytes())
        }
    };
    // A type without content misleads clients that parse whatever is said to be JSON.
    if exchange.request.client_method() == Method::Head {
        exchange.response.head.remove(b"Content-Type");
    }
    if exchange.upstream.addr.is_some() && stop.ending().blame == EndedBy::Upstream {
        forward::set_upstream_status_field(exchange, status);
    }
    if stop == Stop::Overloaded {
        exchange.response.head.add(b"Retry-After", b"1").expect("constant and valid");
    }
}

/// The gateway's own page, as JSON or HTML as the client prefers: its type and itself.
fn own_page(exchange: &Exchange, status: u16) -> (&'static str, String) {
    let accept = exchange.request.head.value(b"accept").unwrap_or_default();
    let title = title(status);
    match accept.windows(4).any(|window| window.eq_ignore_ascii_case(b"json")) {
        true => ("application/json", format!("{{\"error_msg\":\"{status} {title}\"}}\n")),
        false => ("text/html", html(status, title)),
    }
}

/// The reason phrase that a page shows: for two statuses nginx's own.
fn title(status: u16) -> &'static str {
    match status {
        503 => "Service Temporarily Unavailable",
        504 => "Gateway Time-out",
        status => reason(status),
    }
}

/// An error page like nginx's, for browsers.
fn html(status: u16, title: &str) -> String {
    format!(
        "<html>\n<head><title>{status} {title}</title></head>\n<body>\n<center><h1>{status} {title}</h1></center>\n</body>\n</html>\n"
    )
}

/// Sends the answer that `exchange.response` and `exchange.body` hold.
async fn send(
    worker: &WorkerContext,
    current: &WorkerSnapshot,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    close: bool,
) -> std::io::Result<()> {
    let status = exchange.response.status;
    let bodiless = forward::is_bodiless(status);
    exchange.response.framing = if bodiless { Framing::None } else { Framing::Sized(exchange.body.len() as u64) };
    let head = &mut exchange.response.head;
    forward::add_date(worker, head);
    if head.known(Known::Server).is_none() {
        head.add(b"Server", b"weir").expect("constant and valid");
    }
    exchange.response_begun = true;
    flush(worker, current, client, |context, client| {
        worker.buffers.with_write_buffer(|out| {
            let coding = if bodiless { HopFraming::None } else { HopFraming::Plain };
            client.response_head(out, exchange, coding, close);
            if !bodiless && exchange.request.client_method() != Method::Head {
                out.extend_from_slice(&exchange.body);
                exchange.body_bytes = exchange.body.len() as u64;
            }
            client.end(out, coding, None);
            exchange.response_bytes += out.len() as u64;
            client.send(context, out)
        })
    })
    .await
}

/// Calls `send` once, and waits until the client has taken everything, as long as it takes something within the write time-out.
async fn flush<C: ClientSide>(
    worker: &WorkerContext,
    current: &WorkerSnapshot,
    client: &mut C,
    send: impl FnOnce(&mut Context<'_>, &mut C) -> std::io::Result<usize>,
) -> std::io::Result<()> {
    let write_ns = current.snapshot.clients.write_timeout.as_nanos() as u64;
    let mut deadline_ns = worker.now_ns().saturating_add(write_ns);
    client.set_deadline(deadline_ns);
    let mut send = Some(send);
    poll_fn(|context| {
        worker.wake_up();
        if let Some(send) = send.take() {
            send(context, client)?;
        }
        while client.is_blocked() {
            if worker.now_ns() >= deadline_ns || client.service().phase() == WorkerPhase::Stopping {
                return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
            }
            if ready!(client.poll_flush(context))? > 0 {
                deadline_ns = worker.now_ns().saturating_add(write_ns);
                client.set_deadline(deadline_ns);
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// How many bytes of the request's body have to be discarded before the next request can be read; `None` if the connection
/// must be closed instead: the rest is too long, of unknown length, or may never come.
fn remaining_body_to_drain(exchange: &ServedExchange) -> Option<u64> {
    let request = &exchange.request;
    match request.framing {
        _ if exchange.body_taken == ContentTaken::All => Some(0),
        _ if exchange.body_taken == ContentTaken::Part || request.expects_continue => None,
        Framing::None => Some(0),
        Framing::Sized(length) if length <= MOST_DRAINED => Some(length),
        _ => None,
    }
}

/// Discards the rest of a request's body; `false` if it does not come in time.
async fn drain(worker: &WorkerContext, client: &mut impl ClientSide, mut rest: u64) -> bool {
    let stashed = (client.unread_bytes().len() as u64).min(rest);
    worker.buffers.consume(client.unread_bytes(), stashed as usize);
    rest -= stashed;
    if rest == 0 {
        return true;
    }
    let deadline_ns = worker.now_ns() + DRAIN_NS;
    client.set_deadline(deadline_ns);
    poll_fn(|context| {
        worker.wake_up();
        while rest > 0 {
            let read = worker.buffers.with_read_buffer(|buffer| {
                let most = buffer.len().min(rest as usize);
                client.poll_read(context, &mut buffer[..most])
            });
            match read {
                Poll::Ready(Ok(count)) if count > 0 => rest -= count as u64,
                Poll::Ready(_) => return Poll::Ready(false),
                Poll::Pending
                    if worker.now_ns() >= deadline_ns || client.service().phase() == WorkerPhase::Stopping =>
                {
                    return Poll::Ready(false);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(true)
    })
    .await
}

/// Counts the exchange in the metrics, and writes its log record.
fn record(worker: &WorkerContext, current: &WorkerSnapshot, plugins: Plugins<'_>, exchange: &mut ServedExchange) {
    let now_ns = worker.now_ns();
    exchange.ended_ns = now_ns;
    if !current.snapshot.secret_arguments.is_empty() {
        // The plugin that uses the secret may not have run: on another route, or on a mistyped path.
        current.snapshot.secret_arguments.iter().for_each(|name| exchange.hide_argument(Arc::clone(name)));
    }
    let metrics = &worker.metrics;
    let status = exchange.response.status;
    let is_tunnel = status == 101;
    metrics.statuses.increment(status);
    if !is_tunnel {
        metrics.request_duration.record_ns(now_ns - exchange.started_ns);
    }
    if let Some(stop) = exchange.stop() {
        metrics.errors.increment(stop.ending().name);
    }
    let route = current.metrics_of(worker, exchange);
    route.responses.increment(status);
    if !is_tunnel {
        route.duration.record_ns(now_ns - exchange.started_ns);
    }
    route.bytes_received.add(exchange.request_bytes);
    route.bytes_sent.add(exchange.response_bytes);
    if !is_tunnel && let Some((trace, span)) = exchange.sampled_trace() {
        metrics.exemplify(route, now_ns - exchange.started_ns, SampledTrace { trace, span });
    }
    plugins.mask(exchange);
    plugins.on_log(exchange);
    if let Some(log) = &worker.access_log {
        log.record(exchange.shown(), now_ns);
    }
    if tail::is_open() {
        tail::show(exchange);
    }
}
