//! A type name means one thing in the whole workspace.

use std::collections::BTreeMap;

use crate::Problems;
use crate::structure::{crates, sources};

/// Finds types that are declared in more than one place of the crates, their tests left out.
pub(crate) fn type_names() -> Result<Problems, Problems> {
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in crates()? {
        for (path, text) in sources(&name)? {
            for (line, name) in declarations(&text) {
                declared.entry(name.to_owned()).or_default().push(format!("{path}:{line}"));
            }
        }
    }
    let repeated = declared.into_iter().filter(|(_, places)| places.len() > 1);
    Ok(repeated
        .map(|(name, places)| {
            format!("`{name}` is the name of {} types ({}); give each its own", places.len(), places.join(", "))
        })
        .collect())
}

/// The types declared at the level of modules: line and name. What is declared inside of functions and traits stays there.
fn declarations(text: &str) -> impl Iterator<Item = (usize, &str)> {
    const KINDS: [&str; 5] = ["struct ", "enum ", "trait ", "type ", "union "];
    text.lines().enumerate().filter_map(|(index, line)| {
        let visible = line.strip_prefix("pub").map(|rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
        let declaration = visible.unwrap_or(line);
        let rest = KINDS.iter().find_map(|kind| declaration.strip_prefix(kind))?;
        let name = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
        Some((index + 1, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_modules_are_found_and_those_inside_of_others_are_not() {
        let source =
            "pub struct A<T>(T);\npub(crate) enum B {\n    struct C;\n}\ntrait D {\n    type E;\n}\nfn f() {}\n";
        let found: Vec<(usize, &str)> = declarations(source).collect();
        assert_eq!(found, [(1, "A"), (2, "B"), (5, "D")]);
    }
}
