//! A numbered collection whose copies share most of their pieces: a copy of 100,000 pieces costs 400 reference counts, and
//! the differences between two are found without comparing the shared parts.

use std::ops::Index;
use std::rc::Rc;
use std::sync::Arc;

/// The number of pieces in a chunk, which is copied when one of them changes.
const TOGETHER: usize = 256;

/// The pieces `P` are pointers. A number keeps its piece until that is replaced or removed; there may be numbers without
/// one.
#[derive(Clone, Debug)]
pub struct Pieces<P> {
    chunks: Vec<Arc<Vec<Option<P>>>>,
    count: usize,
}

/// A pointer that can be compared with another by address.
pub trait SharedPiece: Clone {
    fn is_same(&self, other: &Self) -> bool;
}

impl<T: ?Sized> SharedPiece for Arc<T> {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self, other)
    }
}

impl<T: ?Sized> SharedPiece for Rc<T> {
    fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(self, other)
    }
}

impl<P> Default for Pieces<P> {
    fn default() -> Pieces<P> {
        Pieces { chunks: Vec::new(), count: 0 }
    }
}

impl<P: Clone> Pieces<P> {
    /// The number of pieces.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub fn get(&self, number: usize) -> Option<&P> {
        self.chunks.get(number / TOGETHER)?.get(number % TOGETHER)?.as_ref()
    }

    pub fn set(&mut self, number: usize, piece: P) {
        self.count += usize::from(self.get(number).is_none());
        *self.place_of(number) = Some(piece);
    }

    pub fn remove(&mut self, number: usize) -> Option<P> {
        self.get(number)?;
        self.count -= 1;
        self.place_of(number).take()
    }

    /// All pieces with their numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &P)> {
        let places = self.chunks.iter().flat_map(|chunk| chunk.iter()).enumerate();
        places.filter_map(|(number, piece)| Some((number, piece.as_ref()?)))
    }

    /// Removes the last chunk and returns its pieces, so that a large collection can be freed in steps; `None` when it is
    /// empty. A chunk that another collection shares yields no pieces.
    pub fn take_some(&mut self) -> Option<impl Iterator<Item = P> + use<P>> {
        let last = self.chunks.pop()?;
        Some(Arc::into_inner(last).unwrap_or_default().into_iter().flatten())
    }

    fn place_of(&mut self, number: usize) -> &mut Option<P> {
        while self.chunks.len() <= number / TOGETHER {
            self.chunks.push(Arc::new(vec![None; TOGETHER]));
        }
        &mut Arc::make_mut(&mut self.chunks[number / TOGETHER])[number % TOGETHER]
    }
}

impl<P: SharedPiece> Pieces<P> {
    /// The numbers whose piece differs from that in `old`, or that have one in only one of the two.
    pub fn changes_from(&self, old: &Pieces<P>) -> Vec<usize> {
        let mut changed = Vec::new();
        for index in 0..self.chunks.len().max(old.chunks.len()) {
            let (new, before) = (self.chunks.get(index), old.chunks.get(index));
            if let (Some(new), Some(before)) = (new, before)
                && Arc::ptr_eq(new, before)
            {
                continue;
            }
            for number in index * TOGETHER..(index + 1) * TOGETHER {
                let differs = match (self.get(number), old.get(number)) {
                    (Some(new), Some(before)) => !new.is_same(before),
                    (new, before) => new.is_some() != before.is_some(),
                };
                if differs {
                    changed.push(number);
                }
            }
        }
        changed
    }
}

/// # Panics
/// If the number has no piece.
impl<P: Clone> Index<usize> for Pieces<P> {
    type Output = P;

    #[inline]
    fn index(&self, number: usize) -> &P {
        self.get(number).expect("who holds a number of a snapshot got it from that snapshot")
    }
}

impl<P: Clone> FromIterator<P> for Pieces<P> {
    fn from_iter<I: IntoIterator<Item = P>>(pieces: I) -> Pieces<P> {
        let mut all = Pieces::default();
        pieces.into_iter().enumerate().for_each(|(number, piece)| all.set(number, piece));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_find_differences_and_share_the_rest() {
        let old: Pieces<Arc<usize>> = (0..1_000).map(Arc::new).collect();
        let mut new = old.clone();
        assert!(new.changes_from(&old).is_empty());
        new.set(3, Arc::new(33));
        new.set(1_500, Arc::new(1_500));
        assert_eq!(new.remove(999).as_deref(), Some(&999));
        assert_eq!(new.remove(999), None);
        assert_eq!(new.changes_from(&old), [3, 999, 1_500]);
        assert_eq!((*new[3], *old[3], new.len(), old.len()), (33, 3, 1_000, 1_000));
        assert!(Arc::ptr_eq(&new.chunks[1], &old.chunks[1]) && !Arc::ptr_eq(&new.chunks[0], &old.chunks[0]));
        assert_eq!(new.iter().filter(|(number, piece)| *number != ***piece).count(), 1);
    }
}
