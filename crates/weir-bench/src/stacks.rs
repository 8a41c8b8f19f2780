//! Samples of stacks, added up by stack, as tools for flame graphs read them.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader, Read},
};

/// The most frames of a stack that are kept, and drawn, from the outermost.
pub const DEEPEST_STACK: usize = 96;
/// The most bytes that the different stacks of a run have. Programs decide on the names of their functions and on how they call each
/// other, so only a bound on all of them is one.
pub const MOST_BYTES: usize = 2 << 20;
/// What a stack takes besides its text.
const ENTRY_BYTES: usize = 64;
/// The most bytes of a line that are read. Names of generic functions can have thousands.
const LONGEST_LINE: u64 = 1_024;
/// Stands for the stacks for which there was no room.
pub const OTHERS: &str = "[other stacks]";

/// Stacks, each as its frames from the outermost, separated by `;`, and the number of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedStacks {
    counts: BTreeMap<String, u64>,
    bytes: usize,
    most_bytes: usize,
}

impl Default for FoldedStacks {
    fn default() -> Self {
        FoldedStacks { counts: BTreeMap::new(), bytes: 0, most_bytes: MOST_BYTES }
    }
}

impl FoldedStacks {
    /// Adds samples of a stack. If there is no room for another stack, they are counted as those of all others.
    pub fn add(&mut self, stack: &str, samples: u64) {
        let has_room = self.counts.contains_key(stack) || self.bytes + stack.len() + ENTRY_BYTES <= self.most_bytes;
        let stack = if has_room { stack } else { OTHERS };
        let bytes = &mut self.bytes;
        let count = self.counts.entry(stack.to_owned()).or_insert_with(|| {
            *bytes += stack.len() + ENTRY_BYTES;
            0
        });
        *count = count.saturating_add(samples);
    }

    /// Adds the samples of another turn.
    pub fn join(&mut self, other: &FoldedStacks) {
        other.counts.iter().for_each(|(stack, samples)| self.add(stack, *samples));
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    pub fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    /// Adds up what `perf script` prints: for each sample a line with the name of the thread, its frames from the innermost, and an empty
    /// line. What was read before an error counts.
    pub fn read(text: impl Read) -> FoldedStacks {
        FoldedStacks::read_bounded(text, MOST_BYTES)
    }

    /// As [`FoldedStacks::read`], with a bound on the bytes of the different stacks.
    pub fn read_bounded(text: impl Read, most_bytes: usize) -> FoldedStacks {
        let (mut text, mut line) = (BufReader::new(text), Vec::new());
        let mut folded = FoldedStacks { most_bytes, ..FoldedStacks::default() };
        let mut sample = PrintedSample::default();
        while next_line(&mut text, &mut line) {
            sample.line(&String::from_utf8_lossy(&line), &mut folded);
        }
        sample.end(&mut folded);
        folded
    }
}

/// The samples of a run.
#[derive(Clone, Debug, Default)]
pub struct StackSamples {
    pub stacks: FoldedStacks,
    /// Why there are none of a run, or of one of its turns, if they were asked for.
    pub missing: Option<String>,
}

impl StackSamples {
    /// Adds those of the next turn.
    pub fn follow(&mut self, next: StackSamples) {
        self.stacks.join(&next.stacks);
        self.missing = self.missing.take().or(next.missing);
    }
}

/// The sample whose lines are being read.
#[derive(Default)]
struct PrintedSample {
    thread: Option<String>,
    /// From the innermost. The outermost are kept of a stack that is too deep.
    frames: VecDeque<String>,
}

impl PrintedSample {
    fn line(&mut self, line: &str, folded: &mut FoldedStacks) {
        if line.trim().is_empty() {
            self.end(folded);
        } else if self.thread.is_none() {
            self.thread = Some(plain(line.trim()));
        } else {
            self.frames.push_back(frame(line));
            if self.frames.len() >= DEEPEST_STACK {
                self.frames.pop_front();
            }
        }
    }

    /// A thread without a frame says nothing of where it was.
    fn end(&mut self, folded: &mut FoldedStacks) {
        if let Some(thread) = self.thread.take()
            && !self.frames.is_empty()
        {
            let frames = [thread].into_iter().chain(self.frames.drain(..).rev());
            folded.add(&frames.collect::<Vec<_>>().join(";"), 1);
        }
    }
}

/// Reads a line without its end; the rest of one that is too long is skipped. False at the end, and after an error.
fn next_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    line.clear();
    match text.by_ref().take(LONGEST_LINE).read_until(b'\n', line) {
        Ok(0) | Err(_) => false,
        Ok(_) if line.ends_with(b"\n") || (line.len() as u64) < LONGEST_LINE => true,
        Ok(_) => text.skip_until(b'\n').is_ok(),
    }
}

/// The name in a line such as `    5581d0 weir::serve+0x10`.
fn frame(line: &str) -> String {
    let name = line.trim().split_once(' ').map_or("[unknown]", |(_, name)| name.trim());
    let name = name.rsplit_once("+0x").map_or(name, |(name, _)| name);
    if name.is_empty() { "[unknown]".to_owned() } else { plain(name) }
}

/// A name of a program that is measured, without what ends a frame, and without characters that are not for texts.
fn plain(name: &str) -> String {
    let character = |one: char| match one {
        ';' => ',',
        one if one.is_control() => char::REPLACEMENT_CHARACTER,
        one => one,
    };
    name.chars().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(text: &str) -> FoldedStacks {
        FoldedStacks::read(text.as_bytes())
    }

    #[test]
    fn samples_with_the_same_stack_add_up() {
        let text = "worker-0 \n\t  55 inner+0x1\n\t  66 outer\n\nworker-0 \n\t  57 inner+0x3\n\t  66 outer\n\n\
                    worker-1 \n\t  77 core::ptr::drop<[u8; 4]>\n\nmain \n\n\n\nworker-2 \n\t  78\n";
        let expected =
            [("worker-0;outer;inner", 2), ("worker-1;core::ptr::drop<[u8, 4]>", 1), ("worker-2;[unknown]", 1)];
        assert_eq!(*folded(text).counts(), expected.map(|(stack, count)| (stack.to_owned(), count)).into());
        assert!(folded("").is_empty() && folded("main\n").is_empty());
    }

    #[test]
    fn stacks_without_room_count_as_others() {
        // More than there is room for, in stacks that are all different, and one more sample of the first one.
        let sample = |number: usize| format!("w\n\t1 {number}{}\n\n", "x".repeat(900));
        let count = 4_000;
        let text: String = (0..count).map(sample).chain([sample(0)]).collect();
        let stacks = folded(&text);
        let kept: usize = stacks.counts().keys().map(|stack| stack.len() + ENTRY_BYTES).sum();
        assert_eq!(kept, stacks.bytes);
        assert!(kept <= MOST_BYTES + OTHERS.len() + ENTRY_BYTES, "{kept}");
        assert_eq!(stacks.counts().values().sum::<u64>(), count as u64 + 1, "no sample is lost");
        assert!(stacks.counts()[OTHERS] > 1_000, "{}", stacks.counts()[OTHERS]);
        assert!(stacks.counts().iter().any(|(stack, count)| stack.starts_with("w;0x") && *count == 2));
        let mut twice = stacks.clone();
        twice.join(&stacks);
        assert_eq!(
            (twice.counts().len(), twice.counts()[OTHERS]),
            (stacks.counts().len(), 2 * stacks.counts()[OTHERS])
        );
    }

    #[test]
    fn long_names_and_deep_stacks_are_cut() {
        let long = format!("w\n\t1 {}+0x1\n\t2 outer\n\n", "a".repeat(5_000));
        let name = folded(&long).counts().keys().next().cloned().expect("a stack");
        assert!(name.starts_with("w;outer;aaa") && name.len() < 1_100, "{name}");
        let frames: String = (0..500).map(|number| format!("\t1 f{number}\n")).collect();
        let deep = folded(&format!("w\n{frames}\n"));
        let stack: Vec<&str> = deep.counts().keys().next().expect("a stack").split(';').collect();
        assert_eq!((stack.len(), &stack[..2]), (DEEPEST_STACK, &["w", "f499"][..]), "the outermost are kept");
    }

    #[test]
    fn names_cannot_have_characters_that_are_not_for_texts() {
        let stacks = folded("w;\u{1b}[2J\n\t1 a\u{0}b\n\n");
        assert_eq!(stacks.counts().keys().next().map(String::as_str), Some("w,\u{fffd}[2J;a\u{fffd}b"));
    }
}
