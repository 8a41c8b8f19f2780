//! Accepted requests that are not verified yet, found by number, and by topic and callback.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::names::Names;
use super::numbers::{ClientNumber, HostNumber};
use crate::form::SubscriptionRequest;

pub(super) struct OpenRequest {
    pub(super) request: SubscriptionRequest,
    /// The host of its callback.
    pub(super) host: HostNumber,
    pub(super) step: RequestStep,
    /// The number of its client's name.
    client: ClientNumber,
}

/// How far the verification of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStep {
    /// It begins when the request is on disk.
    Unwritten,
    /// It waits for its turn at the host.
    Queued,
    /// It is under way.
    Asked,
}

#[derive(Default)]
pub(super) struct OpenRequests {
    by_number: HashMap<u64, OpenRequest>,
    /// Numbers by topic and callback; several requests for one pair may be open.
    by_key: HashTable<u64>,
    hasher: RandomState,
    /// The clients, each counted once per request.
    clients: Names<ClientNumber>,
}

fn key(request: &SubscriptionRequest) -> (&str, &str) {
    (&request.topic, &request.callback)
}

impl OpenRequests {
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// The host that a request's verification is to be queued at, and the number of its client; `None` if it has been queued.
    pub(super) fn host_to_ask(&mut self, number: u64) -> Option<(HostNumber, ClientNumber)> {
        let open = self.by_number.get_mut(&number).filter(|open| open.step == RequestStep::Unwritten)?;
        open.step = RequestStep::Queued;
        Some((open.host, open.client))
    }

    /// The host of a request's callback.
    pub(super) fn host_of(&self, number: u64) -> Option<HostNumber> {
        self.by_number.get(&number).map(|open| open.host)
    }

    /// Begins the verification of a request.
    pub(super) fn ask(&mut self, number: u64) -> Option<&SubscriptionRequest> {
        let open = self.by_number.get_mut(&number)?;
        open.step = RequestStep::Asked;
        Some(&open.request)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &SubscriptionRequest)> {
        self.by_number.iter().map(|(number, open)| (*number, &open.request))
    }

    /// The number of requests of a client.
    pub(super) fn count_of(&self, client: &str) -> usize {
        self.clients.find(client).map_or(0, |client| self.clients.uses(client) as usize)
    }

    pub(super) fn insert(&mut self, number: u64, request: SubscriptionRequest, host: HostNumber) {
        let client = self.clients.add(&request.client);
        let open = OpenRequest { request, host, step: RequestStep::Unwritten, client };
        let hash = self.hasher.hash_one(key(&open.request));
        self.by_number.insert(number, open);
        let (by_number, hasher) = (&self.by_number, &self.hasher);
        self.by_key.insert_unique(hash, number, |number| hasher.hash_one(key(&by_number[number].request)));
    }

    /// Removes a request. The memory is released when none is left.
    pub(super) fn remove(&mut self, number: u64) -> Option<OpenRequest> {
        let open = self.by_number.remove(&number)?;
        let hash = self.hasher.hash_one(key(&open.request));
        if let Ok(entry) = self.by_key.find_entry(hash, |other| *other == number) {
            entry.remove();
        }
        if self.clients.release(open.client) {
            self.clients.forget(open.client);
        }
        if self.by_number.is_empty() {
            *self = OpenRequests::default();
        }
        Some(open)
    }

    /// Earlier requests for the same subscription.
    pub(super) fn older(&self, number: u64, request: &SubscriptionRequest) -> Vec<u64> {
        let same_hash = self.by_key.iter_hash(self.hasher.hash_one(key(request))).copied();
        let is_older = |other: &u64| *other < number && key(&self.by_number[other].request) == key(request);
        same_hash.filter(is_older).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::request;

    #[test]
    fn older_requests_for_the_same_subscription_are_found() {
        let mut requests = OpenRequests::default();
        for number in 1..=1_000 {
            requests.insert(number, request(&format!("http://c.example/{}", number % 100)), 0.into());
        }
        let wanted = request("http://c.example/7");
        let mut older = requests.older(307, &wanted);
        older.sort_unstable();
        assert_eq!(older, [7, 107, 207]);
        assert!(requests.remove(107).is_some() && requests.remove(107).is_none());
        assert_eq!(requests.older(208, &wanted).len(), 2);
        assert_eq!(requests.older(2_000, &request("http://c.example/100")), [0; 0]);
    }

    #[test]
    fn requests_are_counted_by_client() {
        let mut requests = OpenRequests::default();
        for (number, client) in [(1, "jack"), (2, "192.0.2.1"), (3, "jack")] {
            requests.insert(
                number,
                SubscriptionRequest { client: client.into(), ..request("http://c.example/") },
                0.into(),
            );
        }
        assert_eq!(["jack", "192.0.2.1", "jill"].map(|client| requests.count_of(client)), [2, 1, 0]);
        requests.remove(1);
        requests.remove(2);
        assert_eq!(["jack", "192.0.2.1"].map(|client| requests.count_of(client)), [1, 0]);
    }

    #[test]
    fn many_requests_leave_no_memory_behind() {
        let mut requests = OpenRequests::default();
        for number in 1..=1_000 {
            requests.insert(number, request(&format!("http://c.example/{number}")), 0.into());
        }
        assert!((1..=1_000).all(|number| requests.remove(number).is_some()));
        assert_eq!((requests.len(), requests.by_number.capacity(), requests.by_key.capacity()), (0, 0, 0));
    }
}
