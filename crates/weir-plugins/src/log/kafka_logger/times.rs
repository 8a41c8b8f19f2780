//! Batches that a broker refuses because of the time of a message (`INVALID_TIMESTAMP`).
//!
//! Either some records are too old or too new for the topic, or the clock of the gateway or the broker is wrong, and then all are refused.
//! So the batch is sent in parts, and a record is rejected only if another one of the batch was stored. Otherwise all wait.

use weir_records::{Outcome, Record, RejectReason};

use super::producer::ProduceError;
use crate::log::captured;

/// Sends a batch that was refused with this error in parts. Returns the outcome of each record, and why one was not stored.
pub(super) async fn send_in_parts(
    records: &[&Record],
    error: String,
    mut store: impl AsyncFnMut(&[&Record]) -> Result<(), ProduceError>,
) -> (Vec<Outcome>, Option<String>) {
    let mut outcomes = vec![Outcome::Retry; records.len()];
    let (mut refused, mut is_any_stored) = (Vec::new(), false);
    let (ends, rest) = ends_and_rest(records);
    let mut failure = None;
    // The last part is the next one.
    let mut parts = vec![rest];
    parts.extend(ends.iter().map(|place| vec![*place]));
    while let Some(mut part) = parts.pop() {
        if part.is_empty() || refused.len() == ends.len() && !is_any_stored {
            continue;
        }
        let chosen: Vec<&Record> = part.iter().map(|place| records[*place]).collect();
        match store(&chosen).await {
            Ok(()) => {
                is_any_stored = true;
                part.into_iter().for_each(|place| outcomes[place] = Outcome::Delivered);
            }
            Err(ProduceError::Failed(error)) => {
                failure = Some(error);
                break;
            }
            Err(_) if part.len() > 1 => {
                let later = part.split_off(part.len() / 2);
                parts.extend([later, part]);
            }
            Err(ProduceError::Time(_)) => refused.extend(part),
            Err(ProduceError::TooLarge(_)) => outcomes[part[0]] = Outcome::Rejected(RejectReason::TooLarge),
            Err(ProduceError::Invalid(_)) => outcomes[part[0]] = Outcome::Rejected(RejectReason::Invalid),
        }
    }
    if is_any_stored {
        refused.into_iter().for_each(|place| outcomes[place] = Outcome::Rejected(RejectReason::Invalid));
    }
    let error = match failure {
        Some(failure) => Some(failure),
        None if outcomes.contains(&Outcome::Retry) => Some(format!(
            "{error}: no record of the batch is stored; is the clock of the gateway or of the broker wrong? The records wait"
        )),
        None => outcomes.iter().any(|outcome| *outcome != Outcome::Delivered).then_some(error),
    };
    (outcomes, error)
}

/// The places of the newest and the oldest record, and of the others. The times that a topic takes are a range: if it has neither of
/// them, it hardly has one in between.
fn ends_and_rest(records: &[&Record]) -> (Vec<usize>, Vec<usize>) {
    let time = |place: &usize| captured::end_ms(records[*place]);
    let newest = (0..records.len()).max_by_key(time);
    let oldest = (0..records.len()).min_by_key(time).filter(|oldest| Some(*oldest) != newest);
    let ends: Vec<usize> = newest.into_iter().chain(oldest).collect();
    let rest = (0..records.len()).filter(|place| !ends.contains(place)).collect();
    (ends, rest)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use serde_json::json;

    use super::*;
    use crate::testing::captured_at;

    /// Sends records with these times to a topic that takes this range of times. Returns their outcomes, the error and the number of
    /// requests.
    fn sent(times: &[u64], taken: Range<u64>) -> (Vec<Outcome>, Option<String>, usize) {
        let records: Vec<Record> =
            times.iter().zip(0..).map(|(time, number)| captured_at(*time, number, json!({}), &[])).collect();
        let all: Vec<&Record> = records.iter().collect();
        let mut requests = 0;
        let sending = send_in_parts(&all, "the time (error 32)".into(), async |part: &[&Record]| {
            requests += 1;
            match part.iter().all(|record| taken.contains(&captured::end_ms(record))) {
                true => Ok(()),
                false => Err(ProduceError::Time("the time (error 32)".into())),
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (outcomes, error) = runtime.block_on(sending);
        (outcomes, error, requests)
    }

    #[test]
    fn a_batch_of_which_every_record_has_a_wrong_time_waits_after_few_requests() {
        for count in [1, 2, 3, 1000] {
            let times: Vec<u64> = (1000..1000 + count).collect();
            let (outcomes, error, requests) = sent(&times, 0..1000);
            assert_eq!(outcomes, vec![Outcome::Retry; count as usize]);
            assert!(error.is_some_and(|error| error.contains("error 32") && error.contains("clock")));
            assert!(requests <= 2, "{requests}");
        }
    }

    #[test]
    fn records_with_a_wrong_time_are_rejected_if_others_of_the_batch_are_stored() {
        let times: Vec<u64> = (0..200).map(|number| number * 7 % 200).collect();
        for taken in [0..199, 1..200, 0..1, 20..200, 0..20] {
            let (outcomes, error, _) = sent(&times, taken.clone());
            for (time, outcome) in times.iter().zip(outcomes) {
                let is_taken = taken.contains(time);
                let want = if is_taken { Outcome::Delivered } else { Outcome::Rejected(RejectReason::Invalid) };
                assert_eq!(outcome, want, "{time} {taken:?}");
            }
            assert_eq!(error.as_deref(), Some("the time (error 32)"));
        }
        // The clock was mended meanwhile.
        let (outcomes, error, requests) = sent(&times, 0..200);
        assert_eq!((outcomes, error, requests), (vec![Outcome::Delivered; 200], None, 3));
    }
}
