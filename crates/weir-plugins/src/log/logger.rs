//! Shared by all loggers: copying the data of an exchange into a record, and passing it to the sink.

use std::sync::Arc;

use serde_json::Value;
use weir_plugin::{
    AllOf, Build, ConfigError, Exchange, Expression, Filter, Flow, HasMetadata, NoteKey, PerWorker, Phases, Plugin,
    Stop,
};
use weir_records::{Destination, OpenDestination, RecordSink, SinkOptions, SinkRegister, SinkWriter, TestRecords};

use crate::log::bodies::{BodyCaptures, BodyOptions};
use crate::log::capture::Capture;
use crate::log::options::{BatchOptions, FormatOptions, LoggerMetadata, UnnamedSink};

/// Compiles the options that all loggers have.
///
/// # Errors
/// Some are invalid.
pub(crate) fn compile_common(
    (bodies, format, batch): (&BodyOptions, &FormatOptions, &BatchOptions),
    metadata: &LoggerMetadata,
    build: &mut Build,
) -> Result<(BodyCaptures, Capture, UnnamedSink), ConfigError> {
    let bodies = BodyCaptures::compile(bodies, build);
    let capture = format.compile(metadata, build);
    (bodies, capture, batch.compile(metadata.max_pending_entries, build)).all_of()
}

/// A plugin that records exchanges.
pub(crate) struct ExchangeLogger {
    capture: Arc<Capture>,
    bodies: BodyCaptures,
    /// If set, only exchanges for which this is true are recorded.
    only: Option<Expression>,
    /// If set, only a share of the exchanges is recorded.
    sample: Option<RecordSample>,
    sink: Arc<RecordSink>,
    writer: PerWorker<SinkWriter>,
    /// The note of an exchange that this logger has refused.
    refused: NoteKey,
}

impl ExchangeLogger {
    /// Builds a logger whose destination accepts batches. Plugins of a type with the same options share a sink, as long as the
    /// settings for all of them stay the same.
    pub(crate) fn with_batches<D: HasMetadata>(
        build: &Build,
        (capture, bodies): (Capture, BodyCaptures),
        options: SinkOptions,
        destination: impl Destination + Send + 'static,
    ) -> Arc<dyn Plugin> {
        Arc::new(ExchangeLogger::of_batches::<D>(build, (capture, bodies), options, destination))
    }

    /// The same for a logger that records a share of the exchanges, chosen at random: 1 is all of them.
    pub(crate) fn sampled<D: HasMetadata>(
        build: &Build,
        (capture, bodies, ratio): (Capture, BodyCaptures, f64),
        options: SinkOptions,
        destination: impl Destination + Send + 'static,
    ) -> Arc<dyn Plugin> {
        let sample = (ratio < 1.0).then(|| RecordSample { ratio, chosen: NoteKey::unique() });
        let logger = ExchangeLogger::of_batches::<D>(build, (capture, bodies), options, destination);
        Arc::new(ExchangeLogger { sample, ..logger })
    }

    fn of_batches<D: HasMetadata>(
        build: &Build,
        (capture, bodies): (Capture, BodyCaptures),
        options: SinkOptions,
        destination: impl Destination + Send + 'static,
    ) -> ExchangeLogger {
        let metadata = build.written_metadata::<D>().map_or_else(String::new, Value::to_string);
        let identity = format!("{} {metadata} {}", D::NAME, build.written_options());
        let open = Box::new(move || Ok(Box::new(destination) as Box<dyn Destination>));
        ExchangeLogger::new(build, (capture, bodies, None), &identity, options, open)
    }

    /// Builds a logger on the sink of this identity, which plugins share. If there is none yet, it is created; `open` then
    /// creates its destination when it is started.
    pub(crate) fn build(
        build: &Build,
        (capture, bodies, only): (Capture, BodyCaptures, Option<Expression>),
        identity: &str,
        options: SinkOptions,
        open: OpenDestination,
    ) -> Arc<dyn Plugin> {
        Arc::new(ExchangeLogger::new(build, (capture, bodies, only), identity, options, open))
    }

    fn new(
        build: &Build,
        (capture, bodies, only): (Capture, BodyCaptures, Option<Expression>),
        identity: &str,
        mut options: SinkOptions,
        open: OpenDestination,
    ) -> ExchangeLogger {
        let capture = Arc::new(capture);
        options.tests = capture.can_mark_tests().then(|| {
            let capture = Arc::clone(&capture);
            TestRecords::new(move |id| capture.test_record(id))
        });
        let sink = build.shared("record-sink", identity, || RecordSink::new(SinkRegister::of_process(), options, open));
        let written = Arc::clone(&sink);
        let writer = build.per_worker("record-writer", identity, move || SinkWriter::new(Arc::clone(&written)));
        ExchangeLogger { capture, bodies, only, sample: None, sink, writer, refused: NoteKey::unique() }
    }

    /// Decides whether an exchange is recorded, before its content is.
    fn choose(&self, exchange: &mut Exchange) -> bool {
        self.sample.as_ref().is_none_or(|sample| sample.choose(exchange))
    }
}

/// A share of the exchanges.
struct RecordSample {
    ratio: f64,
    /// The note of an exchange with the decision about it: 1 or 0.
    chosen: NoteKey,
}

impl RecordSample {
    fn draw(&self) -> bool {
        rand::random::<f64>() < self.ratio
    }

    fn choose(&self, exchange: &mut Exchange) -> bool {
        let chosen = self.has(exchange);
        exchange.notes.write(self.chosen, [chosen.into(), 0, 0]);
        chosen
    }

    /// The decision about an exchange; the first one, if nothing of it was recorded yet.
    fn has(&self, exchange: &Exchange) -> bool {
        exchange.notes.read(self.chosen).map_or_else(|| self.draw(), |[chosen, ..]| chosen == 1)
    }
}

impl Plugin for ExchangeLogger {
    fn phases(&self) -> Phases {
        let phases = self.bodies.phases().and(Phases::START);
        if self.sink.blocks() { phases.and(Phases::REQUEST) } else { phases }
    }

    /// Refuses a request that could not be recorded, if the sink is configured to block.
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if self.sink.blocks() && self.writer.get().is_full() {
            exchange.notes.write(self.refused, [1, 0, 0]);
            return Err(Stop::Respond(503));
        }
        Ok(Flow::Continue)
    }

    fn start(&self) -> Result<(), String> {
        self.sink.start()
    }

    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        if !self.choose(exchange) {
            return Ok(None);
        }
        Ok(self.bodies.request_filter(exchange, &self.writer.get()))
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        if !self.choose(exchange) {
            return Ok(None);
        }
        Ok(self.bodies.response_filter(exchange, &self.writer.get()))
    }

    fn kept_bytes(&self, exchange: &Exchange) -> usize {
        self.bodies.kept_bytes(exchange)
    }

    fn on_log(&self, exchange: &Exchange) {
        let is_wanted = self.only.as_ref().is_none_or(|only| only.holds(exchange))
            && self.sample.as_ref().is_none_or(|sample| sample.has(exchange));
        if !is_wanted || self.sink.blocks() && exchange.notes.read(self.refused).is_some() {
            return;
        }
        let exchange = exchange.shown();
        let (flags, attachments) = match self.capture.has_everything() {
            true => self.bodies.take(exchange),
            false => (0, Vec::new()),
        };
        self.writer.get().write(attachments, |out| self.capture.write(exchange, flags, out));
    }
}
