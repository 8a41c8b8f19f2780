//! The functions for header maps.

use wasmtime::Linker;

use super::guest::{Guest, HostAnswer, HostCaller, number, piece};
use super::header_map::{self, MapChange};
use crate::abi::{HostStatus, MapKind};
use crate::pairs;
use crate::state::HostState;

pub(super) fn add(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "env",
        "proxy_get_header_map_pairs",
        |caller: HostCaller<'_>, kind: u32, at: u32, size_at: u32| number(all(Guest::of(caller), kind, at, size_at)),
    )?;
    linker.func_wrap("env", "proxy_get_header_map_size", |caller: HostCaller<'_>, kind: u32, size_at: u32| {
        let mut guest = Guest::of(caller);
        let size = of(kind).and_then(|kind| Ok(header_map::pairs(guest.state(), kind)?));
        number(size.and_then(|pairs| guest.write_u32(size_at, encoded(&pairs).len() as u32)))
    })?;
    linker.func_wrap(
        "env",
        "proxy_set_header_map_pairs",
        |caller: HostCaller<'_>, kind: u32, at: u32, size: u32| number(set_all(Guest::of(caller), kind, at, size)),
    )?;
    linker.func_wrap(
        "env",
        "proxy_get_header_map_value",
        |caller: HostCaller<'_>, kind: u32, name_at: u32, name_size: u32, at: u32, size_at: u32| {
            number(one(Guest::of(caller), kind, (name_at, name_size), (at, size_at)))
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_add_header_map_value",
        |caller: HostCaller<'_>, kind: u32, name_at: u32, name_size: u32, at: u32, size: u32| {
            number(change(Guest::of(caller), kind, (name_at, name_size), (at, size), MapChange::Add))
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_replace_header_map_value",
        |caller: HostCaller<'_>, kind: u32, name_at: u32, name_size: u32, at: u32, size: u32| {
            number(change(Guest::of(caller), kind, (name_at, name_size), (at, size), MapChange::Replace))
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_remove_header_map_value",
        |caller: HostCaller<'_>, kind: u32, name_at: u32, name_size: u32| {
            number(change(Guest::of(caller), kind, (name_at, name_size), (0, 0), MapChange::Remove))
        },
    )?;
    Ok(())
}

fn of(kind: u32) -> HostAnswer<MapKind> {
    Ok(MapKind::of(kind).ok_or(HostStatus::BadArgument)?)
}

fn encoded(all: &[pairs::MapPair]) -> Vec<u8> {
    pairs::encode(all.iter().map(|(name, value)| (&**name, &**value)))
}

fn all(mut guest: Guest<'_>, kind: u32, at: u32, size_at: u32) -> HostAnswer {
    let found = header_map::pairs(guest.state(), of(kind)?)?;
    guest.give(&encoded(&found), at, size_at)
}

fn set_all(mut guest: Guest<'_>, kind: u32, at: u32, size: u32) -> HostAnswer {
    let kind = of(kind)?;
    let (bytes, state) = guest.bytes(at, size)?;
    let new = pairs::decode(bytes).ok_or(HostStatus::ParseFailure)?;
    Ok(header_map::replace(state, kind, &new)?)
}

fn one(mut guest: Guest<'_>, kind: u32, name: (u32, u32), (at, size_at): (u32, u32)) -> HostAnswer {
    let kind = of(kind)?;
    guest.give_written((at, size_at), |memory, state, value| {
        Ok(header_map::write_value(state, kind, piece(memory, name.0, name.1)?, value)?)
    })
}

fn change(mut guest: Guest<'_>, kind: u32, name: (u32, u32), value: (u32, u32), how: MapChange) -> HostAnswer {
    let kind = of(kind)?;
    let ([name, value], state) = guest.pieces(name, value)?;
    Ok(header_map::change(state, kind, name, value, how)?)
}
