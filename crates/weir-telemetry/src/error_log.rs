//! The error log: messages to the operator, on stderr.

mod repeats;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Format, JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

pub use self::repeats::BOUNDED;
use self::repeats::SummarizeRepeats;
use crate::stderr::StderrLines;

/// The format of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ErrorLogFormat {
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Writes log events of all threads to stderr from now on. Only the first call in a process has an effect.
pub fn start(level: LevelFilter, shape: ErrorLogFormat) {
    // A later call fails, since a subscriber is installed already.
    let _ = tracing::subscriber::set_global_default(subscriber(level, shape, StderrLines::default));
}

/// A message as a line in the JSON format of the error log.
pub fn json_line(level: Level, message: &str) -> String {
    let mut timestamp = String::new();
    // Writing to a string succeeds.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    format!("{}\n", serde_json::json!({ "timestamp": timestamp, "level": level.as_str(), "message": message }))
}

fn subscriber(
    level: LevelFilter,
    shape: ErrorLogFormat,
    writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
) -> Box<dyn Subscriber + Send + Sync> {
    let of_libraries = level >= LevelFilter::DEBUG;
    let builder = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(writer);
    match shape {
        ErrorLogFormat::Text => {
            let lines = Format::default().with_ansi(false).with_target(false);
            Box::new(builder.event_format(SummarizeRepeats::new(lines, shape, of_libraries)).finish())
        }
        ErrorLogFormat::Json => {
            let lines = Format::default().json().flatten_event(true);
            Box::new(
                builder
                    .fmt_fields(JsonFields::new())
                    .event_format(SummarizeRepeats::new(lines, shape, of_libraries))
                    .finish(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::repeats::LINES;
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: LevelFilter, shape: ErrorLogFormat, log: impl FnOnce()) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        tracing::subscriber::with_default(subscriber(level, shape, move || writer.clone()), log);
        String::from_utf8(memory.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).expect("text")
    }

    #[test]
    fn lines_of_libraries_need_the_level_debug() {
        for (level, count) in [(LevelFilter::INFO, 1), (LevelFilter::DEBUG, 2)] {
            let text = logged(level, ErrorLogFormat::Text, || {
                tracing::error!(target: "kube_client::client", "failed with error client error (Connect)");
                tracing::error!(target: "weir_kube", "the API server at 10.0.0.1 does not answer");
            });
            assert_eq!(text.lines().count(), count, "{text}");
        }
    }

    #[test]
    fn lines_whose_writer_bounds_them_are_all_written() {
        let text = logged(LevelFilter::ERROR, ErrorLogFormat::Text, || {
            (0..2 * LINES).for_each(|number| tracing::error!(target: BOUNDED, "line {number}"));
        });
        assert_eq!(text.lines().count(), 2 * LINES as usize, "{text}");
    }

    #[test]
    fn only_what_is_as_grave_as_the_level_is_written() {
        let text = logged(LevelFilter::WARN, ErrorLogFormat::Text, || {
            tracing::info!("quiet");
            tracing::warn!("loud");
        });
        assert!(text.ends_with("WARN loud\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn lines_from_one_place_are_summarized_once_there_are_many() {
        for shape in [ErrorLogFormat::Text, ErrorLogFormat::Json] {
            let text = logged(LevelFilter::INFO, shape, || {
                for number in 0..1_000 {
                    tracing::info!("endpoint {number} is out of rotation");
                }
                tracing::info!("another place");
            });
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len() as u32, LINES + 2, "{text}");
            assert!(lines[LINES as usize].contains("further lines like the one above are left out"), "{text}");
            assert!(lines[LINES as usize + 1].contains("another place"), "{text}");
            if shape == ErrorLogFormat::Json {
                let told: serde_json::Value = serde_json::from_str(lines[LINES as usize]).expect("JSON");
                assert!(told["timestamp"].is_string() && told["level"] == "INFO", "{told}");
            }
        }
    }

    #[test]
    fn p14_a_message_in_json_stays_one_line() {
        let text = logged(LevelFilter::ERROR, ErrorLogFormat::Json, || tracing::error!("a\nb\u{1b}[2J\"}}"));
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(line["level"], "ERROR");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
