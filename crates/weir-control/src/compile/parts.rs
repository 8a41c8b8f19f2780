//! What compiling one document has made, for the next one to use again where it says the same.
//!
//! A part is found by its identity (the kind and id of what it was made from) and used again if its key, which is everything it
//! was made from, is the same. What caused a warning is made anew each time, since the warning has to be given again.

use std::cell::RefCell;
use std::sync::Arc;

use foldhash::HashMap;
use weir_gateway::snapshot::{Pieces, Route, RouteTable, Upstream};
use weir_plugin::Told;

use super::chains::BuiltSet;
use crate::text::fingerprint::Fingerprint;

/// The parts of a compiled document.
#[derive(Clone)]
pub struct Parts {
    /// What every route depends on besides what it says and refers to.
    pub(super) context: Fingerprint,
    pub(super) upstreams: Arc<Catalog<UpstreamPart>>,
    pub(super) upstream_pieces: Pieces<Arc<Upstream>>,
    pub(super) routes: Arc<Catalog<RoutePart>>,
    pub(super) route_pieces: Pieces<Arc<Route>>,
    pub(super) table: RouteTable,
    pub(super) sets: Arc<HashMap<Fingerprint, BuiltSet>>,
    /// Names of header fields that are secrets.
    pub(super) secret_fields: Vec<Box<[u8]>>,
}

impl Parts {
    /// The routes, as they stand in the snapshot.
    pub(crate) fn routes(&self) -> &Pieces<Arc<Route>> {
        &self.route_pieces
    }
}

#[derive(Clone)]
pub(super) struct UpstreamPart {
    pub(super) number: usize,
    pub(super) key: Option<Fingerprint>,
}

#[derive(Clone)]
pub(super) struct RoutePart {
    /// Routes that are switched off have a number and no piece.
    pub(super) number: usize,
    pub(super) key: Option<Fingerprint>,
    /// What its rule in the table was made from; nothing if it has none.
    pub(super) rule: Option<Fingerprint>,
    /// Its place among the rules.
    pub(super) order: u64,
    /// What its own plugins have told.
    pub(super) told: Option<Arc<[Told]>>,
}

/// Parts in the order of the document, with numbers of which each belongs to one part.
pub(super) struct Catalog<T> {
    parts: Vec<(Fingerprint, T)>,
    numbers: Numbers,
}

#[derive(Clone, Default)]
struct Numbers {
    /// All from here on are free,
    next: usize,
    /// and these.
    free: Vec<usize>,
}

/// Makes a catalog, and finds parts of the one before by their identity. Where documents are alike, the part that is looked
/// for is the one after the last that was found.
pub(super) struct Cataloger<'a, T> {
    before: &'a [(Fingerprint, T)],
    next: usize,
    is_taken: Vec<bool>,
    by_identity: Option<HashMap<Fingerprint, usize>>,
    parts: Vec<(Fingerprint, T)>,
    numbers: Numbers,
}

impl<'a, T> Cataloger<'a, T> {
    pub(super) fn new(before: Option<&'a Catalog<T>>) -> Self {
        let (parts, numbers) = before.map_or((&[][..], Numbers::default()), |it| (&*it.parts, it.numbers.clone()));
        Cataloger {
            before: parts,
            next: 0,
            is_taken: vec![false; parts.len()],
            by_identity: None,
            parts: Vec::with_capacity(parts.len() + 1),
            numbers,
        }
    }

    /// The part of this identity that was there before, once.
    pub(super) fn find(&mut self, identity: Fingerprint) -> Option<&'a T> {
        let before = self.before;
        let index = match before.get(self.next) {
            Some((expected, _)) if *expected == identity => self.next,
            _ => {
                let index = |(index, (identity, _)): (usize, &(Fingerprint, T))| (*identity, index);
                let known = self.by_identity.get_or_insert_with(|| before.iter().enumerate().map(index).collect());
                *known.get(&identity)?
            }
        };
        if std::mem::replace(&mut self.is_taken[index], true) {
            return None;
        }
        self.next = index + 1;
        Some(&before[index].1)
    }

    /// The part that is expected next.
    pub(super) fn expected(&self) -> Option<&'a T> {
        self.before.get(self.next).map(|(_, part)| part)
    }

    pub(super) fn new_number(&mut self) -> usize {
        self.numbers.free.pop().unwrap_or_else(|| {
            self.numbers.next += 1;
            self.numbers.next - 1
        })
    }

    pub(super) fn add(&mut self, identity: Fingerprint, part: T) {
        self.parts.push((identity, part));
    }

    /// Ends with the new catalog, and the parts that were not found again. Their numbers are free from now on.
    pub(super) fn finish(mut self, number: impl Fn(&T) -> usize) -> (Catalog<T>, Vec<&'a T>) {
        let gone = self.before.iter().zip(&self.is_taken).filter(|(_, is_taken)| !**is_taken);
        let gone: Vec<&T> = gone.map(|((_, part), _)| part).collect();
        self.numbers.free.extend(gone.iter().map(|part| number(part)));
        (Catalog { parts: self.parts, numbers: self.numbers }, gone)
    }
}

/// The places of rules among each other, as numbers with room between them.
pub(super) struct Places {
    last: u64,
}

impl Places {
    /// So far apart are neighbours at first.
    const APART: u64 = 1 << 32;

    pub(super) fn new() -> Places {
        Places { last: 0 }
    }

    /// Whether the one that has this place may keep it.
    pub(super) fn keep(&mut self, place: u64) -> bool {
        let stays = place > self.last;
        if stays {
            self.last = place;
        }
        stays
    }

    /// A place after the last one, and before `next`; nothing if there is no room left.
    pub(super) fn before(&mut self, next: Option<u64>) -> Option<u64> {
        let place = match next {
            Some(next) if next > self.last => self.last + (next - self.last) / 2,
            // What comes next has moved, too.
            Some(_) => return None,
            None => self.last + Places::APART,
        };
        self.keep(place).then_some(place)
    }
}

/// Sets of plugins that were built, by what they were built from: those of the document before, and those that are used.
pub(super) struct Sets<'a> {
    before: Option<&'a HashMap<Fingerprint, BuiltSet>>,
    used: RefCell<HashMap<Fingerprint, BuiltSet>>,
}

impl<'a> Sets<'a> {
    pub(super) fn new(before: Option<&'a HashMap<Fingerprint, BuiltSet>>) -> Sets<'a> {
        Sets { before, used: RefCell::default() }
    }

    pub(super) fn find(&self, key: Fingerprint) -> Option<&'a BuiltSet> {
        let found = self.before?.get(&key)?;
        self.used.borrow_mut().insert(key, found.clone());
        Some(found)
    }

    pub(super) fn add(&self, key: Fingerprint, set: BuiltSet) {
        self.used.borrow_mut().insert(key, set);
    }

    pub(super) fn into_used(self) -> HashMap<Fingerprint, BuiltSet> {
        self.used.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Fingerprint {
        Fingerprint::of(name)
    }

    fn catalog(before: Option<&Catalog<usize>>, names: &[&str]) -> (Catalog<usize>, Vec<usize>, Vec<usize>) {
        let mut cataloger = Cataloger::new(before);
        let mut numbers = Vec::new();
        for name in names {
            let number = cataloger.find(of(name)).copied().unwrap_or_else(|| cataloger.new_number());
            cataloger.add(of(name), number);
            numbers.push(number);
        }
        let (catalog, gone) = cataloger.finish(|number| *number);
        (catalog, numbers, gone.into_iter().copied().collect())
    }

    #[test]
    fn parts_keep_their_numbers_wherever_they_stand() {
        let (first, numbers, _) = catalog(None, &["a", "b", "c"]);
        assert_eq!(numbers, [0, 1, 2]);
        let (second, numbers, gone) = catalog(Some(&first), &["c", "new", "a"]);
        assert_eq!((numbers, gone), (vec![2, 3, 0], vec![1]));
        let (_, numbers, gone) = catalog(Some(&second), &["a", "b", "b", "c"]);
        assert_eq!((numbers, gone), (vec![0, 1, 4, 2], vec![3]));
    }

    #[test]
    fn there_is_room_between_neighbours_until_there_is_none() {
        let mut places = Places::new();
        let (first, second) = (places.before(None), places.before(None));
        let (Some(first), Some(second)) = (first, second) else { panic!("there is room at the end") };
        let mut between = Places::new();
        assert!(between.keep(first));
        let count =
            std::iter::from_fn(|| between.before(Some(second))).take(1_000).inspect(|it| assert!(*it < second)).count();
        assert!((20..1_000).contains(&count), "{count}");
        assert!(between.keep(second) && !between.keep(first));
    }
}
