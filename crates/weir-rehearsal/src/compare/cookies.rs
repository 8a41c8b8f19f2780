//! `Set-Cookie`: which cookies are set, with which values and attributes.

use std::collections::BTreeMap;

use crate::answer::RehearsedAnswer;
use crate::cause::DifferenceCause;
use crate::compare::DifferenceList;
use crate::secrets::MASK;

/// A cookie: its value, and its attributes in a fixed order. A time is not compared, since it depends on the clock.
#[derive(PartialEq, Eq)]
struct SetCookie<'a> {
    value: &'a str,
    attributes: BTreeMap<String, String>,
}

fn cookies(answer: &RehearsedAnswer) -> BTreeMap<&str, SetCookie<'_>> {
    let one =
        |text: &'_ str| -> Option<(usize, usize)> { Some((text.find('=')?, text.find(';').unwrap_or(text.len()))) };
    let read = |text: &'_ str| {
        let (equals, end) = one(text)?;
        (equals < end).then_some((equals, end))
    };
    let mut all = BTreeMap::new();
    for (name, text) in &answer.fields {
        let Some((equals, end)) = (name == "set-cookie").then(|| read(text)).flatten() else { continue };
        let attribute = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = name.trim().to_ascii_lowercase();
            let value = if name == "expires" { "a time" } else { value.trim() };
            (!name.is_empty()).then(|| (name, value.to_ascii_lowercase()))
        };
        let attributes = text[end..].split(';').filter_map(attribute).collect();
        all.insert(text[..equals].trim(), SetCookie { value: &text[equals + 1..end], attributes });
    }
    all
}

pub(super) fn compare([old, new]: [&RehearsedAnswer; 2], list: &mut DifferenceList) {
    let (old, new) = (cookies(old), cookies(new));
    for (name, before) in &old {
        let Some(after) = new.get(name) else {
            list.add(DifferenceCause::CookieSet, format!("{name} missing"), format!("{name}={MASK}"), "");
            continue;
        };
        if before.value != after.value {
            list.add(DifferenceCause::CookieSet, format!("{name} value"), MASK, MASK);
        }
        for (attribute, value) in &before.attributes {
            match after.attributes.get(attribute) {
                Some(other) if other == value => {}
                other => list.add(
                    DifferenceCause::CookieAttributes,
                    format!("{name} {attribute}"),
                    told(attribute, Some(value)),
                    told(attribute, other),
                ),
            }
        }
        for (attribute, value) in after.attributes.iter().filter(|(name, _)| !before.attributes.contains_key(*name)) {
            list.add(
                DifferenceCause::CookieAttributes,
                format!("{name} {attribute}"),
                "",
                told(attribute, Some(value)),
            );
        }
    }
    for name in new.keys().filter(|name| !old.contains_key(*name)) {
        list.add(DifferenceCause::CookieSet, format!("{name} added"), "", format!("{name}={MASK}"));
    }
}

fn told(attribute: &str, value: Option<&String>) -> String {
    match value {
        None => String::new(),
        Some(value) if value.is_empty() => attribute.to_owned(),
        Some(value) => format!("{attribute}={value}"),
    }
}
