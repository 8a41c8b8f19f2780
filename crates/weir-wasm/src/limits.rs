//! The bounds of what plugins may use, apart from those that the settings of the node give each plugin.

use std::time::Duration;

/// The most time of the calls by which an instance starts: `_initialize`, `proxy_on_vm_start` and `proxy_on_configure`.
pub(crate) const START_TIME: Duration = Duration::from_secs(1);
/// The most bytes of a stack of WebAssembly.
pub(crate) const STACK_BYTES: usize = 512 << 10;
/// The most elements of a table.
pub(crate) const TABLE_ELEMENTS: usize = 100_000;
/// The most bytes of content that a plugin holds of one message, within the budget of the node and of the client.
pub(crate) const HELD_BYTES: u64 = 64 << 20;
/// The most bytes that an instance keeps of the buffer for what it is given.
pub(crate) const KEPT_BUFFER: usize = 64 << 10;
/// The most pairs of a header map that a plugin writes, and their bytes.
pub(crate) const PAIRS: usize = 1_000;
pub(crate) const PAIR_BYTES: usize = 1 << 20;
/// The most bytes of a line that a plugin logs.
pub(crate) const LOG_LINE: usize = 4 << 10;
/// The most lines that the plugin of a resource logs in [`LOG_PERIOD`].
pub(crate) const LOG_LINES: u32 = 100;
pub(crate) const LOG_PERIOD: Duration = Duration::from_secs(10);
/// The most calls to services that an instance has in flight.
pub(crate) const CALLS: usize = 128;
/// The most time of a call, whatever the plugin asks for, and the most bytes of its answer.
pub(crate) const CALL_TIME: Duration = Duration::from_secs(60);
pub(crate) const CALL_ANSWER: usize = 4 << 20;
/// The most time that a request waits for a plugin to go on.
pub(crate) const PAUSE: Duration = Duration::from_secs(60);
/// The most entries and bytes of the data that the instances of a plugin share.
pub(crate) const SHARED_ENTRIES: usize = 10_000;
pub(crate) const SHARED_BYTES: usize = 16 << 20;
/// The most values that a plugin sets for one exchange, and their bytes.
pub(crate) const PROPERTIES: usize = 64;
pub(crate) const PROPERTY_BYTES: usize = 64 << 10;
/// The most metrics of a plugin, and the most bytes of their names.
pub(crate) const METRICS: usize = 256;
pub(crate) const METRIC_NAME: usize = 256;
/// The shortest time between two ticks.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// The pause before an instance is made again that could not be started: from the least, doubled each time, to the most.
pub(crate) const LEAST_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const MOST_PAUSE: Duration = Duration::from_secs(30);
/// Instances that fail at what clients send are made again so that at most a part in this of the time is spent on it.
pub(crate) const PAUSE_PER_START: u32 = 10;
/// The most configurations of which a file remembers that they are accepted.
pub(crate) const TRIED: usize = 256;
