//! Functions that exist, since plugins import them whether they use them or not, and do nothing here.

use wasmtime::{Caller, Linker};

use crate::abi::Status;
use crate::state::HostState;

type Host<'c> = Caller<'c, HostState>;

const UNIMPLEMENTED: u32 = Status::Unimplemented as u32;

pub fn add(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap("env", "proxy_register_shared_queue", |_: Host<'_>, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_resolve_shared_queue", |_: Host<'_>, _: u32, _: u32, _: u32, _: u32, _: u32| {
        UNIMPLEMENTED
    })?;
    linker.func_wrap("env", "proxy_enqueue_shared_queue", |_: Host<'_>, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_dequeue_shared_queue", |_: Host<'_>, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap(
        "env",
        "proxy_grpc_call",
        |_: Host<'_>,
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
        |_: Host<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| UNIMPLEMENTED,
    )?;
    linker.func_wrap("env", "proxy_grpc_send", |_: Host<'_>, _: u32, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_grpc_close", |_: Host<'_>, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_grpc_cancel", |_: Host<'_>, _: u32| UNIMPLEMENTED)?;
    linker.func_wrap("env", "proxy_get_status", |_: Host<'_>, _: u32, _: u32, _: u32| UNIMPLEMENTED)?;
    // There are no functions of the host beyond the interface.
    linker.func_wrap(
        "env",
        "proxy_call_foreign_function",
        |_: Host<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| Status::NotFound as u32,
    )?;
    Ok(())
}
