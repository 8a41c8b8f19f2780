//! The directives in effect at a place of the file: nginx inherits them from outer blocks.

use super::syntax::Directive;

/// The blocks around a place, outermost first.
#[derive(Clone)]
pub(super) struct BlockScope<'a> {
    levels: Vec<&'a [Directive]>,
}

impl<'a> BlockScope<'a> {
    pub(super) fn new(outermost: &'a [Directive]) -> BlockScope<'a> {
        BlockScope { levels: vec![outermost] }
    }

    pub(super) fn innermost(&self) -> &'a [Directive] {
        self.levels.last().copied().unwrap_or_default()
    }

    /// The scope with one more inner block.
    pub(super) fn inside(&self, block: &'a [Directive]) -> BlockScope<'a> {
        let mut levels = self.levels.clone();
        levels.push(block);
        BlockScope { levels }
    }

    /// The directive in effect, for directives that may occur once in a block.
    pub(super) fn last(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).pop()
    }

    /// The directives in effect: those of the innermost block that has any, as nginx inherits lists.
    pub(super) fn all(&self, name: &str) -> Vec<&'a Directive> {
        self.all_of(&[name])
    }

    /// The same for directives of several names that form one list, such as `allow` and `deny`, in the order of the file.
    pub(super) fn all_of(&self, names: &[&str]) -> Vec<&'a Directive> {
        let of = |level: &&'a [Directive]| -> Vec<&'a Directive> {
            level.iter().filter(|directive| names.contains(&directive.name.as_str())).collect()
        };
        self.levels.iter().rev().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// The first argument of the directive in effect.
    pub(super) fn value(&self, name: &str) -> Option<&'a str> {
        self.last(name).map(|directive| directive.argument(0))
    }

    /// Whether a switch is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.value(name) == Some("on")
    }

    /// Whether the innermost block is a `server`, and so directly in `http`.
    pub(super) fn is_of_server(&self) -> bool {
        self.levels.len() == 2
    }

    /// The scope of the `server` around this place.
    pub(super) fn of_server(&self) -> BlockScope<'a> {
        BlockScope { levels: self.levels.iter().take(2).copied().collect() }
    }

    /// The directives of the `server` around this place.
    pub(super) fn server(&self) -> &'a [Directive] {
        self.levels.get(1).copied().unwrap_or_default()
    }

    /// Every directive of these blocks, those of the outermost first.
    pub(super) fn every(&self) -> impl Iterator<Item = &'a Directive> + '_ {
        self.levels.iter().flat_map(|level| level.iter())
    }

    /// The directives of the innermost block only.
    pub(super) fn own(&self) -> &'a [Directive] {
        self.levels.last().copied().unwrap_or_default()
    }
}

/// Parses a size in nginx's syntax, to bytes.
pub(super) fn bytes(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<i64>().ok()?.checked_mul(factor)
}

/// Parses a time in nginx's syntax, to seconds: `90`, `1m30s`, `500ms`.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_alphabetic()).len();
        let factor = match &rest[..unit] {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            "M" => 2_592_000.0,
            "y" => 31_536_000.0,
            _ => return None,
        };
        sum += number * factor;
        rest = rest[unit..].trim_start();
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_those_of_nginx() {
        assert_eq!((bytes("8m"), bytes("512"), bytes("1K"), bytes("x")), (Some(8 << 20), Some(512), Some(1024), None));
        assert_eq!((seconds("90"), seconds("1m30s"), seconds("500ms")), (Some(90.0), Some(90.0), Some(0.5)));
        assert_eq!((seconds("1h 30m"), seconds(""), seconds("5x")), (Some(5_400.0), None, None));
    }
}
