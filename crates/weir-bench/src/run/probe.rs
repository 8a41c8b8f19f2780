//! Asks a target that has just started until it answers as a row needs.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    LoadError,
    plan::{self, LoadDestination},
};
use crate::{
    engine::{self, LoadPlan, LoadResult, RequestTemplate, StopCondition},
    manifest::Pinning,
    result::LoadLevel,
    scenario::{Scenario, ScenarioRow, Speak},
};

/// How long a listening target may take until it answers.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// Sends one request on the first and one on the last route of the row, repeatedly, until both are answered with 2xx: some
/// targets listen before they have read their routes.
///
/// `run` is how a plan is run.
pub(super) fn probe(
    scenario: &Scenario,
    row: &ScenarioRow,
    to: &LoadDestination,
    pinning: &Pinning,
    mut run: impl FnMut(&LoadPlan) -> Result<LoadResult, LoadError>,
) -> Result<(), LoadError> {
    if !row.speak.asks() && row.speak != Speak::Idle {
        return Ok(());
    }
    let level = LoadLevel { connections: 1, rate: None, workers: 1 };
    let whole = plan::load(scenario, row, level, to, pinning, 0);
    let protocol = match &whole.protocol {
        engine::Protocol::Idle { .. } => engine::Protocol::Http1,
        other => other.clone(),
    };
    let requests = &whole.requests;
    // Requests that use values of answers make sense only all together.
    let probed = match requests.iter().any(|request| !request.take.is_empty()) {
        true => vec![requests.clone()],
        false => [0, requests.len() - 1].map(|request| vec![requests[request].clone()]).into(),
    };
    for requests in probed {
        let count = requests.len() as u64;
        let plan = LoadPlan {
            requests,
            protocol: protocol.clone(),
            pacing: engine::Pacing::default(),
            stop: StopCondition::after_count(count),
            warm_up_ms: 0,
            ..whole.clone()
        };
        let deadline = Instant::now() + PROBE_LIMIT;
        loop {
            let result = run(&plan)?;
            let expected = plan.requests.iter().any(RequestTemplate::names_statuses) && result.total.unexpected == 0;
            if result.total.class(2) == count || (expected && result.total.completed == count) {
                break;
            }
            if Instant::now() > deadline {
                let statuses = result.total.statuses.keys().map(|status| format!("status {status}"));
                let causes = result.total.errors.by_cause().into_iter().filter(|(_, count)| *count > 0);
                let seen: Vec<String> = statuses.chain(causes.map(|(cause, _)| cause.to_owned())).collect();
                return Err(LoadError::Refused { url: plan.requests[0].url.clone(), seen });
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}
