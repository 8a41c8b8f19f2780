//! A converted configuration, and its output.

use std::collections::HashSet;
use std::fmt::Write;
use std::iter;

use crate::yaml::{Yaml, YamlMembers, write_members};
use crate::{ConversionFinding, FindingKind, SourcePlace};

/// The result of a conversion.
#[derive(Clone, Debug, Default)]
pub struct Converted {
    /// Settings of the node.
    pub(crate) settings: YamlMembers,
    pub(crate) upstreams: Vec<ConvertedResource>,
    pub(crate) hubs: Vec<ConvertedResource>,
    pub(crate) ssls: Vec<ConvertedResource>,
    pub(crate) plugin_metadata: Vec<ConvertedResource>,
    pub(crate) global_rules: Vec<ConvertedResource>,
    pub(crate) consumers: Vec<ConvertedResource>,
    pub(crate) routes: Vec<ConvertedResource>,
    pub(crate) stream_routes: Vec<ConvertedResource>,
    pub findings: Vec<ConversionFinding>,
}

/// A resource, and its origin in the input.
#[derive(Clone, Debug)]
pub(crate) struct ConvertedResource {
    pub members: YamlMembers,
    pub comment: Option<(SourcePlace, String)>,
}

/// The endpoints of an upstream with their weights. One that is listed several times gets the sum of its weights.
pub(crate) fn weighted_nodes(nodes: impl Iterator<Item = (String, i64)>) -> Yaml {
    let mut weights: Vec<(String, i64)> = Vec::new();
    for (node, weight) in nodes {
        match weights.iter_mut().find(|(known, _)| *known == node) {
            Some((_, sum)) => *sum += weight,
            None => weights.push((node, weight)),
        }
    }
    Yaml::Map(weights.into_iter().map(|(node, weight)| (node, Yaml::Integer(weight))).collect())
}

impl Converted {
    /// Reports something that has no counterpart.
    pub(crate) fn lost(&mut self, place: &SourcePlace, text: impl Into<String>) {
        self.found(place, FindingKind::Lost, text.into());
    }

    /// Reports something that was converted and behaves differently.
    pub(crate) fn differs(&mut self, place: &SourcePlace, text: impl Into<String>) {
        self.found(place, FindingKind::Differs, text.into());
    }

    fn found(&mut self, place: &SourcePlace, kind: FindingKind, text: String) {
        self.findings.push(ConversionFinding { place: place.clone(), kind, text });
    }

    /// Gives ids to the resources that have none, sorts the findings, and removes duplicates.
    pub(crate) fn finished(mut self) -> Converted {
        for list in [&mut self.ssls, &mut self.global_rules, &mut self.routes, &mut self.stream_routes] {
            give_ids(list);
        }
        let mut seen = HashSet::new();
        self.findings.retain(|finding| seen.insert(finding.to_string()));
        self.findings.sort_by(|left, right| (left.kind, &left.place).cmp(&(right.kind, &right.place)));
        self
    }

    /// Whether the configuration contains credentials, such as the users of a file that was read.
    pub fn holds_credentials(&self) -> bool {
        let lists = [
            &self.upstreams,
            &self.hubs,
            &self.ssls,
            &self.plugin_metadata,
            &self.global_rules,
            &self.routes,
            &self.stream_routes,
        ];
        let mut members = lists.into_iter().flatten().map(|resource| &resource.members).chain([&self.settings]);
        !self.consumers.is_empty() || members.any(has_credentials)
    }

    /// The configuration file, with the findings as comments at its beginning.
    pub fn yaml(&self) -> String {
        let mut out = String::new();
        if !self.findings.is_empty() {
            out.push_str("# To be checked:\n");
            for finding in &self.findings {
                let _ = writeln!(out, "#   {}", one_line(&finding.to_string()));
            }
            if !self.settings.is_empty() {
                out.push('\n');
            }
        }
        write_members(&self.settings, &mut out, 0);
        let lists = [
            ("upstreams", &self.upstreams),
            ("hubs", &self.hubs),
            ("ssls", &self.ssls),
            ("plugin_metadata", &self.plugin_metadata),
            ("global_rules", &self.global_rules),
            ("consumers", &self.consumers),
            ("routes", &self.routes),
            ("stream_routes", &self.stream_routes),
        ];
        for (name, items) in lists {
            // A file without any resource says that it has no routes.
            if items.is_empty() && (name != "routes" || !self.stream_routes.is_empty()) {
                continue;
            }
            if !out.is_empty() {
                out.push('\n');
            }
            if items.is_empty() {
                out.push_str("routes: []\n");
                continue;
            }
            let _ = writeln!(out, "{name}:");
            items.iter().for_each(|item| item.write(&mut out));
        }
        out
    }
}

impl ConvertedResource {
    pub(crate) fn new(place: &SourcePlace, what: impl Into<String>, members: YamlMembers) -> ConvertedResource {
        ConvertedResource { members, comment: Some((place.clone(), what.into())) }
    }

    fn id(&self) -> Option<&str> {
        self.members.iter().find_map(|(name, value)| match value {
            Yaml::Text(id) if name == "id" => Some(id.as_str()),
            _ => None,
        })
    }

    fn write(&self, out: &mut String) {
        if let Some((place, what)) = &self.comment {
            let _ = writeln!(out, "  # {place}: {}", one_line(what));
        }
        let mut block = String::new();
        write_members(&self.members, &mut block, 4);
        let _ = write!(out, "  - {}", block.trim_start());
    }
}

/// How members that hold a credential are named, or the ends of their names.
const CREDENTIALS: [&str; 5] = ["password", "secret", "hmac_key", "keys", "keyring"];

fn has_credentials(members: &YamlMembers) -> bool {
    fn is_within(value: &Yaml) -> bool {
        match value {
            Yaml::Map(members) => has_credentials(members),
            Yaml::List(items) => items.iter().any(is_within),
            _ => false,
        }
    }
    let is_one = |name: &str| CREDENTIALS.iter().any(|credential| name.ends_with(credential));
    // A certificate may contain its key, in place of the name of a file.
    let is_key = |value: &Yaml| matches!(value, Yaml::Text(text) if text.contains("PRIVATE KEY-----"));
    members.iter().any(|(name, value)| is_one(name) || is_key(value) || is_within(value))
}

/// An id derived from a text, such as an address.
pub(crate) fn id_of(text: &str) -> String {
    let parts = text.split(|char: char| !char.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    let id = parts.collect::<Vec<_>>().join("-");
    if id.is_empty() { "root".to_owned() } else { id.chars().take(MAX_ID).collect() }
}

/// The most characters in an id.
const MAX_ID: usize = 64;

/// Metrics, logs and a store name a resource by its id: it is the text of the comment, with a number if several have the same.
fn give_ids(list: &mut [ConvertedResource]) {
    let mut taken: HashSet<String> = list.iter().filter_map(|resource| Some(resource.id()?.to_owned())).collect();
    for resource in list.iter_mut().filter(|resource| resource.id().is_none()) {
        let name = id_of(resource.comment.as_ref().map_or("", |(_, what)| what));
        let numbered = |number: usize| {
            let suffix = format!("-{number}");
            format!("{}{suffix}", &name[..name.len().min(MAX_ID - suffix.len())])
        };
        let id = iter::once(name.clone()).chain((2..).map(numbered)).find(|id| !taken.contains(id));
        let id = id.expect("there are more numbers than resources");
        resource.members.insert(0, ("id".to_owned(), Yaml::text(&id)));
        taken.insert(id);
    }
}

/// Text for a comment: without line ends and characters that YAML does not allow.
fn one_line(text: &str) -> String {
    text.replace(|char: char| char.is_control() || "\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}".contains(char), " ")
}

/// A member of a route with one value or a list of them; `None` without values.
pub(crate) fn one_or_many(one: &str, many: &str, values: &[String]) -> Option<(String, Yaml)> {
    match values {
        [] => None,
        [value] => Some((one.to_owned(), Yaml::text(value))),
        values => Some((many.to_owned(), Yaml::texts(values))),
    }
}
