//! Paths into the content of a request: `$post_arg.user.name`, `$post_arg.items[0].id`, `$post_arg.items[*].id`.

use std::borrow::Cow;

use serde_json::Value;

use crate::form;

/// The first value at a path, in JSON or in a form. Other JSON values than strings are written as JSON; null is `None`.
pub(super) fn find<'a>(content: &'a [u8], path: &str) -> Option<Cow<'a, [u8]>> {
    let Ok(json) = serde_json::from_slice::<Value>(content) else {
        return form::pairs(content).find(|(name, _)| **name == *path.as_bytes()).map(|(_, value)| value);
    };
    match at(&json, path)? {
        Value::Null => None,
        Value::String(text) => Some(Cow::Owned(text.clone().into_bytes())),
        value => Some(Cow::Owned(value.to_string().into_bytes())),
    }
}

fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let path = path.strip_prefix('.').unwrap_or(path);
    if path.is_empty() {
        return Some(value);
    }
    if let Some((index, rest)) = path.strip_prefix('[').and_then(|path| path.split_once(']')) {
        let items = value.as_array()?;
        return match index {
            "*" => items.iter().find_map(|item| at(item, rest)),
            index => at(items.get(index.parse::<usize>().ok()?)?, rest),
        };
    }
    let end = path.find(['.', '[']).unwrap_or(path.len());
    at(value.get(&path[..end])?, &path[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u18_paths_lead_into_json_and_forms() {
        let json = br#"{"a": {"b": [{"c": 1}, {"c": "two", "d": true}]}, "n": null}"#;
        for (path, want) in [
            ("a.b[0].c", Some("1")),
            ("a.b[1].c", Some("two")),
            ("a.b[*].d", Some("true")),
            ("a.b[2].c", None),
            ("a.x", None),
            ("n", None),
        ] {
            let found = find(json, path).map(|value| String::from_utf8_lossy(&value).into_owned());
            assert_eq!(found.as_deref(), want, "{path}");
        }
        assert_eq!(find(b"a=1&b=two+words", "b").as_deref(), Some(&b"two words"[..]));
    }
}
