//! The connection ids that this end gives its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use super::processes::{OtherProcesses, ProcessTag, TAG_BYTES};

/// The length of an id in bytes, the same for all workers, and for all processes that share an address: the byte of the worker, the tag
/// of the process, and random bytes, of which there must be so many that no one can ask for the reset token of an id before it is used.
pub(super) const LENGTH: usize = 1 + TAG_BYTES + 7;

/// Ids whose first byte is the number of a worker modulo the number of workers, and is followed by the tag of the process, so that
/// [`super::steer`] finds both. An observer learns from two ids of a connection no more than that they belong to the same worker of the
/// same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConnectionIds {
    pub worker: u8,
    /// From 1 to 256.
    pub workers: u16,
    pub tag: ProcessTag,
}

/// Makes the ids of a worker.
#[derive(Clone, Debug)]
pub(super) struct WorkerIdGenerator {
    pub ids: WorkerConnectionIds,
    /// The next id is for a Retry packet: the client begins its connection anew with it, at whichever process serves then, so it has no
    /// tag.
    pub is_for_retry: Arc<AtomicBool>,
    pub others: Arc<OtherProcesses>,
}

impl ConnectionIdGenerator for WorkerIdGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; LENGTH];
        aws_lc_rs::rand::fill(&mut id).expect("the system has random numbers");
        id[0] = first_byte(self.ids, id[0]);
        if !self.is_for_retry.load(Ordering::Relaxed) {
            id[1..][..TAG_BYTES].copy_from_slice(&self.ids.tag.0.to_be_bytes());
        }
        ConnectionId::new(&id)
    }

    /// Whether clients are told that there is no connection with this id. It may be of a process that has ended.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let Some(([first], [tag @ .., _, _, _, _, _, _, _])) = id.split_first_chunk() else { return Err(InvalidCid) };
        let tag = tag.try_into().map(|tag| ProcessTag(u32::from_be_bytes(tag))).map_err(|_| InvalidCid)?;
        let is_of_worker = u16::from(*first) % self.ids.workers == u16::from(self.ids.worker);
        let is_of_other = tag != self.ids.tag && self.others.may_have(tag);
        if is_of_worker && !is_of_other { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A byte that belongs to the worker, chosen by a random one among all that do.
fn first_byte(WorkerConnectionIds { worker, workers, .. }: WorkerConnectionIds, random: u8) -> u8 {
    let of_worker = (256 - u16::from(worker)).div_ceil(workers);
    (u16::from(worker) + workers * (u16::from(random) % of_worker)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: ProcessTag = ProcessTag(0x0102_0304);

    fn generator(worker: u16, workers: u16) -> WorkerIdGenerator {
        let ids = WorkerConnectionIds { worker: worker as u8, workers, tag: TAG };
        WorkerIdGenerator { ids, is_for_retry: Arc::default(), others: Arc::default() }
    }

    #[test]
    fn every_id_belongs_to_its_worker_and_its_process() {
        for workers in [1, 2, 3, 7, 255, 256] {
            for worker in 0..workers {
                let mut generator = generator(worker, workers);
                for random in 0..=255 {
                    assert_eq!(u16::from(first_byte(generator.ids, random)) % workers, worker, "{random}");
                }
                let id = generator.generate_cid();
                assert!(generator.validate(&id).is_ok() && id.len() == generator.cid_len());
                assert_eq!(id[1..5], [1, 2, 3, 4]);
                let other = self::generator((worker + 1) % workers, workers);
                assert_eq!(other.validate(&id).is_ok(), workers == 1);
            }
        }
    }

    #[test]
    fn no_client_of_another_process_is_told_before_that_has_ended() {
        let mut id_of = |tag: u32| {
            let mut generator = generator(0, 1);
            generator.ids.tag = ProcessTag(tag);
            generator.generate_cid()
        };
        let [own, earlier, unknown] = [TAG.0, 7, 8].map(&mut id_of);
        let others = Arc::new(OtherProcesses::new(vec![ProcessTag(7)]));
        let generator = WorkerIdGenerator { others: Arc::clone(&others), ..generator(0, 1) };
        let told = || [own, earlier, unknown].map(|id| generator.validate(&id).is_ok());
        assert_eq!(told(), [true, false, true]);
        others.forget(ProcessTag(7));
        assert_eq!(told(), [true, true, true]);
        others.set_later(Some(Vec::new()));
        assert_eq!(told(), [true, false, false]);
        others.set_later(None);
        assert_eq!(told(), [true, true, true]);
    }

    #[test]
    fn an_id_for_a_retry_belongs_to_no_process() {
        let mut generator = generator(1, 3);
        generator.is_for_retry.store(true, Ordering::Relaxed);
        let tagged = (0..4).filter(|_| generator.generate_cid()[1..5] == [1, 2, 3, 4]).count();
        // One of four random numbers of 32 bits may be the tag.
        assert!(tagged < 2);
    }
}
