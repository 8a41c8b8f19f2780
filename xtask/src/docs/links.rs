//! Links between pages: the file is there, and so is the heading.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::{Problems, tree};

/// Reports each link of a page of ours that leads nowhere.
pub(super) fn check() -> Result<(), Problems> {
    let mut problems = Problems::new();
    for page in tree::tracked()?.iter().filter(|path| path.ends_with(".md")) {
        let Ok(text) = fs::read_to_string(page) else { continue }; // removed and not committed yet
        for PageLink { line, target, .. } in links(&text) {
            if let Some(problem) = broken(page, target) {
                problems.push(format!("{page}:{line}: {problem}"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// A link of a page, `[text](target)`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageLink<'a> {
    pub(super) line: usize,
    /// Where the target begins in the text of the page.
    pub(super) at: usize,
    pub(super) target: &'a str,
}

/// The links of a page, those in code left out.
pub(super) fn links(text: &str) -> Vec<PageLink<'_>> {
    let mut found = Vec::new();
    let mut is_code = false;
    let mut begin = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        // Every second piece between backticks is code; a link's text may be code as well.
        for (at, _) in line.match_indices("](").filter(|_| !is_code) {
            let is_quoted = line[..at].matches('`').count() % 2 == 1;
            if let Some(end) = line[at..].find(')').filter(|_| !is_quoted) {
                found.push(PageLink { line: number + 1, at: begin + at + 2, target: &line[at + 2..at + end] });
            }
        }
        begin += line.len();
    }
    found
}

/// The path that a target of a page leads to, from the folder of the project; nothing if it leads elsewhere.
pub(super) fn path_of(page: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let file = target.split('#').next().filter(|file| !file.is_empty())?;
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn broken(page: &str, target: &str) -> Option<String> {
    let (_, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = match path_of(page, target) {
        None if target.starts_with('#') => page.to_owned(),
        path => path?,
    };
    let path = Path::new(&path);
    if !path.exists() {
        return Some(format!("`{target}` leads to no file"));
    }
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    if heading.is_empty() || !is_page {
        return None;
    }
    let text = fs::read_to_string(path).unwrap_or_default();
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
        let found: Vec<_> = links(text).into_iter().map(|link| (link.line, link.target)).collect();
        assert_eq!(found, [(1, "c.md"), (1, "e#f"), (5, "j")]);
        assert!(links(text).iter().all(|link| text[link.at..].starts_with(link.target)));
    }

    #[test]
    fn targets_are_relative_to_their_page() {
        let path = |target| path_of("docs/guide/a.md", target);
        assert_eq!(path("b.md#c").as_deref(), Some("docs/guide/b.md"));
        assert_eq!(path("../../README.md").as_deref(), Some("README.md"));
        assert_eq!(path("../decisions/./d.md").as_deref(), Some("docs/decisions/d.md"));
        assert_eq!((path("#here"), path("https://example.org/a.md")), (None, None));
    }

    #[test]
    fn headings_have_the_names_that_links_use() {
        let text = "# The file's `status`\n```\n# not one\n```\n## A, b and c\n";
        assert_eq!(anchors(text), BTreeSet::from(["the-files-status".to_owned(), "a-b-and-c".to_owned()]));
    }
}
