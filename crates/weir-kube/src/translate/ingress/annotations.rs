//! The annotations of ingress-nginx: one table, from which they are read, reported and documented.

mod access;
mod auth;
mod balancing;
mod canary;
mod cors;
mod given;
mod limits;
mod others;
mod redirects;
mod reverse;
mod routing;
mod upstream;
mod variables;

use regex::RegexBuilder;

use super::settings::IngressSettings;
use given::{Given, Reads};

/// What all names in the table begin with.
pub const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// An annotation.
pub struct Annotation {
    /// Without [`PREFIX`].
    pub name: &'static str,
    reads: Reads,
    fate: Fate,
    /// Whether the Ingress must not be served without it: it protects something, or its absence sends requests to the wrong place.
    pub is_needed: bool,
    /// What it becomes, or why it becomes nothing, in Markdown.
    pub becomes: &'static str,
}

/// Sets what an annotation and those that belong to it ask for.
///
/// # Errors
/// Why a value cannot be served.
type Feature = fn(&Given, &mut IngressSettings) -> Result<(), String>;

enum Fate {
    Served(Feature),
    /// The same, with a difference that the table states.
    Differs(Feature),
    /// Read together with another one, and without effect if that is not there.
    With(&'static str),
    /// Nothing has to be done.
    Nothing,
    /// Not served; the user is told.
    Told,
    /// Not served, and neither is the Ingress.
    Refused,
}

use Fate::{Differs, Nothing, Refused, Served, Told, With};

/// How an annotation of one Ingress is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Treatment {
    Served,
    /// With a difference.
    Differs,
    /// Not served, and the Ingress is served without it.
    Left,
    /// Not served, and neither is the Ingress.
    Refused,
}

/// A remark about an annotation of an Ingress.
#[derive(Clone, Debug)]
pub(super) struct Remark {
    pub name: String,
    pub treatment: Treatment,
    pub text: String,
}

const NEEDED: bool = true;
const OPTIONAL: bool = false;

const fn annotation(
    name: &'static str,
    reads: Reads,
    fate: Fate,
    is_needed: bool,
    becomes: &'static str,
) -> Annotation {
    Annotation { name, reads, fate, is_needed, becomes }
}

/// The largest compiled expression, in bytes: nodes compile none that is larger.
const MOST_COMPILED: usize = 1 << 20;

/// Whether an expression in a value can be compiled.
fn check_expression(text: &str) -> Result<(), String> {
    let compiled = RegexBuilder::new(text).size_limit(MOST_COMPILED).build();
    compiled.map(drop).map_err(|_| format!("`{text}` is not a regular expression that can be served"))
}

/// All annotations, in the order in which they are applied.
pub fn table() -> impl Iterator<Item = &'static Annotation> {
    let parts: [&[Annotation]; 11] = [
        routing::TABLE,
        redirects::TABLE,
        reverse::TABLE,
        access::TABLE,
        auth::TABLE,
        cors::TABLE,
        limits::TABLE,
        balancing::TABLE,
        canary::TABLE,
        upstream::TABLE,
        others::TABLE,
    ];
    parts.into_iter().flatten()
}

impl Annotation {
    /// How its value is written, in words.
    pub fn value(&self) -> String {
        self.reads.words()
    }

    /// How an Ingress with it is treated, in words.
    pub fn served(&self) -> String {
        match self.fate {
            Served(_) => "yes".to_owned(),
            Differs(_) => "with a difference".to_owned(),
            With(main) => format!("with `{main}`"),
            Nothing => "nothing to do".to_owned(),
            Told => "no".to_owned(),
            Refused => "refused".to_owned(),
        }
    }

    fn treat(&self, given: &Given, text: &str, settings: &mut IngressSettings) -> Result<(), String> {
        self.reads.check(text)?;
        match self.fate {
            Served(feature) | Differs(feature) => feature(given, settings),
            With(_) | Nothing => Ok(()),
            Told | Refused => Err(self.becomes.to_owned()),
        }
    }
}

/// Reads the annotations of an Ingress into its settings.
pub(super) fn read(given: &Given, settings: &mut IngressSettings) -> Vec<Remark> {
    let mut remarks = Vec::new();
    for annotation in table() {
        let Some(text) = given.text(annotation.name) else { continue };
        let result = annotation.treat(given, text, settings);
        let treatment = match &result {
            Ok(()) if matches!(annotation.fate, Differs(_)) => Treatment::Differs,
            Ok(()) => Treatment::Served,
            Err(_) if annotation.is_needed || matches!(annotation.fate, Refused) => Treatment::Refused,
            Err(_) => Treatment::Left,
        };
        let text = result.err().unwrap_or_else(|| annotation.becomes.to_owned());
        remarks.push(Remark { name: annotation.name.to_owned(), treatment, text });
    }
    let unknown = given.names().filter(|name| table().all(|known| known.name != *name));
    remarks.extend(unknown.map(|name| Remark {
        name: name.to_owned(),
        treatment: Treatment::Left,
        text: "ingress-nginx has no annotation of this name".to_owned(),
    }));
    remarks
}

/// Remarks on the annotations of an Ingress whose class does not read them. Without one that protects something, or without which requests
/// go to the wrong place, the Ingress must not be served.
pub(super) fn unread(given: &Given) -> Vec<Remark> {
    let is_needed = |name: &str| table().any(|known| known.name == name && known.is_needed);
    let remark = |name: &str| {
        let (treatment, text) = match is_needed(name) {
            true => (
                Treatment::Refused,
                "the class of this Ingress does not read annotations of ingress-nginx, and without this one the Ingress must not be \
                 served: use a class that `adoptIngressNginx` adopts, or remove it.",
            ),
            false => (Treatment::Left, "the class of this Ingress does not read annotations of ingress-nginx"),
        };
        Remark { name: name.to_owned(), treatment, text: text.to_owned() }
    };
    given.names().map(remark).collect()
}

pub(super) use given::Given as Annotations;
pub(super) use reverse::{PLUGIN as REVERSE_REWRITE, REDIRECTS as REWRITTEN_REDIRECTS};

#[cfg(test)]
mod tests;
