//! WebSub (W3C Recommendation of 2018-01-23): the subscribers of one topic, and its publisher.
//!
//! The plan's first request is the hub. Every subscriber has a callback of its own on one listener of this thread. A
//! publication is a POST of the content to the hub with `hub.mode=publish` and `hub.topic` in the query; a second
//! request in the plan, if there is one, is used instead.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use aws_lc_rs::hmac;
use percent_encoding::{percent_decode_str, utf8_percent_encode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::dial::DialedStream;
use super::publish::{ask, post, request_head};
use super::{PreparedStreams, StreamExchange, StreamsState, slots};
use crate::chunked::Chunked;
use crate::engine::clock::now_ns;
use crate::engine::job::Job;
use crate::engine::pacing::Arrivals;
use crate::engine::prepare::filler;
use crate::engine::recorder::Cause;
use crate::uri_characters::RESERVED;

/// The most subscriptions that are requested at the same time.
const SUBSCRIBING: usize = 32;
/// The longest accepted delivery, in bytes.
const LONGEST: usize = 16 * 1024 * 1024;
/// The number of digits at the start of a payload that identify it.
const NUMBER: usize = 16;

pub(super) async fn run(job: Job, topic: String, secret: Option<String>, payload_bytes: usize) {
    let lobby = PreparedStreams::new(job.prepared.clone());
    let source = job.plan().source_addresses.first().copied();
    let listener = TcpListener::bind((source.unwrap_or(std::net::Ipv4Addr::LOCALHOST.into()), 0)).await;
    let listener = listener.expect("the plan's check left room for a listener");
    let desk = Rc::new(SubscriptionBook {
        callback: format!("http://{}/", listener.local_addr().expect("a bound listener has an address")),
        topic,
        secret,
        payload: filler(payload_bytes.max(NUMBER)),
        verified: (0..job.clients.len()).map(|_| Cell::new(false)).collect(),
        news: Notify::new(),
        publications: RefCell::default(),
        shared: RefCell::default(),
    });
    spawn_local(accept(listener, desk.clone()));
    subscribe_all(&desk, &lobby).await;

    let Some(shared) = StreamsState::start(job, lobby.clone()) else { return };
    *desk.shared.borrow_mut() = Some(shared.clone());
    let plan = shared.plan();
    let arrivals = Arrivals::new(&plan.pacing, plan.seed, 0, 1).expect("the plan's check asks for an open loop");
    let numbers = Cell::new(0);
    let publisher = Rc::new(TopicPublisher { desk: desk.clone(), lobby });
    slots::due(&shared, arrivals, |request, due| {
        let number = numbers.replace(numbers.get() + 1);
        // The deliveries to all further subscribers become due with the first one, and belong to the same publication.
        desk.expect(&shared, number, request, due);
        spawn_local(publisher.clone().publish(number));
    })
    .await;
    // Deliveries that are due may still arrive for as long as an answer may take.
    let deadline = now_ns() + plan.timeouts.response_ms * 1_000_000;
    while !desk.publications.borrow().is_empty() && now_ns() < deadline {
        sleep(Duration::from_millis(5)).await;
    }
    let numbers: Vec<u64> = desk.publications.borrow().keys().copied().collect();
    for number in numbers {
        desk.give_up(number, Cause::Timeout);
    }
    shared.conclude(Vec::new()).await;
}

/// All subscriptions, and the deliveries that are expected on them.
struct SubscriptionBook {
    /// The prefix of the callback URLs; the number of the subscriber is appended.
    callback: String,
    topic: String,
    secret: Option<String>,
    payload: Vec<u8>,
    /// Subscribers whose intent the hub has verified.
    verified: Vec<Cell<bool>>,
    /// Notified when a subscription has been verified.
    news: Notify,
    /// The publications that are not complete, by number.
    publications: RefCell<HashMap<u64, TimedPublication>>,
    /// `Some` once the clock runs.
    shared: RefCell<Option<Rc<StreamsState>>>,
}

struct TimedPublication {
    /// The expected delivery to each subscriber; `None` once it has been received.
    awaited: Vec<Option<StreamExchange>>,
    left: usize,
}

impl SubscriptionBook {
    /// Counts a publication that is due, with a delivery to each verified subscriber. The hub sends them all, so the lag of
    /// the generator is that of the publication, however long it takes to note thousands of deliveries.
    fn expect(&self, shared: &StreamsState, number: u64, request: usize, due: u64) {
        let (mut first, now) = (true, now_ns());
        let awaited: Vec<Option<StreamExchange>> = self
            .verified
            .iter()
            .map(|verified| {
                verified.get().then(|| {
                    if !std::mem::take(&mut first) {
                        shared.record().due(request, due);
                    }
                    shared.begin_at(now, request, due, now.saturating_sub(due))
                })
            })
            .collect();
        let left = awaited.iter().flatten().count();
        if left == 0 {
            // Without subscribers, the publication itself counts as failed.
            let exchange = shared.begin(request, due, false);
            return shared.finish(exchange, Err(Cause::Closed));
        }
        self.publications.borrow_mut().insert(number, TimedPublication { awaited, left });
    }

    /// Handles a delivery to a subscriber.
    fn delivered(&self, subscriber: usize, content: &[u8], signature: Option<&[u8]>) {
        let number = content.get(..NUMBER).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let mut publications = self.publications.borrow_mut();
        let shared = self.shared.borrow();
        let (Some(number), Some(shared)) = (number, &*shared) else { return };
        let Some(publication) = publications.get_mut(&number) else { return };
        // A repeated delivery is ignored, because the first one has been counted.
        let Some(exchange) = publication.awaited.get_mut(subscriber).and_then(Option::take) else { return };
        publication.left -= 1;
        if publication.left == 0 {
            publications.remove(&number);
        }
        let intact = content[NUMBER..] == self.payload[NUMBER..] && self.is_signed(content, signature);
        let answered = super::Answered { received: content.len() as u64, ..super::Answered::default() };
        shared.finish(exchange, if intact { Ok(answered) } else { Err(Cause::Mismatch) });
    }

    /// Counts the missing deliveries of a publication as failed.
    fn give_up(&self, number: u64, cause: Cause) {
        let publication = self.publications.borrow_mut().remove(&number);
        let shared = self.shared.borrow();
        if let (Some(publication), Some(shared)) = (publication, &*shared) {
            for exchange in publication.awaited.into_iter().flatten() {
                shared.finish(exchange, Err(cause));
            }
        }
    }

    /// Verifies `X-Hub-Signature: method=hex` (WebSub §7.1); true if the subscription has no secret.
    fn is_signed(&self, content: &[u8], signature: Option<&[u8]>) -> bool {
        let Some(secret) = &self.secret else { return true };
        let Some(signature) = signature.and_then(|signature| std::str::from_utf8(signature).ok()) else { return false };
        let Some((method, digits)) = signature.trim().split_once('=') else { return false };
        let algorithm = match method {
            "sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            "sha256" => hmac::HMAC_SHA256,
            "sha384" => hmac::HMAC_SHA384,
            "sha512" => hmac::HMAC_SHA512,
            _ => return false,
        };
        let key = hmac::Key::new(algorithm, secret.as_bytes());
        bytes_of(digits).is_some_and(|tag| hmac::verify(&key, content, &tag).is_ok())
    }
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(pair).collect()
}

/// Requests all subscriptions, and waits until the hub has verified them.
async fn subscribe_all(desk: &Rc<SubscriptionBook>, lobby: &Rc<PreparedStreams>) {
    let next = Cell::new(0);
    let workers = (0..SUBSCRIBING.min(desk.verified.len())).map(|_| async {
        let mut connection = None;
        loop {
            let subscriber = next.replace(next.get() + 1);
            if subscriber >= desk.verified.len() {
                return;
            }
            let since = now_ns();
            match subscribe(desk, lobby, subscriber, &mut connection).await {
                Ok(()) => lobby.opened(since),
                Err(cause) => lobby.refused(cause),
            }
        }
    });
    futures_util::future::join_all(workers).await;
}

async fn subscribe(
    desk: &SubscriptionBook,
    lobby: &PreparedStreams,
    subscriber: usize,
    connection: &mut Option<DialedStream>,
) -> Result<(), Cause> {
    let mut form = format!(
        "hub.mode=subscribe&hub.topic={}&hub.callback={}",
        escaped(&desk.topic),
        escaped(&format!("{}{subscriber}", desk.callback))
    );
    if let Some(secret) = &desk.secret {
        form += &format!("&hub.secret={}", escaped(secret));
    }
    let hub = &lobby.prepared.requests[0];
    let request = post(request_head(lobby, 0, &hub.target), "application/x-www-form-urlencoded", form.as_bytes());
    let limit = Duration::from_millis(lobby.prepared.plan.timeouts.response_ms);
    let made = async {
        let status = ask(lobby, 0, &request, connection).await?;
        if !(200..300).contains(&status) {
            return Err(Cause::Protocol);
        }
        while !desk.verified[subscriber].get() {
            desk.news.notified().await;
        }
        Ok(())
    };
    timeout(limit, made).await.unwrap_or(Err(Cause::Timeout))
}

struct TopicPublisher {
    desk: Rc<SubscriptionBook>,
    lobby: Rc<PreparedStreams>,
}

impl TopicPublisher {
    async fn publish(self: Rc<Self>, number: u64) {
        let desk = &self.desk;
        let mut content = desk.payload.clone();
        content[..NUMBER].copy_from_slice(format!("{number:0NUMBER$}").as_bytes());
        let prepared = &self.lobby.prepared;
        let index = if prepared.requests.len() > 1 { 1 } else { 0 };
        let target = match index {
            0 => {
                let hub = &prepared.requests[0].target;
                let mark = if hub.contains('?') { '&' } else { '?' };
                format!("{hub}{mark}hub.mode=publish&hub.topic={}", escaped(&desk.topic))
            }
            _ => prepared.requests[index].target.clone(),
        };
        let request = post(request_head(&self.lobby, index, &target), "application/octet-stream", &content);
        let limit = Duration::from_millis(prepared.plan.timeouts.response_ms);
        let published = timeout(limit, ask(&self.lobby, index, &request, &mut None)).await;
        match published.unwrap_or(Err(Cause::Timeout)) {
            Ok(status) if (200..300).contains(&status) => {}
            Ok(_) => desk.give_up(number, Cause::Protocol),
            Err(cause) => desk.give_up(number, cause),
        }
    }
}

/// Accepts the hub's connections to the callbacks.
async fn accept(listener: TcpListener, desk: Rc<SubscriptionBook>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(spawn_local(callbacks(stream, desk.clone()))),
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Serves one connection of the hub until it ends.
async fn callbacks(mut stream: TcpStream, desk: Rc<SubscriptionBook>) -> Option<()> {
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::with_capacity(8 * 1024);
    loop {
        let (call, used) = loop {
            if let Some(found) = call(&buffer)? {
                break found;
            }
            if buffer.len() > LONGEST || stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        };
        buffer.drain(..used);
        let answer = match &call {
            HubCallback::Verify { subscriber, topic, challenge } if *topic == desk.topic => {
                desk.verified.get(*subscriber)?.set(true);
                desk.news.notify_waiters();
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{challenge}", challenge.len())
            }
            HubCallback::Verify { .. } => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
            HubCallback::Delivery { subscriber, content, signature } => {
                desk.delivered(*subscriber, content, signature.as_deref());
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned()
            }
        };
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// A request of the hub to a callback.
enum HubCallback {
    Verify { subscriber: usize, topic: String, challenge: String },
    Delivery { subscriber: usize, content: Vec<u8>, signature: Option<Vec<u8>> },
}

/// Parses a request; returns it with its length, `Some(None)` while it is incomplete, and `None` if it is invalid.
fn call(data: &[u8]) -> Option<Option<(HubCallback, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(head) = request.parse(data).ok()? else { return Some(None) };
    let (path, query) = request.path?.split_once('?').unwrap_or((request.path?, ""));
    let subscriber = path.strip_prefix('/')?.parse().ok()?;
    let field = |name: &str| request.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    if request.method == Some("GET") {
        let value = |name: &str| {
            let pair = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
            pair.map(|(_, value)| unescaped(value))
        };
        let call = HubCallback::Verify { subscriber, topic: value("hub.topic")?, challenge: value("hub.challenge")? };
        return Some(Some((call, head)));
    }
    let mut content = Vec::new();
    let used = if field("transfer-encoding").is_some() {
        match Chunked::default().feed(&data[head..], |bytes| content.extend_from_slice(bytes)).ok()? {
            None => return Some(None),
            Some(used) => head + used,
        }
    } else {
        let length: usize = std::str::from_utf8(field("content-length")?.value).ok()?.trim().parse().ok()?;
        match data.get(head..head.checked_add(length)?) {
            None => return Some(None),
            Some(bytes) => content.extend_from_slice(bytes),
        }
        head + length
    };
    let signature = field("x-hub-signature").map(|field| field.value.to_vec());
    Some(Some((HubCallback::Delivery { subscriber, content, signature }, used)))
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

fn unescaped(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_survive_escaping() {
        for text in ["plain", "http://a/b?c=d&e", "ü %+"] {
            assert_eq!(unescaped(&escaped(text)), text);
        }
    }

    #[test]
    fn calls_are_read_whole() {
        let verify = b"GET /7?hub.mode=subscribe&hub.topic=a%2Fb&hub.challenge=xyz HTTP/1.1\r\nHost: a\r\n\r\n";
        let Some(Some((HubCallback::Verify { subscriber, topic, challenge }, used))) = call(verify) else {
            panic!("a verification")
        };
        assert_eq!((subscriber, topic.as_str(), challenge.as_str(), used), (7, "a/b", "xyz", verify.len()));
        let deliver = b"POST /3 HTTP/1.1\r\nContent-Length: 2\r\nX-Hub-Signature: sha256=00\r\n\r\nhi";
        assert!(matches!(call(&deliver[..deliver.len() - 1]), Some(None)));
        assert!(matches!(call(deliver), Some(Some((HubCallback::Delivery { subscriber: 3, .. }, _)))));
        assert!(call(b"POST /x HTTP/1.1\r\nContent-Length: 0\r\n\r\n").is_none());
    }
}
