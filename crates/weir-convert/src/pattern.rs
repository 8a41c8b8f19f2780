//! Regular expressions in converted configurations.

use regex::Regex;

/// A regular expression that matches exactly this text.
pub(crate) fn regex_quoted(text: &str) -> String {
    text.chars()
        .flat_map(|char| ["\\.+*?()|[]{}^$".contains(char).then_some('\\'), Some(char)].into_iter().flatten())
        .collect()
}

/// A regular expression that matches the whole path if `pattern` is found in it, since `rewrite` replaces the whole path.
pub(crate) fn whole(pattern: &str, ignores_case: bool) -> String {
    let flags = if ignores_case { "(?i)" } else { "" };
    if pattern.starts_with('^') && pattern.ends_with('$') && !pattern.contains('|') {
        return format!("{flags}{pattern}");
    }
    let (begin, rest) = match pattern.strip_prefix('^') {
        Some(rest) if !pattern.contains('|') => ("^", rest),
        _ => ("^.*?", pattern),
    };
    match rest.strip_suffix('$') {
        Some(inner) if !pattern.contains('|') => format!("{flags}{begin}(?:{inner})$"),
        _ => format!("{flags}{begin}(?:{rest}).*$"),
    }
}

/// The expression as Weir reads it; `None` if it needs what Weir's expressions lack, such as back-references. A negative look-ahead
/// for texts, behind which anything may follow, is written without one.
pub(crate) fn supported(pattern: &str) -> Option<String> {
    let written = without_look_ahead(pattern).unwrap_or_else(|| pattern.to_owned());
    Regex::new(&written).is_ok().then_some(written)
}

/// `^/(?!api|static)(.*)$` as `^/((?:$|[^as]|a(?:$|[^p]|p...)|s...).*)$`.
fn without_look_ahead(pattern: &str) -> Option<String> {
    let (before, rest) = pattern.split_once("(?!")?;
    let (inside, after) = rest.split_once(')')?;
    let texts: Option<Vec<Vec<char>>> = inside.split('|').map(plain_text).collect();
    let texts = texts.filter(|texts| texts.iter().all(|text| !text.is_empty()))?;
    let texts: Vec<&[char]> = texts.iter().map(Vec::as_slice).collect();
    let (any, some) = (begins_differently(&texts, true), begins_differently(&texts, false));
    let (opening, rest) = after.strip_prefix('(').map_or(("", after), |rest| ("(", rest));
    let (written, rest) = match (rest.strip_prefix(".*"), rest.strip_prefix(".+")) {
        (Some(rest), _) => (format!("{any}.*"), rest),
        (_, Some(rest)) => (format!("{some}.*"), rest),
        (None, None) if after.is_empty() => (any, ""),
        (None, None) => return None,
    };
    let is_end = match opening {
        "" => ["", "$"].contains(&rest),
        _ => [")", ")$"].contains(&rest),
    };
    is_end.then(|| format!("{before}{opening}{written}{rest}"))
}

/// The text that an expression without special characters matches.
fn plain_text(pattern: &str) -> Option<Vec<char>> {
    let mut text = Vec::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => text.push(chars.next().filter(char::is_ascii_punctuation)?),
            char if char.is_ascii_alphanumeric() || "/_-%~".contains(char) => text.push(char),
            _ => return None,
        }
    }
    Some(text)
}

/// An expression for the first characters of a text that begins with none of these. `may_end`: it may end before it differs.
fn begins_differently(texts: &[&[char]], may_end: bool) -> String {
    let mut firsts: Vec<char> = texts.iter().filter_map(|text| text.first().copied()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let listed: String = firsts.iter().map(|char| regex::escape(&char.to_string())).collect();
    let mut ways = Vec::new();
    if may_end {
        ways.push("$".to_owned());
    }
    ways.push(format!("[^{listed}]"));
    for first in firsts {
        let rests: Vec<&[char]> =
            texts.iter().filter(|text| text.first() == Some(&first)).map(|text| &text[1..]).collect();
        if rests.iter().all(|rest| !rest.is_empty()) {
            ways.push(format!("{}{}", regex::escape(&first.to_string()), begins_differently(&rests, true)));
        }
    }
    format!("(?:{})", ways.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_look_ahead_is_written_without_one() {
        for (pattern, matched, others) in [
            (
                r"/\.(?!well-known\/)",
                &["/.git", "/.", "/.well-know", "/.well-knownx"][..],
                &["/.well-known/x", "/x"][..],
            ),
            (
                "^/(?!api|app/|static)(.*)$",
                &["/", "/x", "/ap", "/app", "/stati"],
                &["/api", "/apix", "/app/", "/static/x"],
            ),
            ("^/(?!a).+", &["/b", "/bc"], &["/", "/a", "/ab"]),
        ] {
            let expression = Regex::new(&supported(pattern).expect(pattern)).expect(pattern);
            for text in matched {
                assert!(expression.is_match(text), "{pattern} {expression} {text}");
            }
            for text in others {
                assert!(!expression.is_match(text), "{pattern} {expression} {text}");
            }
        }
        let groups = Regex::new(&supported("^/(?!api)(.*)$").expect("supported")).expect("correct");
        assert_eq!(groups.captures("/ab/c").map(|groups| groups[1].to_owned()), Some("ab/c".to_owned()));
        for pattern in [r"(\w+)\1", "(?=a)b", "^/(?!a)b", "(?!a.c)", "(?<!a)b", "(?!)"] {
            assert_eq!(supported(pattern), None, "{pattern}");
        }
        assert_eq!(supported(r"\.php$").as_deref(), Some(r"\.php$"));
    }

    #[test]
    fn an_expression_of_a_rewrite_takes_the_whole_path() {
        assert_eq!(whole("^/a/(.*)$", false), "^/a/(.*)$");
        assert_eq!(whole("^/a/(.*)", false), "^(?:/a/(.*)).*$");
        assert_eq!(whole("a", true), "(?i)^.*?(?:a).*$");
        assert_eq!(whole("^/a|b$", false), "^.*?(?:^/a|b$).*$");
    }
}
