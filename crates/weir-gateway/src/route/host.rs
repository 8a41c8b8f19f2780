//! The `hosts` of a route: names, and names of which only the end is given.

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::hash_of;
use super::radix::Forest;

/// One entry of `hosts`, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Host {
    /// `example.com`
    Name(Box<str>),
    /// `*.example.com` is `.example.com`; `*` is the empty text. Any number of labels may stand before it.
    Suffix(Box<str>),
}

/// As long as a name can be (RFC 1035 §2.3.4); no longer end of a name is ever looked for.
const MAX_LENGTH: usize = 255;

impl Host {
    /// Reads an entry of `hosts`.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub(super) fn parse(written: &str) -> Result<Host, String> {
        let text = written.to_ascii_lowercase();
        let (rest, is_suffix) = match text.strip_prefix('*') {
            Some(rest) => (rest, true),
            None => (&*text, false),
        };
        // Requests lose the dot of the root, too.
        let rest = rest.strip_suffix('.').unwrap_or(rest);
        if text.is_empty() || (rest.is_empty() && text != "*") {
            return Err(format!("{written:?} is no host; write a name, as example.com, or leave hosts away"));
        }
        if rest.len() > MAX_LENGTH {
            return Err(format!("a host has at most {MAX_LENGTH} bytes, this one has {}", rest.len()));
        }
        if rest.contains('*') {
            return Err(format!("{written:?} has a * within; only the first character may be one, as *.example.com"));
        }
        Ok(if is_suffix { Host::Suffix(rest.into()) } else { Host::Name(rest.into()) })
    }

    pub(super) fn matches(&self, host: &[u8]) -> bool {
        match self {
            Host::Name(name) => name.as_bytes() == host,
            Host::Suffix(suffix) => host.ends_with(suffix.as_bytes()),
        }
    }

    /// As it is written.
    pub(super) fn text(&self) -> String {
        match self {
            Host::Name(name) => name.to_string(),
            Host::Suffix(suffix) => format!("*{suffix}"),
        }
    }
}

/// Finds the number that belongs to a host.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    random: RandomState,
    names: HashTable<(Box<str>, u32)>,
    /// The ends of names, turned around.
    suffixes: Forest,
    root: Option<u32>,
}

impl Hosts {
    /// Each host is there once.
    pub(super) fn build<'a>(hosts: impl IntoIterator<Item = (&'a Host, u32)>) -> Hosts {
        let mut table = Hosts::default();
        let mut suffixes: Vec<(Vec<u8>, u32)> = Vec::new();
        for (host, number) in hosts {
            match host {
                Host::Name(name) => {
                    let hash = |name: &str| hash_of(&table.random, name.as_bytes());
                    table.names.insert_unique(hash(name), (name.clone(), number), |(name, _)| hash(name));
                }
                Host::Suffix(suffix) => suffixes.push((suffix.bytes().rev().collect(), number)),
            }
        }
        suffixes.sort();
        let keys: Vec<(&[u8], u32)> = suffixes.iter().map(|(key, number)| (&**key, *number)).collect();
        table.root = table.suffixes.add(&keys);
        table
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.root.is_none()
    }

    /// Calls `found` with the number of each entry that matches, the most specific first, until it returns true.
    /// Returns whether it did.
    #[inline]
    pub(super) fn any_match(&self, host: &[u8], mut found: impl FnMut(u32) -> bool) -> bool {
        if !self.names.is_empty()
            && let Some((_, number)) = self.names.find(hash_of(&self.random, host), |(name, _)| name.as_bytes() == host)
            && found(*number)
        {
            return true;
        }
        let Some(root) = self.root else { return false };
        let mut turned = [0; MAX_LENGTH];
        let length = host.len().min(MAX_LENGTH);
        for (to, from) in turned.iter_mut().zip(host.iter().rev()) {
            *to = *from;
        }
        self.suffixes.prefixes_of(root, &turned[..length]).any(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(written: &str) -> Host {
        Host::parse(written).expect("a host")
    }

    fn order(entries: &[&str], name: &str) -> Vec<String> {
        let entries: Vec<Host> = entries.iter().map(|entry| host(entry)).collect();
        let hosts = Hosts::build(entries.iter().zip(0..));
        let mut seen = Vec::new();
        hosts.any_match(name.as_bytes(), |number| {
            seen.push(entries[number as usize].text());
            false
        });
        seen
    }

    #[test]
    fn the_whole_name_then_the_longest_end() {
        let entries = ["*.com", "*", "a.example.com", "*.example.com", "*example.com"];
        assert_eq!(order(&entries, "a.example.com"), ["a.example.com", "*.example.com", "*example.com", "*.com", "*"]);
        assert_eq!(order(&entries, "example.com"), ["*example.com", "*.com", "*"]);
        assert_eq!(order(&entries, "x.y.example.com"), ["*.example.com", "*example.com", "*.com", "*"]);
        assert_eq!(order(&entries, ""), ["*"]);
        assert_eq!(order(&["a.com"], "b.com"), [""; 0]);
    }

    #[test]
    fn names_longer_than_any_suffix() {
        let name = format!("{}.example.com", "a".repeat(300));
        assert_eq!(order(&["*.example.com"], &name), ["*.example.com"]);
    }

    #[test]
    fn written_in_any_case_and_with_the_root() {
        assert_eq!(host("Foo.COM."), Host::Name("foo.com".into()));
        assert_eq!(host("*.Foo.com"), Host::Suffix(".foo.com".into()));
        assert_eq!(host("[::1]"), Host::Name("[::1]".into()));
        assert_eq!(host("*"), Host::Suffix("".into()));
    }

    #[test]
    fn impossible_ones_are_refused() {
        for written in ["", ".", "*.", "a.*.com", "**", &"a".repeat(256)] {
            assert!(Host::parse(written).is_err(), "{written}");
        }
    }
}
