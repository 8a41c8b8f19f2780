//! Interned names: each is kept once, counted, and referred to by number.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use slab::Slab;

#[derive(Default)]
pub(super) struct Names {
    names: Slab<SharedName>,
    by_name: HashTable<u32>,
    hasher: RandomState,
}

struct SharedName {
    name: Box<str>,
    uses: u32,
}

impl Names {
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.by_name.find(self.hasher.hash_one(name), |number| self.get(*number) == name).copied()
    }

    pub(super) fn get(&self, number: u32) -> &str {
        &self.names[number as usize].name
    }

    pub(super) fn uses(&self, number: u32) -> u32 {
        self.names[number as usize].uses
    }

    /// The number of a name, whose use count grows by one.
    pub(super) fn add(&mut self, name: &str) -> u32 {
        if let Some(number) = self.find(name) {
            self.names[number as usize].uses += 1;
            return number;
        }
        let number = self.names.insert(SharedName { name: name.into(), uses: 1 }) as u32;
        let (names, hasher) = (&self.names, &self.hasher);
        let hash_of = |number: &u32| hasher.hash_one(&*names[*number as usize].name);
        self.by_name.insert_unique(hash_of(&number), number, hash_of);
        number
    }

    /// Decreases the use count; returns whether it is 0 now.
    pub(super) fn release(&mut self, number: u32) -> bool {
        let at = &mut self.names[number as usize];
        at.uses -= 1;
        at.uses == 0
    }

    /// Removes a name; its number may be used again.
    pub(super) fn forget(&mut self, number: u32) {
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
        let mut names = Names::default();
        let (first, second) = (names.add("a"), names.add("b"));
        assert_eq!((names.add("a"), names.uses(first), names.get(second)), (first, 2, "b"));
        assert!(!names.release(first) && names.release(first));
        assert_eq!(names.find("a"), Some(first));
        names.forget(first);
        assert_eq!((names.find("a"), names.find("b")), (None, Some(second)));
        assert_eq!(names.add("c"), first);
    }
}
