//! A node with any plugins but the one called `none`.

use std::sync::Arc;

use serde_json::{Map, Value};
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

    fn check_of_apisix(&self, plugin: &str, written: &Value, options: &Value) -> Result<usize, String> {
        self.check(plugin, written, options)
    }

    fn credential(&self, _: &str, options: &Value) -> Result<String, String> {
        match options["key"].as_str() {
            Some("") => Err("key: is empty".to_owned()),
            _ => Ok(options.to_string()),
        }
    }

    fn check_upstream(&self, settings: &Map<String, Value>) -> Result<(), String> {
        match settings.get("type").and_then(Value::as_str) {
            Some("none") => Err("type: expected one of the types".to_owned()),
            _ if settings.contains_key("nodes") => Err("nodes: cannot be set by a policy".to_owned()),
            _ => Ok(()),
        }
    }

    fn check_enabled(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn protects(&self, plugin: &str) -> bool {
        plugin != "request-id"
    }

    fn works_on_streams(&self, plugin: &str) -> bool {
        plugin == "ip-restriction" || plugin == "mqtt-proxy"
    }

    fn works_on_requests(&self, plugin: &str) -> bool {
        plugin != "mqtt-proxy"
    }
}

/// The default options, for a node with plugins.
pub(crate) fn options() -> KubeOptions {
    KubeOptions { plugins: Arc::new(AnyPlugins), ..KubeOptions::default() }
}
