//! State of plugins beyond one exchange, by name: shared by all workers, or one value per worker.
//!
//! Plugins are rebuilt with every configuration. Their counters and caches are stored here by name and key, so that the next
//! build of the same plugin finds them. Building and dropping takes a lock; access does not.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

type SharedAny = dyn Any + Send + Sync;
type StateKey = (TypeId, &'static str, Box<str>);

/// All shared state of the process. Only permanent state is owned by the table; the rest is owned by the plugins that use it.
#[derive(Default)]
struct StateTable {
    shared: HashMap<StateKey, Weak<SharedAny>>,
    permanent: HashMap<StateKey, Arc<SharedAny>>,
    /// At this number of entries, dropped ones are removed.
    sweep_at: usize,
}

fn table() -> MutexGuard<'static, StateTable> {
    static TABLE: LazyLock<Mutex<StateTable>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`crate::Build::shared`].
pub fn shared<T: Send + Sync + 'static>(name: &'static str, key: &str, make: impl FnOnce() -> T) -> Arc<T> {
    let at: StateKey = (TypeId::of::<T>(), name, key.into());
    let known = |table: &StateTable| table.shared.get(&at).and_then(Weak::upgrade);
    let state = known(&table());
    let state = state.unwrap_or_else(|| {
        // Made without the lock: `make` may use shared state of its own.
        let made: Arc<SharedAny> = Arc::new(make());
        let mut table = table();
        known(&table).unwrap_or_else(|| {
            if table.shared.len() >= table.sweep_at {
                table.shared.retain(|_, state| state.strong_count() > 0);
                table.sweep_at = 2 * table.shared.len() + 64;
            }
            table.shared.insert(at.clone(), Arc::downgrade(&made));
            made
        })
    });
    state.downcast().unwrap_or_else(|_| unreachable!("kept under its own type"))
}

/// See [`crate::Build::permanent`].
pub fn permanent<T: Send + Sync + Default + 'static>(name: &'static str) -> Arc<T> {
    let at: StateKey = (TypeId::of::<T>(), name, "".into());
    let known = table().permanent.get(&at).map(Arc::clone);
    let state = known.unwrap_or_else(|| {
        // Made without the lock, as above.
        let made: Arc<SharedAny> = Arc::new(T::default());
        Arc::clone(table().permanent.entry(at).or_insert(made))
    });
    state.downcast().unwrap_or_else(|_| unreachable!("kept under its own type"))
}

/// See [`crate::Build::per_worker`].
pub fn per_worker<T: 'static>(
    name: &'static str,
    key: &str,
    make: impl Fn() -> T + Send + Sync + 'static,
) -> PerWorker<T> {
    PerWorker(shared(name, key, || StateSlot { number: SlotNumber::take(), make: Box::new(make) }))
}

/// State of which each worker has its own value; `get` returns that of the current thread.
pub struct PerWorker<T: 'static>(Arc<StateSlot<T>>);

impl<T: 'static> Clone for PerWorker<T> {
    fn clone(&self) -> Self {
        PerWorker(Arc::clone(&self.0))
    }
}

impl<T: 'static> fmt::Debug for PerWorker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerWorker").field(&self.0.number.place).finish()
    }
}

struct StateSlot<T> {
    number: SlotNumber,
    make: Box<dyn Fn() -> T + Send + Sync>,
}

/// Index of a slot's value in each thread's table. Indexes are reused; serial numbers are not.
struct SlotNumber {
    place: usize,
    serial: u64,
}

#[derive(Default)]
struct FreeSlots {
    free: Vec<usize>,
    used: usize,
    serial: u64,
}

static PLACES: Mutex<FreeSlots> = Mutex::new(FreeSlots { free: Vec::new(), used: 0, serial: 0 });
/// Number of slots dropped so far. A thread that sees it change removes the values of dropped slots.
static ENDED: AtomicU64 = AtomicU64::new(0);

impl SlotNumber {
    fn take() -> SlotNumber {
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        places.serial += 1;
        let serial = places.serial;
        let place = places.free.pop().unwrap_or_else(|| {
            places.used += 1;
            places.used - 1
        });
        SlotNumber { place, serial }
    }
}

impl Drop for SlotNumber {
    fn drop(&mut self) {
        PLACES.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.place);
        ENDED.fetch_add(1, Ordering::Relaxed);
    }
}

/// The value of a slot on one thread.
struct WorkerValue {
    serial: u64,
    value: Rc<dyn Any>,
    is_used: Box<dyn Fn() -> bool>,
}

thread_local! {
    static HELD: RefCell<Vec<Option<WorkerValue>>> = const { RefCell::new(Vec::new()) };
    static ENDED_SEEN: Cell<u64> = const { Cell::new(0) };
}

impl<T: 'static> PerWorker<T> {
    /// The state of the current thread's worker.
    #[inline]
    pub fn get(&self) -> Rc<T> {
        let SlotNumber { place, serial } = self.0.number;
        let held = HELD.with_borrow(|held| match held.get(place) {
            Some(Some(held)) if held.serial == serial => Some(Rc::clone(&held.value)),
            _ => None,
        });
        match held {
            Some(value) => value.downcast().unwrap_or_else(|_| unreachable!("kept under its own number")),
            None => self.make(),
        }
    }

    #[cold]
    fn make(&self) -> Rc<T> {
        let SlotNumber { place, serial } = self.0.number;
        let value = Rc::new((self.0.make)());
        let slot = Arc::downgrade(&self.0);
        let held = WorkerValue {
            serial,
            value: Rc::clone(&value) as Rc<dyn Any>,
            is_used: Box::new(move || slot.strong_count() > 0),
        };
        let replaced = HELD.with_borrow_mut(|all| {
            let mut gone = Vec::new();
            let ended = ENDED.load(Ordering::Relaxed);
            if ENDED_SEEN.replace(ended) != ended {
                gone.extend(all.iter_mut().filter_map(|held| held.take_if(|held| !(held.is_used)())));
            }
            if all.len() <= place {
                all.resize_with(place + 1, || None);
            }
            gone.extend(all[place].replace(held));
            gone
        });
        // Dropped outside of the borrow: a value's destructor may use per-worker state.
        drop(replaced);
        value
    }
}

/// Drops the per-worker state of this thread. A worker calls it before its thread ends: destructors of thread-locals run too
/// late to wake tasks of other threads, since the runtime's own thread-locals may be gone.
pub fn end_worker() {
    loop {
        let held = HELD.take();
        if held.is_empty() {
            return;
        }
        // A value's destructor may create further state, which the next iteration drops.
        drop(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_state_lives_as_long_as_its_users() {
        let ask = |key: &str| shared("test-shared", key, || AtomicU64::new(0));
        let (one, other) = (ask("a"), ask("a"));
        one.store(7, Ordering::Relaxed);
        assert_eq!(other.load(Ordering::Relaxed), 7);
        assert_eq!(ask("b").load(Ordering::Relaxed), 0, "another key, another state");
        drop((one, other));
        assert_eq!(ask("a").load(Ordering::Relaxed), 0, "the last user was gone");
    }

    #[test]
    fn permanent_state_stays() {
        permanent::<AtomicU64>("test-permanent").store(7, Ordering::Relaxed);
        assert_eq!(permanent::<AtomicU64>("test-permanent").load(Ordering::Relaxed), 7);
    }

    #[test]
    fn each_worker_has_its_own() {
        let state = per_worker("test-worker", "own", || Cell::new(0));
        state.get().set(1);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(state.get().replace(2), 0));
        });
        assert_eq!(state.get().get(), 1);
        let again = per_worker("test-worker", "own", || Cell::new(0));
        assert_eq!(again.get().get(), 1, "a reload finds it again");
    }

    #[test]
    fn a_worker_that_ends_drops_what_it_held_and_what_that_made_while_it_ended() {
        struct MakesMore(Arc<AtomicU64>, Option<PerWorker<MakesMore>>);
        impl Drop for MakesMore {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
                if let Some(more) = &self.1 {
                    more.get();
                }
            }
        }
        let dropped = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&dropped);
        let last = per_worker("test-end", "last", move || MakesMore(Arc::clone(&count), None));
        let count = Arc::clone(&dropped);
        let first = per_worker("test-end", "first", move || MakesMore(Arc::clone(&count), Some(last.clone())));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                first.get();
                end_worker();
                assert_eq!(dropped.load(Ordering::Relaxed), 2);
            });
        });
    }

    #[test]
    fn unused_state_is_dropped_when_the_next_is_made() {
        struct DropFlag(Rc<Cell<bool>>);
        impl Drop for DropFlag {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        thread_local! {
            static DROPPED: Rc<Cell<bool>> = Rc::default();
        }
        let make = || DropFlag(DROPPED.with(Rc::clone));
        let state = per_worker("test-drop", "first", make);
        let _ = state.get();
        let number = state.0.number.place;
        drop(state);
        let next = per_worker("test-drop", "next", || ());
        next.get();
        assert!(DROPPED.with(|dropped| dropped.get()), "slot {number}");
    }
}
