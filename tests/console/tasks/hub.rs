//! The task of a hub: a dead letter is found and replayed.

use weir_testkit::{BrowserPage, DEADLINE, eventually};

use super::Manner::{self, Keys, Pointer};
use super::{go_by_keys, press};
use crate::api::{self, Api};
use crate::bench::{Bench, Company, Store};
use crate::hub_peers::{HubNode, Subscriber};

/// Events that the subscriber has refused.
const GIVEN_UP: usize = 2;
/// Failures are final.
const GIVES_UP: &str = "  delivery: { retry_for: 1ms, retry_first: 1ms, retry_max: 1ms }\n";
const ROUTES: [(&str, &str); 2] = [("hub", "/hub"), ("topics", "/t/*")];

/// A node with two dead letters, the page, and the subscriber that they are for, which takes them now.
pub(crate) fn start(page: BrowserPage, store: Store) -> Option<(Bench, Company)> {
    let (mut file, company) = store.file()?;
    if store == Store::Files {
        let routes = ROUTES.map(|(id, uri)| format!("- {{ id: {id}, uri: {uri}, hub_id: h }}\n")).concat();
        file += &format!("routes:\n{routes}");
    }
    let (node, subscriber) = (HubNode::beside(GIVES_UP, &file), Subscriber::start());
    if store != Store::Files {
        for (id, uri) in ROUTES {
            Api::of(&node.gateway).put(&format!("routes/{id}"), &format!(r#"{{"uri": "{uri}", "hub_id": "h"}}"#));
        }
    }
    node.subscribe(&subscriber, "/in", &[]);
    subscriber.refuse(400);
    for content in ["one", "two"] {
        node.publish(content);
    }
    eventually("both are given up", DEADLINE, || node.status()["dead_lettered"] == 2);
    subscriber.answer(|_| None);
    // A refused event may have been tried twice within its millisecond: only what comes now counts.
    subscriber.origin.forget();
    let bench = Bench::of(page, node.gateway).with_hub(subscriber, store == Store::Files);
    bench.log_in(api::ADMIN);
    Some((bench, company))
}

pub(super) fn replay(bench: &Bench, manner: Manner) {
    match manner {
        Pointer => {
            bench.page.click("#menu a[href='#/streaming']");
            bench.settle("streaming");
            bench.page.click(".segments button:nth-child(2)");
            bench.page.click("weir-table .body .row input");
            bench.page.click("#content .actions .main");
        }
        Keys => {
            go_by_keys(bench, &["g", "w"]);
            go_by_keys(bench, &["d"]);
            press(bench, &["j", "x", "Ctrl+Enter"]);
        }
    }
    bench.wait_text("1 event is delivered again");
    bench.page.evaluate("document.querySelector('.notice .quiet')?.click()");
}

/// After both manners, both events have come once more, and no dead letter is left.
pub(super) fn is_delivered(bench: &Bench, manner: Manner) {
    let subscriber = bench.subscriber.as_ref().expect("a hub has a subscriber");
    let replayed = if manner == Pointer { 1 } else { 2 };
    let deliveries = subscriber.wait_deliveries(replayed);
    let mut contents: Vec<String> =
        deliveries.iter().map(|one| String::from_utf8_lossy(&one.body).into_owned()).collect();
    contents.sort();
    contents.dedup();
    assert_eq!(contents.len(), replayed, "{contents:?}");
    eventually("there are fewer dead letters", DEADLINE, || {
        let left = Api::of(&bench.gateway).get("/weir/v1/hubs/h/dead-letters");
        left["list"].as_array().is_some_and(|left| left.len() == GIVEN_UP - replayed)
    });
}
