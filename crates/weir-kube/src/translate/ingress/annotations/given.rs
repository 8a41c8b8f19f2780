//! The annotations that an Ingress has, and how their values are read.

use std::collections::BTreeMap;

use super::PREFIX;
use crate::objects::core::Secret;
use crate::objects::ingress::Ingress;
use crate::world::{ObjectName, World};

/// How a value is written.
pub(super) enum Reads {
    Flag,
    /// A whole number.
    Number,
    /// Seconds, with or without the unit `s`.
    Seconds,
    /// Bytes, with `k`, `m` or `g`.
    Size,
    /// Anything.
    Text,
    OneOf(&'static [&'static str]),
    /// The same, in capital or small letters; here in capitals.
    Word(&'static [&'static str]),
    /// Addresses and networks, separated by commas.
    Networks,
    /// A list, separated by commas.
    List,
    /// An `http` or `https` URL.
    Url,
    /// An object: `name` or `namespace/name`.
    Object,
}

impl Reads {
    pub(super) fn words(&self) -> String {
        match self {
            Reads::Flag => "`true` or `false`".to_owned(),
            Reads::Number => "whole number".to_owned(),
            Reads::Seconds => "seconds".to_owned(),
            Reads::Size => "size, as `8m`".to_owned(),
            Reads::Text => "text".to_owned(),
            Reads::OneOf(values) | Reads::Word(values) => {
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                values.join(", ")
            }
            Reads::Networks => "list of addresses and networks".to_owned(),
            Reads::List => "list".to_owned(),
            Reads::Url => "URL".to_owned(),
            Reads::Object => "`name` or `namespace/name`".to_owned(),
        }
    }

    /// Whether a value is written so.
    pub(super) fn check(&self, text: &str) -> Result<(), String> {
        let is_right = match self {
            Reads::Flag => flag(text).is_some(),
            Reads::Number => text.parse::<u32>().is_ok(),
            Reads::Seconds => seconds(text).is_some(),
            Reads::Size => size(text).is_some(),
            Reads::OneOf(values) => values.contains(&text),
            Reads::Word(values) => values.contains(&&*text.to_ascii_uppercase()),
            Reads::Networks => list(text).all(is_network) && list(text).next().is_some(),
            Reads::Url => ["http://", "https://", "$scheme://"].iter().any(|start| text.starts_with(start)),
            Reads::Object => !text.is_empty() && text.split('/').count() <= 2,
            Reads::Text | Reads::List => true,
        };
        if is_right { Ok(()) } else { Err(format!("`{text}` is not understood: write {}", self.words())) }
    }
}

/// The annotations of an Ingress, with the objects that they may name.
pub(in super::super) struct Given<'a> {
    namespace: &'a str,
    uid: &'a str,
    annotations: &'a BTreeMap<String, String>,
    world: &'a World,
}

impl<'a> Given<'a> {
    pub(in super::super) fn new(ingress: &'a Ingress, world: &'a World) -> Given<'a> {
        let metadata = &ingress.metadata;
        Given { namespace: &metadata.namespace, uid: &metadata.uid, annotations: &metadata.annotations, world }
    }

    /// The names of those of ingress-nginx.
    pub(in super::super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.annotations.keys().filter_map(|name| name.strip_prefix(PREFIX))
    }

    /// What tells the Ingress from all others; manifests have none.
    pub(super) fn uid(&self) -> Option<&'a str> {
        Some(self.uid).filter(|uid| !uid.is_empty())
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.annotations.get(&format!("{PREFIX}{name}")).map(|text| text.trim())
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        self.text(name).and_then(flag).unwrap_or(default)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    pub(super) fn seconds(&self, name: &str) -> Option<f64> {
        seconds(self.text(name)?)
    }

    pub(super) fn size(&self, name: &str) -> Option<u64> {
        size(self.text(name)?)
    }

    pub(super) fn list(&self, name: &str) -> Vec<&'a str> {
        self.text(name).map(|text| list(text).collect()).unwrap_or_default()
    }

    /// The name that an annotation gives, of an object of the same namespace: another one may belong to others.
    fn own(&self, text: &str) -> Result<ObjectName, String> {
        let (namespace, name) = text.split_once('/').unwrap_or((self.namespace, text));
        match namespace == self.namespace {
            true => Ok(ObjectName::new(namespace, name)),
            false => Err(format!("`{text}` is in another namespace; it must be in that of the Ingress")),
        }
    }

    /// The Secret that an annotation names.
    pub(super) fn secret(&self, name: &str) -> Result<&'a Secret, String> {
        let object = self.own(self.text(name).unwrap_or_default())?;
        let secret = self.world.secrets.get(&object).ok_or_else(|| format!("there is no Secret `{object}`"))?;
        Ok(secret)
    }

    /// The values of the ConfigMap that an annotation names.
    pub(super) fn config_map(&self, name: &str) -> Result<&'a BTreeMap<String, String>, String> {
        let object = self.own(self.text(name).unwrap_or_default())?;
        let found = self.world.config_maps.get(&object).ok_or_else(|| format!("there is no ConfigMap `{object}`"))?;
        Ok(&found.data)
    }
}

/// As ingress-nginx reads them, by `strconv.ParseBool` of Go.
fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn seconds(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('s').unwrap_or(text).parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// As nginx writes sizes.
fn size(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = lower.split_at(lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len()));
    let factor = match unit {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn is_network(text: &str) -> bool {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let Ok(address) = address.parse::<std::net::IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
}
