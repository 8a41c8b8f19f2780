//! Metrics, and data that instances share.

use wasmtime::Linker;

use super::guest::{Guest, HostAnswer, HostCaller, number};
use crate::abi::HostStatus;
use crate::metrics::DefinedMetricKind;
use crate::state::HostState;

pub(super) fn add(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "env",
        "proxy_define_metric",
        |caller: HostCaller<'_>, kind: u32, at: u32, size: u32, id_at: u32| {
            number(define(Guest::of(caller), kind, (at, size), id_at))
        },
    )?;
    linker.func_wrap("env", "proxy_increment_metric", |caller: HostCaller<'_>, id: u32, by: i64| {
        let state = caller.data();
        status(if state.trial.is_some() { Ok(()) } else { state.facts.metrics.increment(id, by) })
    })?;
    linker.func_wrap("env", "proxy_record_metric", |caller: HostCaller<'_>, id: u32, value: i64| {
        let state = caller.data();
        status(if state.trial.is_some() { Ok(()) } else { state.facts.metrics.record(id, value) })
    })?;
    linker.func_wrap("env", "proxy_get_metric", |caller: HostCaller<'_>, id: u32, at: u32| {
        let value = caller.data().facts.metrics.value(id);
        let mut guest = Guest::of(caller);
        number(value.map_err(Into::into).and_then(|value| guest.write_u64(at, value as u64)))
    })?;
    linker.func_wrap(
        "env",
        "proxy_get_shared_data",
        |caller: HostCaller<'_>, key_at: u32, key_size: u32, at: u32, size_at: u32, cas_at: u32| {
            number(get(Guest::of(caller), (key_at, key_size), (at, size_at), cas_at))
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_set_shared_data",
        |caller: HostCaller<'_>, key_at: u32, key_size: u32, at: u32, size: u32, cas: u32| {
            number(set(Guest::of(caller), (key_at, key_size), (at, size), cas))
        },
    )?;
    Ok(())
}

fn status(result: Result<(), HostStatus>) -> u32 {
    result.err().unwrap_or(HostStatus::Ok) as u32
}

fn define(mut guest: Guest<'_>, kind: u32, name: (u32, u32), id_at: u32) -> HostAnswer {
    let kind = DefinedMetricKind::of(kind).ok_or(HostStatus::BadArgument)?;
    let name = guest.text(name.0, name.1)?;
    // A trial must leave nothing behind.
    let id = if guest.state().trial.is_some() { 1 } else { guest.state().facts.metrics.define(kind, &name)? };
    guest.write_u32(id_at, id)
}

fn get(mut guest: Guest<'_>, key: (u32, u32), (at, size_at): (u32, u32), cas_at: u32) -> HostAnswer {
    let (key, state) = guest.bytes(key.0, key.1)?;
    let (value, number) = state.facts.shared.get(key).ok_or(HostStatus::NotFound)?;
    guest.give(&value, at, size_at)?;
    guest.write_u32(cas_at, number)
}

fn set(mut guest: Guest<'_>, key: (u32, u32), value: (u32, u32), cas: u32) -> HostAnswer {
    let value = guest.copy(value.0, value.1)?;
    let (key, state) = guest.bytes(key.0, key.1)?;
    if state.trial.is_some() {
        return Ok(());
    }
    Ok(state.facts.shared.set(key, &value, cas)?)
}
