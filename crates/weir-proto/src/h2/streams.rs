//! The streams of a connection and their states (RFC 9113 §5.1).

use std::collections::VecDeque;

use super::priority::Priority;
use super::window::{ReceiveWindow, SendWindow};
use crate::method::Method;

/// The progress of a message in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The head has not been received, or sent.
    Head,
    Content,
    Ended,
}

/// One stream that is open or half closed.
#[derive(Clone, Debug)]
pub struct StreamState {
    pub id: u32,
    /// The caller's key for this stream, returned with each event.
    pub key: usize,
    pub receiving: Progress,
    pub sending: Progress,
    pub receive: ReceiveWindow,
    pub send: SendWindow,
    /// Bytes of content still to be received, if the peer declared a `Content-Length` (§8.1.1).
    pub content_left: Option<u64>,
    pub priority: Priority,
    /// The method of the request, since a response to HEAD has no content whatever its length field says.
    pub method: Method,
}

impl StreamState {
    pub fn is_over(&self) -> bool {
        self.receiving == Progress::Ended && self.sending == Progress::Ended
    }
}

/// Limit of remembered streams that we have reset, on which frames already in flight may still arrive.
const MOST_IGNORED: usize = 128;
/// Limit of remembered streams that ended last.
const MOST_ENDED: usize = 4;

/// The open streams, and a bounded record of how closed ones ended.
#[derive(Debug, Default)]
pub struct Streams {
    /// Sorted by stream number. Most streams end in the order in which they began, so most removals are at the front, which
    /// moves no other stream.
    open: VecDeque<StreamState>,
    ignored: Vec<u32>,
    next_ignored: usize,
    ended: [EndedStream; MOST_ENDED],
    next_ended: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct EndedStream {
    stream: u32,
    by_reset: bool,
}

/// Why a stream is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Both messages are complete.
    Complete,
    /// The peer reset it.
    ByPeer,
    /// We reset it; frames already in flight may still arrive.
    ByUs,
}

impl Streams {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamState> {
        self.open.iter_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &StreamState> {
        self.open.iter()
    }

    /// Adds a stream, whose number must be higher than all others.
    pub fn add(&mut self, stream: StreamState) {
        self.open.push_back(stream);
    }

    fn place(&self, id: u32) -> Option<usize> {
        // In most cases it is the oldest or the newest stream.
        if self.open.front()?.id == id {
            return Some(0);
        }
        match self.open.back() {
            Some(last) if last.id == id => Some(self.open.len() - 1),
            _ => self.open.binary_search_by_key(&id, |stream| stream.id).ok(),
        }
    }

    pub fn get(&self, id: u32) -> Option<&StreamState> {
        self.place(id).map(|at| &self.open[at])
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut StreamState> {
        self.place(id).map(|at| &mut self.open[at])
    }

    /// Removes a stream and records why.
    pub fn remove(&mut self, id: u32, why: StreamEnd) -> Option<StreamState> {
        let stream = self.open.remove(self.place(id)?)?;
        match why {
            StreamEnd::ByUs => self.ignore(id),
            why => {
                self.ended[self.next_ended % MOST_ENDED] =
                    EndedStream { stream: id, by_reset: why == StreamEnd::ByPeer };
                self.next_ended += 1;
            }
        }
        Some(stream)
    }

    /// Gives back memory, while no stream is open.
    pub fn rest(&mut self) {
        self.open.shrink_to_fit();
    }

    /// From now on what comes on this stream is ignored, whether it was ever open or not.
    pub fn ignore(&mut self, id: u32) {
        if self.ignored.len() < MOST_IGNORED {
            self.ignored.push(id);
        } else {
            self.ignored[self.next_ignored % MOST_IGNORED] = id;
            self.next_ignored += 1;
        }
    }

    /// Frames on this closed stream may have been in flight when we reset it, and are to be ignored.
    pub fn is_ignored(&self, id: u32) -> bool {
        // Once entries have been overwritten, every closed stream is assumed to be one of them.
        self.next_ignored > 0 || self.ignored.contains(&id)
    }

    /// The stream ended recently: it was completed, or the peer reset it.
    pub fn has_ended(&self, id: u32) -> bool {
        self.ended.iter().any(|ended| ended.stream == id)
    }

    /// The stream was completed recently.
    pub fn is_complete(&self, id: u32) -> bool {
        self.ended.iter().any(|ended| ended.stream == id && !ended.by_reset)
    }
}
