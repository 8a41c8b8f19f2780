//! Variables that stand for more than one value: an index of the values is then no index of the text.

use std::sync::Arc;

use serde_json::Value;

use crate::text::diagnostic::Diagnostic;
use crate::text::substitute::masked;
use crate::text::tree::{NodeKind, TextPosition, TreeNode};
use crate::text::yaml::{self, TextLimits};

/// Whether the values of a text are where its places say: no variable makes items of a list, or keys.
#[derive(Debug)]
pub struct WrittenPlaces {
    source: Arc<str>,
    /// With words in place of variables.
    written: TreeNode,
}

impl WrittenPlaces {
    /// # Errors
    /// If the text has faults, whatever its variables are.
    pub fn of(source: &Arc<str>, text: &str) -> Result<WrittenPlaces, Vec<Diagnostic>> {
        let parsed = yaml::parse(source, &masked(source, text)?, &|_| None, TextLimits::default())?;
        match parsed.faults.is_empty() {
            true => Ok(WrittenPlaces { source: Arc::clone(source), written: parsed.tree }),
            false => Err(parsed.faults),
        }
    }

    /// The values, with words in place of variables.
    pub fn values(&self) -> Value {
        self.written.to_json()
    }

    /// Whether the items of a list, by its key in the text's map, are those that are written. `values` is the same text with the values of
    /// variables; below the item with the index, all places are compared.
    ///
    /// # Errors
    /// The first place where a variable stands for something else than one text.
    pub fn compare(&self, values: &TreeNode, list: &str, index: Option<usize>) -> Result<(), Diagnostic> {
        self.differing(values, list, index).map_or(Ok(()), |place| {
            let problem =
                "a variable stands for more than a text here, so that what it stands for has no place in the text";
            Err(Diagnostic::at_place(&self.source, place, problem).advise("change it in the text"))
        })
    }

    fn differing(&self, values: &TreeNode, list: &str, index: Option<usize>) -> Option<TextPosition> {
        let (values, written) = match (values.entry(list), self.written.entry(list)) {
            (None, None) if matches!(self.written.kind, NodeKind::Map(_)) => return None,
            (Some(values), Some(written)) => (&values.value, &written.value),
            (Some(values), None) => return Some(values.key_place),
            (None, _) => return Some(self.written.place),
        };
        let (NodeKind::List(own), NodeKind::List(places)) = (&values.kind, &written.kind) else {
            return differing(values, written);
        };
        if own.len() != places.len() {
            return Some(written.place);
        }
        let moved = own.iter().zip(places).find(|(own, written)| own.place != written.place);
        let below = || index.and_then(|index| differing(&own[index], &places[index]));
        moved.map(|(_, written)| written.place).or_else(below)
    }
}

/// The first place at which the values have another form than the text.
fn differing(values: &TreeNode, written: &TreeNode) -> Option<TextPosition> {
    match (&values.kind, &written.kind) {
        (NodeKind::List(values), NodeKind::List(places)) => {
            if values.len() != places.len() {
                return Some(written.place);
            }
            let mut pairs = values.iter().zip(places);
            pairs.find_map(|(value, place)| match value.place == place.place {
                true => differing(value, place),
                false => Some(place.place),
            })
        }
        (NodeKind::Map(values), NodeKind::Map(places)) => {
            if values.len() != places.len() {
                return Some(written.place);
            }
            let mut pairs = values.iter().zip(places);
            pairs.find_map(|(value, place)| match (&value.key, value.key_place) == (&place.key, place.key_place) {
                true => differing(&value.value, &place.value),
                false => Some(place.key_place),
            })
        }
        (NodeKind::List(_) | NodeKind::Map(_), _) | (_, NodeKind::List(_) | NodeKind::Map(_)) => Some(written.place),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "routes:
  - ${{ONE}}
  - { id: b, uri: ${{URI}}, ${{KEY}}: 1 }
  - { id: c, uris: [${{TWO}}, /x] }
services: [${{TWO}}, { id: s }]
upstreams: ${{LIST}}
";

    fn found(list: &str, index: Option<usize>) -> Option<String> {
        let variables = |name: &str| {
            let values = [
                ("ONE", "{ id: a, uri: /a }"),
                ("URI", "/b"),
                ("KEY", "priority"),
                ("TWO", "a, b"),
                ("LIST", "[{ id: u }]"),
            ];
            Some(values.iter().find(|(known, _)| *known == name).expect("it is known").1.to_owned())
        };
        let source: Arc<str> = "f".into();
        let values = yaml::parse(&source, TEXT, &variables, TextLimits::default()).expect("YAML").tree;
        let written = WrittenPlaces::of(&source, TEXT).expect("YAML");
        written.compare(&values, list, index).err().map(|fault| fault.to_string())
    }

    #[test]
    fn variables_that_are_more_than_a_text_are_found() {
        assert_eq!(found("routes", None), None, "each item is one in the text");
        let place = |fault: Option<String>| fault.expect("it is refused").split(": ").next().map(str::to_owned);
        assert_eq!(place(found("routes", Some(0))).as_deref(), Some("f:2:5"));
        assert_eq!(place(found("routes", Some(1))).as_deref(), Some("f:3:29"), "the key");
        assert_eq!(place(found("routes", Some(2))).as_deref(), Some("f:4:20"));
        assert_eq!(place(found("services", None)).as_deref(), Some("f:5:11"), "three items, and two in the text");
        assert_eq!(place(found("upstreams", None)).as_deref(), Some("f:6:12"));
        assert_eq!(found("consumers", None), None, "there is none");
    }
}
