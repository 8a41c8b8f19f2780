//! Changes whose response from etcd is lost: whether they were made is found out by their history entries.

use std::thread;
use std::time::{Duration, Instant};

use super::wire::{CompareResult, EtcdOutcome, TxnRequest, TxnResponse};
use super::{ANSWER_PATIENCE, EtcdCommand, EtcdStore, changed_last, put, range_of};
use crate::stores::store::StoreFailure;

/// How long etcd is asked whether a change was made whose outcome is unknown: as long as it takes to find another member.
const SETTLE_PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two such questions.
const SETTLE_PAUSE: Duration = Duration::from_millis(200);

/// The result of a transaction.
pub(super) enum CommitAnswer {
    Answered(TxnResponse),
    /// The response was lost; the change was made at this revision.
    Made(u64),
}

/// Whether a transaction was made whose response was lost.
#[derive(Debug, PartialEq, Eq)]
enum SettledChange {
    /// At this revision.
    Made(u64),
    NotMade,
}

/// Reads the history entry that was found in place of one to be made. An empty one was put by an earlier attempt to settle.
fn settled(answer: TxnResponse) -> SettledChange {
    let found = answer.responses.into_iter().find_map(|response| match response.outcome {
        Some(EtcdOutcome::Range(found)) => found.kvs.into_iter().next(),
        _ => None,
    });
    match found {
        Some(entry) if !entry.value.is_empty() => SettledChange::Made(entry.create_revision as u64),
        _ => SettledChange::NotMade,
    }
}

impl EtcdStore {
    /// Commits a transaction whose history entry is `entry`. Returns etcd's response, or the revision if the change turned out to
    /// be made.
    pub(super) fn ask_to_change(
        &self,
        request: TxnRequest,
        lifetime: Option<u64>,
        entry: &[u8],
    ) -> Result<CommitAnswer, StoreFailure> {
        let error = match self.ask_within(ANSWER_PATIENCE, |reply| EtcdCommand::Txn(request, lifetime, reply)) {
            Ok(answer) => return Ok(CommitAnswer::Answered(answer)),
            Err(error) => error,
        };
        if !error.may_be_made {
            return Err(StoreFailure::new(
                format!("{} cannot be used: {}", self.name, error.problem),
                "the change was not made: repeat it once etcd can be used",
            ));
        }
        let problem = format!("{} has not confirmed the change: {}", self.name, error.problem);
        Err(match self.settle(entry) {
            Some(SettledChange::Made(revision)) => return Ok(CommitAnswer::Made(revision)),
            Some(SettledChange::NotMade) => {
                StoreFailure::new(problem, "etcd was asked again, and the change was not made: repeat it")
            }
            None => StoreFailure::new(
                problem,
                "it is not known whether the change was made, since etcd did not answer when it was asked that: read the \
                 resource before you repeat the change",
            ),
        })
    }

    /// Finds out whether the transaction with this history entry was made, and makes sure that it is not made later: an empty
    /// entry is put in its place, and then the transaction fails. `None` if etcd does not answer.
    fn settle(&self, entry: &[u8]) -> Option<SettledChange> {
        let deadline = Instant::now() + SETTLE_PATIENCE;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let request = TxnRequest {
                compare: vec![changed_last(entry, CompareResult::Equal, 0)],
                success: vec![put(entry, Vec::new())],
                failure: vec![range_of(entry, false)],
            };
            match self.ask_within(left, |reply| EtcdCommand::Txn(request, None, reply)) {
                Ok(answer) if answer.succeeded => return Some(SettledChange::NotMade),
                Ok(answer) => return Some(settled(answer)),
                Err(_) => thread::sleep(SETTLE_PAUSE.min(left)),
            }
        }
        None
    }
}
