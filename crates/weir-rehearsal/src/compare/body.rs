//! The contents of two answers, without their compression.

use std::borrow::Cow;

use serde_json::Value;

use crate::answer::{RehearsedAnswer, UndecodedBody, decoded};
use crate::cause::DifferenceCause;
use crate::compare::{DifferenceList, OwnNames, json, location, text};

pub(super) fn compare(
    answers: [&RehearsedAnswer; 2],
    names: [&OwnNames; 2],
    max_body: usize,
    list: &mut DifferenceList,
) {
    let [old, new] = answers;
    if old.is_head {
        return;
    }
    let bytes = |answer: &RehearsedAnswer| format!("{} bytes", answer.body.length);
    if old.body.is_cut || new.body.is_cut {
        list.is_body_uncompared = true;
        return;
    }
    match (old.body.length, new.body.length) {
        (0, 0) => return,
        (0, _) => return list.add(DifferenceCause::BodyMissing, "in the old answer", "", bytes(new)),
        (_, 0) => return list.add(DifferenceCause::BodyMissing, "in the new answer", bytes(old), ""),
        _ => {}
    }
    if old.body.length == new.body.length && old.body.hash == new.body.hash && coding(old) == coding(new) {
        return;
    }
    if let Some([before, after]) = both_decoded(answers, max_body, list)
        && before != after
    {
        contents([&before, &after], names, list);
    }
}

fn coding(answer: &RehearsedAnswer) -> String {
    answer.value("content-encoding").unwrap_or_default().to_ascii_lowercase()
}

fn is_plain(answer: &RehearsedAnswer) -> bool {
    matches!(coding(answer).as_str(), "" | "identity")
}

/// Both contents without their codings. Where one is not available, the difference is added that is certain without it.
fn both_decoded([old, new]: [&RehearsedAnswer; 2], max_body: usize, list: &mut DifferenceList) -> Option<[Vec<u8>; 2]> {
    use UndecodedBody::{Broken, TooLarge, Unknown};
    let content = |answer: &RehearsedAnswer| match answer.body.is_whole() {
        true => decoded(&answer.body.kept, &coding(answer), max_body),
        false if is_plain(answer) => Err(TooLarge),
        false => Err(Unknown),
    };
    let told = |content: &Result<Vec<u8>, UndecodedBody>, answer: &RehearsedAnswer| match content {
        Err(Broken) => format!("{} bytes, which cannot be decoded", answer.body.length),
        _ => format!("{} bytes", answer.body.length),
    };
    let subject = match (content(old), content(new)) {
        (Ok(before), Ok(after)) => return Some([before, after]),
        _ if is_plain(old) && is_plain(new) => "",
        // One gateway broke it, or the lengths of the contents differ.
        (Err(Broken), Ok(_) | Err(Unknown | TooLarge))
        | (Ok(_) | Err(Unknown | TooLarge), Err(Broken))
        | (Ok(_), Err(TooLarge))
        | (Err(TooLarge), Ok(_)) => "decoded",
        // Only the bytes can be compared, and these may differ for equal contents.
        _ => {
            list.is_body_uncompared = true;
            return None;
        }
    };
    list.add(DifferenceCause::BodyBytes, subject, told(&content(old), old), told(&content(new), new));
    None
}

fn contents([old, new]: [&[u8]; 2], names: [&OwnNames; 2], list: &mut DifferenceList) {
    let kind = |value: &Option<Value>| if value.is_some() { "JSON" } else { "not JSON" };
    match (structured(old), structured(new)) {
        (Some(old), Some(new)) => return json::compare(&old, &new, names, list),
        (None, None) => {}
        (old, new) => return list.add(DifferenceCause::BodyKind, "", kind(&old), kind(&new)),
    }
    match (readable(old, names[0]), readable(new, names[1])) {
        (Some(old), Some(new)) if old == new => {}
        (Some(old), Some(new)) => text::compare(&old, &new, list),
        _ => list.add(DifferenceCause::BodyBytes, "", format!("{} bytes", old.len()), format!("{} bytes", new.len())),
    }
}

/// An object or a list in JSON.
fn structured(content: &[u8]) -> Option<Value> {
    let first = content.iter().find(|byte| !byte.is_ascii_whitespace())?;
    if *first != b'{' && *first != b'[' {
        return None;
    }
    serde_json::from_slice(content).ok()
}

fn readable<'a>(content: &'a [u8], names: &OwnNames) -> Option<Cow<'a, str>> {
    let text = std::str::from_utf8(content).ok().filter(|text| !text.contains('\0'))?;
    Some(location::without_address(text, names))
}
