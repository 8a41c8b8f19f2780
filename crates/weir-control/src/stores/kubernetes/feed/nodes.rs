//! The nodes of a controller: those that are connected, and those that were until a moment ago. A node is known by its name, so one that
//! connects again is the same.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_kube::cluster::ControllerState;

use super::super::lines::{FINDING, MOST_PROBLEM, MOST_SET_ASIDE, ServedReport};
use super::NodeIntroduction;
use crate::stores::live::now_ms;

/// A node that serves nothing newer for this long, though there is something, is not waited for any more.
const REPORT_PATIENCE: Duration = Duration::from_secs(30);
/// The most nodes that are known without being connected.
const MOST_DEPARTED: usize = 1_024;

#[derive(Default)]
pub(super) struct FeedNodes {
    connected: BTreeMap<u64, PullingNode>,
    /// By name.
    departed: BTreeMap<String, DepartedNode>,
    next: u64,
}

/// A node that is connected.
struct PullingNode {
    introduction: NodeIntroduction,
    /// The name of its stream in reports. It is not guessed by other nodes.
    stream: String,
    since_ms: u64,
    reported_ms: u64,
    state: KnownNode,
    waker: Option<Waker>,
    /// A newer stream of the same node counts in place of this one.
    is_replaced: bool,
    leaves: bool,
}

/// A node that has lost its connection, and is expected to find this controller again.
struct DepartedNode {
    since: Instant,
    state: KnownNode,
}

/// What a node has reported.
#[derive(Clone)]
struct KnownNode {
    served: u64,
    /// The newest revision that it has reported; 0 if there was no report.
    newest: u64,
    /// Since when it serves nothing newer, though there is something.
    behind_since: Option<Instant>,
    set_aside: BTreeMap<String, String>,
}

impl KnownNode {
    fn is_waited_for(&self, now: Instant) -> bool {
        self.behind_since.is_none_or(|since| now.saturating_duration_since(since) < REPORT_PATIENCE)
    }

    /// After a new connection it may serve less than before: it may be a new process.
    fn connected_again(&mut self, now: Instant) {
        self.served = 0;
        self.behind_since.get_or_insert(now);
    }
}

impl DepartedNode {
    fn is_expected(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < FINDING
    }

    /// For longer than it is expected: one that comes and goes all the time must not begin with new patience each time.
    fn is_remembered(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < REPORT_PATIENCE
    }
}

impl FeedNodes {
    /// Adds a node. If it has been here a moment ago, the patience with it goes on.
    pub(super) fn add(&mut self, introduction: NodeIntroduction, stream: String, now: Instant) -> u64 {
        let id = self.next;
        self.next += 1;
        let mut known = None;
        if !introduction.name.is_empty() {
            let departed = self.departed.remove(&introduction.name).filter(|departed| departed.is_remembered(now));
            known = departed.map(|departed| departed.state);
            let is_same = |node: &&mut PullingNode| !node.is_replaced && node.introduction.name == introduction.name;
            if let Some(former) = self.connected.values_mut().find(is_same) {
                former.is_replaced = true;
                known = Some(former.state.clone());
            }
        }
        let unknown = KnownNode { served: 0, newest: 0, behind_since: None, set_aside: BTreeMap::new() };
        let mut state = known.unwrap_or(unknown);
        state.connected_again(now);
        let (since_ms, reported_ms, waker) = (now_ms(), 0, None);
        let (is_replaced, leaves) = (false, false);
        let node = PullingNode { introduction, stream, since_ms, reported_ms, state, waker, is_replaced, leaves };
        self.connected.insert(id, node);
        id
    }

    /// The stream of a node has ended. Unless it has said that it leaves, or has never served anything, it is waited for.
    pub(super) fn remove(&mut self, id: u64, now: Instant) {
        let Some(node) = self.connected.remove(&id) else { return };
        let name = node.introduction.name;
        if name.is_empty() || node.is_replaced || node.leaves || node.state.newest == 0 {
            return;
        }
        self.departed.retain(|_, departed| departed.is_remembered(now));
        if self.departed.len() >= MOST_DEPARTED {
            let oldest = self.departed.iter().min_by_key(|(_, known)| known.since);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.departed.remove(&oldest);
            }
        }
        self.departed.insert(name, DepartedNode { since: now, state: node.state });
    }

    /// Takes a report. Returns false if there is no such stream.
    ///
    /// # Errors
    /// If it is about a revision after the newest one.
    pub(super) fn report(&mut self, report: ServedReport, newest: u64, now: Instant) -> Result<bool, String> {
        let node = self.connected.values_mut().find(|node| node.stream == report.stream);
        let Some(node) = node else { return Ok(false) };
        if report.revision > newest {
            return Err(format!("revision {} is not there yet, the newest is {newest}", report.revision));
        }
        node.reported_ms = now_ms();
        node.leaves = report.leaves;
        let bounded = |(key, problem): (String, String)| (key, problem.chars().take(MOST_PROBLEM).collect());
        let state = &mut node.state;
        state.set_aside = report.set_aside.into_iter().take(MOST_SET_ASIDE).map(bounded).collect();
        if report.revision == newest {
            state.behind_since = None;
        } else if report.revision > state.newest {
            state.behind_since = Some(now);
        }
        state.served = report.revision;
        state.newest = state.newest.max(report.revision);
        Ok(true)
    }

    /// There is something newer to serve.
    pub(super) fn published(&mut self, now: Instant) {
        let departed = self.departed.values_mut().map(|departed| &mut departed.state);
        for state in self.connected.values_mut().map(|node| &mut node.state).chain(departed) {
            state.behind_since.get_or_insert(now);
        }
        self.connected.values_mut().filter_map(|node| node.waker.take()).for_each(Waker::wake);
    }

    pub(super) fn wake(&mut self, id: u64, waker: Waker) {
        if let Some(node) = self.connected.get_mut(&id) {
            node.waker = Some(waker);
        }
    }

    /// What all nodes serve that are waited for: nothing if there is none.
    pub(super) fn served(&self, now: Instant) -> ControllerState {
        let connected = self.connected.values().filter(|node| !node.is_replaced).map(|node| &node.state);
        let departed = self.away(now).map(|(_, state)| state);
        let waited_for: Vec<&KnownNode> = connected.chain(departed).filter(|node| node.is_waited_for(now)).collect();
        let revision = waited_for.iter().map(|node| node.served).min().unwrap_or(0);
        let set_aside = waited_for.iter().flat_map(|node| node.set_aside.clone()).collect();
        ControllerState { revision, set_aside }
    }

    /// The nodes that are expected to connect again.
    fn away(&self, now: Instant) -> impl Iterator<Item = (&String, &KnownNode)> {
        self.departed.iter().filter(move |(_, node)| node.is_expected(now)).map(|(name, node)| (name, &node.state))
    }

    /// The nodes that are connected, for people.
    pub(super) fn page(&self) -> Vec<Value> {
        let now = now_ms();
        let age_ms = |at: u64| if at == 0 { Value::Null } else { now.saturating_sub(at).into() };
        let page = |node: &PullingNode| {
            json!({
                "node": node.introduction.name,
                "version": node.introduction.version,
                "address": node.introduction.address,
                "served_revision": node.state.served,
                "report_age_ms": age_ms(node.reported_ms),
                "connected_ms": age_ms(node.since_ms),
                "set_aside": node.state.set_aside,
            })
        };
        self.connected.values().filter(|node| !node.is_replaced).map(page).collect()
    }

    /// The names of the nodes that are waited for though they are not connected.
    pub(super) fn page_of_away(&self, now: Instant) -> Vec<&String> {
        self.away(now).filter(|(_, state)| state.is_waited_for(now)).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWEST: u64 = 9;

    struct Moment(FeedNodes, Instant);

    impl Moment {
        fn new() -> Moment {
            Moment(FeedNodes::default(), Instant::now())
        }

        fn passes(&mut self, time: Duration) {
            self.1 += time;
        }

        fn connects(&mut self, name: &str, stream: &str) -> u64 {
            let (version, address) = Default::default();
            self.0.add(NodeIntroduction { name: name.to_owned(), version, address }, stream.to_owned(), self.1)
        }

        fn reports(&mut self, stream: &str, revision: u64) {
            let report =
                ServedReport { stream: stream.to_owned(), revision, set_aside: BTreeMap::new(), leaves: false };
            assert_eq!(self.0.report(report, NEWEST, self.1), Ok(true));
        }

        fn serves(&self) -> u64 {
            self.0.served(self.1).revision
        }
    }

    #[test]
    fn a_node_that_has_lost_its_connection_is_waited_for_until_it_is_back_or_should_be() {
        let mut moment = Moment::new();
        let lost = moment.connects("lost", "1");
        moment.connects("other", "2");
        moment.reports("1", 5);
        moment.reports("2", NEWEST);
        moment.0.remove(lost, moment.1);
        assert_eq!((moment.serves(), moment.0.page_of_away(moment.1)), (5, vec![&"lost".to_owned()]));
        moment.passes(FINDING - Duration::from_millis(1));
        assert_eq!(moment.serves(), 5);
        moment.connects("lost", "3");
        assert_eq!(moment.serves(), 0, "it may be a new process");
        moment.reports("3", NEWEST);
        assert_eq!(moment.serves(), NEWEST);
        moment.0.remove(lost + 2, moment.1);
        moment.0.published(moment.1);
        moment.reports("2", NEWEST);
        assert_eq!(moment.serves(), NEWEST);
        moment.passes(FINDING);
        assert_eq!(moment.0.page_of_away(moment.1), [""; 0]);
    }

    #[test]
    fn a_node_that_leaves_or_has_served_nothing_is_not_waited_for() {
        let mut moment = Moment::new();
        let (leaving, reader) = (moment.connects("leaving", "1"), moment.connects("reader", "2"));
        let report = ServedReport { stream: "1".to_owned(), revision: 3, set_aside: BTreeMap::new(), leaves: true };
        assert_eq!(moment.0.report(report, NEWEST, moment.1), Ok(true));
        moment.connects("stays", "3");
        moment.reports("3", NEWEST);
        assert_eq!(moment.serves(), 0);
        moment.0.remove(leaving, moment.1);
        moment.0.remove(reader, moment.1);
        assert_eq!(moment.serves(), NEWEST);
    }

    #[test]
    fn patience_with_a_node_goes_on_when_it_connects_again() {
        let mut moment = Moment::new();
        moment.connects("stays", "0");
        moment.reports("0", NEWEST);
        let mut stuck = moment.connects("stuck", "1");
        moment.reports("1", 3);
        for stream in ["2", "3", "4", "5", "6"] {
            assert_eq!(moment.serves(), 3);
            moment.0.remove(stuck, moment.1);
            moment.passes(REPORT_PATIENCE / 5);
            stuck = moment.connects("stuck", stream);
            moment.reports(stream, 3);
        }
        assert_eq!(moment.serves(), NEWEST, "it has made no progress");
        moment.reports("6", 4);
        assert_eq!(moment.serves(), 4, "now it has");
    }

    #[test]
    fn a_newer_stream_of_a_node_counts_in_place_of_one_that_is_still_open() {
        let mut moment = Moment::new();
        let silent = moment.connects("node", "1");
        moment.reports("1", 3);
        moment.connects("node", "2");
        moment.reports("2", NEWEST);
        assert_eq!((moment.serves(), moment.0.page().len()), (NEWEST, 1));
        moment.0.remove(silent, moment.1);
        assert_eq!((moment.serves(), moment.0.page_of_away(moment.1).len()), (NEWEST, 0));
        moment.connects("", "3");
        moment.connects("", "4");
        assert_eq!(moment.0.page().len(), 3, "nodes without a name are different ones");
    }

    #[test]
    fn nodes_that_are_away_are_bounded() {
        let mut moment = Moment::new();
        for number in 0..=MOST_DEPARTED {
            let stream = number.to_string();
            let id = moment.connects(&format!("n{number}"), &stream);
            moment.reports(&stream, 1);
            moment.0.remove(id, moment.1);
            moment.passes(Duration::from_micros(1));
        }
        let away = moment.0.page_of_away(moment.1);
        assert_eq!((away.len(), away.contains(&&"n0".to_owned())), (MOST_DEPARTED, false));
    }
}
