//! Options that list names of header fields, or what names begin with.

use weir_plugin::proto::field::same_name;
use weir_plugin::{CollectAll, ConfigError};

use crate::options::headers::header_name;

/// Names of header fields: `X-User` is one, `X-User-*` are all that begin so, and `*` are all.
#[derive(Debug, Default)]
pub(crate) struct FieldNameList(Box<[FieldName]>);

#[derive(Debug)]
enum FieldName {
    Whole(Box<[u8]>),
    Beginning(Box<[u8]>),
}

impl FieldNameList {
    /// From the option at `path`. Names of fields that the gateway manages itself are refused.
    pub(crate) fn compile(names: &[String], path: &str) -> Result<FieldNameList, ConfigError> {
        let compiled = names.iter().enumerate().map(|(index, name)| {
            let path = format!("{path}[{index}]");
            match name.strip_suffix('*') {
                Some("") => Ok(FieldName::Beginning(Box::default())),
                Some(begin) => Ok(FieldName::Beginning(header_name(begin, &path)?.into())),
                None => Ok(FieldName::Whole(header_name(name, &path)?.into())),
            }
        });
        compiled.collect_all().map(FieldNameList)
    }

    pub(crate) fn contain(&self, name: &[u8]) -> bool {
        self.0.iter().any(|listed| match listed {
            FieldName::Whole(whole) => same_name(whole, name),
            FieldName::Beginning(begin) => name.get(..begin.len()).is_some_and(|start| same_name(begin, start)),
        })
    }

    /// Whether a name is listed as it is, and not only by its beginning.
    pub(crate) fn contain_whole(&self, name: &[u8]) -> bool {
        self.0.iter().any(|listed| matches!(listed, FieldName::Whole(whole) if same_name(whole, name)))
    }

    /// Whether every name is listed, by `*`.
    pub(crate) fn contain_all(&self) -> bool {
        self.contain(b"")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_or_begin_so() {
        let compile = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            FieldNameList::compile(&names, "option")
        };
        let names = compile(&["X-User", "x-app-*"]).expect("valid");
        for (name, is_listed) in
            [("x-user", true), ("X-User-Id", false), ("X-App-A", true), ("x-app-", true), ("X-App", false)]
        {
            assert_eq!(names.contain(name.as_bytes()), is_listed, "{name}");
        }
        assert!(names.contain_whole(b"x-USER") && !names.contain_whole(b"x-app-a"));
        assert!(compile(&["*"]).expect("valid").contain(b"anything"));
        assert!(compile(&[]).expect("valid").is_empty());
        let error = compile(&["A", "b c", "Content-Length"]).expect_err("refused");
        let places: Vec<String> = error.each().map(|fault| fault.path).collect();
        assert_eq!(places, ["option[1]", "option[2]"]);
    }
}
