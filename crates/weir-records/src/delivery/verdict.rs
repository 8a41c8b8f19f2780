//! What a destination's answer means for the records of a batch.

use std::iter::repeat;
use std::time::Duration;

use super::RecordDelivery;
use crate::books::{Books, RecordTally, RejectReason};
use crate::destination::{Outcome, SendOutcome};
use crate::queue::{Record, tally};
use crate::test_record::TestOutcome;

/// The outcomes of a batch so far.
#[derive(Default)]
pub(super) struct Settlement {
    pub(super) delivered: RecordTally,
    duplicates: RecordTally,
    rejected: [RecordTally; RejectReason::ALL.len()],
}

impl Settlement {
    pub(super) fn sum(&self) -> RecordTally {
        self.rejected.iter().copied().chain([self.delivered]).sum()
    }

    pub(super) fn add(&mut self, other: &Settlement) {
        self.delivered.add(other.delivered);
        self.duplicates.add(other.duplicates);
        self.rejected.iter_mut().zip(other.rejected).for_each(|(mine, others)| mine.add(others));
    }

    pub(super) fn book(&self, books: &mut Books) {
        books.delivered.add(self.delivered);
        books.duplicates.add(self.duplicates);
        books.rejected.iter_mut().zip(self.rejected).for_each(|(all, more)| all.add(more));
    }
}

/// The evaluation of a destination's answer.
pub(super) struct DeliveryVerdict {
    /// Records without an outcome yet.
    pub(super) left: Vec<Record>,
    pub(super) settlement: Settlement,
    pub(super) next: NextTry,
}

pub(super) enum NextTry {
    /// Try again at once, with smaller batches.
    AtOnce,
    Later {
        error: String,
        after: Option<Duration>,
    },
}

impl DeliveryVerdict {
    fn settled(settlement: Settlement) -> DeliveryVerdict {
        DeliveryVerdict { left: Vec::new(), settlement, next: NextTry::AtOnce }
    }

    fn later(left: Vec<Record>, settlement: Settlement, error: String, after: Option<Duration>) -> DeliveryVerdict {
        DeliveryVerdict { left, settlement, next: NextTry::Later { error, after } }
    }
}

impl RecordDelivery {
    pub(super) fn judge(&mut self, batch: Vec<Record>, sent: SendOutcome) -> DeliveryVerdict {
        let mut settlement = Settlement::default();
        match sent {
            SendOutcome::Taken => {
                settlement.delivered = tally(&batch);
                self.task.core.tests.tell(&batch, || TestOutcome::Delivered);
                self.went_well();
                DeliveryVerdict::settled(settlement)
            }
            SendOutcome::Each { outcomes, error } => self.judge_each(batch, outcomes, error),
            SendOutcome::TooLarge(error) if batch.len() == 1 => self.reject(&batch, RejectReason::TooLarge, &error),
            SendOutcome::TooLarge(_) => {
                self.limit = batch.len() / 2;
                DeliveryVerdict { left: batch, settlement, next: NextTry::AtOnce }
            }
            SendOutcome::Busy { error, after } => {
                // A test record, which is alone, tells nothing about batches.
                if !self.is_test(&batch) {
                    self.limit = (batch.len() / 2).max(1);
                }
                DeliveryVerdict::later(batch, settlement, error, after)
            }
            SendOutcome::Failed { error, after } => DeliveryVerdict::later(batch, settlement, error, after),
            SendOutcome::Invalid { reason, error } if batch.len() == 1 => self.reject(&batch, reason, &error),
            SendOutcome::Invalid { .. } => {
                self.whole_limit.get_or_insert(self.limit);
                self.limit = batch.len() / 2;
                DeliveryVerdict { left: batch, settlement, next: NextTry::AtOnce }
            }
            SendOutcome::Refused { reason, error } => self.reject(&batch, reason, &error),
        }
    }

    fn judge_each(&mut self, batch: Vec<Record>, outcomes: Vec<Outcome>, error: Option<String>) -> DeliveryVerdict {
        let mut settlement = Settlement::default();
        let (mut left, mut rejected) = (Vec::new(), Vec::new());
        // A record without an outcome is tried again.
        let outcomes = outcomes.into_iter().chain(repeat(Outcome::Retry));
        for (record, outcome) in batch.into_iter().zip(outcomes) {
            let one = RecordTally::one(record.bytes());
            self.tell_test(&record, outcome, error.as_deref());
            match outcome {
                Outcome::Delivered => settlement.delivered.add(one),
                Outcome::Duplicate => {
                    settlement.delivered.add(one);
                    settlement.duplicates.add(one);
                }
                Outcome::Rejected(reason) => {
                    settlement.rejected[reason as usize].add(one);
                    rejected.push((reason, record));
                }
                Outcome::Retry => left.push(record),
            }
        }
        if !rejected.is_empty() {
            let records = rejected.iter().map(|(reason, record)| (*reason, record));
            self.keep_rejected(error.as_deref().unwrap_or_default(), records);
        }
        if !left.is_empty() {
            return DeliveryVerdict::later(left, settlement, error.unwrap_or_default(), None);
        }
        self.went_well();
        if let Some(error) = error {
            self.task.complain(&error, "such records are rejected");
        }
        DeliveryVerdict::settled(settlement)
    }

    fn reject(&self, batch: &[Record], reason: RejectReason, error: &str) -> DeliveryVerdict {
        let mut settlement = Settlement::default();
        settlement.rejected[reason as usize] = tally(batch);
        self.task.complain(error, "records are rejected");
        self.task.core.tests.tell(batch, || TestOutcome::Rejected { reason, error: error.to_owned() });
        self.keep_rejected(error, batch.iter().map(|record| (reason, record)));
        DeliveryVerdict::settled(settlement)
    }

    /// Tells the outcome of a record that has one, if it is a test record.
    fn tell_test(&self, record: &Record, outcome: Outcome, error: Option<&str>) {
        let told = || match outcome {
            Outcome::Delivered | Outcome::Duplicate => Some(TestOutcome::Delivered),
            Outcome::Rejected(reason) => {
                Some(TestOutcome::Rejected { reason, error: error.unwrap_or_default().to_owned() })
            }
            Outcome::Retry => None,
        };
        let tests = &self.task.core.tests;
        if !tests.is_empty()
            && let Some(outcome) = told()
        {
            tests.tell([record], || outcome.clone());
        }
    }

    fn keep_rejected<'r>(&self, error: &str, records: impl Iterator<Item = (RejectReason, &'r Record)>) {
        let core = &self.task.core;
        if let Some(rejected) = &core.options.rejected {
            rejected.keep(core.name(), error, records);
        }
    }

    fn went_well(&mut self) {
        self.pauses.reset();
        // The batch limit grows again: after a search for an invalid record fast, otherwise step by step.
        match self.whole_limit {
            Some(whole) if self.limit < whole / 2 => self.limit *= 2,
            Some(whole) => (self.limit, self.whole_limit) = (whole, None),
            None => self.limit = self.limit.saturating_add(self.limit / 8 + 1),
        }
        self.task.has_delivered();
    }
}
