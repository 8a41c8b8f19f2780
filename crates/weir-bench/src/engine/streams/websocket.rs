//! WebSocket: messages and their answers, and connect storms.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderName, HeaderValue};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;
use tokio_websockets::{ClientBuilder, Error, Message, WebSocketStream};

use super::dial::{DialedStream, dial};
use super::slots::{self, Exchanges};
use super::{Answered, PreparedStreams, RETRY, StreamExchange, StreamsState, all, sleep_until};
use crate::engine::clock::now_ns;
use crate::engine::job::Job;
use crate::engine::pacing::{Arrivals, Pauses};
use crate::engine::plan::{EchoCheck, Pacing};
use crate::engine::prepare::filler;
use crate::engine::recorder::Cause;

type WebSocket = WebSocketStream<DialedStream>;

/// The number of digits at the start of a message that identify it, if it is long enough.
const NUMBER: usize = 16;
/// The longest wait for sending a close frame.
const FAREWELL: std::time::Duration = std::time::Duration::from_millis(200);

/// Connects and upgrades; counts the connection or its failure.
async fn open(lobby: &PreparedStreams, client: usize, request: usize) -> Result<WebSocket, Cause> {
    let _turn = lobby.dialing.acquire().await;
    let since = now_ns();
    let template = &lobby.prepared.requests[request].template;
    let connected = async {
        let mut builder = ClientBuilder::new().uri(&template.url).map_err(|_| Cause::Protocol)?;
        for (name, value) in &template.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()))
            {
                builder = builder.add_header(name, value).map_err(|_| Cause::Protocol)?;
            }
        }
        let stream = dial(lobby, client, request).await?;
        let limit = std::time::Duration::from_millis(lobby.prepared.plan.timeouts.connect_ms);
        let upgrade = tokio::time::timeout(limit, builder.connect_on(stream)).await;
        upgrade.map_err(|_| Cause::ConnectTimeout)?.map(|(websocket, _)| websocket).map_err(|_| Cause::Protocol)
    };
    let websocket = connected.await.inspect_err(|cause| lobby.refused(*cause))?;
    lobby.opened(since);
    Ok(websocket)
}

/// A connect storm: an exchange is connect, upgrade and close.
pub(super) async fn storm(job: Job) {
    let lobby = PreparedStreams::new(job.prepared.clone());
    let Some(shared) = StreamsState::start(job, lobby.clone()) else { return };
    let storm = Rc::new(Storm { lobby, first_client: shared.clients.start });
    let tasks = slots::run(&shared, shared.clients.len(), 1, &storm);
    shared.conclude(tasks).await;
}

struct Storm {
    lobby: Rc<PreparedStreams>,
    first_client: usize,
}

impl Exchanges for Storm {
    async fn exchange(&self, slot: usize, exchange: StreamExchange) -> Result<Answered, Cause> {
        let mut websocket = open(&self.lobby, self.first_client + slot, exchange.request).await?;
        let closed = async {
            websocket.close().await?;
            // Reads the peer's close frame, then the end of the stream.
            while websocket.next().await.transpose()?.is_some() {}
            Ok(())
        };
        let outcome: Result<(), Error> = closed.await;
        self.lobby.closed();
        match outcome {
            Ok(()) | Err(Error::AlreadyClosed) => Ok(Answered { status: Some(101), ..Answered::default() }),
            Err(error) => Err(cause(&error)),
        }
    }
}

/// Messages, over connections that stay open.
pub(super) async fn messages(job: Job, message_bytes: usize, check: EchoCheck) {
    let lobby = PreparedStreams::new(job.prepared.clone());
    let clients = job.clients.clone();
    let ramps = matches!(job.plan().pacing, Pacing::Closed { ramp_up_ms, .. } if ramp_up_ms > 0);
    let connected = match ramps {
        true => clients.clone().map(|_| None).collect(),
        false => {
            let connected = all(clients.clone(), async |client| open(&lobby, client, 0).await.ok()).await;
            lobby.all_tried();
            connected
        }
    };
    let Some(shared) = StreamsState::start(job, lobby) else { return };
    let form = Rc::new(MessageForm { filler: filler(message_bytes), check, next: Cell::new(0) });
    let plan = shared.plan();
    let tasks = match Arrivals::new(&plan.pacing, plan.seed, shared.thread, plan.threads) {
        None => closed(&shared, connected, &form),
        Some(arrivals) => paced(&shared, connected, &form, arrivals),
    };
    shared.conclude(tasks).await;
}

/// The form of messages and of their answers.
struct MessageForm {
    filler: Vec<u8>,
    check: EchoCheck,
    next: Cell<u64>,
}

impl MessageForm {
    /// The next message, and its number.
    fn message(&self) -> (u64, Message) {
        let number = self.next.get();
        self.next.set(number + 1);
        (number, Message::text(String::from_utf8(self.bytes(number)).expect("filler and digits are text")))
    }

    fn bytes(&self, number: u64) -> Vec<u8> {
        let mut bytes = self.filler.clone();
        if let Some(start) = bytes.get_mut(..NUMBER) {
            start.copy_from_slice(format!("{number:0NUMBER$}").as_bytes());
        }
        bytes
    }

    /// Whether this is the answer to message `number`.
    fn answers(&self, number: u64, answer: &[u8]) -> bool {
        let sent = self.bytes(number);
        match self.check {
            EchoCheck::Any => true,
            EchoCheck::Same => answer == sent,
            EchoCheck::Reversed => answer.iter().eq(sent.iter().rev()),
        }
    }
}

/// Closed loop: a client sends its next message after the answer to the last one.
fn closed(shared: &Rc<StreamsState>, connected: Vec<Option<WebSocket>>, form: &Rc<MessageForm>) -> Vec<JoinHandle<()>> {
    let Pacing::Closed { think, .. } = shared.plan().pacing else { unreachable!("the others have arrivals") };
    let pauses = Rc::new(RefCell::new(Pauses::new(think, shared.plan().seed, shared.thread)));
    let client =
        |(client, websocket)| spawn_local(converse(shared.clone(), client, websocket, form.clone(), pauses.clone()));
    connected.into_iter().enumerate().map(client).collect()
}

async fn converse(
    shared: Rc<StreamsState>,
    client: usize,
    mut connected: Option<WebSocket>,
    form: Rc<MessageForm>,
    pauses: Rc<RefCell<Pauses>>,
) {
    let lobby = shared.lobby().clone();
    let mut due = shared.client_start(client);
    loop {
        tokio::select! {
            () = sleep_until(due) => {}
            () = shared.ended() => break,
        }
        let Some(request) = shared.due(client, due) else { break };
        let exchange = shared.begin(request, due, false);
        let outcome = shared
            .in_time(async {
                let websocket = match &mut connected {
                    Some(websocket) => websocket,
                    none => none.insert(open(&lobby, shared.clients.start + client, request).await?),
                };
                let (number, message) = form.message();
                let sent = message.as_payload().len() as u64;
                websocket.send(message).await.map_err(|error| cause(&error))?;
                let answer = next_message(websocket).await?;
                match form.answers(number, &answer) {
                    true => Ok(Answered { sent, received: answer.len() as u64, ..Answered::default() }),
                    false => Err(Cause::Mismatch),
                }
            })
            .await;
        shared.finish(exchange, outcome);
        if outcome.is_err() {
            if connected.take().is_some() {
                lobby.closed();
            } else {
                sleep(RETRY).await;
            }
        }
        let pause = pauses.borrow_mut().draw();
        due = now_ns() + pause;
    }
    if let Some(mut websocket) = connected {
        farewell(&mut websocket).await;
    }
}

/// Sends a close frame, as RFC 6455 §7.1.1 requires.
async fn farewell(sink: &mut (impl futures_util::Sink<Message, Error = Error> + Unpin)) {
    // Limited, because the peer may no longer read.
    let _ = tokio::time::timeout(FAREWELL, sink.close()).await;
}

/// The next text or binary message.
async fn next_message(
    websocket: &mut (impl futures_util::Stream<Item = Result<Message, Error>> + Unpin),
) -> Result<Vec<u8>, Cause> {
    loop {
        let message = websocket.next().await.ok_or(Cause::Closed)?.map_err(|error| cause(&error))?;
        if message.is_close() {
            return Err(Cause::Closed);
        }
        if message.is_text() || message.is_binary() {
            return Ok(message.as_payload().to_vec());
        }
    }
}

/// Open loop: messages are due by the clock, and are sent on the connections in turn; several may be in flight on one.
fn paced(
    shared: &Rc<StreamsState>,
    connected: Vec<Option<WebSocket>>,
    form: &Rc<MessageForm>,
    arrivals: Arrivals,
) -> Vec<JoinHandle<()>> {
    let mut inboxes = Vec::new();
    let mut tasks = Vec::new();
    for (client, websocket) in connected.into_iter().enumerate() {
        let (inbox, orders) = mpsc::unbounded_channel();
        inboxes.push(inbox);
        tasks.push(spawn_local(carry(shared.clone(), client, websocket, form.clone(), orders)));
    }
    let shared = shared.clone();
    tasks.push(spawn_local(async move {
        let mut turn = 0;
        slots::due(&shared, arrivals, |request, due| {
            // Does not fail: each connection receives until this task ends.
            let _ = inboxes[turn].send((request, due));
            turn = (turn + 1) % inboxes.len();
        })
        .await;
    }));
    tasks
}

/// The messages in flight on one connection, oldest first.
type PendingMessages = Rc<RefCell<VecDeque<(u64, StreamExchange)>>>;

/// One connection of an open loop, which is reopened when it fails.
async fn carry(
    shared: Rc<StreamsState>,
    client: usize,
    mut connected: Option<WebSocket>,
    form: Rc<MessageForm>,
    mut orders: mpsc::UnboundedReceiver<(usize, u64)>,
) {
    let lobby = shared.lobby().clone();
    let pending = PendingMessages::default();
    loop {
        let websocket = match connected.take() {
            Some(websocket) => websocket,
            None => {
                let Some((request, due)) = orders.recv().await else { return };
                let exchange = shared.begin(request, due, false);
                match open(&lobby, shared.clients.start + client, request).await {
                    Ok(mut websocket) => {
                        let (number, message) = form.message();
                        if let Err(error) = websocket.send(message).await {
                            lobby.closed();
                            shared.finish(exchange, Err(cause(&error)));
                            continue;
                        }
                        pending.borrow_mut().push_back((number, exchange));
                        websocket
                    }
                    Err(cause) => {
                        shared.finish(exchange, Err(cause));
                        continue;
                    }
                }
            }
        };
        let (mut sink, stream) = websocket.split();
        let outcome = tokio::select! {
            outcome = answers(&shared, stream, &form, &pending) => outcome,
            outcome = send(&shared, &mut sink, &form, &pending, &mut orders) => outcome,
        };
        let Err(cause) = outcome else { return farewell(&mut sink).await };
        lobby.closed();
        for (_, exchange) in pending.borrow_mut().drain(..) {
            shared.finish(exchange, Err(cause));
        }
    }
}

/// Sends the messages that are due. Returns `Ok` when no more are due and all have been answered.
async fn send(
    shared: &StreamsState,
    sink: &mut SplitSink<WebSocket, Message>,
    form: &MessageForm,
    pending: &PendingMessages,
    orders: &mut mpsc::UnboundedReceiver<(usize, u64)>,
) -> Result<(), Cause> {
    while let Some((request, due)) = orders.recv().await {
        let exchange = shared.begin(request, due, false);
        let (number, message) = form.message();
        pending.borrow_mut().push_back((number, exchange));
        sink.send(message).await.map_err(|error| cause(&error))?;
    }
    while !pending.borrow().is_empty() {
        sleep(std::time::Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Receives the answers, in the order of the messages. Returns only with an error.
async fn answers(
    shared: &StreamsState,
    mut stream: SplitStream<WebSocket>,
    form: &MessageForm,
    pending: &PendingMessages,
) -> Result<(), Cause> {
    loop {
        let oldest = pending.borrow().front().map(|(_, exchange)| exchange.started);
        let limit = shared.plan().timeouts.response_ms * 1_000_000;
        // Without a message in flight, wait for at most a time-out, then check for one again.
        let wait_ns = oldest.map_or(limit, |started| (started + limit).saturating_sub(now_ns())).max(1_000_000);
        let answer =
            match tokio::time::timeout(std::time::Duration::from_nanos(wait_ns), next_message(&mut stream)).await {
                Ok(answer) => answer?,
                Err(_) if oldest.is_some_and(|started| started + limit <= now_ns()) => return Err(Cause::Timeout),
                Err(_) => continue,
            };
        // An answer without a message in flight is unexpected.
        let (number, exchange) = pending.borrow_mut().pop_front().ok_or(Cause::Mismatch)?;
        let outcome = match form.answers(number, &answer) {
            true => {
                let bytes = answer.len() as u64;
                Ok(Answered { sent: form.filler.len() as u64, received: bytes, ..Answered::default() })
            }
            false => Err(Cause::Mismatch),
        };
        shared.finish(exchange, outcome);
    }
}

fn cause(error: &Error) -> Cause {
    match error {
        Error::Io(error) => crate::engine::socket::stream_cause(error),
        Error::AlreadyClosed => Cause::Closed,
        _ => Cause::Protocol,
    }
}
