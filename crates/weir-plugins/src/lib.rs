//! The plugins: a file each, and the list of them.

use weir_plugin::{Entry, Registry};

mod addresses;
mod answer;
mod api_breaker;
mod auth;
mod basic_auth;
mod brotli;
mod callout;
mod client_control;
mod clock;
mod coding;
mod complaint;
mod compression;
mod consumer_restriction;
mod content_filter;
mod content_type;
mod cors;
mod counters;
mod counting;
mod csrf;
mod fault_injection;
mod file_logger;
mod forward_auth;
mod grpc_web;
mod gzip;
mod headers;
mod hmac_auth;
mod http_logger;
mod ip_restriction;
mod json;
mod json_threat_protection;
mod json_web_token;
mod jwt_auth;
mod key_auth;
mod ldap_auth;
mod limit_conn;
mod limit_count;
mod limit_key;
mod limit_req;
mod log_bodies;
mod log_entry;
mod log_sink;
mod message_size;
mod mocking;
mod multi_auth;
mod onlooker;
mod openid_connect;
mod pattern;
mod prometheus;
mod proxy_mirror;
mod proxy_rewrite;
mod real_ip;
mod recent;
mod redirect;
mod redis_server;
mod referer_restriction;
mod request_id;
mod request_validation;
mod response_rewrite;
#[cfg(test)]
mod testing;
mod threat;
mod time_restriction;
mod traffic_split;
mod trust;
mod ua_restriction;
mod uri_blocker;
mod workflow;
mod xml;
mod xml_threat_protection;

pub use log_sink::{Tally, finish as finish_logs, tallies as log_tallies};
pub use prometheus::{BOUNDS_MS, KINDS as LATENCIES, Labels, Latency, Totals, totals};
pub use proxy_mirror::tallies as mirror_tallies;

/// Every plugin of this binary.
pub static REGISTRY: Registry = Registry::new(&[
    Entry::of::<api_breaker::ApiBreaker>(),
    Entry::authenticating::<basic_auth::BasicAuth>(),
    Entry::of::<brotli::Brotli>(),
    Entry::of::<client_control::ClientControl>(),
    Entry::of::<consumer_restriction::ConsumerRestriction>(),
    Entry::of::<content_filter::ContentFilter>(),
    Entry::of::<cors::Cors>(),
    Entry::of::<csrf::Csrf>(),
    Entry::of::<fault_injection::FaultInjection>(),
    Entry::described::<file_logger::FileLogger>(),
    Entry::of::<forward_auth::ForwardAuth>(),
    Entry::of::<grpc_web::GrpcWeb>(),
    Entry::of::<gzip::Gzip>(),
    Entry::authenticating::<hmac_auth::HmacAuth>(),
    Entry::described::<http_logger::HttpLogger>(),
    Entry::of::<ip_restriction::IpRestriction>(),
    Entry::of::<json_threat_protection::JsonThreatProtection>(),
    Entry::authenticating::<jwt_auth::JwtAuth>(),
    Entry::authenticating::<key_auth::KeyAuth>(),
    Entry::authenticating::<ldap_auth::LdapAuth>(),
    Entry::of::<limit_conn::LimitConn>(),
    Entry::described::<limit_count::LimitCount>(),
    Entry::of::<limit_req::LimitReq>(),
    Entry::of::<message_size::MessageSize>(),
    Entry::of::<mocking::Mocking>(),
    Entry::of::<multi_auth::MultiAuth>().identifying(),
    Entry::of::<openid_connect::OpenidConnect>(),
    Entry::of::<prometheus::Prometheus>(),
    Entry::of::<proxy_mirror::ProxyMirror>(),
    Entry::of::<proxy_rewrite::ProxyRewrite>(),
    Entry::of::<real_ip::RealIp>(),
    Entry::of::<redirect::Redirect>(),
    Entry::of::<referer_restriction::RefererRestriction>(),
    Entry::of::<request_id::RequestId>(),
    Entry::of::<request_validation::RequestValidation>(),
    Entry::of::<response_rewrite::ResponseRewrite>(),
    Entry::of::<time_restriction::TimeRestriction>(),
    Entry::of::<traffic_split::TrafficSplit>(),
    Entry::of::<ua_restriction::UaRestriction>(),
    Entry::of::<uri_blocker::UriBlocker>(),
    Entry::of::<workflow::Workflow>(),
    Entry::of::<xml_threat_protection::XmlThreatProtection>(),
]);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::Value;
    use weir_plugin::Build;

    use super::*;

    #[test]
    fn names_are_unique() {
        let mut seen = HashSet::new();
        for entry in REGISTRY.entries() {
            assert!(seen.insert(entry.name), "{} is listed twice", entry.name);
        }
    }

    #[test]
    fn examples_build_without_a_warning() {
        for entry in REGISTRY.entries() {
            let options = testing::example(entry);
            let mut build = Build::default().with_upstreams(testing::upstreams(&options));
            let built = (entry.build)(&options, &mut build);
            assert!(built.is_ok(), "{}: {}", entry.name, built.err().expect("not ok"));
            assert_eq!(build.warnings, [], "{}", entry.name);
        }
    }

    #[test]
    fn plugins_and_their_options_are_documented() {
        for entry in REGISTRY.entries() {
            for schema in [
                Some(entry.schema),
                entry.credential.map(|credential| credential.schema),
                entry.metadata.map(|metadata| metadata.schema),
            ]
            .into_iter()
            .flatten()
            {
                let schema = schema();
                assert!(schema["description"].is_string(), "{} has no description", entry.name);
                let mut undocumented = Vec::new();
                find_undocumented(&schema, entry.name, &mut undocumented);
                assert_eq!(undocumented, [""; 0], "options without a description");
            }
        }
    }

    fn find_undocumented(schema: &Value, path: &str, found: &mut Vec<String>) {
        let Value::Object(members) = schema else { return };
        for (name, property) in members.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let path = format!("{path}.{name}");
            if !property["description"].is_string() {
                found.push(path.clone());
            }
            find_undocumented(property, &path, found);
        }
        for (name, definition) in members.get("$defs").and_then(Value::as_object).into_iter().flatten() {
            find_undocumented(definition, &format!("{path}/{name}"), found);
        }
    }
}
