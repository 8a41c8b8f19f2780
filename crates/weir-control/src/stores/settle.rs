//! Finds out which resources of a trial can be served together: those with faults that may be set aside are, until the rest
//! compiles.

use std::collections::{BTreeMap, BTreeSet};

use super::loader::LoadedDocument;
use super::resources::{ResourceKey, RevisionRecord};
use super::trial::{ChangeTrial, SortedFaults};
use crate::text::diagnostic::{Diagnostic, FaultCause};

/// The most rounds of setting resources aside before the whole document is refused; each round sets at least one aside.
const MOST_ROUNDS: usize = 64;

/// Which faulty resources may be set aside so that the others are served.
pub(super) enum SettlePolicy {
    /// Any: at start, when other nodes have changed resources, and when resources expire.
    Any,
    /// When the node loads again: those that were set aside before, and those that the node's file does not allow any more. A file or a
    /// secret that changes beneath resources that are served takes nothing away.
    Kept { before: BTreeSet<ResourceKey> },
    /// A change of this node: those that were set aside before it, with `forced` all that it does not touch, and those that lack
    /// only something outside of the configuration (see [`FaultCause`]). Faults in the text of the change are its author's.
    Change { before: BTreeSet<ResourceKey>, forced: bool },
}

impl SettlePolicy {
    /// What is served now stays so if something outside has changed: the new state is refused then.
    pub(super) fn of_reload(trial: &ChangeTrial) -> SettlePolicy {
        SettlePolicy::Kept { before: trial.set_aside().keys().cloned().collect() }
    }

    pub(super) fn of_change(trial: &ChangeTrial, forced: bool) -> SettlePolicy {
        SettlePolicy::Change { before: trial.set_aside().keys().cloned().collect(), forced }
    }

    /// Whether a resource may be set aside together with those for which `is_leaving`.
    fn may_leave_out(
        &self,
        trial: &ChangeTrial,
        (key, faults): (&ResourceKey, &[Diagnostic]),
        is_leaving: impl Fn(&ResourceKey) -> bool,
    ) -> bool {
        let is_outside = |fault: &&Diagnostic| fault.cause.is_outside();
        let lacks = |fault: &Diagnostic| match &fault.cause {
            FaultCause::Outside | FaultCause::Away => true,
            // What stands there in place of a value from outside may be wrong as well.
            FaultCause::Text | FaultCause::SameSecret(_) => {
                faults.iter().filter(is_outside).any(|other| fault.path.starts_with(&other.path))
            }
            FaultCause::Missing(other) => ResourceKey::parse(&other.key).is_some_and(|other| is_leaving(&other)),
        };
        match self {
            SettlePolicy::Any => true,
            SettlePolicy::Kept { before } => before.contains(key) || !faults.iter().any(|fault| is_outside(&fault)),
            SettlePolicy::Change { before, forced } => {
                !trial.touches(key) && (*forced || before.contains(key)) || faults.iter().all(lacks)
            }
        }
    }

    /// The faulty resources that may be set aside, each with its first fault.
    fn leaving(&self, trial: &ChangeTrial, sorted: &SortedFaults) -> BTreeMap<ResourceKey, Diagnostic> {
        let mut leaving = BTreeMap::new();
        loop {
            let known = leaving.len();
            for (key, faults) in &sorted.resources {
                let is_leaving = |key: &ResourceKey| leaving.contains_key(key) || trial.set_aside().contains_key(key);
                if self.may_leave_out(trial, (key, faults), is_leaving)
                    && let Some(first) = faults.first()
                {
                    leaving.insert(key.clone(), first.clone());
                }
            }
            if leaving.len() == known {
                return leaving;
            }
        }
    }
}

/// Loads and finishes a trial, again each time that faulty resources were set aside. `finish` compiles a document, with its
/// warnings, and does with it what the trial is for.
///
/// # Errors
/// The faults of what may not be set aside, or those of `finish` that concern no resource.
pub(super) fn settle<T>(
    trial: &mut ChangeTrial,
    policy: &SettlePolicy,
    mut load: impl FnMut(&mut ChangeTrial) -> Result<LoadedDocument, Vec<Diagnostic>>,
    mut finish: impl FnMut(&mut ChangeTrial, &LoadedDocument, Vec<Diagnostic>) -> Result<T, Vec<Diagnostic>>,
) -> Result<(LoadedDocument, T), Vec<Diagnostic>> {
    for _ in 0..MOST_ROUNDS {
        let loaded = load(trial)?;
        let warnings = loaded.warnings.iter().cloned().chain(about_set_aside(trial)).collect();
        let faults = match finish(trial, &loaded, warnings) {
            Ok(finished) => return Ok((loaded, finished)),
            Err(faults) => faults,
        };
        let sorted = trial.sort(&faults);
        let leaving = policy.leaving(trial, &sorted);
        if leaving.is_empty() || !sorted.are_only(&leaving) {
            // Resources that could be set aside are not the reason.
            return Err(sorted.into_all_but(&leaving));
        }
        trial.leave_out(leaving);
    }
    let problem = format!("more than {MOST_ROUNDS} resources that depend on each other are invalid");
    Err(vec![Diagnostic::of_source(&"the store".into(), problem).advise("correct or delete them")])
}

/// A warning for each resource that is set aside, with what takes its place.
pub(super) fn about_set_aside(trial: &ChangeTrial) -> impl Iterator<Item = Diagnostic> {
    trial.set_aside().iter().map(|(key, fault)| Diagnostic {
        problem: format!(
            "{}; the resource stays in the store, and is not served as it is there: {}",
            fault.problem,
            trial.stand_in(key)
        ),
        ..fault.clone()
    })
}

/// Those of the warnings that are about resources that a change has put there. They name resources by their keys.
pub(super) fn receipt_warnings<'w>(
    record: &RevisionRecord,
    warnings: impl IntoIterator<Item = &'w Diagnostic>,
) -> Vec<Diagnostic> {
    let changed: BTreeSet<&str> = record.changes.iter().map(|change| change.key.as_str()).collect();
    let key = |path: &str| path.split_once(": ").map_or(path.len(), |(key, _)| key.len());
    warnings.into_iter().filter(|warning| changed.contains(&warning.path[..key(&warning.path)])).cloned().collect()
}
