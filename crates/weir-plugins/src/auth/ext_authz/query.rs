//! Changes of a query: arguments that are set and removed.

use std::collections::{HashMap, HashSet};

use weir_plugin::form::{decoded, halves, write_encoded};

/// The query with these arguments set, and then others removed. Names are compared decoded: `%61` is `a`. What is set is encoded, so
/// that a value cannot add an argument.
pub(super) fn edited(query: &[u8], set: &[(String, String)], removed: &[String]) -> Vec<u8> {
    let values = set.iter().map(|(name, value)| (name.as_bytes(), Some(&**value)));
    // The last of a name counts.
    let changes: HashMap<&[u8], Option<&str>> =
        values.chain(removed.iter().map(|name| (name.as_bytes(), None))).collect();
    let mut out = Vec::with_capacity(query.len());
    let mut written: HashSet<&[u8]> = HashSet::new();
    let mut write = |name: &[u8], out: &mut Vec<u8>| {
        if let Some((name, Some(value))) = changes.get_key_value(name)
            && written.insert(*name)
        {
            separate(out);
            write_encoded(name, out);
            out.push(b'=');
            write_encoded(value.as_bytes(), out);
        }
    };
    for pair in query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()) {
        let name = decoded(halves(pair).0);
        if changes.contains_key(&*name) {
            write(&name, &mut out);
        } else {
            separate(&mut out);
            out.extend_from_slice(pair);
        }
    }
    set.iter().for_each(|(name, _)| write(name.as_bytes(), &mut out));
    out
}

fn separate(out: &mut Vec<u8>) {
    if !out.is_empty() {
        out.push(b'&');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_set_and_removed_by_their_decoded_names() {
        let set = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        for (query, set, removed, want) in [
            ("a=1&b=2", set("a", "9"), vec![], "a=9&b=2"),
            ("b=2", set("a", "x y&c=1#+%"), vec![], "b=2&a=x%20y%26c%3D1%23%2B%25"),
            ("a=1&%61=2&b&a", set("a", "9"), vec![], "a=9&b"),
            ("", set("a", ""), vec![], "a="),
            ("a=1&%61dmin=1&admin&b=a+c", vec![], vec!["admin"], "a=1&b=a+c"),
            ("a=1", vec![], vec!["a"], ""),
            ("a=1", set("a", "2"), vec!["a"], ""),
            ("&&a=%20&", vec![], vec!["b"], "a=%20"),
        ] {
            let removed: Vec<String> = removed.into_iter().map(str::to_owned).collect();
            let told = edited(query.as_bytes(), &set, &removed);
            assert_eq!(String::from_utf8_lossy(&told), want, "{query}");
        }
    }
}
