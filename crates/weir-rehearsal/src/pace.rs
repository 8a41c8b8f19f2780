//! When requests are sent.

use std::str::FromStr;
use std::time::Duration;

use tokio::time::Instant;

/// The longest pause of the log that is kept: a log of several days is not to be rehearsed for days without a request.
const MAX_RECORDED_PAUSE: Duration = Duration::from_secs(60);
/// The shortest pause with [`Pace::Recorded`]: 100 requests of the log per second, whatever its times and `--speed` are.
const MIN_RECORDED_PAUSE: Duration = Duration::from_millis(10);
/// The pause before a request for which the log has no time: 20 per second.
const UNTIMED_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The pauses between requests are those of the log.
    Recorded,
    /// As fast as the gateways answer.
    None,
    /// At most this number of requests of the log per second.
    PerSecond(f64),
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Pace, String> {
        const FORM: &str = "write `recorded`, `none`, or a rate such as `20/s`";
        match text {
            "recorded" => return Ok(Pace::Recorded),
            "none" => return Ok(Pace::None),
            _ => {}
        }
        let rate = text.strip_suffix("/s").ok_or(FORM)?.parse::<f64>().map_err(|_| FORM)?;
        if rate.is_finite() && rate >= 0.01 {
            Ok(Pace::PerSecond(rate))
        } else {
            Err("the rate must be at least 0.01/s".to_owned())
        }
    }
}

/// Says when the next request is due.
pub(crate) struct Pacer {
    pace: Pace,
    speed: f64,
    due: Option<Instant>,
    last_ms: Option<i64>,
}

impl Pacer {
    pub(crate) fn new(pace: Pace, speed: f64) -> Pacer {
        Pacer { pace, speed, due: None, last_ms: None }
    }

    /// `at_ms` is when the request was logged.
    pub(crate) fn due(&mut self, at_ms: Option<i64>, now: Instant) -> Instant {
        let due = match (self.pace, self.due) {
            (Pace::None, _) | (_, None) => now,
            // A rate is no average: what was late is not made up for by a burst.
            (Pace::PerSecond(rate), Some(last)) => (last + Duration::from_secs_f64(1.0 / rate)).max(now),
            (Pace::Recorded, Some(last)) => (last + self.recorded_pause(at_ms)).max(now),
        };
        self.due = Some(due);
        self.last_ms = self.followed(at_ms);
        due
    }

    fn recorded_pause(&self, at_ms: Option<i64>) -> Duration {
        let Some((last, at)) = self.last_ms.zip(at_ms) else { return UNTIMED_PAUSE };
        let pause = Duration::from_millis(at.saturating_sub(last).max(0) as u64).min(MAX_RECORDED_PAUSE);
        pause.div_f64(self.speed).max(MIN_RECORDED_PAUSE)
    }

    /// The time that the next pause is measured from. Lines are written when answers end, so some are a little older than the one
    /// before; a line that is much older begins another file, or follows a line with a wrong time.
    fn followed(&self, at_ms: Option<i64>) -> Option<i64> {
        let (Some(last), Some(at)) = (self.last_ms, at_ms) else { return at_ms.or(self.last_ms) };
        let is_late = at < last && last.saturating_sub(at) <= MAX_RECORDED_PAUSE.as_millis() as i64;
        Some(if is_late { last } else { at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_are_read() {
        assert_eq!("20/s".parse(), Ok(Pace::PerSecond(20.0)));
        assert_eq!("recorded".parse(), Ok(Pace::Recorded));
        assert_eq!("none".parse(), Ok(Pace::None));
        assert!("fast".parse::<Pace>().is_err() && "0/s".parse::<Pace>().is_err() && "NaN/s".parse::<Pace>().is_err());
    }

    #[test]
    fn requests_are_due_at_their_pace() {
        let now = Instant::now();
        let ms = |pacer: &mut Pacer, at: i64| (pacer.due(Some(at), now) - now).as_millis();
        let mut rate = Pacer::new(Pace::PerSecond(4.0), 1.0);
        assert_eq!([ms(&mut rate, 0), ms(&mut rate, 0), ms(&mut rate, 0)], [0, 250, 500]);
        let mut recorded = Pacer::new(Pace::Recorded, 2.0);
        // A line that is older than the one before has the shortest pause, and a day is no pause.
        assert_eq!([1000, 1500, 1400, 1600, 90_000_000].map(|at| ms(&mut recorded, at)), [0, 250, 260, 310, 30_310]);
        let mut none = Pacer::new(Pace::None, 1.0);
        assert_eq!([ms(&mut none, 0), ms(&mut none, 5000)], [0, 0]);
    }

    #[test]
    fn recorded_pace_has_a_rate_also_without_times_and_with_wrong_ones() {
        let now = Instant::now();
        let all = |times: &[Option<i64>]| {
            let mut pacer = Pacer::new(Pace::Recorded, 1.0);
            times.iter().map(|at| (pacer.due(*at, now) - now).as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(all(&[None, None, None]), [0, 50, 100]);
        assert_eq!(all(&[Some(5); 3]), [0, 10, 20]);
        // A time that is far ahead, then the right ones again; and another file, which begins earlier.
        assert_eq!(all(&[Some(0), Some(i64::MAX), Some(1000), Some(2000)]), [0, 60_000, 60_010, 61_010]);
        assert_eq!(all(&[Some(90_000_000), Some(1000), Some(2000)]), [0, 10, 1010]);
    }
}
