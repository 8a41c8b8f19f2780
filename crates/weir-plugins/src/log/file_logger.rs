use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{
    Build, ConfigError, Definition, Described, Exchange, Expression, Filter, Phases, Plugin, Stage, Stop,
};

use crate::log::bodies::{Bodies, BodyOptions};
use crate::log::entry::RecordFormat;
use crate::log::sink::{Batching, RecordSink};

/// Appends a record of each exchange to a file: one JSON object in each line.
///
/// No request waits for it. The file is opened for each batch, so it may be moved away at any time. Records that cannot be
/// written are lost, and counted as `weir_log_records_total` with the outcome `dropped`. Values of `Authorization`, `Cookie`
/// and `Set-Cookie` fields are not shown.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileLogger {
    /// The file. Needed unless the metadata names one.
    path: Option<String>,
    /// What a record says instead of everything: names, and values with `$variables`.
    log_format: Option<Map<String, Value>>,
    /// What a record says besides.
    log_format_extra: Option<Map<String, Value>>,
    /// An expression, as `[[status, ">=", 400]]`: only exchanges for which it holds are recorded.
    #[serde(rename = "match")]
    only: Option<Value>,
    #[serde(flatten)]
    bodies: BodyOptions,
}

/// What holds for every `file-logger`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileLoggerMetadata {
    /// The file where a plugin names none.
    path: Option<String>,
    /// What records say where a plugin has no `log_format` of its own.
    log_format: Option<Map<String, Value>>,
    /// What records say besides, where a plugin has no `log_format_extra` of its own.
    log_format_extra: Option<Map<String, Value>>,
}

/// Records reach the file within a fifth of a second.
const BATCHING: Batching = Batching {
    most: 1000,
    inactive: Duration::from_millis(50),
    oldest: Duration::from_millis(200),
    retries: 0,
    retry_delay: Duration::ZERO,
    pending: 8192,
};

impl Definition for FileLogger {
    const NAME: &'static str = "file-logger";
    const PRIORITY: i32 = 399;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"file-logger: { path: logs/errors.log, match: [[status, ">=", 400]] }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let bodies = Bodies::compile(&self.bodies, build)?;
        let metadata = build.metadata::<FileLogger>();
        let path = self.path.or(metadata.path).filter(|path| !path.is_empty());
        let path = PathBuf::from(path.ok_or_else(|| ConfigError::new("path", "is needed: the file to write"))?);
        let entry = RecordFormat::compile(
            self.log_format.as_ref().or(metadata.log_format.as_ref()),
            self.log_format_extra.as_ref().or(metadata.log_format_extra.as_ref()),
            build,
        )?;
        let only = self.only.as_ref().map(|only| build.condition_of_record(only, "match")).transpose()?;
        let name = format!("file-logger {}", path.display());
        let sink = RecordSink::of(build, &name.clone(), name, BATCHING, move || {
            Ok(move |batch: &[Vec<u8>]| append(&path, batch).map_err(|error| error.to_string()))
        });
        Ok(Arc::new(FileRecordLogger { entry, bodies, only, sink }))
    }
}

impl Described for FileLogger {
    type Metadata = FileLoggerMetadata;

    fn check_metadata(metadata: FileLoggerMetadata) -> Result<(), ConfigError> {
        // What is warned of is said where the settings are used.
        let build = &mut Build::default();
        RecordFormat::compile(metadata.log_format.as_ref(), metadata.log_format_extra.as_ref(), build).map(drop)
    }
}

fn append(path: &Path, batch: &[Vec<u8>]) -> std::io::Result<()> {
    let mut lines = batch.join(&b'\n');
    lines.push(b'\n');
    OpenOptions::new().append(true).create(true).open(path)?.write_all(&lines)
}

struct FileRecordLogger {
    entry: RecordFormat,
    bodies: Bodies,
    only: Option<Expression>,
    sink: Arc<RecordSink>,
}

impl Plugin for FileRecordLogger {
    fn phases(&self) -> Phases {
        self.bodies.phases().and(Phases::START)
    }

    fn start(&self) -> Result<(), String> {
        self.sink.start()
    }

    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        Ok(self.bodies.request_filter(exchange))
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        Ok(self.bodies.response_filter(exchange))
    }

    fn kept_bytes(&self, exchange: &Exchange) -> usize {
        self.bodies.kept_bytes(exchange)
    }

    fn on_log(&self, exchange: &Exchange) {
        if self.only.as_ref().is_none_or(|only| only.holds(exchange)) {
            self.sink.record(self.entry.write(exchange, &self.bodies));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "path: is needed"),
            (
                json!({"path": "a", "include_resp_body_expr": [["status", "?", 400]]}),
                "include_resp_body_expr[0][1]: invalid operator",
            ),
            (json!({"path": "a", "match": [["status", "?", 400]]}), "match[0][1]: invalid operator"),
        ] {
            let error = refused::<FileLogger>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
