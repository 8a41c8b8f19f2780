//! `sub_filter`, and `subs_filter` of the module substitutions, as `filters` of `response-rewrite`.

use super::Conversion;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables::{names, numbered};
use crate::pattern::{regex_quoted, supported};
use crate::yaml::{Yaml, YamlMembers};

const PLUGIN: &str = "response-rewrite";
/// The media type whose responses are changed in any case.
const USUAL_TYPE: &str = "text/html";

/// A replacement, as an entry of `filters`.
struct TextReplacement {
    regex: String,
    text: String,
    is_global: bool,
    ignores_case: bool,
}

/// Adds the replacements in effect to the changes of fields, in the one plugin for both.
pub(super) fn with_filters(
    conversion: &mut Conversion,
    scope: &BlockScope,
    fields: Option<(String, Yaml)>,
) -> Option<(String, Yaml)> {
    let Some((first, filters)) = replacements(conversion, scope) else { return fields };
    let condition = of_types(scope, &first.name);
    let mut options = match fields {
        None => YamlMembers::new(),
        Some((_, Yaml::Map(options))) if condition.is_none() && options.iter().all(|(name, _)| name != "vars") => {
            options
        }
        Some(fields) => {
            let text = "`response-rewrite` has one condition for fields and texts, and here these are for different responses; \
                        write it with `filters` in a route for the paths with the texts";
            conversion.lost(&first.place, format!("`{}`: {text}", first.head()));
            return Some(fields);
        }
    };
    let text = format!(
        "`{}`: the response is held until it is complete, and one of more than 64 MiB is replaced by 502; event streams pass \
         unchanged",
        first.head()
    );
    conversion.differs_here_first("substitutions", &first.place, text);
    options.extend(condition.map(|condition| ("vars".to_owned(), condition)));
    options.push(("filters".to_owned(), Yaml::List(filters.iter().map(TextReplacement::yaml).collect())));
    options.push(("streams".to_owned(), Yaml::text("pass")));
    Some((PLUGIN.to_owned(), Yaml::Map(options)))
}

impl TextReplacement {
    fn yaml(&self) -> Yaml {
        let mut members = vec![
            ("regex".to_owned(), Yaml::text(&self.regex)),
            ("replace".to_owned(), Yaml::text(&self.text)),
            ("scope".to_owned(), Yaml::text(if self.is_global { "global" } else { "once" })),
        ];
        if self.ignores_case {
            members.push(("options".to_owned(), Yaml::text("i")));
        }
        Yaml::Map(members)
    }
}

/// The replacements in effect, and their first directive.
fn replacements<'a>(
    conversion: &mut Conversion,
    scope: &BlockScope<'a>,
) -> Option<(&'a Directive, Vec<TextReplacement>)> {
    let own = scope.all("sub_filter");
    let others = scope.all("subs_filter");
    let first = *own.first().or(others.first())?;
    // By default, each text is replaced once.
    let is_global = scope.value("sub_filter_once") == Some("off");
    let mut found = Vec::new();
    for directive in &own {
        let (text, replacement) = (directive.argument(0), directive.argument(1));
        if is_fixed(conversion, directive) {
            let (regex, text) = (regex_quoted(text), replacement.replace('$', "$$"));
            found.push((*directive, TextReplacement { regex, text, is_global, ignores_case: true }));
        }
    }
    tell_order(conversion, &own);
    let are_alike = own.is_empty() || of_types(scope, "sub_filter") == of_types(scope, "subs_filter");
    for directive in others {
        if !are_alike {
            let text = format!("`{}`: it is for other media types than `sub_filter`", directive.head());
            conversion.lost(&directive.place, text);
            continue;
        }
        found.extend(of_module(conversion, directive).map(|replacement| (directive, replacement)));
    }
    let first = found.first().map_or(first, |(directive, _)| *directive);
    let found: Vec<TextReplacement> = found.into_iter().map(|(_, replacement)| replacement).collect();
    (!found.is_empty()).then_some((first, found))
}

/// Whether neither of the two texts has a variable, which is reported otherwise.
fn is_fixed(conversion: &mut Conversion, directive: &Directive) -> bool {
    let texts = directive.arguments.iter().take(2);
    let is_fixed = texts.map(String::as_str).all(|text| names(text).next().is_none());
    if !is_fixed {
        let text = format!("`{}`: `filters` of `response-rewrite` have no variables", directive.head());
        conversion.lost(&directive.place, text);
    }
    is_fixed
}

/// nginx looks for all texts at a time; here they are replaced one after the other.
fn tell_order(conversion: &mut Conversion, filters: &[&Directive]) {
    for (position, directive) in filters.iter().enumerate() {
        let has = |place: usize, later: &&&Directive| {
            let text = directive.argument(place).to_ascii_lowercase();
            let sought = later.argument(0).to_ascii_lowercase();
            text.contains(&sought) || place == 0 && sought.contains(&text)
        };
        let later = &filters[position + 1..];
        if let Some(later) = later.iter().find(|later| has(0, later) || has(1, later)) {
            let text = format!("`{}`: it is applied to what `{}` has left or put in", later.head(), directive.head());
            conversion.differs(&later.place, text);
        }
    }
}

/// A `subs_filter`, with the flags `g`, `i`, `o` and `r`.
fn of_module(conversion: &mut Conversion, directive: &Directive) -> Option<TextReplacement> {
    let flags = directive.argument(2);
    let is_regex = flags.contains('r');
    // In an expression, `$` is an end, and in its replacement, a group.
    if !is_regex && !is_fixed(conversion, directive) {
        return None;
    }
    let replacement = directive.argument(1);
    let (regex, has_variables) = match is_regex {
        true => (supported(directive.argument(0)), names(replacement).any(|name| name.parse::<u8>().is_err())),
        false => (Some(regex_quoted(directive.argument(0))), false),
    };
    let Some(regex) = regex.filter(|_| !has_variables) else {
        let why = match has_variables {
            true => "`filters` of `response-rewrite` have no variables",
            false => "look-around and back-references are not supported",
        };
        conversion.lost(&directive.place, format!("`{}`: {why}", directive.head()));
        return None;
    };
    if is_regex {
        let text =
            format!("`{}`: the expression is matched against the whole text, not line by line", directive.head());
        conversion.differs(&directive.place, text);
    }
    let (is_global, ignores_case) = (!flags.contains('o'), flags.contains('i'));
    let text = if is_regex { numbered(replacement, None) } else { replacement.replace('$', "$$") };
    Some(TextReplacement { regex, text, is_global, ignores_case })
}

/// The condition on the media type of responses; `None` if those of every type are changed. `filter`: the name of the directive.
fn of_types(scope: &BlockScope, filter: &str) -> Option<Yaml> {
    let types = scope.last(&format!("{filter}_types"));
    let listed = types.map(|types| types.arguments.as_slice()).unwrap_or_default();
    if listed.iter().any(|kind| kind == "*") {
        return None;
    }
    let mut kinds = vec![regex_quoted(USUAL_TYPE)];
    kinds.extend(listed.iter().filter(|kind| *kind != USUAL_TYPE).map(|kind| regex_quoted(kind)));
    let pattern = format!("^(?:{}) *(?:;|$)", kinds.join("|"));
    Some(Yaml::List(vec![Yaml::texts(["sent_http_content_type", "~*", &pattern])]))
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// The options of `response-rewrite`, and the findings.
    fn converted(inside: &str) -> (String, Vec<String>) {
        let text = format!("server {{ proxy_redirect off; location / {{ {inside} proxy_pass http://a; }} }}");
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let found: Vec<String> = converted.findings.iter().map(ToString::to_string).collect();
        let yaml = converted.yaml().replace(['{', '}', '"'], " ");
        let plain = yaml.split_whitespace().collect::<Vec<_>>().join(" ");
        (plain.split_once("response-rewrite:").map_or_else(String::new, |(_, options)| options.to_owned()), found)
    }

    #[test]
    fn texts_are_replaced_in_responses_of_their_types() {
        let held = "t:1: behaves differently: `sub_filter a.b c`: the response is held until it is complete, and one of more than 64 MiB \
                    is replaced by 502; event streams pass unchanged";
        let (options, found) = converted("sub_filter a.b c; sub_filter_types text/css;");
        assert!(
            options.contains(r"vars: [[sent_http_content_type, ~* , ^(?:text/html|text/css) *(?:;|$) ]]"),
            "{options}"
        );
        assert!(options.contains(r"regex: 'a\.b', replace: c, scope: once, options: i"), "{options}");
        assert!(options.contains("streams: pass"), "{options}");
        assert_eq!(found, [held]);
        let (options, found) = converted("sub_filter a.b c; sub_filter_once off; sub_filter_types *;");
        assert!(options.contains("scope: global") && !options.contains("vars"), "{options}");
        assert_eq!(found, [held]);
    }

    #[test]
    fn fields_and_texts_are_changed_together_where_both_are_for_all_responses() {
        let fields = "add_header X-A b always; sub_filter a c;";
        let (options, found) = converted(fields);
        assert!(!options.contains("filters"), "{options}");
        assert!(
            found[0].contains("not converted: `sub_filter a c`: `response-rewrite` has one condition"),
            "{found:?}"
        );
        let (options, _) = converted(&format!("{fields} sub_filter_types *;"));
        assert!(options.contains("add: X-A: b") && options.contains("filters"), "{options}");
    }

    #[test]
    fn a_number_of_a_group_has_one_digit() {
        let (options, _) = converted("subs_filter (a) $12 r;");
        assert!(options.contains("replace: ${1}2") || options.contains("replace: $ 1 2"), "{options}");
    }

    #[test]
    fn replacements_that_the_filters_cannot_do_are_told() {
        for (inside, told) in [
            ("sub_filter a $host;", "`sub_filter a $host`: `filters` of `response-rewrite` have no variables"),
            ("sub_filter a b; sub_filter b c;", "`sub_filter b c`: it is applied to what `sub_filter a b` has left"),
            ("sub_filter ab c; sub_filter b d;", "`sub_filter b d`: it is applied to what `sub_filter ab c` has left"),
            ("subs_filter (?=a)b c r;", "`subs_filter (?=a)b c r`: look-around and back-references are not supported"),
            ("subs_filter a$ $host r;", "have no variables"),
            ("subs_filter (a) $1 ri;", "the expression is matched against the whole text"),
            ("sub_filter a b; sub_filter_types *; subs_filter a b;", "`subs_filter a b`: it is for other media types"),
        ] {
            let found = converted(inside).1;
            assert!(found.iter().any(|found| found.contains(told)), "{inside}: {found:?}");
        }
    }
}
