//! The primitives of Kafka's protocol. Each request is used in a version that brokers support from 1.0 to 4.x (KIP-896). None of
//! these versions uses tagged fields or compact lengths.

/// The error for an answer of a broker that is truncated.
#[derive(Debug, PartialEq, Eq)]
pub struct AnswerCutShort;

/// A request under construction, with room for its length at the front.
pub struct RequestBytes(Vec<u8>);

impl RequestBytes {
    /// Writes a header of version 1: the request's key and version, and the correlation id that the answer repeats.
    pub fn begin(key: i16, version: i16, correlation: i32) -> RequestBytes {
        let mut bytes = RequestBytes(vec![0; 4]);
        bytes.i16(key);
        bytes.i16(version);
        bytes.i32(correlation);
        bytes.text(Some("weir"));
        bytes
    }

    pub fn i8(&mut self, number: i8) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn i16(&mut self, number: i16) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn i32(&mut self, number: i32) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn i64(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn bool(&mut self, is_true: bool) {
        self.0.push(u8::from(is_true));
    }

    pub fn text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => {
                self.i16(text.len() as i16);
                self.0.extend_from_slice(text.as_bytes());
            }
            None => self.i16(-1),
        }
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.i32(bytes.len() as i32);
        self.0.extend_from_slice(bytes);
    }

    pub fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as i32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// An answer, parsed from the front.
pub struct AnswerBytes<'a>(pub &'a [u8]);

pub(crate) type Read<T> = Result<T, AnswerCutShort>;

impl<'a> AnswerBytes<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(AnswerCutShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many were taken"))
    }

    pub fn bool(&mut self) -> Read<bool> {
        Ok(self.array::<1>()? != [0])
    }

    pub(crate) fn i8(&mut self) -> Read<i8> {
        self.array().map(i8::from_be_bytes)
    }

    pub fn i16(&mut self) -> Read<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub fn i32(&mut self) -> Read<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// A text; a missing one is returned as empty.
    pub fn text(&mut self) -> Read<String> {
        let length = self.i16()?.max(0) as usize;
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    pub fn bytes(&mut self) -> Read<&'a [u8]> {
        let length = self.i32()?.max(0) as usize;
        self.take(length)
    }

    /// Reads a list whose elements are parsed by `read`.
    pub fn list<T>(&mut self, read: impl Fn(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let count = self.i32()?.max(0);
        (0..count).map(|_| read(self)).collect()
    }
}

/// The identity of an idempotent producer, by which the broker recognises repeated batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIdentity {
    pub id: i64,
    pub epoch: i16,
}

/// The content of a message.
pub struct KafkaMessage<'a> {
    pub time_ms: i64,
    pub key: Option<&'a [u8]>,
    pub value: &'a [u8],
    /// A name and a value.
    pub header: Option<(&'a str, &'a [u8])>,
}

/// A batch of messages in format 2, which brokers store as it is. Without a producer identity, the broker does not detect
/// repetitions.
pub fn message_batch(messages: &[KafkaMessage<'_>], sender: Option<(ProducerIdentity, i32)>) -> Vec<u8> {
    let (first, last) = messages
        .iter()
        .fold((i64::MAX, i64::MIN), |(first, last), message| (first.min(message.time_ms), last.max(message.time_ms)));
    let (identity, sequence) = sender.unwrap_or((ProducerIdentity { id: -1, epoch: -1 }, -1));
    // The part that the checksum covers.
    let mut body = Vec::with_capacity(64 + messages.iter().map(|message| message.value.len() + 64).sum::<usize>());
    body.extend_from_slice(&0_i16.to_be_bytes());
    body.extend_from_slice(&(messages.len() as i32 - 1).to_be_bytes());
    body.extend_from_slice(&first.to_be_bytes());
    body.extend_from_slice(&last.to_be_bytes());
    body.extend_from_slice(&identity.id.to_be_bytes());
    body.extend_from_slice(&identity.epoch.to_be_bytes());
    body.extend_from_slice(&sequence.to_be_bytes());
    body.extend_from_slice(&(messages.len() as i32).to_be_bytes());
    let mut one = Vec::new();
    for (number, message) in (0..).zip(messages) {
        one.clear();
        one.push(0);
        varint(&mut one, message.time_ms - first);
        varint(&mut one, number);
        sized(&mut one, message.key);
        sized(&mut one, Some(message.value));
        varint(&mut one, i64::from(message.header.is_some()));
        if let Some((name, value)) = message.header {
            sized(&mut one, Some(name.as_bytes()));
            sized(&mut one, Some(value));
        }
        sized(&mut body, Some(&one));
    }
    let mut batch = Vec::with_capacity(body.len() + 21);
    batch.extend_from_slice(&0_i64.to_be_bytes());
    // The length of what follows: leader epoch, version, checksum and body.
    batch.extend_from_slice(&(body.len() as i32 + 9).to_be_bytes());
    batch.extend_from_slice(&(-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend_from_slice(&crc32c::crc32c(&body).to_be_bytes());
    batch.extend_from_slice(&body);
    batch
}

/// Bytes preceded by their length; the length is -1 for `None`.
fn sized(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    varint(out, bytes.map_or(-1, |bytes| bytes.len() as i64));
    out.extend_from_slice(bytes.unwrap_or_default());
}

/// A zigzag-encoded variable-length number: seven bits per byte, the lowest first.
fn varint(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The partition of a key, by the same hash as Kafka's own clients (murmur2), so that consumers that read by key find it.
pub fn partition_of(key: &[u8], partitions: usize) -> usize {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let chunks = key.chunks_exact(4);
    let rest = chunks.remainder();
    for chunk in chunks {
        let mut word = u32::from_le_bytes(chunk.try_into().expect("four bytes")).wrapping_mul(M);
        word = (word ^ word >> 24).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        hash = (hash ^ word).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^= hash >> 15;
    (hash & 0x7fff_ffff) as usize % partitions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_as_few_bytes_as_they_need() {
        for (number, want) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[126]),
            (64, &[128, 1]),
            (-300, &[215, 4]),
            (1 << 40, &[128, 128, 128, 128, 128, 64]),
        ] {
            let mut out = Vec::new();
            varint(&mut out, number);
            assert_eq!(out, want, "{number}");
        }
    }

    #[test]
    fn keys_are_where_other_clients_look_for_them() {
        // Reference values of `org.apache.kafka.common.utils.Utils.murmur2`.
        for (key, hash) in [("21", -973932308_i32), ("foobar", -790332482), ("a-little-bit-long-string", -985981536)] {
            assert_eq!(partition_of(key.as_bytes(), 1 << 31), (hash & 0x7fff_ffff) as usize, "{key}");
        }
    }

    #[test]
    fn a_batch_says_what_is_in_it() {
        let message = |value| KafkaMessage { time_ms: 1000, key: None, value, header: Some(("id", b"1")) };
        let identity = ProducerIdentity { id: 7, epoch: 1 };
        let batch = message_batch(&[message(b"one"), message(b"two")], Some((identity, 40)));
        let mut answer = AnswerBytes(&batch);
        assert_eq!(answer.i64(), Ok(0));
        assert_eq!(answer.bytes().map(<[u8]>::len), Ok(batch.len() - 12), "the length is what follows");
        let mut body = AnswerBytes(&batch[21..]);
        assert_eq!(u32::from_be_bytes(batch[17..21].try_into().expect("four")), crc32c::crc32c(&batch[21..]));
        assert_eq!((body.i16(), body.i32()), (Ok(0), Ok(1)));
        assert_eq!((body.i64(), body.i64()), (Ok(1000), Ok(1000)));
        assert_eq!((body.i64(), body.i16(), body.i32(), body.i32()), (Ok(7), Ok(1), Ok(40), Ok(2)));
        // Each record consists of its length and 14 bytes.
        assert_eq!(body.0.len(), 2 * 15);
        assert_eq!(AnswerBytes(&[0, 0, 0, 9]).bytes(), Err(AnswerCutShort));
    }
}
