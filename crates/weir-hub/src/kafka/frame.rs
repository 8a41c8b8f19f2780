//! The frame around each record in the hub's topic: its writer, and its number.
//!
//! A producer that gets no answer sends again, so a record may be stored twice. Readers recognise repetitions by writer and
//! number.

use weir_kafka::{KafkaMessage, message_batch};

/// A message of the hub's topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HubFrame<'a> {
    /// The process that wrote the frame.
    pub node: u64,
    /// How often the partition has changed its owner; 0 in a partition that all nodes write.
    pub epoch: u64,
    /// Increases with each record of a writer in an epoch.
    pub number: u64,
    pub kind: FrameKind,
    pub payload: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    Record = 0,
    /// A node takes over a partition.
    Claim = 1,
    /// A node releases a partition.
    Release = 2,
    /// The heartbeat of a node.
    Alive = 3,
    /// A node shuts down.
    Leaving = 4,
}

const VERSION: u8 = 1;

impl HubFrame<'_> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(26 + self.payload.len());
        out.extend_from_slice(&[VERSION, self.kind as u8]);
        for number in [self.node, self.epoch, self.number] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(self.payload);
        out
    }

    /// `None` if the frame is of another version.
    pub(super) fn decode(bytes: &[u8]) -> Option<HubFrame<'_>> {
        let (&[VERSION, kind], rest) = bytes.split_first_chunk()? else { return None };
        let kinds = [FrameKind::Record, FrameKind::Claim, FrameKind::Release, FrameKind::Alive, FrameKind::Leaving];
        let kind = kinds.into_iter().find(|it| *it as u8 == kind)?;
        let (node, rest) = rest.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (number, payload) = rest.split_first_chunk()?;
        let [node, epoch, number] = [node, epoch, number].map(|bytes| u64::from_le_bytes(*bytes));
        Some(HubFrame { node, epoch, number, kind, payload })
    }
}

/// A batch of frames as Kafka messages.
pub(super) fn batch(frames: &[Vec<u8>], now_ms: u64) -> Vec<u8> {
    let message = |value| KafkaMessage { time_ms: now_ms as i64, key: None, value, header: None };
    let messages: Vec<KafkaMessage<'_>> = frames.iter().map(|frame| message(frame)).collect();
    message_batch(&messages, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let frame = HubFrame { node: 1 << 63, epoch: 2, number: 3, kind: FrameKind::Release, payload: b"state" };
        let bytes = frame.encode();
        assert_eq!(HubFrame::decode(&bytes), Some(frame));
        assert!((0..26).all(|end| HubFrame::decode(&bytes[..end]).is_none()));
        assert_eq!(HubFrame::decode(&[2; 40]), None);
    }
}
