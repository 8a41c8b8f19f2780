//! Plugins that no request comes to, since one before them answers all.

use weir_gateway::snapshot::{ChainReach, Link};

/// They still see the responses.
#[derive(Debug, Default)]
pub(crate) struct UnreachedPlugins {
    /// The plugin that answers.
    pub(crate) behind: &'static str,
    all: Vec<(&'static str, ChainReach)>,
}

impl UnreachedPlugins {
    /// Of those that see the requests of a route, in their order.
    pub(super) fn of(chain: &[Link]) -> UnreachedPlugins {
        let Some(index) = chain.iter().position(|link| link.step.answers_all()) else { return Self::default() };
        let all = chain[index + 1..].iter().map(|link| (link.name, link.rank.reach)).collect();
        UnreachedPlugins { behind: chain[index].name, all }
    }

    pub(crate) fn has(&self, name: &str, reach: ChainReach) -> bool {
        self.all.iter().any(|(known, known_reach)| *known == name && *known_reach == reach)
    }
}
