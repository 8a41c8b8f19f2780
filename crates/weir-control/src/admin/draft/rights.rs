//! What the texts of a draft may use of the node: no other files, and no other variables of the environment, than the files use already.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::trees::{CHOICES, environment_reference, for_each_text, tree};
use crate::stores::draft::DraftFile;
use crate::text::diagnostic::Diagnostic;
use crate::text::edit::position;
use crate::text::substitute::{process_environment, variables};

/// Refuses what the files as they are do not use.
///
/// # Errors
/// The faults of the texts, or the places of what they may not use.
pub(super) fn refuse_more(before: &[DraftFile], sent: &[DraftFile]) -> Result<(), Vec<Diagnostic>> {
    if sent.is_empty() {
        return Ok(());
    }
    let mut used = BTreeSet::new();
    for file in before {
        used.extend(written_variables(file)?.into_iter().map(|(name, _)| name));
    }
    // Before anything is made of the values of variables.
    let mut faults = Vec::new();
    for file in sent {
        let unknown = written_variables(file)?.into_iter().filter(|(name, _)| !used.contains(name));
        faults.extend(unknown.take(MOST_TOLD).map(|(name, at)| {
            Diagnostic::at_place(&source(file), position(&file.text, at), other_variable(&name)).advise(ADVICE)
        }));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    for file in before {
        used.extend(references(file)?.into_iter().map(|(name, _)| name));
    }
    for file in sent {
        faults.extend(references(file)?.into_iter().filter(|(name, _)| !used.contains(name)).map(|(_, fault)| fault));
        let own = before.iter().find(|own| own.name == file.name);
        faults.extend(own.map(|own| other_include(own, file)).transpose()?.flatten());
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// The most variables of a file that are refused with their places, each of which is counted from the beginning of the text.
const MOST_TOLD: usize = 100;

const ADVICE: &str = "write the value itself, or add the variable to the file by hand";

fn other_variable(name: &str) -> String {
    format!("the files of this node do not use the environment variable `{name}`, and so a draft may not")
}

fn source(file: &DraftFile) -> Arc<str> {
    (&*file.name).into()
}

/// The names in `${{NAME}}`, each with its offset.
fn written_variables(file: &DraftFile) -> Result<Vec<(Box<str>, usize)>, Vec<Diagnostic>> {
    let found = variables(&source(file), &file.text)?;
    Ok(found.into_iter().map(|(name, range)| (name, range.start)).collect())
}

/// The names in `$env://NAME`, each with the fault that it would be.
fn references(file: &DraftFile) -> Result<Vec<(Box<str>, Diagnostic)>, Vec<Diagnostic>> {
    let (source, mut found) = (source(file), Vec::new());
    for choice in CHOICES {
        for_each_text(&tree(file, &process_environment, choice)?, &mut |text, place| {
            if let Some(name) = environment_reference(text) {
                let fault = Diagnostic::at_place(&source, place, other_variable(name)).advise(ADVICE);
                found.push((name.into(), fault));
            }
        });
    }
    Ok(found)
}

/// A file that includes others than before.
fn other_include(before: &DraftFile, now: &DraftFile) -> Result<Option<Diagnostic>, Vec<Diagnostic>> {
    for choice in CHOICES {
        let (before, after) = (tree(before, &process_environment, choice)?, tree(now, &process_environment, choice)?);
        let [old, new] = [&before, &after].map(|tree| tree.entry("include"));
        if old.map(|entry| entry.value.to_json()) != new.map(|entry| entry.value.to_json()) {
            let place = new.map_or(after.place, |entry| entry.key_place);
            let fault = Diagnostic::at_place(&source(now), place, "a draft cannot change it");
            let fault = fault.advise("leave it as it is, or change it by hand");
            return Ok(Some(Diagnostic { path: "include".to_owned(), ..fault }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> DraftFile {
        DraftFile { name: name.into(), text: text.into() }
    }

    fn refused(sent: &str) -> Vec<String> {
        let before = [
            file("main", "include: [a.yaml]\nworkers: ${{PATH:=2}}\n"),
            file("a", "routes: [{ uri: $env://CARGO_MANIFEST_DIR/x }]\n"),
        ];
        let name = if sent.contains("workers") { "main" } else { "a" };
        let refused = refuse_more(&before, &[file(name, sent)]).err().unwrap_or_default();
        refused.iter().map(|fault| fault.to_string()).collect()
    }

    #[test]
    fn variables_that_the_files_use_may_be_used_elsewhere() {
        assert_eq!(refused("routes: [{ uri: '${{PATH}}', desc: $ENV://CARGO_MANIFEST_DIR }]\n"), [""; 0]);
    }

    #[test]
    fn other_variables_are_refused_with_their_places() {
        for (text, place) in [
            ("# é\nroutes: [{ uri: '${{HOME}}' }]\n", "a:2:18: "),
            ("routes: [{ uri: '${{HOME:=x}}' }]\n", "a:1:18: "),
            ("routes:\n- uri: $ENV://HOME\n", "a:2:8: "),
            ("routes:\n- uri: ${{PATH:=$env://HOME}}\n", "a:2:8: "),
            ("routes:\n- { $env://HOME: 1 }\n", "a:2:5: "),
        ] {
            let told = refused(text);
            assert!(told.iter().all(|one| one.starts_with(place) && one.contains("`HOME`")), "{text}: {told:?}");
            assert!(!told.is_empty(), "{text}");
        }
    }

    #[test]
    fn of_many_other_variables_the_first_are_told() {
        let many: String = (0..10_000).map(|number| format!("- '${{{{OTHER_{number}}}}}'\n")).collect();
        let told = refused(&format!("routes:\n{many}"));
        assert_eq!(told.len(), MOST_TOLD);
        assert!(told[99].starts_with("a:101:4: ") && told[99].contains("`OTHER_99`"), "{}", told[99]);
    }

    #[test]
    fn include_stays_as_it_is() {
        assert_eq!(refused("include: a.yaml\nworkers: 3\n").len(), 1, "even if it were the same");
        assert_eq!(refused("include: [a.yaml] # the others\nworkers: 3\n"), [""; 0]);
        assert!(refused("workers: 3\n")[0].starts_with("main:1:1: include: a draft cannot change it"));
        assert!(refused("include: [a.yaml, '${{PATH}}']\nworkers: 3\n")[0].starts_with("main:1:1: "));
        assert!(refused("include: /etc\n")[0].starts_with("a:1:1: "), "an included file, too");
    }
}
