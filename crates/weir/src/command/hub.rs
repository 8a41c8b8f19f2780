//! `weir hub`: subscriptions and dead letters of the hubs of a running node.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use clap::{ArgGroup, Args, Subcommand};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::admin_client::{AdminClient, AdminList, AdminOptions};
use super::resources::{ended, print};
use crate::exit::ExitCause;
use crate::say::{self, say};

/// Shows subscriptions and dead letters of a hub of a running node, and delivers dead letters once more.
#[derive(Debug, Args)]
pub(crate) struct HubCommand {
    #[command(subcommand)]
    action: HubAction,
}

#[derive(Debug, Subcommand)]
enum HubAction {
    /// Lists the subscriptions of a hub, or shows one of them with its latest delivery attempts.
    Subscriptions {
        /// The id of the hub.
        hub: String,
        /// Shows the subscription with this id.
        subscription: Option<u64>,
        /// Only subscriptions to this topic.
        #[arg(long, value_name = "URL")]
        topic: Option<String>,
        #[command(flatten)]
        page: PageOptions,
        #[command(flatten)]
        node: AdminOptions,
    },
    /// Lists events that the hub stopped delivering because all attempts failed.
    DeadLetters {
        /// The id of the hub.
        hub: String,
        #[command(flatten)]
        selected: SelectOptions,
        #[command(flatten)]
        page: PageOptions,
        #[command(flatten)]
        node: AdminOptions,
    },
    /// Delivers dead letters once more: those of `--subscription`, `--topic` or `--event`, or `--all`. An event that fails again is
    /// a dead letter again.
    #[command(group(ArgGroup::new("selection").args(["subscription", "topic", "event", "all"]).required(true).multiple(true)))]
    Replay {
        /// The id of the hub.
        hub: String,
        #[command(flatten)]
        selected: SelectOptions,
        /// Replays all dead letters of the hub.
        #[arg(long, conflicts_with_all = ["topic", "subscription", "event"])]
        all: bool,
        #[command(flatten)]
        node: AdminOptions,
    },
}

#[derive(Debug, Args)]
struct PageOptions {
    /// The number of entries to list.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// Continues after the last entry of an earlier list.
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
}

#[derive(Debug, Args)]
struct SelectOptions {
    /// Only events of this topic.
    #[arg(long, value_name = "URL")]
    topic: Option<String>,
    /// Only events for the subscription with this id.
    #[arg(long, value_name = "ID")]
    subscription: Option<u64>,
    /// Only the event with this number.
    #[arg(long, value_name = "NUMBER")]
    event: Option<u64>,
}

impl HubCommand {
    pub(crate) fn execute(self) -> ExitCode {
        ended(match self.action {
            HubAction::Subscriptions { hub, subscription: Some(id), node, .. } => show(&node, &hub, id),
            HubAction::Subscriptions { hub, topic, page, node, .. } => {
                let query = page.query(&[("topic", topic)]);
                list(&node, &format!("{}/subscriptions?{query}", place(&hub)), SUBSCRIPTIONS, subscription_line)
            }
            HubAction::DeadLetters { hub, selected, page, node } => {
                let query = page.query(&selected.pairs());
                list(&node, &format!("{}/dead-letters?{query}", place(&hub)), DEAD_LETTERS, dead_letter_line)
            }
            HubAction::Replay { hub, selected, all, node } => replay(&node, &hub, &selected, all),
        })
    }
}

impl SelectOptions {
    fn pairs(&self) -> [(&'static str, Option<String>); 3] {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        [("topic", self.topic.clone()), ("subscription", number(self.subscription)), ("event", number(self.event))]
    }
}

impl PageOptions {
    fn query(&self, pairs: &[(&str, Option<String>)]) -> String {
        let mut query = format!("count={}", self.count);
        let after = ("after", self.after.clone());
        for (name, value) in pairs.iter().chain([&after]) {
            if let Some(value) = value {
                query += &format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
            }
        }
        query
    }
}

fn place(hub: &str) -> String {
    format!("/weir/v1/hubs/{}", utf8_percent_encode(hub, NON_ALPHANUMERIC))
}

fn show(node: &AdminOptions, hub: &str, id: u64) -> Result<(), ExitCause> {
    let found = AdminClient::new(node)?.find(&format!("{}/subscriptions/{id}", place(hub)))?;
    print(&found.ok_or_else(|| format!("hub `{hub}` has no subscription {id}"))?);
    Ok(())
}

fn list(node: &AdminOptions, path: &str, header: &str, line: fn(&Value) -> String) -> Result<(), ExitCause> {
    let AdminList { items, answer } = AdminClient::new(node)?.list(path)?;
    let lines: String = items.iter().map(line).collect();
    say::print(format!("{header}{lines}").as_bytes());
    tell_shares(&answer);
    if let Some(next) = answer["next"].as_str() {
        say!("there are more; continue with `--after {next}`");
    }
    Ok(())
}

fn replay(node: &AdminOptions, hub: &str, selected: &SelectOptions, all: bool) -> Result<(), ExitCause> {
    let mut body = json!({});
    let SelectOptions { topic, subscription, event } = selected;
    let members = [
        ("all", all.then(|| true.into())),
        ("topic", topic.clone().map(Value::from)),
        ("subscription", subscription.map(Value::from)),
        ("event", event.map(Value::from)),
    ];
    for (name, value) in members {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    let node = AdminClient::new(node)?;
    let answer = node.ask(Method::POST, &format!("{}/replay", place(hub)), &[], Some(&body))?;
    let replayed = answer.body["replayed"].as_u64().ok_or_else(|| node.is_foreign())?;
    say!("dead letters that are delivered once more: {replayed}");
    tell_shares(&answer.body);
    Ok(())
}

/// Prints a note if other nodes have a part of the subscriptions.
fn tell_shares(answer: &Value) {
    let [own, all] = ["own", "all"].map(|name| answer["shares"][name].as_u64().unwrap_or_default());
    if own < all {
        say!(
            "this node has {own} of the {all} parts of the hub's subscriptions; run the command on the other nodes for the rest"
        );
    }
}

const SUBSCRIPTIONS: &str = "      ID STATE     PENDING  DELIVERED  DEAD LETTERS  CONSUMER      TOPIC -> CALLBACK\n";
const DEAD_LETTERS: &str =
    "   EVENT SUBSCRIPTION  TIME                           ATTEMPTS  FAILURE; TOPIC -> CALLBACK\n";

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or("-")
}

fn subscription_line(one: &Value) -> String {
    let number = |name: &str| one[name].as_u64().unwrap_or_default();
    let (state, consumer, topic, callback) =
        (text(one, "state"), text(one, "consumer"), text(one, "topic"), text(one, "callback"));
    format!(
        "{:>8} {state:<8} {:>8} {:>10} {:>13}  {consumer:<12}  {topic} -> {callback}\n",
        number("id"),
        number("pending"),
        number("delivered"),
        number("dead_letters"),
    )
}

fn dead_letter_line(one: &Value) -> String {
    let number = |name: &str| one[name].as_u64().unwrap_or_default();
    let at = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(number("at_ms")));
    let (failure, topic, callback) = (text(one, "failure"), text(one, "topic"), text(one, "callback"));
    format!(
        "{:>8} {:>12}  {at}  {:>8}  {failure}; {topic} -> {callback}\n",
        number("event"),
        number("subscription"),
        number("attempts"),
    )
}
