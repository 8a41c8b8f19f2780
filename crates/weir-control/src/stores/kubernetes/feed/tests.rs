use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc::unbounded_channel;
use weir_kube::objects::{Kind, ObjectRef};

use super::super::followed::FollowedSet;
use super::super::lines::StateLine;
use super::*;
use crate::stores::mailbox::Mailbox;
use crate::stores::resources::ResourceSet;
use crate::stores::shared::OutsideChange;

fn put(sink: &mut FeedSink, id: &str, value: Value) {
    let origin = ObjectRef { kind: Kind::HTTPRoute, namespace: "a".to_owned(), name: id.to_owned() };
    sink.put(DerivedResource { kind: ResourceList::Routes, id: id.to_owned(), value, origin, beside: Vec::new() });
}

fn node(feed: &StateFeed) -> StateStream {
    let (name, version, address) = Default::default();
    feed.open(NodeIntroduction { name, version, address }).expect("there is a state")
}

/// The lines that a node gets now, without waiting.
async fn lines(stream: &mut StateStream, most_pieces: usize) -> Vec<StateLine> {
    let mut text = Vec::new();
    for _ in 0..most_pieces {
        let piece = poll_fn(|context| match stream.poll_piece(context) {
            Poll::Ready(piece) => Poll::Ready(piece),
            Poll::Pending => Poll::Ready(None),
        });
        let Some(piece) = piece.await else { break };
        text.extend_from_slice(&piece);
    }
    text.split_inclusive(|byte| *byte == b'\n').map(|line| StateLine::parse(line).expect("a line")).collect()
}

/// The end of a node: what it knows, by the lines that it got.
struct ReadingNode {
    set: FollowedSet,
    mailbox: Arc<Mailbox>,
    known: BTreeMap<ResourceKey, Arc<str>>,
    revision: u64,
    states: usize,
}

impl ReadingNode {
    fn new() -> ReadingNode {
        let mailbox = Arc::new(Mailbox::default());
        let set = FollowedSet::new(Arc::clone(&mailbox), ResourceSet::default(), unbounded_channel().0);
        ReadingNode { set, mailbox, known: BTreeMap::new(), revision: 0, states: 0 }
    }

    fn take(&mut self, lines: Vec<StateLine>) {
        for line in lines {
            match line {
                StateLine::State { .. } => {
                    self.states += 1;
                    self.set.begin_all();
                }
                StateLine::Put(key, value) => self.set.put(key, value),
                StateLine::Delete(key) => self.set.remove(key),
                StateLine::End(revision) => {
                    self.set.publish();
                    self.revision = revision;
                }
                _ => {}
            }
        }
        for change in std::mem::take(&mut self.mailbox.content().changes) {
            let OutsideChange::Some { resources, .. } = change else { panic!("changes are told one by one") };
            for (key, resource) in resources {
                match resource {
                    Some(resource) => drop(self.known.insert(key, resource.json)),
                    None => drop(self.known.remove(&key)),
                }
            }
        }
    }
}

#[tokio::test]
async fn after_random_changes_nodes_have_the_translation_however_fast_they_read() {
    let feed = StateFeed::default();
    let mut sink = FeedSink::new(feed.clone());
    sink.publish();
    let mut random = fastrand::Rng::with_seed(11);
    let mut nodes: Vec<(StateStream, ReadingNode)> = (0..4).map(|_| (node(&feed), ReadingNode::new())).collect();
    for _ in 0..500 {
        for _ in 0..random.usize(0..8) {
            let id = random.u8(0..40).to_string();
            match random.u8(0..3) {
                0 => sink.remove(ResourceList::Routes, &id),
                _ => put(&mut sink, &id, json!({ "uri": "/".repeat(random.usize(1..4_000)) })),
            }
        }
        sink.publish();
        for (speed, (stream, follower)) in nodes.iter_mut().enumerate() {
            if random.usize(0..=speed * 4) == 0 {
                follower.take(lines(stream, random.usize(0..5)).await);
            }
        }
        if random.u8(0..20) == 0 {
            // It connects again, to a controller whose revisions say nothing to it.
            nodes[3].0 = node(&feed);
        }
    }
    for (stream, follower) in &mut nodes {
        follower.take(lines(stream, usize::MAX).await);
        assert_eq!(follower.known, *feed.state().all);
        assert_eq!(follower.revision, feed.state().revision);
    }
}

#[tokio::test]
async fn a_node_that_is_too_slow_for_the_log_gets_a_state_again() {
    let feed = StateFeed::default();
    let mut sink = FeedSink::new(feed.clone());
    sink.publish();
    let (mut stream, mut follower) = (node(&feed), ReadingNode::new());
    follower.take(lines(&mut stream, usize::MAX).await);
    let long = "/".repeat(LOG_BYTES / 16);
    for number in 0..64 {
        put(&mut sink, "a", json!({ "uri": format!("{long}{number}") }));
        sink.publish();
        assert!(feed.state().log_bytes <= LOG_BYTES, "the log is bounded");
    }
    follower.take(lines(&mut stream, usize::MAX).await);
    assert_eq!(follower.states, 2);
    assert_eq!(follower.known, *feed.state().all);
}

#[tokio::test]
async fn nodes_are_waited_for_until_they_have_gone() {
    let feed = StateFeed::default();
    let mut sink = FeedSink::new(feed.clone());
    assert!(
        feed.open(NodeIntroduction { name: String::new(), version: String::new(), address: String::new() }).is_none()
    );
    sink.publish();
    let served = || feed.served(Instant::now()).expect("it knows its nodes");
    assert_eq!(feed.served(Instant::now()).map(|state| state.revision), None, "it does not write the statuses");
    feed.set_writer(Some(Tenure { since: Instant::now(), follows_another: false }), "this".to_owned());
    assert_eq!(served().revision, 0, "no node serves it");
    let (mut one, mut other) = (node(&feed), node(&feed));
    let report = async |stream: &mut StateStream, revision: u64| {
        let name = match lines(stream, 1).await.into_iter().next() {
            Some(StateLine::State { stream, .. }) => stream,
            line => panic!("no state begins: {line:?}"),
        };
        let report = json!({ "stream": name, "revision": revision, "set_aside": { "routes/a": "is wrong" } });
        feed.report(report.to_string().as_bytes())
    };
    assert!(report(&mut other, 2).await.is_err(), "there is no such revision");
    assert_eq!(report(&mut one, 1).await, Ok(true));
    assert_eq!(served().revision, 0, "the other one serves nothing yet");
    drop(other);
    assert_eq!(served().revision, 1);
    assert_eq!(served().set_aside, BTreeMap::from([("routes/a".to_owned(), "is wrong".to_owned())]));
    drop(one);
    assert_eq!(feed.report(br#"{ "stream": "a", "revision": 1 }"#), Ok(false));
}

#[test]
fn a_controller_that_follows_another_one_waits_for_its_nodes() {
    let feed = StateFeed::default();
    FeedSink::new(feed.clone()).publish();
    let now = Instant::now();
    let is_known = |feed: &StateFeed, after: Duration| feed.served(now + after).is_some();
    feed.set_writer(Some(Tenure { since: now, follows_another: true }), "this".to_owned());
    assert!(!is_known(&feed, Duration::ZERO) && !is_known(&feed, FINDING - Duration::from_millis(1)));
    assert!(feed.page()["statuses_wait_for_nodes"] == true);
    assert!(is_known(&feed, FINDING));
    feed.set_writer(None, "another".to_owned());
    assert!(!is_known(&feed, FINDING), "it writes no more");
    assert!(feed.page()["statuses_wait_for_nodes"] == false && !feed.writes_statuses());
}
