//! Hubs below `/weir/v1/hubs`: their subscriptions with the latest delivery attempts, and dead letters, which can be replayed.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use weir_hub::{DeadLetter, DeadLetterFilter, DeliveryAttempt, Hub, HubShares, Refusal, SubscriptionEntry, origin_of};

use super::answer::{self, AdminResponse, Refused, refuse};
use super::request::AdminRequest;
use crate::document::AdminRole;
use crate::hubs::Hubs;

const DEFAULT_COUNT: u64 = 50;
const MOST_COUNT: u64 = 1_000;

/// Answers below `/weir/v1/hubs`.
pub(super) async fn answer(hubs: &Hubs, request: &AdminRequest, path: &[&str]) -> Refused<AdminResponse> {
    let (id, path) = match path {
        [] if request.method == Method::GET => return Ok(list(hubs)),
        [id, path @ ..] => (id, path),
        [] => return Ok(answer::other_method(&request.method, "GET")),
    };
    let hub = find(hubs, id)?;
    match (path, &request.method) {
        (["subscriptions"], &Method::GET) => subscriptions(&hub, request).await,
        (["subscriptions", number], &Method::GET) => subscription(&hub, request, number).await,
        (["dead-letters"], &Method::GET) => dead_letters(&hub, request).await,
        (["replay"], &Method::POST) => replay(&hub, request).await,
        (["subscriptions"] | ["subscriptions", _] | ["dead-letters"], method) => {
            Ok(answer::other_method(method, "GET"))
        }
        (["replay"], method) => Ok(answer::other_method(method, "POST")),
        _ => Ok(no_such_path()),
    }
}

pub(super) fn no_such_path() -> AdminResponse {
    answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": "not found" }))
}

fn list(hubs: &Hubs) -> AdminResponse {
    let list: Vec<Value> = hubs.running().iter().map(|(id, _)| json!({ "id": id })).collect();
    answer::json_of(StatusCode::OK, &json!({ "total": list.len(), "list": list }))
}

fn find(hubs: &Hubs, id: &str) -> Refused<Arc<Hub>> {
    let running = hubs.running();
    let found = running.iter().find(|(own, _)| **own == *id).map(|(_, hub)| Arc::clone(hub));
    found.ok_or_else(|| {
        let known: Vec<&str> = running.iter().map(|(id, _)| &**id).collect();
        let problem = match known.is_empty() {
            true => {
                format!("this node runs no hub: neither `{id}` nor another one; hubs are configured in the list `hubs`")
            }
            false => format!("this node runs no hub `{id}`; the hubs that run are: {}", known.join(", ")),
        };
        Box::new(answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": problem })))
    })
}

fn refused(refusal: Refusal) -> Box<AdminResponse> {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    Box::new(answer::json_of(status, &json!({ "error_msg": refusal.reason })))
}

/// Lists subscriptions in the order of their ids; `?after=` continues after a page, `?topic=` selects those of one topic.
async fn subscriptions(hub: &Hub, request: &AdminRequest) -> Refused<AdminResponse> {
    let (after, count) = (number(request, "after")?.unwrap_or(0), count(request)?);
    let topic = request.query.get("topic").map(Box::from);
    let mut list = hub.subscriptions(topic, after, count + 1).await.map_err(refused)?;
    let next = cut(&mut list, count).map(|last| last.id.to_string());
    let told = list.iter().map(|entry| told(entry, request.caller.role)).collect();
    Ok(page(hub, told, next))
}

async fn subscription(hub: &Hub, request: &AdminRequest, number: &str) -> Refused<AdminResponse> {
    let Ok(id) = number.parse() else { return refuse(format!("`{number}` is not the id of a subscription")) };
    let Some((entry, attempts)) = hub.subscription(id).await.map_err(refused)? else {
        return Ok(answer::key_not_found());
    };
    let mut told = told(&entry, request.caller.role);
    told["latest_attempts"] = attempts.iter().map(attempt).collect();
    Ok(answer::json_of(StatusCode::OK, &told))
}

/// Lists dead letters, those of the oldest events first; `?after=` continues after a page.
async fn dead_letters(hub: &Hub, request: &AdminRequest) -> Refused<AdminResponse> {
    let count = count(request)?;
    let after = match request.query.get("after") {
        None => (0, 0),
        Some(text) => {
            let pair = text.split_once('-').and_then(|(event, own)| Some((event.parse().ok()?, own.parse().ok()?)));
            let Some(pair) = pair else {
                return refuse(format!("invalid argument after: `{text}` is not the `next` of a page"));
            };
            pair
        }
    };
    let filter = DeadLetterFilter {
        topic: request.query.get("topic").map(Box::from),
        subscription: number(request, "subscription")?,
        event: number(request, "event")?,
    };
    let mut list = hub.dead_letters(filter, after, count + 1).await.map_err(refused)?;
    let next = cut(&mut list, count).map(|last| format!("{}-{}", last.event, last.subscription));
    let told = list.iter().map(|one| letter(one, request.caller.role)).collect();
    Ok(page(hub, told, next))
}

async fn replay(hub: &Hub, request: &AdminRequest) -> Refused<AdminResponse> {
    let filter = match request.json()? {
        Some(Value::Object(members)) => filter(&members)?,
        _ => return refuse(WHICH),
    };
    let replayed = hub.replay(filter.clone()).await.map_err(refused)?;
    if replayed == 0 {
        check_selected(hub, &filter).await?;
    }
    Ok(answer::json_of(StatusCode::OK, &of_own_shares(hub, json!({ "replayed": replayed }))))
}

/// Refuses a replay of nothing, if what it selects does not exist: it is more probably a mistake than a hub without dead letters.
async fn check_selected(hub: &Hub, filter: &DeadLetterFilter) -> Refused<()> {
    const LISTED: usize = 10;
    let missing =
        |problem: String| Err(Box::new(answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": problem }))));
    if let Some(id) = filter.subscription
        && hub.subscription(id).await.map_err(refused)?.is_none()
    {
        let known = hub.subscriptions(None, 0, LISTED + 1).await.map_err(refused)?;
        let ids: Vec<String> = known.iter().take(LISTED).map(|entry| entry.id.to_string()).collect();
        let more = if known.len() > LISTED { " and more" } else { "" };
        // Another node has the subscriptions of its shares.
        let place = if hub.shares().is_some() { "on this node" } else { "in this hub" };
        return missing(match ids.is_empty() {
            true => format!("there is no subscription {id} {place}, and no other one"),
            false => format!("there is no subscription {id} {place}; there are {}{more}", ids.join(", ")),
        });
    }
    if let Some(topic) = filter.topic.as_ref().filter(|topic| !hub.settings().has_topic(topic)) {
        return missing(format!("this hub has no topic {topic}"));
    }
    let newest = hub.newest().await.map_err(refused)?;
    match filter.event {
        Some(event) if event == 0 || event > newest => {
            missing(format!("there is no event {event} in this hub; the newest one is {newest}"))
        }
        _ => Ok(()),
    }
}

const WHICH: &str =
    "say which dead letters, in a JSON object: `topic`, `subscription` and `event` select them, or `{\"all\": true}`";

fn filter(members: &Map<String, Value>) -> Refused<DeadLetterFilter> {
    let mut filter = DeadLetterFilter::default();
    let mut is_all = false;
    for (name, value) in members {
        let is_read = match name.as_str() {
            "topic" => value.as_str().map(|topic| filter.topic = Some(topic.into())).is_some(),
            "subscription" => value.as_u64().map(|id| filter.subscription = Some(id)).is_some(),
            "event" => value.as_u64().map(|event| filter.event = Some(event)).is_some(),
            "all" => value.as_bool().map(|all| is_all = all).is_some(),
            _ => return refuse(format!("`{name}` is not known; {WHICH}")),
        };
        if !is_read {
            return refuse(format!(
                "`{name}` cannot be {value}: `topic` is a text, `subscription` and `event` are numbers"
            ));
        }
    }
    match (filter == DeadLetterFilter::default(), is_all) {
        (true, true) | (false, false) => Ok(filter),
        (true, false) => refuse(WHICH),
        (false, true) => refuse("`all` goes with nothing else; leave it out to select some"),
    }
}

fn number(request: &AdminRequest, name: &str) -> Refused<Option<u64>> {
    let Some(text) = request.query.get(name) else { return Ok(None) };
    text.parse().map_or_else(
        |_| refuse(format!("invalid argument {name}: `{text}` is not a number")),
        |number| Ok(Some(number)),
    )
}

fn count(request: &AdminRequest) -> Refused<usize> {
    match number(request, "count")?.unwrap_or(DEFAULT_COUNT) {
        count @ 1..=MOST_COUNT => Ok(count as usize),
        count => refuse(format!("invalid argument count: {count} is not from 1 to {MOST_COUNT}")),
    }
}

/// Cuts a list to a page. Returns the last entry of the page if there are more.
fn cut<T>(list: &mut Vec<T>, count: usize) -> Option<&T> {
    let has_more = list.len() > count;
    list.truncate(count);
    list.last().filter(|_| has_more)
}

/// Marks an answer that covers only this node's shares of the subscriptions.
fn of_own_shares(hub: &Hub, mut answer: Value) -> Value {
    if let Some(HubShares { own, all }) = hub.shares() {
        answer["shares"] = json!({ "own": own, "all": all });
    }
    answer
}

fn page(hub: &Hub, list: Vec<Value>, next: Option<String>) -> AdminResponse {
    let mut page = json!({ "list": list });
    if let Some(next) = next {
        page["next"] = next.into();
    }
    answer::json_of(StatusCode::OK, &of_own_shares(hub, page))
}

fn told(entry: &SubscriptionEntry, role: AdminRole) -> Value {
    json!({
        "id": entry.id,
        "topic": entry.topic,
        "callback": callback(&entry.callback, role),
        "consumer": Some(&entry.owner).filter(|owner| !owner.is_empty()),
        "has_secret": entry.has_secret,
        "lease_ends_ms": entry.expires_ms,
        "state": entry.state.name(),
        "attempts": entry.attempts,
        "pending": entry.pending,
        "delivered": entry.tally.delivered,
        "dead_lettered": entry.tally.dead_lettered,
        "expired": entry.tally.expired,
        "throttled": entry.tally.throttled,
        "replayed": entry.tally.replayed,
        "dead_letters": entry.dead_letters,
    })
}

fn attempt(attempt: &DeliveryAttempt) -> Value {
    json!({
        "at_ms": attempt.at_ms,
        "event": attempt.event,
        "took_ms": attempt.took_ms,
        "replay": attempt.is_replay,
        "result": if attempt.failure.is_none() { "delivered" } else { "failed" },
        "failure": attempt.failure.map(|failure| failure.to_string()),
    })
}

fn letter(letter: &DeadLetter, role: AdminRole) -> Value {
    json!({
        "event": letter.event,
        "subscription": letter.subscription,
        "topic": letter.topic,
        "callback": callback(&letter.callback, role),
        "at_ms": letter.at_ms,
        "attempts": letter.attempts,
        "failure": letter.failure.to_string(),
    })
}

/// A callback without its query, which often contains a secret. For a viewer, the path is masked too.
fn callback(url: &str, role: AdminRole) -> String {
    let origin = origin_of(url).unwrap_or_default();
    match (role, url.split_once('?')) {
        (AdminRole::Viewer, _) => format!("{origin}/***"),
        (_, Some((before, _))) => format!("{before}?***"),
        (_, None) => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_are_shown_without_what_may_be_a_secret() {
        let url = "https://a.example:8443/hooks/7?token=hidden";
        assert_eq!(callback(url, AdminRole::Viewer), "https://a.example:8443/***");
        assert_eq!(callback(url, AdminRole::Editor), "https://a.example:8443/hooks/7?***");
        assert_eq!(callback("https://a.example/b", AdminRole::Admin), "https://a.example/b");
    }

    #[test]
    fn a_replay_says_what_it_is_for() {
        let read = |value: Value| {
            let answer = filter(value.as_object().expect("an object"));
            answer.map_err(|refused| String::from_utf8_lossy(refused.body()).into_owned())
        };
        let some = DeadLetterFilter { topic: Some("t".into()), subscription: Some(7), event: Some(1) };
        assert_eq!(read(json!({"topic": "t", "subscription": 7, "event": 1})), Ok(some));
        assert_eq!(read(json!({"all": true})), Ok(DeadLetterFilter::default()));
        for (wrong, told) in [
            (json!({}), "say which dead letters"),
            (json!({"all": false}), "say which dead letters"),
            (json!({"all": true, "event": 1}), "`all` goes with nothing else"),
            (json!({"event": "1"}), "`event` cannot be"),
            (json!({"events": 1}), "`events` is not known"),
        ] {
            let problem = read(wrong.clone()).expect_err("it is refused");
            assert!(problem.contains(told), "{wrong}: {problem}");
        }
    }
}
