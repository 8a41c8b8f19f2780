//! Refuses messages by address, time, origin, size or content.

pub(crate) mod ai_prompt_guard;
pub(crate) mod client_control;
pub(crate) mod content_filter;
pub(crate) mod cors;
pub(crate) mod csrf;
pub(crate) mod graphql_threat_protection;
pub(crate) mod ip_restriction;
pub(crate) mod json_threat_protection;
pub(crate) mod message_size;
pub(crate) mod oas_validator;
pub(crate) mod referer_restriction;
pub(crate) mod request_validation;
pub(crate) mod sse_policy;
pub(crate) mod threat;
pub(crate) mod time_restriction;
pub(crate) mod ua_restriction;
pub(crate) mod uri_blocker;
pub(crate) mod websocket_policy;
pub(crate) mod xml_threat_protection;
