//! Values that are used in more than one place: changing one would change others.

use std::collections::{HashMap, HashSet};

use super::EditProblem;
use super::syntax::{SyntaxEntry, SyntaxKind, SyntaxNode};

/// The places of the aliases of an anchor.
fn aliases(root: &SyntaxNode, anchor: usize) -> Vec<usize> {
    let mut found = Vec::new();
    root.visit(&mut |node| {
        if matches!(node.kind, SyntaxKind::Alias(of) if of == anchor) {
            found.push(node.start);
        }
    });
    found
}

/// Refuses to change what is inside of an alias, or of a value that has aliases.
pub(super) fn refuse_shared(root: &SyntaxNode, node: &SyntaxNode) -> Result<(), EditProblem> {
    if let SyntaxKind::Alias(_) = node.kind {
        let problem = "the value is an alias, and cannot be changed here without changing others";
        return Err(EditProblem::at(
            node.start,
            problem,
            "change the value of its anchor, or write the whole value here",
        ));
    }
    let used = if node.anchor > 0 { aliases(root, node.anchor) } else { Vec::new() };
    match used.first() {
        None => Ok(()),
        Some(alias) => Err(EditProblem {
            also: Some(*alias),
            ..EditProblem::at(
                node.start,
                "the value has an anchor, and cannot be changed without changing others",
                "change it in the text",
            )
        }),
    }
}

/// Refuses to remove a value in which there is an anchor that is used elsewhere.
pub(super) fn refuse_loss(root: &SyntaxNode, node: &SyntaxNode) -> Result<(), EditProblem> {
    let mut anchors = Vec::new();
    node.visit(&mut |node| anchors.extend((node.anchor > 0).then_some((node.anchor, node.start))));
    for (anchor, start) in anchors {
        let elsewhere = |alias: &usize| *alias < node.start || *alias >= node.end;
        if let Some(alias) = aliases(root, anchor).into_iter().find(elsewhere) {
            return Err(EditProblem {
                also: Some(alias),
                ..EditProblem::at(start, "the value has an anchor that is used elsewhere", "change it in the text")
            });
        }
    }
    Ok(())
}

/// Refuses to move a value to a place above the anchor of an alias in it.
pub(super) fn refuse_above(root: &SyntaxNode, node: &SyntaxNode, place: usize) -> Result<(), EditProblem> {
    let mut used = Vec::new();
    node.visit(&mut |node| {
        used.extend(if let SyntaxKind::Alias(of) = node.kind { Some((of, node.start)) } else { None })
    });
    let mut late = None;
    root.visit(&mut |other| {
        let is_late = other.start >= place && !(node.start..node.end).contains(&other.start);
        let alias = used.iter().find(|(of, _)| is_late && other.anchor == *of);
        late = late.or(alias.map(|(_, alias)| *alias));
    });
    match late {
        None => Ok(()),
        Some(alias) => Err(EditProblem::at(alias, "an alias would stand above its anchor", "move it in the text")),
    }
}

/// Whether a map gets a key from another one, by `<<`.
pub(super) fn is_merged(root: &SyntaxNode, entries: &[SyntaxEntry], key: &str) -> bool {
    Merges::of(root).any_has(entries, key)
}

/// The values with anchors of a text.
struct Merges<'t> {
    anchored: HashMap<usize, &'t SyntaxNode>,
}

impl<'t> Merges<'t> {
    fn of(root: &'t SyntaxNode) -> Merges<'t> {
        let (mut anchored, mut pending) = (HashMap::new(), vec![root]);
        while let Some(node) = pending.pop() {
            if node.anchor > 0 {
                anchored.insert(node.anchor, node);
            }
            match &node.kind {
                SyntaxKind::Map { entries, .. } => pending.extend(entries.iter().map(|entry| &entry.value)),
                SyntaxKind::List { items, .. } => pending.extend(items.iter().map(|item| &item.value)),
                _ => {}
            }
        }
        Merges { anchored }
    }

    /// Whether what these entries merge has a key. Each anchor is looked at once, however often and deeply aliases name it.
    fn any_has(&self, entries: &'t [SyntaxEntry], key: &str) -> bool {
        let merged =
            |entries: &'t [SyntaxEntry]| entries.iter().filter(|entry| entry.is_merge).map(|entry| &entry.value);
        let (mut pending, mut seen): (Vec<&SyntaxNode>, HashSet<usize>) = (merged(entries).collect(), HashSet::new());
        while let Some(value) = pending.pop() {
            match &value.kind {
                SyntaxKind::Map { entries, .. } => {
                    if entries.iter().any(|entry| !entry.is_merge && *entry.key == *key) {
                        return true;
                    }
                    pending.extend(merged(entries));
                }
                SyntaxKind::List { items, .. } => pending.extend(items.iter().map(|item| &item.value)),
                SyntaxKind::Alias(anchor) if seen.insert(*anchor) => pending.extend(self.anchored.get(anchor)),
                _ => {}
            }
        }
        false
    }
}
