//! A node with any plugins but the one called `none`.

use std::sync::Arc;

use serde_json::Value;
use weir_kube::{KubeOptions, PolicyPlugins};

#[derive(Debug)]
struct AnyPlugins;

impl PolicyPlugins for AnyPlugins {
    fn check(&self, plugin: &str, _: &Value, options: &Value) -> Result<usize, String> {
        match plugin {
            "none" => Err("there is no such plugin".to_owned()),
            _ => Ok(options["expressions"].as_u64().unwrap_or_default() as usize),
        }
    }

    fn works_on_streams(&self, plugin: &str) -> bool {
        plugin == "ip-restriction"
    }
}

/// The default options, for a node with plugins.
pub(crate) fn options() -> KubeOptions {
    KubeOptions { plugins: Arc::new(AnyPlugins), ..KubeOptions::default() }
}
