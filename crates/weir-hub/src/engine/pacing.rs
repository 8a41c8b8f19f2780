//! The pace at which deliveries begin.

/// How much time a token bucket holds the deliveries of, in milliseconds: deliveries that a late turn of the thread has missed are made
/// up for, and nothing more begins at once. With 100 ms, 200 deliveries began together at 2,000 a second.
const PACING_MS: u64 = 10;

/// A token bucket that paces the start of deliveries.
#[derive(Default)]
pub(super) struct DeliveryPacing {
    /// In thousandths of a delivery.
    tokens: u64,
    filled_ms: u64,
}

impl DeliveryPacing {
    /// When the next delivery may begin; `None` if now.
    pub(super) fn wait_until(&mut self, per_second: u32, now_ms: u64) -> Option<u64> {
        if per_second == 0 {
            return None;
        }
        let rate = u64::from(per_second);
        let most = (rate * PACING_MS).max(1_000);
        let elapsed_ms = now_ms.saturating_sub(self.filled_ms);
        self.tokens = self.tokens.saturating_add(elapsed_ms.saturating_mul(rate)).min(most);
        self.filled_ms = now_ms;
        match self.tokens {
            1_000.. => None,
            tokens => Some(now_ms + (1_000 - tokens).div_ceil(rate).max(1)),
        }
    }

    pub(super) fn take(&mut self, per_second: u32) {
        if per_second > 0 {
            self.tokens -= 1_000;
        }
    }
}
