//! `admin.environments`: other nodes whose resources the console compares with those of this one.

use std::collections::HashSet;
use std::fmt;

use weir_client::ServiceUrl;

use super::admin_access::{URL, is_trusted_url};
use super::reference_text::literal_secret;
use crate::keys;
use crate::keys::KeyRule;
use crate::keys::kinds::{Flag, Or, ParsedText, Text, flag, text};
use crate::text::read::{MapReader, NodeReader, shortened};

/// A node that this one compares its resources with, by its Admin API.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminEnvironment {
    pub name: Box<str>,
    /// Its scheme, host and port.
    pub url: Box<str>,
    /// A key of its Admin API, which decides what this node may do there.
    pub key: Box<str>,
    /// Whether admins of this node may change its resources.
    pub promote: bool,
}

/// Without the key.
impl fmt::Debug for AdminEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminEnvironment").field("name", &self.name).field("url", &self.url).finish_non_exhaustive()
    }
}

/// The most environments of a node: all of them are asked at once.
const MOST: usize = 16;
/// The longest key.
const MOST_KEY: usize = 1_024;

keys! {
    /// Another node, whose resources the console compares with those of this one.
    pub(super) static ENVIRONMENT: EnvironmentKeys = "admin_environment",
        rules &[KeyRule::All {
            keys: &["name", "url", "key"],
            problem: "needs `name`, `url` and `key`",
            advice: "write `{ name: production, url: 'https://gateway.example:9180', key: '${{PRODUCTION_KEY}}' }`",
        }];

    /// What the console calls it.
    name: Text = text(1, 64), own(), example("production");
    /// The address of its Admin API: an `https` URL without a path, or an `http` URL of this machine.
    url: ParsedText<Box<str>> = URL, own(), example("https://gateway.example:9180");
    /// A key of its Admin API. A `viewer` is enough to compare; `promote` needs one that may write. No browser gets it.
    key: ParsedText<Box<str>> = text(1, MOST_KEY).parsed(key_text), own(), secret(), example("2f1c6f0d5e8b4a97c3d2e1f0a9b8c7d6");
    /// Whether admins of this node, without `scopes`, may change resources there.
    promote: Or<Flag> = flag().or(false), own();
}

pub(super) fn read(fields: &MapReader) -> Option<AdminEnvironment> {
    let url = fields.read(&ENVIRONMENT.url);
    if let (Some(url), Some(at)) = (&url, fields.get(&ENVIRONMENT.url))
        && !is_origin(url)
    {
        at.report_advising(
            format!("`{}` has a path, a query or a user", shortened(url)),
            "write scheme, host and port alone: `https://gateway.example:9180`",
        );
    }
    let (name, key) = (fields.read(&ENVIRONMENT.name), fields.read(&ENVIRONMENT.key));
    Some(AdminEnvironment { name: name?, url: url?, key: key?, promote: fields.value(&ENVIRONMENT.promote) })
}

fn is_origin(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    is_trusted_url(url)
        && ServiceUrl::parse(url).is_ok_and(|url| url.target().as_str() == "/")
        && !rest.contains(['?', '#', '@'])
}

/// Reports what is wrong with the environments together.
pub(super) fn check(at: &NodeReader, environments: &[AdminEnvironment]) {
    if environments.len() > MOST {
        at.report_advising(format!("has {} entries", environments.len()), format!("at most {MOST} are possible"));
    }
    let mut names = HashSet::new();
    if let Some(twice) = environments.iter().find(|one| !names.insert(&one.name)) {
        at.report(format!("`{}` is the name of two environments", shortened(&twice.name)));
    }
}

/// A key is sent in a header field.
fn key_text(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let text = literal_secret(at, text)?;
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        at.report("is no key: one has letters, digits and signs of ASCII, without spaces");
        return None;
    }
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use crate::check_text;

    fn faults(list: &str) -> Vec<String> {
        let text = format!("admin: {{ environments: [{list}] }}\n");
        check_text(&text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    fn one(url: &str) -> String {
        format!("{{ name: live, url: '{url}', key: the-key-of-live }}")
    }

    #[test]
    fn environments_have_an_address_without_a_path_and_a_key() {
        assert_eq!(faults(&one("https://gateway.example:9180")), [""; 0]);
        assert_eq!(faults(&one("http://127.0.0.1:9180/")), [""; 0]);
        for wrong in ["https://a.example/apisix", "https://a.example/?a", "https://a:b@a.example"] {
            let told = faults(&one(wrong));
            assert!(told[0].contains("admin.environments[0].url: "), "{wrong}: {told:?}");
        }
        assert!(faults(&one("http://gateway.example"))[0].contains("is not an `https` URL"));
        assert!(faults("{ name: live }")[0].contains("needs `name`, `url` and `key`"));
        let reference = faults("{ name: live, url: 'https://a.example', key: $env://A }");
        assert!(reference[0].contains("admin.environments[0].key: is a reference"), "{reference:?}");
        assert!(faults("{ name: live, url: 'https://a.example', key: 'a b' }")[0].contains("is no key"));
    }

    #[test]
    fn environments_are_few_and_have_different_names() {
        let twice = [one("https://a.example"), one("https://b.example")].join(", ");
        assert!(faults(&twice)[0].contains("`live` is the name of two environments"));
        let many: Vec<String> =
            (0..17).map(|number| format!("{{ name: e{number}, url: 'https://a.example', key: k }}")).collect();
        assert!(faults(&many.join(", "))[0].contains("has 17 entries"));
    }
}
