//! The connection ids that this end gives its connections.

use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// The length of an id in bytes, the same for all workers and versions of Weir.
const LENGTH: usize = 8;

/// Ids whose first byte is the number of a worker modulo the number of workers, so that [`super::steer`] finds it; the rest is
/// random. An observer learns from two ids of a connection no more than that they belong to the same worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerConnectionIds {
    pub worker: u8,
    /// From 1 to 256.
    pub workers: u16,
}

impl ConnectionIdGenerator for WorkerConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; LENGTH];
        aws_lc_rs::rand::fill(&mut id).expect("the system has random numbers");
        id[0] = first_byte(*self, id[0]);
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match id.first() {
            Some(first) if u16::from(*first) % self.workers == u16::from(self.worker) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A byte that belongs to the worker, chosen by a random one among all that do.
fn first_byte(WorkerConnectionIds { worker, workers }: WorkerConnectionIds, random: u8) -> u8 {
    let of_worker = (256 - u16::from(worker)).div_ceil(workers);
    (u16::from(worker) + workers * (u16::from(random) % of_worker)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_belongs_to_its_worker() {
        for workers in [1, 2, 3, 7, 255, 256] {
            for worker in 0..workers {
                let mut ids = WorkerConnectionIds { worker: worker as u8, workers };
                for random in 0..=255 {
                    assert_eq!(u16::from(first_byte(ids, random)) % workers, worker, "{random}");
                }
                let id = ids.generate_cid();
                assert!(ids.validate(&id).is_ok() && id.len() == ids.cid_len());
                let other = WorkerConnectionIds { worker: ((worker + 1) % workers) as u8, workers };
                assert_eq!(other.validate(&id).is_ok(), workers == 1);
            }
        }
    }
}
