//! `wasm`: plugins of the operator's own, whose code is in WebAssembly files (APISIX `wasm.plugins`).

use std::collections::HashSet;
use std::time::Duration;

use weir_plugin::Stage;

use crate::keys;
use crate::keys::kinds::{
    ByteSize, List, Or, SubMap, Text, Time, Whole, Words, list, section, size, text, time, whole, words,
};
use crate::text::read::{MapReader, NodeReader};
use crate::text::tree::TextPosition;

/// The plugins in WebAssembly files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WasmSettings {
    pub plugins: Vec<WasmPluginSpec>,
}

/// One plugin in a WebAssembly file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasmPluginSpec {
    pub name: Box<str>,
    pub place: TextPosition,
    pub priority: i32,
    pub stage: Stage,
    /// As written.
    pub file: Box<str>,
    pub file_place: TextPosition,
    /// The most time of one call into the file's code.
    pub callback_time: Duration,
    /// The most bytes of memory of one instance.
    pub memory: u64,
    /// Exchanges go on without the plugin if it fails.
    pub fails_open: bool,
}

/// The most plugins in files. Each has the memory of its instances, and a place in the tables of measurements.
const MOST_PLUGINS: usize = 64;
/// The longest name, as that of other plugins, and the longest path of a file.
const MOST_NAME: usize = 256;
const MOST_PATH: usize = 4_096;
/// A plugin that needs more than a second for one call would hold up a worker for all of its clients.
const CALLBACK_TIME: Time = time().between(Duration::from_millis(1), Duration::from_secs(1));
/// WebAssembly addresses 4 GiB.
const MEMORY: ByteSize = size(1 << 16, 1 << 32);

/// The phases of APISIX in which the head of a request is shown to the plugin. Its default is `access`.
const PHASES: &[(&str, Stage)] = &[("access", Stage::Access), ("rewrite", Stage::Rewrite)];

/// What becomes of an exchange whose plugin fails.
const FAILURES: &[(&str, bool)] = &[("closed", false), ("open", true)];

keys! {
    /// Plugins of one's own, as WebAssembly files by the rules of proxy-wasm.
    pub(super) static WASM: WasmKeys = "wasm";

    /// The plugins. Each has the options `conf` where it is used: a text, or a map.
    plugins: List<SubMap<WasmPluginSpec>> = list(section(&WASM_PLUGIN, plugin)), absent("none"),
        example("[{ name: our-headers, priority: 7999, file: /etc/weir/our_headers.wasm }]");
}

keys! {
    /// A plugin in a WebAssembly file.
    static WASM_PLUGIN: WasmPluginKeys = "wasm_plugin";

    /// The name under which routes and other resources use the plugin.
    name: Text = text(1, MOST_NAME).pattern("^[A-Za-z0-9._-]+$"), required("add `name: our-headers`"), example("our-headers");
    /// Its place in the order: the higher runs first.
    priority: Or<Whole<i32>> = whole(i32::MIN, i32::MAX).or(0), example("7999");
    /// The WebAssembly file, relative to the directory of this file. It is read again when it changes.
    file: Text = text(1, MOST_PATH), required("add `file: our_headers.wasm`"), example("our_headers.wasm");
    /// Whether the plugin sees requests with those of the phase `rewrite` or with those of `access`, which run later.
    http_request_phase: Or<Words<Stage>> = words(PHASES).or(Stage::Access);
    /// The most time of one call into the plugin.
    callback_time: Or<Time> = CALLBACK_TIME.or(Duration::from_millis(10)), own();
    /// The most memory of the plugin, for each worker and each `conf`.
    memory: Or<ByteSize> = MEMORY.or(64 << 20), own();
    /// What becomes of an exchange whose plugin fails or takes too long: with `closed` it is answered with 500, with `open` it goes on.
    fail: Or<Words<bool>> = words(FAILURES).or(false), own();
}

pub(super) fn read(fields: &MapReader) -> Option<WasmSettings> {
    let plugins = fields.read(&WASM.plugins).unwrap_or_default();
    if let Some(at) = fields.get(&WASM.plugins) {
        report_faults_of_list(&at, &plugins);
    }
    Some(WasmSettings { plugins })
}

fn report_faults_of_list(at: &NodeReader, plugins: &[WasmPluginSpec]) {
    if plugins.len() > MOST_PLUGINS {
        let problem = format!("has {} plugins, and the maximum is {MOST_PLUGINS}", plugins.len());
        at.report_advising(problem, "leave out those that no resource uses");
    }
    let mut seen = HashSet::new();
    for plugin in plugins.iter().filter(|plugin| !seen.insert(&*plugin.name)) {
        at.report_advising(format!("has two plugins with the name `{}`", plugin.name), "choose another `name`");
    }
}

fn plugin(fields: &MapReader) -> Option<WasmPluginSpec> {
    let (named, filed) = (fields.get(&WASM_PLUGIN.name), fields.get(&WASM_PLUGIN.file));
    let spec = WasmPluginSpec {
        name: fields.read(&WASM_PLUGIN.name).unwrap_or_default(),
        place: named.as_ref().map(NodeReader::place).unwrap_or_default(),
        priority: fields.value(&WASM_PLUGIN.priority),
        stage: fields.value(&WASM_PLUGIN.http_request_phase),
        file: fields.read(&WASM_PLUGIN.file).unwrap_or_default(),
        file_place: filed.as_ref().map(NodeReader::place).unwrap_or_default(),
        callback_time: fields.value(&WASM_PLUGIN.callback_time),
        memory: fields.value(&WASM_PLUGIN.memory),
        fails_open: fields.value(&WASM_PLUGIN.fail),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if let Some(at) = &named
        && !spec.name.bytes().all(is_plain)
    {
        at.report_advising("is not a name of a plugin", "use letters, digits, `.`, `_` and `-`");
        return None;
    }
    (!spec.name.is_empty() && !spec.file.is_empty()).then_some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::WrittenDocument;
    use crate::text::yaml::TextLimits;

    fn read(text: &str) -> (WasmSettings, Vec<String>) {
        let document = WrittenDocument::parse("f", text, &|_| None, TextLimits::default()).expect("YAML");
        (document.settings.wasm.clone(), document.faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn wasm_has_the_keys_of_apisix_and_the_limits() {
        let (settings, faults) = read(
            "wasm:\n  plugins:\n    - { name: a, priority: 7999, file: a.wasm, http_request_phase: rewrite }\n    \
             - { name: b, file: b.wasm, callback_time: 50ms, memory: 8MiB, fail: open }\n",
        );
        assert_eq!(faults, [""; 0]);
        let [a, b] = &*settings.plugins else { panic!("{settings:?}") };
        assert_eq!((&*a.name, a.priority, a.stage, &*a.file), ("a", 7999, Stage::Rewrite, "a.wasm"));
        assert_eq!((a.callback_time, a.memory, a.fails_open), (Duration::from_millis(10), 64 << 20, false));
        assert_eq!((b.priority, b.stage), (0, Stage::Access));
        assert_eq!((b.callback_time, b.memory, b.fails_open), (Duration::from_millis(50), 8 << 20, true));
    }

    #[test]
    fn wasm_faults_have_their_places() {
        let (_, faults) = read("wasm:\n  plugins:\n    - { name: a b, file: a.wasm }\n    - { name: a }\n");
        assert_eq!(faults.len(), 2, "{faults:#?}");
        assert!(faults[0].contains("wasm.plugins[0].name: is not a name of a plugin"), "{faults:#?}");
        assert!(faults[1].contains("wasm.plugins[1]: has no `file`"), "{faults:#?}");
        let (_, faults) = read("wasm: { plugins: [{ name: a, file: a }, { name: a, file: b }] }\n");
        assert!(faults[0].contains("has two plugins with the name `a`"), "{faults:#?}");
    }
}
