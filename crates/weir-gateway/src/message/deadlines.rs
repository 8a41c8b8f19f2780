//! The times by which something has to happen to an exchange that waits.

use weir_plugin::Stop;

/// The earliest of several deadlines, each with how the exchange ends when it has come.
///
/// # Errors
/// One has come. If there are several, the first in this order decides.
#[inline]
pub(crate) fn earliest_ns<const N: usize>(now_ns: u64, deadlines: [(u64, Stop); N]) -> Result<u64, Stop> {
    let earliest_ns = deadlines.iter().fold(u64::MAX, |earliest_ns, (deadline_ns, _)| earliest_ns.min(*deadline_ns));
    if earliest_ns > now_ns {
        return Ok(earliest_ns);
    }
    let over = deadlines.into_iter().find(|(deadline_ns, _)| *deadline_ns <= now_ns);
    over.map_or(Ok(earliest_ns), |(_, stop)| Err(stop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_deadline_that_has_come_decides() {
        let deadlines = [(30, Stop::ClientGone), (10, Stop::CallTimeout), (20, Stop::BodyTimeout)];
        assert!(matches!(earliest_ns(9, deadlines), Ok(10)));
        assert!(matches!(earliest_ns(10, deadlines), Err(Stop::CallTimeout)));
        assert!(matches!(earliest_ns(20, deadlines), Err(Stop::CallTimeout)));
        assert!(matches!(earliest_ns(30, deadlines), Err(Stop::ClientGone)));
    }
}
