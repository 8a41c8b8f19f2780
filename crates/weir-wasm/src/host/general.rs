//! Logs, time, contexts, streams, and answers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wasmtime::Linker;

use super::guest::{Guest, HostAnswer, HostCaller, number};
use crate::abi::{HostStatus, StreamKind};
use crate::state::{HostState, LocalAnswer};
use crate::{limits, log, pairs, properties};

pub(super) fn add(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap("env", "proxy_log", |caller: HostCaller<'_>, level: u32, at: u32, size: u32| {
        number(write_log(Guest::of(caller), level, at, size))
    })?;
    linker.func_wrap("env", "proxy_get_log_level", |caller: HostCaller<'_>, at: u32| {
        number(Guest::of(caller).write_u32(at, log::least_level()))
    })?;
    linker.func_wrap("env", "proxy_get_current_time_nanoseconds", |caller: HostCaller<'_>, at: u32| {
        number(Guest::of(caller).write_u64(at, now_ns()))
    })?;
    linker.func_wrap("env", "proxy_set_tick_period_milliseconds", |mut caller: HostCaller<'_>, period: u32| {
        let period = Duration::from_millis(period.into());
        caller.data_mut().tick = (!period.is_zero()).then(|| period.max(limits::TICK));
        HostStatus::Ok as u32
    })?;
    linker.func_wrap("env", "proxy_done", |_: HostCaller<'_>| HostStatus::Ok as u32)?;
    linker.func_wrap("env", "proxy_set_effective_context", |mut caller: HostCaller<'_>, context: u32| {
        let state = caller.data_mut();
        if !state.contexts.contains(context) {
            return HostStatus::BadArgument as u32;
        }
        state.context = context;
        HostStatus::Ok as u32
    })?;
    linker.func_wrap("env", "proxy_continue_stream", |caller: HostCaller<'_>, stream: u32| {
        number(resume(Guest::of(caller), stream))
    })?;
    // These two are of version 0.1.0.
    linker.func_wrap("env", "proxy_continue_request", |caller: HostCaller<'_>| number(resume(Guest::of(caller), 0)))?;
    linker
        .func_wrap("env", "proxy_continue_response", |caller: HostCaller<'_>| number(resume(Guest::of(caller), 1)))?;
    linker.func_wrap("env", "proxy_clear_route_cache", |_: HostCaller<'_>| HostStatus::Ok as u32)?;
    linker.func_wrap("env", "proxy_get_configuration", |caller: HostCaller<'_>, at: u32, size_at: u32| {
        let mut guest = Guest::of(caller);
        let facts = guest.state().facts.clone();
        number(guest.give(&facts.conf, at, size_at))
    })?;
    linker.func_wrap("env", "proxy_close_stream", |caller: HostCaller<'_>, stream: u32| {
        number(close(Guest::of(caller), stream))
    })?;
    add_answers(linker)
}

fn add_answers(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "env",
        "proxy_send_local_response",
        |caller: HostCaller<'_>,
         status: u32,
         _details_at: u32,
         _details_size: u32,
         body_at: u32,
         body_size: u32,
         fields_at: u32,
         fields_size: u32,
         _grpc_status: i32| {
            number(answer(Guest::of(caller), status, (body_at, body_size), (fields_at, fields_size)))
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_get_property",
        |caller: HostCaller<'_>, path_at: u32, path_size: u32, at: u32, size_at: u32| {
            let mut guest = Guest::of(caller);
            let found = guest.bytes(path_at, path_size).and_then(|(path, state)| {
                let path = path.to_vec();
                Ok(properties::get(state, &path).ok_or(HostStatus::NotFound)?)
            });
            number(found.and_then(|value| guest.give(&value, at, size_at)))
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_set_property",
        |caller: HostCaller<'_>, path_at: u32, path_size: u32, value_at: u32, value_size: u32| {
            number(set_property(Guest::of(caller), (path_at, path_size), (value_at, value_size)))
        },
    )?;
    Ok(())
}

/// Nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn write_log(mut guest: Guest<'_>, level: u32, at: u32, size: u32) -> HostAnswer {
    const CRITICAL: u32 = 5;
    if level > CRITICAL {
        return Err(HostStatus::BadArgument.into());
    }
    let (text, _) = guest.bytes(at, size)?;
    let text = crate::log::text(text);
    guest.state().log(level, &text);
    Ok(())
}

fn resume(mut guest: Guest<'_>, stream: u32) -> HostAnswer {
    let stream = StreamKind::of(stream).ok_or(HostStatus::Unimplemented)?;
    let state = guest.state();
    let context = state.current().ok_or(HostStatus::BadArgument)?;
    // A response is never held up: it goes on in any case.
    if stream == StreamKind::Request {
        context.wake();
        state.resumed.insert(state.context, ());
    }
    Ok(())
}

/// Closes a stream, which is answered in the way in which the gateway ends exchanges.
fn close(mut guest: Guest<'_>, stream: u32) -> HostAnswer {
    const STATUS: u16 = 503;
    StreamKind::of(stream).ok_or(HostStatus::Unimplemented)?;
    keep_answer(guest.state(), LocalAnswer { status: STATUS, fields: Vec::new(), body: Vec::new() })
}

fn answer(mut guest: Guest<'_>, status: u32, body: (u32, u32), fields: (u32, u32)) -> HostAnswer {
    let status =
        u16::try_from(status).ok().filter(|status| (200..=599).contains(status)).ok_or(HostStatus::BadArgument)?;
    let body = guest.copy(body.0, body.1)?;
    let fields = pairs::decode(guest.bytes(fields.0, fields.1)?.0).ok_or(HostStatus::ParseFailure)?;
    keep_answer(guest.state(), LocalAnswer { status, fields, body })
}

fn keep_answer(state: &mut HostState, answer: LocalAnswer) -> HostAnswer {
    // An exchange that waits can be answered from a call that is not its own, as from a tick.
    let may = state.rights.answers || state.context != crate::state::ROOT && state.rights == Default::default();
    if !may {
        return Err(HostStatus::BadArgument.into());
    }
    let context = state.current().ok_or(HostStatus::BadArgument)?;
    context.wake();
    state.answers.insert(state.context, answer);
    Ok(())
}

fn set_property(mut guest: Guest<'_>, path: (u32, u32), value: (u32, u32)) -> HostAnswer {
    let (path, value) = (guest.copy(path.0, path.1)?, guest.copy(value.0, value.1)?);
    let context = guest.state().current().ok_or(HostStatus::BadArgument)?;
    let set = context.properties.get_or_insert_default();
    let before = set.values.get(&path).map(|known| path.len() + known.len());
    let bytes = set.bytes - before.unwrap_or(0) + path.len() + value.len();
    if bytes > limits::PROPERTY_BYTES || before.is_none() && set.values.len() == limits::PROPERTIES {
        return Err(HostStatus::InternalFailure.into());
    }
    set.values.insert(path, value);
    set.bytes = bytes;
    Ok(())
}
