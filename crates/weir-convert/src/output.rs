//! What a converted configuration consists of, and how it is written.

use std::fmt::Write;

use crate::yaml::{YamlMembers, write_members};
use crate::{ConversionFinding, SourcePlace};

/// A configuration that was carried over.
#[derive(Clone, Debug, Default)]
pub struct Converted {
    /// Settings of the node.
    pub(crate) settings: YamlMembers,
    pub(crate) upstreams: Vec<ConvertedResource>,
    pub(crate) hubs: Vec<ConvertedResource>,
    pub(crate) ssls: Vec<ConvertedResource>,
    pub(crate) global_rules: Vec<ConvertedResource>,
    pub(crate) consumers: Vec<ConvertedResource>,
    pub(crate) routes: Vec<ConvertedResource>,
    pub findings: Vec<ConversionFinding>,
}

/// A resource, and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct ConvertedResource {
    pub members: YamlMembers,
    pub comment: Option<(SourcePlace, String)>,
}

impl Converted {
    /// The file. What was lost stands at its beginning.
    pub fn yaml(&self) -> String {
        let mut out = String::new();
        if !self.findings.is_empty() {
            out.push_str("# To be checked:\n");
            for finding in &self.findings {
                let _ = writeln!(out, "#   {finding}");
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
            ("global_rules", &self.global_rules),
            ("consumers", &self.consumers),
            ("routes", &self.routes),
        ];
        for (name, items) in lists {
            if items.is_empty() && name != "routes" {
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
    pub fn new(place: &SourcePlace, what: impl Into<String>, members: YamlMembers) -> ConvertedResource {
        ConvertedResource { members, comment: Some((place.clone(), what.into())) }
    }

    fn write(&self, out: &mut String) {
        if let Some((place, what)) = &self.comment {
            let _ = writeln!(out, "  # {place}: {}", what.replace(['\n', '\r'], " "));
        }
        let mut block = String::new();
        write_members(&self.members, &mut block, 4);
        let _ = write!(out, "  - {}", block.trim_start());
    }
}
