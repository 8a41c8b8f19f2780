//! The error log: what the gateway has to say to its operator, on stderr.

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::stderr::StderrLines;

/// How lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LineFormat {
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends what is logged from now on, by any thread, to stderr. The first call decides for the life of the process.
pub fn start(level: LevelFilter, shape: LineFormat) {
    // A second call finds a log in place, which is what was asked for.
    let _ = tracing::subscriber::set_global_default(subscriber(level, shape, StderrLines::default));
}

fn subscriber(
    level: LevelFilter,
    shape: LineFormat,
    writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
) -> Box<dyn Subscriber + Send + Sync> {
    let builder = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(writer);
    match shape {
        LineFormat::Text => Box::new(builder.with_target(false).finish()),
        LineFormat::Json => Box::new(builder.json().flatten_event(true).finish()),
    }
}

#[cfg(test)]
mod tests {
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

    fn logged(level: LevelFilter, shape: LineFormat, log: impl FnOnce()) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        tracing::subscriber::with_default(subscriber(level, shape, move || writer.clone()), log);
        String::from_utf8(memory.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).expect("text")
    }

    #[test]
    fn only_what_is_as_grave_as_the_level_is_written() {
        let text = logged(LevelFilter::WARN, LineFormat::Text, || {
            tracing::info!("quiet");
            tracing::warn!("loud");
        });
        assert!(text.ends_with("WARN loud\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn p14_a_message_in_json_stays_one_line() {
        let text = logged(LevelFilter::ERROR, LineFormat::Json, || tracing::error!("a\nb\u{1b}[2J\"}}"));
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(line["level"], "ERROR");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
