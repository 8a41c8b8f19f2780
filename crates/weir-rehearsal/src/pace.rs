//! When requests are sent.

use std::str::FromStr;
use std::time::Duration;

use tokio::time::Instant;

/// The longest pause of the log that is kept: a log of several days is not to be rehearsed for days without a request.
const MAX_RECORDED_PAUSE: Duration = Duration::from_secs(60);

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
            (Pace::Recorded, Some(last)) => {
                let pause = self.last_ms.zip(at_ms).map_or(0, |(last, at)| at - last);
                last + Duration::from_millis(pause.max(0) as u64).min(MAX_RECORDED_PAUSE).div_f64(self.speed)
            }
        };
        self.due = Some(due);
        self.last_ms = at_ms.max(self.last_ms);
        due
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
        // A line that is older than the one before is sent at once, and a day is no pause.
        assert_eq!([1000, 1500, 1400, 1600, 90_000_000].map(|at| ms(&mut recorded, at)), [0, 250, 250, 300, 30_300]);
        let mut none = Pacer::new(Pace::None, 1.0);
        assert_eq!([ms(&mut none, 0), ms(&mut none, 5000)], [0, 0]);
    }
}
