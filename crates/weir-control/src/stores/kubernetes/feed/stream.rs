//! The state as one node gets it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::super::lines::{BEAT, StatusWriting, write_change};
use super::{ChangedTexts, FeedState, StateFeed};
use crate::stores::resources::ResourceKey;

/// A piece ends after the line that makes it so long.
const PIECE: usize = 16 << 10;

/// The lines for a node. It is connected until this is dropped.
pub struct StateStream {
    feed: StateFeed,
    node: u64,
    name: String,
    place: StreamPlace,
    beats: Interval,
}

/// What comes next.
enum StreamPlace {
    /// A whole state begins.
    Begin,
    /// The resources of this state after `last`.
    State { all: Arc<BTreeMap<ResourceKey, Arc<str>>>, last: Option<ResourceKey>, revision: u64 },
    /// The changes of this revision from this one on.
    Change { changes: Arc<ChangedTexts>, next: usize, revision: u64 },
    /// The changes after this revision.
    After(u64),
}

impl StateStream {
    pub(super) fn new(feed: StateFeed, node: u64, name: String) -> StateStream {
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once.
        beats.reset();
        StateStream { feed, node, name, place: StreamPlace::Begin, beats }
    }

    /// The next piece: some whole lines.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let feed = self.feed.clone();
        let mut state = feed.state();
        let mut piece = Vec::new();
        while piece.len() < PIECE && self.add(&mut state, &mut piece) {}
        // Changes put off no beat, which also says whether this controller writes the statuses.
        if !piece.is_empty() {
            return Poll::Ready(Some(piece.into()));
        }
        state.nodes.wake(self.node, context.waker().clone());
        if self.beats.poll_tick(context).is_ready() {
            // The next poll comes when it is due.
            let StatusWriting { is_here, writer } = state.statuses();
            let beat = json!({ "beat": state.revision, "leader": is_here, "writer": writer });
            return Poll::Ready(Some(format!("{beat}\n").into()));
        }
        Poll::Pending
    }

    /// Adds what comes next. Returns false if there is nothing.
    fn add(&mut self, state: &mut FeedState, piece: &mut Vec<u8>) -> bool {
        match &mut self.place {
            StreamPlace::Begin => {
                let StatusWriting { is_here, writer } = state.statuses();
                let head = json!({ "state": state.revision, "stream": self.name, "leader": is_here, "writer": writer });
                piece.extend_from_slice(format!("{head}\n").as_bytes());
                let (all, revision) = (Arc::clone(&state.all), state.revision);
                self.place = StreamPlace::State { all, last: None, revision };
            }
            StreamPlace::State { all, last, revision } => {
                let from = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                match all.range::<ResourceKey, _>((from, Bound::Unbounded)).next() {
                    Some((key, json)) => {
                        write_change(piece, key, Some(json));
                        *last = Some(key.clone());
                    }
                    None => self.place = ended(piece, *revision),
                }
            }
            StreamPlace::Change { changes, next, revision } => match changes.get(*next) {
                Some((key, json)) => {
                    write_change(piece, key, json.as_deref());
                    *next += 1;
                }
                None => self.place = ended(piece, *revision),
            },
            StreamPlace::After(revision) => match state.after(*revision) {
                Ok(Some(change)) => {
                    let (changes, revision) = (Arc::clone(&change.changes), change.revision);
                    self.place = StreamPlace::Change { changes, next: 0, revision };
                }
                Ok(None) => return false,
                // The node was too slow.
                Err(()) => self.place = StreamPlace::Begin,
            },
        }
        true
    }
}

fn ended(piece: &mut Vec<u8>, revision: u64) -> StreamPlace {
    piece.extend_from_slice(format!("{{\"end\":{revision}}}\n").as_bytes());
    StreamPlace::After(revision)
}

impl Drop for StateStream {
    fn drop(&mut self) {
        self.feed.state().nodes.remove(self.node, Instant::now());
    }
}
