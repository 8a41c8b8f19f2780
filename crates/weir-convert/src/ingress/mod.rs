//! Ingresses of Kubernetes, with the annotations of ingress-nginx: manifests in YAML or JSON. The meaning of the objects is that
//! of `weir-kube`; here it becomes a file, and a list of what the file does not do.

mod manifests;

use std::collections::BTreeMap;

use serde_json::Value;
use weir_kube::{
    DerivedResource, EventKind, KubeOptions, NO_CERTIFICATE, ResourceList, SERVED, Translation, translate,
};

use crate::SyntaxError;
use crate::output::{Converted, ConvertedResource};
use crate::yaml::{Yaml, YamlMembers};
use manifests::ManifestPlaces;

/// Converts the Ingresses of several files: their names, and their texts. Services, EndpointSlices, Secrets, ConfigMaps and
/// IngressClasses are used if they are there.
pub fn convert(files: &[(String, String)]) -> Result<Converted, SyntaxError> {
    let (world, places) = manifests::read(files)?;
    let mut converted = Converted::default();
    for (object, place) in places.others() {
        converted.lost(place, format!("{object}: only Ingresses are converted"));
    }
    let options = KubeOptions { adopt_ingress_nginx: true, offline: true, ..KubeOptions::default() };
    let translation = translate(&world, &options);
    find(&translation, &places, &mut converted);
    let served = served(&translation);
    for resource in &translation.resources {
        let place = places.of(&resource.origin);
        let what = match served.get(&resource.origin) {
            Some(annotations) => format!("{}, with {annotations}", resource.origin),
            None => resource.origin.to_string(),
        };
        let item = ConvertedResource::new(&place, what, members(resource));
        match resource.kind {
            ResourceList::Upstreams => converted.upstreams.push(item),
            ResourceList::Ssls => converted.ssls.push(item),
            ResourceList::Routes => converted.routes.push(item),
            kind => converted.lost(&place, format!("{}: it needs `{kind}`, which are not converted", resource.origin)),
        }
    }
    converted.settings.push(("listen".to_owned(), listen(&converted)));
    Ok(converted.finished())
}

/// What follows if no manifest has a certificate.
const NO_ADDRESS: &str = ". No address with TLS is opened, and `redirect` sends requests to port 443, where nothing listens: add the \
                          Secrets to the manifests, or `{ address: \":443\", tls: true }` to `listen` and the certificates to `ssls`, or \
                          take `redirect` out";

/// What does not work, and what works differently.
fn find(translation: &Translation, places: &ManifestPlaces, converted: &mut Converted) {
    let has_tls = translation.resources.iter().any(|resource| resource.kind == ResourceList::Ssls);
    for event in &translation.events {
        let (place, mut text) = (places.of(&event.object), format!("{}: {}", event.object, event.message));
        if event.reason == NO_CERTIFICATE && !has_tls {
            text.push_str(NO_ADDRESS);
        }
        match event.kind {
            EventKind::Warning => converted.lost(&place, text),
            EventKind::Normal if event.reason == SERVED => {}
            EventKind::Normal => converted.differs(&place, text),
        }
    }
}

/// The annotations of each Ingress that are served.
fn served(translation: &Translation) -> BTreeMap<weir_kube::objects::ObjectRef, &str> {
    let events = translation.events.iter().filter(|event| event.reason == SERVED);
    events.map(|event| (event.object.clone(), event.message.as_str())).collect()
}

/// Ports of ingress-nginx.
fn listen(converted: &Converted) -> Yaml {
    let mut addresses = vec![Yaml::text(":80")];
    if !converted.ssls.is_empty() {
        addresses.push(Yaml::map([("address", Yaml::text(":443")), ("tls", Yaml::Boolean(true))]));
    }
    Yaml::List(addresses)
}

fn members(resource: &DerivedResource) -> YamlMembers {
    let mut members = vec![("id".to_owned(), Yaml::text(&resource.id))];
    if let Value::Object(keys) = &resource.value {
        members.extend(keys.iter().map(|(name, value)| (name.clone(), yaml(value))));
    }
    members
}

fn yaml(value: &Value) -> Yaml {
    match value {
        Value::Null => Yaml::Null,
        Value::Bool(value) => Yaml::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Yaml::Integer(whole),
            None => Yaml::number(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Yaml::text(text),
        Value::Array(items) => Yaml::List(items.iter().map(yaml).collect()),
        Value::Object(members) => Yaml::Map(members.iter().map(|(name, value)| (name.clone(), yaml(value))).collect()),
    }
}

#[cfg(test)]
mod tests;
