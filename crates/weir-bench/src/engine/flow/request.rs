//! A request of a plan, and rendering it with the values of a client.

use super::answer::NeededParts;
use super::checks::{PreparedCheck, PreparedTake};
use super::cookies::CookieJar;
use super::redirect::RedirectedRequest;
use super::template::TextTemplate;
use crate::engine::plan::Think;

/// A request whose texts have been read.
#[derive(Debug)]
pub(super) struct FlowRequest {
    pub(super) method: String,
    /// Scheme and authority.
    pub(super) origin: String,
    pub(super) authority: String,
    pub(super) is_tls: bool,
    /// The index of the host among those of the plan.
    pub(super) host: usize,
    pub(super) target: TextTemplate,
    pub(super) fields: Vec<(String, TextTemplate)>,
    pub(super) body: FlowBody,
    pub(super) closes: bool,
    /// It is always the same, unless a redirect leads to another one.
    pub(super) is_fixed: bool,
    /// With the index of each in the tally.
    pub(super) checks: Vec<(usize, PreparedCheck)>,
    pub(super) takes: Vec<(usize, PreparedTake)>,
    pub(super) redirect_check: Option<usize>,
    pub(super) follow_redirects: u32,
    pub(super) checks_status: bool,
    pub(super) expect_status: Vec<u16>,
    pub(super) needs: NeededParts,
    pub(super) think: Option<Think>,
}

#[derive(Debug)]
pub(super) enum FlowBody {
    /// The pieces of a text or a form, in their order.
    Pieces(Vec<BodyPiece>),
    Bytes(Vec<u8>),
}

#[derive(Debug)]
pub(super) enum BodyPiece {
    Text(TextTemplate),
    Bytes(Vec<u8>),
}

/// A request as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) struct RenderedRequest<'a> {
    pub(in crate::engine) method: &'a str,
    pub(in crate::engine) target: String,
    /// All but those that depend on the protocol: `Host`, `Content-Length`, `Connection`.
    pub(in crate::engine) fields: Vec<(&'a str, String)>,
    pub(in crate::engine) body: Vec<u8>,
    authority: &'a str,
    closes: bool,
}

impl FlowRequest {
    /// Whether a status is a success, without a check of it.
    pub(super) fn expects(&self, status: u16) -> bool {
        match self.expect_status.as_slice() {
            [] => (100..400).contains(&status),
            expected => expected.contains(&status),
        }
    }

    /// The variables that the request needs when it is sent, and when its answer is checked.
    pub(super) fn variables(&self) -> impl Iterator<Item = usize> {
        let pieces = match &self.body {
            FlowBody::Pieces(pieces) => pieces.as_slice(),
            FlowBody::Bytes(_) => &[],
        };
        let of_body = pieces.iter().filter_map(|piece| match piece {
            BodyPiece::Text(text) => Some(text),
            BodyPiece::Bytes(_) => None,
        });
        let of_checks = self.checks.iter().filter_map(|(_, check)| check.text());
        let texts = std::iter::once(&self.target).chain(self.fields.iter().map(|(_, text)| text)).chain(of_body);
        texts.chain(of_checks).flat_map(TextTemplate::variables)
    }

    /// Renders the request with the values of a client, or the one that a redirect asks for.
    pub(super) fn render(
        &self,
        values: &[String],
        redirect: Option<&RedirectedRequest>,
        cookies: Option<&CookieJar>,
    ) -> RenderedRequest<'_> {
        let keeps_content = redirect.is_none_or(|redirect| redirect.keeps_method);
        let target = match redirect {
            Some(redirect) => redirect.target.clone(),
            None => match self.target.text(values) {
                target if target.starts_with('/') => target,
                target => format!("/{target}"),
            },
        };
        let of_content = |name: &str| name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("content-"));
        let kept = self.fields.iter().filter(|(name, _)| keeps_content || !of_content(name));
        let mut fields: Vec<(&str, String)> = kept.map(|(name, text)| (name.as_str(), text.text(values))).collect();
        let cookie = cookies.map(|cookies| cookies.field(self.host, &target, self.is_tls)).unwrap_or_default();
        if !cookie.is_empty() {
            fields.push(("Cookie", cookie));
        }
        let mut body = Vec::new();
        match &self.body {
            _ if !keeps_content => {}
            FlowBody::Pieces(pieces) => {
                for piece in pieces {
                    match piece {
                        BodyPiece::Text(text) => text.write(values, &mut body),
                        BodyPiece::Bytes(bytes) => body.extend_from_slice(bytes),
                    }
                }
            }
            FlowBody::Bytes(bytes) => body.extend_from_slice(bytes),
        }
        RenderedRequest {
            method: if keeps_content { &self.method } else { "GET" },
            target,
            fields,
            body,
            authority: &self.authority,
            closes: self.closes,
        }
    }
}

impl RenderedRequest<'_> {
    /// Whether a field is among those of the plan.
    fn has(&self, wanted: &str) -> bool {
        self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted))
    }

    /// Writes the request as HTTP/1.1.
    pub(in crate::engine) fn write_http1(&self, out: &mut Vec<u8>) {
        use std::io::Write as _;
        let Self { method, target, fields, body, authority, closes } = self;
        let carries_body = !body.is_empty() || matches!(*method, "POST" | "PUT" | "PATCH");
        // Writing to memory does not fail.
        let _ = write!(out, "{method} {target} HTTP/1.1\r\n");
        if !self.has("host") {
            let _ = write!(out, "Host: {authority}\r\n");
        }
        for (name, value) in fields {
            let _ = write!(out, "{name}: {value}\r\n");
        }
        if carries_body && !self.has("content-length") && !self.has("transfer-encoding") {
            let _ = write!(out, "Content-Length: {}\r\n", body.len());
        }
        if *closes && !self.has("connection") {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
    }
}
