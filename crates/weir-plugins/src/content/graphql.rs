//! Reads executable GraphQL documents (GraphQL specification, October 2021, §2). What a schema would have to be known for is not
//! checked. Takes linear time, and memory for at most [`MOST_PARTS`] parts.

use std::collections::HashMap;

mod cost;
mod lexer;

pub use cost::{QueryCost, cost};
use lexer::{GraphqlLexer, GraphqlToken};

/// The most selections, arguments, directives and variables of a document.
const MOST_PARTS: usize = 10_000;
/// The most operations of a document.
const MOST_OPERATIONS: usize = 100;
/// The deepest nesting of selections, of values, and of fragments in selections.
const MOST_NESTED: usize = 200;

/// Why a text is no document that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphqlFault {
    /// It is not GraphQL at this byte.
    Syntax(usize),
    /// It has more than [`MOST_PARTS`] parts, or more than [`MOST_OPERATIONS`] operations.
    Parts,
    /// It is nested deeper than [`MOST_NESTED`].
    Nesting,
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
            GraphqlFault::Parts => format!("has more than {MOST_OPERATIONS} operations or {MOST_PARTS} parts"),
            GraphqlFault::Nesting => format!("is nested deeper than {MOST_NESTED}"),
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
        let mut lexer = GraphqlLexer::new(text);
        let next = lexer.token()?;
        let parser = GraphqlParser { lexer, next, parts: 0, document: GraphqlDocument::default() };
        parser.document()
    }
}

struct GraphqlParser<'t> {
    lexer: GraphqlLexer<'t>,
    next: GraphqlToken<'t>,
    parts: usize,
    document: GraphqlDocument<'t>,
}

impl<'t> GraphqlParser<'t> {
    fn document(mut self) -> Result<GraphqlDocument<'t>, GraphqlFault> {
        while self.next != GraphqlToken::End {
            match self.next {
                GraphqlToken::Mark(b'{') => {
                    let selections = self.selections(0)?;
                    self.document.operations.push(GraphqlOperation { name: None, variables: Vec::new(), selections });
                }
                GraphqlToken::Name("query" | "mutation" | "subscription") => self.operation()?,
                GraphqlToken::Name("fragment") => self.fragment()?,
                _ => return self.fault(),
            }
            if self.document.operations.len() > MOST_OPERATIONS {
                return Err(GraphqlFault::Parts);
            }
        }
        match self.document.operations.is_empty() {
            true => self.fault(),
            false => Ok(self.document),
        }
    }

    fn operation(&mut self) -> Result<(), GraphqlFault> {
        self.advance()?;
        let name = match self.next {
            GraphqlToken::Name(_) => Some(self.name()?),
            _ => None,
        };
        let mut variables = Vec::new();
        if self.takes(b'(')? {
            while !self.takes(b')')? {
                variables.push(self.variable()?);
            }
        }
        self.directives()?;
        let selections = self.selections(0)?;
        self.document.operations.push(GraphqlOperation { name, variables, selections });
        Ok(())
    }

    fn variable(&mut self) -> Result<GraphqlVariable<'t>, GraphqlFault> {
        self.count()?;
        self.expect(b'$')?;
        let name = self.name()?;
        self.expect(b':')?;
        let mut lists = 0;
        while self.takes(b'[')? {
            lists += 1;
        }
        let type_name = self.name()?;
        self.takes(b'!')?;
        for _ in 0..lists {
            self.expect(b']')?;
            self.takes(b'!')?;
        }
        let default = if self.takes(b'=')? { Some(self.value(0)?) } else { None };
        self.directives()?;
        Ok(GraphqlVariable { name, type_name, is_list: lists > 0, default })
    }

    fn fragment(&mut self) -> Result<(), GraphqlFault> {
        self.advance()?;
        let name = self.name()?;
        let is_condition = self.next == GraphqlToken::Name("on");
        if name == "on" || !is_condition {
            return self.fault();
        }
        self.advance()?;
        self.name()?;
        self.directives()?;
        let selections = self.selections(0)?;
        match self.document.fragments.insert(name, selections) {
            None => Ok(()),
            Some(_) => Err(GraphqlFault::Repeated),
        }
    }

    fn selections(&mut self, nesting: usize) -> Result<Vec<GraphqlSelection<'t>>, GraphqlFault> {
        if nesting >= MOST_NESTED {
            return Err(GraphqlFault::Nesting);
        }
        self.expect(b'{')?;
        let mut selections = vec![self.selection(nesting + 1)?];
        while !self.takes(b'}')? {
            selections.push(self.selection(nesting + 1)?);
        }
        Ok(selections)
    }

    fn selection(&mut self, nesting: usize) -> Result<GraphqlSelection<'t>, GraphqlFault> {
        self.count()?;
        if self.next != GraphqlToken::Dots {
            return self.field(nesting);
        }
        self.advance()?;
        match self.next {
            GraphqlToken::Name("on") => {
                self.advance()?;
                self.name()?;
            }
            GraphqlToken::Name(_) => {
                let name = self.name()?;
                self.directives()?;
                return Ok(GraphqlSelection::Spread(name));
            }
            _ => {}
        }
        self.directives()?;
        Ok(GraphqlSelection::Inline(self.selections(nesting)?))
    }

    fn field(&mut self, nesting: usize) -> Result<GraphqlSelection<'t>, GraphqlFault> {
        let mut name = self.name()?;
        if self.takes(b':')? {
            self.document.aliases += 1;
            name = self.name()?;
        }
        self.document.introspects |= matches!(name, "__schema" | "__type");
        let arguments = self.arguments()?;
        self.directives()?;
        let selections = match self.next {
            GraphqlToken::Mark(b'{') => self.selections(nesting)?,
            _ => Vec::new(),
        };
        Ok(GraphqlSelection::Field { arguments, selections })
    }

    fn directives(&mut self) -> Result<(), GraphqlFault> {
        while self.takes(b'@')? {
            self.count()?;
            self.document.directives += 1;
            self.name()?;
            self.arguments()?;
        }
        Ok(())
    }

    fn arguments(&mut self) -> Result<Vec<(&'t str, ArgumentValue<'t>)>, GraphqlFault> {
        let mut arguments = Vec::new();
        if self.takes(b'(')? {
            loop {
                self.count()?;
                let name = self.name()?;
                self.expect(b':')?;
                arguments.push((name, self.value(0)?));
                if self.takes(b')')? {
                    break;
                }
            }
        }
        Ok(arguments)
    }

    fn value(&mut self, nesting: usize) -> Result<ArgumentValue<'t>, GraphqlFault> {
        if nesting >= MOST_NESTED {
            return Err(GraphqlFault::Nesting);
        }
        let found = self.next;
        match found {
            GraphqlToken::Number(number) => {
                self.advance()?;
                return Ok(ArgumentValue::Number(number));
            }
            GraphqlToken::Mark(b'$') => {
                self.advance()?;
                return Ok(ArgumentValue::Variable(self.name()?));
            }
            GraphqlToken::Name(_) | GraphqlToken::Literal => self.advance()?,
            GraphqlToken::Mark(b'[') => {
                self.advance()?;
                while !self.takes(b']')? {
                    self.value(nesting + 1)?;
                }
            }
            GraphqlToken::Mark(b'{') => {
                self.advance()?;
                while !self.takes(b'}')? {
                    self.name()?;
                    self.expect(b':')?;
                    self.value(nesting + 1)?;
                }
            }
            _ => return self.fault(),
        }
        Ok(ArgumentValue::Other)
    }

    /// Counts one more part.
    fn count(&mut self) -> Result<(), GraphqlFault> {
        self.parts += 1;
        if self.parts > MOST_PARTS { Err(GraphqlFault::Parts) } else { Ok(()) }
    }

    fn advance(&mut self) -> Result<(), GraphqlFault> {
        self.next = self.lexer.token()?;
        Ok(())
    }

    fn name(&mut self) -> Result<&'t str, GraphqlFault> {
        let GraphqlToken::Name(name) = self.next else { return self.fault() };
        self.advance()?;
        Ok(name)
    }

    fn expect(&mut self, mark: u8) -> Result<(), GraphqlFault> {
        if self.takes(mark)? { Ok(()) } else { self.fault() }
    }

    /// Takes a punctuator, if it is the next token.
    fn takes(&mut self, mark: u8) -> Result<bool, GraphqlFault> {
        let is_next = self.next == GraphqlToken::Mark(mark);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    fn fault<T>(&self) -> Result<T, GraphqlFault> {
        Err(GraphqlFault::Syntax(self.lexer.token_start()))
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
            ("fragment on on T {a} {b}", 12),
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
        assert_eq!(GraphqlDocument::parse(&deep).err(), Some(GraphqlFault::Nesting));
        let value = format!("{{a(b: {}{})}}", "[".repeat(MOST_NESTED + 1), "]".repeat(MOST_NESTED + 1));
        assert_eq!(GraphqlDocument::parse(&value).err(), Some(GraphqlFault::Nesting));
        let wide = |count: usize| format!("{{{}}}", "a ".repeat(count));
        assert!(GraphqlDocument::parse(&wide(MOST_PARTS)).is_ok());
        assert_eq!(GraphqlDocument::parse(&wide(MOST_PARTS + 1)).err(), Some(GraphqlFault::Parts));
        let many = |count: usize| "{a}".repeat(count);
        assert!(GraphqlDocument::parse(&many(MOST_OPERATIONS)).is_ok());
        assert_eq!(GraphqlDocument::parse(&many(MOST_OPERATIONS + 1)).err(), Some(GraphqlFault::Parts));
    }
}
