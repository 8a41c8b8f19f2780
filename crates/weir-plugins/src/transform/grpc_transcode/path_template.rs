//! Templates of paths as the option `google.api.http` has them: `/v1/{name=shelves/*/books/*}:move`.

use std::fmt;

/// The most segments of a template.
const MOST_SEGMENTS: usize = 64;

/// A template that paths are compared with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RulePath {
    segments: Vec<TemplateSegment>,
    /// What follows the last colon.
    verb: Option<Box<[u8]>>,
    variables: Vec<PathVariable>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TemplateSegment {
    Literal(Box<[u8]>),
    /// `*`: one segment that is not empty.
    One,
    /// `**`: all that follow, or none.
    Rest,
}

/// A field, and the segments that are its value.
#[derive(Debug, PartialEq, Eq)]
struct PathVariable {
    /// The names of the field, with points between them.
    field: Box<str>,
    from: usize,
    /// `usize::MAX` if it has the rest of the path.
    to: usize,
}

impl PathVariable {
    fn is_one_segment(&self) -> bool {
        self.to == self.from + 1
    }
}

/// A field and its value.
pub(super) type BoundField<'t> = (&'t str, Vec<u8>);

/// Why a text is no template.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TemplateFault(&'static str);

impl fmt::Display for TemplateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl RulePath {
    pub(super) fn parse(text: &str) -> Result<RulePath, TemplateFault> {
        let rest = text.strip_prefix('/').ok_or(TemplateFault("does not begin with `/`"))?;
        let after_variables = rest.rfind('}').map_or(0, |end| end + 1);
        let last_segment = rest.rfind('/').map_or(0, |slash| slash + 1).max(after_variables);
        let verb = rest[last_segment..].find(':').map(|colon| last_segment + colon);
        let (rest, verb) = verb.map_or((rest, None), |colon| (&rest[..colon], Some(&rest[colon + 1..])));
        let mut template = RulePath { segments: Vec::new(), verb: None, variables: Vec::new() };
        if let Some(verb) = verb {
            check_literal(verb)?;
            template.verb = Some(verb.as_bytes().into());
        }
        let mut rest = Some(rest);
        while let Some(text) = rest {
            rest = match text.strip_prefix('{') {
                None => {
                    let (segment, rest) = text.split_once('/').map_or((text, None), |(one, rest)| (one, Some(rest)));
                    template.push(segment)?;
                    rest
                }
                Some(inner) => {
                    let (variable, rest) = inner.split_once('}').ok_or(TemplateFault("has a `{` without a `}`"))?;
                    template.push_variable(variable)?;
                    match rest.strip_prefix('/') {
                        Some(rest) => Some(rest),
                        None if rest.is_empty() => None,
                        None => return Err(TemplateFault("has no `/` after a `}`")),
                    }
                }
            };
        }
        Ok(template)
    }

    fn push(&mut self, segment: &str) -> Result<(), TemplateFault> {
        if self.segments.last() == Some(&TemplateSegment::Rest) {
            return Err(TemplateFault("has a `**` that is not at its end"));
        }
        if self.segments.len() == MOST_SEGMENTS {
            return Err(TemplateFault("has more than 64 segments"));
        }
        self.segments.push(match segment {
            "*" => TemplateSegment::One,
            "**" => TemplateSegment::Rest,
            literal => {
                check_literal(literal)?;
                TemplateSegment::Literal(literal.as_bytes().into())
            }
        });
        Ok(())
    }

    fn push_variable(&mut self, text: &str) -> Result<(), TemplateFault> {
        let (field, segments) = text.split_once('=').unwrap_or((text, "*"));
        if field.is_empty() {
            return Err(TemplateFault("has a variable without a name"));
        }
        let from = self.segments.len();
        segments.split('/').try_for_each(|segment| self.push(segment))?;
        let is_open = self.segments.last() == Some(&TemplateSegment::Rest);
        let to = if is_open { usize::MAX } else { self.segments.len() };
        self.variables.push(PathVariable { field: field.into(), from, to });
        Ok(())
    }

    /// The names of the fields that it sets.
    pub(super) fn fields(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(|variable| &*variable.field)
    }

    /// Orders templates so that of two that fit a path the one that says more of it comes first.
    pub(super) fn precedence(&self) -> impl Ord + '_ {
        (self.verb.is_none(), &self.segments, usize::MAX - self.segments.len())
    }

    /// The values of the fields, decoded, if the path fits.
    pub(super) fn bind(&self, path: &[u8]) -> Option<Vec<BoundField<'_>>> {
        let path = path.strip_prefix(b"/")?;
        let path = match &self.verb {
            None => path,
            Some(verb) => path.strip_suffix(&**verb)?.strip_suffix(b":")?,
        };
        let is_open = self.segments.last() == Some(&TemplateSegment::Rest);
        let fixed = self.segments.len() - usize::from(is_open);
        let mut rest = Some(path);
        let mut starts = Vec::with_capacity(fixed + 1);
        for segment in &self.segments[..fixed] {
            let text = rest?;
            starts.push(path.len() - text.len());
            let end = memchr::memchr(b'/', text);
            let found = &text[..end.unwrap_or(text.len())];
            let fits = match segment {
                TemplateSegment::Literal(literal) => **literal == *found,
                TemplateSegment::One | TemplateSegment::Rest => !found.is_empty(),
            };
            if !fits {
                return None;
            }
            rest = end.map(|end| &text[end + 1..]);
        }
        if rest.is_some() && !is_open {
            return None;
        }
        starts.push(path.len() - rest.map_or(0, <[u8]>::len));
        let value = |variable: &PathVariable| {
            let start = starts[variable.from].min(path.len());
            // Without the `/` before the segment that follows.
            let end = match starts.get(variable.to) {
                Some(next) if variable.to < fixed || rest.is_some() => next - 1,
                _ => path.len(),
            };
            decoded(&path[start..end.max(start)], variable.is_one_segment())
        };
        Some(self.variables.iter().map(|variable| (&*variable.field, value(variable))).collect())
    }
}

fn check_literal(text: &str) -> Result<(), TemplateFault> {
    match text {
        "" => Err(TemplateFault("has an empty segment")),
        text if text.contains(['{', '}', '*']) => Err(TemplateFault("has a `{`, a `}` or a `*` within a segment")),
        _ => Ok(()),
    }
}

/// A value without percent-encoding. In one that can have several segments, an encoded `/` stays encoded.
fn decoded(value: &[u8], is_one_segment: bool) -> Vec<u8> {
    if is_one_segment {
        return percent_encoding::percent_decode(value).collect();
    }
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = memchr::memmem::find(rest, b"%2").filter(|at| rest.len() > at + 2) {
        let (before, after) = rest.split_at(at);
        out.extend(percent_encoding::percent_decode(before));
        let is_slash = after[2].eq_ignore_ascii_case(&b'F');
        if is_slash {
            out.extend_from_slice(&after[..3]);
        } else {
            out.extend(percent_encoding::percent_decode(&after[..3]));
        }
        rest = &after[3..];
    }
    out.extend(percent_encoding::percent_decode(rest));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(template: &str, path: &str) -> Option<Vec<(String, String)>> {
        let template = RulePath::parse(template).expect("a template");
        let found = template.bind(path.as_bytes())?;
        Some(found.into_iter().map(|(field, value)| (field.into(), String::from_utf8_lossy(&value).into())).collect())
    }

    #[test]
    fn variables_get_the_segments_that_they_name() {
        for (template, path, want) in [
            ("/v1/users/{id}", "/v1/users/a%2Fb", &[("id", "a/b")][..]),
            ("/v1/{name=shelves/*/books/*}", "/v1/shelves/1/books/a%20b", &[("name", "shelves/1/books/a b")]),
            ("/v1/{name=shelves/*}/{book}", "/v1/shelves/1/2", &[("name", "shelves/1"), ("book", "2")]),
            ("/v1/{path=**}", "/v1/a/b%2fc/%41", &[("path", "a/b%2fc/A")]),
            ("/v1/{path=**}", "/v1", &[("path", "")]),
            ("/v1/{path=**}", "/v1/", &[("path", "")]),
            ("/v1/{a.b=x/**}", "/v1/x/y", &[("a.b", "x/y")]),
            ("/v1/{a.b=x/**}", "/v1/x", &[("a.b", "x")]),
            ("/v1/{id}:cancel", "/v1/7:cancel", &[("id", "7")]),
            ("/v1/{id}", "/v1/7:cancel", &[("id", "7:cancel")]),
            ("/v1/*/x", "/v1/a/x", &[]),
            ("/v1/{id=*}/**", "/v1/a/b/c", &[("id", "a")]),
            ("/v1/{id=*}/**", "/v1/a", &[("id", "a")]),
        ] {
            let want: Vec<(String, String)> =
                want.iter().map(|(field, value)| ((*field).into(), (*value).into())).collect();
            assert_eq!(bound(template, path), Some(want), "{template} {path}");
        }
    }

    #[test]
    fn paths_that_do_not_fit_are_told() {
        for (template, path) in [
            ("/v1/users/{id}", "/v1/users/"),
            ("/v1/users/{id}", "/v1/users"),
            ("/v1/users/{id}", "/v1/users/a/b"),
            ("/v1/users/{id}", "/v1/users/a/"),
            ("/v1/{id}:cancel", "/v1/7:close"),
            ("/v1/{id}:cancel", "/v1/:cancel"),
            ("/v1/{id}:cancel", "/v1/7"),
            ("/v1/{name=shelves/*}", "/v1/racks/1"),
            ("/v1", "/v1/"),
            ("/v1", "v1"),
        ] {
            assert_eq!(bound(template, path), None, "{template} {path}");
        }
    }

    #[test]
    fn texts_that_are_no_templates_are_refused() {
        for (text, fault) in [
            ("v1", "does not begin with `/`"),
            ("/v1//a", "has an empty segment"),
            ("/v1/", "has an empty segment"),
            ("/v1/{a", "has a `{` without a `}`"),
            ("/v1/{a}b", "has no `/` after a `}`"),
            ("/v1/{a}/{b=**}/c", "`**` that is not at its end"),
            ("/v1/a*", "within a segment"),
            ("/v1/{=*}", "a variable without a name"),
            ("/v1/a:", "has an empty segment"),
        ] {
            let told = RulePath::parse(text).expect_err(text).to_string();
            assert!(told.contains(fault), "{text}: {told}");
        }
    }

    #[test]
    fn the_template_that_says_more_comes_first() {
        let mut templates: Vec<RulePath> =
            ["/v1/**", "/v1/{id}", "/v1/users", "/v1/{id}:go", "/v1/users/*", "/v1/users/**"]
                .map(|text| RulePath::parse(text).expect("a template"))
                .into();
        templates.sort_by(|a, b| a.precedence().cmp(&b.precedence()));
        let first = |path: &str| templates.iter().position(|template| template.bind(path.as_bytes()).is_some());
        let text = |path: &str| format!("{:?}", templates[first(path).expect("one fits")]);
        let of = |text: &str| format!("{:?}", RulePath::parse(text).expect("a template"));
        assert_eq!(text("/v1/users"), of("/v1/users"));
        assert_eq!(text("/v1/users/a"), of("/v1/users/*"));
        assert_eq!(text("/v1/users/a/b"), of("/v1/users/**"));
        assert_eq!(text("/v1/a"), of("/v1/{id}"));
        assert_eq!(text("/v1/a:go"), of("/v1/{id}:go"));
        assert_eq!(text("/v1/a/b"), of("/v1/**"));
    }

    #[test]
    fn no_template_and_no_path_panics() {
        let parts = ["/", "a", "{a}", "{b=*}", "{c=**}", "**", "*", ":v", "{d=x/*}", "%2F", "%", "%2", "//"];
        let mut seed = 7_u64;
        let mut next = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % bound
        };
        for _ in 0..20_000 {
            let mut text = |most: usize| (0..next(most)).map(|_| parts[next(parts.len())]).collect::<String>();
            let (template, path) = (text(8), text(8));
            if let Ok(template) = RulePath::parse(&template) {
                let _ = template.bind(path.as_bytes());
            }
        }
    }
}
