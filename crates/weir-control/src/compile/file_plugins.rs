//! Plugins in files, which the settings of the node declare (`wasm`): their names, and their code.

use std::sync::Arc;

use weir_plugin::{CalledService, FilePlugin, LoadedPlugin, LoadedPlugins, Registry, Services, Stage};

use super::Compiler;
use crate::document::{NamedBy, NodeSettings, NodeSpec, UpstreamSpec, WasmPluginSpec};
use crate::text::diagnostic::{Diagnostic, FaultCause};

/// The plugins that a configuration with these settings may use.
pub(crate) fn registry_of(registry: &Registry, settings: &NodeSettings) -> Registry {
    let is_built_in = |name: &str| registry.built_in().iter().any(|entry| entry.name == name);
    let plugins = settings.wasm.plugins.iter().filter(|plugin| !is_built_in(&plugin.name));
    let added: Vec<(Box<str>, i32, Stage)> =
        plugins.map(|plugin| (plugin.name.clone(), plugin.priority, plugin.stage)).collect();
    registry.with_files(&added)
}

impl Compiler<'_> {
    /// The code of all plugins in files. What is wrong with one is reported here, once, and not where the plugin is used.
    pub(super) fn loaded_plugins(&self, registry: &Registry) -> Arc<LoadedPlugins> {
        let plugins = self.document.settings.wasm.plugins.iter().enumerate();
        let load = |(index, plugin): (usize, &WasmPluginSpec)| {
            let loaded = self.load_plugin(registry, index, plugin)?;
            Some((plugin.name.clone(), loaded))
        };
        Arc::new(plugins.filter_map(load).collect())
    }

    fn load_plugin(&self, registry: &Registry, index: usize, plugin: &WasmPluginSpec) -> Option<Arc<dyn LoadedPlugin>> {
        let at = format!("wasm.plugins[{index}]");
        if registry.built_in().iter().any(|entry| entry.name == &*plugin.name) {
            let problem = format!("`{}` is a plugin of Weir", plugin.name);
            self.report(&format!("{at}.name"), plugin.place, problem, Some("choose another `name`".to_owned()));
            return None;
        }
        let Some(runtime) = registry.runtime() else {
            let advice = "use one that was built with the feature `wasm`".to_owned();
            self.report(&at, plugin.place, "this binary cannot run WebAssembly", Some(advice));
            return None;
        };
        let file = format!("{at}.file");
        let content = match self.document.beside.files.get(&plugin.file, NamedBy::Settings) {
            Some(Ok(content)) => Arc::clone(content),
            // Of a document without its files, nothing is known of them.
            None => return None,
            Some(Err(reason)) => {
                let problem = format!("the file `{}` cannot be read: {reason}", plugin.file);
                let fault = Diagnostic::at_place(&self.document.source, plugin.file_place, problem);
                self.faults.add(Diagnostic { path: file, cause: FaultCause::of_unread_file(reason), ..fault });
                return None;
            }
        };
        let declared = FilePlugin {
            name: plugin.name.clone(),
            priority: plugin.priority,
            stage: plugin.stage,
            content,
            callback_time: plugin.callback_time,
            memory: plugin.memory,
            fails_open: plugin.fails_open,
        };
        match runtime.load(&declared) {
            Ok(loaded) => Some(loaded),
            Err(problem) => {
                let problem = format!("the file `{}` {problem}", plugin.file);
                self.report(&file, plugin.file_place, problem, None);
                None
            }
        }
    }

    /// The upstreams with names as services that plugins in files may call. Only such plugins call them, so without one there are none.
    pub(super) fn services(&self) -> Arc<Services> {
        let document = self.document;
        if document.settings.wasm.plugins.is_empty() {
            return Arc::default();
        }
        let of = |upstream: &UpstreamSpec| {
            let scheme = upstream.scheme.of_calls()?;
            let in_file = upstream.nodes_file.as_ref().and_then(|file| document.node_files.get(&file.path));
            let nodes = upstream.nodes.iter().chain(in_file.into_iter().flatten());
            let urls: Box<[Box<str>]> =
                nodes.filter(|node| node.weight > 0).map(|node| url(scheme, node).into()).collect();
            let is_verified = upstream.tls.verify.unwrap_or(document.settings.verifies_upstreams());
            (!urls.is_empty()).then(|| (upstream.id.clone(), CalledService { urls, is_verified }))
        };
        Arc::new(document.upstreams.iter().filter_map(of).collect())
    }
}

fn url(scheme: &str, node: &NodeSpec) -> String {
    match node.host.contains(':') {
        true => format!("{scheme}://[{}]:{}", node.host, node.port),
        false => format!("{scheme}://{}:{}", node.host, node.port),
    }
}
