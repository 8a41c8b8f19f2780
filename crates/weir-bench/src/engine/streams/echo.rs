//! Bytes over TCP and TLS, and datagrams over UDP, without a protocol: an exchange is a message and the same bytes back.

use std::rc::Rc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;
use tokio::sync::Mutex;

use super::dial::{DialedStream, dial};
use super::slots::{self, Exchanges};
use super::{Answered, PreparedStreams, StreamExchange, StreamsState, all};
use crate::engine::clock::now_ns;
use crate::engine::job::Job;
use crate::engine::prepare::filler;
use crate::engine::recorder::Cause;
use crate::engine::socket::{self, stream_cause};

/// The most bytes read at once.
const READ_BYTES: usize = 256 * 1024;
/// The largest datagram of UDP.
const DATAGRAM_BYTES: usize = 65_535;

/// What messages are carried by.
pub(super) trait Carrier: Sized + 'static {
    async fn open(lobby: &PreparedStreams, client: usize, request: usize) -> Result<Self, Cause>;

    /// Sends `message` and receives as many bytes into `answer`, which is empty.
    async fn exchange(&mut self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), Cause>;
}

pub(super) async fn run<C: Carrier>(job: Job, message_bytes: usize) {
    let lobby = PreparedStreams::new(job.prepared.clone());
    let clients = job.clients.clone();
    let keeps = job.plan().keep_alive;
    let echo = Rc::new(EchoStream::<C> {
        lobby: lobby.clone(),
        first_client: clients.start,
        message: filler(message_bytes),
        keeps,
        slots: clients.clone().map(|_| Mutex::default()).collect(),
    });
    if keeps && job.prepared.origins.len() == 1 {
        // Failed connections are opened again when they are needed.
        all(0..clients.len(), async |slot| {
            if let Ok(carrier) = echo.open(slot, 0).await {
                echo.slots[slot].lock().await.carrier = Some(carrier);
            }
        })
        .await;
        lobby.all_tried();
    }
    let Some(shared) = StreamsState::start(job, lobby) else { return };
    let tasks = slots::run(&shared, clients.len(), 1, &echo);
    // The connections are counted as open until `echo` is dropped.
    shared.conclude(tasks).await;
}

struct EchoStream<C> {
    lobby: Rc<PreparedStreams>,
    first_client: usize,
    message: Vec<u8>,
    /// A connection is used for further messages.
    keeps: bool,
    slots: Vec<Mutex<EchoSlot<C>>>,
}

struct EchoSlot<C> {
    carrier: Option<OpenCarrier<C>>,
    answer: Vec<u8>,
}

impl<C> Default for EchoSlot<C> {
    fn default() -> Self {
        EchoSlot { carrier: None, answer: Vec::new() }
    }
}

/// Counts as closed when it is dropped, also if its exchange takes too long.
struct OpenCarrier<C> {
    carrier: C,
    lobby: Rc<PreparedStreams>,
}

impl<C> Drop for OpenCarrier<C> {
    fn drop(&mut self) {
        self.lobby.closed();
    }
}

impl<C: Carrier> EchoStream<C> {
    async fn open(&self, slot: usize, request: usize) -> Result<OpenCarrier<C>, Cause> {
        let _turn = self.lobby.dialing.acquire().await;
        let since = now_ns();
        let opened = C::open(&self.lobby, self.first_client + slot, request).await;
        let carrier = opened.inspect_err(|cause| self.lobby.refused(*cause))?;
        self.lobby.opened(since);
        Ok(OpenCarrier { carrier, lobby: self.lobby.clone() })
    }
}

impl<C: Carrier> Exchanges for EchoStream<C> {
    async fn exchange(&self, slot: usize, exchange: StreamExchange) -> Result<Answered, Cause> {
        let mut place = self.slots[slot].lock().await;
        let place = &mut *place;
        let mut open = match place.carrier.take() {
            Some(open) => open,
            None => self.open(slot, exchange.request).await?,
        };
        place.answer.clear();
        open.carrier.exchange(&self.message, &mut place.answer).await?;
        if place.answer != self.message {
            return Err(Cause::Mismatch);
        }
        if self.keeps {
            place.carrier = Some(open);
        }
        let bytes = self.message.len() as u64;
        Ok(Answered { sent: bytes, received: bytes, ..Answered::default() })
    }
}

impl Carrier for DialedStream {
    async fn open(lobby: &PreparedStreams, client: usize, request: usize) -> Result<Self, Cause> {
        dial(lobby, client, request).await
    }

    /// Receives while it sends: a message may be larger than all buffers on its way.
    async fn exchange(&mut self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), Cause> {
        let (mut receiver, mut sender) = tokio::io::split(self);
        let send = async {
            sender.write_all(message).await?;
            sender.flush().await
        };
        let receive = async {
            let mut left = message.len();
            while left > 0 {
                answer.reserve(left.min(READ_BYTES));
                let read = (&mut receiver).take(left as u64).read_buf(answer).await?;
                if read == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                left -= read;
            }
            Ok(())
        };
        tokio::try_join!(send, receive).map(|_| ()).map_err(|error| stream_cause(&error))
    }
}

impl Carrier for UdpSocket {
    async fn open(lobby: &PreparedStreams, client: usize, request: usize) -> Result<Self, Cause> {
        let prepared = &lobby.prepared;
        let source = prepared.plan.source_address(client);
        let address = prepared.origins[prepared.requests[request].origin].address;
        let socket = socket::connect_datagrams(address, source)?;
        UdpSocket::from_std(socket).map_err(|_| Cause::Local)
    }

    async fn exchange(&mut self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), Cause> {
        answer.reserve(DATAGRAM_BYTES);
        self.send(message).await.map_err(|error| stream_cause(&error))?;
        self.recv_buf(answer).await.map_err(|error| stream_cause(&error))?;
        Ok(())
    }
}
