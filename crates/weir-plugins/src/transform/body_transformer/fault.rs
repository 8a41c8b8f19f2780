//! Faults of templates.

use std::fmt;

/// What is wrong with a template, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    line: usize,
    column: usize,
    problem: String,
}

impl TemplateError {
    pub fn new(text: &str, at: usize, problem: impl Into<String>) -> TemplateError {
        let before = &text[..at];
        let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
        TemplateError { line: before.matches('\n').count() + 1, column, problem: problem.into() }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.problem)
    }
}
