//! A W3C WebSub hub (Recommendation of 2018-01-23) that keeps its events on disk and needs no broker, or shares them with the
//! hubs of other nodes through a topic of Kafka.
//!
//! - [`HubForm`] and [`known_topic`] decide about a request from the request alone.
//! - [`Hub::publish`] appends an event to a journal and returns once it is synced; [`Hub::request`] does the same with a request
//!   for a subscription, which is then verified.
//!
//! The engine decides which event is delivered to which subscription when; it has neither sockets nor a clock, so that it can be
//! tested by simulation. A thread carries out its decisions.
//! [`Hub::events_after`] lets other parts of the process listen to a topic.
//!
//! Each event has an audience: the subscriptions that exist when it is committed. It is delivered to each at least once, in
//! order, or is accounted for as dead-lettered, expired or cancelled ([`Account`]). Dead letters are kept as long as their
//! events, and [`Hub::replay`] delivers them once more.

#![forbid(unsafe_code)]

mod account;
mod attempt;
mod clock;
mod delivery_reports;
mod driver;
mod ends;
mod engine;
mod form;
mod holding;
mod hub;
mod in_flight;
mod kafka;
mod limit;
mod live_settings;
mod record;
mod rights;
mod sending;
mod settings;
mod signature;
mod store;
mod topic;
mod verification;

pub use account::{Account, HubShares, HubStatus, ListenerCounts, LoopTurns, RefusedRequests, Tally};
pub use attempt::{DeliveryAttempt, DeliveryFailure};
pub use ends::SubscriptionEnds;
pub use engine::{DeadLetter, DeadLetterFilter, SubscriptionEntry, SubscriptionState};
pub use form::{HubForm, Refusal, SubscriptionMode, SubscriptionRequest, known_topic, read as read_form};
pub use holding::{EventHolding, HeldEvents, Listened};
pub use hub::Hub;
pub use limit::{DeliveryLimit, ExcessDelivery, LimitWindow};
pub use record::Event;
pub use rights::{ConsumerGroups, PermittedCallers, TopicRights};
pub use sending::links;
pub use settings::{
    CallbackSettings, DeliverySettings, HubSettings, KafkaLogSettings, KafkaTlsSettings, LeaseSettings, ListenSettings,
    LogSettings, PublishSettings, RetentionSettings, SubscribeSettings,
};
pub use signature::{SignatureMethod, is_signed, sign};
pub use store::{HubRecovery, lock};
pub use topic::{TopicPattern, is_http_url, origin_of};
pub use verification::FailedVerifications;
