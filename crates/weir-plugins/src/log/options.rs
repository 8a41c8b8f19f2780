//! Options that loggers share, with the names and defaults of Apache APISIX's batch processor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, PluginMetadata};
use weir_records::{
    Batching, MAX_SPOOL_KEYS, Record, RejectedRecords, Retries, SPOOL_KEY_BYTES, SinkOptions, SinkSpool,
    SpoolFullPolicy, SpoolKeys, SpoolOptions, SpoolSync, directory_name,
};

use crate::log::capture::Capture;
use crate::log::captured::RecordWriter;

/// When records are sent, and how often.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct BatchOptions {
    /// The maximum number of records in a batch.
    #[serde(default = "default_batch_max_size")]
    #[schemars(range(min = 1))]
    batch_max_size: usize,
    /// A batch is sent when no record was added to it for this many seconds.
    #[serde(default = "default_inactive_timeout")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    inactive_timeout: u64,
    /// A batch is sent when it is this many seconds old.
    #[serde(default = "default_buffer_duration")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    buffer_duration: u64,
    /// The number of retries for a batch that could not be delivered. Its records are dropped after the last retry.
    /// Without this option, a batch is retried until it is delivered, with pauses that grow to 30 seconds, and records
    /// are dropped only when there is no room for them. APISIX's default is 0.
    max_retry_count: Option<u32>,
    /// The pause before each of these retries, in seconds.
    #[serde(default = "default_retry_delay")]
    #[schemars(range(max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    retry_delay: u64,
    /// Stores records on disk, in the node's `data_dir`, while the destination cannot keep up.
    spool: Option<SpoolSpec>,
    /// A name for the logger. Has no effect.
    #[serde(default, rename = "name")]
    #[schemars(extend("deprecated" = true))]
    _name: Option<String>,
}

/// How much may wait on disk, for how long, and how safely.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SpoolSpec {
    /// The maximum size of the records on disk, in bytes: four files of the least size, or more.
    #[schemars(range(min = 4194304))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_size: u64,
    /// The maximum time that a record waits on disk, in seconds.
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "s"))]
    max_age: u64,
    /// When written records are synced to the disk (fsync): `always` (at every write), `interval` (every 200 ms), or
    /// `never`. A crash of the process loses no written records; a power failure loses the records that were not
    /// synced.
    sync: SpoolSyncSpec,
    /// What happens when `max_size` is reached. `drop_newest`: new records are dropped. `drop_oldest`: the oldest records
    /// are dropped. `block`: records wait in memory, and when three quarters of it are in use, requests are answered with
    /// 503 until records have been delivered.
    when_full: WhenFullSpec,
    /// Encrypts records on disk (AES-256-GCM) with the first of these keys; records that were encrypted with another one
    /// of them can still be read. A key is 32 bytes in base64, as `openssl rand -base64 32` prints it. Records that the
    /// destination rejects are then not kept.
    encryption_keyring: Vec<String>,
}

impl Default for SpoolSpec {
    fn default() -> Self {
        let (sync, when_full) = (SpoolSyncSpec::Interval, WhenFullSpec::DropNewest);
        SpoolSpec { max_size: 1 << 30, max_age: 86_400, sync, when_full, encryption_keyring: Vec::new() }
    }
}

#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SpoolSyncSpec {
    Always,
    Interval,
    Never,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum WhenFullSpec {
    DropNewest,
    DropOldest,
    Block,
}

/// What a sink is called, and where in its destination the records go.
pub(crate) struct SinkIdentity {
    /// The plugin and the origin of the destination, for logs and metrics.
    pub name: String,
    /// The path, table, tenant, topic and the like. Not shown: paths may be secrets.
    place: String,
}

impl SinkIdentity {
    pub(crate) fn new(name: String, place: &[&str]) -> SinkIdentity {
        SinkIdentity { name, place: place.join("\n") }
    }

    /// Adds the header fields of requests, which may name a tenant; not the credentials among them, which change.
    pub(crate) fn with_fields(mut self, fields: &BTreeMap<String, String>) -> SinkIdentity {
        const CREDENTIALS: [&str; 6] = ["auth", "token", "key", "secret", "cookie", "password"];
        for (name, value) in fields {
            let name = name.to_ascii_lowercase();
            if !CREDENTIALS.iter().any(|part| name.contains(part)) {
                self.place += &format!("\n{name}: {value}");
            }
        }
        self
    }

    /// Different for each destination: records on disk are sent only by sinks to which it is the same.
    fn directory_name(&self) -> String {
        directory_name(&self.name, &self.place)
    }
}

impl SpoolSpec {
    /// Compiles the options, and the directory for the spools of all sinks.
    fn compile(&self, build: &Build) -> Result<(PathBuf, SpoolOptions), ConfigError> {
        let max_age = Duration::from_secs(self.max_age);
        let data_dir = build.data_dir().ok_or_else(|| {
            let problem = "needs the node's `data_dir`: set it at the top, as `data_dir: /var/lib/weir`";
            ConfigError::new("spool", problem)
        });
        let (keys, data_dir) = (self.keys(), data_dir).all_of()?;
        let sync = match self.sync {
            SpoolSyncSpec::Always => SpoolSync::Always,
            SpoolSyncSpec::Interval => SpoolSync::Interval,
            SpoolSyncSpec::Never => SpoolSync::Never,
        };
        let when_full = match self.when_full {
            WhenFullSpec::DropNewest => SpoolFullPolicy::DropNewest,
            WhenFullSpec::DropOldest => SpoolFullPolicy::DropOldest,
            WhenFullSpec::Block => SpoolFullPolicy::Block,
        };
        let options = SpoolOptions { max_bytes: self.max_size, max_age, sync, when_full, keys };
        Ok((data_dir.join("records"), options))
    }
}

impl SpoolSpec {
    fn keys(&self) -> Result<SpoolKeys, ConfigError> {
        let key = |(index, text): (usize, &String)| {
            let decoded =
                BASE64_STANDARD.decode(text).ok().and_then(|bytes| <[u8; SPOOL_KEY_BYTES]>::try_from(bytes).ok());
            decoded.ok_or_else(|| {
                let problem =
                    format!("must be {SPOOL_KEY_BYTES} bytes in base64: write what `openssl rand -base64 32` prints");
                ConfigError::new(format!("spool.encryption_keyring[{index}]"), problem)
            })
        };
        let keys = self.encryption_keyring.iter().enumerate().map(key).collect_all::<Vec<_>>()?;
        SpoolKeys::new(&keys).ok_or_else(|| {
            ConfigError::new("spool.encryption_keyring", format!("must have at most {MAX_SPOOL_KEYS} keys"))
        })
    }
}

/// A default of several loggers.
pub(crate) fn default_true() -> bool {
    true
}

/// Seconds: a default of several loggers.
pub(crate) fn default_timeout_s() -> u64 {
    3
}

/// Seconds: a default of several loggers.
pub(crate) fn default_slow_timeout_s() -> u64 {
    10
}

/// In milliseconds: a default of several loggers.
pub(crate) fn default_timeout_ms() -> u64 {
    3000
}

fn default_retry_delay() -> u64 {
    1
}

fn default_inactive_timeout() -> u64 {
    5
}

fn default_buffer_duration() -> u64 {
    60
}

fn default_batch_max_size() -> usize {
    1000
}

/// The options of a sink that does not know its destination yet.
pub(crate) struct UnnamedSink {
    pub batching: Batching,
    retries: Retries,
    max_pending: Option<usize>,
    /// The directory of the spools of all sinks.
    spool: Option<(PathBuf, SpoolOptions)>,
    rejected: Option<RejectedRecords>,
}

impl UnnamedSink {
    /// Shows rejected records in the form in which they are sent, if they have not that of all loggers.
    pub(crate) fn showing(mut self, show: impl Fn(&Record) -> Vec<u8> + Send + Sync + 'static) -> UnnamedSink {
        if let Some(rejected) = &mut self.rejected {
            rejected.show = Arc::new(show);
        }
        self
    }

    /// The options with a destination. Sinks with the same identity take over each other's remaining records.
    pub(crate) fn named(self, identity: SinkIdentity) -> SinkOptions {
        let UnnamedSink { batching, retries, max_pending, spool, rejected } = self;
        let spool = spool.map(|(directory, options)| {
            let directory = directory.join(identity.directory_name());
            SinkSpool { directory, options }
        });
        SinkOptions { name: identity.name, batching, retries, max_pending, spool, rejected, tests: None }
    }
}

impl BatchOptions {
    /// Compiles the options for a sink.
    ///
    /// # Errors
    /// A key of the spool is wrong, or there is no directory for it.
    pub(crate) fn compile(&self, max_pending: Option<usize>, build: &Build) -> Result<UnnamedSink, ConfigError> {
        let batching = Batching {
            max_records: self.batch_max_size,
            inactive: Duration::from_secs(self.inactive_timeout),
            oldest: Duration::from_secs(self.buffer_duration),
            ..Batching::default()
        };
        let pause = Duration::from_secs(self.retry_delay);
        let retries = self.max_retry_count.map_or(Retries::Always, |most| Retries::Some { most, pause });
        let spool = self.spool.as_ref().map(|spool| spool.compile(build)).transpose()?;
        // Rejected records are written unencrypted, so they are not kept if the spool is encrypted.
        let is_encrypted = self.spool.as_ref().is_some_and(|spool| !spool.encryption_keyring.is_empty());
        let rejected = build
            .data_dir()
            .filter(|_| !is_encrypted)
            .map(|data_dir| RejectedRecords { directory: data_dir.join("records"), show: Arc::new(show) });
        Ok(UnnamedSink { batching, retries, max_pending, spool, rejected })
    }

    pub(crate) fn is_single(&self) -> bool {
        self.batch_max_size == 1
    }
}

/// The record as readable JSON, regardless of the destination's format.
fn show(record: &Record) -> Vec<u8> {
    let mut json = Vec::new();
    RecordWriter::default().batch().json(record, &mut json);
    json
}

/// What records say.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct FormatOptions {
    /// The content of a record, as a map of names and values with `$variables`. Without it, a record has all the
    /// members of APISIX's default record. The value `$record_id` is the id of the record.
    log_format: Option<Map<String, Value>>,
    /// Additional members of a record, in the form of `log_format`.
    log_format_extra: Option<Map<String, Value>>,
}

/// What holds for every logger of a kind.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LoggerMetadata {
    /// The `log_format` of plugins that do not set this option.
    pub log_format: Option<Map<String, Value>>,
    /// The `log_format_extra` of plugins that do not set this option.
    pub log_format_extra: Option<Map<String, Value>>,
    /// The maximum number of records that wait in memory for a destination. Further records are dropped, or go to the
    /// disk if the plugin has a `spool`. Without it, only the memory that the records take is limited. APISIX's default
    /// is 8192.
    #[schemars(range(min = 1, max = 1048576))]
    pub max_pending_entries: Option<usize>,
}

impl PluginMetadata for LoggerMetadata {
    fn check(self) -> Result<(), ConfigError> {
        // The warnings are discarded here; they are reported by the plugins that use the metadata.
        let build = &mut Build::default();
        Capture::compile(self.log_format.as_ref(), self.log_format_extra.as_ref(), build).map(drop)
    }
}

impl FormatOptions {
    /// Compiles the options, with the metadata as defaults.
    ///
    /// # Errors
    /// An option is invalid.
    pub(crate) fn compile(&self, metadata: &LoggerMetadata, build: &mut Build) -> Result<Capture, ConfigError> {
        Capture::compile(
            self.log_format.as_ref().or(metadata.log_format.as_ref()),
            self.log_format_extra.as_ref().or(metadata.log_format_extra.as_ref()),
            build,
        )
    }
}
