//! One comparison of a variable with constants.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use regex::bytes::Regex;

use super::network::any_contains;
use super::number::number;
use crate::variable::{Variable, Variables};

/// A comparison of one variable with a constant.
#[derive(Clone, Debug)]
pub(super) struct Test {
    pub(super) variable: Variable,
    pub(super) condition: Condition,
}

/// The condition on a variable. A missing variable satisfies only `Equal(Missing)` and a `OneOf` that contains `Missing`.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    Equal(Constant),
    /// `>`, `>=`, `<`, `<=`: the orderings of value to bound that are accepted.
    Ordered {
        accepted: Relation,
        bound: Constant,
    },
    Matches {
        regex: Arc<Regex>,
        ignore_case: bool,
    },
    OneOf(Set),
    /// The variable is a list with an element that equals the constant.
    Has(Constant),
    /// The variable is an address within one of the ranges.
    Within(Box<[IpNet]>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Constant {
    /// JSON's `null`.
    Missing,
    Text(Box<[u8]>),
    Number(f64),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Relation {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

/// The constants of an `in`, in a form that is fast to search.
#[derive(Clone, Debug)]
pub(super) struct Set {
    missing: bool,
    /// Sorted, for a binary search.
    texts: Box<[Box<[u8]>]>,
    numbers: Box<[f64]>,
}

impl Test {
    pub(super) fn holds(&self, variables: &(impl Variables + ?Sized)) -> bool {
        match &self.condition {
            Condition::Has(constant) => {
                variables.any_element(&self.variable, &mut |element| constant.equals(Some(element)))
            }
            Condition::Within(networks) => {
                variables.address(&self.variable).is_some_and(|address| any_contains(networks, address))
            }
            condition => condition.holds_for(variables.variable(&self.variable).as_deref()),
        }
    }
}

impl Condition {
    fn holds_for(&self, value: Option<&[u8]>) -> bool {
        match self {
            Condition::Equal(constant) => constant.equals(value),
            Condition::Ordered { accepted, bound } => {
                value.and_then(|value| bound.order_of(value)).is_some_and(|ordering| accepted.accepts(ordering))
            }
            Condition::Matches { regex, .. } => value.is_some_and(|value| regex.is_match(value)),
            Condition::OneOf(set) => set.contains(value),
            Condition::Has(_) | Condition::Within(_) => false,
        }
    }
}

impl Constant {
    fn equals(&self, value: Option<&[u8]>) -> bool {
        match (self, value) {
            (Constant::Missing, value) => value.is_none(),
            (_, None) => false,
            (Constant::Text(text), Some(value)) => **text == *value,
            (Constant::Number(constant), Some(value)) => number(value) == Some(*constant),
        }
    }

    /// The order of `value` relative to this bound; `None` if they are not comparable.
    fn order_of(&self, value: &[u8]) -> Option<Ordering> {
        match self {
            Constant::Missing => None,
            Constant::Text(bound) => Some(value.cmp(bound)),
            Constant::Number(bound) => number(value)?.partial_cmp(bound),
        }
    }
}

impl Relation {
    fn accepts(self, ordering: Ordering) -> bool {
        match self {
            Relation::Greater => ordering.is_gt(),
            Relation::GreaterOrEqual => ordering.is_ge(),
            Relation::Less => ordering.is_lt(),
            Relation::LessOrEqual => ordering.is_le(),
        }
    }
}

impl FromIterator<Constant> for Set {
    fn from_iter<I: IntoIterator<Item = Constant>>(constants: I) -> Set {
        let (mut missing, mut texts, mut numbers) = (false, Vec::new(), Vec::new());
        for constant in constants {
            match constant {
                Constant::Missing => missing = true,
                Constant::Text(text) => texts.push(text),
                Constant::Number(number) => numbers.push(number),
            }
        }
        texts.sort_unstable();
        Set { missing, texts: texts.into(), numbers: numbers.into() }
    }
}

impl Set {
    fn contains(&self, value: Option<&[u8]>) -> bool {
        let Some(value) = value else { return self.missing };
        self.texts.binary_search_by(|text| (**text).cmp(value)).is_ok()
            || (!self.numbers.is_empty() && number(value).is_some_and(|value| self.numbers.contains(&value)))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variable = &self.variable;
        match &self.condition {
            Condition::Equal(constant) => write!(out, "{variable} == {constant}"),
            Condition::Ordered { accepted, bound } => write!(out, "{variable} {accepted} {bound}"),
            Condition::Matches { regex, ignore_case } => {
                let operator = if *ignore_case { "~*" } else { "~~" };
                write!(out, "{variable} {operator} {:?}", regex.as_str())
            }
            Condition::OneOf(set) => write!(out, "{variable} in {set}"),
            Condition::Has(constant) => write!(out, "{variable} has {constant}"),
            Condition::Within(networks) => {
                write!(out, "{variable} ipmatch ")?;
                write_list(out, networks.iter())
            }
        }
    }
}

impl fmt::Display for Constant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Constant::Missing => out.write_str("null"),
            Constant::Text(text) => write!(out, "{:?}", String::from_utf8_lossy(text)),
            Constant::Number(number) => write!(out, "{number}"),
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Relation::Greater => ">",
            Relation::GreaterOrEqual => ">=",
            Relation::Less => "<",
            Relation::LessOrEqual => "<=",
        })
    }
}

impl fmt::Display for Set {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing.then_some(Constant::Missing);
        let texts = self.texts.iter().cloned().map(Constant::Text);
        let numbers = self.numbers.iter().copied().map(Constant::Number);
        write_list(out, texts.chain(numbers).chain(missing))
    }
}

/// Long lists are cut, since this text is for people.
fn write_list(out: &mut fmt::Formatter<'_>, items: impl Iterator<Item = impl fmt::Display>) -> fmt::Result {
    const SHOWN: usize = 8;
    out.write_str("[")?;
    for (index, item) in items.enumerate() {
        match index {
            0 => write!(out, "{item}")?,
            SHOWN => {
                out.write_str(", ...")?;
                break;
            }
            _ => write!(out, ", {item}")?,
        }
    }
    out.write_str("]")
}
