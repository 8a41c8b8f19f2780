//! The task of a hub: a dead letter is found and replayed.

use weir_testkit::{BrowserPage, DEADLINE, eventually};

use super::Manner::{self, Keys, Pointer};
use super::press;
use crate::api::{self, Api};
use crate::bench::{Bench, Company, Store};
use crate::hub_peers::{HubNode, Subscriber};

/// Failures are final.
const GIVES_UP: &str = "  delivery: { retry_for: 1ms, retry_first: 1ms, retry_max: 1ms }\n";
const ROUTES: [(&str, &str); 2] = [("hub", "/hub"), ("topics", "/t/*")];

/// A node with two dead letters, the page, and the subscriber that they are for, which takes them now.
pub(super) fn start(page: BrowserPage, store: Store) -> Option<(Bench, Company, Subscriber)> {
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
    let bench = Bench::of(page, node.gateway).with_draft(store == Store::Files);
    bench.log_in(api::ADMIN);
    Some((bench, company, subscriber))
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
        Keys => press(bench, &["g", "w", "d", "j", "x", "Ctrl+Enter"]),
    }
    bench.wait_text("1 event is delivered again");
    bench.page.evaluate("document.querySelector('.notice .quiet').click()");
}
