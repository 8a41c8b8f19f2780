//! Diagnostics: a problem in a configuration, its place, and advice.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
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
    /// It refers to another resource, by its key in a store such as `upstreams/u`, that is not there or not served.
    Missing(Box<MissingResource>),
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

    /// That of a file which cannot be read: it is outside, unless the resource may not name the file at all.
    pub fn of_unread_file(reason: &str) -> FaultCause {
        if AllowedFolders::is_refusal(reason) { FaultCause::Text } else { FaultCause::Outside }
    }
}

impl Diagnostic {
    /// A fault of the source as a whole, such as an unreadable or too large file.
    pub fn of_source(source: &Arc<str>, problem: impl Into<String>) -> Self {
        Diagnostic {
            source: source.clone(),
            path: String::new(),
            line: None,
            column: None,
            problem: problem.into(),
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

/// Collects the diagnostics of one document, so that all are reported at once.
#[derive(Debug)]
pub struct Faults {
    source: Arc<str>,
    kept: RefCell<Vec<Diagnostic>>,
    /// The same diagnostics as in `kept`.
    known: RefCell<HashSet<Diagnostic>>,
    unlisted: Cell<usize>,
    /// The most diagnostics that are listed.
    limit: usize,
}

impl Faults {
    pub fn new(source: Arc<str>) -> Self {
        Faults { source, kept: RefCell::default(), known: RefCell::default(), unlisted: Cell::new(0), limit: KEPT }
    }

    /// Lists all diagnostics, however many there are: the faults of a store's resources, each of which sets its resource aside.
    pub fn unlimited(source: Arc<str>) -> Self {
        Faults { limit: usize::MAX, ..Faults::new(source) }
    }

    pub fn report(&self, path: &TreePath<'_>, place: TextPosition, problem: impl Into<String>, advice: Option<String>) {
        self.report_text(&path.to_string(), place, problem, advice);
    }

    /// Whether there are so many faults that advice for further ones need not be computed.
    pub fn is_full(&self) -> bool {
        self.kept.borrow().len() >= KEPT
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

    pub fn add(&self, diagnostic: Diagnostic) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() == self.limit {
            self.unlisted.set(self.unlisted.get() + 1);
            return;
        }
        // A fault of something that several resources refer to is reported once.
        if self.known.borrow_mut().insert(diagnostic.clone()) {
            kept.push(diagnostic);
        }
    }

    /// All diagnostics, in the order of the text.
    pub fn into_diagnostics(self) -> Vec<Diagnostic> {
        let mut all = self.kept.into_inner();
        // The sort is stable: faults at one position stay in the order in which they were found.
        all.sort_by_key(|found| (found.line, found.column));
        if self.unlisted.get() > 0 {
            let more = format!("{} more faults are not listed", self.unlisted.get());
            all.push(Diagnostic::of_source(&self.source, more).advise("correct these first"));
        }
        all
    }
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
}
