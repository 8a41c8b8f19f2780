//! Plugins whose code is a file: how the settings of a node declare them, and what runs them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;

use crate::config_error::ConfigError;
use crate::definition::{Build, Entry, Stage};
use crate::option_error::{self, Quoting};
use crate::plugin::{Phases, Plugin};
use crate::schema;

/// A plugin in a file, as the settings of the node declare it.
#[derive(Clone, Debug)]
pub struct FilePlugin {
    pub name: Box<str>,
    pub priority: i32,
    pub stage: Stage,
    pub content: Arc<[u8]>,
    /// The most time of one call into the file's code.
    pub callback_time: Duration,
    /// The most bytes of memory of one instance.
    pub memory: u64,
    /// Exchanges go on without the plugin if it fails.
    pub fails_open: bool,
}

/// Makes plugins of files. The binary has one, or none.
pub trait PluginRuntime: Sync {
    /// Reads the code. This may take long; nothing of the code runs yet.
    ///
    /// # Errors
    /// Why the file is not a plugin, for the message at its place in the configuration.
    fn load(&self, plugin: &FilePlugin) -> Result<Arc<dyn LoadedPlugin>, String>;
}

/// The code of a file, ready to run.
pub trait LoadedPlugin: fmt::Debug + Send + Sync {
    /// Makes the plugin of a resource. `conf` is its configuration as the code gets it.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn build(&self, conf: Vec<u8>, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError>;
}

/// The plugins in files that one configuration has loaded, by name.
pub type LoadedPlugins = HashMap<Box<str>, Arc<dyn LoadedPlugin>>;

/// A plugin of the operator's own, whose code is the WebAssembly file that `wasm` of the node's settings names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FilePluginOptions {
    /// The configuration of the plugin: a text, or a map, which the plugin gets as JSON.
    #[serde(default)]
    #[schemars(schema_with = "conf_schema")]
    conf: Option<Value>,
}

fn conf_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "object"] })
}

/// In place of a plugin whose file could not be loaded, which has been reported.
struct Unloaded;

impl Plugin for Unloaded {
    fn phases(&self) -> Phases {
        Phases::NONE
    }
}

fn build(value: &Value, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
    let value = schema::enforce::<FilePluginOptions>(value, Quoting::Allowed)?;
    let FilePluginOptions { conf } = option_error::read(&value, Quoting::Allowed)?;
    build.identify(&value);
    let Some(loaded) = build.file_plugin() else { return Ok(Arc::new(Unloaded)) };
    let conf = match conf {
        None => Vec::new(),
        Some(Value::String(text)) => text.into_bytes(),
        Some(value) => value.to_string().into_bytes(),
    };
    loaded.build(conf, build)
}

/// What has been made of the names of plugins in files. Names and lists are kept until the process ends, because the rest of the
/// gateway refers to plugins without counting: an operator does not rename plugins often, and only the file of a node names them.
#[derive(Default)]
struct KnownNames {
    names: Vec<&'static str>,
    lists: Vec<&'static [Entry]>,
}

fn known() -> MutexGuard<'static, KnownNames> {
    static KNOWN: Mutex<KnownNames> = Mutex::new(KnownNames { names: Vec::new(), lists: Vec::new() });
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a name among all that this process has known, which no other name gets.
pub(crate) fn number(name: &str) -> Option<usize> {
    known().names.iter().position(|known| *known == name)
}

/// The name with a number.
pub(crate) fn name(number: usize) -> Option<&'static str> {
    known().names.get(number).copied()
}

/// The entries of a registry: those that are built in, and those of plugins in files: names, priorities and stages.
pub(crate) fn entries(built_in: &[Entry], added: &[(Box<str>, i32, Stage)]) -> &'static [Entry] {
    let mut known = known();
    let same = |list: &&&'static [Entry]| {
        let (first, rest) = list.split_at(built_in.len().min(list.len()));
        first.iter().map(|entry| entry.name).eq(built_in.iter().map(|entry| entry.name))
            && rest
                .iter()
                .map(|entry| (entry.name, entry.priority, entry.stage))
                .eq(added.iter().map(|(name, priority, stage)| (&**name, *priority, *stage)))
    };
    if let Some(list) = known.lists.iter().find(same) {
        return list;
    }
    let mut list = built_in.to_vec();
    for (name, priority, stage) in added {
        let name = match known.names.iter().find(|known| **known == &**name) {
            Some(known) => known,
            None => {
                let kept: &'static str = Box::leak(name.clone());
                known.names.push(kept);
                kept
            }
        };
        let example: &'static str = Box::leak(format!("{name}: {{ conf: \"\" }}").into());
        list.push(Entry::in_file(name, *priority, *stage, example, schema::of::<FilePluginOptions>, build));
    }
    let list: &'static [Entry] = Box::leak(list.into());
    known.lists.push(list);
    list
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::json;

    use super::*;
    use crate::definition::{BuildContext, Registry};

    fn added(name: &str, priority: i32) -> (Box<str>, i32, Stage) {
        (name.into(), priority, Stage::Access)
    }

    #[test]
    fn names_of_plugins_in_files_keep_their_numbers_whatever_else_is_declared() {
        let built_in = Registry::new(&[]);
        let first = built_in.with_files(&[added("file-a", 1), added("file-b", 2)]);
        let second = built_in.with_files(&[added("file-b", 7)]);
        let number = |registry: Registry, name| registry.number(name).expect("declared");
        assert_eq!(number(first, "file-b"), number(second, "file-b"));
        assert_ne!(number(first, "file-a"), number(first, "file-b"));
        assert_eq!(built_in.name_of(number(first, "file-b")), Some("file-b"));
        assert!(second.find("file-a").is_none() && second.number("file-a").is_none());
        assert_eq!(second.find("file-b").map(|entry| entry.priority), Some(7));
        let again = built_in.with_files(&[added("file-b", 7)]);
        assert!(std::ptr::eq(again.entries(), second.entries()), "the same list is made once");
    }

    #[test]
    fn conf_is_a_text_or_a_map_and_nothing_else() {
        #[derive(Debug)]
        struct Shows;
        impl LoadedPlugin for Shows {
            fn build(&self, conf: Vec<u8>, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
                Err(ConfigError::new("conf", String::from_utf8_lossy(&conf)))
            }
        }
        let registry = Registry::new(&[]).with_files(&[added("shows", 1)]);
        let entry = registry.find("shows").expect("declared");
        let loaded = LoadedPlugins::from([("shows".into(), Arc::new(Shows) as Arc<dyn LoadedPlugin>)]);
        let context = Rc::new(BuildContext::default().with_file_plugins(Arc::new(loaded)));
        let said = |options: Value| {
            let mut build = Build::of("route/1".to_owned(), &context).named(entry.name);
            (entry.build)(&options, &mut build).err().map(|error| error.to_string()).expect("an error")
        };
        assert_eq!(said(json!({"conf": "text"})), "conf: text");
        assert_eq!(said(json!({"conf": {"b": 1, "a": [2]}})), "conf: {\"b\":1,\"a\":[2]}");
        assert_eq!(said(json!({})), "conf: ");
        assert!(said(json!({"conf": 7})).starts_with("conf: "), "{}", said(json!({"conf": 7})));
        assert!(said(json!({"config": ""})).contains("`config` is not known"), "{}", said(json!({"config": ""})));
    }
}
