//! The code of plugins: read from files, compiled, and checked.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use aws_lc_rs::digest;
use wasmtime::{ExternType, InstancePre, Linker, Module, UnknownImportError};
use weir_plugin::{Build, ConfigError, FilePlugin, LoadedPlugin, Plugin, PluginRuntime};

use crate::abi::VERSIONS;
use crate::engine::engine;
use crate::log::PluginLog;
use crate::metrics::PluginMetrics;
use crate::plugin::{SeenContent, WasmPlugin};
use crate::shared_data::SharedData;
use crate::state::{HostState, Outside, PluginFacts};
use crate::vm::{PluginFailure, Vm};
use crate::worker::WorkerPlugin;
use crate::{host, kept, limits};

/// Runs WebAssembly.
pub static RUNTIME: WasmRuntime = WasmRuntime;

pub struct WasmRuntime;

/// The compiled code of one file.
pub(crate) struct CompiledModule {
    pub pre: InstancePre<HostState>,
    /// SHA-256 of the file, hexadecimal.
    digest: String,
    content: SeenContent,
    /// The least memory of an instance, in bytes.
    least_memory: u64,
    /// The digests of the configurations that an instance has accepted.
    tried: Mutex<HashSet<Vec<u8>>>,
}

static LINKER: LazyLock<Linker<HostState>> =
    LazyLock::new(|| host::linker().expect("every function has a name of its own"));

impl PluginRuntime for WasmRuntime {
    fn load(&self, plugin: &FilePlugin) -> Result<Arc<dyn LoadedPlugin>, String> {
        let compiled = compiled(&plugin.content)?;
        if compiled.least_memory > plugin.memory {
            return Err(format!(
                "needs {} bytes of memory to start, and `memory` of the plugin allows {}",
                compiled.least_memory, plugin.memory
            ));
        }
        let FilePlugin { callback_time, memory, fails_open, .. } = *plugin;
        Ok(Arc::new(Loaded { compiled, callback_time, memory, fails_open }))
    }
}

/// The code of a file: compiled once, as long as some configuration has it.
pub(crate) fn compiled(content: &[u8]) -> Result<Arc<CompiledModule>, String> {
    static KNOWN: Mutex<Option<HashMap<Vec<u8>, Weak<CompiledModule>>>> = Mutex::new(None);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let sum = digest::digest(&digest::SHA256, content).as_ref().to_vec();
    if let Some(found) = known().get_or_insert_default().get(&sum).and_then(Weak::upgrade) {
        return Ok(found);
    }
    // Without the lock, since it may take long.
    let made = Arc::new(CompiledModule::compile(content, &sum)?);
    let mut table = known();
    let table = table.get_or_insert_default();
    table.retain(|_, module| module.strong_count() > 0);
    table.insert(sum, Arc::downgrade(&made));
    Ok(made)
}

impl CompiledModule {
    fn compile(content: &[u8], sum: &[u8]) -> Result<CompiledModule, String> {
        if !content.starts_with(b"\0asm") {
            return Err("is not a WebAssembly module".to_owned());
        }
        let module = match kept::find(sum) {
            Some(module) => module,
            None => {
                let module = Module::new(engine(), content)
                    .map_err(|error| format!("is not a WebAssembly module that can be run: {}", error.root_cause()))?;
                kept::keep(sum, &module);
                module
            }
        };
        check_exports(&module)?;
        let least_memory = module.exports().find_map(|export| match export.ty() {
            ExternType::Memory(memory) if export.name() == "memory" => Some(memory.minimum() * memory.page_size()),
            _ => None,
        });
        let exports = |names: [&str; 2]| names.iter().any(|name| module.get_export(name).is_some());
        let content = SeenContent {
            request: exports(["proxy_on_request_body", "proxy_on_request_trailers"]),
            response: exports(["proxy_on_response_body", "proxy_on_response_trailers"]),
        };
        let pre = LINKER.instantiate_pre(&module).map_err(|error| import_fault(&error))?;
        let digest = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let tried = Mutex::default();
        Ok(CompiledModule { pre, digest, content, least_memory: least_memory.unwrap_or_default(), tried })
    }

    fn tried(&self) -> MutexGuard<'_, HashSet<Vec<u8>>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_exports(module: &Module) -> Result<(), String> {
    let is_function = |name: &str| matches!(module.get_export(name), Some(ExternType::Func(_)));
    if !VERSIONS.iter().any(|name| is_function(name)) {
        return Err("is not a plugin of proxy-wasm 0.1.0, 0.2.0 or 0.2.1: it exports no `proxy_abi_version_0_2_1`, \
                    `_0_2_0` or `_0_1_0`"
            .to_owned());
    }
    if !matches!(module.get_export("memory"), Some(ExternType::Memory(_))) {
        return Err("exports no `memory`".to_owned());
    }
    if !is_function("proxy_on_memory_allocate") && !is_function("malloc") {
        return Err("exports neither `proxy_on_memory_allocate` nor `malloc`".to_owned());
    }
    if !is_function("proxy_on_context_create") {
        return Err("exports no `proxy_on_context_create`".to_owned());
    }
    Ok(())
}

/// What is wrong with what a module imports.
fn import_fault(error: &wasmtime::Error) -> String {
    match error.downcast_ref::<UnknownImportError>() {
        Some(unknown) => format!("imports `{}.{}`, which Weir does not have", unknown.module(), unknown.name()),
        None => format!("cannot be linked: {}", error.root_cause()),
    }
}

/// A file with the limits of its plugin.
struct Loaded {
    compiled: Arc<CompiledModule>,
    callback_time: Duration,
    memory: u64,
    fails_open: bool,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Loaded").field(&self.compiled.digest).finish()
    }
}

impl LoadedPlugin for Loaded {
    fn build(&self, conf: Vec<u8>, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let outside = Outside { http: build.http().clone(), services: build.services() };
        let sum = digest::digest(&digest::SHA256, &conf).as_ref().to_vec();
        // What instances have in common with those of the same plugin and configuration, before and after a reload.
        let key = format!("{} {} {} {sum:02x?}", self.compiled.digest, self.memory, self.callback_time.as_millis());
        let name = build.name();
        let facts = Arc::new(PluginFacts {
            name,
            conf,
            callback_time: self.callback_time,
            memory: self.memory,
            fails_open: self.fails_open,
            shared: build.shared("wasm-data", name, SharedData::default),
            metrics: PluginMetrics::of(name),
            log: PluginLog::new(&format!("{name} of {}", build.owner())),
        });
        self.try_out(&facts, sum)?;
        let (code, of_worker) = (self.compiled.pre.clone(), Arc::clone(&facts));
        let make = move || WorkerPlugin::new(code.clone(), Arc::clone(&of_worker));
        let worker = build.per_worker("wasm-plugin", &format!("{name} {key}"), make);
        Ok(Arc::new(WasmPlugin::new(facts, worker, outside, self.compiled.content)))
    }
}

impl Loaded {
    /// Starts an instance with the configuration, and ends it again, unless one has accepted it before.
    fn try_out(&self, facts: &Arc<PluginFacts>, sum: Vec<u8>) -> Result<(), ConfigError> {
        if self.compiled.tried().contains(&sum) {
            return Ok(());
        }
        let trial = Vm::start(&self.compiled.pre, facts, Outside::default(), (0, true));
        match trial {
            Ok(_) => {}
            Err(PluginFailure::Refused(reason)) => return Err(ConfigError::new("conf", reason)),
            Err(failure) => return Err(ConfigError::new("", format!("the plugin cannot be started: {failure}"))),
        }
        let mut tried = self.compiled.tried();
        if tried.len() >= limits::TRIED {
            tried.clear();
        }
        tried.insert(sum);
        Ok(())
    }
}
