//! Typed access to the tree. Every getter reports faults and goes on, so that all of them are found at once.

use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Number;

use crate::text::diagnostic::Faults;
use crate::text::foreign::{foreign_key, foreign_word, list_in_resource, shell_variable, variable_advice};
use crate::text::tree::{MapEntry, NodeKind, PathStep, TextPosition, TreeNode, TreePath};
use crate::text::units;
use weir_client::without_users;
use weir_plugin::WrittenName;
use weir_plugin::secret_name::may_be_secret;
use weir_plugin::suggest::closest;

/// The most keys that a message lists.
const LISTED_KEYS: usize = 16;

/// The keys of a map, as advice; `None` if there are too many.
pub(crate) fn keys_advice(known: &[&str]) -> Option<String> {
    (known.len() <= LISTED_KEYS).then(|| format!("the known keys are {}", listed(known)))
}

/// A value with its path, and the collector for its faults.
#[derive(Clone, Copy)]
pub struct NodeReader<'a> {
    node: &'a TreeNode,
    path: TreePath<'a>,
    faults: &'a Faults,
    /// It is declared to be a secret, or inside of one.
    is_secret: bool,
}

impl<'a> NodeReader<'a> {
    pub fn root(node: &'a TreeNode, faults: &'a Faults) -> Self {
        NodeReader { node, path: TreePath::ROOT, faults, is_secret: false }
    }

    pub fn at(node: &'a TreeNode, path: TreePath<'a>, faults: &'a Faults) -> Self {
        NodeReader { node, path, faults, is_secret: false }
    }

    pub fn path(&self) -> &TreePath<'a> {
        &self.path
    }

    pub fn node(&self) -> &'a TreeNode {
        self.node
    }

    pub fn place(&self) -> TextPosition {
        self.node.place
    }

    pub fn is_null(&self) -> bool {
        matches!(self.node.kind, NodeKind::Null)
    }

    pub fn is_list(&self) -> bool {
        matches!(self.node.kind, NodeKind::List(_))
    }

    pub fn is_map(&self) -> bool {
        matches!(self.node.kind, NodeKind::Map(_))
    }

    pub fn report(&self, problem: impl Into<String>) {
        self.faults.report(&self.path, self.place(), problem, self.variable_advice());
    }

    pub fn report_advising(&self, problem: impl Into<String>, advice: impl Into<String>) {
        let advice = self.variable_advice().unwrap_or_else(|| advice.into());
        self.faults.report(&self.path, self.place(), problem, Some(advice));
    }

    /// The advice if the text, or its key, contains a variable in shell syntax, which then is the cause of the fault.
    fn variable_advice(&self) -> Option<String> {
        let text = match &self.node.kind {
            NodeKind::Text(text) => shell_variable(text),
            _ => None,
        };
        text.or_else(|| shell_variable(self.path.last_key()?)).map(variable_advice)
    }

    /// Reports a fault of a value inside, which has no `NodeReader` of its own.
    pub fn report_inside(&self, inner: &str, problem: impl Into<String>, advice: Option<String>) {
        self.faults.report_text(&join(&self.path.to_string(), inner), self.node.place_of(inner), problem, advice);
    }

    /// Whether the value may be a secret, which no error quotes.
    fn is_secret(&self) -> bool {
        self.is_secret || may_be_secret(self.path.keys())
    }

    /// The value for an error: shortened, and left out if it may be a secret.
    fn quoted(&self) -> String {
        if self.is_secret() { "the value".to_owned() } else { format!("`{}`", scalar_text(self.node)) }
    }

    fn mismatch(&self, expected: &str) {
        self.mismatch_advising(expected, &|| None);
    }

    /// Reports a value of another kind than expected. `otherwise`: the advice, if there is none for what was found.
    fn mismatch_advising(&self, expected: &str, otherwise: &dyn Fn() -> Option<String>) {
        let is_text_wanted = expected.starts_with("text");
        let is_hidden = self.is_secret();
        let found = match &self.node.kind {
            NodeKind::Null => "nothing".to_owned(),
            NodeKind::Bool(value) => format!("the boolean {value}"),
            // The number is left out where it may be a password.
            NodeKind::Number(_) if is_text_wanted || is_hidden => "a number".to_owned(),
            NodeKind::Number(value) => format!("the number {value}"),
            NodeKind::Text(_) if is_hidden => "text".to_owned(),
            NodeKind::Text(value) => format!("`{}`", shortened(value)),
            NodeKind::List(_) => "a list".to_owned(),
            NodeKind::Map(_) => "a map".to_owned(),
        };
        let problem = format!("expected {expected}, found {found}");
        match self.advice_for_found(expected).or_else(otherwise) {
            Some(advice) => self.report_advising(problem, advice),
            None => self.report(problem),
        }
    }

    /// The advice for a value of another kind than expected, as far as it follows from the value.
    fn advice_for_found(&self, expected: &str) -> Option<String> {
        let is_text_wanted = expected.starts_with("text");
        match &self.node.kind {
            NodeKind::Bool(_) if is_text_wanted => {
                Some("`yes`, `no`, `on`, `off`, `true` and `false` are text only in quotes".to_owned())
            }
            NodeKind::Number(_) if is_text_wanted => Some("put it in quotes".to_owned()),
            NodeKind::Number(value) if expected == "a map" && self.path.last_key() == Some("timeout") => {
                Some(format!("write `{{ connect: {value}, send: {value}, read: {value} }}`, in seconds"))
            }
            NodeKind::Text(value) if !self.is_secret() => self.advice_for_text(expected, value),
            NodeKind::List(_) if is_text_wanted => self.plural_advice(),
            NodeKind::Map(_) if expected == "a list" => {
                Some("begin each item with `- `, or write the list in brackets: `[{ … }]`".to_owned())
            }
            _ => None,
        }
    }

    /// The advice for a list in place of the text of a key that has another one for several.
    fn plural_advice(&self) -> Option<String> {
        const PLURALS: [(&str, &str); 4] =
            [("uri", "uris"), ("host", "hosts"), ("remote_addr", "remote_addrs"), ("sni", "snis")];
        let key = self.path.last_key()?;
        PLURALS.iter().find(|(one, _)| *one == key).map(|(_, several)| format!("write `{several}` for several"))
    }

    /// The advice for a text in place of something else.
    fn advice_for_text(&self, expected: &str, text: &str) -> Option<String> {
        if expected == "a list" {
            return Some(format!("write `[{}]`", shortened(text)));
        }
        if expected.starts_with("a whole number") {
            let is_number = text.trim().parse::<f64>().is_ok();
            return is_number.then(|| "write the number without quotes".to_owned());
        }
        if expected == "a map" && self.path.last_key() == Some("upstream") {
            return Some("write `upstream: { nodes: { \"backend.example:8080\": 1 } }`".to_owned());
        }
        None
    }

    /// The fields of a map. Keys that are not in `known` are reported.
    pub fn fields(&'a self, known: &[&'static str]) -> Option<MapReader<'a>> {
        let fields = self.map_advising("", &|| keys_advice(known))?;
        self.report_unknown(&|| known.to_vec(), |key| known.contains(&key));
        Some(fields)
    }

    /// The fields of a map, whatever its keys are. `table` names their declarations.
    pub fn map(&'a self, table: &'static str) -> Option<MapReader<'a>> {
        self.map_advising(table, &|| None)
    }

    /// Like [`NodeReader::map`], with advice for what is no map.
    pub(crate) fn map_advising(
        &'a self,
        table: &'static str,
        advice: &dyn Fn() -> Option<String>,
    ) -> Option<MapReader<'a>> {
        Some(MapReader { at: self, entries: self.entries_advising(advice)?, table })
    }

    /// A map without entries, in place of one that is absent here.
    pub fn empty_map(&'a self) -> MapReader<'a> {
        MapReader { at: self, entries: &[], table: "" }
    }

    /// Reports the keys of a map that are not known. `known` lists all that are.
    pub fn report_unknown(&self, known: &dyn Fn() -> Vec<&'static str>, is_known: impl Fn(&str) -> bool) {
        let NodeKind::Map(entries) = &self.node.kind else { return };
        for MapEntry { key, key_place, .. } in entries.iter().filter(|entry| !is_known(&entry.key)) {
            let path = TreePath::below(&self.path, PathStep::Key(key));
            if self.faults.is_full_for(&self.path) {
                self.faults.report(&path, *key_place, "the key is not known", None);
                continue;
            }
            let known = known();
            let suggestion = if self.faults.has_suggested() { None } else { closest(key, known.iter().copied()) };
            // The advice is never to leave the key out: it may be meant to restrict access.
            let is_single = self.path.is_stored_resource() && known.contains(&"create_time");
            let whole_file = if is_single { list_in_resource(key).map(str::to_owned) } else { None };
            let advice = match (whole_file.or_else(|| foreign_key(key, &known)), suggestion) {
                (Some(advice), _) => advice,
                (None, Some(word)) => format!("did you mean `{word}`?"),
                (None, None) => keys_advice(&known)
                    .unwrap_or_else(|| "docs/reference/configuration.md lists the known keys".to_owned()),
            };
            self.faults.report(&path, *key_place, format!("the key `{}` is not known", shortened(key)), Some(advice));
        }
    }

    /// The entries of a map with arbitrary keys.
    pub fn entries(&self) -> Option<&'a [MapEntry]> {
        self.entries_advising(&|| None)
    }

    /// Like [`NodeReader::entries`], with advice for what is no map.
    pub fn entries_advising(&self, advice: &dyn Fn() -> Option<String>) -> Option<&'a [MapEntry]> {
        match &self.node.kind {
            NodeKind::Map(entries) => Some(entries),
            _ => {
                self.mismatch_advising("a map", advice);
                None
            }
        }
    }

    /// The value of an entry of this map.
    pub fn below(&'a self, entry: &'a MapEntry) -> NodeReader<'a> {
        NodeReader {
            node: &entry.value,
            path: TreePath::below(&self.path, PathStep::Key(&entry.key)),
            faults: self.faults,
            is_secret: self.is_secret,
        }
    }

    /// The items of a list.
    pub fn items(&'a self) -> impl Iterator<Item = NodeReader<'a>> {
        let items: &[TreeNode] = match &self.node.kind {
            NodeKind::List(items) => items,
            _ => {
                self.mismatch("a list");
                &[]
            }
        };
        let item = |(index, node)| NodeReader {
            node,
            path: TreePath::below(&self.path, PathStep::Index(index)),
            faults: self.faults,
            is_secret: self.is_secret,
        };
        items.iter().enumerate().map(item)
    }

    /// The items of a list; an empty list and duplicates are reported.
    pub fn distinct<T: Clone + Eq + Hash>(&self, read: impl Fn(&NodeReader<'_>) -> Option<T>) -> Vec<T> {
        let mut all: Vec<T> = Vec::new();
        let mut seen: HashSet<T> = HashSet::new();
        if matches!(&self.node.kind, NodeKind::List(items) if items.is_empty()) {
            self.report_advising("is empty", "leave the key out, or add an entry");
        }
        for item in self.items() {
            let Some(value) = read(&item) else { continue };
            match seen.insert(value.clone()) {
                true => all.push(value),
                false => item.report(format!("{} is listed twice", item.quoted())),
            }
        }
        all
    }

    pub fn text(&self) -> Option<&'a str> {
        match &self.node.kind {
            NodeKind::Text(text) => Some(text),
            _ => {
                self.mismatch("text");
                None
            }
        }
    }

    /// A text with a number of characters in this range.
    pub fn text_of(&self, length: RangeInclusive<usize>) -> Option<&'a str> {
        let text = self.text()?;
        let count = text.chars().count();
        if length.contains(&count) {
            return Some(text);
        }
        let (least, most) = (length.start(), length.end());
        self.report(format!("has {count} characters; {least} to {most} are allowed"));
        None
    }

    /// The name of a file or a directory that the gateway writes.
    pub fn written_name(&self, kind: WrittenName) -> Option<&'a str> {
        let text = self.text()?;
        match kind.fault(text) {
            Some(fault) => {
                self.report(fault);
                None
            }
            None => Some(text),
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        match self.node.kind {
            NodeKind::Bool(value) => Some(value),
            _ => {
                self.mismatch("true or false");
                None
            }
        }
    }

    /// A whole number of any size.
    pub fn whole(&self) -> Option<i64> {
        let whole = match &self.node.kind {
            NodeKind::Number(number) => as_whole(number),
            _ => None,
        };
        if whole.is_none() {
            self.mismatch("a whole number");
        }
        whole
    }

    pub fn integer<T>(&self, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        let NodeKind::Number(number) = &self.node.kind else {
            self.mismatch(&expected());
            return None;
        };
        let value = as_whole(number).and_then(|whole| T::try_from(whole).ok()).filter(|value| range.contains(value));
        if value.is_none() {
            let found = if self.is_secret() { "the value".to_owned() } else { number.to_string() };
            self.report(format!("{found} is not {}", expected()));
        }
        value
    }

    /// As [`NodeReader::integer`], with advice for a word such as `unlimited` in place of the number.
    pub fn integer_advising<T>(&self, range: RangeInclusive<T>, advice: &str) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        match &self.node.kind {
            NodeKind::Text(word) if !self.is_secret() && word.chars().all(char::is_alphabetic) => {
                self.report_advising(format!("expected a number, found `{}`", shortened(word)), advice);
                None
            }
            _ => self.integer(range),
        }
    }

    /// A duration greater than zero: seconds as a number, or `500ms`, `10s`, `5m`, `1h`.
    pub fn duration(&self) -> Option<Duration> {
        match self.any_duration()? {
            Duration::ZERO => {
                self.report_advising("must be more than zero", "try `10s`");
                None
            }
            duration => Some(duration),
        }
    }

    /// A duration that may be zero.
    pub fn any_duration(&self) -> Option<Duration> {
        let seconds = match &self.node.kind {
            NodeKind::Number(seconds) => seconds.as_f64(),
            NodeKind::Text(text) => units::time_in_s(text),
            _ => {
                self.mismatch("a time such as `10s`, or a number of seconds");
                return None;
            }
        };
        let duration = seconds.and_then(units::seconds);
        if duration.is_none() {
            let longest = units::LONGEST;
            let (problem, advice) = match seconds.is_some_and(|seconds| seconds > longest.as_secs_f64()) {
                true => ("is too long", format!("the longest time is `{}`", units::written_time(longest))),
                false => (
                    "is not a time",
                    "write a number of seconds, or a time such as `500ms`, `10s`, `5m`, `1h`".to_owned(),
                ),
            };
            self.report_advising(format!("{} {problem}", self.quoted()), advice);
        }
        duration
    }

    /// A size: bytes as a number, or `8k`, `8KB`, `8KiB` and so on.
    pub fn size(&self) -> Option<u64> {
        let size = match &self.node.kind {
            NodeKind::Number(bytes) => bytes.as_u64(),
            NodeKind::Text(text) => units::size(text),
            _ => {
                self.mismatch("a size such as `8MiB`, or a number of bytes");
                return None;
            }
        };
        if size.is_none() {
            self.report_advising(
                format!("{} is not a size", self.quoted()),
                "write a number of bytes, or a size such as `16k`, `8MB`, `8MiB`, `1GiB`",
            );
        }
        size
    }

    /// One of the given words; returns its value.
    pub fn choice<T: Clone>(&self, choices: &[(&str, T)]) -> Option<T> {
        let words = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>();
        let NodeKind::Text(text) = &self.node.kind else {
            self.mismatch(&format!("one of {}", listed(&words())));
            return None;
        };
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == &**text) {
            return Some(value.clone());
        }
        let advice = match (foreign_word(text, &words()), closest(text, words())) {
            (Some(advice), _) => advice.to_owned(),
            (None, Some(word)) => format!("did you mean `{word}`?"),
            (None, None) => format!("write one of {}", listed(&words())),
        };
        self.report_advising(format!("{} is not an allowed value", self.quoted()), advice);
        None
    }
}

/// The fields of one map.
#[derive(Clone, Copy)]
pub struct MapReader<'a> {
    at: &'a NodeReader<'a>,
    entries: &'a [MapEntry],
    /// The name of the table that declares its keys.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "a test compares what is declared with what is asked for")
    )]
    table: &'static str,
}

/// The name of a key.
pub trait KeyName {
    fn name(&self) -> &str;

    /// Whether its value is declared to be a secret.
    fn is_secret(&self) -> bool {
        false
    }
}

impl KeyName for str {
    fn name(&self) -> &str {
        self
    }
}

impl<N: KeyName + ?Sized> KeyName for &N {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn is_secret(&self) -> bool {
        (**self).is_secret()
    }
}

impl<'a> MapReader<'a> {
    /// The value under `key`. A key without a value counts as absent.
    pub fn get<N: KeyName + ?Sized>(&self, key: &N) -> Option<NodeReader<'a>> {
        #[cfg(debug_assertions)]
        asked::note(self.table, key.name());
        let found = self.find(key.name())?;
        Some(NodeReader { is_secret: found.is_secret || key.is_secret(), ..found })
    }

    pub fn has<N: KeyName + ?Sized>(&self, key: &N) -> bool {
        self.get(key).is_some()
    }

    /// Like [`MapReader::get`], for what is not a reader of the key's meaning.
    pub fn find(&self, key: &str) -> Option<NodeReader<'a>> {
        let entry = self.entries.iter().find(|entry| &*entry.key == key)?;
        Some(self.at.below(entry)).filter(|at| !at.is_null())
    }

    /// The keys that are present.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.iter().map(|entry| &*entry.key)
    }

    pub fn at(&self) -> &'a NodeReader<'a> {
        self.at
    }

    /// Reports each of `keys` that is present as not supported.
    pub fn unsupported(&self, keys: &[&str]) {
        for at in keys.iter().filter_map(|key| self.get(*key)) {
            at.report_advising("is not supported yet by this version", "leave it out");
        }
    }

    /// Reports unless exactly one of two keys is present. Returns whether that is so.
    pub fn exactly_one(&self, one: &str, other: &str) -> bool {
        if self.find(one).is_none() && self.find(other).is_none() {
            self.at.report_advising(format!("`{one}` or `{other}` is required"), format!("add `{one}`"));
            return false;
        }
        self.at_most_one(one, other)
    }

    /// Reports if both of two keys are present. Returns whether that is not so.
    pub fn at_most_one(&self, one: &str, other: &str) -> bool {
        match self.find(one).zip(self.find(other)) {
            Some((_, second)) => {
                let problem = format!("`{one}` and `{other}` exclude each other");
                second.report_advising(problem, "keep one of them");
                false
            }
            None => true,
        }
    }
}

/// `10.0` counts as a whole number, as in APISIX, whose numbers are all floating-point.
fn as_whole(number: &Number) -> Option<i64> {
    let exact = |value: &f64| value.fract() == 0.0 && value.abs() < 2_f64.powi(53);
    number.as_i64().or_else(|| number.as_f64().filter(exact).map(|value| value as i64))
}

/// Shortens a value for a diagnostic: it may be long, or contain secrets.
pub fn shortened(text: &str) -> String {
    const SHOWN: usize = 60;
    // Before it is cut: without its end, the user of a URL is not known as one.
    let text = &*without_users(text);
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

pub fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Joins a path and a path below it.
pub fn join(outer: &str, inner: &str) -> String {
    match inner.strip_prefix('.').unwrap_or(inner) {
        "" => outer.to_owned(),
        inner if inner.starts_with('[') || outer.is_empty() => format!("{outer}{inner}"),
        inner => format!("{outer}.{inner}"),
    }
}

fn scalar_text(node: &TreeNode) -> String {
    match &node.kind {
        NodeKind::Text(text) => shortened(text),
        kind => TreeNode::unplaced(kind.clone()).to_json().to_string(),
    }
}

/// The keys that readers of this thread have asked for, each with the table that declares it: for the test of `weir-document` that
/// compares them with what is declared.
#[cfg(debug_assertions)]
pub mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static ASKED: RefCell<BTreeSet<(&'static str, String)>> = RefCell::default();
    }

    pub fn note(table: &'static str, key: &str) {
        ASKED.with_borrow_mut(|asked| asked.insert((table, key.to_owned())));
    }

    pub fn take() -> BTreeSet<(&'static str, String)> {
        ASKED.take()
    }
}
