//! Functions that exist, since plugins import them whether they use them or not, and do nothing here.

use wasmtime::Linker;

use super::guest::HostCaller;
use crate::abi::HostStatus;
use crate::state::HostState;

const UNIMPLEMENTED: u32 = HostStatus::Unimplemented as u32;

pub(super) fn add(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker
        .func_wrap("env", "proxy_register_shared_queue", |_: HostCaller<'_>, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap(
        "env",
        "proxy_resolve_shared_queue",
        |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32, _: u32| UNIMPLEMENTED,
    )?;
    linker.func_wrap("env", "proxy_enqueue_shared_queue", |_: HostCaller<'_>, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_dequeue_shared_queue", |_: HostCaller<'_>, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap(
        "env",
        "proxy_grpc_call",
        |_: HostCaller<'_>,
         _: u32,
         _: u32,
         _: u32,
         _: u32,
         _: u32,
         _: u32,
         _: u32,
         _: u32,
         _: u32,
         _: u32,
         _: u32,
         _: u32| { UNIMPLEMENTED },
    )?;
    linker.func_wrap(
        "env",
        "proxy_grpc_stream",
        |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| UNIMPLEMENTED,
    )?;
    linker.func_wrap("env", "proxy_grpc_send", |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_grpc_close", |_: HostCaller<'_>, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_grpc_cancel", |_: HostCaller<'_>, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_get_status", |_: HostCaller<'_>, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    // There are no functions of the host beyond the interface.
    linker.func_wrap(
        "env",
        "proxy_call_foreign_function",
        |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| HostStatus::NotFound as u32,
    )?;
    Ok(())
}
