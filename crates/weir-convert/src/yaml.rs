//! Writes YAML as a person would: short lists and maps on one line, others in blocks.

use std::fmt::Write;

/// A value of a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Yaml {
    Null,
    Text(String),
    Integer(i64),
    Decimal(f64),
    Boolean(bool),
    List(Vec<Yaml>),
    Map(YamlMembers),
}

/// The members of a map, in order.
pub(crate) type YamlMembers = Vec<(String, Yaml)>;

/// The most characters in a line; longer lists and maps are written in blocks.
const WIDTH: usize = 100;

impl Yaml {
    pub(crate) fn text(text: impl Into<String>) -> Yaml {
        Yaml::Text(text.into())
    }

    pub(crate) fn texts<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Yaml {
        Yaml::List(texts.into_iter().map(|text| Yaml::text(text.as_ref())).collect())
    }

    /// A number; without decimals if it is whole.
    pub(crate) fn number(value: f64) -> Yaml {
        if value.fract() == 0.0 { Yaml::Integer(value as i64) } else { Yaml::Decimal(value) }
    }

    /// A map with these members.
    pub(crate) fn map<const N: usize>(members: [(&str, Yaml); N]) -> Yaml {
        Yaml::Map(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Yaml::List(items) if items.is_empty())
            || matches!(self, Yaml::Map(members) if members.is_empty())
    }

    /// The members of a map; empty for other values.
    pub(crate) fn members(&self) -> &[(String, Yaml)] {
        if let Yaml::Map(members) = self { members } else { &[] }
    }

    /// A member of a map.
    pub(crate) fn member(&self, name: &str) -> Option<&Yaml> {
        self.members().iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The items of a list; empty for other values.
    pub(crate) fn items(&self) -> &[Yaml] {
        if let Yaml::List(items) = self { items } else { &[] }
    }

    /// Whether it is a list with this text.
    pub(crate) fn has_text(&self, wanted: &str) -> bool {
        matches!(self, Yaml::List(items) if items.iter().any(|item| matches!(item, Yaml::Text(text) if text == wanted)))
    }

    /// The value on one line.
    pub(crate) fn flow(&self) -> String {
        match self {
            Yaml::Null => "null".to_owned(),
            Yaml::Text(text) => scalar(text),
            Yaml::Integer(number) => number.to_string(),
            Yaml::Decimal(number) => number.to_string(),
            Yaml::Boolean(value) => value.to_string(),
            Yaml::List(items) => format!("[{}]", items.iter().map(Yaml::flow).collect::<Vec<_>>().join(", ")),
            Yaml::Map(members) if members.is_empty() => "{}".to_owned(),
            Yaml::Map(members) => {
                let members = members.iter().map(|(name, value)| format!("{}: {}", scalar(name), value.flow()));
                format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Whether the value fits in a line from `column`, and is not nested too deeply to be readable there.
    fn fits(&self, column: usize) -> bool {
        self.depth() <= 2 && column + self.flow().chars().count() <= WIDTH
    }

    fn depth(&self) -> usize {
        match self {
            Yaml::List(items) => 1 + items.iter().map(Yaml::depth).max().unwrap_or(0),
            Yaml::Map(members) => 1 + members.iter().map(|(_, value)| value.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Appends the value of a member whose `name:` is at the end of `out`, and ends the line.
    pub(crate) fn write_member(&self, out: &mut String, indent: usize, name: &str) {
        let is_block = !self.is_empty() && matches!(self, Yaml::List(_) | Yaml::Map(_));
        if !is_block || self.fits(indent + name.len() + 2) {
            let _ = writeln!(out, " {}", self.flow());
            return;
        }
        out.push('\n');
        match self {
            Yaml::List(items) => items.iter().for_each(|item| item.write_item(out, indent + 2)),
            Yaml::Map(members) => write_members(members, out, indent + 2),
            _ => unreachable!("scalars stand on one line"),
        }
    }

    /// Appends an item of a list in a block.
    pub(crate) fn write_item(&self, out: &mut String, indent: usize) {
        let blanks = " ".repeat(indent);
        match self {
            Yaml::Map(members) if !members.is_empty() && !self.fits(indent + 2) => {
                let mut block = String::new();
                write_members(members, &mut block, indent + 2);
                let _ = write!(out, "{blanks}- {}", block.trim_start());
            }
            _ => {
                let _ = writeln!(out, "{blanks}- {}", self.flow());
            }
        }
    }
}

pub(crate) fn write_members(members: &[(String, Yaml)], out: &mut String, indent: usize) {
    for (name, value) in members {
        let name = scalar(name);
        let _ = write!(out, "{}{name}:", " ".repeat(indent));
        value.write_member(out, indent, &name);
    }
}

/// Text as a scalar: plain if that is parsed as the same text, quoted otherwise.
fn scalar(text: &str) -> String {
    if is_plain(text) {
        return text.to_owned();
    }
    if text.chars().all(|char| !char.is_control()) && (text.contains('\\') || text.contains('"')) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            char if char.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", char as u32);
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

/// Words that YAML 1.1 parses as other types than text.
const WORDS: [&str; 10] = ["true", "false", "yes", "no", "on", "off", "null", "~", "y", "n"];

fn is_plain(text: &str) -> bool {
    let is_word = |char: char| char.is_ascii_alphanumeric() || "_/$.-".contains(char);
    let begins = text.starts_with(|char: char| char.is_ascii_alphabetic() || "/$_".contains(char));
    let inside = text.chars().all(|char| is_word(char) || " *:=".contains(char));
    let is_key_like = text.contains(": ") || text.contains(" #") || text.ends_with(':') || text.ends_with(' ');
    begins && inside && !is_key_like && !text.contains("${{") && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_where_it_would_be_read_as_something_else() {
        for plain in ["orders", "/orders/*", "$remote_addr", "https://$host$request_uri", "a b", "X-Real-IP"] {
            assert_eq!(scalar(plain), plain);
        }
        for (text, written) in [
            ("on", "\"on\""),
            ("No", "\"No\""),
            ("10", "\"10\""),
            ("0.5", "\"0.5\""),
            ("", "\"\""),
            ("*", "\"*\""),
            ("*.example.com", "\"*.example.com\""),
            ("a: b", "\"a: b\""),
            ("a, b", "\"a, b\""),
            ("say \"it's\"", "'say \"it''s\"'"),
            ("^/a\\.(\\d+)$", "'^/a\\.(\\d+)$'"),
            ("two\nlines\\", "\"two\\nlines\\\\\""),
            ("127.0.0.1:80", "\"127.0.0.1:80\""),
        ] {
            assert_eq!(scalar(text), written);
        }
    }

    #[test]
    fn short_values_stand_on_one_line_and_long_ones_in_blocks() {
        let short = Yaml::map([("rate", Yaml::Decimal(0.5)), ("nodelay", Yaml::Boolean(true))]);
        let long = Yaml::texts((0..20).map(|number| format!("a-long-name-{number}")));
        let mut out = String::new();
        write_members(&[("limit-req".to_owned(), short), ("hosts".to_owned(), long)], &mut out, 2);
        assert!(out.starts_with("  limit-req: { rate: 0.5, nodelay: true }\n  hosts:\n    - a-long-name-0\n"), "{out}");
        assert!(out.ends_with("    - a-long-name-19\n"), "{out}");
    }
}
