//! What compiling one document has made, for the next one to use again where it says the same.
//!
//! A part is found by its identity (the kind and id of what it was made from) and used again if its key, which is everything it
//! was made from, is the same. What caused a warning is made anew each time, since the warning has to be given again.

use std::sync::Arc;

use foldhash::HashMap;
use weir_gateway::snapshot::{Pieces, Route, RouteTable, Upstream};
use weir_plugin::Declaration;

use super::built::BuiltSet;
use super::catalog::{Catalog, CompiledPart};
use super::dependencies::{Dependencies, Surroundings};
use crate::text::fingerprint::Fingerprint;

/// The parts of a compiled document.
#[derive(Clone)]
pub struct Parts {
    pub(super) surroundings: Surroundings,
    /// What references could refer to; nothing if something of it must be compiled again in any case.
    pub(super) references: Option<Fingerprint>,
    /// What the global rules were made from; nothing if that caused a warning.
    pub(super) global: Option<Fingerprint>,
    /// Those that stand in lists of their own, in services, or in options of plugins.
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
    pub(super) depends_on: Dependencies,
}

#[derive(Clone)]
pub(super) struct RoutePart {
    /// Routes that are switched off have a number and no piece.
    pub(super) number: usize,
    pub(super) key: Option<Fingerprint>,
    /// What its own plugins were built from besides their options, and what it refers to.
    pub(super) depends_on: Dependencies,
    /// What its rule in the table was made from; nothing if it has none.
    pub(super) rule: Option<Fingerprint>,
    /// Its place among the rules.
    pub(super) order: u64,
    /// What its own plugins have told.
    pub(super) told: Option<Arc<[Declaration]>>,
    /// The upstream that stands in it.
    pub(super) upstream: Option<UpstreamPart>,
}

impl CompiledPart for UpstreamPart {
    fn number(&self) -> usize {
        self.number
    }

    fn depends_on(&self) -> Option<Dependencies> {
        self.key.map(|_| self.depends_on)
    }

    fn told(&self) -> Option<&Arc<[Declaration]>> {
        None
    }
}

impl CompiledPart for RoutePart {
    fn number(&self) -> usize {
        self.number
    }

    fn depends_on(&self) -> Option<Dependencies> {
        self.key?;
        let of_upstream = match &self.upstream {
            Some(upstream) => upstream.depends_on()?,
            None => Dependencies::default(),
        };
        Some(self.depends_on | of_upstream)
    }

    fn told(&self) -> Option<&Arc<[Declaration]>> {
        self.told.as_ref()
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

    /// Whether those that have these places, in order, may keep them.
    pub(super) fn keep_all(&mut self, first: u64, last: u64) -> bool {
        first > self.last && self.keep(last)
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

#[cfg(test)]
mod tests {
    use super::*;

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
