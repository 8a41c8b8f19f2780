//! The metrics that plugins define, and those of the plugins themselves: for `/metrics`, summed over all workers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::abi::HostStatus;
use crate::limits;

/// What a metric counts (`proxy_metric_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefinedMetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl DefinedMetricKind {
    pub(crate) fn of(number: u32) -> Option<DefinedMetricKind> {
        match number {
            0 => Some(DefinedMetricKind::Counter),
            1 => Some(DefinedMetricKind::Gauge),
            2 => Some(DefinedMetricKind::Histogram),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Metric {
    name: Box<str>,
    kind: DefinedMetricKind,
    /// Of a histogram, the sum of its values.
    value: AtomicI64,
    /// Of a histogram, the number of its values.
    count: AtomicU64,
}

/// Those of one plugin, by its name. They stay until the process ends, as totals do.
#[derive(Debug, Default)]
pub(crate) struct PluginMetrics {
    defined: Mutex<Vec<Arc<Metric>>>,
    pub failures: AtomicU64,
    pub timeouts: AtomicU64,
    pub instances: AtomicI64,
}

static ALL: LazyLock<Mutex<BTreeMap<Box<str>, Arc<PluginMetrics>>>> = LazyLock::new(Mutex::default);

impl PluginMetrics {
    pub(crate) fn of(plugin: &str) -> Arc<PluginMetrics> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(plugin.into()).or_default())
    }

    fn all(&self) -> Vec<Arc<Metric>> {
        self.defined.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, id: u32) -> Result<Arc<Metric>, HostStatus> {
        let defined = self.defined.lock().unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(id).ok().and_then(|id| id.checked_sub(1)).ok_or(HostStatus::NotFound)?;
        defined.get(index).cloned().ok_or(HostStatus::NotFound)
    }

    /// The number of a metric, which is the same for the same name and kind.
    ///
    /// # Errors
    /// The name has another kind already, is not one, or there are too many.
    pub(crate) fn define(&self, kind: DefinedMetricKind, name: &str) -> Result<u32, HostStatus> {
        if name.is_empty() || name.len() > limits::METRIC_NAME {
            return Err(HostStatus::BadArgument);
        }
        let mut defined = self.defined.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = defined.iter().position(|metric| *metric.name == *name) {
            return if defined[index].kind == kind { Ok(index as u32 + 1) } else { Err(HostStatus::BadArgument) };
        }
        if defined.len() == limits::METRICS {
            return Err(HostStatus::InternalFailure);
        }
        let (value, count) = Default::default();
        defined.push(Arc::new(Metric { name: name.into(), kind, value, count }));
        Ok(defined.len() as u32)
    }

    /// Adds to a counter or a gauge.
    pub(crate) fn increment(&self, id: u32, by: i64) -> Result<(), HostStatus> {
        let metric = self.find(id)?;
        match metric.kind {
            DefinedMetricKind::Counter if by < 0 => return Err(HostStatus::BadArgument),
            DefinedMetricKind::Counter | DefinedMetricKind::Gauge => metric.value.fetch_add(by, Relaxed),
            DefinedMetricKind::Histogram => return Err(HostStatus::BadArgument),
        };
        Ok(())
    }

    /// Sets a gauge, or records a value of a histogram.
    pub(crate) fn record(&self, id: u32, value: i64) -> Result<(), HostStatus> {
        let metric = self.find(id)?;
        match metric.kind {
            DefinedMetricKind::Counter => return Err(HostStatus::BadArgument),
            DefinedMetricKind::Gauge => metric.value.store(value, Relaxed),
            DefinedMetricKind::Histogram => {
                metric.count.fetch_add(1, Relaxed);
                metric.value.fetch_add(value, Relaxed);
            }
        }
        Ok(())
    }

    pub(crate) fn value(&self, id: u32) -> Result<i64, HostStatus> {
        let metric = self.find(id)?;
        if metric.kind == DefinedMetricKind::Histogram {
            Err(HostStatus::BadArgument)
        } else {
            Ok(metric.value.load(Relaxed))
        }
    }
}

/// The figures of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WasmFigures {
    pub plugin: Box<str>,
    /// Instances of all workers.
    pub instances: i64,
    /// Failed calls into the plugin, of which some took too long.
    pub failures: u64,
    pub timeouts: u64,
    pub counters: Vec<(Box<str>, i64)>,
    pub gauges: Vec<(Box<str>, i64)>,
    /// With the number of values, and their sum.
    pub histograms: Vec<(Box<str>, u64, i64)>,
}

/// The figures of all plugins that have run in this process.
pub fn figures() -> Vec<WasmFigures> {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let of = |(plugin, metrics): (Box<str>, Arc<PluginMetrics>)| {
        let mut figures = WasmFigures {
            plugin,
            instances: metrics.instances.load(Relaxed),
            failures: metrics.failures.load(Relaxed),
            timeouts: metrics.timeouts.load(Relaxed),
            ..WasmFigures::default()
        };
        for metric in metrics.all() {
            let (name, value) = (metric.name.clone(), metric.value.load(Relaxed));
            match metric.kind {
                DefinedMetricKind::Counter => figures.counters.push((name, value)),
                DefinedMetricKind::Gauge => figures.gauges.push((name, value)),
                DefinedMetricKind::Histogram => figures.histograms.push((name, metric.count.load(Relaxed), value)),
            }
        }
        figures
    };
    all.into_iter().map(of).collect()
}
