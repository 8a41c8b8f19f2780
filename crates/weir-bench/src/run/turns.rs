//! Runs started targets at one level: each once, or all of them in turns.

use std::{borrow::Cow, fmt};

use super::{
    Lab, NoRate, RunError,
    backend::RunningBackends,
    cell::{MoreSamples, RunTask, Started},
};
use crate::{
    result::{HostSample, Instructions, LoadLevel, MeasuredRun, ProcessSample, SliceFigures},
    run::plan::CellGroup,
    scenario::ScenarioRow,
    target::ProcessEnded,
};

/// A target that was started for a row.
pub struct StartedTarget<'a> {
    group: &'a CellGroup,
    row: Cow<'a, ScenarioRow>,
    started: Started,
    /// The measurements at this level so far.
    run: Option<MeasuredRun>,
    /// Why this level, or the target as a whole, has ended.
    ended: Option<LevelEnd>,
}

enum LevelEnd {
    NoRate(NoRate),
    Failed(ProcessEnded),
}

impl fmt::Display for LevelEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LevelEnd::NoRate(no_rate) => no_rate.fmt(f),
            LevelEnd::Failed(ended) => ended.fmt(f),
        }
    }
}

impl<'a> StartedTarget<'a> {
    pub fn new(group: &'a CellGroup, row: Cow<'a, ScenarioRow>, started: Started) -> StartedTarget<'a> {
        StartedTarget { group, row, started, run: None, ended: None }
    }
}

impl Lab<'_> {
    /// Runs one level on all started targets. Every second round is in reverse order, so that changes of the machine and effects
    /// of a predecessor affect all targets alike. Failed targets are removed.
    pub fn level(
        &mut self,
        up: &mut Vec<StartedTarget<'_>>,
        level: LoadLevel,
        repeat: u32,
        backend: &mut RunningBackends,
    ) -> Result<(), RunError> {
        let first = self.order;
        self.order += up.len() as u32;
        for round in 0..self.scenario.method.slices {
            for step in 0..up.len() {
                let index = if round % 2 == 0 { step } else { up.len() - 1 - step };
                if up[index].ended.is_none() {
                    self.turn(&mut up[index], level, repeat, first + index as u32, backend)?;
                }
            }
        }
        for one in up.iter_mut() {
            let run = one.run.take();
            match &one.ended {
                Some(end) => self.cell(one.group, level, |cell| cell.fail(end.to_string())),
                None => {
                    let (rss_after_bytes, memory_after) = one.started.settled_memory().unzip();
                    let memory_after = memory_after.flatten();
                    let run = run.map(|run| MeasuredRun { rss_after_bytes, memory_after, ..run });
                    self.cell(one.group, level, |cell| run.into_iter().for_each(|run| cell.add(run)));
                }
            }
            self.bar.inc(1);
        }
        up.retain(|one| !matches!(one.ended, Some(LevelEnd::Failed(_))));
        up.iter_mut().for_each(|one| one.ended = None);
        Ok(())
    }

    fn turn(
        &self,
        one: &mut StartedTarget<'_>,
        level: LoadLevel,
        repeat: u32,
        order: u32,
        backend: &mut RunningBackends,
    ) -> Result<(), RunError> {
        let rate = match one.row.rate_of.as_ref().map(|rate_of| self.rate_of(rate_of, repeat)) {
            None => level.rate,
            Some(Ok(rate)) => Some(rate),
            Some(Err(no_rate)) => {
                one.ended = Some(LevelEnd::NoRate(no_rate));
                return Ok(());
            }
        };
        let task = RunTask {
            scenario: self.scenario,
            row: &one.row,
            level: LoadLevel { rate, ..level },
            repeat,
            order,
            seed: self.options.seed ^ u64::from(repeat),
            more: MoreSamples { counters: self.counters, stacks: self.options.flame_graph },
            tell: &|words| self.bar.suspend(|| eprintln!("weir bench: {words}")),
        };
        match one.started.measure(task, backend, &self.options.stop)? {
            Err(ended) => one.ended = Some(LevelEnd::Failed(ended)),
            Ok(run) => match &mut one.run {
                None => one.run = Some(run),
                Some(whole) => whole.follow(run),
            },
        }
        Ok(())
    }
}

impl MeasuredRun {
    /// Adds the next turn of the same target at the same level, as if the turns had followed without a gap.
    fn follow(&mut self, next: MeasuredRun) {
        if self.slices.is_empty() {
            self.slices.push(self.slice());
        }
        self.slices.push(next.slice());
        self.load.follow(&next.load);
        for (ours, theirs) in self.processes.iter_mut().zip(next.processes) {
            let Some(last) = ours.samples.last().copied() else { continue };
            ours.samples.extend(theirs.samples.into_iter().map(|sample| ProcessSample {
                at_s: last.at_s + sample.at_s,
                cpu_user_s: last.cpu_user_s + sample.cpu_user_s,
                cpu_system_s: last.cpu_system_s + sample.cpu_system_s,
                run_delay_s: last.run_delay_s + sample.run_delay_s,
                worker_cpu_s: last.worker_cpu_s.zip(sample.worker_cpu_s).map(|(before, more)| before + more),
                switches_voluntary: last.switches_voluntary + sample.switches_voluntary,
                switches_involuntary: last.switches_involuntary + sample.switches_involuntary,
                ended: last.ended + sample.ended,
                ..sample
            }));
        }
        if let Some(last) = self.host.last().copied() {
            self.host.extend(next.host.into_iter().map(|sample| HostSample {
                at_s: last.at_s + sample.at_s,
                cpu_busy_s: last.cpu_busy_s + sample.cpu_busy_s,
                cpu_interrupts_s: last.cpu_interrupts_s + sample.cpu_interrupts_s,
                cpu_idle_s: last.cpu_idle_s + sample.cpu_idle_s,
                cpu_steal_s: last.cpu_steal_s + sample.cpu_steal_s,
                retransmits: last.retransmits + sample.retransmits,
                listen_overflows: last.listen_overflows + sample.listen_overflows,
                active_opens: last.active_opens + sample.active_opens,
                passive_opens: last.passive_opens + sample.passive_opens,
                oom_kills: last.oom_kills + sample.oom_kills,
                ..sample
            }));
        }
        if let (Some(ours), Some(theirs)) = (&mut self.interruptions, &next.interruptions) {
            ours.add(theirs);
        }
        self.target_errors.extend(next.target_errors);
        self.instructions = self
            .instructions
            .zip(next.instructions)
            .map(|(ours, theirs)| Instructions { user: ours.user + theirs.user, kernel: ours.kernel + theirs.kernel });
        self.records = self.records.zip(next.records).map(|(ours, theirs)| ours.and(theirs));
        self.stacks.follow(next.stacks);
        self.rss_after_bytes = next.rss_after_bytes;
        self.memory_after = next.memory_after;
    }

    fn slice(&self) -> SliceFigures {
        SliceFigures {
            rps: self.throughput(),
            target_cpu_us: self.target_cpu_us(),
            worker_cpu_us: self.worker_cpu_us(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{LoadPlan, LoadResult, StopCondition},
        result::{Process, ProcessRole},
    };

    /// A turn of one second with `completed` requests, each of which cost the target 10 µs.
    fn turn(completed: u64, started_unix_ns: u64) -> MeasuredRun {
        let mut load = LoadResult {
            started_unix_ns,
            warm_up_ns: 0,
            measured_ns: 1_000_000_000,
            drain_ns: 0,
            completed_in_time: None,
            total: Default::default(),
            requests: Vec::new(),
            intervals: Vec::new(),
            connections: Default::default(),
            flow: None,
            generator: Default::default(),
        };
        load.total.completed = completed;
        load.connections.open_max = 32;
        let used = |at_s: f64| ProcessSample { at_s, cpu_user_s: at_s * completed as f64 * 1e-5, ..Default::default() };
        let target = Process {
            role: ProcessRole::Target,
            name: "weir".to_owned(),
            cpus: vec![0],
            samples: vec![used(0.0), used(1.0)],
        };
        let host = |at_s: f64| HostSample { at_s, cpu_steal_s: at_s * 0.1, ..Default::default() };
        MeasuredRun {
            repeat: 0,
            order: 0,
            started_at: String::new(),
            plan: LoadPlan::closed("http://localhost:1/", 32, StopCondition::after_ms(1_000)),
            load,
            slices: Vec::new(),
            generator_cpus: vec![1],
            generators: Vec::new(),
            processes: vec![target],
            host: vec![host(0.0), host(1.0)],
            target_errors: Vec::new(),
            instructions: None,
            records: None,
            route_changes: None,
            fan_out: None,
            new_clients: None,
            rss_before_bytes: None,
            target_files: None,
            interruptions: None,
            rss_after_bytes: None,
            memory_after: None,
            stacks: Default::default(),
        }
    }

    #[test]
    fn turns_add_up_to_one_run() {
        let mut whole = turn(1_000, 0);
        whole.follow(turn(3_000, 5_000_000_000));
        whole.follow(turn(2_000, 9_000_000_000));
        assert_eq!((whole.throughput(), whole.measured_s()), (2_000.0, 3.0));
        assert!((whole.target_cpu_us().unwrap() - 10.0).abs() < 1e-9);
        assert_eq!(whole.processes[0].span_s(), 3.0);
        assert!((whole.host.last().unwrap().cpu_steal_s - 0.3).abs() < 1e-9);
        assert_eq!(whole.load.connections.open_max, 32);
        assert_eq!(whole.slices.iter().map(|turn| turn.rps).collect::<Vec<_>>(), [1_000.0, 3_000.0, 2_000.0]);
        assert!(whole.slices.iter().all(|turn| (turn.target_cpu_us.unwrap() - 10.0).abs() < 1e-9));
    }
}
