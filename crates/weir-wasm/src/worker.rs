//! The instance of a plugin on one worker: made when it is first needed, and again after it has failed.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::task::{AbortHandle, spawn_local};
use wasmtime::InstancePre;

use crate::limits;
use crate::service_call;
use crate::state::{HostState, OutgoingCall, Outside, PluginFacts, Rights};
use crate::vm::{PluginFailure, Vm};

/// The instance of a plugin with one configuration.
pub(crate) struct WorkerPlugin(Rc<WorkerInstance>);

struct WorkerInstance {
    code: InstancePre<HostState>,
    facts: Arc<PluginFacts>,
    slot: RefCell<InstanceSlot>,
}

#[derive(Default)]
struct InstanceSlot {
    vm: Option<Vm>,
    /// The number of instances so far.
    serial: u64,
    /// Failures in a row to start.
    failures: u32,
    /// How long the last start took.
    start_time: Duration,
    failed_at: Option<Instant>,
    not_before: Option<Instant>,
    outside: Outside,
    /// What calls the plugin at the times that it wants.
    ticking: Option<Ticking>,
}

struct Ticking {
    period: Duration,
    task: AbortHandle,
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WorkerPlugin {
    pub(crate) fn new(code: InstancePre<HostState>, facts: Arc<PluginFacts>) -> WorkerPlugin {
        WorkerPlugin(Rc::new(WorkerInstance { code, facts, slot: RefCell::default() }))
    }

    /// Runs something with the instance. If the code of the plugin fails, the instance is dropped.
    pub(crate) fn with<R>(
        &self,
        outside: &Outside,
        run: impl FnOnce(&mut Vm) -> Result<R, PluginFailure>,
    ) -> Result<R, PluginFailure> {
        self.0.with(outside, run)
    }
}

impl WorkerInstance {
    fn with<R>(
        self: &Rc<Self>,
        outside: &Outside,
        run: impl FnOnce(&mut Vm) -> Result<R, PluginFailure>,
    ) -> Result<R, PluginFailure> {
        let mut slot = self.slot.borrow_mut();
        let slot = &mut *slot;
        if slot.vm.is_none() {
            self.start(slot, outside)?;
        }
        let vm = slot.vm.as_mut().expect("it was made");
        vm.reach(outside);
        let result = run(vm);
        match &result {
            Err(failure @ (PluginFailure::Trap(_) | PluginFailure::TimedOut(_))) => self.fail(slot, failure),
            _ if vm.wants_nothing() && slot.ticking.is_none() => {}
            _ => self.follow(slot, outside),
        }
        result
    }

    fn start(&self, slot: &mut InstanceSlot, outside: &Outside) -> Result<(), PluginFailure> {
        if slot.not_before.is_some_and(|time| Instant::now() < time) {
            return Err(PluginFailure::Away);
        }
        slot.serial += 1;
        let began = Instant::now();
        match Vm::start(&self.code, &self.facts, outside.clone(), (slot.serial, false)) {
            Ok(vm) => {
                (slot.vm, slot.failures, slot.start_time) = (Some(vm), 0, began.elapsed());
                Ok(())
            }
            Err(failure) => {
                self.fail(slot, &failure);
                Err(failure)
            }
        }
    }

    /// Drops the instance, and decides when the next one may be made.
    fn fail(&self, slot: &mut InstanceSlot, failure: &PluginFailure) {
        let metrics = &self.facts.metrics;
        metrics.failures.fetch_add(1, Relaxed);
        if matches!(failure, PluginFailure::TimedOut(_)) {
            metrics.timeouts.fetch_add(1, Relaxed);
        }
        let pause = match slot.vm {
            // Any client may cause this by what it sends, and must not take the plugin away from others for long.
            Some(_) => {
                let since = slot.failed_at.map_or(Duration::MAX, |time| time.elapsed());
                slot.start_time.saturating_mul(limits::PAUSE_PER_START).saturating_sub(since).min(limits::LEAST_PAUSE)
            }
            None => {
                slot.failures = slot.failures.saturating_add(1);
                pause(slot.failures)
            }
        };
        slot.failed_at = Some(Instant::now());
        slot.not_before = Some(Instant::now() + pause);
        (slot.vm, slot.ticking) = (None, None);
        let again = match pause.is_zero() {
            true => "it is started again".to_owned(),
            false => format!("it is started again after {} ms", pause.as_millis()),
        };
        self.facts.log.failure(format_args!("{failure}; {again}"));
    }

    /// Makes the calls that no exchange waits for, and ticks as the plugin wants it. Few plugins want any of it, so few calls come here.
    #[cold]
    fn follow(self: &Rc<Self>, slot: &mut InstanceSlot, outside: &Outside) {
        let Some(vm) = &mut slot.vm else { return };
        let (calls, serial, period) = (vm.take_all_calls(), vm.serial, vm.tick());
        for call in calls {
            self.call_apart(call, serial, outside);
        }
        if slot.ticking.as_ref().map(|ticking| ticking.period) != period {
            slot.ticking = period.map(|period| self.tick_every(period));
        }
        if slot.ticking.is_some() {
            slot.outside = outside.clone();
        }
    }

    /// A call whose answer only the plugin waits for.
    fn call_apart(self: &Rc<Self>, call: OutgoingCall, serial: u64, outside: &Outside) {
        let (instance, outside) = (Rc::downgrade(self), outside.clone());
        let facts = Arc::clone(&self.facts);
        spawn_local(async move {
            let answer = service_call::make(outside.http.clone(), call, facts).await;
            let Some(instance) = instance.upgrade() else { return };
            let rights = Rights { calls: true, ..Rights::default() };
            let is_same = instance.slot.borrow().vm.as_ref().is_some_and(|vm| vm.serial == serial);
            if is_same {
                // What went wrong has been logged.
                let _ = instance.with(&outside, |vm| vm.on_answer(answer, rights));
            }
        });
    }

    fn tick_every(self: &Rc<Self>, period: Duration) -> Ticking {
        let instance: Weak<WorkerInstance> = Rc::downgrade(self);
        let task = spawn_local(async move {
            loop {
                tokio::time::sleep(period).await;
                let Some(instance) = instance.upgrade() else { return };
                let outside = instance.slot.borrow().outside.clone();
                if instance.slot.borrow().vm.is_some() {
                    let _ = instance.with(&outside, Vm::on_tick);
                }
            }
        });
        Ticking { period, task: task.abort_handle() }
    }
}

/// The pause before the next instance, after so many failures to start in a row.
fn pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    limits::LEAST_PAUSE.saturating_mul(1 << doublings).min(limits::MOST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_what_does_not_start_grow_to_the_most() {
        let ms = |failures| pause(failures).as_millis();
        assert_eq!(
            [ms(1), ms(2), ms(3), ms(8), ms(9), ms(10), ms(u32::MAX)],
            [100, 200, 400, 12_800, 25_600, 30_000, 30_000]
        );
    }
}
