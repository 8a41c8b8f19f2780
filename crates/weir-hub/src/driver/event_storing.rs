//! Reports that events cannot be stored, and that they can be again.

use tokio::time::Instant;

use super::TELL_AGAIN;

/// What was reported of the disk for events.
#[derive(Debug, Default)]
pub(super) struct EventStoring {
    has_failed: bool,
    told: Option<Instant>,
}

impl EventStoring {
    /// Whether it was reported that writes fail.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Takes the error of the last write, if it has failed. Returns a line when writes begin to fail, at most once in
    /// [`TELL_AGAIN`], and one when they succeed after that.
    pub(super) fn look(&mut self, error: Option<String>, now: Instant) -> Option<String> {
        match error {
            Some(error) if !self.has_failed && self.told.is_none_or(|told| now >= told + TELL_AGAIN) => {
                (self.has_failed, self.told) = (true, Some(now));
                Some(format!("events of the hub cannot be stored, and are refused: {error}"))
            }
            None if self.has_failed => {
                self.has_failed = false;
                Some("events of the hub can be stored again".to_owned())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fails_now_and_then_is_reported_once_a_minute() {
        let (mut storing, start) = (EventStoring::default(), Instant::now());
        let full = || Some("full".to_owned());
        assert_eq!(storing.look(None, start), None);
        let begun = "events of the hub cannot be stored, and are refused: full";
        assert_eq!(storing.look(full(), start).as_deref(), Some(begun));
        assert_eq!(storing.look(full(), start + TELL_AGAIN), None, "it goes on");
        assert_eq!(storing.look(None, start).as_deref(), Some("events of the hub can be stored again"));
        assert_eq!(storing.look(full(), start), None, "too soon");
        assert_eq!(storing.look(None, start), None, "its beginning was not reported");
        assert_eq!(storing.look(full(), start + TELL_AGAIN).as_deref(), Some(begun));
    }
}
