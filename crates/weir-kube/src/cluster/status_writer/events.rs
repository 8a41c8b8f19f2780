//! Writes the Events about objects, each once. The users of a namespace write its objects: those of one namespace can take neither the
//! memory of the node nor the turn of other namespaces.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::super::Cluster;
use super::difference::shorten;
use super::report;
use crate::objects::ObjectRef;
use crate::translation::ObjectEvent;

/// The most Events that are remembered, so that each is written once.
const MOST_EVENTS: usize = 10_000;
const MOST_OF_NAMESPACE: usize = 1_000;
const MOST_OF_OBJECT: usize = 16;
/// The most that are written before statuses have their turn again.
const MOST_TOGETHER: usize = 64;
/// When one is tried again that the API server has refused, for example since its namespace has a quota.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

/// An Event, with the `uid` of its object.
pub(in super::super) type KnownEvent = (ObjectEvent, String);

/// An object with a reason and a message.
type EventKey = (ObjectRef, String, String);

/// The first Events of each object and namespace, with messages of a bounded length.
pub(in super::super) fn bounded(events: impl IntoIterator<Item = KnownEvent>) -> Vec<KnownEvent> {
    let (mut of_namespaces, mut of_objects) = (HashMap::new(), HashMap::new());
    let mut has_room = |event: &ObjectEvent| {
        let of_object: &mut usize = of_objects.entry(event.object.clone()).or_default();
        let of_namespace: &mut usize = of_namespaces.entry(event.object.namespace.clone()).or_default();
        let has_room = *of_object < MOST_OF_OBJECT && *of_namespace < MOST_OF_NAMESPACE;
        (*of_object, *of_namespace) = (*of_object + usize::from(has_room), *of_namespace + usize::from(has_room));
        has_room
    };
    let first = events.into_iter().filter(|(event, _)| has_room(event)).take(MOST_EVENTS);
    let shortened = |(mut event, uid): KnownEvent| {
        shorten(&mut event.message);
        (event, uid)
    };
    first.map(shortened).collect()
}

#[derive(Default)]
pub(super) struct EventWriter {
    /// Those that were written; with a time, those that were refused.
    told: HashMap<EventKey, Option<Instant>>,
}

impl EventWriter {
    /// Writes some of these Events that are due. Returns whether there are more.
    pub(super) async fn write(&mut self, cluster: &dyn Cluster, events: Vec<KnownEvent>) -> bool {
        let current: HashSet<EventKey> = events.iter().map(|(event, _)| key(event)).collect();
        // What is not so any more is told again when it comes back.
        self.told.retain(|told, _| current.contains(told));
        let mut due: Vec<KnownEvent> = events.into_iter().filter(|(event, _)| self.is_due(event)).collect();
        let has_more = due.len() > MOST_TOGETHER;
        due.truncate(MOST_TOGETHER);
        let mut has_reported = false;
        for (event, uid) in due {
            let refused = match cluster.write_event(&event, &uid).await {
                Ok(()) => None,
                Err(error) => {
                    if !std::mem::replace(&mut has_reported, true) {
                        report(&event.object, &error);
                    }
                    if !error.is_of_request() {
                        return false;
                    }
                    Some(Instant::now())
                }
            };
            self.told.insert(key(&event), refused);
        }
        has_more
    }

    fn is_due(&self, event: &ObjectEvent) -> bool {
        match self.told.get(&key(event)) {
            None => true,
            Some(refused) => refused.is_some_and(|at| at.elapsed() >= REFUSED_AGAIN),
        }
    }
}

fn key(event: &ObjectEvent) -> EventKey {
    (event.object.clone(), event.reason.clone(), event.message.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::BoxFuture;
    use futures_util::stream::BoxStream;
    use serde_json::Value;

    use super::super::super::{ClusterError, LeaseAnswer, LeaseRequest, ScopeEvent, WatchScope};
    use super::*;
    use crate::objects::Kind;
    use crate::translation::EventKind;

    /// Takes Events, except those about objects of a namespace.
    struct EventTaker {
        refusing: &'static str,
        status: u16,
        taken: Mutex<Vec<String>>,
        asked: Mutex<usize>,
    }

    impl EventTaker {
        fn refusing(refusing: &'static str, status: u16) -> EventTaker {
            EventTaker { refusing, status, taken: Mutex::default(), asked: Mutex::default() }
        }

        fn taken(&self) -> usize {
            self.taken.lock().expect("no panic").len()
        }
    }

    impl Cluster for EventTaker {
        fn apply<'a>(
            &'a self,
            _: &'a ObjectRef,
            _: &'static str,
            _: &'a Value,
        ) -> BoxFuture<'a, Result<(), ClusterError>> {
            unreachable!("nothing is owned")
        }

        fn version(&self, _: Kind) -> BoxFuture<'_, Result<Option<&'static str>, ClusterError>> {
            unreachable!("only Events are written")
        }

        fn watch(&self, _: &WatchScope, _: &'static str) -> BoxStream<'static, Result<ScopeEvent, ClusterError>> {
            unreachable!("only Events are written")
        }

        fn write_status<'a>(
            &'a self,
            _: &'a ObjectRef,
            _: &'static str,
            _: &'a str,
            _: Value,
        ) -> BoxFuture<'a, Result<String, ClusterError>> {
            unreachable!("only Events are written")
        }

        fn write_event<'a>(&'a self, event: &'a ObjectEvent, _: &'a str) -> BoxFuture<'a, Result<(), ClusterError>> {
            *self.asked.lock().expect("no panic") += 1;
            let outcome = if event.object.namespace == self.refusing {
                Err(ClusterError { status: self.status, problem: "exceeded quota".to_owned() })
            } else {
                self.taken.lock().expect("no panic").push(event.message.clone());
                Ok(())
            };
            Box::pin(async { outcome })
        }

        fn hold_lease<'a>(
            &'a self,
            _: &'a LeaseRequest,
            _: Option<&'a str>,
        ) -> BoxFuture<'a, Result<LeaseAnswer, ClusterError>> {
            unreachable!("only Events are written")
        }

        fn release_lease<'a>(&'a self, _: &'a LeaseRequest) -> BoxFuture<'a, Result<(), ClusterError>> {
            unreachable!("only Events are written")
        }
    }

    fn event(namespace: &str, name: &str, message: String) -> KnownEvent {
        let object = ObjectRef { kind: Kind::Ingress, namespace: namespace.to_owned(), name: name.to_owned() };
        (ObjectEvent { object, kind: EventKind::Warning, reason: "Ignored".to_owned(), message }, "uid".to_owned())
    }

    #[test]
    fn events_of_hostile_objects_are_bounded_and_leave_room_for_others() {
        let hostile = (0..10_000).flat_map(|object| {
            (0..20)
                .map(move |number| event("hostile", &format!("o{object}"), format!("{number}{}", "x".repeat(10_000))))
        });
        let kept = bounded(hostile.chain([event("shop", "orders", "a fault".to_owned())]));
        assert_eq!(kept.len(), MOST_OF_NAMESPACE + 1);
        assert!(kept.iter().all(|(event, _)| event.message.len() <= 1_024));
        assert!(kept.iter().take(MOST_OF_OBJECT).all(|(event, _)| event.object.name == "o0"));
        assert_eq!(kept[MOST_OF_OBJECT].0.object.name, "o1");
        assert_eq!(kept.last().map(|(event, _)| &*event.message), Some("a fault"));
    }

    #[tokio::test]
    async fn an_event_that_is_refused_stops_no_other() {
        let cluster = EventTaker::refusing("hostile", 403);
        let events = || {
            bounded((0..10).map(|_| event("hostile", "o", "m".to_owned())).chain([event("shop", "o", "m".to_owned())]))
        };
        let mut writer = EventWriter::default();
        assert!(!writer.write(&cluster, events()).await);
        assert_eq!(cluster.taken(), 1);
        let asked = *cluster.asked.lock().expect("no panic");
        assert!(!writer.write(&cluster, events()).await);
        assert_eq!(
            (cluster.taken(), *cluster.asked.lock().expect("no panic")),
            (1, asked),
            "neither is tried again soon"
        );
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_asked_again_later() {
        let cluster = EventTaker::refusing("shop", 503);
        let events = || vec![event("shop", "a", "m".to_owned()), event("shop", "b", "m".to_owned())];
        let mut writer = EventWriter::default();
        assert!(!writer.write(&cluster, events()).await);
        assert!(!writer.write(&cluster, events()).await);
        assert_eq!(*cluster.asked.lock().expect("no panic"), 2, "once each time");
    }

    #[tokio::test]
    async fn events_leave_turns_to_statuses() {
        let cluster = EventTaker::refusing("", 0);
        let events = || (0..100).map(|number| event("shop", &format!("o{number}"), "m".to_owned())).collect();
        let mut writer = EventWriter::default();
        assert!(writer.write(&cluster, events()).await);
        assert_eq!(cluster.taken(), MOST_TOGETHER);
        assert!(!writer.write(&cluster, events()).await);
        assert!(!writer.write(&cluster, events()).await);
        assert_eq!(cluster.taken(), 100, "each once");
    }
}
