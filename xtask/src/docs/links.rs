//! Links between pages: the file is there, and so is the heading.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::{Problems, tree};

/// Reports each link of a page of ours that leads nowhere.
pub fn check() -> Result<(), Problems> {
    let mut problems = Problems::new();
    for page in tree::tracked()?.iter().filter(|path| path.ends_with(".md")) {
        let Ok(text) = fs::read_to_string(page) else { continue }; // removed and not committed yet
        for (line, target) in links(&text) {
            if let Some(problem) = broken(page, target) {
                problems.push(format!("{page}:{line}: {problem}"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Targets of `[text](target)` outside of code, each with its line.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        // Every second piece between backticks is code; a link's text may be code as well.
        for (at, _) in line.match_indices("](") {
            let is_quoted = line[..at].matches('`').count() % 2 == 1;
            if let Some(end) = line[at..].find(')').filter(|_| !is_quoted) {
                found.push((number + 1, &line[at + 2..at + end]));
            }
        }
    }
    found
}

fn broken(page: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => Path::new(page).to_owned(),
        file => Path::new(page).parent().unwrap_or(Path::new("")).join(file),
    };
    if !path.exists() {
        return Some(format!("`{target}` leads to no file"));
    }
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    if heading.is_empty() || !is_page {
        return None;
    }
    let text = fs::read_to_string(&path).unwrap_or_default();
    (!anchors(&text).contains(heading)).then(|| format!("`{target}` leads to no heading"))
}

/// The names that GitHub and mdBook give to headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let headings = text.lines().filter(move |line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    headings.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "a [b](c.md) `[x](y)` [`d`](e#f)\n```\n[g](h)\n```\n[i](j)\n";
        assert_eq!(links(text), [(1, "c.md"), (1, "e#f"), (5, "j")]);
    }

    #[test]
    fn headings_have_the_names_that_links_use() {
        let text = "# The file's `status`\n```\n# not one\n```\n## A, b and c\n";
        assert_eq!(anchors(text), BTreeSet::from(["the-files-status".to_owned(), "a-b-and-c".to_owned()]));
    }
}
