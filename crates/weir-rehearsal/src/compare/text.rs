//! Text: where it differs, told by the words around.
//!
//! The place is two words on each side that are the same in both texts and have no digits: numbers there may vary themselves. It is
//! coarse where a text has the same words around several places, as rows of a table have: these count as one place.

use crate::cause::DifferenceCause;
use crate::compare::DifferenceList;
use crate::secrets::{MASK, is_secret, masked};

/// The most places that are told of two texts.
const MAX_PLACES: usize = 8;
/// The most bytes of a word beside a place.
const MAX_WORD_BYTES: usize = 40;
/// The words on each side that tell a place.
const WORDS_AROUND: usize = 2;
/// The most words that are looked at on each side.
const MAX_DISTANCE: usize = 64;

/// Words of letters and digits, and the single characters between them.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut from) = (Vec::new(), None);
    for (at, char) in text.char_indices() {
        if char.is_alphanumeric() || char == '_' {
            from.get_or_insert(at);
            continue;
        }
        words.extend(from.take().map(|from| &text[from..at]));
        if !char.is_whitespace() {
            words.push(&text[at..at + char.len_utf8()]);
        }
    }
    words.extend(from.map(|from| &text[from..]));
    words
}

pub(super) fn compare(old: &str, new: &str, list: &mut DifferenceList) {
    let (before, after) = (words(old), words(new));
    if before == after {
        return list.add(DifferenceCause::BodyText, "white space", "", "");
    }
    let shorter = before.len().min(after.len());
    if before.len() == after.len() {
        let (mut at, mut places) = (0, 0);
        while at < shorter && places < MAX_PLACES {
            let end = (at..shorter).find(|index| before[*index] == after[*index]).unwrap_or(shorter);
            if end > at {
                let left = (0..at).rev().filter(|index| before[*index] == after[*index]);
                let right = (end..shorter).filter(|index| before[*index] == after[*index]);
                let place = TextPlace::of(left.map(|index| before[index]), right.map(|index| before[index]));
                place.add(&before[at..end], &after[at..end], list);
                places += 1;
            }
            at = end.max(at + 1);
        }
        return;
    }
    let same = (0..shorter).find(|index| before[*index] != after[*index]).unwrap_or(shorter);
    let from_end = |index: &usize| before[before.len() - 1 - index] != after[after.len() - 1 - index];
    let same_at_end = (0..shorter - same).find(from_end).unwrap_or(shorter - same);
    let [old, new] = [&before, &after].map(|words| &words[same..words.len() - same_at_end]);
    let place =
        TextPlace::of(before[..same].iter().rev().copied(), before[before.len() - same_at_end..].iter().copied());
    place.add(old, new, list);
}

/// The words around a difference.
struct TextPlace {
    left: Vec<String>,
    right: Vec<String>,
}

impl TextPlace {
    /// The nearest words come first.
    fn of<'t>(left: impl Iterator<Item = &'t str>, right: impl Iterator<Item = &'t str>) -> TextPlace {
        let mut left = around(left);
        left.reverse();
        TextPlace { left, right: around(right) }
    }

    fn add(&self, old: &[&str], new: &[&str], list: &mut DifferenceList) {
        let (left, right) = (self.left.join(" "), self.right.join(" "));
        let subject = match (left.is_empty(), right.is_empty()) {
            (true, true) => String::new(),
            (false, true) => format!("after `{left}`"),
            (true, false) => format!("before `{right}`"),
            (false, false) => format!("after `{left}`, before `{right}`"),
        };
        if self.left.iter().any(|word| is_secret(word)) {
            return list.add(DifferenceCause::BodyText, subject, MASK, MASK);
        }
        list.add(DifferenceCause::BodyText, subject, masked(&old.join(" ")), masked(&new.join(" ")));
    }
}

fn around<'t>(words: impl Iterator<Item = &'t str>) -> Vec<String> {
    let is_steady = |word: &&str| {
        word.starts_with(|char: char| char.is_alphabetic() || char == '_')
            && !word.contains(|char: char| char.is_numeric())
    };
    let steady = words.take(MAX_DISTANCE).filter(is_steady).take(WORDS_AROUND);
    steady.map(|word| word[..word.floor_char_boundary(MAX_WORD_BYTES)].to_owned()).collect()
}
