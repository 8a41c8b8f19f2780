//! Changes of a store's resources: planned, compiled, committed, published. Changes that arrive while others are being made are
//! made together, up to a bound, so that the authors of others do not wait for long.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_plugin::pattern_budget;

use super::super::live::{LiveResources, ResourceEdit};
use super::super::loader::{DocumentLoader, LoadedDocument};
use super::super::resources::{Author, PendingResources, ResourceKey, ResourceView, RevisionRecord};
use super::super::settle::{SettlePolicy, receipt_warnings, settle};
use super::super::store::{CommitFailure, StoreFailure};
use super::super::trial::ChangeTrial;
use super::super::writes::{PlanRefusal, QueuedWrite, WriteOutcome, WriteReceipt};
use super::Watching;
use crate::doubts::{self, PutResource};
use crate::publish::{Commit, Publication, Publisher};
use crate::text::diagnostic::Diagnostic;

/// The most changes made together.
const MOST_TOGETHER: usize = 256;
/// No more changes are made together with those whose resources, before and after, have this many bytes.
const MOST_BYTES_TOGETHER: u64 = 1 << 20;
/// No more changes are made together with those that took this long to plan.
const MOST_PLANNING: Duration = Duration::from_millis(50);
/// The pause after expired resources could not be deleted.
const EXPIRY_RETRY: Duration = Duration::from_secs(10);

/// The most attempts to plan a change again after other nodes have changed the same resources.
const MOST_TRIES: usize = 50;

/// Why a candidate was not published.
enum Rejection {
    Invalid(Vec<Diagnostic>),
    TooCostly(usize),
    Failed(StoreFailure),
    /// Another node has changed the resources that it is based on.
    MovedOn,
}

/// A change with the revision that it creates.
struct StagedChange {
    write: QueuedWrite,
    record: RevisionRecord,
}

/// A trial that was committed and published.
struct PublishedTrial {
    publication: Publication,
    /// The revision that the store has given it.
    revision: Option<u64>,
    set_aside: BTreeMap<ResourceKey, Diagnostic>,
    /// What is accepted in the resources of each change and probably not intended. The warnings of the publication are not among them.
    doubts: Vec<Vec<Diagnostic>>,
}

/// Publishes a loaded document. Faulty resources of a store are set aside, each with a warning; in a file, any fault makes the
/// whole document refused.
///
/// # Errors
/// The faults of the document, which have been reported as well.
pub fn publish_first(
    loader: &mut DocumentLoader,
    loaded: LoadedDocument,
    publisher: &Publisher,
) -> Result<(LoadedDocument, Publication), Arc<[Diagnostic]>> {
    publish_loaded(loader, loaded, publisher, &SettlePolicy::Any)
}

/// Publishes a loaded document; of its resources, those are set aside that `policy` allows.
///
/// # Errors
/// As [`publish_first`].
pub(super) fn publish_loaded(
    loader: &mut DocumentLoader,
    mut loaded: LoadedDocument,
    publisher: &Publisher,
    policy: &SettlePolicy,
) -> Result<(LoadedDocument, Publication), Arc<[Diagnostic]>> {
    let Some(mut trial) = loaded.trial.take() else {
        let published = publisher.publish(&loaded.document, loaded.revision.clone(), loaded.warnings.clone());
        return published.map(|publication| (loaded, publication));
    };
    let mut first = Some(loaded);
    let load = |trial: &mut ChangeTrial| first.take().map_or_else(|| loader.load_trial(Some(trial)), Ok);
    let published = settle(&mut trial, policy, load, |trial, loaded, warnings| {
        // There is nothing to write to the store, so this cannot fail.
        let named = |warning| loaded.named(warning);
        let publication = publisher.try_publish(&loaded.document, loaded.revision.clone(), (warnings, &named), None)?;
        let _ = trial.commit();
        Ok(publication)
    });
    published.map_err(|faults| publisher.refuse(faults))
}

impl Watching {
    /// Makes the changes whose turn it is.
    pub(super) fn change(&mut self) {
        self.receive();
        let Some(first) = self.queue.begin_turn() else { return };
        let Some(live) = self.loader.live().map(Arc::clone) else {
            let failure = StoreFailure::new("the resources are in the configuration file", "change the file");
            return first.answer(WriteOutcome::Failed(failure));
        };
        self.loader.retry_secrets();
        if live.store().shared().is_some() {
            return self.change_shared(&live, first);
        }
        let (trial, staged) = self.stage_turn(&live, first);
        if staged.is_empty() {
            return;
        }
        match self.attempt(trial, &staged) {
            Ok(published) => published.answer_all(staged),
            // One of them is invalid. Each is tried alone, in its turn, to get its own result.
            Err(Rejection::Invalid(_) | Rejection::TooCostly(_)) if staged.len() > 1 => {
                self.queue.put_back(staged.into_iter().map(|staged| staged.write));
            }
            Err(rejection) => staged.into_iter().for_each(|staged| refuse(staged.write, &rejection)),
        }
    }

    /// Stages a change, and further ones of the same turn as long as they do not delay the next turn much.
    fn stage_turn(&mut self, live: &Arc<LiveResources>, first: QueuedWrite) -> (ChangeTrial, Vec<StagedChange>) {
        let (mut trial, began) = (live.begin(), Instant::now());
        let (mut staged, mut bytes, mut next) = (Vec::new(), 0, Some(first));
        while let Some(write) = next {
            if let Some(change) = stage(&mut trial, write) {
                bytes += change.record.bytes();
                staged.push(change);
            }
            let has_room = staged.len() < MOST_TOGETHER && bytes < MOST_BYTES_TOGETHER;
            let goes_on = has_room && began.elapsed() < MOST_PLANNING;
            next = if goes_on { self.queue.next_of_turn() } else { None };
        }
        (trial, staged)
    }

    /// Makes a change in a shared store; it is planned again if another node was faster.
    fn change_shared(&mut self, live: &Arc<LiveResources>, mut write: QueuedWrite) {
        let Some(shared) = live.store().shared() else { return };
        let mut is_fresh = false;
        for _ in 0..MOST_TRIES {
            self.follow_others();
            let mut trial = live.begin();
            let Some(planned) = planned(&trial, &write) else { return write.answer(panicked()) };
            let edits = match planned {
                Ok(edits) => edits,
                Err(refusal) => {
                    // The refusal may be based on outdated resources.
                    if !std::mem::replace(&mut is_fresh, true) && shared.catch_up() {
                        continue;
                    }
                    return write.answer(WriteOutcome::Refused(refusal));
                }
            };
            let record = trial.stage(edits, write.request.author.clone());
            let mut staged = vec![StagedChange { write, record }];
            let rejection = match self.attempt(trial, &staged) {
                Ok(published) => {
                    published.revision.into_iter().for_each(|revision| staged[0].record.renumber(revision));
                    return published.answer_all(staged);
                }
                Err(rejection) => rejection,
            };
            write = staged.remove(0).write;
            match rejection {
                Rejection::MovedOn => drop(shared.catch_up()),
                Rejection::Invalid(_) if !std::mem::replace(&mut is_fresh, true) && shared.catch_up() => {}
                rejection => return refuse(write, &rejection),
            }
        }
        let failure = StoreFailure::new("other clients keep changing the same resources", "try again in a moment");
        write.answer(WriteOutcome::Failed(failure));
    }

    /// Publishes the changes that other nodes made in a shared store. Faulty resources are set aside, and served as they were
    /// before. Resources set aside are tried again, since a change may have added what they lacked.
    pub(super) fn follow_others(&mut self) {
        let Some(live) = self.loader.live().map(Arc::clone) else { return };
        if !live.take_outside() {
            return;
        }
        let mut trial = live.begin();
        let before = trial.set_aside().clone();
        trial.retry_set_aside();
        let load = |trial: &mut ChangeTrial| self.loader.load_trial(Some(trial));
        let published = settle(&mut trial, &SettlePolicy::Any, load, |trial, loaded, warnings| {
            let mut nothing_to_commit = || Ok(None);
            let commit: Option<&mut Commit<'_>> = Some(&mut nothing_to_commit);
            let named = |warning| loaded.named(warning);
            self.publisher.try_publish(&loaded.document, loaded.revision.clone(), (warnings, &named), commit)?;
            for (resource, fault) in trial.set_aside().iter().filter(|(key, _)| !before.contains_key(*key)) {
                tracing::warn!(
                    %resource, member = fault.path.split_once(": ").map_or("", |(_, member)| member), problem = %fault.problem,
                    "a resource that another writer has changed cannot be served as it is; {}", trial.stand_in(resource)
                );
            }
            // There is nothing to write to the store, so this cannot fail.
            let _ = trial.commit();
            Ok(())
        });
        match published {
            Ok((loaded, ())) => self.accept_trial(loaded),
            Err(faults) => drop(self.publisher.refuse(faults)),
        }
    }

    /// Reports when a shared store stops to answer, and when it answers again.
    pub(super) fn report_store(&mut self) {
        let Some(live) = self.loader.live() else { return };
        let Some(state) = live.store().shared().map(|shared| shared.state()) else { return };
        self.publisher.set_store(&state);
        let before = std::mem::replace(&mut self.store, state.clone());
        let store = live.store().name();
        let is_told = before.problem.is_some() && before.connected == state.connected;
        match (state.problem, before.problem) {
            (Some(_), _) if is_told => {}
            (Some(problem), _) if state.connected => tracing::warn!(
                %store, %problem,
                "the configuration store is reached and has lost its resources; the last known ones stay in use, and from the first \
                 resource that is written on, nodes serve what the store holds and nothing else"
            ),
            (Some(problem), _) => tracing::warn!(
                %store, %problem,
                "the configuration store does not answer, the last known resources stay in use; it is tried again, and until \
                 it answers, the Admin API makes no changes"
            ),
            (None, Some(_)) => tracing::warn!(%store, "the configuration store answers again"),
            _ => {}
        }
    }

    /// Compiles the staged changes, commits them, and publishes the result.
    fn attempt(&mut self, trial: ChangeTrial, staged: &[StagedChange]) -> Result<PublishedTrial, Rejection> {
        let forced = staged.iter().any(|staged| staged.write.request.forced);
        let pattern_bytes = staged.iter().map(|staged| staged.write.request.pattern_bytes).max().unwrap_or_default();
        let policy = SettlePolicy::of_change(&trial, forced);
        let (settled, is_spent) = pattern_budget::within(pattern_bytes, || self.publish_trial(trial, &policy, staged));
        settled.map_err(|rejection| if is_spent { Rejection::TooCostly(pattern_bytes) } else { rejection })
    }

    /// Publishes and commits a trial. Resources set aside are tried again, since the change may add what they lacked.
    fn publish_trial(
        &mut self,
        mut trial: ChangeTrial,
        policy: &SettlePolicy,
        staged: &[StagedChange],
    ) -> Result<PublishedTrial, Rejection> {
        trial.retry_set_aside();
        let (mut rejection, mut revision) = (None, None);
        let load = |trial: &mut ChangeTrial| self.loader.load_trial(Some(trial));
        let published = settle(&mut trial, policy, load, |trial, loaded, warnings| {
            let set_aside = trial.set_aside().clone();
            let mut commit = || {
                // With a spent budget a resource may have been set aside that is not faulty.
                let committed = match pattern_budget::is_spent() {
                    true => Err(Rejection::TooCostly(0)),
                    false => trial.commit().map_err(|failure| match failure {
                        CommitFailure::MovedOn => Rejection::MovedOn,
                        CommitFailure::Failed(failure) => Rejection::Failed(failure),
                    }),
                };
                revision = committed.map_err(|rejected| rejection = Some(rejected)).map_err(|()| Vec::new())?;
                Ok(revision)
            };
            let commit: Option<&mut Commit<'_>> = Some(&mut commit);
            let named = |warning| loaded.named(warning);
            let publication =
                self.publisher.try_publish(&loaded.document, loaded.revision.clone(), (warnings, &named), commit)?;
            Ok((publication, set_aside))
        });
        match (published, rejection) {
            (Ok((loaded, (publication, set_aside))), _) => {
                let registry = self.publisher.registry();
                // Each change by itself: its author may not see the resources of the others.
                let doubts = staged.iter().map(|staged| {
                    // What stands in for a resource that is set aside is not what its author has written.
                    let changes = staged.record.changes.iter().filter(|change| !set_aside.contains_key(&change.key));
                    let put = changes.filter_map(|change| Some((&change.key, change.after.as_ref()?)));
                    let put = put.map(|(key, after)| PutResource { list: key.list(), id: key.id(), json: &after.json });
                    let put: Vec<PutResource> = put.collect();
                    let doubts = doubts::about_resources(&loaded.document, &registry, &put);
                    doubts.into_iter().map(|doubt| loaded.named(doubt)).collect()
                });
                let doubts = doubts.collect();
                self.accept_trial(loaded);
                Ok(PublishedTrial { publication, revision, set_aside, doubts })
            }
            (Err(_), Some(rejection)) => Err(rejection),
            (Err(faults), None) => Err(Rejection::Invalid(faults)),
        }
    }

    /// Deletes expired resources; with a consumer also its credentials.
    pub(super) fn remove_expired(&mut self) {
        let Some(live) = self.loader.live().map(Arc::clone) else { return };
        if self.expiry_failed_at.is_some_and(|at| at.elapsed() < EXPIRY_RETRY) {
            return;
        }
        let expired = live.expired();
        if expired.is_empty() {
            return;
        }
        let author = Author { name: "ttl".to_owned(), ..Author::default() };
        let (set, nothing) = (live.committed(), PendingResources::new());
        let view = ResourceView { set: &set, pending: &nothing, revision: set.revision };
        let credentials: Vec<ResourceKey> = expired.iter().flat_map(|key| view.credentials(key)).collect();
        let gone: BTreeSet<ResourceKey> = expired.into_iter().chain(credentials).collect();
        let edits = gone.into_iter().map(|key| ResourceEdit::Delete { key }).collect();
        let mut trial = live.begin();
        trial.stage(edits, author);
        match self.publish_trial(trial, &SettlePolicy::Any, &[]) {
            Ok(_) => self.expiry_failed_at = None,
            Err(rejection) => {
                // It is tried again, so only the first failure is reported.
                let is_known = self.expiry_failed_at.replace(Instant::now()).is_some();
                if let Rejection::Failed(failure) = rejection
                    && !is_known
                {
                    tracing::error!(problem = %failure, "expired resources cannot be deleted from the store; it is tried again");
                }
            }
        }
    }
}

/// Answers a change that was not made.
fn refuse(write: QueuedWrite, rejection: &Rejection) {
    write.answer(match rejection {
        Rejection::Invalid(diagnostics) => WriteOutcome::Invalid(diagnostics.clone()),
        Rejection::TooCostly(bytes) => WriteOutcome::TooCostly(*bytes),
        Rejection::Failed(failure) => WriteOutcome::Failed(failure.clone()),
        Rejection::MovedOn => {
            let problem = "another client has changed the same resources";
            WriteOutcome::Failed(StoreFailure::new(problem, "try again in a moment"))
        }
    });
}

/// Plans a change on the committed and staged resources. A refusal is replied to at once.
fn stage(trial: &mut ChangeTrial, write: QueuedWrite) -> Option<StagedChange> {
    match planned(trial, &write) {
        Some(Ok(edits)) => {
            let record = trial.stage(edits, write.request.author.clone());
            Some(StagedChange { write, record })
        }
        Some(Err(refusal)) => {
            write.answer(WriteOutcome::Refused(refusal));
            None
        }
        None => {
            write.answer(panicked());
            None
        }
    }
}

/// The edits of a change; `None` if its plan panics, which must not end the thread that makes all changes.
fn planned(trial: &ChangeTrial, write: &QueuedWrite) -> Option<Result<Vec<ResourceEdit>, PlanRefusal>> {
    catch_unwind(AssertUnwindSafe(|| (write.request.plan)(&trial.view()))).ok()
}

fn panicked() -> WriteOutcome {
    let advice = "nothing was changed; please report the request and what the error log says of it";
    WriteOutcome::Failed(StoreFailure::new("internal error: the change could not be planned", advice))
}

impl PublishedTrial {
    fn answer_all(self, staged: Vec<StagedChange>) {
        let PublishedTrial { publication, set_aside, doubts, .. } = self;
        for (StagedChange { write, record }, doubts) in staged.into_iter().zip(doubts) {
            let is_changed = |key: &ResourceKey| record.changes.iter().any(|change| change.key == *key);
            let of_change = set_aside.iter().filter(|(key, _)| write.request.forced || is_changed(key));
            let of_change = of_change.map(|(_, fault)| fault.clone()).collect();
            let warnings = receipt_warnings(&record, publication.warnings.iter().chain(&doubts));
            write.answer(WriteOutcome::Applied(WriteReceipt {
                record,
                publication: publication.revision,
                set_aside: of_change,
                warnings,
                compared: Vec::new(),
            }));
        }
    }
}
