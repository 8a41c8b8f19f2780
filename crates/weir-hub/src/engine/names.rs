//! Interned names: each is kept once, counted, and referred to by number.

use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;

use hashbrown::HashTable;
use slab::Slab;

/// Names whose numbers are of the type `N`.
pub(super) struct Names<N> {
    names: Slab<SharedName>,
    by_name: HashTable<u32>,
    hasher: RandomState,
    numbers: PhantomData<N>,
}

struct SharedName {
    name: Box<str>,
    uses: u32,
}

impl<N> Default for Names<N> {
    fn default() -> Self {
        let (names, by_name) = (Slab::default(), HashTable::default());
        Names { names, by_name, hasher: RandomState::default(), numbers: PhantomData }
    }
}

impl<N: From<u32> + Into<u32>> Names<N> {
    pub(super) fn find(&self, name: &str) -> Option<N> {
        self.number_of(name).map(N::from)
    }

    fn number_of(&self, name: &str) -> Option<u32> {
        self.by_name.find(self.hasher.hash_one(name), |number| *self.names[*number as usize].name == *name).copied()
    }

    pub(super) fn get(&self, number: N) -> &str {
        &self.names[number.into() as usize].name
    }

    pub(super) fn uses(&self, number: N) -> u32 {
        self.names[number.into() as usize].uses
    }

    /// The number of a name, whose use count grows by one.
    pub(super) fn add(&mut self, name: &str) -> N {
        if let Some(number) = self.number_of(name) {
            self.names[number as usize].uses += 1;
            return number.into();
        }
        let number = self.names.insert(SharedName { name: name.into(), uses: 1 }) as u32;
        let (names, hasher) = (&self.names, &self.hasher);
        let hash_of = |number: &u32| hasher.hash_one(&*names[*number as usize].name);
        self.by_name.insert_unique(hash_of(&number), number, hash_of);
        number.into()
    }

    /// Decreases the use count; returns whether it is 0 now.
    pub(super) fn release(&mut self, number: N) -> bool {
        let at = &mut self.names[number.into() as usize];
        at.uses -= 1;
        at.uses == 0
    }

    /// Removes a name; its number may be used again.
    pub(super) fn forget(&mut self, number: N) {
        let number = number.into();
        let name = self.names.remove(number as usize).name;
        if let Ok(entry) = self.by_name.find_entry(self.hasher.hash_one(&*name), |other| *other == number) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_forgotten_after_its_last_use() {
        let mut names = Names::<u32>::default();
        let (first, second) = (names.add("a"), names.add("b"));
        assert_eq!((names.add("a"), names.uses(first), names.get(second)), (first, 2, "b"));
        assert!(!names.release(first) && names.release(first));
        assert_eq!(names.find("a"), Some(first));
        names.forget(first);
        assert_eq!((names.find("a"), names.find("b")), (None, Some(second)));
        assert_eq!(names.add("c"), first);
    }
}
