//! Draws messages and names at random, for readers who have not seen the code: each must tell its meaning by itself.

use std::fs;

use crate::Problems;
use crate::tree::tracked;

const MESSAGES: usize = 30;
const NAMES: usize = 20;
/// Fewer words are a label, not a message.
const WORDS: usize = 4;

/// Prints what the seed draws, each with the place where it stands.
pub(crate) fn draw(seed: &str) -> Result<(), Problems> {
    let seed = seed.parse().map_err(|_| vec![format!("`{seed}` is not a number; the seed of a draw is one")])?;
    let (mut messages, mut names) = (Vec::new(), Vec::new());
    for path in tracked()?.into_iter().filter(|path| is_public(path)) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        match path.ends_with(".md") {
            true => messages.extend(sentences(&text).map(|sentence| (path.clone(), sentence))),
            false => {
                let production = text.split("#[cfg(test)]").next().unwrap_or_default();
                messages.extend(literals(production).into_iter().map(|literal| (path.clone(), literal)));
                names.extend(declared(production).map(|name| (path.clone(), name)));
            }
        }
    }
    let mut random = DrawRandom(seed);
    for (title, pool, count) in [("Messages", messages, MESSAGES), ("Names", names, NAMES)] {
        println!("{title}, {count} of {}:", pool.len());
        for (place, text) in random.sample(pool, count) {
            println!("- {text}\n    {place}");
        }
    }
    Ok(())
}

/// What users and contributors read: sources of the crates, and the written pages.
fn is_public(path: &str) -> bool {
    let is_source = path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs");
    let is_page = path == "README.md" || (path.starts_with("docs/") && path.ends_with(".md"));
    (is_source && !path.contains("weir-testkit") && !path.ends_with("tests.rs") && !path.contains("/tests/")) || is_page
}

/// Sentences of running text: no tables, no code.
fn sentences(page: &str) -> impl Iterator<Item = String> {
    let prose = page.split("```").step_by(2).flat_map(|part| part.split("\n\n"));
    let paragraphs = prose.filter(|paragraph| !paragraph.trim_start().starts_with(['|', '#', '<']));
    let text = paragraphs.map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    text.flat_map(|text| text.split_inclusive(". ").map(|one| one.trim().to_owned()).collect::<Vec<_>>())
        .filter(|sentence| is_message(sentence))
}

fn is_message(text: &str) -> bool {
    let is_word = |word: &&str| word.chars().filter(|letter| letter.is_alphabetic()).count() > 1;
    text.split_whitespace().filter(is_word).count() >= WORDS
}

/// String literals that are messages. Comments end at their line, and a character's quotes hold one character.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in source.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once('"') {
            let mut is_escaped = false;
            let end = after.find(|letter| {
                let ends = letter == '"' && !is_escaped;
                is_escaped = letter == '\\' && !is_escaped;
                ends
            });
            let Some(end) = end else { break };
            if is_message(&after[..end]) {
                found.push(after[..end].to_owned());
            }
            rest = &after[end + 1..];
        }
    }
    found
}

/// Types and functions, with the line that declares them.
fn declared(source: &str) -> impl Iterator<Item = String> {
    const KINDS: [&str; 5] = ["struct ", "enum ", "trait ", "fn ", "type "];
    source.lines().filter_map(|line| {
        let line = line.trim();
        let declaration = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
        let declaration = declaration.trim_start_matches("const ").trim_start_matches("async ");
        KINDS.iter().any(|kind| declaration.starts_with(kind)).then(|| line.trim_end_matches([' ', '{']).to_owned())
    })
}

/// xorshift64*: the same seed draws the same of the same sources.
struct DrawRandom(u64);

impl DrawRandom {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.max(1);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    fn sample<T>(&mut self, mut pool: Vec<T>, count: usize) -> Vec<T> {
        let count = count.min(pool.len());
        (0..count).map(|_| pool.swap_remove(self.below(pool.len()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_from_labels_and_code() {
        let source = "fn f() { log(\"TLS handshake with {} timed out\", \"label\"); }\n// \"a comment that is none\"";
        assert_eq!(literals(source), ["TLS handshake with {} timed out"]);
        let page = "# Title of it all\n\nOne sentence with words. And a second one here.\n\n```\nsome code that is none\n```\n";
        let found: Vec<_> = sentences(page).collect();
        assert_eq!(found, ["One sentence with words.", "And a second one here."]);
        let found: Vec<_> = declared("pub struct Permit {\n    let x = 1;\npub async fn open(self)\n").collect();
        assert_eq!(found, ["pub struct Permit", "pub async fn open(self)"]);
    }
}
