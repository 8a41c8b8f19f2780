//! The functions that plugins import: `proxy_*` in `env`, and those of WASI that languages need to start.

mod absent;
mod buffers;
mod calls;
mod general;
mod guest;
mod header_map;
mod headers;
mod measured;
#[cfg(test)]
mod tests;
mod wasi;

use wasmtime::Linker;

pub(crate) use header_map::count as map_size;

use crate::engine::engine;
use crate::state::HostState;

/// All functions, by module and name.
pub(crate) fn linker() -> wasmtime::Result<Linker<HostState>> {
    let mut linker = Linker::new(engine());
    general::add(&mut linker)?;
    buffers::add(&mut linker)?;
    headers::add(&mut linker)?;
    calls::add(&mut linker)?;
    measured::add(&mut linker)?;
    absent::add(&mut linker)?;
    wasi::add(&mut linker)?;
    Ok(linker)
}
