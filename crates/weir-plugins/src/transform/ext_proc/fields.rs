//! The fields of heads and trailers: as the service is told of them, and as it changes them.

use std::fmt;

use weir_plugin::proto::{Known, RequestHead, Trailers, field};
use weir_plugin::{ClientFacts, Exchange, ReplyField, ReplyHead};

use super::messages::{HeaderMap, HeaderMutation};
use crate::envoy::fields::{
    FieldAction, FieldChange, MOST_CHANGED_BYTES, MOST_CHANGES, apply, field_changes, is_managed, is_of_gateway,
};
use crate::envoy::messages::HeaderValue;
use crate::envoy::names::FieldNameList;

/// Which fields the service is told.
#[derive(Default)]
pub(super) struct ForwardRules {
    /// `None` is all.
    pub allowed: Option<FieldNameList>,
    pub disallowed: FieldNameList,
}

impl ForwardRules {
    fn allow(&self, name: &[u8]) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contain(name)) && !self.disallowed.contain(name)
    }

    fn told<'a>(&self, pseudo: &[(&str, &[u8])], fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> HeaderMap {
        let value =
            |name: String, value: &[u8]| HeaderValue { key: name, value: String::new(), raw_value: value.into() };
        let pseudo = pseudo.iter().map(|(name, told)| value((*name).to_owned(), told));
        let fields = fields.filter(|(name, _)| self.allow(name));
        let fields = fields.map(|(name, told)| value(String::from_utf8_lossy(name).to_ascii_lowercase(), told));
        HeaderMap { headers: pseudo.chain(fields).collect() }
    }

    /// The head of a request. What an untrusted client says about forwarding is left out; `x-forwarded-for` and `x-forwarded-proto`
    /// are those that the gateway sees.
    pub(super) fn request(&self, head: &RequestHead, client: &ClientFacts, scheme: &str) -> HeaderMap {
        let target = head.origin_form();
        let pseudo: [(&str, &[u8]); 4] = [
            (":method", head.method_name()),
            (":scheme", scheme.as_bytes()),
            (":authority", head.authority()),
            (":path", &target),
        ];
        let address = client.addr.to_canonical().to_string();
        let is_told = |known: Known, added: bool| {
            let is_of_connection = known == Known::Host || known.is_hop_by_hop();
            !is_of_connection && (added || client.trusted || !known.is_forwarding())
        };
        let fields = head.head.present().filter(|field| is_told(field.known, field.added));
        let fields = fields.map(|field| (head.head.slice(field.name), head.head.slice(field.value)));
        let fields = fields.filter(|(name, _)| !FORWARDED.iter().any(|own| field::same_name(name, own)));
        let own: [(&[u8], &[u8]); 2] = [(FORWARDED[0], address.as_bytes()), (FORWARDED[1], scheme.as_bytes())];
        self.told(&pseudo, fields.chain(own))
    }

    pub(super) fn response(&self, head: &ReplyHead) -> HeaderMap {
        let status = head.status.to_string();
        self.told(&[(":status", status.as_bytes())], head.fields.iter().map(|(name, value)| (&**name, &**value)))
    }

    pub(super) fn trailers(&self, trailers: &Trailers) -> HeaderMap {
        self.told(&[], trailers.fields())
    }
}

const FORWARDED: [&[u8]; 2] = [b"x-forwarded-for", b"x-forwarded-proto"];

/// Which fields the service may change.
#[derive(Debug, Default)]
pub(super) struct MutationRules {
    pub allows_routing: bool,
    pub disallows_system: bool,
    pub disallows_all: bool,
    pub disallowed_is_error: bool,
    pub trusted: FieldNameList,
}

/// Why a mutation cannot be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadMutation {
    Action(String),
    Field(String),
    Disallowed(String),
    TooMany,
}

impl fmt::Display for BadMutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadMutation::Action(problem) => problem.fmt(f),
            BadMutation::Field(name) => write!(f, "the name or the value of the field {name:?} is not allowed"),
            BadMutation::Disallowed(name) => {
                write!(f, "`mutation_rules` do not allow the service to change the field {name:?}")
            }
            BadMutation::TooMany => {
                write!(
                    f,
                    "there are too many changes of fields: at most {MOST_CHANGES}, and {MOST_CHANGED_BYTES} bytes"
                )
            }
        }
    }
}

/// Changes of fields that are allowed and have a valid form.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mutation {
    changes: Vec<FieldChange>,
    removed: Vec<Box<[u8]>>,
}

impl MutationRules {
    /// Whether a field of a message may be changed. Pseudo-header fields have effects of their own.
    fn allow(&self, name: &[u8]) -> bool {
        match name {
            _ if self.disallows_all => false,
            b":path" | b":status" => !self.disallows_system,
            b":method" | b":authority" => !self.disallows_system && self.allows_routing,
            [b':', ..] => false,
            _ if Known::parse(name) == Known::Host => self.allows_routing,
            _ => !is_managed(name) && (!is_of_gateway(name) || self.trusted.contain(name)),
        }
    }

    /// Checks a mutation. What the rules do not allow is left out, unless that is an error.
    pub(super) fn check(&self, mutation: Option<HeaderMutation>) -> Result<Mutation, BadMutation> {
        let HeaderMutation { set_headers, remove_headers } = mutation.unwrap_or_default();
        let mut changes = field_changes(set_headers).map_err(|unknown| BadMutation::Action(unknown.to_string()))?;
        let mut removed: Vec<Box<[u8]>> = remove_headers.into_iter().map(|name| name.into_bytes().into()).collect();
        let bytes = changes.iter().map(|change| change.name.len() + change.value.len());
        let bytes = bytes.sum::<usize>() + removed.iter().map(|name| name.len()).sum::<usize>();
        if changes.len() + removed.len() > MOST_CHANGES || bytes > MOST_CHANGED_BYTES {
            return Err(BadMutation::TooMany);
        }
        let is_bad = |change: &&FieldChange| {
            let name = change.name.strip_prefix(b":").unwrap_or(&change.name);
            !field::is_name(name) || !field::is_value(&change.value)
        };
        if let Some(bad) = changes.iter().find(is_bad) {
            return Err(BadMutation::Field(quoted(&bad.name)));
        }
        // Neither can be removed, whatever the rules are.
        removed.retain(|name| field::is_name(name) && Known::parse(name) != Known::Host);
        let mut names = changes.iter().map(|change| &change.name).chain(&removed);
        if self.disallowed_is_error
            && let Some(name) = names.find(|name| !self.allow(name))
        {
            return Err(BadMutation::Disallowed(quoted(name)));
        }
        changes.retain(|change| self.allow(&change.name));
        removed.retain(|name| self.allow(name));
        Ok(Mutation { changes, removed })
    }
}

fn quoted(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(64).collect()
}

impl Mutation {
    /// Changes the head of a request.
    ///
    /// # Errors
    /// The value of a pseudo-header field is not valid. Then nothing is changed.
    pub(super) fn apply_to_request(&self, head: &mut RequestHead) -> Result<(), BadMutation> {
        if self.changes.is_empty() && self.removed.is_empty() {
            return Ok(());
        }
        let mut changed = head.clone();
        self.change_request(&mut changed)?;
        *head = changed;
        Ok(())
    }

    fn change_request(&self, head: &mut RequestHead) -> Result<(), BadMutation> {
        for name in &self.removed {
            head.head.remove(name);
        }
        for change in &self.changes {
            let is_done = match &*change.name {
                b":path" => {
                    let mut parts = change.value.splitn(2, |byte| *byte == b'?');
                    let path = parts.next().unwrap_or_default();
                    head.set_path(path, Some(parts.next().unwrap_or_default())).is_ok()
                }
                b":method" => change.value.as_ref() != b"CONNECT" && head.set_method(&change.value),
                name if name == b":authority" || Known::parse(name) == Known::Host => {
                    head.set_authority(&change.value).is_ok()
                }
                [b':', ..] => true,
                _ => apply(change, &mut head.head).is_ok(),
            };
            if !is_done {
                return Err(BadMutation::Field(quoted(&change.name)));
            }
        }
        Ok(())
    }

    /// Declares that the fields of the request that are changed tell something about the client.
    pub(super) fn mark_personal(&self, exchange: &mut Exchange) {
        for name in self.changes.iter().map(|change| &change.name).chain(&self.removed) {
            exchange.mark_personal(name);
        }
    }

    /// Changes the head of a response.
    ///
    /// # Errors
    /// The status is not valid.
    pub(super) fn apply_to_response(self, head: &mut ReplyHead) -> Result<(), BadMutation> {
        for change in self.changes.iter().filter(|change| *change.name == *b":status") {
            let status = std::str::from_utf8(&change.value).ok().and_then(|value| value.parse().ok());
            head.status = status
                .filter(|status| (200..=599).contains(status))
                .ok_or_else(|| BadMutation::Field(quoted(&change.name)))?;
        }
        self.apply_to_list(&mut head.fields);
        Ok(())
    }

    /// Changes trailers.
    pub(super) fn apply_to_trailers(self, trailers: &mut Trailers) {
        let mut fields: Vec<ReplyField> = trailers.fields().map(|(name, value)| (name.into(), value.into())).collect();
        self.apply_to_list(&mut fields);
        *trailers = Trailers::default();
        for (name, value) in &fields {
            // Both have been read, or checked.
            let _ = trailers.add(name, value);
        }
    }

    /// A `Set-Cookie` replaces no other one: each is a cookie of its own (RFC 6265 §3).
    fn apply_to_list(self, fields: &mut Vec<ReplyField>) {
        fields.retain(|(name, _)| !self.removed.iter().any(|removed| field::same_name(name, removed)));
        for FieldChange { name, value, action } in self.changes {
            if name.starts_with(b":") {
                continue;
            }
            let is_present = fields.iter().any(|(other, _)| field::same_name(other, &name));
            let is_cookie = name.eq_ignore_ascii_case(b"set-cookie");
            match action {
                FieldAction::AddIfAbsent if is_present => continue,
                FieldAction::OverwriteIfPresent if !is_present => continue,
                FieldAction::Overwrite | FieldAction::OverwriteIfPresent if !is_cookie => {
                    fields.retain(|(other, _)| !field::same_name(other, &name));
                }
                _ => {}
            }
            fields.push((name.to_ascii_lowercase().into(), value));
        }
    }
}
