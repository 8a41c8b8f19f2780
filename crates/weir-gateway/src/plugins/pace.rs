//! Content that is sent at a limited rate.

use weir_net::timer::NEVER;
use weir_plugin::ResponseRate;

/// What may be sent is sent in steps of at least this length: a response wakes its worker at most twenty times in a second.
const STEP_NS: u64 = 50_000_000;
/// The least content of a step; at low rates the steps are as much longer.
const LEAST_PIECE: u64 = 512;
/// Below this rate, content that the upstream has sent ahead would wait for long.
const SLOW: u64 = 1 << 20;
/// What could not be sent in this time, because its upstream, its client or its worker was late, is sent later beyond the rate.
const MOST_CREDIT_NS: u64 = 1_000_000_000;
const SECOND_NS: u128 = 1_000_000_000;

/// What comes next of a response whose rate is limited.
pub(crate) enum PaceStep {
    /// Neither sending nor reading is allowed yet.
    Wait,
    /// This is sent.
    Send(Vec<u8>),
    /// Up to so many bytes may be read from the upstream. `waited`: it was not read until now.
    Read { most: usize, waited: bool },
}

/// The rate of one response. It decides how much is read from the upstream, and keeps what has come beyond that.
pub(super) struct ContentPace {
    bytes_per_second: u64,
    /// Bytes that are sent before the rate holds.
    at_once: u64,
    step_ns: u64,
    /// The bytes of a step.
    piece: usize,
    /// When the next step may be sent: one step after each byte has had its time.
    next_ns: u64,
    /// The same while it is waited for.
    due_ns: u64,
    /// A step has begun: all that the rate allows may be sent, however small it is, so that small reads cause no wake-ups of their own.
    is_open: bool,
    /// Content that has been read, of which the part behind `sent` waits.
    waiting: Vec<u8>,
    sent: usize,
}

impl ContentPace {
    pub(super) fn new(ResponseRate { bytes_per_second, at_once }: ResponseRate, now_ns: u64) -> ContentPace {
        let bytes_per_second = bytes_per_second.get();
        let step_ns = STEP_NS.max(nanoseconds(LEAST_PIECE, bytes_per_second));
        ContentPace {
            bytes_per_second,
            at_once,
            step_ns,
            piece: bytes(step_ns, bytes_per_second),
            next_ns: now_ns,
            due_ns: NEVER,
            is_open: false,
            waiting: Vec::new(),
            sent: 0,
        }
    }

    pub(super) fn is_slow(&self) -> bool {
        self.bytes_per_second < SLOW
    }

    /// Content has been read that has to wait. No more may be read until it has been sent.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The memory of what waits.
    pub(super) fn held_bytes(&self) -> usize {
        self.waiting.capacity()
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Decides what is done now.
    pub(super) fn step(&mut self, now_ns: u64) -> PaceStep {
        let allowed = self.open(now_ns);
        self.is_open = allowed >= self.piece || self.is_open && allowed > 0;
        let open = if self.is_open { allowed } else { 0 };
        if self.is_waiting() && open > 0 {
            self.due_ns = NEVER;
            return PaceStep::Send(self.release(now_ns, open));
        }
        let most = usize::try_from(self.at_once).unwrap_or(usize::MAX).saturating_add(open);
        if self.is_waiting() || most == 0 {
            self.due_ns = self.next_ns;
            return PaceStep::Wait;
        }
        let waited = std::mem::replace(&mut self.due_ns, NEVER) != NEVER;
        PaceStep::Read { most, waited }
    }

    /// Counts new content as sent, as far as it may be sent now; returns how many bytes of it.
    pub(super) fn take(&mut self, now_ns: u64, count: usize) -> usize {
        if self.is_waiting() {
            return 0;
        }
        let free = usize::try_from(self.at_once).unwrap_or(usize::MAX).min(count);
        let (rest, open) = (count - free, self.open(now_ns));
        let paced = if self.is_open || open >= rest.min(self.piece) { rest.min(open) } else { 0 };
        self.is_open &= paced == rest;
        self.at_once -= free as u64;
        self.spend(now_ns, paced);
        free + paced
    }

    /// Keeps content, of which the first `sent` bytes are sent now.
    pub(super) fn keep(&mut self, content: Vec<u8>, sent: usize) {
        self.due_ns = self.next_ns;
        if self.waiting.is_empty() {
            (self.waiting, self.sent) = (content, sent);
        } else {
            self.waiting.reserve_exact(content.len() - sent);
            self.waiting.extend_from_slice(&content[sent..]);
        }
        self.give_memory_back();
    }

    /// What has been sent takes no more memory than what still waits.
    fn give_memory_back(&mut self) {
        if self.sent > self.waiting.len() / 2 {
            self.waiting = self.waiting.split_off(std::mem::take(&mut self.sent));
        }
    }

    /// Returns what waits, so that it is sent before its time: what follows waits for longer.
    pub(super) fn hurry(&mut self, now_ns: u64) -> Vec<u8> {
        let rest = std::mem::take(&mut self.waiting).split_off(std::mem::take(&mut self.sent));
        self.due_ns = NEVER;
        self.spend(now_ns, rest.len());
        rest
    }

    /// Ends the limit; returns what waits.
    pub(super) fn lift(&mut self, now_ns: u64) -> Vec<u8> {
        self.at_once = u64::MAX;
        self.hurry(now_ns)
    }

    fn release(&mut self, now_ns: u64, open: usize) -> Vec<u8> {
        let count = open.min(self.waiting.len() - self.sent);
        let piece = self.waiting[self.sent..][..count].to_vec();
        self.sent += count;
        if self.sent == self.waiting.len() {
            (self.waiting, self.sent) = (Vec::new(), 0);
        }
        self.give_memory_back();
        self.spend(now_ns, count);
        piece
    }

    /// Since when what may be sent now was not sent, one step later.
    fn since_ns(&self, now_ns: u64) -> u64 {
        let most_ns = self.step_ns.max(MOST_CREDIT_NS);
        self.next_ns.max(now_ns.saturating_add(self.step_ns).saturating_sub(most_ns))
    }

    /// How many bytes the rate allows now.
    fn open(&self, now_ns: u64) -> usize {
        let until_ns = now_ns.saturating_add(self.step_ns);
        bytes(until_ns.saturating_sub(self.since_ns(now_ns)), self.bytes_per_second)
    }

    /// Counts content as sent, also before its time: what follows then waits for longer.
    fn spend(&mut self, now_ns: u64, count: usize) {
        let took_ns = nanoseconds(count as u64, self.bytes_per_second);
        self.next_ns = self.since_ns(now_ns).saturating_add(took_ns);
    }
}

/// The bytes that are sent in this time.
fn bytes(ns: u64, per_second: u64) -> usize {
    usize::try_from(u128::from(ns) * u128::from(per_second) / SECOND_NS).unwrap_or(usize::MAX)
}

/// The time that so many bytes take.
fn nanoseconds(bytes: u64, per_second: u64) -> u64 {
    u64::try_from((u128::from(bytes) * SECOND_NS).div_ceil(u128::from(per_second))).unwrap_or(NEVER)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    /// The clock of a worker begins with its process.
    const START_NS: u64 = 5_000_000;

    fn pace(bytes_per_second: u64, at_once: u64) -> ContentPace {
        let bytes_per_second = NonZeroU64::new(bytes_per_second).expect("a rate");
        ContentPace::new(ResponseRate { bytes_per_second, at_once }, START_NS)
    }

    /// What was sent of a response, and when.
    struct Sent {
        bytes: usize,
        wake_ups: u64,
        ns: u64,
        /// The most that has waited.
        waited: usize,
    }

    /// Sends content that comes in reads of up to `room` bytes, whatever is allowed, and wakes up late by so many ns.
    fn send(mut pace: ContentPace, count: usize, room: usize, late_ns: u64) -> Sent {
        let (mut now_ns, mut unread) = (START_NS, count);
        let mut sent = Sent { bytes: 0, wake_ups: 0, ns: 0, waited: 0 };
        let rate = u128::from(pace.bytes_per_second);
        let free = pace.at_once;
        while sent.bytes < count {
            match pace.step(now_ns) {
                PaceStep::Wait => {
                    assert!(pace.due_ns() > now_ns, "no wake-up is in vain");
                    now_ns = pace.due_ns() + late_ns;
                    sent.wake_ups += 1;
                }
                PaceStep::Send(piece) => sent.bytes += piece.len(),
                PaceStep::Read { most, .. } => {
                    let read = if room > 0 { room } else { most }.min(unread);
                    unread -= read;
                    let now = pace.take(now_ns, read);
                    if now < read {
                        pace.keep(vec![b'x'; read], now);
                        sent.waited = sent.waited.max(pace.waiting.len());
                    }
                    sent.bytes += now;
                }
            }
            let allowed = u128::from(now_ns - START_NS + pace.step_ns) * rate / SECOND_NS + u128::from(free);
            assert!(sent.bytes as u128 <= allowed, "{} of {allowed} bytes", sent.bytes);
        }
        sent.ns = now_ns - START_NS;
        sent
    }

    #[test]
    fn content_takes_the_time_of_its_rate_less_one_step() {
        let in_ms = |sent: Sent| (sent.ns / 1_000_000, sent.wake_ups);
        assert_eq!(in_ms(send(pace(20_000, 0), 40_000, 0, 0)), (1_950, 39));
        assert_eq!(in_ms(send(pace(20_000, 30_000), 40_000, 0, 0)), (450, 9), "the rest after what is sent at once");
        assert_eq!(in_ms(send(pace(20_000, 40_000), 40_000, 0, 0)), (0, 0));
        assert_eq!(in_ms(send(pace(u64::MAX, 0), 1 << 20, 0, 0)), (0, 0));
        assert_eq!(in_ms(send(pace(256, 0), 2_048, 0, 0)), (6_000, 3), "pieces of 512 bytes");
    }

    #[test]
    fn no_more_is_read_than_is_sent_and_what_comes_beyond_that_waits() {
        assert_eq!(send(pace(20_000, 5_000), 100_000, 0, 0).waited, 0);
        let held = send(pace(20_000, 5_000), 100_000, 16_384, 0);
        assert_eq!(held.waited, 16_384, "no more than one read");
        assert!(held.wake_ups <= 20 * 5, "{}", held.wake_ups);
    }

    #[test]
    fn the_memory_of_what_was_sent_is_given_back() {
        let mut pace = pace(512, 0);
        assert_eq!(pace.take(START_NS, 65_536), 512);
        pace.keep(vec![b'x'; 65_536], 512);
        let mut left = 65_536 - 512;
        while pace.is_waiting() {
            let PaceStep::Send(piece) = pace.step(pace.next_ns) else { panic!("its time has come") };
            left -= piece.len();
            assert!(pace.held_bytes() <= 2 * left + 1, "{} for {left} bytes", pace.held_bytes());
        }
        assert_eq!((left, pace.held_bytes()), (0, 0));
    }

    #[test]
    fn late_wake_ups_make_it_no_slower_and_no_faster() {
        for late_ns in [1_000_000, STEP_NS / 2, 3 * STEP_NS] {
            let sent = send(pace(20_000, 0), 100_000, 0, late_ns);
            assert!((4_950..=5_150).contains(&(sent.ns / 1_000_000)), "{} ns late: {} ns", late_ns, sent.ns);
        }
    }

    #[test]
    fn small_reads_cause_no_more_wake_ups_than_large_ones() {
        let sent = send(pace(20_000, 0), 40_000, 10, 0);
        assert!(sent.wake_ups <= 40, "{}", sent.wake_ups);
    }

    #[test]
    fn a_pause_of_the_upstream_is_made_good_for_a_second() {
        let mut pace = pace(20_000, 0);
        let later = START_NS + 60 * SECOND_NS as u64;
        assert!(matches!(pace.step(later), PaceStep::Read { most: 20_000, waited: false }));
        assert_eq!(pace.take(later, 20_000), 20_000);
        assert!(matches!(pace.step(later), PaceStep::Wait));
        assert!(matches!(pace.step(pace.due_ns()), PaceStep::Read { most: 1_000, waited: true }));
    }

    #[test]
    fn bytes_sent_before_their_time_are_waited_for_afterwards() {
        let mut pace = pace(20_000, 0);
        assert_eq!(pace.take(START_NS, 21_000), 1_000);
        pace.keep(vec![b'x'; 21_000], 1_000);
        assert_eq!(pace.hurry(START_NS).len(), 20_000);
        assert!(matches!(pace.step(START_NS), PaceStep::Wait));
        assert_eq!(pace.due_ns(), START_NS + 21_000 * 50_000);
    }

    #[test]
    fn everything_is_released_when_the_limit_ends() {
        let mut pace = pace(10, 0);
        assert_eq!(pace.take(START_NS, 600), 512);
        pace.keep(vec![b'x'; 600], 512);
        pace.keep(b"yz".to_vec(), 1);
        let rest = pace.lift(START_NS);
        assert!(rest.len() == 89 && rest.ends_with(b"xz") && !pace.is_waiting());
        assert_eq!(pace.take(START_NS, 1 << 20), 1 << 20);
    }
}
