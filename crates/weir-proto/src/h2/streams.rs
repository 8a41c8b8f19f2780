//! The streams of a connection and the states they are in (RFC 9113 §5.1).

use std::collections::VecDeque;

use super::priority::Priority;
use super::window::{ReceiveWindow, SendWindow};
use crate::method::Method;

/// How far a message has come, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its head is still to come.
    Head,
    Content,
    Ended,
}

/// One stream that is open or half closed.
#[derive(Clone, Debug)]
pub struct StreamState {
    pub id: u32,
    /// What its user calls it.
    pub key: usize,
    pub receiving: Progress,
    pub sending: Progress,
    pub receive: ReceiveWindow,
    pub send: SendWindow,
    /// Content that is still to come, where the peer has said how much there is (§8.1.1).
    pub to_come: Option<u64>,
    pub priority: Priority,
    /// What was asked for: the length of a response says something else where it is HEAD.
    pub method: Method,
}

impl StreamState {
    pub fn is_over(&self) -> bool {
        self.receiving == Progress::Ended && self.sending == Progress::Ended
    }
}

/// Streams that we have reset and that may still bring frames which were on their way.
const MOST_IGNORED: usize = 128;
/// Streams that have ended last.
const MOST_ENDED: usize = 4;

/// Those that are open, and of some of the others how they ended.
#[derive(Debug, Default)]
pub struct Streams {
    /// In ascending order of their numbers. Most streams end in the order in which they began, so the oldest one is taken out
    /// of the front, which moves no others.
    open: VecDeque<StreamState>,
    ignored: Vec<u32>,
    next_ignored: usize,
    ended: [Ended; MOST_ENDED],
    next_ended: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    stream: u32,
    by_reset: bool,
}

/// Why a stream is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Both messages are complete.
    Complete,
    /// The peer has reset it.
    ByPeer,
    /// We have: what still comes on it was on its way.
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

    /// A new one, whose number is higher than those of all others.
    pub fn add(&mut self, stream: StreamState) {
        self.open.push_back(stream);
    }

    fn place(&self, id: u32) -> Option<usize> {
        // Most of the time it is the oldest or the newest.
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

    /// Takes a stream out.
    pub fn remove(&mut self, id: u32, why: StreamEnd) -> Option<StreamState> {
        let stream = self.open.remove(self.place(id)?)?;
        match why {
            StreamEnd::ByUs => self.ignore(id),
            why => {
                self.ended[self.next_ended % MOST_ENDED] = Ended { stream: id, by_reset: why == StreamEnd::ByPeer };
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

    /// What comes on this stream was on its way when we ended it, as far as is known.
    pub fn is_ignored(&self, id: u32) -> bool {
        // Where some are forgotten it is taken for granted.
        self.next_ignored > 0 || self.ignored.contains(&id)
    }

    /// It has ended on both sides, or the peer has reset it, not long ago.
    pub fn has_ended(&self, id: u32) -> bool {
        self.ended.iter().any(|ended| ended.stream == id)
    }

    /// It has ended on both sides, not long ago.
    pub fn is_complete(&self, id: u32) -> bool {
        self.ended.iter().any(|ended| ended.stream == id && !ended.by_reset)
    }
}
