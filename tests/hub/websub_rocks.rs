//! The hub tests of websub.rocks (100 to 106), rebuilt from their descriptions: what each sends, and what it looks at.

use weir_testkit::{DEADLINE, Request, eventually};

use crate::peers::{HUB, HubNode, Subscriber, TOPIC, is_signed, value};

/// What the validator looks at in every verification.
#[track_caller]
fn check_verification(request: &Request, mode: &str) {
    let value = |name| value(&request.target, name);
    assert_eq!((value("hub.mode").as_deref(), value("hub.topic").as_deref()), (Some(mode), Some(TOPIC)));
    assert!(value("hub.challenge").is_some_and(|challenge| !challenge.is_empty()));
    assert!(mode != "subscribe" || value("hub.lease_seconds").is_some());
}

/// And in every delivery: the content and type of a fresh GET, and the links.
#[track_caller]
fn check_delivery(node: &HubNode, delivery: &Request) {
    let topic = node.send("GET", "/t/orders", "", b"");
    assert!(!delivery.body.is_empty());
    assert_eq!(delivery.body, topic.body);
    assert_eq!(delivery.headers.get("Content-Type"), topic.headers.get("Content-Type"));
    let links = delivery.headers.get("Link").unwrap_or_default();
    assert!(links.contains(&format!("<{HUB}>; rel=\"hub\"")) && links.contains("rel=\"self\""), "{links}");
}

fn subscribed(more: &[(&str, &str)], content_type: &str, content: &str) -> Request {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/callback", more);
    check_verification(&subscriber.verifications()[0], "subscribe");
    node.publish_as(content_type, content);
    let delivery = subscriber.wait_deliveries(1).remove(0);
    check_delivery(&node, &delivery);
    node.settled();
    assert_eq!(subscriber.deliveries().len(), 1, "it is delivered once");
    delivery
}

const FEED: &str = "<html><body class=\"h-feed\"><p class=\"h-entry\">one</p></body></html>";

#[test]
fn t100_a_typical_subscriber() {
    let delivery = subscribed(&[], "text/html; charset=UTF-8", FEED);
    assert!(!delivery.headers.has("X-Hub-Signature"));
}

#[test]
fn t101_a_subscriber_with_a_secret() {
    let secret = "abcdefghijklmnopqrst";
    let delivery = subscribed(&[("hub.secret", secret)], "text/html; charset=UTF-8", FEED);
    assert!(is_signed(&delivery, "sha256", secret));
}

#[test]
fn t102_a_subscriber_that_sends_additional_parameters() {
    subscribed(&[("foo", "bar"), ("hub.foo", "hub.bar")], "text/html; charset=UTF-8", FEED);
}

#[test]
fn t103_a_subscriber_that_subscribes_again_before_its_lease_ends() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/callback", &[]);
    node.subscribe(&subscriber, "/callback", &[]);
    check_verification(&subscriber.verifications()[1], "subscribe");
    node.publish_as("text/html", FEED);
    check_delivery(&node, &subscriber.wait_deliveries(1)[0]);
    assert_eq!(node.settled()["delivered"], 1);
    assert_eq!(subscriber.deliveries().len(), 1, "one delivery, not two");
}

#[test]
fn t104_a_subscriber_that_unsubscribes() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/callback", &[]);
    let callback = subscriber.url("/callback");
    let form = [("hub.mode", "unsubscribe"), ("hub.topic", TOPIC), ("hub.callback", &*callback)];
    assert_eq!(node.form(&form).status, 202);
    check_verification(&subscriber.wait_verification(2), "unsubscribe");
    eventually("it has ended", DEADLINE, || node.status()["subscriptions"] == 0);
    node.publish_as("text/html", FEED);
    assert_eq!(node.settled()["audience"], 0);
    assert_eq!(subscriber.deliveries(), []);
}

#[test]
fn t105_plaintext_content() {
    subscribed(&[], "text/plain", "just text\n");
}

#[test]
fn t106_json_content() {
    subscribed(&[], "application/json", "{\"items\":[1,2,3]}");
}
