//! How sources and stores say that something may have changed.

use std::sync::Arc;

/// Wakes the watch, to check for changes.
pub type Wake = Arc<dyn Fn() + Send + Sync>;
