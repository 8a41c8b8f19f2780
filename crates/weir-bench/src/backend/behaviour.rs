//! The behaviour of a backend: its delay, its work, its failures and its answers.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::errors::ValueError;
use crate::stats::SeededRandom;

/// How a backend handles requests that contain no instructions of their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Behaviour {
    pub answer: BackendAnswer,
    pub delay: BackendDelay,
    /// CPU time spent for each request, ns.
    pub work_ns: u64,
    /// The share and kind of failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<InjectedFailure>,
}

/// The content of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendAnswer {
    /// The text `OK`, as with nginx's `return 200 'OK'`.
    #[default]
    Ok,
    /// This many bytes of text.
    Sized(u64),
    /// The request's own body.
    Echo,
}

/// The delay of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendDelay {
    #[default]
    None,
    Fixed(Duration),
    Uniform {
        from: Duration,
        to: Duration,
    },
    /// Exponentially distributed with this mean.
    Exponential(Duration),
    /// `often`, or, with probability `share`, `seldom`.
    Bimodal {
        often: Duration,
        seldom: Duration,
        share: f64,
    },
    /// The two in turn, each for `every`. The clock of the machine decides, so that other processes know which one is
    /// active: the first in every even period since the Unix epoch.
    Alternate {
        one: Duration,
        other: Duration,
        every: Duration,
    },
    /// No answers in the last `lasting` of every `every`.
    Stall {
        lasting: Duration,
        every: Duration,
    },
}

impl BackendDelay {
    /// The delay of a request that is received `since_start` after the start of the backend.
    pub fn draw(&self, random: &mut SeededRandom, since_start: Duration) -> Duration {
        match *self {
            BackendDelay::None => Duration::ZERO,
            BackendDelay::Fixed(delay) => delay,
            BackendDelay::Uniform { from, to } => from + (to - from).mul_f64(random.unit()),
            BackendDelay::Exponential(mean) => mean.mul_f64(-(1.0 - random.unit()).ln()),
            BackendDelay::Bimodal { often, seldom, share } => {
                if random.unit() < share {
                    seldom
                } else {
                    often
                }
            }
            BackendDelay::Alternate { one, other, every } => {
                if stretch(SystemTime::now(), every).is_multiple_of(2) {
                    one
                } else {
                    other
                }
            }
            BackendDelay::Stall { lasting, every } => {
                let into = since_start.as_nanos() % every.as_nanos().max(1);
                if into + lasting.as_nanos() > every.as_nanos() {
                    Duration::from_nanos((every.as_nanos() - into) as u64)
                } else {
                    Duration::ZERO
                }
            }
        }
    }
}

/// The number of periods of this length since the Unix epoch.
fn stretch(now: SystemTime, every: Duration) -> u128 {
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() / every.as_nanos().max(1)
}

/// Failures of requests, for tests of error handling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InjectedFailure {
    /// Share of the requests that fail, 0.0 to 1.0.
    pub share: f64,
    pub how: InjectedFailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectedFailureKind {
    /// An answer with this status.
    Status(u16),
    /// The connection is closed without an answer.
    Close,
    /// The connection is reset.
    Reset,
    /// No answer, and the connection stays open.
    Hang,
}

/// Parses `ok`, `echo`, or a number of bytes.
impl FromStr for BackendAnswer {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "ok" => Ok(BackendAnswer::Ok),
            "echo" => Ok(BackendAnswer::Echo),
            _ => parse_bytes(text)
                .map(BackendAnswer::Sized)
                .ok_or_else(|| ValueError::new(text, "an answer", "`ok`, `echo` or a size such as `1KiB`")),
        }
    }
}

/// Parses `10ms`, `5ms..50ms`, `exp:20ms`, `bimodal:1ms,100ms@0.05`, `alternate:5ms,50ms/10s` or `stall:1s/10s`.
impl FromStr for BackendDelay {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || {
            let examples = "`10ms`, `5ms..50ms`, `exp:20ms`, `bimodal:1ms,100ms@0.05`, `alternate:5ms,50ms/10s` or \
                            `stall:1s/10s`";
            ValueError::new(text, "a delay", examples)
        };
        let parse = || -> Option<Self> {
            if text == "none" {
                Some(BackendDelay::None)
            } else if let Some(mean) = text.strip_prefix("exp:") {
                Some(BackendDelay::Exponential(parse_duration(mean)?))
            } else if let Some(rest) = text.strip_prefix("bimodal:") {
                let (times, share) = rest.split_once('@')?;
                let (often, seldom) = times.split_once(',')?;
                let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
                Some(BackendDelay::Bimodal { often: parse_duration(often)?, seldom: parse_duration(seldom)?, share })
            } else if let Some(rest) = text.strip_prefix("alternate:") {
                let (times, every) = rest.split_once('/')?;
                let (one, other) = times.split_once(',')?;
                let every = parse_duration(every).filter(|every| !every.is_zero())?;
                Some(BackendDelay::Alternate { one: parse_duration(one)?, other: parse_duration(other)?, every })
            } else if let Some(rest) = text.strip_prefix("stall:") {
                let (lasting, every) = rest.split_once('/')?;
                let (lasting, every) = (parse_duration(lasting)?, parse_duration(every)?);
                (lasting < every).then_some(BackendDelay::Stall { lasting, every })
            } else if let Some((from, to)) = text.split_once("..") {
                let (from, to) = (parse_duration(from)?, parse_duration(to)?);
                (from <= to).then_some(BackendDelay::Uniform { from, to })
            } else {
                parse_duration(text).map(BackendDelay::Fixed)
            }
        };
        parse().ok_or_else(wrong)
    }
}

/// Parses `0.01:503`, `1%:reset`, `5%:close` or `5%:hang`.
impl FromStr for InjectedFailure {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parse = || -> Option<Self> {
            let (share, how) = text.split_once(':')?;
            let share = match share.strip_suffix('%') {
                Some(percent) => percent.parse::<f64>().ok()? / 100.0,
                None => share.parse().ok()?,
            };
            let how = match how {
                "close" => InjectedFailureKind::Close,
                "reset" => InjectedFailureKind::Reset,
                "hang" => InjectedFailureKind::Hang,
                status => {
                    InjectedFailureKind::Status(status.parse().ok().filter(|status| (200..=599).contains(status))?)
                }
            };
            (0.0..=1.0).contains(&share).then_some(InjectedFailure { share, how })
        };
        parse().ok_or_else(|| ValueError::new(text, "a failure", "`1%:503`, `1%:close`, `1%:reset` or `1%:hang`"))
    }
}

impl fmt::Display for BackendAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendAnswer::Ok => f.write_str("ok"),
            BackendAnswer::Echo => f.write_str("echo"),
            BackendAnswer::Sized(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Parses a duration with its unit: `500ns`, `10us`, `1.5ms`, `2s`, `1m`, `1h`; a number alone is in seconds, as in wrk and ab.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return None,
    };
    let seconds = number.parse::<f64>().ok()? * seconds;
    // Nanoseconds are whole: `1.5ms` must not lose one to the binary fraction.
    (seconds.is_finite() && seconds <= 1e9).then(|| Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// A number of bytes: `500`, `5k`, `1KiB`, `2MB`.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "kb" => 1_000,
        "m" | "mib" => 1 << 20,
        "mb" => 1_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_command_line_says() {
        let ms = Duration::from_millis;
        assert_eq!("10ms".parse(), Ok(BackendDelay::Fixed(ms(10))));
        assert_eq!("5ms..50ms".parse(), Ok(BackendDelay::Uniform { from: ms(5), to: ms(50) }));
        assert_eq!("exp:1.5ms".parse(), Ok(BackendDelay::Exponential(Duration::from_micros(1_500))));
        assert_eq!(
            "bimodal:1ms,100ms@0.05".parse(),
            Ok(BackendDelay::Bimodal { often: ms(1), seldom: ms(100), share: 0.05 })
        );
        let alternate = BackendDelay::Alternate { one: ms(5), other: ms(50), every: ms(10_000) };
        assert_eq!("alternate:5ms,50ms/10s".parse(), Ok(alternate));
        assert_eq!("stall:1s/10s".parse(), Ok(BackendDelay::Stall { lasting: ms(1_000), every: ms(10_000) }));
        assert_eq!("1KiB".parse(), Ok(BackendAnswer::Sized(1_024)));
        assert_eq!("1%:503".parse(), Ok(InjectedFailure { share: 0.01, how: InjectedFailureKind::Status(503) }));
        for bad in ["", "10", "fast", "2s..1s", "stall:10s/1s", "bimodal:1ms@2", "alternate:1ms,2ms/0"] {
            assert!(bad == "10" || bad.parse::<BackendDelay>().is_err(), "{bad}");
        }
        for bad in ["", "503", "2:503", "1%:99", "1%:explode"] {
            assert!(bad.parse::<InjectedFailure>().is_err(), "{bad}");
        }
    }

    #[test]
    fn delays_have_their_distribution() {
        let mut random = SeededRandom::new(1);
        let mut mean = |delay: BackendDelay| {
            (0..20_000).map(|_| delay.draw(&mut random, Duration::ZERO).as_secs_f64()).sum::<f64>() / 20_000.0 * 1e3
        };
        let ms = Duration::from_millis;
        assert!((mean(BackendDelay::Exponential(ms(10))) - 10.0).abs() < 0.3);
        assert!((mean(BackendDelay::Uniform { from: ms(10), to: ms(20) }) - 15.0).abs() < 0.1);
        assert!((mean(BackendDelay::Bimodal { often: ms(0), seldom: ms(100), share: 0.1 }) - 10.0).abs() < 1.0);
    }

    #[test]
    fn a_stall_lasts_until_the_end_of_its_period() {
        let stall = BackendDelay::Stall { lasting: Duration::from_secs(1), every: Duration::from_secs(10) };
        let at = |ms| stall.draw(&mut SeededRandom::new(1), Duration::from_millis(ms)).as_millis();
        assert_eq!((at(0), at(8_900), at(9_250), at(9_999), at(10_000)), (0, 0, 750, 1, 0));
    }
}
