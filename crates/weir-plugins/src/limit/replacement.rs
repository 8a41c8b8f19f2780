//! A limit that `workflow` has chosen for a request replaces the route's plugin of that name.

use std::sync::LazyLock;

use weir_plugin::{Build, Exchange, NoteKey};

/// The note of a request for which `workflow` has chosen a limit.
pub(crate) type Replacement = LazyLock<NoteKey>;

pub(crate) static LIMIT_COUNT: Replacement = LazyLock::new(NoteKey::unique);
pub(crate) static LIMIT_CONN: Replacement = LazyLock::new(NoteKey::unique);

/// Lets a limit find out whether `workflow` has replaced it for a request. A limit within another plugin is never replaced.
pub(crate) struct Replaceable(Option<&'static Replacement>);

impl Replaceable {
    pub(crate) fn new(by: &'static Replacement, build: &Build) -> Replaceable {
        Replaceable((!build.is_part()).then_some(by))
    }

    /// Of a limit that `workflow` does not know.
    pub(crate) fn never() -> Replaceable {
        Replaceable(None)
    }

    #[inline]
    pub(crate) fn is_replaced(&self, exchange: &Exchange) -> bool {
        self.0.is_some_and(|by| exchange.notes.read(**by).is_some())
    }
}
