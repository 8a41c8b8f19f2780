//! The fields of two answers with the same status.

use std::collections::BTreeSet;

use crate::answer::RehearsedAnswer;
use crate::cause::DifferenceCause;
use crate::compare::{DifferenceList, OwnNames, cookies, is_redirect, location};
use crate::secrets::{MASK, is_secret, masked};

/// Fields that concern one connection or say which program answered: they differ between any two gateways.
const UNCOMPARED: [&str; 11] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "date",
    "server",
    "via",
    "alt-svc",
];
/// Fields whose values are lists without an order.
const SETS: [&str; 8] = [
    "vary",
    "allow",
    "cache-control",
    "accept-ranges",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "accept-patch",
];
const CACHING: [&str; 10] = [
    "cache-control",
    "expires",
    "age",
    "vary",
    "pragma",
    "etag",
    "last-modified",
    "cache-status",
    "x-cache",
    "x-cache-status",
];
const SECURITY: [&str; 8] = [
    "strict-transport-security",
    "content-security-policy",
    "content-security-policy-report-only",
    "x-frame-options",
    "x-content-type-options",
    "x-xss-protection",
    "referrer-policy",
    "permissions-policy",
];

/// The cause under which differences of a field are grouped, if it is one of its own.
fn cause_of(name: &str) -> Option<DifferenceCause> {
    match name {
        "location" => Some(DifferenceCause::Redirect),
        "content-type" => Some(DifferenceCause::ContentType),
        "content-encoding" => Some(DifferenceCause::ContentEncoding),
        "www-authenticate" | "proxy-authenticate" => Some(DifferenceCause::Authentication),
        "retry-after" => Some(DifferenceCause::RateLimit),
        name if CACHING.contains(&name) || name.ends_with("-cache-status") => Some(DifferenceCause::Caching),
        name if SECURITY.contains(&name) || name.starts_with("cross-origin-") => Some(DifferenceCause::Security),
        name if name.starts_with("access-control-") => Some(DifferenceCause::Cors),
        name if name.contains("ratelimit") || name.contains("rate-limit") => Some(DifferenceCause::RateLimit),
        _ => None,
    }
}

pub(super) fn compare(answers: [&RehearsedAnswer; 2], names: [&OwnNames; 2], list: &mut DifferenceList) {
    cookies::compare(answers, list);
    lengths(answers, list);
    let fields =
        |answer: &'_ RehearsedAnswer| answer.fields.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<String>>();
    let mut all = fields(answers[0]);
    all.extend(fields(answers[1]));
    all.retain(|name| !UNCOMPARED.contains(&name.as_str()) && name != "set-cookie" && name != "content-length");
    if answers.iter().all(|answer| is_redirect(answer)) {
        all.remove("content-type");
    }
    for name in &all {
        let values = [0, 1].map(|side: usize| {
            let value = |value: &str| match name.as_str() {
                "location" => location::normalised(value, names[side]),
                _ => location::without_address(value, names[side]).into_owned(),
            };
            answers[side].values(name).map(value).collect::<Vec<String>>()
        });
        field(name, &values, list);
    }
}

fn field(name: &str, [old, new]: &[Vec<String>; 2], list: &mut DifferenceList) {
    if old == new
        || (SETS.contains(&name) && members(old) == members(new))
        || (name == "content-type" && types(old) == types(new))
    {
        return;
    }
    let told = |values: &[String]| if is_secret(name) { MASK.to_owned() } else { masked(&values.join(", ")) };
    let (before, after) = (told(old), told(new));
    // Clients refuse the answer or take one of the values.
    let is_repeated = old.len().max(new.len()) > 1 && old.len() != new.len();
    let is_single = matches!(
        cause_of(name),
        Some(DifferenceCause::Cors | DifferenceCause::Security | DifferenceCause::ContentType)
    );
    let is_reordered = {
        let (mut old, mut new) = (old.clone(), new.clone());
        old.sort_unstable();
        new.sort_unstable();
        old.dedup();
        new.dedup();
        old == new || joined(&before) == joined(&after) && !is_secret(name)
    };
    let change = match (old.is_empty(), new.is_empty()) {
        (false, true) => "missing",
        (true, false) => "added",
        _ if is_repeated && is_single => "repeated",
        _ if is_reordered => return list.add(DifferenceCause::FieldOrder, name, before, after),
        _ => "",
    };
    match (cause_of(name), change) {
        (Some(DifferenceCause::Redirect), "") => {
            let slash = location::is_apart_by_slash(&old.join(", "), &new.join(", "));
            list.add(
                if slash { DifferenceCause::TrailingSlash } else { DifferenceCause::Redirect },
                name,
                before,
                after,
            );
        }
        (Some(cause), "") => list.add(cause, name, before, after),
        (Some(cause), change) => list.add(cause, format!("{name} {change}"), before, after),
        (None, "missing") => list.add(DifferenceCause::FieldMissing, name, before, after),
        (None, "added") => list.add(DifferenceCause::FieldAdded, name, before, after),
        (None, _) => list.add(DifferenceCause::FieldChanged, name, before, after),
    }
}

/// Values as one, without spaces: several lines mean the same as one with commas (RFC 9110 5.3).
fn joined(values: &str) -> String {
    values.split_whitespace().collect()
}

fn members(values: &[String]) -> BTreeSet<String> {
    let all = values.iter().flat_map(|value| value.split(','));
    all.map(|member| member.trim().to_ascii_lowercase()).filter(|member| !member.is_empty()).collect()
}

/// Media types without what does not count: case, spaces, and quotes of parameters.
fn types(values: &[String]) -> Vec<String> {
    let plain = |value: &String| value.chars().filter(|char| !char.is_whitespace() && *char != '"').collect::<String>();
    values.iter().map(|value| plain(value).to_ascii_lowercase()).collect()
}

/// The length of content that is not sent. That of content which is sent is compared with the content.
fn lengths([old, new]: [&RehearsedAnswer; 2], list: &mut DifferenceList) {
    // The text beside a redirect is not compared, and neither is its length.
    let is_of_redirects = is_redirect(old) && is_redirect(new);
    if is_of_redirects || (!old.is_head && old.status != 304) {
        return;
    }
    let (before, after) = (old.value("content-length"), new.value("content-length"));
    if before != after {
        let change = match (before, after) {
            (Some(_), None) => "missing",
            (None, Some(_)) => "added",
            _ => "changed",
        };
        list.add(
            DifferenceCause::HeadLength,
            format!("content-length {change}"),
            before.unwrap_or_default(),
            after.unwrap_or_default(),
        );
    }
}
