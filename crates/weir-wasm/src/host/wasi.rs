//! The functions of WASI (`wasi_snapshot_preview1`) that the runtimes of languages need to start, and to print. There are no files, no
//! sockets, no arguments and no variables.

use aws_lc_rs::rand;
use wasmtime::Linker;

use super::general::now_ns;
use super::guest::{Guest, HostAnswer, HostCaller, HostRefusal};
use crate::state::HostState;

const MODULE: &str = "wasi_snapshot_preview1";
/// Numbers of errors (`errno` of WASI).
const BAD_DESCRIPTOR: u32 = 8;
const BAD_ADDRESS: u32 = 21;
const NOT_SUPPORTED: u32 = 52;
/// The most bytes of one call that are looked at for lines.
const MOST_PRINTED: usize = 64 << 10;

pub(super) fn add(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "fd_write",
        |caller: HostCaller<'_>, file: u32, parts: u32, count: u32, written_at: u32| match file {
            1 | 2 => errno(print(Guest::of(caller), file as usize - 1, (parts, count), written_at)),
            _ => Ok(BAD_DESCRIPTOR),
        },
    )?;
    linker.func_wrap(MODULE, "clock_time_get", |caller: HostCaller<'_>, _clock: u32, _precision: u64, at: u32| {
        errno(Guest::of(caller).write_u64(at, now_ns()))
    })?;
    linker.func_wrap(MODULE, "random_get", |caller: HostCaller<'_>, at: u32, size: u32| {
        let mut guest = Guest::of(caller);
        // Checked before anything of this size is made.
        let checked = guest.bytes(at, size).map(|_| ());
        errno(checked.and_then(|()| {
            let mut random = vec![0; size as usize];
            rand::fill(&mut random).map_err(|_| crate::abi::HostStatus::InternalFailure)?;
            guest.write(at, &random)
        }))
    })?;
    for sizes in ["environ_sizes_get", "args_sizes_get"] {
        linker.func_wrap(MODULE, sizes, |caller: HostCaller<'_>, count_at: u32, bytes_at: u32| {
            let mut guest = Guest::of(caller);
            errno(guest.write_u32(count_at, 0).and_then(|()| guest.write_u32(bytes_at, 0)))
        })?;
    }
    for list in ["environ_get", "args_get"] {
        linker.func_wrap(MODULE, list, |_: HostCaller<'_>, _: u32, _: u32| 0_u32)?;
    }
    linker.func_wrap(MODULE, "proc_exit", |_: HostCaller<'_>, code: u32| -> wasmtime::Result<()> {
        Err(wasmtime::Error::msg(format!("it has ended itself with the code {code}")))
    })?;
    linker.func_wrap(MODULE, "sched_yield", |_: HostCaller<'_>| 0_u32)?;
    add_files(linker)
}

/// What asks for files, sockets and timers, which there are none of.
fn add_files(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "fd_close", |_: HostCaller<'_>, _: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(MODULE, "fd_fdstat_get", |_: HostCaller<'_>, _: u32, _: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(MODULE, "fd_fdstat_set_flags", |_: HostCaller<'_>, _: u32, _: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(MODULE, "fd_filestat_get", |_: HostCaller<'_>, _: u32, _: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(MODULE, "fd_prestat_get", |_: HostCaller<'_>, _: u32, _: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(MODULE, "fd_prestat_dir_name", |_: HostCaller<'_>, _: u32, _: u32, _: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(MODULE, "fd_read", |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32| BAD_DESCRIPTOR)?;
    linker
        .func_wrap(MODULE, "fd_readdir", |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u64, _: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(MODULE, "fd_seek", |_: HostCaller<'_>, _: u32, _: u64, _: u32, _: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(MODULE, "clock_res_get", |_: HostCaller<'_>, _: u32, _: u32| NOT_SUPPORTED)?;
    linker.func_wrap(MODULE, "poll_oneoff", |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32| NOT_SUPPORTED)?;
    linker.func_wrap(
        MODULE,
        "path_open",
        |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u64, _: u64, _: u32, _: u32| NOT_SUPPORTED,
    )?;
    linker.func_wrap(MODULE, "path_filestat_get", |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32, _: u32| {
        NOT_SUPPORTED
    })?;
    linker.func_wrap(MODULE, "path_create_directory", |_: HostCaller<'_>, _: u32, _: u32, _: u32| NOT_SUPPORTED)?;
    linker.func_wrap(MODULE, "path_remove_directory", |_: HostCaller<'_>, _: u32, _: u32, _: u32| NOT_SUPPORTED)?;
    linker.func_wrap(MODULE, "path_unlink_file", |_: HostCaller<'_>, _: u32, _: u32, _: u32| NOT_SUPPORTED)?;
    linker.func_wrap(
        MODULE,
        "path_readlink",
        |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| NOT_SUPPORTED,
    )?;
    linker.func_wrap(MODULE, "path_rename", |_: HostCaller<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| {
        NOT_SUPPORTED
    })?;
    Ok(())
}

fn errno(answer: HostAnswer) -> wasmtime::Result<u32> {
    match answer {
        Ok(()) => Ok(0),
        Err(HostRefusal::HostStatus(_)) => Ok(BAD_ADDRESS),
        Err(HostRefusal::Trap(trap)) => Err(trap),
    }
}

/// Logs what is printed, line by line. `parts` is a list of places and sizes.
fn print(mut guest: Guest<'_>, output: usize, (parts, count): (u32, u32), written_at: u32) -> HostAnswer {
    let bad = || HostRefusal::HostStatus(crate::abi::HostStatus::InvalidMemoryAccess);
    let list = guest.copy(parts, count.checked_mul(8).ok_or_else(bad)?)?;
    let (mut text, mut written) = (Vec::new(), 0_u32);
    for part in list.chunks_exact(8) {
        let number = |at: usize| u32::from_le_bytes(part[at..at + 4].try_into().expect("four bytes"));
        let (bytes, _) = guest.bytes(number(0), number(4))?;
        let room = MOST_PRINTED.saturating_sub(text.len());
        text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        written = written.saturating_add(number(4));
    }
    guest.state().print(output, &text);
    guest.write_u32(written_at, written)
}
