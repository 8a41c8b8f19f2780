//! Messages as brokers store them: batches of format 2.

use crate::wire::{AnswerBytes, AnswerCutShort, Read};

/// A message of a partition.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredMessage<'a> {
    pub offset: i64,
    pub time_ms: i64,
    pub value: &'a [u8],
}

/// Offset of the batch, its length, leader epoch, format and checksum.
const BATCH_HEAD: usize = 21;
const COMPRESSION: i16 = 0b111;
const CONTROL: i16 = 0b10_0000;

/// Reads batches from an answer to Fetch, in which the last batch may be cut off. Returns messages from offset `from` on, and the
/// offset after the last whole batch, if there is one.
///
/// # Errors
/// The error describes what is wrong with a batch.
pub fn stored_messages(mut bytes: &[u8], from: i64) -> Result<(Vec<StoredMessage<'_>>, Option<i64>), &'static str> {
    let (mut messages, mut next) = (Vec::new(), None);
    while bytes.len() >= BATCH_HEAD {
        let mut head = AnswerBytes(bytes);
        let (first, length) = match (head.i64(), head.i32()) {
            (Ok(first), Ok(length)) => (first, length.max(0) as usize),
            _ => return Err("a batch has no length"),
        };
        let Some((batch, rest)) = bytes.split_at_checked(12 + length) else { break };
        if batch.len() < BATCH_HEAD || batch[16] != 2 {
            return Err("a batch is not of format 2");
        }
        let (head, body) = batch.split_at(BATCH_HEAD);
        if head[17..] != crc32c::crc32c(body).to_be_bytes() {
            return Err("the checksum of a batch is wrong");
        }
        let last = read_batch(first, body, from, &mut messages)?;
        next = Some(last.saturating_add(1));
        bytes = rest;
    }
    Ok((messages, next))
}

/// Returns the last offset.
fn read_batch<'a>(
    first: i64,
    body: &'a [u8],
    from: i64,
    messages: &mut Vec<StoredMessage<'a>>,
) -> Result<i64, &'static str> {
    let cut_short = |_: AnswerCutShort| "a batch is cut short";
    let mut body = AnswerBytes(body);
    let (attributes, last) = (body.i16().map_err(cut_short)?, body.i32().map_err(cut_short)?);
    if attributes & COMPRESSION != 0 {
        return Err("a batch is compressed: set `compression.type` of the topic to `producer`");
    }
    if attributes & CONTROL == 0 {
        let mut read = || {
            let (first_ms, _last_ms) = (body.i64()?, body.i64()?);
            let (_producer, _epoch, _sequence) = (body.i64()?, body.i16()?, body.i32()?);
            for _ in 0..body.i32()? {
                let message = read_message(&mut body, first, first_ms)?;
                messages.extend((message.offset >= from).then_some(message));
            }
            Ok(())
        };
        read().map_err(cut_short)?;
    }
    Ok(first.saturating_add(last.into()))
}

fn read_message<'a>(body: &mut AnswerBytes<'a>, first: i64, first_ms: i64) -> Read<StoredMessage<'a>> {
    let length = usize::try_from(varint(body)?).map_err(|_| AnswerCutShort)?;
    let mut message = AnswerBytes(body.take(length)?);
    let _attributes = message.i8()?;
    let time_ms = first_ms.saturating_add(varint(&mut message)?);
    let offset = first.saturating_add(varint(&mut message)?);
    let _key = sized(&mut message)?;
    Ok(StoredMessage { offset, time_ms, value: sized(&mut message)? })
}

/// Bytes preceded by their length; a length of -1 counts as empty.
fn sized<'a>(from: &mut AnswerBytes<'a>) -> Read<&'a [u8]> {
    let length = varint(from)?.max(0);
    from.take(usize::try_from(length).map_err(|_| AnswerCutShort)?)
}

/// A zigzag-encoded variable-length number: seven bits per byte, the lowest first.
fn varint(from: &mut AnswerBytes<'_>) -> Read<i64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = from.i8()? as u8;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok((number >> 1) as i64 ^ -((number & 1) as i64));
        }
    }
    Err(AnswerCutShort)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{KafkaMessage, message_batch};

    /// A batch as a broker stores it at this offset.
    fn batch(offset: i64, values: &[&[u8]]) -> Vec<u8> {
        let message =
            |(time_ms, value): (i64, &&'static [u8])| KafkaMessage { time_ms, key: None, value, header: None };
        // The values live long enough: they are literals.
        let values: Vec<&'static [u8]> = values.iter().map(|value| &*value.to_vec().leak()).collect();
        let messages: Vec<_> = (1000..).zip(&values).map(message).collect();
        let mut batch = message_batch(&messages, None);
        batch[..8].copy_from_slice(&offset.to_be_bytes());
        batch
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let two = [batch(7, &[b"one", b"two"]), batch(9, &[b""])].concat();
        let (messages, next) = stored_messages(&two, 8).expect("whole batches");
        let read: Vec<_> = messages.iter().map(|it| (it.offset, it.time_ms, it.value)).collect();
        assert_eq!((read, next), (vec![(8, 1001, &b"two"[..]), (9, 1000, b"")], Some(10)));
    }

    #[test]
    fn a_batch_that_is_cut_off_is_left_for_the_next_time() {
        let two = [batch(0, &[b"one"]), batch(1, &[b"two"])].concat();
        for end in 0..two.len() {
            let (messages, next) = stored_messages(&two[..end], 0).expect("no damage");
            let is_whole = end >= two.len() / 2;
            assert_eq!((messages.len(), next), (usize::from(is_whole), is_whole.then_some(1)), "{end}");
        }
    }

    #[test]
    fn damage_is_an_error_and_no_panic() {
        let whole = batch(0, &[b"one", b"two"]);
        for at in 12..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            // The leader epoch is not covered by the checksum.
            assert_eq!(stored_messages(&changed, 0).is_ok(), (12..16).contains(&at), "{at}");
        }
    }
}
