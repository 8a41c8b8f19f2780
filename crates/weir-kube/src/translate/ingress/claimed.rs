//! The Ingresses that are ours, with what their annotations ask for.

use super::annotations::{self, Annotations, PREFIX, Remark, Treatment};
use super::apisix_annotations;
use super::class::{IngressDialect, dialect};
use super::settings::{IngressSettings, ToHttps};
use crate::objects::ObjectRef;
use crate::objects::ingress::Ingress;
use crate::translation::{EventKind, KubeOptions, ObjectEvent, Translation};
use crate::world::World;

pub(super) struct Claimed<'a> {
    pub ingress: &'a Ingress,
    pub dialect: IngressDialect,
    pub settings: IngressSettings,
    /// Something that it needs cannot be served: its paths are answered with 503.
    pub is_refused: bool,
}

impl Claimed<'_> {
    pub(super) fn object(&self) -> ObjectRef {
        ObjectRef::of(self.ingress)
    }

    /// Whether its annotations ask clients for certificates, even if they cannot be served.
    pub(super) fn wants_certificates(&self) -> bool {
        let is_given = |name: &&str| self.ingress.metadata.annotations.contains_key(&format!("{PREFIX}{name}"));
        let is_refused = self.is_refused && ["auth-tls-secret", "auth-tls-match-cn"].iter().any(is_given);
        self.settings.client_certificates.is_some() || is_refused
    }

    pub(super) fn event(&self, kind: EventKind, reason: &str, message: String) -> ObjectEvent {
        ObjectEvent { object: self.object(), kind, reason: reason.to_owned(), message }
    }
}

/// All Ingresses that are ours, the oldest first: of equal rules, its is used.
pub(super) fn all<'a>(world: &'a World, options: &KubeOptions, translation: &mut Translation) -> Vec<Claimed<'a>> {
    let mut claimed = Vec::new();
    for ingress in world.ingresses.values().filter(|ingress| ingress.metadata.deletion_timestamp.is_none()) {
        match dialect(ingress, world, options) {
            Some(dialect) => claimed.push(claim(ingress, dialect, world, options, translation)),
            None if options.offline => translation.events.push(ObjectEvent {
                object: ObjectRef::of(&**ingress),
                kind: EventKind::Warning,
                reason: "OtherClass".to_owned(),
                message: "its class belongs to another controller".to_owned(),
            }),
            None => {}
        }
    }
    claimed.sort_by_key(|claimed| {
        let metadata = &claimed.ingress.metadata;
        (metadata.creation_timestamp.clone(), metadata.namespace.clone(), metadata.name.clone())
    });
    claimed
}

fn claim<'a>(
    ingress: &'a Ingress,
    dialect: IngressDialect,
    world: &'a World,
    options: &KubeOptions,
    translation: &mut Translation,
) -> Claimed<'a> {
    let given = Annotations::new(ingress, world);
    let mut claimed = Claimed { ingress, dialect, settings: IngressSettings::default(), is_refused: false };
    let mut remarks = match dialect {
        IngressDialect::IngressNginx => {
            claimed.settings = IngressSettings::ingress_nginx();
            annotations::read(&given, &mut claimed.settings)
        }
        IngressDialect::Standard => annotations::unread(&given),
        IngressDialect::Apisix => {
            let mut remarks = annotations::unread(&given);
            remarks.extend(apisix_annotations::read(&ingress.metadata.annotations, &mut claimed.settings));
            remarks
        }
    };
    if dialect != IngressDialect::Apisix {
        remarks.extend(apisix_annotations::unread(&ingress.metadata.annotations));
    }
    if options.offline && claimed.settings.default_backend.take().is_some() {
        claimed.settings.custom_errors.clear();
        let named =
            remarks.iter_mut().filter(|remark| ["default-backend", "custom-http-errors"].contains(&&*remark.name));
        named.for_each(|remark| {
            remark.treatment = Treatment::Left;
            remark.text =
                "a file names Services by their DNS names, and does not know whether they have endpoints".to_owned();
        });
    }
    if claimed.settings.client_certificates.is_some() {
        // A request without TLS would not be asked for a certificate.
        claimed.settings.to_https = ToHttps::All;
        if ingress.spec.tls.is_empty() {
            let text = "certificates of clients need `spec.tls`".to_owned();
            remarks.push(Remark { name: "auth-tls-secret".to_owned(), treatment: Treatment::Refused, text });
        }
    }
    claimed.is_refused = remarks.iter().any(|remark| remark.treatment == Treatment::Refused);
    tell(&claimed, &remarks, options, translation);
    claimed
}

/// Events for the annotations.
fn tell(claimed: &Claimed, remarks: &[Remark], options: &KubeOptions, translation: &mut Translation) {
    for remark in remarks {
        let Remark { name, treatment, text } = remark;
        let (kind, reason, message) = match treatment {
            Treatment::Refused => (
                EventKind::Warning,
                "AnnotationRefused",
                format!("`{name}`: {}. The paths of this Ingress are answered with 503", text.trim_end_matches('.')),
            ),
            Treatment::Left => (EventKind::Warning, "AnnotationNotServed", format!("`{name}`: {text}")),
            Treatment::Differs => (EventKind::Normal, "AnnotationDiffers", format!("`{name}`: {text}")),
            Treatment::Served => continue,
        };
        translation.events.push(claimed.event(kind, reason, message));
    }
    let served: Vec<&str> = remarks
        .iter()
        .filter(|remark| [Treatment::Served, Treatment::Differs].contains(&remark.treatment))
        .map(|remark| remark.name.as_str())
        .collect();
    if options.offline && !claimed.is_refused && !served.is_empty() {
        translation.events.push(claimed.event(EventKind::Normal, SERVED, served.join(", ")));
    }
}

/// The reason of the event that lists the annotations that are served; only with [`KubeOptions::offline`].
pub const SERVED: &str = "AnnotationsServed";

/// The reason of events about hosts without a certificate.
pub const NO_CERTIFICATE: &str = "NoCertificate";
