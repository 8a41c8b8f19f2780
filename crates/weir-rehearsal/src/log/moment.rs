//! Times as logs write them.

use jiff::Timestamp;
use jiff::fmt::strtime;

/// Numbers above this are milliseconds: as seconds they would be after the year 5000.
const MOST_SECONDS: f64 = 1e11;

/// Milliseconds since 1970 of `10/Oct/2026:13:55:36 +0200`, `2026-10-10T13:55:36.120Z`, or of a number of seconds or milliseconds.
pub(super) fn millis(text: &str) -> Option<i64> {
    if let Ok(number) = text.parse::<f64>() {
        return of_number(number);
    }
    let stamp = match text.parse::<Timestamp>() {
        Ok(stamp) => stamp,
        Err(_) => strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?.to_timestamp().ok()?,
    };
    Some(stamp.as_millisecond())
}

pub(super) fn of_number(number: f64) -> Option<i64> {
    let millis = if number > MOST_SECONDS { number } else { number * 1000.0 };
    (number.is_finite() && number > 0.0).then_some(millis as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_kinds_are_read() {
        for text in [
            "10/Oct/2026:13:55:36 +0200",
            "2026-10-10T11:55:36Z",
            "1791633336",
            "1791633336000",
            "2026-10-10T13:55:36.0+02:00",
        ] {
            assert_eq!(millis(text), Some(1_791_633_336_000), "{text}");
        }
        assert_eq!(millis("yesterday"), None);
        assert_eq!(millis("NaN"), None);
    }
}
