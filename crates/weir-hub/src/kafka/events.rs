//! The partition of events: written by all nodes; each node copies it to a local journal and reads it there.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use tokio::time::Instant;
use weir_journal::{AppendError, Disk, Journal, Options};
use weir_kafka::{FetchedMessage, KafkaError, PartitionClient, PartitionEnd};

use super::appends::{Append, AppendQueue};
use super::drivers::HubDrivers;
use super::frame::{FrameKind, HubFrame};
use super::topic::{EVENTS, HubTopic, READ_BYTES, READ_WAIT};
use crate::settings::HubSettings;
use crate::store::EventLog;

/// How long a publisher waits while no broker answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens an empty copy of the events from offset `first` on. The copy of an earlier process is removed, since the topic may have
/// been recreated. An event's number is its offset plus one.
///
/// # Errors
/// The directory cannot be used.
pub(super) fn open_copy(directory: &Path, settings: &HubSettings, first: i64) -> io::Result<Journal> {
    let directory = directory.join("copy");
    match std::fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let options = Options { min_next_seq: first as u64 + 1, ..EventLog::options(settings, true) };
    Ok(Journal::open_in(Arc::new(Disk::open(directory)?), options)?.0)
}

/// Appends the events of the queue, until all its senders have been dropped.
pub(super) async fn write_events(topic: Rc<HubTopic>, mut queue: AppendQueue) {
    let mut client = topic.partition(EVENTS);
    let mut number = 0;
    loop {
        let batch = queue.next().await;
        if batch.is_empty() {
            return;
        }
        let frames: Vec<Vec<u8>> = batch.iter().map(|append| frame(&topic, &mut number, append)).collect();
        match write(&topic, &mut client, &frames).await {
            // The batch is larger than the topic allows, or has an event that it does not, so the events are written one by one.
            Err(error) if error.is_refused_for_good() && batch.len() > 1 => {
                for (append, frame) in batch.into_iter().zip(frames) {
                    settle([append], write(&topic, &mut client, &[frame]).await);
                }
            }
            written => settle(batch, written),
        }
    }
}

fn frame(topic: &HubTopic, number: &mut u64, append: &Append) -> Vec<u8> {
    *number += 1;
    let kind = FrameKind::Record;
    HubFrame { node: topic.node, epoch: 0, number: *number, kind, payload: &append.payload }.encode()
}

async fn write(topic: &HubTopic, client: &mut PartitionClient<'_>, frames: &[Vec<u8>]) -> Result<i64, KafkaError> {
    topic.append(client, frames, Some(Instant::now() + PATIENCE)).await
}

fn settle(batch: impl IntoIterator<Item = Append>, written: Result<i64, KafkaError>) {
    for (index, append) in (1..).zip(batch) {
        let bytes = append.payload.len();
        (append.on_commit)(match &written {
            Ok(first) => Ok(*first as u64 + index),
            Err(error) if error.is_too_large() => Err(AppendError::TooLarge { bytes, limit: bytes as u32 - 1 }),
            Err(error) => Err(AppendError::Io(Arc::new(io::Error::other(error.to_string())))),
        });
    }
}

/// Copies events from offset `first` on; returns an error message once the copy cannot be written. `copied` is set to the offset
/// up to which events are copied.
pub(super) async fn copy_events(
    topic: Rc<HubTopic>,
    events: Arc<EventLog>,
    first: i64,
    copied: watch::Sender<i64>,
    drivers: Arc<HubDrivers>,
) -> String {
    let mut client = topic.partition(EVENTS);
    let mut copy = EventCopy { events, next: first, numbers: HashMap::new() };
    loop {
        let written = match client.fetch(copy.next, READ_BYTES, READ_WAIT).await {
            Ok(fetched) => {
                topic.trouble.end();
                copy.write(fetched.messages, fetched.next).await
            }
            Err(error) if error.is_out_of_range() => match client.end(PartitionEnd::First).await {
                Ok(first) if first > copy.next => copy.write(Vec::new(), first).await,
                // The topic has lost events, or was recreated.
                Ok(_) => Err(format!("{error}; restart the node")),
                Err(error) => {
                    topic.pause(&error).await;
                    continue;
                }
            },
            Err(error) => {
                topic.pause(&error).await;
                continue;
            }
        };
        match written {
            Ok(0) => {}
            Ok(_) => {
                let _ = copied.send(copy.next);
                drivers.committed();
            }
            Err(problem) => return problem,
        }
    }
}

struct EventCopy {
    events: Arc<EventLog>,
    /// The next offset to copy.
    next: i64,
    /// The last record number of each writer.
    numbers: HashMap<u64, u64>,
}

impl EventCopy {
    /// The record in a message; empty if it is a repetition, or of another version.
    fn record<'a>(&mut self, value: &'a [u8]) -> &'a [u8] {
        let Some(frame) = HubFrame::decode(value).filter(|frame| frame.kind == FrameKind::Record) else { return &[] };
        let last = self.numbers.entry(frame.node).or_default();
        if frame.number <= *last {
            return &[];
        }
        *last = frame.number;
        frame.payload
    }

    /// Writes messages, and a placeholder for each offset before `next` without a message. Returns the number of both together.
    async fn write(&mut self, messages: Vec<FetchedMessage>, next: i64) -> Result<usize, String> {
        let mut records = Vec::new();
        let mut at = self.next;
        for (offset, time_ms, value) in messages {
            records.extend((at..offset).map(|_| EventLog::copied(0, &[])));
            records.push(EventLog::copied(time_ms as u64, self.record(&value)));
            at = offset + 1;
        }
        records.extend((at..next).map(|_| EventLog::copied(0, &[])));
        let (count, (told, mut results)) = (records.len(), unbounded_channel());
        for record in records {
            let told = told.clone();
            let appended = self.events.journal.append(record, Box::new(move |result| drop(told.send(result))));
            appended.map_err(|error| error.to_string())?;
        }
        for _ in 0..count {
            let written = results.recv().await.ok_or("the journal has ended")?;
            match written.map_err(|error| error.to_string())? {
                seq if seq == self.next as u64 + 1 => self.next += 1,
                seq => return Err(format!("the event at offset {} became number {seq}", self.next)),
            }
        }
        Ok(count)
    }
}
