//! Values that take long to build and are the same for equal inputs: they are built once, and shared for as long as they are used.

use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::HashMap;

use crate::pattern_budget;

/// The entries from which on unused ones are looked for.
const FIRST_SWEEP: usize = 64;

/// The values in use, each by its input.
pub struct Interner<K, V> {
    entries: Mutex<Option<Entries<K, V>>>,
}

struct Entries<K, V> {
    values: HashMap<K, Weak<V>>,
    /// The number of entries at which those of values no longer used are removed.
    sweep_at: usize,
}

impl<K: Eq + Hash, V> Default for Interner<K, V> {
    fn default() -> Interner<K, V> {
        Interner::new()
    }
}

impl<K: Eq + Hash, V> Interner<K, V> {
    pub const fn new() -> Interner<K, V> {
        Interner { entries: Mutex::new(None) }
    }

    /// The value of this input if it is in use, or a new one. Inputs are not locked while a value is built.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn get_or_build<E>(&self, input: K, build: impl FnOnce(&K) -> Result<V, E>) -> Result<Arc<V>, E> {
        if pattern_budget::counts_all() {
            return build(&input).map(Arc::new);
        }
        let known = self.entries().as_ref().and_then(|entries| entries.values.get(&input)?.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let built = Arc::new(build(&input)?);
        let mut entries = self.entries();
        let entries = entries.get_or_insert_with(|| Entries { values: HashMap::default(), sweep_at: FIRST_SWEEP });
        entries.values.insert(input, Arc::downgrade(&built));
        if entries.values.len() >= entries.sweep_at {
            entries.values.retain(|_, value| value.strong_count() > 0);
            entries.sweep_at = (2 * entries.values.len()).max(FIRST_SWEEP);
        }
        Ok(built)
    }

    fn entries(&self) -> MutexGuard<'_, Option<Entries<K, V>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_use_is_shared_and_one_that_is_not_is_forgotten() {
        let interner: Interner<usize, String> = Interner::new();
        let build = |input: &usize| (*input < 1_000).then(|| input.to_string()).ok_or("too large");
        let first = interner.get_or_build(1, build).expect("built");
        let again = interner.get_or_build(1, |_| Err("built again")).expect("known");
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(interner.get_or_build(1_000, build), Err("too large"));
        for input in 2..1_000 {
            interner.get_or_build(input, build).expect("built");
        }
        let left = interner.entries().as_ref().map_or(0, |entries| entries.values.len());
        assert!(left < FIRST_SWEEP, "{left} entries");
        drop((first, again));
        assert_eq!(interner.get_or_build(1, |_| Err("built again")), Err("built again"));
    }
}
