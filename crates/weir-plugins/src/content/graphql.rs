//! Reads executable GraphQL documents (GraphQL specification, October 2021, §2), by `apollo-parser`. What a schema would have to be known
//! for is not checked.

use std::collections::HashMap;

use apollo_parser::cst::{self, CstNode, Definition, Selection, Type, Value};
use apollo_parser::{Parser, SyntaxKind, SyntaxToken};

mod cost;
pub(crate) mod request;

pub use cost::{QueryCost, cost};

/// The most tokens of a document, blanks and comments included.
const MOST_TOKENS: usize = 50_000;
/// The most operations of a document.
const MOST_OPERATIONS: usize = 100;
/// The deepest nesting of selections, of values, and of fragments in selections.
const MOST_NESTED: usize = 200;

/// The default of `list_arguments`: the names of arguments that say how long a list may be.
pub(crate) fn default_list_arguments() -> Vec<String> {
    ["first", "last", "limit"].map(str::to_owned).into()
}

/// Why a text is no document that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphqlFault {
    /// It is not GraphQL at this byte.
    Syntax(usize),
    /// It has more than [`MOST_TOKENS`] tokens or [`MOST_OPERATIONS`] operations, or is nested deeper than [`MOST_NESTED`].
    Size,
    /// A fragment contains itself.
    Cycle,
    /// Two fragments, or two variables of an operation, have one name: which of them counts is up to the server.
    Repeated,
}

impl GraphqlFault {
    /// The fault in words.
    pub fn text(self) -> String {
        match self {
            GraphqlFault::Syntax(place) => format!("is not GraphQL at byte {place}"),
            GraphqlFault::Size => format!(
                "has more than {MOST_TOKENS} tokens or {MOST_OPERATIONS} operations, or is nested deeper than {MOST_NESTED}"
            ),
            GraphqlFault::Cycle => "has a fragment that contains itself".to_owned(),
            GraphqlFault::Repeated => "has two fragments or two variables of one name".to_owned(),
        }
    }
}

/// A document of operations and fragments.
#[derive(Debug, Default)]
pub struct GraphqlDocument<'t> {
    pub operations: Vec<GraphqlOperation<'t>>,
    fragments: HashMap<&'t str, Vec<GraphqlSelection<'t>>>,
    /// How many fields have an alias.
    pub aliases: usize,
    pub directives: usize,
    /// It asks for the schema: `__schema` or `__type`.
    pub introspects: bool,
}

#[derive(Debug)]
pub struct GraphqlOperation<'t> {
    pub name: Option<&'t str>,
    pub variables: Vec<GraphqlVariable<'t>>,
    selections: Vec<GraphqlSelection<'t>>,
}

/// The definition of a variable.
#[derive(Debug)]
pub struct GraphqlVariable<'t> {
    pub name: &'t str,
    /// The name of its type, without list and `!`.
    pub type_name: &'t str,
    pub is_list: bool,
    default: Option<ArgumentValue<'t>>,
}

#[derive(Debug)]
enum GraphqlSelection<'t> {
    Field { arguments: Vec<(&'t str, ArgumentValue<'t>)>, selections: Vec<GraphqlSelection<'t>> },
    Spread(&'t str),
    Inline(Vec<GraphqlSelection<'t>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentValue<'t> {
    /// A negative one is 0.
    Number(u64),
    Variable(&'t str),
    Other,
}

impl<'t> GraphqlDocument<'t> {
    pub fn parse(text: &'t str) -> Result<GraphqlDocument<'t>, GraphqlFault> {
        let tree = Parser::new(text).recursion_limit(MOST_NESTED).token_limit(MOST_TOKENS).parse();
        if tree.errors().any(|error| error.is_limit()) {
            return Err(GraphqlFault::Size);
        }
        if let Some(error) = tree.errors().next() {
            return Err(GraphqlFault::Syntax(error.index()));
        }
        let mut reader = GraphqlReader { text, document: GraphqlDocument::default() };
        for definition in tree.document().definitions() {
            reader.definition(&definition)?;
        }
        if reader.document.operations.is_empty() {
            return Err(GraphqlFault::Syntax(text.len()));
        }
        for node in tree.document().syntax().descendants() {
            reader.document.aliases += usize::from(node.kind() == SyntaxKind::ALIAS);
            reader.document.directives += usize::from(node.kind() == SyntaxKind::DIRECTIVE);
        }
        Ok(reader.document)
    }
}

struct GraphqlReader<'t> {
    text: &'t str,
    document: GraphqlDocument<'t>,
}

/// What a node must have. The parser goes on after some faults without telling them.
fn part_of<T>(part: Option<T>, node: &impl CstNode) -> Result<T, GraphqlFault> {
    part.ok_or_else(|| GraphqlFault::Syntax(node.syntax().text_range().end().into()))
}

impl<'t> GraphqlReader<'t> {
    fn definition(&mut self, definition: &Definition) -> Result<(), GraphqlFault> {
        match definition {
            Definition::OperationDefinition(operation) => self.operation(operation),
            Definition::FragmentDefinition(fragment) => self.fragment(fragment),
            other => Err(GraphqlFault::Syntax(other.syntax().text_range().start().into())),
        }
    }

    fn operation(&mut self, operation: &cst::OperationDefinition) -> Result<(), GraphqlFault> {
        let name = operation.name().map(|name| self.name(Some(name), operation)).transpose()?;
        let defined = operation.variable_definitions().into_iter().flat_map(|all| all.variable_definitions());
        let variables = defined.map(|variable| self.variable(&variable)).collect::<Result<_, _>>()?;
        let selections = self.selections(&part_of(operation.selection_set(), operation)?)?;
        self.document.operations.push(GraphqlOperation { name, variables, selections });
        if self.document.operations.len() > MOST_OPERATIONS { Err(GraphqlFault::Size) } else { Ok(()) }
    }

    fn variable(&self, variable: &cst::VariableDefinition) -> Result<GraphqlVariable<'t>, GraphqlFault> {
        let name = self.name(part_of(variable.variable(), variable)?.name(), variable)?;
        let written = part_of(variable.ty(), variable)?;
        let (named, is_list) = match &written {
            Type::NamedType(named) => (Some(named.clone()), false),
            Type::ListType(_) => (None, true),
            Type::NonNullType(whole) => (whole.named_type(), whole.list_type().is_some()),
        };
        // The innermost type of a list is the last name in it.
        let inner = || written.syntax().descendants().filter_map(cst::NamedType::cast).last();
        let named = part_of(named.or_else(inner), variable)?;
        let default = variable.default_value().and_then(|default| default.value());
        let default = default.map(|value| self.value(&value)).transpose()?;
        Ok(GraphqlVariable { name, type_name: self.name(named.name(), &named)?, is_list, default })
    }

    fn fragment(&mut self, fragment: &cst::FragmentDefinition) -> Result<(), GraphqlFault> {
        let name = self.name(part_of(fragment.fragment_name(), fragment)?.name(), fragment)?;
        let selections = self.selections(&part_of(fragment.selection_set(), fragment)?)?;
        match self.document.fragments.insert(name, selections) {
            None => Ok(()),
            Some(_) => Err(GraphqlFault::Repeated),
        }
    }

    fn selections(&mut self, set: &cst::SelectionSet) -> Result<Vec<GraphqlSelection<'t>>, GraphqlFault> {
        set.selections().map(|selection| self.selection(&selection)).collect()
    }

    fn selection(&mut self, selection: &Selection) -> Result<GraphqlSelection<'t>, GraphqlFault> {
        match selection {
            Selection::Field(field) => {
                self.document.introspects |= matches!(self.name(field.name(), field)?, "__schema" | "__type");
                let arguments = field.arguments().into_iter().flat_map(|all| all.arguments());
                let arguments = arguments.map(|argument| self.argument(&argument)).collect::<Result<_, _>>()?;
                let selections = field.selection_set().map(|set| self.selections(&set)).transpose()?;
                Ok(GraphqlSelection::Field { arguments, selections: selections.unwrap_or_default() })
            }
            Selection::FragmentSpread(spread) => {
                let name = self.name(part_of(spread.fragment_name(), spread)?.name(), spread)?;
                Ok(GraphqlSelection::Spread(name))
            }
            Selection::InlineFragment(inline) => {
                Ok(GraphqlSelection::Inline(self.selections(&part_of(inline.selection_set(), inline)?)?))
            }
        }
    }

    fn argument(&self, argument: &cst::Argument) -> Result<(&'t str, ArgumentValue<'t>), GraphqlFault> {
        let value = self.value(&part_of(argument.value(), argument)?)?;
        Ok((self.name(argument.name(), argument)?, value))
    }

    fn value(&self, value: &Value) -> Result<ArgumentValue<'t>, GraphqlFault> {
        Ok(match value {
            Value::Variable(variable) => ArgumentValue::Variable(self.name(variable.name(), variable)?),
            Value::IntValue(number) => {
                let digits = self.written(&part_of(number.int_token(), number)?);
                let is_negative = digits.starts_with('-');
                ArgumentValue::Number(if is_negative { 0 } else { digits.parse().unwrap_or(u64::MAX) })
            }
            _ => ArgumentValue::Other,
        })
    }

    fn name(&self, name: Option<cst::Name>, node: &impl CstNode) -> Result<&'t str, GraphqlFault> {
        let token = part_of(name.and_then(|name| name.ident_token()), node)?;
        Ok(self.written(&token))
    }

    fn written(&self, token: &SyntaxToken) -> &'t str {
        &self.text[std::ops::Range::<usize>::from(token.text_range())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_all_forms_are_read() {
        for text in [
            "{a}",
            "\u{feff}query Q($a: [Int!]! = [1, 2], $b: T = {c: \"d\"} @x) @y(z: $a) { a: b(c: $a, d: null) @skip(if: true) { e } }",
            "mutation { a(b: -1.5e+3, c: E, d: [], e: {}) }",
            "subscription S { a ... F ... on T { b } ... @include(if: $c) { d } ...{ e } } fragment F on T @x { g }",
            "# a comment\n{ a(text: \"q \\\" \\\\\", block: \"\"\"a \" \\\"\"\" b\"\"\"), }",
            "query on { on: fragment query }",
        ] {
            assert!(GraphqlDocument::parse(text).is_ok(), "{text}: {:?}", GraphqlDocument::parse(text));
        }
        let document =
            GraphqlDocument::parse("query A($n: [Int!]) { x: a @d y: b { __schema { c } } } { d }").expect("valid");
        assert_eq!((document.aliases, document.directives, document.introspects), (2, 1, true));
        assert_eq!(document.operations.iter().map(|operation| operation.name).collect::<Vec<_>>(), [Some("A"), None]);
        let variable = &document.operations[0].variables[0];
        assert_eq!((variable.name, variable.type_name, variable.is_list), ("n", "Int", true));
    }

    #[test]
    fn faults_of_documents_have_their_place() {
        for (text, place) in [
            ("", 0),
            ("{}", 1),
            ("{a", 2),
            ("{a}}", 3),
            ("{a(b)}", 4),
            ("{a(b: )}", 6),
            ("{a(b: \"c)}", 6),
            ("{a(b: 1c)}", 6),
            ("query ($a Int) {b}", 10),
            ("fragment on on T {a} {b}", 9),
            ("fragment F on T {a}", 19),
            ("type T { a: Int }", 0),
            ("{a} ?", 4),
            ("{ a .. b }", 4),
        ] {
            assert_eq!(GraphqlDocument::parse(text).err(), Some(GraphqlFault::Syntax(place)), "{text}");
        }
    }

    #[test]
    fn documents_have_bounds() {
        let deep = format!("{}a{}", "{a".repeat(MOST_NESTED + 1), "}".repeat(MOST_NESTED + 1));
        assert_eq!(GraphqlDocument::parse(&deep).err(), Some(GraphqlFault::Size));
        let value = format!("{{a(b: {}{})}}", "[".repeat(MOST_NESTED + 1), "]".repeat(MOST_NESTED + 1));
        assert_eq!(GraphqlDocument::parse(&value).err(), Some(GraphqlFault::Size));
        let wide = |count: usize| format!("{{{}}}", "a ".repeat(count));
        // Each with a blank.
        assert!(GraphqlDocument::parse(&wide(MOST_TOKENS / 2 - 2)).is_ok());
        assert_eq!(GraphqlDocument::parse(&wide(MOST_TOKENS / 2)).err(), Some(GraphqlFault::Size));
        let many = |count: usize| "{a}".repeat(count);
        assert!(GraphqlDocument::parse(&many(MOST_OPERATIONS)).is_ok());
        assert_eq!(GraphqlDocument::parse(&many(MOST_OPERATIONS + 1)).err(), Some(GraphqlFault::Size));
    }
}
