//! Refuses messages by address, time, origin, size or content.

pub mod client_control;
pub mod content_filter;
pub mod cors;
pub mod csrf;
pub mod graphql_threat_protection;
pub mod ip_restriction;
pub mod json_threat_protection;
pub mod message_size;
pub mod oas_validator;
pub mod referer_restriction;
pub mod request_validation;
pub mod sse_policy;
pub mod threat;
pub mod time_restriction;
pub mod ua_restriction;
pub mod uri_blocker;
pub mod websocket_policy;
pub mod xml_threat_protection;
