//! Passes spans to a collector: one record for all spans of an exchange.

use std::sync::Arc;

use weir_otlp::span::TraceSpan;
use weir_plugin::{Build, Exchange, PerWorker};
use weir_records::{OpenDestination, RecordSink, SinkOptions, SinkRegister, SinkWriter};

use super::exchange_spans::{ExtraAttributes, spans_of};
use super::note::TraceNote;

/// Encodes a span in the format of its collector.
pub(crate) trait SpanFormat: Send + Sync {
    /// Writes what stands before the spans of an exchange.
    fn open(&self, exchange: &Exchange, note: &TraceNote, out: &mut Vec<u8>) {
        let _ = (exchange, note, out);
    }

    fn span(&self, span: &TraceSpan<'_>, exchange: &Exchange, note: &TraceNote, out: &mut Vec<u8>);

    /// Writes what stands behind them.
    fn close(&self, out: &mut Vec<u8>) {
        let _ = out;
    }
}

/// A sink for spans, which plugins with the same identity share.
pub(crate) struct SpanSink<F> {
    sink: Arc<RecordSink>,
    writer: PerWorker<SinkWriter>,
    format: F,
}

impl<F: SpanFormat> SpanSink<F> {
    /// The sink of this identity. If it does not exist yet, it is created with the destination that `open` makes when
    /// the sink is started.
    pub(crate) fn build(
        build: &Build,
        identity: &str,
        options: SinkOptions,
        format: F,
        open: OpenDestination,
    ) -> SpanSink<F> {
        let sink = build.shared("record-sink", identity, || RecordSink::new(SinkRegister::of_process(), options, open));
        let written = Arc::clone(&sink);
        let writer = build.per_worker("record-writer", identity, move || SinkWriter::new(Arc::clone(&written)));
        SpanSink { sink, writer, format }
    }

    pub(crate) fn start(&self) -> Result<(), String> {
        self.sink.start()
    }

    /// Records the spans of an exchange that has ended, with its secrets masked.
    pub(crate) fn record(&self, exchange: &Exchange, note: &TraceNote, extra: &ExtraAttributes) {
        let exchange = exchange.shown();
        self.writer.get().write(Vec::new(), |out| {
            self.format.open(exchange, note, out);
            spans_of(exchange, note, extra, |span| self.format.span(span, exchange, note, out));
            self.format.close(out);
        });
    }
}
