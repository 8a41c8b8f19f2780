//! `Set-Cookie`: which cookies are set, with which values and attributes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use crate::answer::RehearsedAnswer;
use crate::cause::DifferenceCause;
use crate::compare::DifferenceList;
use crate::secrets::MASK;

/// A cookie: its value, and its attributes in a fixed order. Of a time it is only compared whether it is past, which deletes the cookie:
/// the rest depends on the clock.
#[derive(PartialEq, Eq)]
struct SetCookie<'a> {
    value: &'a str,
    attributes: BTreeMap<String, String>,
}

/// Whether a time of `Expires` is past. Programs write it in two ways.
fn is_past(text: &str) -> bool {
    let told = text.trim().replace('-', " ");
    let told = told.split_once(", ").map_or(told.as_str(), |(_, rest)| rest).trim_end_matches(" GMT");
    let moment = strtime::parse("%d %b %Y %H:%M:%S", told).and_then(|parts| parts.to_datetime());
    let stamp = moment.and_then(|moment| TimeZone::UTC.to_timestamp(moment));
    stamp.is_ok_and(|stamp| stamp < Timestamp::now())
}

/// By name; further ones of a name have its number as well.
fn cookies(answer: &RehearsedAnswer) -> BTreeMap<String, SetCookie<'_>> {
    let one =
        |text: &'_ str| -> Option<(usize, usize)> { Some((text.find('=')?, text.find(';').unwrap_or(text.len()))) };
    let read = |text: &'_ str| {
        let (equals, end) = one(text)?;
        (equals < end).then_some((equals, end))
    };
    let (mut all, mut counts) = (BTreeMap::new(), BTreeMap::new());
    for (name, text) in &answer.fields {
        let Some((equals, end)) = (name == "set-cookie").then(|| read(text)).flatten() else { continue };
        let attribute = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = name.trim().to_ascii_lowercase();
            let value = match name.as_str() {
                "expires" if is_past(value) => "a past time",
                "expires" => "a time",
                _ => value.trim(),
            };
            (!name.is_empty()).then(|| (name, value.to_ascii_lowercase()))
        };
        let attributes = text[end..].split(';').filter_map(attribute).collect();
        let name = text[..equals].trim();
        let number = counts.entry(name).and_modify(|count| *count += 1).or_insert(1usize);
        let key = if *number == 1 { name.to_owned() } else { format!("{name} ({number})") };
        all.insert(key, SetCookie { value: &text[equals + 1..end], attributes });
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
