//! Diagnostics: a problem in a configuration, its place, and advice.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serde::Serialize;
use weir_client::without_users;
use weir_plugin::AllowedFolders;

use crate::text::tree::{TextPosition, TreePath};

/// One fault of a configuration. A configuration with any fault is refused as a whole.
///
/// Displays as `weir.yaml:12:7: routes[2].upstream.nodes: <problem>; <advice>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Diagnostic {
    /// The file, or another source of the configuration.
    pub source: Arc<str>,
    /// The path in the structure, such as `routes[2].upstream.nodes`; empty for the document itself.
    pub path: String,
    /// Line in the source, from 1; absent if the configuration has no text.
    pub line: Option<u32>,
    /// Column in characters, from 1.
    pub column: Option<u32>,
    /// The problem.
    pub problem: String,
    /// How to correct it, if known.
    pub advice: Option<String>,
    #[serde(skip)]
    pub cause: FaultCause,
}

/// Where the cause of a fault is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum FaultCause {
    /// In the text of the configuration.
    #[default]
    Text,
    /// Outside: a secret, a file, a variable of the environment, the time. The same text may be right at another time or on
    /// another machine.
    Outside,
    /// Outside as well: a service on another machine, or a file system, that does not answer at the moment.
    Away,
    /// It refers to another resource, by its key in a store such as `upstreams/u`, that is not there or not served.
    Missing(Box<MissingResource>),
    /// Two resources have a secret in common, such as the key of consumers: both, by their keys in a store. Who may not read the secrets
    /// of both is not told which they are.
    SameSecret(Box<[Box<str>; 2]>),
}

/// A resource that another one refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MissingResource {
    pub key: Box<str>,
}

impl FaultCause {
    pub fn missing(list: &str, id: &str) -> FaultCause {
        FaultCause::Missing(Box::new(MissingResource { key: format!("{list}/{id}").into() }))
    }

    /// Whether the same text may be right at another time or on another machine.
    pub fn is_outside(&self) -> bool {
        matches!(self, FaultCause::Outside | FaultCause::Away)
    }

    /// That of a file which cannot be read: it is outside, unless the resource may not name the file at all.
    pub fn of_unread_file(reason: &str) -> FaultCause {
        if AllowedFolders::is_refusal(reason) { FaultCause::Text } else { FaultCause::Outside }
    }
}

impl Diagnostic {
    /// A fault of the source as a whole, such as an unreadable or too large file. User and password of a URL that the problem quotes
    /// are left out.
    pub fn of_source(source: &Arc<str>, problem: impl Into<String>) -> Self {
        Diagnostic {
            source: source.clone(),
            path: String::new(),
            line: None,
            column: None,
            problem: without_users(&problem.into()).into_owned(),
            advice: None,
            cause: FaultCause::Text,
        }
    }

    /// Marks the fault as caused by something outside of the configuration.
    #[must_use]
    pub fn outside(mut self) -> Self {
        self.cause = FaultCause::Outside;
        self
    }

    /// Marks the fault as caused by a service, or a file system, that does not answer.
    #[must_use]
    pub fn away(mut self) -> Self {
        self.cause = FaultCause::Away;
        self
    }

    pub fn at_place(source: &Arc<str>, place: TextPosition, problem: impl Into<String>) -> Self {
        Self::of_source(source, problem).placed(place)
    }

    pub fn placed(mut self, place: TextPosition) -> Self {
        (self.line, self.column) = (place.known().then_some(place.line), place.known().then_some(place.column));
        self
    }

    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, ":{line}:{column}")?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.problem)?;
        if let Some(advice) = &self.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

/// The most diagnostics of a file that are listed; further ones are only counted.
const KEPT: usize = 1_000;
/// The same for each resource of a store: one is enough to set the resource aside.
const KEPT_OF_RESOURCE: usize = 100;
/// The first faults may have a suggestion.
const SUGGESTED: usize = 100;
/// The most bytes of a path: a key in it may be as long as a body. What follows the position of a resource is cut.
const MOST_PATH: usize = 2 << 10;

/// Collects the diagnostics of one document, so that all are reported at once.
#[derive(Debug)]
pub struct Faults {
    source: Arc<str>,
    kept: RefCell<Vec<Diagnostic>>,
    /// The hashes of the diagnostics in `kept`.
    known: RefCell<HashSet<u64>>,
    hasher: RandomState,
    /// The diagnostics that are not listed.
    unlisted: Cell<usize>,
    /// In a store, those of each resource; `None` in a file.
    of_resources: Option<RefCell<HashMap<Box<str>, ResourceFaults>>>,
}

/// The diagnostics of a resource.
#[derive(Debug, Default)]
struct ResourceFaults {
    listed: usize,
    unlisted: usize,
    /// Whether one that is not listed has its cause in the text.
    has_unlisted_of_text: bool,
}

impl Faults {
    pub fn new(source: Arc<str>) -> Self {
        Faults {
            source,
            kept: RefCell::default(),
            known: RefCell::default(),
            hasher: RandomState::new(),
            unlisted: Cell::new(0),
            of_resources: None,
        }
    }

    /// Lists diagnostics of each resource, however many resources there are: each fault of a store's resource sets it aside.
    pub fn of_each_resource(source: Arc<str>) -> Self {
        Faults { of_resources: Some(RefCell::default()), ..Faults::new(source) }
    }

    pub fn report(&self, path: &TreePath<'_>, place: TextPosition, problem: impl Into<String>, advice: Option<String>) {
        self.report_text(&path.to_string(), place, problem, advice);
    }

    /// Whether there are so many faults that further ones get no suggestions, which take a look at all that could be meant.
    pub fn has_suggested(&self) -> bool {
        self.kept.borrow().len() >= SUGGESTED
    }

    /// Whether there are so many faults that one at this path will not be listed, so that advice for it need not be computed.
    pub fn is_full_for(&self, path: &TreePath<'_>) -> bool {
        match &self.of_resources {
            None => self.kept.borrow().len() >= KEPT,
            Some(of_resources) => {
                let of_resources = of_resources.borrow();
                let faults = of_resources.get(resource_of(&path.to_string()));
                faults.is_some_and(|faults| faults.listed >= KEPT_OF_RESOURCE)
            }
        }
    }

    /// The number of faults reported, listed or not.
    pub fn count(&self) -> usize {
        self.kept.borrow().len() + self.unlisted.get()
    }

    /// Like [`Faults::report`], with the path as text.
    pub fn report_text(&self, path: &str, place: TextPosition, problem: impl Into<String>, advice: Option<String>) {
        let diagnostic = Diagnostic::at_place(&self.source, place, problem);
        self.add(Diagnostic { path: path.to_owned(), advice, ..diagnostic });
    }

    pub fn add(&self, mut diagnostic: Diagnostic) {
        if !self.has_room_for(&diagnostic) {
            self.unlisted.set(self.unlisted.get() + 1);
            return;
        }
        if diagnostic.path.len() > MOST_PATH {
            diagnostic.path.truncate(diagnostic.path.floor_char_boundary(MOST_PATH));
            diagnostic.path.push('…');
        }
        // A fault of something that several resources refer to is reported once.
        if self.known.borrow_mut().insert(self.hasher.hash_one(&diagnostic)) {
            self.kept.borrow_mut().push(diagnostic);
        }
    }

    fn has_room_for(&self, diagnostic: &Diagnostic) -> bool {
        let Some(of_resources) = &self.of_resources else { return self.kept.borrow().len() < KEPT };
        let mut of_resources = of_resources.borrow_mut();
        let resource = resource_of(&diagnostic.path);
        if !of_resources.contains_key(resource) {
            of_resources.insert(resource.into(), ResourceFaults::default());
        }
        let of_resource = of_resources.get_mut(resource).expect("it is there by now");
        if of_resource.listed < KEPT_OF_RESOURCE {
            of_resource.listed += 1;
            return true;
        }
        of_resource.unlisted += 1;
        of_resource.has_unlisted_of_text |= !diagnostic.cause.is_outside();
        false
    }

    /// All diagnostics, in the order of the text.
    pub fn into_diagnostics(self) -> Vec<Diagnostic> {
        let Faults { source, kept, unlisted, of_resources, .. } = self;
        let mut all = kept.into_inner();
        // The sort is stable: faults at one position stay in the order in which they were found.
        all.sort_by_key(|found| (found.line, found.column));
        let more = |unlisted: usize| {
            Diagnostic::of_source(&source, format!("{unlisted} more faults are not listed"))
                .advise("correct these first")
        };
        match of_resources {
            None if unlisted.get() > 0 => all.push(more(unlisted.get())),
            None => {}
            Some(of_resources) => {
                let cut = of_resources.into_inner().into_iter().filter(|(_, faults)| faults.unlisted > 0);
                all.extend(cut.map(|(resource, faults)| {
                    let cause = if faults.has_unlisted_of_text { FaultCause::Text } else { FaultCause::Outside };
                    Diagnostic { path: resource.into(), cause, ..more(faults.unlisted) }
                }));
            }
        }
        all
    }
}

/// The part of a path that names a resource of a list, such as `routes[r1]`; of other paths the first key.
fn resource_of(path: &str) -> &str {
    let end = path.find(']').map_or_else(|| path.find('.'), |end| Some(end + 1));
    &path[..end.unwrap_or(path.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tree::PathStep;

    #[test]
    fn a_diagnostic_reads_as_one_line() {
        let source: Arc<str> = "weir.yaml".into();
        let found =
            Diagnostic::at_place(&source, TextPosition { line: 12, column: 7 }, "is empty").advise("name a node");
        let found = Diagnostic { path: "routes[2].upstream.nodes".into(), ..found };
        assert_eq!(found.to_string(), "weir.yaml:12:7: routes[2].upstream.nodes: is empty; name a node");
        assert_eq!(Diagnostic::of_source(&source, "is not there").to_string(), "weir.yaml: is not there");
    }

    #[test]
    fn too_many_faults_are_counted_and_the_rest_is_in_order() {
        let faults = Faults::new("x".into());
        for line in (1..=1_003).rev() {
            let root = TreePath::ROOT;
            faults.report(&TreePath::below(&root, PathStep::Key("a")), TextPosition { line, column: 1 }, "wrong", None);
        }
        let all = faults.into_diagnostics();
        assert_eq!(all.len(), 1_001);
        assert_eq!(all[0].line, Some(4));
        assert_eq!(all[1_000].problem, "3 more faults are not listed");
    }

    #[test]
    fn each_resource_of_a_store_has_faults_and_a_bound() {
        let faults = Faults::of_each_resource("store".into());
        let nowhere = TextPosition::default();
        for resource in 0..2_000 {
            faults.report_text(&format!("routes[{resource}].uri"), nowhere, "wrong", None);
        }
        for key in 0..150 {
            faults.report_text(&format!("routes[7].k{key}"), nowhere, "unknown", None);
            let fault = Diagnostic::of_source(&"store".into(), format!("away {key}")).outside();
            faults.add(Diagnostic { path: "routes[8].file".into(), ..fault });
        }
        faults.report_text(&format!("routes[9][\"{}\"]", "k".repeat(1 << 20)), nowhere, "unknown", None);
        let all = faults.into_diagnostics();
        assert_eq!(all.len(), 2_000 + 99 + 99 + 2 + 1);
        let more =
            |path: &str| all.iter().find(|found| found.path == path).map(|found| (&*found.problem, &found.cause));
        assert_eq!(more("routes[7]"), Some(("51 more faults are not listed", &FaultCause::Text)));
        assert_eq!(more("routes[8]"), Some(("51 more faults are not listed", &FaultCause::Outside)));
        assert!(all.iter().all(|found| found.path.len() <= MOST_PATH + 3));
    }
}
