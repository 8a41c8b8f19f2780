//! Booleans, numbers, times and sizes.

use std::fmt::Display;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Kind, Or, WithDefault, members, number_or_text};
use crate::keys::schema::Definitions;
use crate::text::read::NodeReader;
use crate::text::units::{self, LONGEST};

/// `true` or `false`.
pub struct Flag;

pub const fn flag() -> Flag {
    Flag
}

impl Flag {
    pub const fn or(self, default: bool) -> Or<Flag> {
        Or { kind: self, default }
    }
}

impl Kind for Flag {
    type Value = bool;

    fn read(&self, at: &NodeReader) -> Option<bool> {
        at.boolean()
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        members(json!({ "type": "boolean" }))
    }

    fn form(&self) -> String {
        "`true` or `false`".to_owned()
    }
}

impl WithDefault for Flag {
    type Default = bool;

    fn value(&self, default: bool) -> bool {
        default
    }

    fn written(&self, default: bool) -> Value {
        default.into()
    }
}

/// A whole number of a range.
pub struct Whole<T> {
    least: T,
    most: T,
    /// The advice for a word in place of the number.
    instead_of_word: Option<&'static str>,
}

pub const fn whole<T: Copy>(least: T, most: T) -> Whole<T> {
    Whole { least, most, instead_of_word: None }
}

/// A type of whole numbers.
pub trait WholeNumber: TryFrom<i64> + Into<i64> + PartialOrd + Display + Copy + Sync {}

impl<T: TryFrom<i64> + Into<i64> + PartialOrd + Display + Copy + Sync> WholeNumber for T {}

impl<T: WholeNumber> Whole<T> {
    /// `advice` for a word such as `unlimited` in place of the number.
    pub const fn instead_of_word(self, advice: &'static str) -> Whole<T> {
        Whole { instead_of_word: Some(advice), ..self }
    }

    pub const fn or(self, default: T) -> Or<Whole<T>> {
        Or { kind: self, default }
    }
}

impl<T: WholeNumber> Kind for Whole<T> {
    type Value = T;

    fn read(&self, at: &NodeReader) -> Option<T> {
        match self.instead_of_word {
            Some(advice) => at.integer_advising(self.least..=self.most, advice),
            None => at.integer(self.least..=self.most),
        }
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        let (least, most): (i64, i64) = (self.least.into(), self.most.into());
        members(json!({ "type": "integer", "minimum": least, "maximum": most }))
    }

    fn form(&self) -> String {
        format!("whole number, {} to {}", self.least, self.most)
    }
}

impl<T: WholeNumber> WithDefault for Whole<T> {
    type Default = T;

    fn value(&self, default: T) -> T {
        default
    }

    fn written(&self, default: T) -> Value {
        let default: i64 = default.into();
        default.into()
    }
}

/// A whole number without bounds.
pub struct AnyWhole;

pub const fn any_whole() -> AnyWhole {
    AnyWhole
}

impl AnyWhole {
    pub const fn or(self, default: i64) -> Or<AnyWhole> {
        Or { kind: self, default }
    }
}

impl Kind for AnyWhole {
    type Value = i64;

    fn read(&self, at: &NodeReader) -> Option<i64> {
        at.whole()
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        members(json!({ "type": "integer" }))
    }

    fn form(&self) -> String {
        "whole number".to_owned()
    }
}

impl WithDefault for AnyWhole {
    type Default = i64;

    fn value(&self, default: i64) -> i64 {
        default
    }

    fn written(&self, default: i64) -> Value {
        default.into()
    }
}

/// A time: a number of seconds, or a text such as `500ms`.
pub struct Time {
    may_be_zero: bool,
    /// The shortest and the longest.
    range: Option<(Duration, Duration)>,
}

/// A time of more than zero.
pub const fn time() -> Time {
    Time { may_be_zero: false, range: None }
}

/// A time that may be zero.
pub const fn any_time() -> Time {
    Time { may_be_zero: true, range: None }
}

impl Time {
    pub const fn between(self, least: Duration, most: Duration) -> Time {
        Time { range: Some((least, most)), ..self }
    }

    pub const fn or(self, default: Duration) -> Or<Time> {
        Or { kind: self, default }
    }
}

impl Kind for Time {
    type Value = Duration;

    fn read(&self, at: &NodeReader) -> Option<Duration> {
        let time = if self.may_be_zero { at.any_duration()? } else { at.duration()? };
        match self.range {
            Some((least, most)) if !(least..=most).contains(&time) => {
                at.report(format!("must be from {} to {} seconds", least.as_secs_f64(), most.as_secs_f64()));
                None
            }
            _ => Some(time),
        }
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        let bound = if self.may_be_zero { "minimum" } else { "exclusiveMinimum" };
        let number = match self.range {
            None => json!({ "type": "number", bound: 0, "maximum": LONGEST.as_secs() }),
            Some((least, most)) => {
                json!({ "type": "number", "minimum": least.as_secs_f64(), "maximum": most.as_secs_f64() })
            }
        };
        let text = json!({ "type": "string", "pattern": units::DURATION_PATTERN });
        number_or_text(number, text, "s")
    }

    fn form(&self) -> String {
        let written = units::written_time;
        self.range.map_or("time".to_owned(), |(least, most)| format!("time, {} to {}", written(least), written(most)))
    }
}

impl WithDefault for Time {
    type Default = Duration;

    fn value(&self, default: Duration) -> Duration {
        default
    }

    fn written(&self, default: Duration) -> Value {
        units::written_time(default).into()
    }
}

/// A size: a number of bytes, or a text such as `8MiB`.
pub struct ByteSize {
    least: u64,
    most: u64,
}

/// A size of this range, in bytes.
pub const fn size(least: u64, most: u64) -> ByteSize {
    ByteSize { least, most }
}

impl ByteSize {
    pub const fn or(self, default: u64) -> Or<ByteSize> {
        Or { kind: self, default }
    }
}

impl Kind for ByteSize {
    type Value = u64;

    fn read(&self, at: &NodeReader) -> Option<u64> {
        let size = at.size()?;
        let ByteSize { least, most } = *self;
        if (least..=most).contains(&size) {
            return Some(size);
        }
        at.report(match most {
            u64::MAX => format!("{size} bytes are too few; the minimum is {least}"),
            _ => format!("{size} bytes are out of range; {least} to {most} are allowed"),
        });
        None
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        let mut number = json!({ "type": "integer", "minimum": self.least });
        if self.most < u64::MAX {
            number["maximum"] = self.most.into();
        }
        number_or_text(number, json!({ "type": "string", "pattern": units::SIZE_PATTERN }), "bytes")
    }

    fn form(&self) -> String {
        let written = units::written_size;
        match (self.least, self.most) {
            (0, u64::MAX) => "size".to_owned(),
            (least, u64::MAX) => format!("size, at least {}", written(least)),
            (least, most) => format!("size, {} to {}", written(least), written(most)),
        }
    }
}

impl WithDefault for ByteSize {
    type Default = u64;

    fn value(&self, default: u64) -> u64 {
        default
    }

    fn written(&self, default: u64) -> Value {
        units::written_size(default).into()
    }
}
