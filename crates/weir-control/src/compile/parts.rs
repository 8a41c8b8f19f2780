//! The compiled parts of one document, for the next document to reuse where it is unchanged.
//!
//! A part is found by its identity (the kind and id of its resource) and reused if its key, the fingerprint of all its inputs, is
//! the same. A part that caused a warning is compiled each time, since the warning has to be repeated.

use std::sync::Arc;

use foldhash::HashMap;
use weir_gateway::snapshot::{Pieces, Route, RouteTable, Upstream};
use weir_plugin::{Declaration, Identities, LoadedPlugins};

use super::built::BuiltSet;
use super::catalog::{Catalog, CompiledPart};
use super::dependencies::{Dependencies, Surroundings};
use crate::text::fingerprint::Fingerprint;

/// The parts of a compiled document.
#[derive(Clone)]
pub struct Parts {
    pub(super) surroundings: Surroundings,
    /// The fingerprint of everything that references could refer to; `None` if some of it must be compiled again in any case.
    pub(super) references: Option<Fingerprint>,
    /// The fingerprint of the inputs of the global rules; `None` if building caused a warning.
    pub(super) global: Option<Fingerprint>,
    /// The upstreams in lists of their own, in services, or in options of plugins.
    pub(super) upstreams: Arc<Catalog<UpstreamPart>>,
    pub(super) upstream_pieces: Pieces<Arc<Upstream>>,
    pub(super) routes: Arc<Catalog<CompiledRoute>>,
    pub(super) route_pieces: Pieces<Arc<Route>>,
    pub(super) table: RouteTable,
    pub(super) sets: Arc<HashMap<Fingerprint, BuiltSet>>,
    pub(super) identities: Arc<Identities>,
    /// Names of header fields that are secrets.
    pub(super) secret_fields: Vec<Box<[u8]>>,
    /// Kept so that the next document finds their code compiled, whether or not a resource uses it.
    #[expect(dead_code, reason = "only held")]
    pub(super) file_plugins: Arc<LoadedPlugins>,
}

impl Parts {
    /// The routes of the snapshot.
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
pub(super) struct CompiledRoute {
    /// Disabled routes have a number and no piece.
    pub(super) number: usize,
    pub(super) key: Option<Fingerprint>,
    /// The inputs of its own plugins besides their options, and whether it has references.
    pub(super) depends_on: Dependencies,
    /// The fingerprint of the inputs of its rule in the route table; `None` if it has none.
    pub(super) rule: Option<Fingerprint>,
    /// The sort key of its rule among all rules.
    pub(super) order: u64,
    /// The declarations of its own plugins.
    pub(super) declarations: Option<Arc<[Declaration]>>,
    /// Its inline upstream.
    pub(super) upstream: Option<UpstreamPart>,
}

impl CompiledPart for UpstreamPart {
    fn number(&self) -> usize {
        self.number
    }

    fn depends_on(&self) -> Option<Dependencies> {
        self.key.map(|_| self.depends_on)
    }

    fn declarations(&self) -> Option<&Arc<[Declaration]>> {
        None
    }
}

impl CompiledPart for CompiledRoute {
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

    fn declarations(&self) -> Option<&Arc<[Declaration]>> {
        self.declarations.as_ref()
    }
}

/// Assigns sort keys to rules, with gaps for later insertions.
pub(super) struct Places {
    last: u64,
}

impl Places {
    /// The distance between neighbours at first.
    const APART: u64 = 1 << 32;

    pub(super) fn new() -> Places {
        Places { last: 0 }
    }

    /// Whether rules with these sort keys, in ascending order, may keep them.
    pub(super) fn keep_all(&mut self, first: u64, last: u64) -> bool {
        first > self.last && self.keep(last)
    }

    /// Whether the rule with this sort key may keep it: it must follow the previous one.
    pub(super) fn keep(&mut self, place: u64) -> bool {
        let stays = place > self.last;
        if stays {
            self.last = place;
        }
        stays
    }

    /// A sort key after the last one and before `next`; `None` if there is no gap.
    pub(super) fn before(&mut self, next: Option<u64>) -> Option<u64> {
        let place = match next {
            Some(next) if next > self.last => self.last + (next - self.last) / 2,
            // The rule after it has moved as well.
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
