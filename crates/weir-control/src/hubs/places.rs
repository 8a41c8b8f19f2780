//! How many may do something with a hub at a time, all together and for each client.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The places that are taken.
#[derive(Default)]
pub(super) struct ClientPlaces {
    taken: Mutex<TakenPlaces>,
    refused: [AtomicU64; 2],
}

#[derive(Default)]
struct TakenPlaces {
    all: usize,
    /// Of the clients that have places.
    clients: HashMap<Box<str>, usize>,
}

/// The most places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceLimits {
    pub(super) all: usize,
    pub(super) client: usize,
}

/// The limit that does not allow another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceLimit {
    All,
    Client,
}

/// A place. Dropping it leaves it to others.
pub(super) struct ClientPlace {
    places: Arc<ClientPlaces>,
    client: Box<str>,
}

impl ClientPlaces {
    fn taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many places are taken.
    pub(super) fn count(&self) -> usize {
        self.taken().all
    }

    /// How often a place was refused because of this limit.
    pub(super) fn refused(&self, limit: PlaceLimit) -> u64 {
        self.refused[limit as usize].load(Relaxed)
    }

    /// A place for a client.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn take(self: &Arc<Self>, client: Box<str>, limits: PlaceLimits) -> Result<ClientPlace, PlaceLimit> {
        let mut taken = self.taken();
        let of_client = taken.clients.get(&client).copied().unwrap_or_default();
        let reached = match () {
            () if of_client >= limits.client => Some(PlaceLimit::Client),
            () if taken.all >= limits.all => Some(PlaceLimit::All),
            () => None,
        };
        if let Some(limit) = reached {
            self.refused[limit as usize].fetch_add(1, Relaxed);
            return Err(limit);
        }
        taken.all += 1;
        taken.clients.insert(client.clone(), of_client + 1);
        Ok(ClientPlace { places: Arc::clone(self), client })
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(count) = taken.clients.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                taken.clients.remove(&self.client);
            }
        }
        if taken.clients.is_empty() {
            taken.clients.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_nothing_is_kept_of_clients_that_have_gone() {
        let places = Arc::<ClientPlaces>::default();
        let take = |client: &str| places.take(client.into(), PlaceLimits { all: 3, client: 2 });
        let mut taken = vec![take("a").ok(), take("a").ok()];
        assert_eq!(take("a").err(), Some(PlaceLimit::Client));
        taken.push(take("b").ok());
        assert_eq!(take("c").err(), Some(PlaceLimit::All));
        taken.remove(0);
        assert!(take("c").is_ok(), "and it is left at once");
        assert_eq!((places.count(), places.refused(PlaceLimit::All), places.refused(PlaceLimit::Client)), (2, 1, 1));
        taken.clear();
        assert!(places.count() == 0 && places.taken().clients.is_empty());
    }
}
