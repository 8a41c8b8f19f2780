//! Targets that are up, loaded at one level: each once, or all of them in turns.

use std::borrow::Cow;

use super::{
    Lab,
    backend::Running,
    cell::{Started, Task},
};
use crate::{
    plan::Group,
    result::{Level, Run},
    scenario::Row,
};

/// A target that is up for a row.
pub struct Up<'a> {
    group: &'a Group,
    row: Cow<'a, Row>,
    started: Started,
    /// What has been measured at the level so far.
    run: Option<Run>,
    /// Why there will be no more at this level, or at none of them.
    ended: Option<Ended>,
}

enum Ended {
    NoRate(String),
    Failed(String),
}

impl<'a> Up<'a> {
    pub fn new(group: &'a Group, row: Cow<'a, Row>, started: Started) -> Up<'a> {
        Up { group, row, started, run: None, ended: None }
    }
}

impl Lab<'_> {
    /// One level of all that are up. Every second round goes backwards, so that what the machine does meanwhile, and who
    /// comes after whom, meets all alike. Targets that fail are taken out.
    pub fn level(
        &mut self,
        up: &mut Vec<Up<'_>>,
        level: Level,
        repeat: u32,
        backend: &mut Running,
    ) -> Result<(), String> {
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
                Some(Ended::NoRate(reason) | Ended::Failed(reason)) => {
                    self.cell(one.group, level, |cell| cell.fail(reason.clone()));
                }
                None => {
                    let run = run.map(|run| Run { rss_after_bytes: one.started.settled_bytes(), ..run });
                    self.cell(one.group, level, |cell| run.into_iter().for_each(|run| cell.add(run)));
                }
            }
            self.bar.inc(1);
        }
        up.retain(|one| !matches!(one.ended, Some(Ended::Failed(_))));
        up.iter_mut().for_each(|one| one.ended = None);
        Ok(())
    }

    fn turn(
        &self,
        one: &mut Up<'_>,
        level: Level,
        repeat: u32,
        order: u32,
        backend: &mut Running,
    ) -> Result<(), String> {
        let rate = match one.row.rate_of.as_ref().map(|rate_of| self.rate_of(rate_of, repeat)) {
            None => level.rate,
            Some(Ok(rate)) => Some(rate),
            Some(Err(reason)) => {
                one.ended = Some(Ended::NoRate(reason));
                return Ok(());
            }
        };
        let task = Task {
            scenario: self.scenario,
            row: &one.row,
            level: Level { rate, ..level },
            repeat,
            order,
            seed: self.options.seed ^ u64::from(repeat),
            counters: self.counters,
        };
        match one.started.measure(task, backend, &self.options.stop)? {
            Err(reason) => one.ended = Some(Ended::Failed(reason)),
            Ok(run) => match &mut one.run {
                None => one.run = Some(run),
                Some(whole) => whole.follow(run),
            },
        }
        Ok(())
    }
}
