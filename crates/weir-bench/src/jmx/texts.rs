//! The texts of a test plan: JMeter's functions and variables in them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::engine::PlanVariable;

/// Replaces what is known before a run, and turns functions with a value for each request into variables of the plan.
pub(super) struct Texts<'a> {
    /// Those of `-J`.
    properties: &'a BTreeMap<String, String>,
    /// User-defined variables of the plan.
    constants: BTreeMap<String, String>,
    /// What functions have become, by the name of the variable.
    variables: RefCell<BTreeMap<String, PlanVariable>>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(properties: &'a BTreeMap<String, String>) -> Self {
        Self { properties, constants: BTreeMap::new(), variables: RefCell::default() }
    }

    /// Adds a user-defined variable.
    pub(super) fn define(&mut self, name: &str, value: &str) {
        let value = self.evaluate(value);
        self.constants.insert(name.to_owned(), value);
    }

    /// The variables that the texts so far contain.
    pub(super) fn variables(&self) -> BTreeMap<String, PlanVariable> {
        self.variables.borrow().clone()
    }

    /// Replaces properties, user-defined variables and functions; what is unknown stays as it is.
    pub(super) fn evaluate(&self, text: &str) -> String {
        let mut out = String::new();
        for part in parts(text) {
            match part {
                TextPart::Fixed(text) => out.push_str(text),
                TextPart::Reference(inside) => match self.value(inside) {
                    Some(value) => out.push_str(&value),
                    None => out.push_str(&format!("${{{inside}}}")),
                },
            }
        }
        out
    }

    fn value(&self, inside: &str) -> Option<String> {
        let Some((name, list)) = inside.split_once('(') else { return self.constants.get(inside).cloned() };
        let fields: Vec<&str> = list.trim_end_matches(')').split(',').map(str::trim).collect();
        let property = |default: &str| self.properties.get(fields[0]).map_or(default, String::as_str).to_owned();
        let number = |index: usize| fields.get(index).and_then(|field| field.parse::<i64>().ok());
        let (kind, variable) = match name {
            "__P" => return Some(property(fields.get(1).copied().unwrap_or("1"))),
            "__property" => return Some(property(fields.get(2).copied().unwrap_or(fields[0]))),
            "__UUID" => ("uuid", PlanVariable::Uuid),
            "__Random" => ("number", PlanVariable::Number { from: number(0)?, to: number(1)? }),
            "__RandomString" => {
                let characters = fields.get(1).filter(|text| !text.is_empty()).map(|text| (*text).to_owned());
                ("text", PlanVariable::Text { length: usize::try_from(number(0)?).ok()?, characters })
            }
            "__env" => ("environment", PlanVariable::Environment(fields[0].to_owned())),
            "__counter" if fields[0].eq_ignore_ascii_case("false") => {
                ("counter", PlanVariable::Sequence { from: 1, step: 1 })
            }
            _ => return None,
        };
        let mut variables = self.variables.borrow_mut();
        let name = format!("{kind}_{}", variables.len() + 1);
        variables.insert(name.clone(), variable);
        Some(format!("${{{name}}}"))
    }
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TextPart<'a> {
    Fixed(&'a str),
    /// What stands between `${` and `}`.
    Reference(&'a str),
}

/// Splits a text.
pub(super) fn parts(text: &str) -> Vec<TextPart<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((inside, after)) = after.split_once('}') else { break };
        parts.extend([TextPart::Fixed(before), TextPart::Reference(inside)]);
        rest = after;
    }
    parts.push(TextPart::Fixed(rest));
    parts
}

/// Changes the fixed parts of a text, and keeps the references; `reference` says how those are written.
pub(super) fn rewritten(text: &str, fixed: impl Fn(&str) -> String, reference: impl Fn(&str) -> String) -> String {
    let written = parts(text).into_iter().map(|part| match part {
        TextPart::Fixed(text) => fixed(text),
        TextPart::Reference(inside) => reference(inside),
    });
    written.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_evaluated() {
        let properties = [("host".to_owned(), "a".to_owned())].into();
        let mut texts = Texts::new(&properties);
        texts.define("base", "http://${__P(host)}");
        assert_eq!(texts.evaluate("${base}/${id}?${__P(none,7)}"), "http://a/${id}?7");
        assert_eq!(texts.evaluate("${__UUID()}-${__Random(1,6)} ${__time()}"), "${uuid_1}-${number_2} ${__time()}");
        assert_eq!(texts.variables()["number_2"], PlanVariable::Number { from: 1, to: 6 });
        assert_eq!(
            rewritten("a b${c d}e f", |text| text.replace(' ', "+"), |inside| format!("<{inside}>")),
            "a+b<c d>e+f"
        );
    }
}
