//! A hash table whose copies share what they have in common: it consists of small tables, and an edit of a copy clones only
//! the small table concerned.

use std::sync::Arc;

use hashbrown::HashTable;

/// The mean number of values in a small table above which the table grows.
const SHARE: usize = 512;
/// The factor by which the number of small tables grows.
const GROWTH: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct SharedTable<T> {
    /// The length is a power of two.
    parts: Vec<Arc<HashTable<T>>>,
    count: usize,
}

impl<T> Default for SharedTable<T> {
    fn default() -> SharedTable<T> {
        SharedTable { parts: Vec::new(), count: 0 }
    }
}

impl<T: Clone> SharedTable<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.parts.get(self.part_of(hash))?.find(hash, is_it)
    }

    /// Inserts a value, or replaces the one for which `is_it` holds.
    pub(super) fn insert(&mut self, hash: u64, value: T, is_it: impl FnMut(&T) -> bool, hash_of: impl Fn(&T) -> u64) {
        if self.count >= self.parts.len() * SHARE {
            self.grow(&hash_of);
        }
        let part = self.part_of(hash);
        let part = Arc::make_mut(&mut self.parts[part]);
        match part.find_mut(hash, is_it) {
            Some(known) => *known = value,
            None => {
                part.insert_unique(hash, value, hash_of);
                self.count += 1;
            }
        }
    }

    /// The value for which `is_it` holds, which is created if there is none.
    pub(super) fn find_or_insert(
        &mut self,
        hash: u64,
        mut is_it: impl FnMut(&T) -> bool,
        new: impl FnOnce() -> T,
        hash_of: impl Fn(&T) -> u64,
    ) -> &mut T {
        if self.find(hash, &mut is_it).is_none() {
            self.insert(hash, new(), &mut is_it, hash_of);
        }
        let part = self.part_of(hash);
        Arc::make_mut(&mut self.parts[part]).find_mut(hash, is_it).expect("it is there now")
    }

    pub(super) fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) {
        let part = self.part_of(hash);
        let Some(part) = self.parts.get_mut(part) else { return };
        if let Ok(found) = Arc::make_mut(part).find_entry(hash, is_it) {
            found.remove();
            self.count -= 1;
        }
    }

    /// Uses the upper bits of the hash; the small tables use others.
    fn part_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.parts.len().wrapping_sub(1)
    }

    fn grow(&mut self, hash_of: &impl Fn(&T) -> u64) {
        let old = std::mem::take(&mut self.parts);
        let count = (old.len() * GROWTH).max(1);
        let mut parts: Vec<HashTable<T>> = (0..count).map(|_| HashTable::new()).collect();
        for value in old.iter().flat_map(|part| part.iter()) {
            let hash = hash_of(value);
            parts[(hash >> 32) as usize & (count - 1)].insert_unique(hash, value.clone(), hash_of);
        }
        self.parts = parts.into_iter().map(Arc::new).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(value: &u64) -> u64 {
        (value % 7_919).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn copies_keep_what_they_had() {
        let mut table = SharedTable::default();
        let mut copies = Vec::new();
        for value in 0..20_000_u64 {
            table.insert(hash(&value), value, |known| *known == value, hash);
            if value % 1_000 == 0 {
                copies.push((value, table.clone()));
            }
        }
        (0..20_000).step_by(2).for_each(|value| table.remove(hash(&value), |known| *known == value));
        for (last, copy) in copies {
            assert!(
                (0..20_000).all(|value| copy.find(hash(&value), |known| *known == value).is_some() == (value <= last))
            );
        }
        assert!(
            (0..20_000).all(|value| table.find(hash(&value), |known| *known == value).is_some() == (value % 2 == 1))
        );
        (0..20_000).for_each(|value| table.remove(hash(&value), |known| *known == value));
        assert!(table.is_empty());
    }
}
