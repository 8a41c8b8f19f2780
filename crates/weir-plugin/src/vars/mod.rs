//! Expressions over variables: the `vars` of a route, the `_meta.filter` of a plugin, and others of Apache APISIX.
//!
//! ```json
//! [["arg_version", "==", "2"], ["OR", ["http_x_beta", "~=", null], ["remote_addr", "ipmatch", ["10.0.0.0/8"]]]]
//! ```
//!
//! An expression is a list of rules that must all hold. A rule is `[variable, operator, constant]`, with `"!"` before
//! the operator to negate it, or `["AND" | "OR" | "!AND" | "!OR", rule, rule...]`, or a list of rules in turn.
//!
//! | operator | holds when the variable |
//! |---|---|
//! | `==`, `~=` | is, is not the constant; `null` stands for a missing variable |
//! | `>`, `>=`, `<`, `<=` | is a number in that relation; as text, when the constant is text that is not a number |
//! | `~~`, `~*` | matches the regular expression somewhere; `~*` without regard to case |
//! | `in` | is one of the constants of the list |
//! | `has` | is a list and has the constant |
//! | `ipmatch` | is an address in one of the ranges |
//!
//! Where the constant is a number, the variable is read as one. A missing variable makes every operator false but
//! `~=`; the negated form turns that around. Regular expressions match in linear time, so look-around and
//! back-references are refused. `true` and `false` stand for those words.

mod compile;
mod condition;
mod network;
mod number;
#[cfg(test)]
mod oracle;

use std::fmt;

use condition::Test;
pub use network::{any_contains, parse_network};
use serde_json::Value;

use crate::variable::{Variable, Variables};

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    root: Node,
    doubts: Box<[Error]>,
}

#[derive(Clone, Debug)]
enum Node {
    All(Box<[Node]>),
    Any(Box<[Node]>),
    Not(Box<Node>),
    Test(Test),
}

/// Why a value is not a valid expression, or is probably not what was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The place within the expression, such as `[1][0]`; empty for the whole of it.
    pub place: String,
    /// What is wrong. Apache APISIX's text, where it has one: `invalid operator '???'`.
    pub reason: String,
    /// What to write instead.
    pub help: String,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "vars{}: {}; {}", self.place, self.reason, self.help)
    }
}

impl Expression {
    /// Compiles the JSON form. Never panics, whatever the value.
    ///
    /// # Errors
    /// The first error, and its place.
    pub fn compile(value: &Value) -> Result<Expression, Error> {
        let (root, doubts) = compile::compile(value)?;
        Ok(Expression { root, doubts: doubts.into() })
    }

    /// What is valid in it but probably a mistake.
    pub fn doubts(&self) -> &[Error] {
        &self.doubts
    }

    /// Whether the expression holds.
    pub fn holds(&self, variables: &(impl Variables + ?Sized)) -> bool {
        self.root.holds(variables)
    }

    /// The first rule that does not hold, as text for people; `None` when the expression holds.
    pub fn unmet(&self, variables: &(impl Variables + ?Sized)) -> Option<String> {
        match &self.root {
            Node::All(rules) => rules.iter().find(|rule| !rule.holds(variables)).map(Node::to_string),
            root => (!root.holds(variables)).then(|| root.to_string()),
        }
    }

    /// Whether it holds for some exchange of which only the variables are known that `knows` takes; any value of the others is possible.
    pub fn may_hold(&self, known: &(impl Variables + ?Sized), knows: &dyn Fn(&Variable) -> bool) -> bool {
        self.root.may_be(true, known, knows)
    }

    /// The variables it uses, with repetitions. Some may have no value when it is evaluated: [`Variable::absence`].
    pub fn variables(&self) -> Vec<&Variable> {
        let mut found = Vec::new();
        self.root.collect_variables(&mut found);
        found
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(out)
    }
}

impl Node {
    fn holds(&self, variables: &(impl Variables + ?Sized)) -> bool {
        match self {
            Node::Test(test) => test.holds(variables),
            Node::All(nodes) => nodes.iter().all(|node| node.holds(variables)),
            Node::Any(nodes) => nodes.iter().any(|node| node.holds(variables)),
            Node::Not(node) => !node.holds(variables),
        }
    }

    fn may_be(&self, wanted: bool, known: &(impl Variables + ?Sized), knows: &dyn Fn(&Variable) -> bool) -> bool {
        let each = |nodes: &[Node]| match (self, wanted) {
            (Node::All(_), true) | (Node::Any(_), false) => nodes.iter().all(|node| node.may_be(wanted, known, knows)),
            _ => nodes.iter().any(|node| node.may_be(wanted, known, knows)),
        };
        match self {
            Node::Test(test) => !knows(&test.variable) || test.holds(known) == wanted,
            Node::Not(node) => node.may_be(!wanted, known, knows),
            Node::All(nodes) | Node::Any(nodes) => each(nodes),
        }
    }

    fn collect_variables<'a>(&'a self, found: &mut Vec<&'a Variable>) {
        match self {
            Node::Test(test) => found.push(&test.variable),
            Node::All(nodes) | Node::Any(nodes) => nodes.iter().for_each(|node| node.collect_variables(found)),
            Node::Not(node) => node.collect_variables(found),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, word, empty) = match self {
            Node::Test(test) => return test.fmt(out),
            Node::Not(node) => return write!(out, "not ({node})"),
            Node::All(nodes) => (nodes, " and ", "true"),
            Node::Any(nodes) => (nodes, " or ", "false"),
        };
        if nodes.is_empty() {
            return out.write_str(empty);
        }
        for (index, node) in nodes.iter().enumerate() {
            if index > 0 {
                out.write_str(word)?;
            }
            match node {
                Node::All(_) | Node::Any(_) => write!(out, "({node})")?,
                _ => node.fmt(out)?,
            }
        }
        Ok(())
    }
}
