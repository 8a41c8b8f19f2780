//! The verifications and denials of one host: their rate, their number, and the turns of the clients that caused them.

use super::numbers::ClientNumber;
use super::turns::TurnQueue;

/// The burst of verifications and denials to a host, in seconds of their rate.
const BURST_S: u64 = 10;

/// A request to a callback beside deliveries, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HostRequest {
    Verification(u64),
    Denial(u32),
}

/// Who caused a request. They take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Requester {
    /// The number of the client whose request is verified.
    Client(ClientNumber),
    /// The number of the client whose request is denied unverified.
    DeniedClient(ClientNumber),
    /// The end of a subscription.
    Hub,
}

/// What a host may get.
#[derive(Clone, Copy)]
pub(super) struct RequestLimits {
    pub(super) per_second: u32,
    /// How many may be under way.
    pub(super) most: u32,
}

pub(super) enum HostTurn {
    Now(HostRequest),
    /// There are no tokens until then.
    At(u64),
    /// As many are under way as may be, or none waits.
    None,
}

#[derive(Default)]
pub(super) struct HostRequests {
    /// Boxed, since most hosts have none.
    waiting: Option<Box<TurnQueue<Requester, (HostRequest, Requester)>>>,
    /// The host has a place in the list of hosts that ask, or a timer.
    pub(super) is_listed: bool,
    under_way: u32,
    /// In thousandths of a request. More than the burst at first.
    tokens: Option<u64>,
    filled_ms: u64,
}

impl HostRequests {
    pub(super) fn queue(&mut self, requester: Requester, request: HostRequest) {
        self.waiting.get_or_insert_default().push(requester, (request, requester));
    }

    /// Who caused the next request, if one waits.
    pub(super) fn next_requester(&self) -> Option<Requester> {
        self.waiting.as_ref()?.peek().map(|(_, requester)| *requester)
    }

    pub(super) fn is_unused(&self) -> bool {
        !self.is_listed && self.under_way == 0
    }

    /// Reports the end of a request that was under way.
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    /// The milliseconds until all requests of the queue have had their turn, if requests end as fast as they begin.
    pub(super) fn wait_ms(&self, per_second: u32, now_ms: u64) -> u64 {
        let waiting = self.waiting.as_ref().map_or(0, |waiting| waiting.len()) as u64;
        let rate = u64::from(per_second.max(1));
        (waiting * 1_000).saturating_sub(self.tokens_at(rate, now_ms)).div_ceil(rate)
    }

    fn tokens_at(&self, rate: u64, now_ms: u64) -> u64 {
        let burst = rate * BURST_S * 1_000;
        let elapsed_ms = now_ms.saturating_sub(self.filled_ms);
        self.tokens.map_or(burst, |tokens| tokens.saturating_add(elapsed_ms.saturating_mul(rate)).min(burst))
    }

    /// The next request, which is then under way.
    pub(super) fn next(&mut self, limits: RequestLimits, now_ms: u64) -> HostTurn {
        if self.under_way >= limits.most.max(1) {
            return HostTurn::None;
        }
        let rate = u64::from(limits.per_second.max(1));
        let tokens = self.tokens_at(rate, now_ms);
        (self.tokens, self.filled_ms) = (Some(tokens), now_ms);
        if tokens < 1_000 {
            return HostTurn::At(now_ms + (1_000 - tokens).div_ceil(rate).max(1));
        }
        let request = self.waiting.as_mut().and_then(|waiting| waiting.pop());
        self.waiting.take_if(|waiting| waiting.is_empty());
        let Some((request, _)) = request else { return HostTurn::None };
        self.tokens = Some(tokens - 1_000);
        self.under_way += 1;
        HostTurn::Now(request)
    }
}
