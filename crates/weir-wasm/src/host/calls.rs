//! Calls to services.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use wasmtime::Linker;

use super::guest::{Guest, HostAnswer, HostCaller, number};
use crate::abi::HostStatus;
use crate::pairs::{self, MapPair};
use crate::state::{HostState, OutgoingCall};
use crate::{limits, state};

pub(super) fn add(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    linker.func_wrap(
        "env",
        "proxy_http_call",
        |caller: HostCaller<'_>,
         upstream_at: u32,
         upstream_size: u32,
         fields_at: u32,
         fields_size: u32,
         body_at: u32,
         body_size: u32,
         _trailers_at: u32,
         _trailers_size: u32,
         timeout_ms: u32,
         token_at: u32| {
            let mut guest = Guest::of(caller);
            let wanted =
                wanted(&mut guest, (upstream_at, upstream_size), (fields_at, fields_size), (body_at, body_size));
            number(wanted.and_then(|wanted| call(&mut guest, wanted, timeout_ms, token_at)))
        },
    )?;
    Ok(())
}

struct WantedCall {
    upstream: Vec<u8>,
    fields: Vec<MapPair>,
    body: Bytes,
}

fn wanted(guest: &mut Guest<'_>, upstream: (u32, u32), fields: (u32, u32), body: (u32, u32)) -> HostAnswer<WantedCall> {
    let upstream = guest.copy(upstream.0, upstream.1)?;
    let fields = pairs::decode(guest.bytes(fields.0, fields.1)?.0).ok_or(HostStatus::ParseFailure)?;
    let body = guest.copy(body.0, body.1)?.into();
    Ok(WantedCall { upstream, fields, body })
}

fn call(guest: &mut Guest<'_>, wanted: WantedCall, timeout_ms: u32, token_at: u32) -> HostAnswer {
    let state = guest.state();
    if !state.rights.calls && state.context != state::ROOT {
        state
            .facts
            .log
            .line(4, "it calls a service where nothing can wait for the answer, as for a response: this is refused");
        return Err(HostStatus::InternalFailure.into());
    }
    if state.in_flight + state.outbox.len() >= limits::CALLS {
        return Err(HostStatus::InternalFailure.into());
    }
    let name = std::str::from_utf8(&wanted.upstream).map_err(|_| HostStatus::BadArgument)?;
    let service = state.outside.services.get(name).ok_or(HostStatus::BadArgument)?;
    // In turn, as there is nothing known of their load.
    let url = service.urls[state.last_service % service.urls.len()].clone();
    let is_verified = service.is_verified;
    let request = request(&wanted.fields, wanted.body).ok_or(HostStatus::BadArgument)?;
    let timeout = Duration::from_millis(timeout_ms.max(1).into()).min(limits::CALL_TIME);
    state.last_service = state.last_service.wrapping_add(1);
    state.last_token = state.last_token.wrapping_add(1);
    let (token, context) = (state.last_token, state.context);
    state.outbox.push(OutgoingCall { token, context, url, is_verified, request, timeout });
    guest.write_u32(token_at, token)
}

/// The request of a call. It must have `:method`, `:path` and `:authority`.
fn request(fields: &[MapPair], body: Bytes) -> Option<Request<Bytes>> {
    let value = |name: &[u8]| fields.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
    let path = value(b":path").filter(|path| path.starts_with(b"/"))?;
    let mut request = Request::new(body);
    *request.method_mut() = Method::from_bytes(value(b":method")?).ok()?;
    *request.uri_mut() = Uri::try_from(path).ok()?;
    let headers = request.headers_mut();
    headers.insert(http::header::HOST, HeaderValue::from_bytes(value(b":authority")?).ok()?);
    for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with(b":")) {
        let name = HeaderName::from_bytes(name).ok()?;
        // The client frames the request itself.
        if [http::header::CONTENT_LENGTH, http::header::TRANSFER_ENCODING, http::header::CONNECTION].contains(&name) {
            continue;
        }
        headers.append(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(request)
}
