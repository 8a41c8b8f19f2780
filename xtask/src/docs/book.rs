//! The pages as a book for mdBook. docs/README.md is the only index: the book has the pages that it links to, in its order.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::links::{PageLink, links, path_of};
use crate::tree::{read, tracked};
use crate::{Problems, step};

const INDEX: &str = "docs/README.md";
const HOME: &str = "README.md";
/// Where mdBook reads (book.toml).
const BOOK: &str = "target/book";
const MDBOOK: &str = ".cache/mdbook/bin/mdbook";

/// An entry of the table of contents.
#[derive(Debug, PartialEq, Eq)]
enum ContentsEntry {
    Part(String),
    /// A page, with those below it.
    Chapter(String, Vec<String>),
}

/// Builds the site: target/site/index.html.
pub(crate) fn build() -> Result<(), Problems> {
    if !Path::new(MDBOOK).exists() {
        return Err(vec![format!("there is no {MDBOOK}; run scripts/mdbook")]);
    }
    write()?;
    step("mdBook cannot build the site", Command::new(MDBOOK).arg("build"))
}

/// Writes the pages of the book, with their table of contents.
fn write() -> Result<(), Problems> {
    check()?;
    // Pages may have gone since.
    let _ = fs::remove_dir_all(BOOK);
    let contents = contents(&read(INDEX)?)?;
    let pages = pages(&contents);
    for page in &pages {
        let (text, files) = rewritten(page, &read(page)?, &pages);
        put(&renamed(page), text.as_bytes())?;
        for file in files {
            put(&file, &fs::read(&file).map_err(|error| vec![format!("{file}: {error}")])?)?;
        }
    }
    put("SUMMARY.md", summary(&contents)?.as_bytes())
}

/// Reports each page that the index leaves out.
pub(super) fn check() -> Result<(), Problems> {
    let known = pages(&contents(&read(INDEX)?)?);
    let all = tracked()?.into_iter().filter(|path| path.starts_with("docs/") && path.ends_with(".md"));
    let left_out = all.filter(|page| !known.contains(page) && Path::new(page).exists());
    let problems: Problems =
        left_out.map(|page| format!("{page} is in no table of contents; link to it from {INDEX}")).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn put(name: &str, content: &[u8]) -> Result<(), Problems> {
    let path = Path::new(BOOK).join(name);
    let folder = path.parent().expect("it is in a folder");
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, content));
    written.map_err(|error| vec![format!("{}: {error}", path.display())])
}

/// Parts and pages in the order of the index.
fn contents(index: &str) -> Result<Vec<ContentsEntry>, Problems> {
    let all = linked(INDEX, index);
    let mut entries = Vec::new();
    let mut parts = parts(index).into_iter().peekable();
    for IndexedPage { line, page, .. } in placed(&all).filter(|link| link.page != HOME) {
        let mut part = None;
        while let Some((_, name)) = parts.next_if(|(begin, _)| begin < line) {
            part = Some(name);
        }
        entries.extend(part.map(|name| ContentsEntry::Part(name.to_owned())));
        let below = match page.ends_with("/README.md") {
            true => placed(&linked(page, &read(page)?)).map(|link| link.page.clone()).collect(),
            false => Vec::new(),
        };
        entries.push(ContentsEntry::Chapter(page.clone(), below));
    }
    Ok(entries)
}

/// Each page once, where it belongs.
fn placed(all: &[IndexedPage]) -> impl Iterator<Item = &IndexedPage> {
    let belongs = |(place, link): &(usize, &IndexedPage)| place_of(&link.page, all) == Some(*place);
    all.iter().enumerate().filter(belongs).map(|(_, link)| link)
}

/// A page belongs where the index links to the whole of it, or else where it links to a part of it first.
fn place_of(page: &str, all: &[IndexedPage]) -> Option<usize> {
    let is_page = |link: &IndexedPage| link.page == page;
    all.iter().position(|link| is_page(link) && link.is_whole).or_else(|| all.iter().position(is_page))
}

/// A link of an index to a page.
struct IndexedPage {
    line: usize,
    page: String,
    /// It leads to no heading.
    is_whole: bool,
}

fn linked(index: &str, text: &str) -> Vec<IndexedPage> {
    let link = |PageLink { line, target, .. }: PageLink| {
        let page = path_of(index, target).filter(|path| path.ends_with(".md"))?;
        Some(IndexedPage { line, page, is_whole: !target.contains('#') })
    };
    links(text).into_iter().filter_map(link).collect()
}

/// Headings, and rows of tables that are headings, with their lines.
fn parts(index: &str) -> Vec<(usize, &str)> {
    let lines = index.lines().enumerate();
    lines.filter_map(|(number, line)| Some((number + 1, part(line)?))).collect()
}

fn part(line: &str) -> Option<&str> {
    line.strip_prefix("## ").or_else(|| line.strip_prefix("| **")?.split("**").next())
}

/// All pages of the book.
fn pages(contents: &[ContentsEntry]) -> BTreeSet<String> {
    let mut pages = BTreeSet::from([HOME.to_owned(), INDEX.to_owned()]);
    for entry in contents {
        if let ContentsEntry::Chapter(page, below) = entry {
            pages.insert(page.clone());
            pages.extend(below.iter().cloned());
        }
    }
    pages
}

fn summary(contents: &[ContentsEntry]) -> Result<String, Problems> {
    let link = |page: &str| Ok::<_, Problems>(format!("[{}]({})", title(&read(page)?), renamed(page)));
    let mut text = format!("# Summary\n\n{}\n{}\n", link(HOME)?, link(INDEX)?);
    for entry in contents {
        let _ = match entry {
            ContentsEntry::Part(name) => write!(text, "\n# {name}\n\n"),
            ContentsEntry::Chapter(page, _) => writeln!(text, "- {}", link(page)?),
        };
        if let ContentsEntry::Chapter(_, below) = entry {
            for page in below {
                let _ = writeln!(text, "  - {}", link(page)?);
            }
        }
    }
    Ok(text)
}

fn title(text: &str) -> &str {
    text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("Untitled")
}

/// mdBook makes `index.html` of `index.md`, which servers show for a folder.
fn renamed(page: &str) -> String {
    match page.strip_suffix("README.md") {
        Some(folder) => format!("{folder}index.md"),
        None => page.to_owned(),
    }
}

/// A page as the book has it, and the files of the project that it links to. A link to what the book cannot show becomes text.
fn rewritten(page: &str, text: &str, pages: &BTreeSet<String>) -> (String, Vec<String>) {
    let (mut book, mut files, mut done) = (String::new(), Vec::new(), 0);
    for PageLink { at, target, .. } in links(text) {
        let Some(path) = path_of(page, target) else { continue };
        let end = at + target.len();
        if pages.contains(&path) {
            book.push_str(&text[done..at]);
            book.push_str(&target.replace("README.md", "index.md"));
            done = end;
        } else if Path::new(&path).is_file() && !path.ends_with(".md") {
            files.push(path);
        } else if let Some(begin) = text[done..at - 2].rfind('[') {
            book.push_str(&text[done..done + begin]);
            book.push_str(&text[done + begin + 1..at - 2]);
            done = end + 1;
        }
    }
    book.push_str(&text[done..]);
    (book, files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_belongs_where_the_index_links_to_the_whole_of_it() {
        let index = "# Documentation\n## Begin\n- [home](../README.md#x), [a](guide/a.md)\n## By task\n| **Traffic** | |\n\
                     | x | [c](guide/c.md#d), [b](guide/b.md#e) |\n## Rest\n[c](guide/c.md)\n";
        let chapter = |page: &str| ContentsEntry::Chapter(page.to_owned(), Vec::new());
        let part = |name: &str| ContentsEntry::Part(name.to_owned());
        assert_eq!(
            contents(index).expect("no page is read"),
            [
                part("Begin"),
                chapter("docs/guide/a.md"),
                part("Traffic"),
                chapter("docs/guide/b.md"),
                part("Rest"),
                chapter("docs/guide/c.md"),
            ]
        );
    }

    #[test]
    fn links_lead_to_pages_of_the_book_or_are_text() {
        let pages = BTreeSet::from(["README.md".to_owned(), "docs/guide/b.md".to_owned()]);
        let text = "[a](../../README.md#five) [b](b.md) [c](../../bench) [d](https://d.example) `[e](f)`\n";
        let expected = "[a](../../index.md#five) [b](b.md) c [d](https://d.example) `[e](f)`\n";
        assert_eq!(rewritten("docs/guide/a.md", text, &pages), (expected.to_owned(), Vec::new()));
    }
}
