//! The metadata that services send with their answers, as variables.

use std::collections::BTreeSet;

use super::messages::{Struct, StructValue};

/// The members of metadata: text as it is, and everything else as JSON. One that is null has no value.
pub(crate) fn members(metadata: Struct) -> Vec<(String, Vec<u8>)> {
    let member = |(name, value): (String, StructValue)| match serde_json::Value::from(value) {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some((name, text.into_bytes())),
        other => Some((name, other.to_string().into_bytes())),
    };
    metadata.fields.into_iter().filter_map(member).collect()
}

/// Makes variables of metadata, by the part of their names after the prefix.
///
/// A member whose name is that of the variable is not replaced by one whose name is only like it, such as `org-id` for `org_id`, also if
/// that one comes with a later message.
#[derive(Default)]
pub(crate) struct MetadataVariables {
    /// The names of members that are those of variables. What limits the metadata of an exchange limits them.
    own: BTreeSet<String>,
}

impl MetadataVariables {
    /// The variables of the metadata of the next message.
    pub(crate) fn of(&mut self, metadata: &[(String, Vec<u8>)]) -> Vec<(String, Vec<u8>)> {
        self.own.extend(metadata.iter().map(|(name, _)| name).filter(|name| variable_name(name) == **name).cloned());
        let variables = metadata.iter().filter_map(|(name, value)| {
            let variable = variable_name(name);
            (variable == *name || !self.own.contains(&variable)).then(|| (variable, value.clone()))
        });
        variables.collect()
    }
}

fn variable_name(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_variable_counts_more_than_one_like_it_in_every_message() {
        let mut variables = MetadataVariables::default();
        let mut told = |names: [&str; 2]| {
            let members = names.map(|name| (name.to_owned(), name.as_bytes().to_vec()));
            let values = variables.of(&members).into_iter().map(|(name, value)| {
                let value = String::from_utf8(value).expect("text");
                format!("{name}={value}")
            });
            values.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(["a-b", "c_d"]), "a_b=a-b c_d=c_d");
        assert_eq!(told(["a_b", "c-d"]), "a_b=a_b");
        assert_eq!(told(["a-b", "c_d"]), "c_d=c_d");
    }
}
