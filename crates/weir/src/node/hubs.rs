//! Hubs, in `/metrics` and `/status`.

use serde_json::{Value, json};
use weir_control::hubs::HubStatus;
use weir_telemetry::page::Page;

/// The state of each hub, by its id.
type HubStatuses = [(Box<str>, HubStatus)];

pub(super) fn write(hubs: &HubStatuses, page: &mut Page) {
    if hubs.is_empty() {
        return;
    }
    page.counter(
        "weir_hub_audience",
        "Deliveries that a hub has to make: the sum, over all its events, of the subscriptions that get the event.",
    );
    for (hub, status) in hubs {
        page.total(&[("hub", hub)], status.account.audience);
    }
    page.counter(
        "weir_hub_outcomes",
        "Finished deliveries, by outcome: `delivered`, `dead_lettered`, `expired`, `cancelled` or `throttled`.",
    );
    for (hub, status) in hubs {
        let tally = status.account.tally;
        let outcomes = [
            ("delivered", tally.delivered),
            ("dead_lettered", tally.dead_lettered),
            ("expired", tally.expired),
            ("cancelled", tally.cancelled),
            ("throttled", tally.throttled),
        ];
        for (outcome, count) in outcomes {
            page.total(&[("hub", hub), ("outcome", outcome)], count);
        }
    }
    page.counter("weir_hub_replayed", "Dead letters that were replayed; each replay is a further delivery.");
    for (hub, status) in hubs {
        page.total(&[("hub", hub)], status.account.tally.replayed);
    }
    page.counter("weir_hub_attempts", "Delivery attempts since the process started, retries included.");
    for (hub, status) in hubs {
        page.total(&[("hub", hub)], status.attempts);
    }
    subscribing(hubs, page);
    listening(hubs, page);
    sizes(hubs, page);
}

/// Subscriptions that ended, and requests that came to none.
fn subscribing(hubs: &HubStatuses, page: &mut Page) {
    page.counter(
        "weir_hub_subscriptions_ended",
        "Subscriptions that have ended since the process started, by reason: `unsubscribed`, `lease_ended`, `gone` (the \
         callback answered 410), `topic_removed` or `not_permitted` (the configuration changed).",
    );
    for (hub, status) in hubs {
        for (reason, count) in status.ends.by_reason() {
            page.total(&[("hub", hub), ("reason", reason)], count);
        }
    }
    page.counter(
        "weir_hub_refused_requests",
        "Subscription requests that were refused since the process started, by reason: `unverified` (too many wait for their \
         verification), `unverified_of_client` (too many of one client do), `subscriptions_of_consumer` (the consumer has too \
         many), `subscriptions_of_address` (the address of a client without a consumer has too many), \
         `anonymous_subscriptions` (all clients without a consumer have too many), or `not_owner` (the subscription belongs to another consumer).",
    );
    for (hub, status) in hubs {
        for (reason, count) in status.refused.by_reason() {
            page.total(&[("hub", hub), ("reason", reason)], count);
        }
    }
    page.counter(
        "weir_hub_failed_verifications",
        "Subscription requests that were not verified since the process started, by reason: `name_lookup`, `address_denied` \
         (`callbacks.allow` does not have the address), `connect`, `tls`, `connect_timed_out`, `timed_out` (no answer in time), `broken`, `status` (not 2xx), \
         `wrong_challenge` (the response has another content), or `other`.",
    );
    for (hub, status) in hubs {
        for (reason, count) in status.failed_verifications.by_reason() {
            page.total(&[("hub", hub), ("reason", reason)], count);
        }
    }
}

fn listening(hubs: &HubStatuses, page: &mut Page) {
    page.gauge("weir_hub_listeners", "Clients that listen: event streams, WebSockets, and long polls that wait.");
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], status.listeners.open);
    }
    page.counter(
        "weir_hub_refused_listeners",
        "Clients that could not listen since the process started, by the limit that was reached: `hub` (`listen.max`) or \
         `client` (`listen.max_per_client`).",
    );
    for (hub, status) in hubs {
        page.total(&[("hub", hub), ("limit", "hub")], status.listeners.refused);
        page.total(&[("hub", hub), ("limit", "client")], status.listeners.refused_of_client);
    }
    page.counter(
        "weir_hub_unread_listeners",
        "Clients whose connection or stream was ended since the process started, because they did not read.",
    );
    for (hub, status) in hubs {
        page.total(&[("hub", hub)], status.listeners.unread);
    }
}

fn sizes(hubs: &HubStatuses, page: &mut Page) {
    page.gauge("weir_hub_up", "Whether the disk, or the Kafka, of a hub stores what it gets (1) or not (0).");
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], u8::from(status.error.is_none()));
    }
    page.gauge("weir_hub_pending", "Deliveries that are not finished yet.");
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], status.account.pending);
    }
    page.gauge("weir_hub_in_flight", "Deliveries in flight: sent, without a response so far.");
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], status.in_flight);
    }
    page.gauge("weir_hub_subscriptions", "Active subscriptions.");
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], status.subscriptions);
    }
    page.gauge(
        "weir_hub_failing_subscriptions",
        "Subscriptions that have an event to deliver, and whose last delivery attempt has failed.",
    );
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], status.failing);
    }
    page.gauge("weir_hub_unverified", "Subscription requests whose callback is not verified yet.");
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], status.unverified);
    }
    page.gauge("weir_hub_stored_events", "Events that the hub stores.");
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], status.stored_events);
    }
    page.gauge("weir_hub_stored_bytes", "Size of the events that the hub stores, in bytes.");
    for (hub, status) in hubs {
        page.value(&[("hub", hub)], status.stored_bytes);
    }
}

/// The hubs in `/status`.
pub(super) fn report(hubs: &HubStatuses) -> Value {
    let report = |(hub, status): &(Box<str>, HubStatus)| {
        let (account, tally) = (status.account, status.account.tally);
        json!({
            "id": hub,
            "subscriptions": status.subscriptions,
            "failing": status.failing,
            "unverified": status.unverified,
            "listeners": status.listeners.open,
            "events": status.events,
            "stored_events": status.stored_events,
            "stored_bytes": status.stored_bytes,
            "in_flight": status.in_flight,
            "attempts": status.attempts,
            "longest_turn_us": u64::try_from(status.turns.longest.as_micros()).unwrap_or(u64::MAX),
            "most_starts_per_turn": status.turns.most_started,
            "audience": account.audience,
            "delivered": tally.delivered,
            "dead_lettered": tally.dead_lettered,
            "expired": tally.expired,
            "cancelled": tally.cancelled,
            "throttled": tally.throttled,
            "replayed": tally.replayed,
            "pending": account.pending,
            "shares": status.shares.map(|shares| json!({ "own": shares.own, "all": shares.all })),
            "error": status.error,
        })
    };
    hubs.iter().map(report).collect()
}
