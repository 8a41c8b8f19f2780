//! User instructions of a target per request, counted by valgrind: for machines without counters or with noisy clocks. Exact to a
//! few per cent.

use std::{collections::BTreeMap, env, time::Duration};

use super::{
    Found, Lab, RunError,
    cell::{Setting, Started},
    record,
};
use crate::{
    result::{InstructionCount, LoadLevel, TargetRecord},
    scenario::ScenarioRow,
};

/// Two runs that differ only in the number of requests: the difference is the cost of requests, without start and stop.
const REQUESTS: [u64; 2] = [1_280, 6_400];
/// The row's fewest connections, and at most these: with more, the longer run would also open more connections to the backend
/// than the shorter one, and their cost would be counted as cost of requests.
const MOST_CONNECTIONS: u32 = 64;
/// How long a target under valgrind may take to end; valgrind prints the count at the end.
const END_LIMIT: Duration = Duration::from_secs(60);

/// The wrapping command. Valgrind counts each byte of a `rep movsb` as an instruction, unlike processors, so the option makes
/// copies avoid it.
pub(super) fn valgrind() -> Result<Vec<String>, RunError> {
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|directory| directory.join("valgrind").is_file()) {
        return Err(RunError::NoValgrind);
    }
    let words = [
        "env",
        "GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1073741824",
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
        "--trace-children=yes",
        "--max-threads=64",
    ];
    Ok(words.map(str::to_owned).to_vec())
}

impl Lab<'_> {
    /// Counts every row on every target that can run it, at one worker. The counts before an error stay.
    pub fn count_instructions(
        &mut self,
        peers: &BTreeMap<String, Found>,
        records: &mut [TargetRecord],
    ) -> Result<(), RunError> {
        let under = valgrind()?;
        let scenario = self.scenario;
        let asking = scenario.rows.iter().filter(|row| row.speak.asks() && !row.disturbs());
        for (row, target) in asking.flat_map(|row| scenario.targets.iter().map(move |target| (row, target))) {
            let (peer, installed) = &peers[target];
            let settings = scenario.variant(target).has_settings();
            if peer.direct || self.unsupported(row, peer, installed, settings).is_some() {
                continue;
            }
            self.bar.set_message(format!("{} · {target} · under valgrind", row.name));
            let few = self.counted(row, target, &peers[target], &under, REQUESTS[0], records)?;
            let many = self.counted(row, target, &peers[target], &under, REQUESTS[1], records)?;
            let per_request = many.saturating_sub(few) as f64 / (REQUESTS[1] - REQUESTS[0]) as f64;
            self.counts.push(InstructionCount { row: row.name.clone(), target: target.clone(), per_request });
        }
        Ok(())
    }

    /// Instructions of a target from its start to its end, with this number of requests.
    fn counted(
        &mut self,
        row: &ScenarioRow,
        target: &str,
        found: &Found,
        under: &[String],
        requests: u64,
        records: &mut [TargetRecord],
    ) -> Result<u64, RunError> {
        let pinning = self.placement.pinning(1);
        let backend = self.backend(row, 1, &pinning)?;
        let row = &*self.scenario.row_for(target, row);
        let variant = self.scenario.variant(target);
        let connections = self.scenario.levels(row).first().map_or(1, |fewest| MOST_CONNECTIONS.min(*fewest));
        let under = under.to_vec();
        let setting = Setting {
            place: self.place,
            scenario: self.scenario,
            row,
            workers: 1,
            pinning: &pinning,
            variant,
            under,
            logs: self.stores.provide(row, self.place, &pinning.backend)?,
            services: self.services.provide(row, self.place, &pinning.backend)?,
        };
        let started = Started::start(&setting, found, &backend, connections);
        let names = || (target.to_owned(), row.name.clone());
        let mut started = started.map_err(|failure| {
            let (target, row) = names();
            RunError::NotCounted { target, row, reason: failure.reason }
        })?;
        record(records, target, started.configuration.take());
        let level = LoadLevel { connections, rate: None, workers: 1 };
        started.load_count(self.scenario, row, level, requests)?;
        let said = started.end(END_LIMIT);
        instructions(&said).ok_or_else(|| {
            let (target, row) = names();
            RunError::NoCount { target, row, said }
        })
    }
}

/// The sum over all processes of cachegrind's output lines: `==1== I refs:   1,234,567`.
fn instructions(text: &str) -> Option<u64> {
    let counts = text.lines().filter_map(|line| {
        let (_, count) = line.split_once("refs:").filter(|(before, _)| before.trim_end().ends_with('I'))?;
        count.trim().replace(',', "").parse::<u64>().ok()
    });
    counts.reduce(|sum, count| sum + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_processes_are_added_up() {
        assert_eq!(instructions("==7== I refs:        1,200\n==8== I refs:  34\n"), Some(1_234));
        assert_eq!(instructions("==7== I   refs:        1,200\n"), Some(1_200));
        assert_eq!(instructions("nothing"), None);
    }
}
