//! Reads tokens as statements and expressions: the part of Lua that short functions consist of.

use super::tokens::{LuaToken, tokens};
use super::{HIDDEN, LuaObstacle};

/// Blocks and expressions that are nested deeper are not read.
const DEEPEST: usize = 16;

const KEYWORDS: [&str; 22] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// An expression of a function, with the line on which it begins.
#[derive(Debug)]
pub(super) struct LuaTerm {
    pub(super) line: usize,
    pub(super) kind: LuaTermKind,
}

#[derive(Debug)]
pub(super) enum LuaTermKind {
    Nil,
    Boolean(bool),
    Number(String),
    Text(String),
    Name(String),
    Member(Box<LuaTerm>, Box<LuaTerm>),
    Call(Box<LuaTerm>, Vec<LuaTerm>),
    /// A table whose members all have names.
    Table(Vec<(String, LuaTerm)>),
    Not(Box<LuaTerm>),
    Binary(&'static str, Box<LuaTerm>, Box<LuaTerm>),
}

#[derive(Debug)]
pub(super) struct LuaStatement {
    pub(super) line: usize,
    pub(super) kind: LuaStatementKind,
}

#[derive(Debug)]
pub(super) enum LuaStatementKind {
    Local(String, LuaTerm),
    Assign(LuaTerm, LuaTerm),
    Call(LuaTerm),
    If(LuaTerm, Vec<LuaStatement>),
    Return(Vec<LuaTerm>),
}

/// A function, with the variables that are declared before it.
#[derive(Debug)]
pub(super) struct LuaFunction {
    pub(super) before: Vec<LuaStatement>,
    pub(super) parameters: Vec<String>,
    pub(super) body: Vec<LuaStatement>,
}

/// A text that is a function itself.
pub(super) fn parse_filter(text: &str) -> Result<LuaFunction, LuaObstacle> {
    let mut parser = LuaParser::new(text)?;
    let (parameters, body) = parser.function()?;
    parser.ends()?;
    Ok(LuaFunction { before: Vec::new(), parameters, body })
}

/// A text that returns a function, with declarations before it.
pub(super) fn parse_chunk(text: &str) -> Result<LuaFunction, LuaObstacle> {
    let mut parser = LuaParser::new(text)?;
    let mut before = Vec::new();
    while parser.is_word("local") {
        before.push(parser.statement(0)?);
        parser.take_symbol(";");
    }
    parser.word("return")?;
    let (parameters, body) = parser.function()?;
    parser.take_symbol(";");
    parser.ends()?;
    Ok(LuaFunction { before, parameters, body })
}

struct LuaParser {
    tokens: Vec<(usize, LuaToken)>,
    at: usize,
}

impl LuaParser {
    fn new(text: &str) -> Result<LuaParser, LuaObstacle> {
        Ok(LuaParser { tokens: tokens(text)?, at: 0 })
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(line, _)| *line)
    }

    fn next(&self) -> Option<&LuaToken> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    /// What stands where something else would be understood.
    fn obstacle(&self) -> LuaObstacle {
        let found = match self.next() {
            Some(LuaToken::Word(text) | LuaToken::Number(text)) => text.clone(),
            Some(LuaToken::Text(_)) => format!("\"{HIDDEN}\""),
            Some(LuaToken::Symbol(symbol)) => (*symbol).to_owned(),
            None => "the end".to_owned(),
        };
        LuaObstacle::new(self.line(), found)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.next(), Some(LuaToken::Word(found)) if found == word)
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is = self.is_word(word);
        self.at += usize::from(is);
        is
    }

    fn word(&mut self, word: &str) -> Result<(), LuaObstacle> {
        if self.take_word(word) { Ok(()) } else { Err(self.obstacle()) }
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let is = matches!(self.next(), Some(LuaToken::Symbol(found)) if *found == symbol);
        self.at += usize::from(is);
        is
    }

    fn symbol(&mut self, symbol: &str) -> Result<(), LuaObstacle> {
        if self.take_symbol(symbol) { Ok(()) } else { Err(self.obstacle()) }
    }

    fn name(&mut self) -> Result<String, LuaObstacle> {
        match self.next() {
            Some(LuaToken::Word(word)) if !KEYWORDS.contains(&word.as_str()) => {
                let name = word.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.obstacle()),
        }
    }

    fn ends(&self) -> Result<(), LuaObstacle> {
        if self.next().is_none() { Ok(()) } else { Err(self.obstacle()) }
    }

    /// A function without a name: its parameters and its body.
    fn function(&mut self) -> Result<(Vec<String>, Vec<LuaStatement>), LuaObstacle> {
        self.word("function")?;
        self.symbol("(")?;
        let mut parameters = Vec::new();
        if !self.take_symbol(")") {
            parameters.push(self.name()?);
            while self.take_symbol(",") {
                parameters.push(self.name()?);
            }
            self.symbol(")")?;
        }
        Ok((parameters, self.block(0)?))
    }

    /// Statements up to `end`, which is taken.
    fn block(&mut self, depth: usize) -> Result<Vec<LuaStatement>, LuaObstacle> {
        let mut statements = Vec::new();
        while !self.take_word("end") {
            let statement = self.statement(depth)?;
            self.take_symbol(";");
            let is_last = matches!(statement.kind, LuaStatementKind::Return(_));
            statements.push(statement);
            if is_last {
                self.word("end")?;
                break;
            }
        }
        Ok(statements)
    }

    fn statement(&mut self, depth: usize) -> Result<LuaStatement, LuaObstacle> {
        let line = self.line();
        if depth > DEEPEST {
            return Err(self.obstacle());
        }
        let kind = if self.take_word("local") {
            let name = self.name()?;
            self.symbol("=")?;
            LuaStatementKind::Local(name, self.expression(depth)?)
        } else if self.take_word("if") {
            let condition = self.expression(depth)?;
            self.word("then")?;
            LuaStatementKind::If(condition, self.block(depth + 1)?)
        } else if self.take_word("return") {
            let is_empty = self.is_word("end") || matches!(self.next(), Some(LuaToken::Symbol(";")));
            LuaStatementKind::Return(if is_empty { Vec::new() } else { self.expressions(depth)? })
        } else {
            let expression = self.postfix(depth)?;
            if self.take_symbol("=") {
                LuaStatementKind::Assign(expression, self.expression(depth)?)
            } else if matches!(expression.kind, LuaTermKind::Call(..)) {
                LuaStatementKind::Call(expression)
            } else {
                return Err(self.obstacle());
            }
        };
        Ok(LuaStatement { line, kind })
    }

    fn expressions(&mut self, depth: usize) -> Result<Vec<LuaTerm>, LuaObstacle> {
        let mut expressions = vec![self.expression(depth)?];
        while self.take_symbol(",") {
            expressions.push(self.expression(depth)?);
        }
        Ok(expressions)
    }

    fn expression(&mut self, depth: usize) -> Result<LuaTerm, LuaObstacle> {
        let mut left = self.conjunction(depth + 1)?;
        while self.take_word("or") {
            left = binary("or", left, self.conjunction(depth + 1)?);
        }
        Ok(left)
    }

    fn conjunction(&mut self, depth: usize) -> Result<LuaTerm, LuaObstacle> {
        let mut left = self.comparison(depth)?;
        while self.take_word("and") {
            left = binary("and", left, self.comparison(depth)?);
        }
        Ok(left)
    }

    fn comparison(&mut self, depth: usize) -> Result<LuaTerm, LuaObstacle> {
        let left = self.concatenation(depth)?;
        for operator in ["==", "~=", "<=", ">=", "<", ">"] {
            if self.take_symbol(operator) {
                return Ok(binary(operator, left, self.concatenation(depth)?));
            }
        }
        Ok(left)
    }

    fn concatenation(&mut self, depth: usize) -> Result<LuaTerm, LuaObstacle> {
        let mut left = self.operand(depth)?;
        while self.take_symbol("..") {
            left = binary("..", left, self.operand(depth)?);
        }
        Ok(left)
    }

    fn operand(&mut self, depth: usize) -> Result<LuaTerm, LuaObstacle> {
        let line = self.line();
        if depth > DEEPEST {
            return Err(self.obstacle());
        }
        if self.take_word("not") {
            let kind = LuaTermKind::Not(Box::new(self.operand(depth + 1)?));
            return Ok(LuaTerm { line, kind });
        }
        let kind = match self.next() {
            Some(LuaToken::Text(text)) => LuaTermKind::Text(text.clone()),
            Some(LuaToken::Number(number)) => LuaTermKind::Number(number.clone()),
            Some(LuaToken::Word(word)) if word == "nil" => LuaTermKind::Nil,
            Some(LuaToken::Word(word)) if word == "true" || word == "false" => LuaTermKind::Boolean(word == "true"),
            Some(LuaToken::Symbol("{")) => return self.table(depth),
            _ => return self.postfix(depth),
        };
        self.at += 1;
        Ok(LuaTerm { line, kind })
    }

    fn table(&mut self, depth: usize) -> Result<LuaTerm, LuaObstacle> {
        let line = self.line();
        self.symbol("{")?;
        let mut members = Vec::new();
        while !self.take_symbol("}") {
            let name = match self.next() {
                Some(LuaToken::Symbol("[")) => {
                    self.at += 1;
                    let name = self.text()?;
                    self.symbol("]")?;
                    name
                }
                _ => self.name()?,
            };
            self.symbol("=")?;
            members.push((name, self.expression(depth + 1)?));
            if !self.take_symbol(",") {
                self.symbol("}")?;
                break;
            }
        }
        Ok(LuaTerm { line, kind: LuaTermKind::Table(members) })
    }

    fn text(&mut self) -> Result<String, LuaObstacle> {
        let Some(LuaToken::Text(text)) = self.next() else { return Err(self.obstacle()) };
        let text = text.clone();
        self.at += 1;
        Ok(text)
    }

    /// A name or an expression in parentheses, with members and calls behind it.
    fn postfix(&mut self, depth: usize) -> Result<LuaTerm, LuaObstacle> {
        let line = self.line();
        let mut expression = if self.take_symbol("(") {
            let inner = self.expression(depth + 1)?;
            self.symbol(")")?;
            inner
        } else {
            LuaTerm { line, kind: LuaTermKind::Name(self.name()?) }
        };
        // A chain makes a tree as deep as it is long.
        for _ in 0..DEEPEST {
            let line = self.line();
            let inner = Box::new(expression);
            let kind = match self.next() {
                Some(LuaToken::Symbol(".")) => {
                    self.at += 1;
                    let name = LuaTermKind::Text(self.name()?);
                    LuaTermKind::Member(inner, Box::new(LuaTerm { line, kind: name }))
                }
                Some(LuaToken::Symbol("[")) => {
                    self.at += 1;
                    let key = self.expression(depth + 1)?;
                    self.symbol("]")?;
                    LuaTermKind::Member(inner, Box::new(key))
                }
                Some(LuaToken::Symbol("(")) => {
                    self.at += 1;
                    let arguments = if self.take_symbol(")") { Vec::new() } else { self.arguments(depth)? };
                    LuaTermKind::Call(inner, arguments)
                }
                // `require "name"`
                Some(LuaToken::Text(_)) => {
                    let text = LuaTermKind::Text(self.text()?);
                    LuaTermKind::Call(inner, vec![LuaTerm { line, kind: text }])
                }
                _ => return Ok(*inner),
            };
            expression = LuaTerm { line, kind };
        }
        Err(self.obstacle())
    }

    fn arguments(&mut self, depth: usize) -> Result<Vec<LuaTerm>, LuaObstacle> {
        let arguments = self.expressions(depth + 1)?;
        self.symbol(")")?;
        Ok(arguments)
    }
}

fn binary(operator: &'static str, left: LuaTerm, right: LuaTerm) -> LuaTerm {
    let (line, operands) = (left.line, (Box::new(left), Box::new(right)));
    LuaTerm { line, kind: LuaTermKind::Binary(operator, operands.0, operands.1) }
}
