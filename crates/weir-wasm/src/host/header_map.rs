//! The header maps: heads with their pseudo fields, trailers, and answers of services.

use weir_plugin::Exchange;
use weir_proto::field::{self, Known};
use weir_proto::{Field, Head, RequestHead, ResponseHead, Trailers};

use crate::abi::{HostStatus, MapKind};
use crate::pairs::MapPair;
use crate::properties::{path, write_path};
use crate::state::{Access, HostState};

/// Fields that the gateway itself writes: those that frame the message or are for one hop, and `Host`, which is `:authority`.
fn is_of_gateway(known: Known) -> bool {
    known.is_hop_by_hop() || matches!(known, Known::ContentLength | Known::Host)
}

/// All pairs, with names in lower case.
pub(super) fn pairs(state: &HostState, kind: MapKind) -> Result<Vec<MapPair>, HostStatus> {
    allowed(state, kind, Access::Read)?;
    let mut all = Vec::new();
    match kind {
        MapKind::Request => {
            let head = &state.exchange.request;
            all.push((b":authority".to_vec(), head.authority().to_vec()));
            all.push((b":path".to_vec(), path(head)));
            all.push((b":method".to_vec(), head.method_name().to_vec()));
            all.push((b":scheme".to_vec(), state.exchange.scheme().into()));
            fields(&head.head, &mut all);
        }
        MapKind::Response => {
            let head = &state.exchange.response;
            all.push((b":status".to_vec(), head.status.to_string().into_bytes()));
            fields(&head.head, &mut all);
        }
        MapKind::RequestTrailers => of_trailers(state.request_trailers.as_ref(), &mut all)?,
        MapKind::ResponseTrailers => of_trailers(state.response_trailers.as_ref(), &mut all)?,
        MapKind::CallAnswer | MapKind::CallTrailers => all.extend_from_slice(answered(state, kind)?),
    }
    Ok(all)
}

/// The number of pairs, for the callbacks that are told it.
pub(crate) fn count(state: &HostState, kind: MapKind) -> u32 {
    match kind {
        MapKind::Request => 4 + number_of_listed(&state.exchange.request.head),
        MapKind::Response => 1 + number_of_listed(&state.exchange.response.head),
        _ => pairs(state, kind).map_or(0, |pairs| pairs.len() as u32),
    }
}

/// The fields that plugins see.
fn listed(head: &Head) -> impl Iterator<Item = &Field> {
    head.present().filter(|field| field.known != Known::Host)
}

fn number_of_listed(head: &Head) -> u32 {
    listed(head).count() as u32
}

fn fields(head: &Head, all: &mut Vec<MapPair>) {
    let pair = |field: &Field| (head.slice(field.name).to_ascii_lowercase(), head.slice(field.value).to_vec());
    all.extend(listed(head).map(pair));
}

fn of_trailers(trailers: Option<&Trailers>, all: &mut Vec<MapPair>) -> Result<(), HostStatus> {
    let trailers = trailers.ok_or(HostStatus::BadArgument)?;
    all.extend(trailers.fields().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())));
    Ok(())
}

fn answered(state: &HostState, kind: MapKind) -> Result<&[MapPair], HostStatus> {
    let answer = state.call_answer.as_ref().ok_or(HostStatus::BadArgument)?;
    Ok(if kind == MapKind::CallAnswer { &answer.fields } else { &answer.trailers })
}

/// Whether the current call may do this with a map.
fn allowed(state: &HostState, kind: MapKind, wanted: Access) -> Result<(), HostStatus> {
    let has = match kind {
        MapKind::Request => state.rights.request,
        MapKind::Response => state.rights.response,
        MapKind::RequestTrailers if state.request_trailers.is_some() => Access::Write,
        MapKind::ResponseTrailers if state.response_trailers.is_some() => Access::Write,
        MapKind::CallAnswer | MapKind::CallTrailers if state.call_answer.is_some() => Access::Read,
        _ => Access::None,
    };
    let is_enough = match wanted {
        Access::None => true,
        Access::Read => has != Access::None,
        Access::Write => has == Access::Write,
    };
    if is_enough { Ok(()) } else { Err(HostStatus::BadArgument) }
}

/// Appends the values of a name, with a comma between them.
pub(super) fn write_value(state: &HostState, kind: MapKind, name: &[u8], out: &mut Vec<u8>) -> Result<(), HostStatus> {
    allowed(state, kind, Access::Read).map_err(|_| HostStatus::NotFound)?;
    let exchange: &Exchange = &state.exchange;
    match (kind, name) {
        (MapKind::Request, b":path") => write_path(&exchange.request, out),
        (MapKind::Request, b":method") => out.extend_from_slice(exchange.request.method_name()),
        (MapKind::Request, b":authority" | b"host") => out.extend_from_slice(exchange.request.authority()),
        (MapKind::Request, b":scheme") => out.extend_from_slice(exchange.scheme().as_bytes()),
        (MapKind::Request, _) => return write_joined(exchange.request.head.values(name), out),
        (MapKind::Response, b":status") => write_status(exchange.response.status, out),
        (MapKind::Response, _) => return write_joined(exchange.response.head.values(name), out),
        _ => {
            let pairs = pairs(state, kind)?;
            let same = pairs.iter().filter(|(known, _)| field::same_name(known, name));
            return write_joined(same.map(|(_, value)| &**value), out);
        }
    }
    Ok(())
}

/// By hand, since the formatting of any number costs more than the rest of the call.
fn write_status(status: u16, out: &mut Vec<u8>) {
    match status {
        100..1_000 => out.extend([status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8)),
        _ => out.extend_from_slice(status.to_string().as_bytes()),
    }
}

fn write_joined<'v>(mut values: impl Iterator<Item = &'v [u8]>, out: &mut Vec<u8>) -> Result<(), HostStatus> {
    out.extend_from_slice(values.next().ok_or(HostStatus::NotFound)?);
    for value in values {
        out.extend_from_slice(b", ");
        out.extend_from_slice(value);
    }
    Ok(())
}

/// What is done with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapChange {
    Add,
    Replace,
    Remove,
}

pub(super) fn change(
    state: &mut HostState,
    kind: MapKind,
    name: &[u8],
    value: &[u8],
    change: MapChange,
) -> Result<(), HostStatus> {
    allowed(state, kind, Access::Write)?;
    let known = Known::parse(name);
    match kind {
        MapKind::Request if name.starts_with(b":") => set_target(&mut state.exchange.request, name, value, change),
        MapKind::Request if known == Known::Host => {
            set_target(&mut state.exchange.request, b":authority", value, change)
        }
        MapKind::Request => change_field(&mut state.exchange.request.head, (name, known), value, change),
        MapKind::Response if name.starts_with(b":") => set_status(&mut state.exchange.response, name, value, change),
        MapKind::Response => change_field(&mut state.exchange.response.head, (name, known), value, change),
        MapKind::RequestTrailers => change_trailers(state.request_trailers.as_mut(), name, value, change),
        MapKind::ResponseTrailers => change_trailers(state.response_trailers.as_mut(), name, value, change),
        MapKind::CallAnswer | MapKind::CallTrailers => Err(HostStatus::BadArgument),
    }
}

fn change_field(
    head: &mut Head,
    (name, known): (&[u8], Known),
    value: &[u8],
    change: MapChange,
) -> Result<(), HostStatus> {
    // What the gateway writes by itself a plugin cannot make wrong: to remove the length of a body that it changes is what plugins do.
    if is_of_gateway(known) {
        return Ok(());
    }
    let done = match change {
        MapChange::Add => head.add_known(name, known, value),
        MapChange::Replace => head.set(name, value),
        MapChange::Remove => {
            head.remove(name);
            Ok(())
        }
    };
    done.map_err(|_| HostStatus::BadArgument)
}

fn set_target(head: &mut RequestHead, name: &[u8], value: &[u8], change: MapChange) -> Result<(), HostStatus> {
    if change == MapChange::Remove {
        return Err(HostStatus::BadArgument);
    }
    let is_set = match name {
        b":path" => {
            let mark = value.iter().position(|byte| *byte == b'?');
            let (path, query) = mark.map_or((value, &b""[..]), |mark| (&value[..mark], &value[mark + 1..]));
            head.set_path(path, Some(query)).is_ok()
        }
        b":method" => head.set_method(value),
        b":authority" => head.set_authority(value).is_ok(),
        // It follows from the upstream.
        b":scheme" => true,
        _ => false,
    };
    if is_set { Ok(()) } else { Err(HostStatus::BadArgument) }
}

fn set_status(head: &mut ResponseHead, name: &[u8], value: &[u8], change: MapChange) -> Result<(), HostStatus> {
    let status = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    let status = status.filter(|status| (200..=599).contains(status));
    match (name, status) {
        (b":status", Some(status)) if change != MapChange::Remove => {
            head.set_status(status);
            Ok(())
        }
        _ => Err(HostStatus::BadArgument),
    }
}

fn change_trailers(
    trailers: Option<&mut Trailers>,
    name: &[u8],
    value: &[u8],
    change: MapChange,
) -> Result<(), HostStatus> {
    let trailers = trailers.ok_or(HostStatus::BadArgument)?;
    let before = std::mem::take(trailers);
    let stays = |known: &[u8]| change == MapChange::Add || !field::same_name(known, name);
    for (known, value) in before.fields().filter(|(known, _)| stays(known)) {
        trailers.add(known, value).map_err(|_| HostStatus::InternalFailure)?;
    }
    if change == MapChange::Remove {
        return Ok(());
    }
    trailers.add(name, value).map_err(|_| HostStatus::BadArgument)
}

/// Replaces all pairs.
pub(super) fn replace(state: &mut HostState, kind: MapKind, new: &[MapPair]) -> Result<(), HostStatus> {
    allowed(state, kind, Access::Write)?;
    let old = pairs(state, kind)?;
    for (name, _) in old.iter().filter(|(name, _)| !name.starts_with(b":")) {
        change(state, kind, name, b"", MapChange::Remove)?;
    }
    for (name, value) in new {
        let how = if name.starts_with(b":") { MapChange::Replace } else { MapChange::Add };
        change(state, kind, name, value, how)?;
    }
    Ok(())
}
