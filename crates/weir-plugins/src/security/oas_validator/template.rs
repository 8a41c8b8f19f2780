//! Templates of paths: `/pets/{id}`, `/files/{name}.{kind}`.

use percent_encoding::percent_decode;

/// The most segments of a template.
const MOST_SEGMENTS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SegmentPart {
    Literal(String),
    Parameter(String),
}

/// A path with parameters. The order is that in which templates are tried: the most specific first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathTemplate {
    segments: Vec<Vec<SegmentPart>>,
}

/// The segments of a path, decoded. An encoded slash is part of a segment.
pub(super) fn segments(path: &[u8]) -> Vec<String> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.split(|byte| *byte == b'/').map(|part| percent_decode(part).decode_utf8_lossy().into_owned()).collect()
}

impl PathTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// If its braces are not in pairs, or it is too long.
    pub(super) fn parse(text: &str) -> Result<PathTemplate, String> {
        if !text.starts_with('/') {
            return Err("a path begins with `/`".to_owned());
        }
        let segments: Vec<_> = text[1..].split('/').map(parts).collect::<Result<_, _>>()?;
        if segments.len() > MOST_SEGMENTS {
            return Err(format!("has more than {MOST_SEGMENTS} segments"));
        }
        Ok(PathTemplate { segments })
    }

    pub(super) fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// By this, templates are sorted: at the first segment in which they differ, literal text comes before text with parameters, and
    /// that before a parameter alone.
    pub(super) fn rank(&self) -> Vec<(u8, usize)> {
        let literal = |part: &SegmentPart| if let SegmentPart::Literal(text) = part { text.len() } else { 0 };
        let rank = |parts: &Vec<SegmentPart>| match parts.as_slice() {
            [] | [SegmentPart::Literal(_)] => (0, 0),
            [SegmentPart::Parameter(_)] => (2, 0),
            mixed => (1, usize::MAX - mixed.iter().map(literal).sum::<usize>()),
        };
        self.segments.iter().map(rank).collect()
    }

    /// The values of the parameters, if the segments of a path fit.
    pub(super) fn fit<'a>(&'a self, path: &[String]) -> Option<Vec<(&'a str, String)>> {
        if path.len() != self.segments.len() {
            return None;
        }
        let mut values = Vec::new();
        for (parts, segment) in self.segments.iter().zip(path) {
            fit_segment(parts, segment, &mut values)?;
        }
        Some(values)
    }
}

fn parts(segment: &str) -> Result<Vec<SegmentPart>, String> {
    let mut parts = Vec::new();
    let mut rest = segment;
    while !rest.is_empty() {
        let (literal, after) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
        if literal.contains('}') {
            return Err("has a `}` without its `{`".to_owned());
        }
        if !literal.is_empty() {
            let literal = percent_decode(literal.as_bytes()).decode_utf8_lossy();
            parts.push(SegmentPart::Literal(literal.into_owned()));
        }
        let Some(after) = after.strip_prefix('{') else { break };
        let (name, after) = after.split_once('}').ok_or("has a `{` without its `}`")?;
        if matches!(parts.last(), Some(SegmentPart::Parameter(_))) {
            return Err("has two parameters with nothing between them".to_owned());
        }
        parts.push(SegmentPart::Parameter(name.to_owned()));
        rest = after;
    }
    Ok(parts)
}

/// A parameter takes at least one character, and as few as possible; the last takes all up to the end of the segment.
fn fit_segment<'a>(parts: &'a [SegmentPart], segment: &str, values: &mut Vec<(&'a str, String)>) -> Option<()> {
    let mut rest = segment;
    let mut parts = parts.iter().peekable();
    while let Some(part) = parts.next() {
        let name = match part {
            SegmentPart::Literal(text) => {
                rest = rest.strip_prefix(text.as_str())?;
                continue;
            }
            SegmentPart::Parameter(name) => name,
        };
        let first = rest.chars().next()?.len_utf8();
        let end = match parts.next() {
            None => rest.len(),
            // What ends the segment is looked for at its end.
            Some(SegmentPart::Literal(text)) if parts.peek().is_none() => {
                let end = rest.strip_suffix(text.as_str())?.len();
                values.push((name, rest[..end].to_owned()));
                return (end >= first).then_some(());
            }
            Some(SegmentPart::Literal(text)) => {
                let end = first + rest[first..].find(text.as_str())?;
                values.push((name, rest[..end].to_owned()));
                rest = &rest[end + text.len()..];
                continue;
            }
            Some(SegmentPart::Parameter(_)) => return None,
        };
        values.push((name, rest[..end].to_owned()));
        rest = "";
    }
    rest.is_empty().then_some(())
}
