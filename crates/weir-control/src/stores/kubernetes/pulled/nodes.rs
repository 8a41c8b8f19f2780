//! The nodes of the controller that a node is connected to: it asks on behalf of `weir nodes`.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use super::super::cluster_store::NodesQuery;
use super::calls::ControllerCalls;
use crate::stores::live::now_ms;
use crate::stores::shared::{KnownNodes, NodeReport, ServedContent};

/// The time for the answer of a controller.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most questions that wait.
const MOST_WAITING: usize = 16;
/// The most bytes of an answer.
const MOST_BYTES: usize = 16 << 20;

/// A request that waits for the list of nodes.
pub(super) struct NodesQuestion(SyncSender<Result<KnownNodes, String>>);

/// The query of a store, and what arrives of it at the thread that has the connection.
pub(super) fn query() -> (NodesQuery, Receiver<NodesQuestion>) {
    let (questions, asked): (Sender<NodesQuestion>, _) = channel(MOST_WAITING);
    let query = move || {
        let (answers, answer) = sync_channel(1);
        questions.try_send(NodesQuestion(answers)).map_err(|_| format!("{MOST_WAITING} others ask for the nodes"))?;
        answer.recv_timeout(PATIENCE).unwrap_or_else(|_| Err("no controller answers".to_owned()))
    };
    (Box::new(query), asked)
}

impl NodesQuestion {
    /// Asks a controller, beside what else is read from it.
    pub(super) fn pass_on(self, calls: ControllerCalls) {
        tokio::spawn(async move {
            let asked = timeout(PATIENCE, calls.get("/v1/nodes", MOST_BYTES)).await;
            let asked = asked.unwrap_or_else(|_| Err("it does not answer".to_owned()));
            let known = asked.and_then(|text| known(&text, calls.host()));
            // It fails if the request has ended meanwhile.
            let _ = self.0.send(known.map_err(|problem| format!("{}: {problem}", calls.host())));
        });
    }
}

/// What is read of a controller's page.
#[derive(Deserialize)]
struct NodesPage {
    revision: u64,
    nodes: Vec<PageNode>,
}

#[derive(Deserialize)]
struct PageNode {
    node: String,
    version: String,
    served_revision: u64,
    report_age_ms: Option<u64>,
    connected_ms: Option<u64>,
    #[serde(default)]
    set_aside: Value,
}

fn known(text: &[u8], host: &str) -> Result<KnownNodes, String> {
    let page: NodesPage =
        serde_json::from_slice(text).map_err(|error| format!("its nodes are not as agreed: {error}"))?;
    let now = now_ms();
    let before = |age: Option<u64>| age.map_or(0, |age| now.saturating_sub(age));
    let report = |node: PageNode| NodeReport {
        id: node.node,
        version: node.version,
        // Since when it has been connected; its start is not known.
        started_ms: before(node.connected_ms),
        told_ms: before(node.report_age_ms),
        served: ServedContent {
            revision: node.served_revision,
            content: 0,
            set_aside: node.set_aside.as_object().map_or(0, serde_json::Map::len),
        },
    };
    let list = page.nodes.into_iter().map(report).collect();
    Ok(KnownNodes { told_by: format!("the controller {host}"), newest: Some(page.revision), list })
}
