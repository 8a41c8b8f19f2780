//! Content, answers of services, and configurations, as bytes.

use wasmtime::Linker;

use super::guest::{Guest, HostAnswer, HostCaller, number};
use crate::abi::{BufferKind, HostStatus};
use crate::limits;
use crate::state::HostState;

pub(super) fn add(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "env",
        "proxy_get_buffer_bytes",
        |caller: HostCaller<'_>, kind: u32, start: u32, most: u32, at: u32, size_at: u32| {
            number(get(Guest::of(caller), kind, (start, most), (at, size_at)))
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_get_buffer_status",
        |caller: HostCaller<'_>, kind: u32, length_at: u32, flags_at: u32| {
            let mut guest = Guest::of(caller);
            let length = buffer(guest.state(), kind).map(|bytes| bytes.len() as u32);
            number(length.map_err(Into::into).and_then(|length| {
                guest.write_u32(length_at, length)?;
                guest.write_u32(flags_at, 0)
            }))
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_set_buffer_bytes",
        |caller: HostCaller<'_>, kind: u32, start: u32, most: u32, at: u32, size: u32| {
            number(set(Guest::of(caller), kind, (start, most), (at, size)))
        },
    )?;
    Ok(())
}

fn buffer(state: &HostState, kind: u32) -> Result<&[u8], HostStatus> {
    let of = |content: &'static str| content.as_bytes();
    Ok(match BufferKind::of(kind).ok_or(HostStatus::BadArgument)? {
        BufferKind::RequestBody => state.request_body.as_deref().ok_or(HostStatus::NotFound)?,
        BufferKind::ResponseBody => state.response_body.as_deref().ok_or(HostStatus::NotFound)?,
        BufferKind::CallAnswer => state.call_answer.as_ref().map(|answer| &*answer.body).ok_or(HostStatus::NotFound)?,
        BufferKind::VmConfiguration => of(""),
        BufferKind::PluginConfiguration => &state.facts.conf,
    })
}

fn get(mut guest: Guest<'_>, kind: u32, (start, most): (u32, u32), (at, size_at): (u32, u32)) -> HostAnswer {
    guest.give_written((at, size_at), |_, state, given| {
        let found = buffer(state, kind)?;
        let start = (start as usize).min(found.len());
        let end = start.saturating_add(most as usize).min(found.len());
        given.extend_from_slice(&found[start..end]);
        Ok(())
    })
}

fn set(mut guest: Guest<'_>, kind: u32, (start, most): (u32, u32), (at, size): (u32, u32)) -> HostAnswer {
    let kind = BufferKind::of(kind).ok_or(HostStatus::BadArgument)?;
    let (new, state) = guest.bytes(at, size)?;
    let content = match kind {
        BufferKind::RequestBody => state.request_body.as_mut(),
        BufferKind::ResponseBody => state.response_body.as_mut(),
        BufferKind::CallAnswer | BufferKind::VmConfiguration | BufferKind::PluginConfiguration => {
            return Err(HostStatus::BadArgument.into());
        }
    };
    let content = content.ok_or(HostStatus::NotFound)?;
    let start = (start as usize).min(content.len());
    let end = start.saturating_add(most as usize).min(content.len());
    if (content.len() - (end - start) + new.len()) as u64 > limits::HELD_BYTES {
        return Err(HostStatus::InternalFailure.into());
    }
    content.splice(start..end, new.iter().copied());
    Ok(())
}
