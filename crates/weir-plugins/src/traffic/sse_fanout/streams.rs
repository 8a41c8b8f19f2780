//! The streams of upstreams that are open, for all routes: how many there may be, and which of them have no client any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_plugin::Stop;
use weir_plugin::proto::address::client_network;

/// The most streams without a client that stay open for one client address, which may come back. The oldest gives way.
const MOST_UNUSED: usize = 4;

/// The most streams at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    pub route: usize,
    pub client: usize,
    pub node: usize,
}

/// The limit that does not allow another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLimit {
    Client,
    Route,
    Node,
}

impl StreamLimit {
    pub const ALL: [StreamLimit; 3] = [StreamLimit::Client, StreamLimit::Route, StreamLimit::Node];

    /// As in metrics.
    pub fn name(self) -> &'static str {
        match self {
            StreamLimit::Route => "route",
            StreamLimit::Client => "client",
            StreamLimit::Node => "node",
        }
    }
}

impl From<StreamLimit> for Stop {
    fn from(limit: StreamLimit) -> Stop {
        match limit {
            StreamLimit::Client => Stop::TooManyStreamsOfClient,
            StreamLimit::Route | StreamLimit::Node => Stop::TooManyStreams,
        }
    }
}

/// For whom a stream was opened.
#[derive(Clone, Copy, Debug)]
pub struct StreamOwner {
    /// The number of the plugin on its route, from [`OpenStreams::route`].
    pub route: u64,
    pub client: IpAddr,
}

/// The open streams of this process.
#[derive(Default)]
pub struct OpenStreams {
    uses: Mutex<StreamUses>,
    routes: AtomicU64,
    refused: [AtomicU64; StreamLimit::ALL.len()],
}

#[derive(Default)]
struct StreamUses {
    node: StreamUse,
    clients: HashMap<IpAddr, StreamUse>,
    routes: HashMap<u64, StreamUse>,
    /// The streams without a client, by when they lost their last one.
    unused: BTreeMap<u64, UnusedStream>,
    next: u64,
}

/// The streams of one owner.
#[derive(Default)]
struct StreamUse {
    open: usize,
    /// Those without a client, the oldest first.
    unused: BTreeSet<u64>,
}

struct UnusedStream {
    owner: StreamOwner,
    is_ended: Arc<AtomicBool>,
    end: EndUnused,
}

/// Ends a stream unless it has a client again; returns whether it has ended.
pub(super) type EndUnused = Box<dyn Fn() -> bool + Send>;

impl OpenStreams {
    fn uses(&self) -> MutexGuard<'_, StreamUses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a plugin on its route.
    pub fn route(&self) -> u64 {
        self.routes.fetch_add(1, Relaxed)
    }

    /// The number of streams that are open.
    pub fn open_now(&self) -> usize {
        self.uses().node.open
    }

    /// The number of streams that were refused because of a limit.
    pub fn refused(&self, limit: StreamLimit) -> u64 {
        self.refused[limit as usize].load(Relaxed)
    }

    /// Permits one more stream. Streams without a client are ended for it.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn open(
        self: &Arc<Self>,
        owner: StreamOwner,
        limits: StreamLimits,
    ) -> Result<UpstreamStreamPermit, StreamLimit> {
        let owner = StreamOwner { client: client_network(owner.client), ..owner };
        let opened = self.uses().open(owner, limits);
        opened.inspect_err(|limit| _ = self.refused[*limit as usize].fetch_add(1, Relaxed))?;
        Ok(UpstreamStreamPermit { streams: Arc::clone(self), owner, unused: None, is_ended: Arc::default() })
    }
}

impl StreamUses {
    fn open(&mut self, owner: StreamOwner, limits: StreamLimits) -> Result<(), StreamLimit> {
        let made = StreamLimit::ALL.into_iter().try_for_each(|limit| self.make_room(owner, limit, limits));
        match made {
            Ok(()) => StreamLimit::ALL.iter().for_each(|limit| self.of(owner, *limit).open += 1),
            Err(_) => self.forget_owner(owner),
        }
        made
    }

    fn make_room(&mut self, owner: StreamOwner, limit: StreamLimit, limits: StreamLimits) -> Result<(), StreamLimit> {
        let most = match limit {
            StreamLimit::Client => limits.client,
            StreamLimit::Route => limits.route,
            StreamLimit::Node => limits.node,
        };
        while self.of(owner, limit).open >= most {
            let oldest = self.of(owner, limit).unused.first().copied().ok_or(limit)?;
            self.end(oldest);
        }
        Ok(())
    }

    fn of(&mut self, owner: StreamOwner, limit: StreamLimit) -> &mut StreamUse {
        match limit {
            StreamLimit::Route => self.routes.entry(owner.route).or_default(),
            StreamLimit::Client => self.clients.entry(owner.client).or_default(),
            StreamLimit::Node => &mut self.node,
        }
    }

    fn close(&mut self, owner: StreamOwner) {
        StreamLimit::ALL.iter().for_each(|limit| self.of(owner, *limit).open -= 1);
        self.forget_owner(owner);
    }

    /// Counts an open stream for another client, also beyond its limit: the stream goes on.
    fn pass(&mut self, from: StreamOwner, to: StreamOwner) {
        self.of(from, StreamLimit::Client).open -= 1;
        self.of(to, StreamLimit::Client).open += 1;
        self.forget_owner(from);
    }

    fn forget_owner(&mut self, owner: StreamOwner) {
        if self.of(owner, StreamLimit::Client).open == 0 {
            self.clients.remove(&owner.client);
        }
        if self.of(owner, StreamLimit::Route).open == 0 {
            self.routes.remove(&owner.route);
        }
    }

    fn add_unused(&mut self, stream: UnusedStream) -> u64 {
        let (number, owner) = (self.next, stream.owner);
        self.next += 1;
        StreamLimit::ALL.iter().for_each(|limit| _ = self.of(owner, *limit).unused.insert(number));
        self.unused.insert(number, stream);
        let of_client = &self.of(owner, StreamLimit::Client).unused;
        if let Some(oldest) = of_client.first().copied().filter(|_| of_client.len() > MOST_UNUSED) {
            self.end(oldest);
        }
        number
    }

    fn remove_unused(&mut self, number: u64) -> Option<UnusedStream> {
        let stream = self.unused.remove(&number)?;
        StreamLimit::ALL.iter().for_each(|limit| _ = self.of(stream.owner, *limit).unused.remove(&number));
        Some(stream)
    }

    /// Ends a stream without a client. If a client has come meanwhile, the stream only counts as used again.
    fn end(&mut self, number: u64) {
        let Some(stream) = self.remove_unused(number) else { return };
        if (stream.end)() {
            stream.is_ended.store(true, Relaxed);
            self.close(stream.owner);
        }
    }
}

/// The right to have a stream open.
pub struct UpstreamStreamPermit {
    streams: Arc<OpenStreams>,
    owner: StreamOwner,
    /// The number of the stream among those without a client.
    unused: Option<u64>,
    is_ended: Arc<AtomicBool>,
}

impl UpstreamStreamPermit {
    /// The stream has no client any more. Until [`UpstreamStreamPermit::used`] it is ended when another one needs its place.
    pub fn unused(&mut self, end: EndUnused) {
        let stream = UnusedStream { owner: self.owner, is_ended: Arc::clone(&self.is_ended), end };
        self.unused = Some(self.streams.uses().add_unused(stream));
    }

    /// The stream counts for another client from now on.
    pub fn pass_to(&mut self, client: IpAddr) {
        let owner = StreamOwner { client: client_network(client), ..self.owner };
        let mut uses = self.streams.uses();
        // As one without a client it stays with the last one.
        if self.unused.is_none() && !self.is_ended.load(Relaxed) {
            uses.pass(self.owner, owner);
            drop(uses);
            self.owner = owner;
        }
    }

    /// The stream has a client again.
    pub fn used(&mut self) {
        if let Some(number) = self.unused.take() {
            self.streams.uses().remove_unused(number);
        }
    }
}

impl Drop for UpstreamStreamPermit {
    fn drop(&mut self) {
        self.used();
        let mut uses = self.streams.uses();
        if !self.is_ended.load(Relaxed) {
            uses.close(self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StreamLimits = StreamLimits { route: 6, client: 3, node: 8 };

    fn owner(route: u64, client: u8) -> StreamOwner {
        StreamOwner { route, client: IpAddr::from([10, 0, 0, client]) }
    }

    #[test]
    fn each_limit_is_enforced_and_named() {
        let streams = Arc::<OpenStreams>::default();
        let open = |route, client| streams.open(owner(route, client), LIMITS);
        let mut permits: Vec<_> = (0..3).map(|_| open(0, 1).expect("a place")).collect();
        assert_eq!(open(0, 1).err(), Some(StreamLimit::Client));
        permits.extend((0..3).map(|_| open(0, 2).expect("a place")));
        assert_eq!(open(0, 3).err(), Some(StreamLimit::Route));
        permits.extend((0..2).map(|_| open(1, 3).expect("a place")));
        assert_eq!(open(1, 4).err(), Some(StreamLimit::Node));
        assert_eq!(StreamLimit::ALL.map(|limit| streams.refused(limit)), [1, 1, 1]);
        permits.remove(0);
        assert!(open(0, 1).is_ok());
        permits.clear();
        let uses = streams.uses();
        assert!(uses.clients.is_empty() && uses.routes.is_empty() && uses.node.open == 0, "nothing of them is kept");
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let streams = Arc::<OpenStreams>::default();
        let of = |last: u16| StreamOwner { route: 0, client: IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]) };
        let _permits: Vec<_> = (0..3).map(|last| streams.open(of(last), LIMITS).expect("a place")).collect();
        assert_eq!(streams.open(of(9), LIMITS).err(), Some(StreamLimit::Client));
    }

    #[test]
    fn a_stream_counts_for_the_client_that_it_was_passed_to() {
        let streams = Arc::<OpenStreams>::default();
        let mut permits: Vec<_> = (0..3).map(|_| streams.open(owner(0, 1), LIMITS).expect("a place")).collect();
        permits[0].pass_to(owner(0, 2).client);
        permits[0].pass_to(owner(0, 2).client);
        permits.push(streams.open(owner(0, 1), LIMITS).expect("it has two now"));
        permits.extend((0..2).map(|_| streams.open(owner(0, 2), LIMITS).expect("it has one")));
        assert_eq!(streams.open(owner(1, 2), LIMITS).err(), Some(StreamLimit::Client));
        drop(permits);
        assert!(streams.uses().clients.is_empty() && streams.open_now() == 0);
    }

    #[test]
    fn streams_without_a_client_give_way() {
        let streams = Arc::<OpenStreams>::default();
        let ended = Arc::new(AtomicU64::new(0));
        let end = |may_end: bool| -> EndUnused {
            let ended = Arc::clone(&ended);
            Box::new(move || {
                ended.fetch_add(u64::from(may_end), Relaxed);
                may_end
            })
        };
        let mut permits: Vec<_> = (0..3).map(|_| streams.open(owner(0, 1), LIMITS).expect("a place")).collect();
        permits[0].unused(end(true));
        permits[1].unused(end(false));
        permits[2].unused(end(true));
        permits[2].used();
        permits.push(streams.open(owner(0, 1), LIMITS).expect("the place of the first"));
        assert_eq!(ended.load(Relaxed), 1);
        assert_eq!(streams.open(owner(0, 1), LIMITS).err(), Some(StreamLimit::Client), "the second has a client again");
        assert_eq!(streams.open_now(), 3);
        drop(permits);
        assert_eq!(streams.open_now(), 0);
    }

    #[test]
    fn few_streams_of_a_client_stay_without_it() {
        let streams = Arc::<OpenStreams>::default();
        let ended = Arc::new(Mutex::new(Vec::new()));
        let limits = StreamLimits { route: 100, client: 100, node: 100 };
        let mut permits = Vec::new();
        for number in 0..10 {
            let mut permit = streams.open(owner(0, 1), limits).expect("a place");
            let ended = Arc::clone(&ended);
            permit.unused(Box::new(move || {
                ended.lock().expect("no test panics with it").push(number);
                true
            }));
            permits.push(permit);
        }
        assert_eq!(*ended.lock().expect("no test panics with it"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(streams.open_now(), MOST_UNUSED);
    }
}
