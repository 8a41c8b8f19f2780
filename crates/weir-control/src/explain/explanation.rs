//! The answer to how a request is handled, in words.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::document::SPLITTING;

/// Of a file, or of a running node, whose Admin API answers with these members. Its `Display` prints short tables.
#[derive(Debug, Deserialize)]
pub struct Explanation {
    /// The id of the chosen route; `None` if none matches.
    pub route: Option<Box<str>>,
    /// Why the route in the store is set aside: something else is served in its place.
    #[serde(default)]
    pub(super) set_aside: Option<String>,
    /// Of an https request: why it does not reach its route, or only with a certificate of its client.
    #[serde(default)]
    pub(super) handshake: Option<String>,
    /// If no route matches: a path that one takes, and that differs by its last slash alone.
    #[serde(default)]
    pub(super) near: Option<NearPath>,
    /// Whether the host is one that is served on the port.
    #[serde(default = "has_listener")]
    pub(super) has_listener: bool,
    /// Routes in the order in which they are tried.
    pub(super) candidates: Vec<ExplainedCandidate>,
    /// The key of the resource that has the upstream, such as `upstreams/u1`, or of the hub: `hubs/h1`.
    #[serde(default)]
    pub(super) upstream: Option<Box<str>>,
    /// In the order in which they run.
    pub(super) plugins: Vec<ExplainedRow>,
    /// Whether a plugin identifies the consumer, whose plugins then run as well.
    pub(super) knows_consumers: bool,
}

/// Of a node that does not say it.
fn has_listener() -> bool {
    true
}

/// A path, and the route that takes it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct NearPath {
    pub path: String,
    pub route: Box<str>,
}

/// A route whose path matches.
#[derive(Debug, Deserialize)]
pub(super) struct ExplainedCandidate {
    pub route: Box<str>,
    pub host: Option<String>,
    pub uri: String,
    /// Why it is chosen, or not.
    pub reason: String,
}

/// A plugin that runs.
#[derive(Debug, Deserialize)]
pub(super) struct ExplainedRow {
    pub name: Box<str>,
    pub stage: String,
    pub priority: i64,
    /// The kind and id of the resource that contains it.
    pub source: String,
    /// The resources of `upstreams` that its options refer to: where it sends shares of the traffic, or fetches pages.
    #[serde(default)]
    pub upstreams: Vec<String>,
    pub off: bool,
    /// The plugin before it that answers all requests.
    #[serde(default)]
    pub unreached: Option<Box<str>>,
    /// Its cost, if known.
    #[serde(skip)]
    pub price: Option<String>,
}

impl Explanation {
    /// Sets the cost of each plugin.
    pub fn tell_prices(&mut self, price_of: impl Fn(&str) -> String) {
        self.plugins.iter_mut().for_each(|row| row.price = Some(price_of(&row.name)));
    }
}

impl Explanation {
    /// What comes before the routes that are tried, and that none takes the request.
    fn write_route(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { route, handshake, near, has_listener, .. } = self;
        if let Some(handshake) = handshake {
            writeln!(f, "{handshake}")?;
        }
        match route {
            None if !has_listener => {
                writeln!(
                    f,
                    "No listener of `listeners` has this host on this port, so no route is tried; the answer is 404."
                )?;
            }
            None => writeln!(f, "No route matches; the answer is 404.")?,
            Some(_) => {}
        }
        if let Some(NearPath { path, route }) = near {
            writeln!(f, "The path `{path}`, which differs by its last slash, is that of route/{route}.")?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_route(f)?;
        let Explanation { route, candidates, upstream, plugins, knows_consumers, .. } = self;
        if !candidates.is_empty() {
            writeln!(f, "Routes whose path matches:")?;
        }
        for ExplainedCandidate { route, host, uri, reason } in candidates {
            let place = format!("{}{uri}", host.as_deref().unwrap_or_default());
            writeln!(f, "  route/{route:<20} {place:<32} {reason}")?;
        }
        if let Some(problem) = &self.set_aside {
            let instead = "In its place its last good version is served, or, if there is none, a closed form, whose requests get 503";
            writeln!(f, "What the store has of this route is set aside: {problem}. {instead} (`no_upstream`):")?;
        }
        let splits = |row: &&ExplainedRow| *row.name == *SPLITTING.plugin && !row.off;
        let unless = match plugins.iter().find(splits) {
            Some(row) => format!(", unless `{}` chooses another", row.name),
            None => String::new(),
        };
        match upstream {
            Some(upstream) => writeln!(f, "Upstream: {upstream}{unless}")?,
            None if route.is_some() => {
                writeln!(f, "Upstream: none{unless}; a request that no plugin answers gets 503 (`no_upstream`)")?;
            }
            None => {}
        }
        if !plugins.is_empty() {
            writeln!(f, "Plugins in the order in which they run:")?;
        }
        for ExplainedRow { name, stage, priority, source, upstreams, off, unreached, price } in plugins {
            let uses = if upstreams.is_empty() { String::new() } else { format!(" (uses {})", upstreams.join(", ")) };
            let off = if *off { " (off)" } else { "" };
            let price = price.as_ref().map(|price| format!(": {price}")).unwrap_or_default();
            let unreached = unreached.as_ref().map(|by| format!(" (not reached by requests: `{by}` answers)"));
            let unreached = unreached.unwrap_or_default();
            writeln!(f, "  {stage:<8} {priority:>6} {name:<22} from {source}{uses}{off}{unreached}{price}")?;
        }
        if *knows_consumers {
            writeln!(
                f,
                "Once the consumer is known, the plugins of the consumer and its group take precedence over the route's."
            )?;
        }
        Ok(())
    }
}
