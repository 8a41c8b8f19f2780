//! Files that options of plugins name for writing, and that are directories. A running node does not look, since a file system can
//! hang: its logger reports the file in the log.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use weir_plugin::Registry;
use weir_plugin::options::rows;

use crate::document::{Document, PluginSpec, ResourceOrigin};
use crate::text::diagnostic::Diagnostic;
use crate::text::read::join;
use crate::text::tree::TreePath;

/// The faults of all enabled plugins whose file is a directory.
pub(super) fn directories(document: &Document, registry: &Registry) -> Vec<Diagnostic> {
    let mut found = WrittenFiles { document, registry, options: HashMap::new(), faults: Vec::new() };
    let of_routes = document.routes.iter().map(|route| (&route.origin, &route.plugins));
    let of_services = document.services.iter().map(|service| (&service.origin, &service.plugins));
    let of_consumers = document.consumers.iter().map(|consumer| (&consumer.origin, &consumer.plugins));
    let sets = document.plugin_configs.iter().chain(&document.global_rules).chain(&document.consumer_groups);
    let of_sets = sets.map(|set| (&set.origin, &set.plugins));
    for (origin, plugins) in of_routes.chain(of_services).chain(of_consumers).chain(of_sets) {
        plugins.iter().filter(|plugin| !plugin.disabled).for_each(|plugin| found.add(origin, plugin));
    }
    found.faults
}

struct WrittenFiles<'a> {
    document: &'a Document,
    registry: &'a Registry,
    /// The options of each plugin that name a file.
    options: HashMap<&'a str, Vec<String>>,
    faults: Vec<Diagnostic>,
}

impl<'a> WrittenFiles<'a> {
    fn add(&mut self, origin: &ResourceOrigin, plugin: &'a PluginSpec) {
        let Some(entry) = self.registry.find(&plugin.name) else { return };
        let names_file = |row: &weir_plugin::options::Row| row.reaches.as_deref() == Some("file");
        let of_schema = || rows(&(entry.schema)()).into_iter().filter(names_file).map(|row| row.path).collect();
        for option in &*self.options.entry(entry.name).or_insert_with(of_schema) {
            let value = option.split('.').try_fold(&plugin.options, |value, step| value.get(step));
            let Some(name) = value.and_then(|value| value.as_str()) else { continue };
            let path = match self.document.access() {
                Some(access) => access.writable.path_of(name),
                None => PathBuf::from(name),
            };
            if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
                let path = join(&origin.path, &format!("plugins{}.{option}", TreePath::suffix(&plugin.name)));
                let place = self.document.place_at(&path);
                let fault = Diagnostic::at_place(&self.document.source, place, "is a directory")
                    .advise("add the name of the file");
                self.faults.push(self.document.located(Diagnostic { path, ..fault.outside() }));
            }
        }
    }
}
