//! `${{NAME}}` and `${{NAME:=default}}`, replaced in the text before it is parsed, as Apache APISIX does.
//!
//! The value is inserted as it is: inside quotes it is text, outside it may be a number or a whole `{...}`. Comment lines are
//! left alone, and so is everything that is not such an expression.

use std::sync::Arc;

use crate::text::diagnostic::Diagnostic;
use crate::text::tree::TextPosition;

/// Looks up one environment variable.
pub type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process. A variable that is not UTF-8 counts as absent.
pub fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The text with variables replaced, and the mapping of positions back to the original.
#[derive(Debug)]
pub struct Substituted {
    /// `None` if nothing was replaced.
    text: Option<String>,
    splices: Vec<Splice>,
}

/// A replacement: the characters `start..end` of the new text.
#[derive(Debug)]
struct Splice {
    start: usize,
    end: usize,
    /// The line of `end` in the new text, and the start and end of the expression in the original.
    new_line: u32,
    old_start: TextPosition,
    old_end: TextPosition,
    /// The name of the variable; `None` for an escape of JSON.
    variable: Option<Box<str>>,
}

impl Substituted {
    #[cfg(test)]
    pub fn text<'a>(&'a self, original: &'a str) -> &'a str {
        self.text.as_deref().unwrap_or(original)
    }

    /// The new text; `None` if nothing was replaced.
    pub fn take_text(&mut self) -> Option<String> {
        self.text.take()
    }

    /// Whether a variable was replaced between two positions of the original.
    pub fn has_variable(&self, from: TextPosition, to: TextPosition) -> bool {
        let before = self.splices.partition_point(|splice| splice.old_start < from);
        let mut within = self.splices[before..].iter().take_while(|splice| splice.old_start <= to);
        within.any(|splice| splice.variable.is_some())
    }

    /// The variables, with their values, that are at a character of the new text, or closest to it in the same line.
    pub(crate) fn variables_near<'s>(&'s self, new: &'s str, index: usize) -> impl Iterator<Item = (&'s str, &'s str)> {
        let byte_of = |char: usize| new.char_indices().nth(char).map_or(new.len(), |(byte, _)| byte);
        let is_in_line = move |from: usize, to: usize| from >= to || !new[byte_of(from)..byte_of(to)].contains('\n');
        let after = self.splices.partition_point(|splice| splice.start <= index);
        let before = after.checked_sub(1).map(|last| &self.splices[last]).filter(|last| is_in_line(last.end, index));
        let after = self.splices.get(after).filter(|next| is_in_line(index, next.start));
        before.into_iter().chain(after).filter_map(move |splice| {
            Some((splice.variable.as_deref()?, &new[byte_of(splice.start)..byte_of(splice.end)]))
        })
    }

    /// The position in the original of a character of the new text. Everything inside an inserted value maps to its `${{`.
    pub fn original(&self, index: usize, place: TextPosition) -> TextPosition {
        let before = self.splices.partition_point(|splice| splice.start <= index);
        let Some(splice) = before.checked_sub(1).map(|last| &self.splices[last]) else { return place };
        if index < splice.end {
            return splice.old_start;
        }
        TextPosition {
            line: splice.old_end.line + (place.line - splice.new_line),
            column: match place.line == splice.new_line {
                // Counted by characters, since the parser's columns leave out byte order marks.
                true => splice.old_end.column + (index - splice.end) as u32,
                false => place.column,
            },
        }
    }
}

/// Replaces all variables; each one that is neither set nor has a default is a diagnostic.
pub fn substitute(source: &Arc<str>, text: &str, lookup: VariableLookup) -> Result<Substituted, Vec<Diagnostic>> {
    substitute_by(source, text, lookup, VariableChoice::ValueFirst)
}

/// Which of the two a variable stands for, if it has both a value and a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableChoice {
    ValueFirst,
    DefaultFirst,
}

/// Like [`substitute`], with a choice between values and defaults.
pub(crate) fn substitute_by(
    source: &Arc<str>,
    text: &str,
    lookup: VariableLookup,
    choice: VariableChoice,
) -> Result<Substituted, Vec<Diagnostic>> {
    Ok(splice(text, &replacements(source, text, lookup, choice)?))
}

/// The text with a word of the same length in place of each variable, and of each escape that YAML does not know: every other
/// character stays where it is.
///
/// # Errors
/// If a variable is not written as it has to be.
pub(crate) fn masked(source: &Arc<str>, text: &str) -> Result<String, Vec<Diagnostic>> {
    let mut masked = String::with_capacity(text.len());
    let mut copied = 0;
    for (range, _) in replacements(source, text, &|_| Some(String::new()), VariableChoice::ValueFirst)? {
        masked.push_str(&text[copied..range.start]);
        copied = range.end;
        // Of as many bytes, so that places in it are places in the text; different variables stay different.
        masked.extend(text[range].bytes().map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() => char::from(byte),
            byte => char::from(b'A' + byte % 26),
        }));
    }
    Ok(masked + &text[copied..])
}

/// The name of a variable, and where it stands.
pub type NamedRange = (Box<str>, std::ops::Range<usize>);

/// The variables that a text uses, by their names, each with the range in bytes where it stands.
///
/// # Errors
/// If a variable is not written as it has to be.
pub fn variables(source: &Arc<str>, text: &str) -> Result<Vec<NamedRange>, Vec<Diagnostic>> {
    let found = replacements(source, text, &|_| Some(String::new()), VariableChoice::ValueFirst)?;
    let named = |(range, _): (std::ops::Range<usize>, String)| {
        let inner = text[range.clone()].strip_prefix("${{")?;
        Some((name_of(inner.trim_start()).into(), range))
    };
    Ok(found.into_iter().filter_map(named).collect())
}

type Replacements = Vec<(std::ops::Range<usize>, String)>;

fn replacements(
    source: &Arc<str>,
    text: &str,
    lookup: VariableLookup,
    choice: VariableChoice,
) -> Result<Replacements, Vec<Diagnostic>> {
    let mut faults = Vec::new();
    let mut replacements = Vec::new();
    let json = text.trim_start().starts_with(['{', '[']);
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let comment = line.trim_start().starts_with('#');
        // Computed once per line, so that a line with many openings does not cost quadratic time.
        let closed_until = line.rfind("}}").unwrap_or(0);
        let mut at = 0;
        while !comment && let Some(found) = line[at..].bytes().position(|byte| byte == b'$' || byte == b'\\') {
            at += found;
            let (length, outcome) = match line.as_bytes()[at] {
                b'$' if at < closed_until => variable(&line[at..], lookup, choice),
                _ if json => surrogate_pair(&line[at..]),
                _ => (1, SubstitutionOutcome::Leave),
            };
            match outcome {
                SubstitutionOutcome::Leave => {}
                SubstitutionOutcome::Put(value) => replacements.push((offset + at..offset + at + length, value)),
                SubstitutionOutcome::Fault { problem, advice } => {
                    let place = TextPosition { line: number as u32 + 1, column: line[..at].chars().count() as u32 + 1 };
                    faults.push(Diagnostic::at_place(source, place, problem).advise(advice));
                }
            }
            at += length;
        }
        offset += line.len();
    }
    match faults.is_empty() {
        true => Ok(replacements),
        false => Err(faults),
    }
}

enum SubstitutionOutcome {
    Leave,
    Put(String),
    Fault { problem: String, advice: String },
}

/// The name of a variable that a text begins with.
fn name_of(text: &str) -> &str {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The outcome for the start of `text`, which begins with `$`, and how many bytes it consumes.
fn variable(text: &str, lookup: VariableLookup, choice: VariableChoice) -> (usize, SubstitutionOutcome) {
    let Some(inner) = text.strip_prefix("${{").map(str::trim_start) else { return (1, SubstitutionOutcome::Leave) };
    let name = name_of(inner);
    let (name_end, rest) = (name.len(), &inner[name.len()..]);
    let goes_on = rest.trim_start().starts_with(['}', ':']);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !goes_on {
        return (1, SubstitutionOutcome::Leave);
    }
    let Some((rest, after)) = rest.split_once("}}") else { return (1, SubstitutionOutcome::Leave) };
    let length = text.len() - after.len();
    let inner = inner[..name_end + rest.len()].trim_end();
    let default = match rest.trim() {
        "" => None,
        rest if rest.starts_with(":=") => Some(rest[2..].trim_start()),
        rest if rest.starts_with(':') => {
            let problem = format!("`{inner}` is not a valid variable with a default");
            return (
                length,
                SubstitutionOutcome::Fault { problem, advice: format!("write `${{{{{name}:=default}}}}`") },
            );
        }
        _ => return (1, SubstitutionOutcome::Leave),
    };
    let of_default = || default.map(str::to_owned);
    let value = match choice {
        VariableChoice::ValueFirst => lookup(name).or_else(of_default),
        VariableChoice::DefaultFirst => of_default().or_else(|| lookup(name)),
    };
    match value {
        Some(value) => (length, SubstitutionOutcome::Put(value)),
        None => {
            let problem = format!("the environment variable `{name}` is not set");
            (
                length,
                SubstitutionOutcome::Fault {
                    problem,
                    advice: format!("set it or give a default: `${{{{{name}:=default}}}}`"),
                },
            )
        }
    }
}

/// JSON writes characters beyond U+FFFF as two escapes (RFC 8259 §7), which YAML does not know.
fn surrogate_pair(text: &str) -> (usize, SubstitutionOutcome) {
    const LENGTH: usize = r"\ud800\udc00".len();
    let unit = |from: usize| {
        let escape = text.get(from..from + LENGTH / 2)?.strip_prefix("\\u")?;
        u16::from_str_radix(escape, 16).ok()
    };
    let pair = unit(0).zip(unit(LENGTH / 2)).and_then(|(high, low)| String::from_utf16(&[high, low]).ok());
    match pair {
        // YAML already accepts two escapes for two characters.
        Some(text) if text.chars().count() == 1 => (LENGTH, SubstitutionOutcome::Put(text)),
        // Skips the escaped character, which may itself be a backslash.
        _ => (1 + text[1..].chars().next().map_or(0, char::len_utf8), SubstitutionOutcome::Leave),
    }
}

fn splice(text: &str, replacements: &[(std::ops::Range<usize>, String)]) -> Substituted {
    if replacements.is_empty() {
        return Substituted { text: None, splices: Vec::new() };
    }
    let mut new = String::with_capacity(text.len());
    let mut splices = Vec::with_capacity(replacements.len());
    let start = TextPosition { line: 1, column: 1 };
    let (mut old_place, mut new_place, mut new_index, mut copied) = (start, start, 0, 0);
    for (range, value) in replacements {
        let kept = &text[copied..range.start];
        new.push_str(kept);
        new.push_str(value);
        old_place = after(old_place, kept);
        new_place = after(after(new_place, kept), value);
        let begin = new_index + kept.chars().count();
        new_index = begin + value.chars().count();
        let old_start = old_place;
        old_place = after(old_place, &text[range.clone()]);
        let variable = text[range.clone()].strip_prefix("${{").map(|inner| name_of(inner.trim_start()).into());
        let new_line = new_place.line;
        splices.push(Splice { start: begin, end: new_index, new_line, old_start, old_end: old_place, variable });
        copied = range.end;
    }
    new.push_str(&text[copied..]);
    Substituted { text: Some(new), splices }
}

/// The position after `text`, which begins at `place`.
fn after(place: TextPosition, text: &str) -> TextPosition {
    match text.rsplit_once('\n') {
        None => TextPosition { column: place.column + text.chars().count() as u32, ..place },
        Some((before, last)) => TextPosition {
            line: place.line + 1 + before.matches('\n').count() as u32,
            column: 1 + last.chars().count() as u32,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(name: &str) -> Option<String> {
        match name {
            "PORT" => Some("9080".into()),
            "TWO_LINES" => Some("a\nb".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    fn replaced(text: &str) -> String {
        substitute(&"f".into(), text, &environment).expect("nothing is missing").text(text).to_owned()
    }

    fn refused(text: &str) -> Vec<String> {
        substitute(&"f".into(), text, &environment).expect_err("refused").iter().map(Diagnostic::to_string).collect()
    }

    #[test]
    fn variables_and_defaults_are_put_in() {
        assert_eq!(replaced("a: ${{PORT}}, ${{ PORT }}"), "a: 9080, 9080");
        assert_eq!(replaced("a: ${{NO:=1 2}} ${{NO:=}} ${{NO := x:=y }}."), "a: 1 2  x:=y.");
        assert_eq!(replaced("a: [${{EMPTY:=set}}]"), "a: []", "set but empty is set");
    }

    #[test]
    fn defaults_are_put_in_first_where_that_is_asked_for() {
        let text = "a: ${{PORT:=1}} ${{PORT}} ${{NO:=2}}";
        let done = substitute_by(&"f".into(), text, &environment, VariableChoice::DefaultFirst);
        assert_eq!(done.expect("nothing is missing").text(text), "a: 1 9080 2");
    }

    #[test]
    fn variables_are_named_with_their_ranges() {
        let text = "# ${{NOT}}\na: ${{PORT}} ${{ X := y }} ${{no\n";
        let found = variables(&"f".into(), text).expect("they are well written");
        let found: Vec<(&str, &str)> = found.iter().map(|(name, range)| (&**name, &text[range.clone()])).collect();
        assert_eq!(found, [("PORT", "${{PORT}}"), ("X", "${{ X := y }}")]);
    }

    #[test]
    fn text_that_is_no_variable_stays() {
        for text in ["$", "${{", "${{}}", "${{ a b }}", "${{1}}", "${PORT}", "$PORT", "${{PORT}\n}", "é$é\\", "${{é}}"]
        {
            assert_eq!(replaced(text), text);
        }
        assert_eq!(replaced("a: 1\n  # ${{MISSING}}\n"), "a: 1\n  # ${{MISSING}}\n");
    }

    #[test]
    fn every_missing_variable_is_named_with_its_place() {
        assert_eq!(
            refused("é: ${{A}}\nb: [${{PORT}}, ${{B}}, ${{C:-1}}]\n"),
            [
                "f:1:4: the environment variable `A` is not set; set it or give a default: `${{A:=default}}`",
                "f:2:16: the environment variable `B` is not set; set it or give a default: `${{B:=default}}`",
                "f:2:24: `C:-1` is not a valid variable with a default; write `${{C:=default}}`",
            ]
        );
    }

    #[test]
    fn places_are_those_of_the_original() {
        let text = "x: ${{PORT}} y ${{TWO_LINES}} z\nlast\n";
        let done = substitute(&"f".into(), text, &environment).expect("nothing is missing");
        assert_eq!(done.text(text), "x: 9080 y a\nb z\nlast\n");
        let original = |index, line, column| {
            let TextPosition { line, column } = done.original(index, TextPosition { line, column });
            (line, column)
        };
        assert_eq!(original(0, 1, 1), (1, 1));
        assert_eq!(original(4, 1, 5), (1, 4), "inside the value: where the expression begins");
        assert_eq!(original(8, 1, 9), (1, 14), "`y`");
        assert_eq!(original(12, 2, 1), (1, 16), "the value's second line");
        assert_eq!(original(14, 2, 3), (1, 31), "`z`");
        assert_eq!(original(16, 3, 1), (2, 1));
    }

    #[test]
    fn surrogate_pairs_of_json_become_their_character() {
        assert_eq!(
            replaced(r#"{"a": "\ud83d\ude00 \u00e9 \\ud83d\ude00"}"#),
            "{\"a\": \"😀 \\u00e9 \\\\ud83d\\ude00\"}"
        );
        assert_eq!(replaced(r#"{"a": "\ud83d"}"#), r#"{"a": "\ud83d"}"#);
        assert_eq!(replaced("a: '\\ud83d\\ude00'"), "a: '\\ud83d\\ude00'", "YAML says what a backslash means");
    }
}
