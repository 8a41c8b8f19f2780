//! Manifests, and the places of their objects.

use std::collections::BTreeMap;

use weir_kube::World;
use weir_kube::objects::{Kind, ObjectRef};

use crate::{SourcePlace, SyntaxError};

/// The kinds that Ingresses need. Others are listed if they would be served in a cluster.
const READ: [Kind; 6] =
    [Kind::Ingress, Kind::IngressClass, Kind::Service, Kind::EndpointSlice, Kind::Secret, Kind::ConfigMap];

/// Where the document of an object begins.
#[derive(Default)]
pub(super) struct ManifestPlaces {
    read: BTreeMap<ObjectRef, SourcePlace>,
    others: BTreeMap<ObjectRef, SourcePlace>,
}

impl ManifestPlaces {
    pub(super) fn of(&self, object: &ObjectRef) -> SourcePlace {
        let nowhere = || SourcePlace { file: "-".to_owned(), line: 1 };
        self.read.get(object).cloned().unwrap_or_else(nowhere)
    }

    /// Objects that are not converted, and that a cluster would serve.
    pub(super) fn others(&self) -> impl Iterator<Item = (&ObjectRef, &SourcePlace)> {
        self.others.iter()
    }
}

pub(super) fn read(files: &[(String, String)]) -> Result<(World, ManifestPlaces), SyntaxError> {
    let (mut world, mut places) = (World::default(), ManifestPlaces::default());
    for (file, text) in files {
        for (line, document) in documents(text) {
            let place = SourcePlace { file: file.clone(), line };
            let manifests = World::from_manifests(document)
                .map_err(|error| SyntaxError { place: place.clone(), text: error.to_string() })?;
            for &kind in Kind::ALL {
                for name in manifests.world.names(kind) {
                    let object = ObjectRef { kind, namespace: name.namespace, name: name.name };
                    let known = if READ.contains(&kind) { &mut places.read } else { &mut places.others };
                    known.insert(object, place.clone());
                }
            }
            world.extend(&manifests.world, &READ);
        }
    }
    // A Namespace says nothing that an Ingress needs.
    places.others.retain(|object, _| object.kind != Kind::Namespace);
    Ok((world, places))
}

/// The documents of a text in YAML, and the lines on which they begin. A line `---` cannot be a part of a value of an object.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut begin, mut begin_line, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            found.push((begin_line, &text[begin..at]));
            (begin, begin_line) = (at, number + 1);
        }
        at += line.len();
    }
    found.push((begin_line, &text[begin..]));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_begin_at_their_lines() {
        assert_eq!(
            documents("a: 1\n---\nb: 1\nc: |\n  ---\n--- # d\nd: 1"),
            [(1, "a: 1\n"), (2, "---\nb: 1\nc: |\n  ---\n"), (6, "--- # d\nd: 1"),]
        );
    }
}
