//! The contents of two answers, without their compression.

use std::borrow::Cow;

use serde_json::Value;

use crate::answer::{RehearsedAnswer, decoded};
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
    match (old.body.length, new.body.length) {
        (0, 0) => return,
        (0, _) => return list.add(DifferenceCause::BodyMissing, "in the old answer", "", bytes(new)),
        (_, 0) => return list.add(DifferenceCause::BodyMissing, "in the new answer", bytes(old), ""),
        _ => {}
    }
    if old.body.length == new.body.length && old.body.hash == new.body.hash {
        return;
    }
    let content = |answer: &RehearsedAnswer| match answer.body.is_whole() {
        true => decoded(&answer.body.kept, answer.value("content-encoding").unwrap_or_default(), max_body),
        false => None,
    };
    let (Some(before), Some(after)) = (content(old), content(new)) else {
        // Of other codings, and beyond the limit, only the bytes can be compared; compressed bytes may differ for equal content.
        let is_coded =
            |answer: &RehearsedAnswer| answer.value("content-encoding").is_some_and(|coding| coding != "identity");
        return match is_coded(old) || is_coded(new) {
            true => {}
            false => list.add(DifferenceCause::BodyBytes, "", bytes(old), bytes(new)),
        };
    };
    if before != after {
        contents([&before, &after], names, list);
    }
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
