//! The format of records on disk: several form a parcel, so that the overhead of a journal frame is shared.
//!
//! ```text
//! parcel = version u8 | count u32 | record*
//! record = boot u64 | sequence u64 | attachments u32 | text | text*          text = length u32 | bytes
//! ```

use crate::queue::{Record, tally};
use crate::ring::Attachment;

const VERSION: u8 = 1;
/// The size, in bytes, up to which records are put into one parcel.
pub(crate) const MAX_BYTES: u64 = 256 << 10;

/// Divides records into those of each parcel, in their order. A record that is larger than a parcel has one of its own.
pub(crate) fn divide(records: Vec<Record>) -> Vec<Vec<Record>> {
    let mut parcels: Vec<Vec<Record>> = Vec::new();
    let mut bytes = 0;
    for record in records {
        let fits = bytes + record.bytes() <= MAX_BYTES;
        bytes = if fits { bytes + record.bytes() } else { record.bytes() };
        match parcels.last_mut() {
            Some(parcel) if fits => parcel.push(record),
            _ => parcels.push(vec![record]),
        }
    }
    parcels
}

pub(crate) fn encode(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::with_capacity(tally(records).bytes as usize + 32 * records.len() + 8);
    out.push(VERSION);
    out.extend_from_slice(&(records.len() as u32).to_le_bytes());
    for record in records {
        out.extend_from_slice(&record.boot.to_le_bytes());
        out.extend_from_slice(&record.sequence.to_le_bytes());
        out.extend_from_slice(&(record.attachments.len() as u32).to_le_bytes());
        text(&mut out, &record.payload);
        record.attachments.iter().for_each(|attachment| text(&mut out, attachment));
    }
    out
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// `None` if the parcel is of another version. The journal's checksums detect damage before.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Record>> {
    let (mut rest, records) = header(bytes)?;
    let mut decoded = Vec::with_capacity((records as usize).min(1 << 16));
    for _ in 0..records {
        let boot = u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
        let sequence = u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
        let attachments = number(&mut rest)?;
        let payload = sized(&mut rest)?.to_vec();
        let attachment = |_| Some(Attachment::new(sized(&mut rest)?.to_vec()));
        let attachments = (0..attachments).map(attachment).collect::<Option<_>>()?;
        decoded.push(Record { boot, sequence, payload, attachments });
    }
    Some(decoded)
}

fn header(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (&version, mut rest) = bytes.split_first()?;
    let records = number(&mut rest)?;
    (version == VERSION).then_some((rest, records))
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
}

fn sized<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = number(rest)?;
    take(rest, length as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_share_parcels_up_to_their_size() {
        let most = MAX_BYTES as usize;
        let sizes = [most + 1, 1, most - 2, 1, 1, most, 0, most + 1, 0];
        let record = |size| Record { boot: 7, sequence: 1, payload: vec![0; size], attachments: Vec::new() };
        let parcels = divide(sizes.map(record).into());
        let parcels = parcels.iter().map(|parcel| parcel.iter().map(|record| record.payload.len()).collect::<Vec<_>>());
        let expected: [&[usize]; 6] = [&[most + 1], &[1, most - 2, 1], &[1], &[most, 0], &[most + 1], &[0]];
        assert_eq!(parcels.collect::<Vec<_>>(), expected);
        assert!(divide(Vec::new()).is_empty());
    }

    proptest! {
        #[test]
        fn parcel_survives_encoding_and_decoding(
            payloads in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..3)),
                0..6,
            ),
        ) {
            let records: Vec<Record> = (1..)
                .zip(payloads)
                .map(|(sequence, (payload, bodies))| {
                    let attachments = bodies.into_iter().map(Attachment::new).collect();
                    Record { boot: 7, sequence, payload, attachments }
                })
                .collect();
            let packed = encode(&records);
            let unpacked = decode(&packed).expect("it is whole");
            prop_assert_eq!(format!("{unpacked:?}"), format!("{records:?}"));
            for cut in 0..packed.len() {
                prop_assert!(decode(&packed[..cut]).is_none());
            }
        }
    }
}
