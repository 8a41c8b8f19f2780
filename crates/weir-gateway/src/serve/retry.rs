//! Decides whether a failed attempt is followed by another, and at which endpoint.

use weir_plugin::{EndedBy, Exchange, Retry, Stop};

use super::attempt::Failure;
use crate::answer::relay::StatusRetryRule;
use crate::context::WorkerContext;
use crate::context::served_exchange::{ContentTaken, ServedExchange};
use crate::endpoint::balance::TriedEndpoints;
use crate::endpoint::pool::Freshness;
use crate::snapshot;
use crate::worker::snapshot::UpstreamView;

/// The target of the attempt after a failed one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The idle connection had been closed by the endpoint, which says nothing about the endpoint's health.
    NewConnection,
    /// The connection accepts no more streams (RFC 9113 §8.7), which says nothing about the endpoint's health either.
    SameEndpoint,
    OtherEndpoint,
}

/// An idle connection that the endpoint has closed costs nothing if the request can be sent again: its method is idempotent, and
/// its content, if there is any, has been read for a plugin.
fn first_freshness(exchange: &ServedExchange) -> Freshness {
    let request = &exchange.request;
    match request.method.is_idempotent() && (!request.framing.has_body() || exchange.request_body().is_some()) {
        true => Freshness::Any,
        false => Freshness::Checked,
    }
}

/// The state of the attempts of one exchange.
pub(super) struct Attempts {
    pub first_ns: u64,
    idempotent: bool,
    pub freshness: Freshness,
    pub tried: TriedEndpoints,
    /// Endpoints whose TLS handshake failed for a server name that the client has chosen. If another endpoint completes it, the
    /// fault was theirs, and otherwise the name's.
    doubted: Vec<usize>,
    retries: u32,
    retried_unprocessed: bool,
}

impl Attempts {
    pub(super) fn new(exchange: &ServedExchange, settings: &snapshot::Upstream, first_ns: u64) -> Attempts {
        let idempotent = exchange.request.method.is_idempotent();
        Attempts {
            first_ns,
            idempotent,
            freshness: first_freshness(exchange),
            tried: TriedEndpoints::default(),
            doubted: Vec::new(),
            retries: settings.retries,
            retried_unprocessed: false,
        }
    }

    /// The rule for the responses of an attempt at `endpoint`; `None` if none of them is followed by another attempt.
    pub(super) fn status_retry<'a>(&self, upstream: UpstreamView<'a>, endpoint: usize) -> Option<StatusRetry<'a>> {
        let settings = upstream.settings;
        let is_possible = !settings.retry_statuses.is_empty() && self.idempotent && self.retries > 0;
        is_possible.then(|| StatusRetry {
            upstream,
            tried: self.tried.with(endpoint),
            until_ns: self.retries_until_ns(settings),
        })
    }

    /// Called when an attempt has connected to its endpoint: those where the same handshake failed are at fault.
    #[inline]
    pub(super) fn connected(&mut self, upstream: UpstreamView<'_>, now_ns: u64) {
        if !self.doubted.is_empty() {
            for endpoint in std::mem::take(&mut self.doubted) {
                let health = &upstream.state.health[endpoint];
                health.failed(Stop::UpstreamTls, &upstream.settings.passive, self.first_ns, now_ns);
            }
        }
    }

    /// No retry begins later than this.
    fn retries_until_ns(&self, settings: &snapshot::Upstream) -> u64 {
        settings.retry_timeout.map_or(u64::MAX, |most| self.first_ns.saturating_add(most.as_nanos() as u64))
    }

    /// Counts a failure against the endpoint, unless a client may have caused it.
    fn count_failure(
        &mut self,
        upstream: UpstreamView<'_>,
        exchange: &ServedExchange,
        endpoint: usize,
        stop: Stop,
        now_ns: u64,
    ) {
        // A client that has sent nothing of its content, as it expects an invitation first: simple servers give none and wait.
        let is_uninvited = stop == Stop::ReadTimeout
            && exchange.request.expects_continue
            && exchange.body_taken == ContentTaken::Nothing;
        if upstream.state.endpoints[endpoint].may_fail_by_clients(stop) {
            self.doubted.push(endpoint);
        } else if !is_uninvited {
            let UpstreamView { settings, state } = upstream;
            state.health[endpoint].failed(stop, &settings.passive, exchange.upstream.started_ns, now_ns);
        }
        if exchange.upstream.connect_ns != 0 {
            self.connected(upstream, now_ns);
        }
    }

    /// An endpoint that has not been tried. When there is none left, the upstream may permit to begin anew.
    fn pick(&mut self, upstream: UpstreamView<'_>, exchange: &ServedExchange, now_ns: u64) -> Option<usize> {
        let other = upstream.pick(exchange, self.tried, now_ns);
        if other.is_some() || !upstream.settings.retry_same_endpoint {
            return other;
        }
        self.tried = TriedEndpoints::default();
        upstream.pick(exchange, self.tried, now_ns)
    }

    /// Called when an attempt at `endpoint` has failed: returns the endpoint of the next attempt, or the reason why there is
    /// none.
    pub(super) fn next(
        &mut self,
        worker: &WorkerContext,
        upstream: UpstreamView<'_>,
        exchange: &mut ServedExchange,
        endpoint: usize,
        Failure { stop, on_reused_connection }: Failure,
    ) -> Result<usize, Stop> {
        let UpstreamView { settings, state } = upstream;
        let now_ns = worker.now_ns();
        (exchange.upstream.ended_ns, exchange.upstream.failure) = (now_ns, Some(stop));
        if let Stop::UpstreamStatus(status) = stop {
            state.counters.answered(endpoint, status, exchange.upstream.head_ns());
            state.health[endpoint].answered(status, &settings.passive, exchange.upstream.started_ns, now_ns);
        } else if stop.ending().blame == EndedBy::Upstream {
            state.counters.failed(endpoint, stop.ending().name);
        }
        let next = match stop {
            Stop::UpstreamClosed if on_reused_connection => Next::NewConnection,
            Stop::NotProcessed if !self.retried_unprocessed => Next::SameEndpoint,
            _ => Next::OtherEndpoint,
        };
        if next == Next::OtherEndpoint {
            self.count_failure(upstream, exchange, endpoint, stop, now_ns);
        }
        let safe = match stop.ending().retry {
            Retry::Never if stop == Stop::ReadTimeout => settings.retry_read_timeouts && self.idempotent,
            Retry::Never => false,
            Retry::Unseen => true,
            Retry::Idempotent => self.idempotent,
        };
        if !safe || exchange.response_begun || exchange.is_content_lost() || now_ns > self.retries_until_ns(settings) {
            return Err(stop);
        }
        let mut picked = endpoint;
        match next {
            Next::NewConnection => self.freshness = Freshness::New,
            Next::SameEndpoint => self.retried_unprocessed = true,
            Next::OtherEndpoint => {
                self.tried.add(endpoint);
                self.retries = self.retries.checked_sub(1).ok_or(stop)?;
                picked = self.pick(upstream, exchange, now_ns).ok_or(stop)?;
            }
        }
        if next != Next::NewConnection && !state.retries.spend() {
            worker.metrics.upstream_retries_refused.increment();
            return Err(stop);
        }
        worker.metrics.upstream_retries.increment();
        state.counters.retried(endpoint);
        exchange.retry();
        Ok(picked)
    }
}

/// What has to hold when a response with one of the `retry_on` statuses comes, so that another attempt follows. It is asked
/// then, and not when the attempt begins: the client gets a response that no attempt follows.
pub(super) struct StatusRetry<'a> {
    upstream: UpstreamView<'a>,
    /// The endpoints that have been tried, and that of this attempt.
    tried: TriedEndpoints,
    until_ns: u64,
}

impl StatusRetryRule for StatusRetry<'_> {
    fn follows(&self, exchange: &Exchange, status: u16, now_ns: u64) -> bool {
        let UpstreamView { settings, state } = self.upstream;
        settings.retry_statuses.contains(&status)
            && now_ns <= self.until_ns
            && state.retries.allows()
            && (self.upstream.has_endpoint(exchange, self.tried, now_ns)
                || settings.retry_same_endpoint
                    && self.upstream.has_endpoint(exchange, TriedEndpoints::default(), now_ns))
    }
}

#[cfg(test)]
mod tests {
    use weir_proto::{Framing, Method};

    use super::*;

    #[test]
    fn request_that_cannot_be_sent_again_gets_a_checked_connection() {
        let is_checked = |method, framing, body: Option<&[u8]>| {
            let mut exchange = ServedExchange::default();
            (exchange.request.method, exchange.request.framing) = (method, framing);
            if let Some(body) = body {
                exchange.set_request_body(body.to_vec());
            }
            first_freshness(&exchange) == Freshness::Checked
        };
        assert!(!is_checked(Method::Get, Framing::None, None));
        assert!(!is_checked(Method::Put, Framing::Sized(0), None));
        assert!(is_checked(Method::Put, Framing::Sized(3), None));
        assert!(is_checked(Method::Delete, Framing::Chunked, None));
        assert!(!is_checked(Method::Put, Framing::Sized(3), Some(b"abc")), "it is kept for a plugin");
        assert!(is_checked(Method::Post, Framing::None, None));
    }
}
