//! The hubs of a node, as its configuration lists them, each with its files below `data_dir`.
//!
//! Compiling creates responders that refer to a hub by its id, whether it runs or not; [`Hubs::follow`] starts the hubs of a
//! published configuration. If another process has locked a hub's files, such as the previous process during a binary upgrade,
//! the hub is opened as soon as the lock is released.

mod call;
mod client_events;
mod envelope;
mod listening;
mod permission;
mod places;
mod posting;
mod responder;
mod slot;
mod socket;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use weir_hub::HubStatus;
use weir_hub::{Hub, HubRecovery, LogSettings};

pub(crate) use responder::HubResponder;
use slot::HubSlot;
pub use slot::HubTerms;

/// How often opening is tried while another process has locked the files.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// How often opening is tried after the files could not be used.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
type TellOperator = Arc<dyn Fn(&str) + Send + Sync>;

/// All hubs of a process.
#[derive(Default)]
pub struct Hubs {
    slots: Mutex<HashMap<Box<str>, Arc<HubSlot>>>,
    is_ended: Mutex<bool>,
}

impl Hubs {
    fn slots(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<HubSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a hub, whether it runs or not.
    pub(crate) fn slot(&self, id: &str) -> Arc<HubSlot> {
        Arc::clone(self.slots().entry(id.into()).or_insert_with(|| Arc::new(HubSlot::new())))
    }

    /// Starts, reconfigures and stops hubs so that exactly these run. `tell` receives lines for the operator.
    pub fn follow(&self, terms: &[HubTerms], tell: impl Fn(&str) + Send + Sync + 'static) {
        let is_ended = self.is_ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_ended {
            return;
        }
        let tell: TellOperator = Arc::new(tell);
        let unwanted: Vec<_> = {
            let slots = self.slots();
            let is_wanted = |id: &str| terms.iter().any(|terms| *terms.id == *id);
            slots.iter().filter(|(id, _)| !is_wanted(id)).map(|(_, slot)| Arc::clone(slot)).collect()
        };
        unwanted.iter().for_each(|slot| slot.close());
        for terms in terms {
            run(&self.slot(&terms.id), terms, &tell);
        }
    }

    /// Ends all streams of events because the process is about to end; clients reconnect, to another process.
    pub fn stop_listening(&self) {
        self.slots().values().filter_map(|slot| slot.running()).for_each(|hub| hub.stop_listening());
    }

    /// Whether no request to a hub is being answered.
    pub fn are_idle(&self) -> bool {
        self.slots().values().all(|slot| slot.is_idle())
    }

    /// Stops all hubs, so that another process can open their files. No hub is started any more.
    pub fn end(&self) {
        *self.is_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        let all: Vec<_> = self.slots().values().cloned().collect();
        all.iter().for_each(|slot| slot.close());
    }

    /// The status of each running hub, by id. Blocks briefly.
    pub fn statuses(&self) -> Vec<(Box<str>, HubStatus)> {
        let status = |(id, hub): (Box<str>, Arc<Hub>)| {
            let listeners = self.slot(&id).listener_counts();
            Some((id, HubStatus { listeners, ..hub.status()? }))
        };
        self.running().into_iter().filter_map(status).collect()
    }

    /// The running hubs, by id.
    pub(crate) fn running(&self) -> Vec<(Box<str>, Arc<Hub>)> {
        let mut running: Vec<_> =
            self.slots().iter().filter_map(|(id, slot)| Some((id.clone(), slot.running()?))).collect();
        running.sort_by(|one, other| one.0.cmp(&other.0));
        running
    }
}

/// Opens a hub with these terms, or reconfigures it if it runs.
fn run(slot: &Arc<HubSlot>, terms: &HubTerms, tell: &TellOperator) {
    let mut wanted = slot.wanted();
    let before = slot.want(&mut wanted, Some(terms.clone()));
    if let Some(hub) = slot.running() {
        if before.as_ref().is_some_and(|before| before.settings.log == terms.settings.log) {
            if before.as_ref() != Some(terms) {
                hub.reconfigure(terms.settings.clone(), terms.http.clone());
            }
            return;
        }
        slot.stop();
    }
    if wanted.is_opening {
        return;
    }
    // The first attempt is synchronous, so that a node that reports readiness has its hubs open.
    if let Ok(Some(hub)) = open(slot, terms, tell) {
        slot.opened(hub);
        return;
    }
    wanted.is_opening = true;
    drop(wanted);
    start_opening(slot, tell, keep_opening);
}

/// Starts the thread that opens a hub.
fn start_opening(slot: &Arc<HubSlot>, tell: &TellOperator, run: fn(&Arc<HubSlot>, &TellOperator)) {
    let (opening, told) = (Arc::clone(slot), Arc::clone(tell));
    let thread = std::thread::Builder::new().name("hub-opening".into()).spawn(move || run(&opening, &told));
    if let Err(error) = thread {
        slot.wanted().is_opening = false;
        tell(&format!("the thread that opens a hub cannot be started: {error}"));
    }
}

/// Closes a hub that has ended by itself, and opens it again.
fn open_again(slot: &Arc<HubSlot>, tell: &TellOperator) {
    let mut wanted = slot.wanted();
    if wanted.terms.is_none() || wanted.is_opening {
        return;
    }
    wanted.is_opening = true;
    slot.stop();
    drop(wanted);
    std::thread::sleep(AFTER_FAILURE);
    keep_opening(slot, tell);
}

/// Tries to open the hub until it runs, or is not wanted any more.
fn keep_opening(slot: &Arc<HubSlot>, tell: &TellOperator) {
    let mut last_problem = String::new();
    loop {
        let mut wanted = slot.wanted();
        let Some(terms) = wanted.terms.clone() else {
            wanted.is_opening = false;
            return;
        };
        // Opening may take seconds, and a change of the configuration does not wait for it.
        drop(wanted);
        let pause = match open(slot, &terms, tell) {
            Ok(Some(hub)) => {
                let mut wanted = slot.wanted();
                if wanted.terms.as_ref() == Some(&terms) {
                    slot.opened(hub);
                    wanted.is_opening = false;
                    return;
                }
                // The configuration has changed meanwhile.
                drop(wanted);
                hub.close();
                continue;
            }
            Ok(None) => TRY_AGAIN,
            Err(error) => {
                let problem = match &terms.settings.log {
                    LogSettings::Local => {
                        format!("hub {}: {} cannot be used: {error}", terms.id, terms.directory.display())
                    }
                    LogSettings::Kafka(_) => format!("hub {}: {error}", terms.id),
                };
                if problem != last_problem {
                    tell(&problem);
                    last_problem = problem;
                }
                AFTER_FAILURE
            }
        };
        std::thread::sleep(pause);
    }
}

/// `None` while another process has locked the files.
fn open(slot: &Arc<HubSlot>, terms: &HubTerms, tell: &TellOperator) -> io::Result<Option<Hub>> {
    let Some(lock) = weir_hub::lock(&terms.directory)? else { return Ok(None) };
    let (id, of_hub) = (terms.id.clone(), Arc::clone(tell));
    let tell_of_hub = move |line: &str| of_hub(&format!("hub {id}: {line}"));
    let (again, told) = (Arc::clone(slot), Arc::clone(tell));
    let failed = move || start_opening(&again, &told, open_again);
    let (hub, recovery) = Hub::open(&terms.directory, lock, terms.settings.clone(), &terms.http, tell_of_hub, failed)?;
    let HubRecovery { subscriptions, events, damaged } = recovery;
    tell(&format!("hub {}: {subscriptions} subscriptions, {events} events, {damaged} damaged records", terms.id));
    Ok(Some(hub))
}
