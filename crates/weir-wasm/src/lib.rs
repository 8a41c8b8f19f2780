//! Plugins of operators' own, as WebAssembly files by the rules of proxy-wasm: versions 0.1.0, 0.2.0 and 0.2.1 of its binary
//! interface. [`RUNTIME`] is what a registry of plugins is given; `docs/guide/wasm.md` is for those who write such plugins.

#![deny(unsafe_code)]

mod abi;
mod content;
mod contexts;
mod engine;
mod host;
mod kept;
mod lent;
mod limits;
mod loaded;
mod log;
mod metrics;
#[doc(hidden)]
pub mod pairs;
mod plugin;
mod properties;
mod service_call;
mod shared_data;
mod state;
#[cfg(test)]
mod testing;
#[doc(hidden)]
pub mod trial;
mod vm;
mod worker;

pub use kept::{forget_unused_code, keep_compiled};
pub use loaded::{RUNTIME, WasmRuntime};
pub use metrics::{WasmFigures, figures};
