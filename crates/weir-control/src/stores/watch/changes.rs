//! Changes of a store's resources: planned, compiled, committed, published. Changes that arrive while others are being made are
//! made together.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::live::{LiveResources, ResourceEdit, SortedFaults};
use super::super::loader::{DocumentLoader, LoadedDocument};
use super::super::resources::{Author, ResourceKey, RevisionRecord};
use super::super::store::{CommitFailure, StoreFailure};
use super::super::writes::{ComparedRequest, PlanRefusal, QueuedWrite, WriteOutcome, WriteReceipt};
use super::{WatchCommand, Watching};
use crate::explain::{RequestDescription, RoutingComparison, RoutingOutcome};
use crate::publish::{Publication, Publisher};
use crate::text::diagnostic::Diagnostic;

/// The most changes made together.
const MOST_TOGETHER: usize = 256;
/// The most rounds of setting resources aside before the whole document is refused; each round sets at least one aside.
const MOST_ROUNDS: usize = 64;

/// The pause after expired resources could not be deleted.
const EXPIRY_RETRY: Duration = Duration::from_secs(10);

/// The most attempts to plan a change again after other nodes have changed the same resources.
const MOST_TRIES: usize = 50;

/// Why a candidate was not published.
enum Rejection {
    Invalid(Vec<Diagnostic>),
    Failed(StoreFailure),
    /// Another node has changed the resources that it is based on.
    MovedOn,
    /// It was a dry run and would have been published. How its requests would be handled.
    OnlyTried(Vec<Result<RoutingOutcome, String>>),
}

/// A change with the revision that it creates.
struct StagedChange {
    write: QueuedWrite,
    record: RevisionRecord,
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
    let Some(live) = loader.live().map(Arc::clone) else {
        let published = publisher.publish(&loaded.document, loaded.revision.clone(), loaded.warnings.clone());
        return published.map(|publication| (loaded, publication));
    };
    let mut candidate = loaded;
    let mut aside = live.set_aside();
    for _ in 0..MOST_ROUNDS {
        let warnings = with_set_aside(&candidate, &aside);
        let attempt = publisher.try_publish(&candidate.document, candidate.revision.clone(), warnings, None);
        let sorted = match attempt {
            Ok(publication) => return Ok((candidate, publication)),
            Err(faults) => live.sort(&faults),
        };
        match sorted.only_resources() {
            Some(found) if !found.is_empty() => {
                live.drop_replacements(found.keys());
                aside.extend(found);
            }
            _ => return Err(publisher.refuse(sorted.into_all())),
        }
        live.put_aside(aside.clone());
        candidate = loader.load().map_err(|faults| publisher.refuse(faults))?;
    }
    Err(publisher
        .refuse(vec![Diagnostic::of_source(loader.source_name(), "too many of the store's resources are invalid")]))
}

/// The warnings of the document, and one for each resource that is set aside.
fn with_set_aside(loaded: &LoadedDocument, aside: &BTreeMap<ResourceKey, Diagnostic>) -> Vec<Diagnostic> {
    let told = aside.values().map(|fault| Diagnostic {
        problem: format!("{}; the resource stays in the store and is not served", fault.problem),
        ..fault.clone()
    });
    loaded.warnings.iter().cloned().chain(told).collect()
}

impl Watching {
    /// Makes a change, together with those queued behind it.
    pub(super) fn change(&mut self, first: QueuedWrite) {
        let Some(live) = self.loader.live().map(Arc::clone) else {
            let failure = StoreFailure::new("the resources are in the configuration file", "change the file");
            return first.answer(WriteOutcome::Failed(failure));
        };
        if live.store().shared().is_some() {
            return self.change_shared(&live, first);
        }
        let writes = self.gathered(first);
        let mut staged = Vec::new();
        for write in writes {
            staged.extend(stage(&live, write));
        }
        if staged.is_empty() {
            return live.drop_trial();
        }
        match self.attempt(&live, &staged) {
            Ok((publication, _)) => answer_all(&live, staged, &publication),
            Err(Rejection::Invalid(_)) if staged.len() > 1 => {
                // One of them is invalid. Each is tried alone, to get its own result.
                live.drop_trial();
                staged.into_iter().for_each(|staged| self.change_alone(&live, staged.write));
            }
            Err(rejection) => {
                live.drop_trial();
                staged.into_iter().for_each(|staged| self.refuse(staged, &rejection));
            }
        }
    }

    fn change_alone(&mut self, live: &LiveResources, write: QueuedWrite) {
        let Some(staged) = stage(live, write) else { return };
        let staged = vec![staged];
        match self.attempt(live, &staged) {
            Ok((publication, _)) => answer_all(live, staged, &publication),
            Err(rejection) => {
                live.drop_trial();
                staged.into_iter().for_each(|staged| self.refuse(staged, &rejection));
            }
        }
    }

    /// Makes a change in a shared store; it is planned again if another node was faster.
    fn change_shared(&mut self, live: &LiveResources, mut write: QueuedWrite) {
        let Some(shared) = live.store().shared() else { return };
        let mut is_fresh = false;
        for _ in 0..MOST_TRIES {
            self.follow_others();
            let Some(planned) = planned(live, &write) else { return write.answer(panicked()) };
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
            let record = live.stage(edits, write.request.author.clone());
            let mut staged = vec![StagedChange { write, record }];
            let rejection = match self.attempt(live, &staged) {
                Ok((publication, revision)) => {
                    revision.into_iter().for_each(|revision| staged[0].record.renumber(revision));
                    return answer_all(live, staged, &publication);
                }
                Err(rejection) => rejection,
            };
            live.drop_trial();
            let one = staged.remove(0);
            match rejection {
                Rejection::MovedOn => drop(shared.catch_up()),
                Rejection::Invalid(_) if !std::mem::replace(&mut is_fresh, true) && shared.catch_up() => {}
                rejection => return self.refuse(one, &rejection),
            }
            write = one.write;
        }
        let failure = StoreFailure::new("other clients keep changing the same resources", "try again in a moment");
        write.answer(WriteOutcome::Failed(failure));
    }

    /// Publishes the changes that other nodes made in a shared store. Faulty resources are set aside, and served as they were
    /// before.
    pub(super) fn follow_others(&mut self) {
        let Some(live) = self.loader.live().map(Arc::clone) else { return };
        if !live.take_outside() {
            return;
        }
        for _ in 0..MOST_ROUNDS {
            let loaded = match self.loader.load() {
                Ok(loaded) => loaded,
                Err(faults) => return drop(self.publisher.refuse(faults)),
            };
            let warnings = with_set_aside(&loaded, &live.set_aside());
            let revision = loaded.revision.clone();
            let mut nothing_to_commit = || Ok(None);
            let published =
                self.publisher.try_publish(&loaded.document, revision, warnings, Some(&mut nothing_to_commit));
            let faults = match published {
                Ok(_) => return self.accept_trial(loaded),
                Err(faults) => faults,
            };
            let sorted = live.sort(&faults);
            match sorted.only_resources() {
                Some(found) if !found.is_empty() => live.leave_out(found),
                _ => return drop(self.publisher.refuse(sorted.into_all())),
            }
        }
    }

    /// Reports when a shared store stops to answer, and when it answers again.
    pub(super) fn report_store(&mut self) {
        let Some(live) = self.loader.live() else { return };
        let Some(state) = live.store().shared().map(|shared| shared.state()) else { return };
        self.publisher.set_store(&state);
        let before = std::mem::replace(&mut self.store, state.clone());
        let store = live.store().name();
        match (state.problem, before.problem) {
            (Some(problem), None) if state.connected => {
                tracing::warn!(%store, %problem, "the configuration store is empty")
            }
            (Some(problem), None) => tracing::warn!(
                %store, %problem,
                "the configuration store does not answer, the last known resources stay in use; it is tried again, and until \
                 it answers, the Admin API makes no changes"
            ),
            (None, Some(_)) => tracing::info!(%store, "the configuration store answers again"),
            _ => {}
        }
    }

    /// Takes the changes that are queued already. A dry run stays alone, and so does a forced change: other changes must not get
    /// its right to break resources.
    fn gathered(&mut self, first: QueuedWrite) -> Vec<QueuedWrite> {
        let mut writes = vec![first];
        while writes.len() < MOST_TOGETHER && !writes.last().is_some_and(QueuedWrite::is_alone) {
            match self.commands.try_recv() {
                Ok(WatchCommand::Write(write)) if write.is_alone() => {
                    self.held.push_back(WatchCommand::Write(write));
                    break;
                }
                Ok(WatchCommand::Write(write)) => writes.push(write),
                Ok(other) => {
                    self.held.push_back(other);
                    break;
                }
                Err(_) => break,
            }
        }
        writes
    }

    /// Compiles the staged changes, commits them, and publishes the result.
    fn attempt(
        &mut self,
        live: &LiveResources,
        staged: &[StagedChange],
    ) -> Result<(Publication, Option<u64>), Rejection> {
        let touched: BTreeSet<ResourceKey> =
            staged.iter().flat_map(|staged| &staged.record.changes).map(|change| change.key.clone()).collect();
        let forced = staged.iter().any(|staged| staged.write.request.forced);
        // A dry run is alone.
        let requests = staged.first().map(|staged| &staged.write.request).filter(|request| request.dry_run);
        let requests = requests.map(|request| &*request.requests);
        let before = live.set_aside();
        // Resources set aside are tried again, since the change may add what they lacked.
        live.put_aside(BTreeMap::new());
        let published = self.attempt_setting_aside(live, requests, |key| {
            !touched.contains(key) && (forced || before.contains_key(key))
        });
        match published {
            Ok((loaded, publication, revision)) => {
                self.accept_trial(loaded);
                Ok((publication, revision))
            }
            Err(rejection) => {
                live.put_aside(before);
                Err(rejection)
            }
        }
    }

    /// With `tried`, the requests of a dry run, nothing is committed.
    fn attempt_setting_aside(
        &mut self,
        live: &LiveResources,
        tried: Option<&[RequestDescription]>,
        may_be_set_aside: impl Fn(&ResourceKey) -> bool,
    ) -> Result<(LoadedDocument, Publication, Option<u64>), Rejection> {
        let mut aside = BTreeMap::new();
        loop {
            let loaded = self.loader.load().map_err(Rejection::Invalid)?;
            let (mut rejection, mut revision) = (None, None);
            let mut commit = || {
                let committed = match tried {
                    Some(_) => Err(Rejection::OnlyTried(Vec::new())),
                    None => live.commit().map_err(|failure| match failure {
                        CommitFailure::MovedOn => Rejection::MovedOn,
                        CommitFailure::Failed(failure) => Rejection::Failed(failure),
                    }),
                };
                let committed = committed.map_err(|rejected| rejection = Some(rejected));
                revision = committed.unwrap_or_default();
                if committed.is_ok() { Ok(revision) } else { Err(Vec::new()) }
            };
            let warnings = with_set_aside(&loaded, &aside);
            let published =
                self.publisher.try_publish(&loaded.document, loaded.revision.clone(), warnings, Some(&mut commit));
            let faults = match published {
                Ok(publication) => return Ok((loaded, publication, revision)),
                Err(faults) => faults,
            };
            if let Some(rejection) = rejection {
                let outcomes = tried.map(|requests| self.publisher.outcomes(&loaded.document, requests));
                return Err(outcomes
                    .map_or(rejection, |outcomes| outcomes.map_or_else(Rejection::Invalid, Rejection::OnlyTried)));
            }
            let sorted = live.sort(&faults);
            match acceptable(&sorted, &may_be_set_aside) {
                Some(found) => {
                    live.drop_replacements(found.keys());
                    aside.extend(found);
                }
                // Resources that could be set aside are not the reason.
                None => return Err(Rejection::Invalid(sorted.into_all_but(&may_be_set_aside))),
            }
            live.put_aside(aside.clone());
        }
    }

    /// Answers a change that was not made.
    fn refuse(&mut self, staged: StagedChange, rejection: &Rejection) {
        let StagedChange { write, record } = staged;
        let outcome = match rejection {
            Rejection::Invalid(diagnostics) => WriteOutcome::Invalid(diagnostics.clone()),
            Rejection::Failed(failure) => WriteOutcome::Failed(failure.clone()),
            Rejection::MovedOn => {
                let problem = "another client has changed the same resources";
                WriteOutcome::Failed(StoreFailure::new(problem, "try again in a moment"))
            }
            Rejection::OnlyTried(after) => match self.compared(&write.request.requests, after) {
                Ok(compared) => {
                    WriteOutcome::Applied(WriteReceipt { record, publication: 0, set_aside: Vec::new(), compared })
                }
                Err(diagnostics) => WriteOutcome::Invalid(diagnostics),
            },
        };
        write.answer(outcome);
    }

    /// Compares how requests are handled now with `after`, how they would be handled.
    fn compared(
        &mut self,
        requests: &[RequestDescription],
        after: &[Result<RoutingOutcome, String>],
    ) -> Result<Vec<ComparedRequest>, Vec<Diagnostic>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.loader.load()?;
        let before = self.publisher.outcomes(&now.document, requests)?;
        let both = requests.iter().zip(before).zip(after);
        Ok(both
            .map(|((request, before), after)| {
                let malformed = |problem: String| (request.clone(), problem);
                let before = before.map_err(malformed)?;
                let after = after.clone().map_err(malformed)?;
                Ok(RoutingComparison { request: request.clone(), before, after })
            })
            .collect())
    }

    /// Deletes expired resources.
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
        let edits = expired.into_iter().map(|key| ResourceEdit::Delete { key }).collect();
        live.stage(edits, author);
        let before = live.set_aside();
        live.put_aside(BTreeMap::new());
        match self.attempt_setting_aside(&live, None, |_| true) {
            Ok((loaded, ..)) => {
                self.expiry_failed_at = None;
                self.accept_trial(loaded);
            }
            Err(rejection) => {
                live.drop_trial();
                live.put_aside(before);
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

/// The resources to set aside so that the others can be served. `None` if there is any other fault.
fn acceptable(
    sorted: &SortedFaults,
    may_be_set_aside: &impl Fn(&ResourceKey) -> bool,
) -> Option<BTreeMap<ResourceKey, Diagnostic>> {
    let found = sorted.only_resources()?;
    (!found.is_empty() && found.keys().all(may_be_set_aside)).then_some(found)
}

/// Plans a change on the committed and staged resources. A refusal is replied to at once.
fn stage(live: &LiveResources, write: QueuedWrite) -> Option<StagedChange> {
    match planned(live, &write) {
        Some(Ok(edits)) => {
            let record = live.stage(edits, write.request.author.clone());
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
fn planned(live: &LiveResources, write: &QueuedWrite) -> Option<Result<Vec<ResourceEdit>, PlanRefusal>> {
    live.view(|view| catch_unwind(AssertUnwindSafe(|| (write.request.plan)(view))).ok())
}

fn panicked() -> WriteOutcome {
    let advice = "nothing was changed; please report the request and what the error log says of it";
    WriteOutcome::Failed(StoreFailure::new("internal error: the change could not be planned", advice))
}

fn answer_all(live: &LiveResources, staged: Vec<StagedChange>, publication: &Publication) {
    let set_aside: Vec<Diagnostic> = live.set_aside().into_values().collect();
    for StagedChange { write, record } in staged {
        let set_aside = if write.request.forced { set_aside.clone() } else { Vec::new() };
        write.answer(WriteOutcome::Applied(WriteReceipt {
            record,
            publication: publication.revision,
            set_aside,
            compared: Vec::new(),
        }));
    }
}
