//! The `hosts` of a route: names, and wildcards for the beginning of a name.

use std::sync::Arc;

use foldhash::fast::RandomState;

use super::radix::Radix;
use super::table::SharedTable;
use super::{Paths, hash_of};

/// One entry of `hosts`, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Host {
    /// `example.com`
    Name(Box<str>),
    /// `*.example.com` is stored as `.example.com`, and `*` as the empty text. The `*` stands for any number of labels.
    Suffix(Box<str>),
}

/// The longest possible name (RFC 1035 §2.3.4); suffixes are looked up within this many bytes.
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
        // The trailing dot of the root is removed, as it is from the hosts of requests.
        let rest = rest.strip_suffix('.').unwrap_or(rest);
        if text.is_empty() || (rest.is_empty() && text != "*") {
            return Err(format!("{written:?} is not a host; write a name such as example.com, or leave hosts out"));
        }
        if rest.len() > MAX_LENGTH {
            return Err(format!("a host has at most {MAX_LENGTH} bytes, this one has {}", rest.len()));
        }
        if rest.contains('*') {
            return Err(format!("{written:?} has a * that is not at the start; write a pattern such as *.example.com"));
        }
        Ok(if is_suffix { Host::Suffix(rest.into()) } else { Host::Name(rest.into()) })
    }

    pub(super) fn matches(&self, host: &[u8]) -> bool {
        match self {
            Host::Name(name) => name.as_bytes() == host,
            Host::Suffix(suffix) => host.ends_with(suffix.as_bytes()),
        }
    }

    /// As it is written in the configuration.
    pub(super) fn text(&self) -> String {
        match self {
            Host::Name(name) => name.to_string(),
            Host::Suffix(suffix) => format!("*{suffix}"),
        }
    }
}

/// Finds the paths of the hosts that match a request.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    random: RandomState,
    names: SharedTable<Named>,
    /// The suffixes of wildcards, with their bytes reversed.
    suffixes: Radix<Arc<Paths>>,
    /// The paths of rules without hosts.
    any: Arc<Paths>,
}

#[derive(Clone, Debug)]
struct Named {
    name: Arc<str>,
    paths: Arc<Paths>,
}

impl Hosts {
    pub(super) fn new(random: RandomState) -> Hosts {
        let any = Arc::new(Paths::new(None));
        Hosts { random, names: SharedTable::default(), suffixes: Radix::default(), any }
    }

    /// The paths of a host, which are created if there are none.
    pub(super) fn paths_of(&mut self, host: Option<&Host>) -> &mut Paths {
        let random = self.random.clone();
        let hash = |named: &Named| hash_of(&random, named.name.as_bytes());
        let new = || Arc::new(Paths::new(host.cloned()));
        let paths = match host {
            None => &mut self.any,
            Some(Host::Name(name)) => {
                let named = || Named { name: (**name).into(), paths: new() };
                let own = hash_of(&random, name.as_bytes());
                &mut self.names.find_or_insert(own, |known| *known.name == **name, named, hash).paths
            }
            Some(Host::Suffix(suffix)) => self.suffixes.get_or_insert(&reversed(suffix), new),
        };
        Arc::make_mut(paths)
    }

    pub(super) fn forget_if_empty(&mut self, host: Option<&Host>) {
        if host.is_none() || !self.paths_of(host).is_empty() {
            return;
        }
        match host {
            None => {}
            Some(Host::Name(name)) => {
                self.names.remove(hash_of(&self.random, name.as_bytes()), |known| *known.name == **name);
            }
            Some(Host::Suffix(suffix)) => self.suffixes.remove(&reversed(suffix)),
        }
    }

    /// Calls `found` with the paths of each host that matches, the most specific first, until it returns true. The paths of
    /// rules without hosts come last.
    #[inline]
    pub(super) fn any_match<'a>(&'a self, host: &[u8], mut found: impl FnMut(&'a Paths) -> bool) {
        if !self.names.is_empty()
            && let Some(named) = self.names.find(hash_of(&self.random, host), |named| named.name.as_bytes() == host)
            && found(&named.paths)
        {
            return;
        }
        if !self.suffixes.is_empty() {
            let mut turned = [0; MAX_LENGTH];
            let length = host.len().min(MAX_LENGTH);
            for (to, from) in turned.iter_mut().zip(host.iter().rev()) {
                *to = *from;
            }
            if self.suffixes.any_prefix(&turned[..length], |paths| found(paths)) {
                return;
            }
        }
        found(&self.any);
    }
}

fn reversed(suffix: &str) -> Vec<u8> {
    suffix.bytes().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(written: &str) -> Host {
        Host::parse(written).expect("a host")
    }

    fn order(entries: &[&str], name: &str) -> Vec<String> {
        let mut hosts = Hosts::new(RandomState::default());
        for entry in entries {
            hosts.paths_of(Some(&host(entry)));
        }
        let mut seen = Vec::new();
        hosts.any_match(name.as_bytes(), |paths| {
            seen.extend(paths.host.as_ref().map(Host::text));
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
