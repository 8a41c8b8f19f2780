//! CUBIC by RFC 9438. That of `quinn-proto` lets its estimate of a Reno window begin below the window if losses follow each other ("fast
//! convergence"), so that the window does not grow between two losses: over a network with 1 % loss it falls to a few packets.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// The part of the window that is left after a loss (§4.6).
const BETA: f64 = 0.7;
/// How fast the window grows (§5.1), in packets a second cubed.
const C: f64 = 0.4;
/// The packets by which the estimate of a Reno window grows in a round trip (§4.3), as long as it is less than the window before the loss.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The smallest window in packets (RFC 9002 §7.2).
const LEAST_PACKETS: f64 = 2.0;
/// The most by which the window is to grow in a round trip (§4.2).
const MOST_GROWTH: f64 = 1.5;

/// Makes controllers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rfc9438 {
    /// The first window in bytes.
    pub initial_window: u64,
}

impl ControllerFactory for Rfc9438 {
    fn build(self: Arc<Self>, _: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(CubicWindow::new(self.initial_window, mtu))
    }
}

/// The window of one path. Windows are in bytes.
#[derive(Clone, Debug)]
struct CubicWindow {
    initial: u64,
    mtu: f64,
    window: f64,
    /// Below it, the window grows by what is acknowledged (slow start).
    threshold: f64,
    /// The window before the last loss, and that to which the curve returns, which is less if it had not been reached again.
    before: f64,
    origin: f64,
    /// The estimate of a Reno window.
    reno: f64,
    /// When the curve began, and the seconds until it returns to `origin`.
    epoch: Option<(Instant, f64)>,
    /// Losses of packets that were sent before this have been answered.
    recovery: Option<Instant>,
}

impl CubicWindow {
    fn new(initial: u64, mtu: u16) -> CubicWindow {
        CubicWindow {
            initial,
            mtu: f64::from(mtu),
            window: initial as f64,
            threshold: f64::INFINITY,
            before: 0.0,
            origin: 0.0,
            reno: 0.0,
            epoch: None,
            recovery: None,
        }
    }

    fn least(&self) -> f64 {
        LEAST_PACKETS * self.mtu
    }

    /// Begins the curve at the window (§4.2).
    fn begin_epoch(&mut self, now: Instant) -> (Instant, f64) {
        self.origin = self.origin.max(self.window);
        self.reno = self.window;
        let seconds = ((self.origin - self.window) / self.mtu / C).cbrt();
        *self.epoch.insert((now, seconds))
    }

    /// The window of the curve so many seconds after its origin.
    fn curve(&self, seconds: f64) -> f64 {
        self.origin + C * seconds.powi(3) * self.mtu
    }

    fn avoid_congestion(&mut self, now: Instant, acknowledged: f64, rtt: f64) {
        let (begun, origin_after) = self.epoch.unwrap_or_else(|| self.begin_epoch(now));
        let alpha = if self.reno < self.before { ALPHA } else { 1.0 };
        self.reno += alpha * acknowledged / self.window * self.mtu;
        let seconds = now.saturating_duration_since(begun).as_secs_f64() - origin_after;
        if self.curve(seconds) < self.reno {
            self.window = self.window.max(self.reno);
        } else {
            let target = self.curve(seconds + rtt).clamp(self.window, MOST_GROWTH * self.window);
            self.window += (target - self.window) / self.window * acknowledged;
        }
    }
}

impl Controller for CubicWindow {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        if self.recovery.is_some_and(|recovery| sent <= recovery) {
            return;
        }
        if app_limited {
            // The network has not been asked for more, so the curve begins anew (§5.8).
            self.epoch = None;
        } else if self.window < self.threshold {
            self.window += bytes as f64;
        } else {
            self.avoid_congestion(now, bytes as f64, rtt.get().as_secs_f64());
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, _: u64) {
        if self.recovery.is_none_or(|recovery| sent > recovery) {
            self.recovery = Some(now);
            self.before = self.window;
            // §4.7: other flows need room.
            self.origin = if self.window < self.origin { self.window * (1.0 + BETA) / 2.0 } else { self.window };
            self.threshold = (self.window * BETA).max(self.least());
            self.window = self.threshold;
            self.epoch = None;
        }
        if is_persistent {
            // RFC 9002 §7.6.2, also within a recovery. The curve then begins at the window after slow start (§4.8).
            (self.window, self.recovery) = (self.least(), None);
            (self.origin, self.epoch) = (0.0, None);
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = f64::from(mtu);
        self.window = self.window.max(self.least());
        // The curve is in packets.
        self.epoch = None;
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.ssthresh = self.threshold.is_finite().then_some(self.threshold as u64);
        metrics
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.initial
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const RTT: f64 = 0.03;

    /// Packets of 1,000 bytes.
    fn window(packets: f64) -> CubicWindow {
        CubicWindow::new((packets * 1000.0) as u64, 1000)
    }

    /// A round trip in which all of the window is acknowledged, so many seconds after `begun`.
    fn round_trip(cubic: &mut CubicWindow, begun: Instant, after: f64) {
        let now = begun + Duration::from_secs_f64(after);
        for _ in 0..cubic.window as u64 / 1000 {
            cubic.avoid_congestion(now, 1000.0, RTT);
        }
    }

    fn lose(cubic: &mut CubicWindow, now: Instant) {
        cubic.on_congestion_event(now, now, false, 1000);
    }

    #[test]
    fn a_loss_leaves_seven_tenths_and_those_of_the_same_round_trip_no_less() {
        let (mut cubic, now) = (window(100.0), Instant::now());
        lose(&mut cubic, now);
        lose(&mut cubic, now);
        assert_eq!(cubic.window(), 70_000);
        lose(&mut cubic, now + Duration::from_millis(30));
        assert_eq!((cubic.window(), cubic.origin.round()), (49_000, 59_500.0));
        cubic.on_congestion_event(now, now + Duration::from_secs(1), true, 1000);
        assert_eq!(cubic.window(), 2_000);
    }

    #[test]
    fn persistent_congestion_leaves_the_least_window_and_a_new_curve_also_within_a_recovery() {
        let (mut cubic, now) = (window(200.0), Instant::now());
        assert_eq!(cubic.metrics().ssthresh, None);
        lose(&mut cubic, now);
        cubic.on_congestion_event(now, now, true, 1000);
        assert_eq!((cubic.window(), cubic.metrics().ssthresh), (2_000, Some(140_000)));
        cubic.window = 140_000.0;
        round_trip(&mut cubic, now, 0.0);
        assert_eq!((cubic.origin, cubic.epoch), (140_000.0, Some((now, 0.0))));
    }

    #[test]
    fn a_curve_begins_anew_with_packets_of_another_size() {
        let (mut cubic, now) = (window(200.0), Instant::now());
        lose(&mut cubic, now);
        round_trip(&mut cubic, now, 0.0);
        cubic.on_mtu_update(1_452);
        let before = cubic.window;
        let (_, seconds) = cubic.begin_epoch(now);
        assert!((cubic.curve(-seconds) - before).abs() < 1.0, "{} of {before}", cubic.curve(-seconds));
    }

    #[test]
    fn a_small_window_grows_like_that_of_reno_also_when_losses_follow_each_other() {
        let (mut cubic, now) = (window(20.0), Instant::now());
        for loss in 0..3 {
            let begun = now + Duration::from_secs(loss);
            lose(&mut cubic, begun);
            let before = cubic.window;
            (1..=5).for_each(|trip| round_trip(&mut cubic, begun, f64::from(trip) * RTT));
            let grown = (cubic.window - before) / 1000.0;
            assert!((2.0..=5.0).contains(&grown), "{grown} packets in five round trips after loss {loss}");
        }
    }

    #[test]
    fn a_large_window_returns_by_the_curve_and_goes_beyond_it() {
        let (mut cubic, now) = (window(1_000.0), Instant::now());
        lose(&mut cubic, now);
        // The cube root of 300 packets by 0.4.
        let returns = (300.0_f64 / C).cbrt();
        let mut at = |seconds: f64| {
            round_trip(&mut cubic, now, seconds);
            cubic.window / 1000.0
        };
        let windows: Vec<f64> = (1..=400).map(|trip| at(f64::from(trip) * RTT)).collect();
        let trips = |seconds: f64| (seconds / RTT) as usize;
        assert!((990.0..1_020.0).contains(&windows[trips(returns)]), "{}", windows[trips(returns)]);
        assert!(windows[trips(returns / 2.0)] > 930.0, "most of it comes first");
        assert!(windows[399] > 1_005.0 && windows.is_sorted(), "{}", windows[399]);
    }
}
