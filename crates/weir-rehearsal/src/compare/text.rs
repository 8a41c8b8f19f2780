//! Text: where it differs, told by the word before.

use crate::cause::DifferenceCause;
use crate::compare::DifferenceList;

/// The most places that are told of two texts.
const MAX_PLACES: usize = 8;
/// The most bytes of the word before.
const MAX_WORD_BYTES: usize = 40;

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
    if before.len() == after.len() {
        let (mut at, mut places) = (0, 0);
        while at < before.len() && places < MAX_PLACES {
            let end = (at..before.len()).find(|index| before[*index] == after[*index]).unwrap_or(before.len());
            if end > at {
                add(&before[..at], &before[at..end], &after[at..end], list);
                places += 1;
            }
            at = end.max(at + 1);
        }
        return;
    }
    let shorter = before.len().min(after.len());
    let same = (0..shorter).find(|index| before[*index] != after[*index]).unwrap_or(shorter);
    let from_end = |index: &usize| before[before.len() - 1 - index] != after[after.len() - 1 - index];
    let same_at_end = (0..shorter - same).find(from_end).unwrap_or(shorter - same);
    let [old, new] = [&before, &after].map(|words| &words[same..words.len() - same_at_end]);
    add(&before[..same], old, new, list);
}

fn add(common: &[&str], old: &[&str], new: &[&str], list: &mut DifferenceList) {
    let word = common.iter().rev().find(|word| word.starts_with(|char: char| char.is_alphanumeric() || char == '_'));
    let subject = match word {
        None => "at the beginning".to_owned(),
        Some(word) => format!("after `{}`", &word[..word.floor_char_boundary(MAX_WORD_BYTES)]),
    };
    list.add(DifferenceCause::BodyText, subject, old.join(" "), new.join(" "));
}
