//! A list whose copies share their chunks: a change copies one chunk, and does not touch the others.

use std::cmp::Ordering;
use std::sync::Arc;

/// The most items of a chunk. A chunk that would get more is divided.
const MOST: usize = 256;

/// Items in order. A copy costs a reference count for each chunk.
#[derive(Debug)]
pub(crate) struct SharedList<T> {
    /// None is empty.
    chunks: Vec<Arc<Vec<T>>>,
    /// The index of the first item of each chunk.
    starts: Vec<usize>,
    len: usize,
}

impl<T> Default for SharedList<T> {
    fn default() -> SharedList<T> {
        SharedList { chunks: Vec::new(), starts: Vec::new(), len: 0 }
    }
}

impl<T> Clone for SharedList<T> {
    fn clone(&self) -> SharedList<T> {
        SharedList { chunks: self.chunks.clone(), starts: self.starts.clone(), len: self.len }
    }
}

impl<T: Clone> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> SharedList<T> {
        let (mut list, mut items) = (SharedList::default(), items.into_iter());
        loop {
            let chunk: Vec<T> = items.by_ref().take(MOST).collect();
            if chunk.is_empty() {
                list.number_from(0);
                return list;
            }
            list.chunks.push(Arc::new(chunk));
        }
    }
}

impl<T: Clone> SharedList<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        let chunk = self.starts.partition_point(|start| *start <= index).checked_sub(1)?;
        self.chunks[chunk].get(index - self.starts[chunk])
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Whether the items from this index on begin with `items`.
    pub(super) fn continues_with(&self, index: usize, mut items: &[T]) -> bool
    where
        T: PartialEq,
    {
        let Some(first) = self.starts.partition_point(|start| *start <= index).checked_sub(1) else {
            return items.is_empty();
        };
        let mut offset = index - self.starts[first];
        for chunk in &self.chunks[first..] {
            let chunk = chunk.get(offset..).unwrap_or_default();
            let length = chunk.len().min(items.len());
            let (here, rest) = items.split_at(length);
            if chunk[..length] != *here {
                return false;
            }
            (items, offset) = (rest, 0);
            if items.is_empty() {
                break;
            }
        }
        items.is_empty()
    }

    /// As `binary_search_by` of a slice.
    pub(crate) fn binary_search_by(&self, mut compare: impl FnMut(&T) -> Ordering) -> Result<usize, usize> {
        let at = self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| compare(last).is_lt()));
        let Some(chunk) = self.chunks.get(at) else { return Err(self.len) };
        let start = self.starts[at];
        chunk.binary_search_by(compare).map(|index| start + index).map_err(|index| start + index)
    }

    /// Replaces an item and returns it.
    ///
    /// # Panics
    /// If the list has no such index.
    pub(super) fn set(&mut self, index: usize, item: T) -> T {
        let (chunk, index) = self.place_of(index);
        std::mem::replace(&mut Arc::make_mut(&mut self.chunks[chunk])[index], item)
    }

    /// Inserts an item before the one with this index, or at the end.
    ///
    /// # Panics
    /// If the index is greater than the length.
    pub(super) fn insert(&mut self, index: usize, item: T) {
        if self.is_empty() {
            self.chunks.push(Arc::default());
            self.number_from(0);
        }
        let (at, index) = self.place_of(index);
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        chunk.insert(index, item);
        if chunk.len() > MOST {
            let rest = chunk.split_off(MOST / 2);
            self.chunks.insert(at + 1, Arc::new(rest));
        }
        self.number_from(at);
    }

    /// Removes an item and returns it.
    ///
    /// # Panics
    /// If the list has no such index.
    pub(super) fn remove(&mut self, index: usize) -> T {
        let (at, index) = self.place_of(index);
        let item = Arc::make_mut(&mut self.chunks[at]).remove(index);
        let next = self.chunks.get(at + 1).map_or(0, |next| next.len());
        if self.chunks[at].is_empty() {
            self.chunks.remove(at);
        } else if next > 0 && self.chunks[at].len() + next <= MOST / 2 {
            let next = self.chunks.remove(at + 1);
            Arc::make_mut(&mut self.chunks[at]).extend(next.iter().cloned());
        }
        self.number_from(at);
        item
    }

    /// The chunk of an item, and the item's index in it. The end of the list is that of its last chunk.
    fn place_of(&self, index: usize) -> (usize, usize) {
        let chunk = self.starts.partition_point(|start| *start <= index) - 1;
        (chunk, index - self.starts[chunk])
    }

    /// Counts the items again, from this chunk on.
    fn number_from(&mut self, chunk: usize) {
        self.starts.truncate(chunk);
        let mut start = match chunk.checked_sub(1) {
            Some(before) => self.starts[before] + self.chunks[before].len(),
            None => 0,
        };
        for chunk in &self.chunks[chunk..] {
            self.starts.push(start);
            start += chunk.len();
        }
        self.len = start;
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn it_holds_what_a_vector_holds() {
        let mut random = StdRng::seed_from_u64(1);
        let mut expected: Vec<u32> = (0..1_000).map(|number| number * 1_000).collect();
        let mut list: SharedList<u32> = expected.iter().copied().collect();
        for round in 0..6_000 {
            // It grows, shrinks to nothing, and grows again.
            let shrinks = (1_000..4_500).contains(&round);
            let key = random.random_range(0..1_000_000);
            let found = expected.binary_search(&key);
            assert_eq!(list.binary_search_by(|item| item.cmp(&key)), found);
            let before = list.clone();
            let held: Vec<u32> = expected.clone();
            match found {
                _ if shrinks && !expected.is_empty() => {
                    let at = random.random_range(0..expected.len());
                    assert_eq!(list.remove(at), expected.remove(at));
                }
                Ok(at) => assert_eq!(list.set(at, key), key),
                Err(at) => {
                    list.insert(at, key);
                    expected.insert(at, key);
                }
            }
            assert!(list.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= MOST));
            if round % 50 == 0 || expected.len() < 3 {
                assert!(before.iter().copied().eq(held), "a copy keeps what it has");
                assert!(list.iter().copied().eq(expected.iter().copied()));
                let each = (0..=expected.len()).map(|at| list.get(at).copied());
                assert!(each.eq((0..=expected.len()).map(|at| expected.get(at).copied())));
                let (from, to) = (expected.len() / 3, expected.len() / 2);
                assert!(list.continues_with(from, &expected[from..to]) && list.continues_with(from, &expected[from..]));
                assert!(!list.continues_with(from, &[&expected[from..], &[0]].concat()));
                assert!(from == to || !list.continues_with(from, &[&expected[from..to - 1], &[7]].concat()));
            }
            assert_eq!((list.len(), list.is_empty()), (expected.len(), expected.is_empty()));
        }
    }

    #[test]
    fn a_change_copies_one_chunk_and_removals_leave_no_small_ones() {
        let mut list: SharedList<usize> = (0..10_000).collect();
        let before = list.clone();
        list.set(5_000, 0);
        let same = list.chunks.iter().zip(&before.chunks).filter(|(new, old)| Arc::ptr_eq(new, old)).count();
        assert_eq!((same, list.chunks.len()), (39, 40));
        for _ in 0..9_900 {
            list.remove(list.len() / 2);
        }
        assert!(list.chunks.len() <= 3, "{}", list.chunks.len());
    }
}
