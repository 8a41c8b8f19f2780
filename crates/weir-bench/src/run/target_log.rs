//! What a target writes to its log.

use std::{fs, path::Path};

use crate::target::{Child, PeerDefinition};

/// Lines of a target's log that a run keeps.
const KEPT_ERRORS: usize = 20;

/// The log so far: the output of the process, and the file that the peer's definition names.
pub(super) fn text(child: &Child, peer: &PeerDefinition, dir: &Path) -> String {
    let mut text = child.output();
    if let Some(name) = &peer.log {
        text.push_str(&fs::read_to_string(dir.join(name)).unwrap_or_default());
    }
    text
}

/// The first errors in a log from byte `start` on.
pub(super) fn errors(log: &str, start: usize, peer: &PeerDefinition) -> Vec<String> {
    let lines = log.get(start..).unwrap_or_default().lines();
    let errors = lines.filter(|line| peer.log_errors.iter().any(|word| line.contains(word.as_str())));
    errors.take(KEPT_ERRORS).map(str::to_owned).collect()
}
