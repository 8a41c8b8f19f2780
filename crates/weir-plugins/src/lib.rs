//! The plugins: one file each, in folders by purpose, and their registry. `store`, `content` and `options` hold code
//! that plugins of several folders share.

#![forbid(unsafe_code)]

use weir_plugin::{Entry, Registry};

mod answer;
mod auth;
mod clock;
mod content;
mod envoy;
mod fair_turns;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod independent_faults;
mod limit;
mod log;
mod observe;
mod options;
mod rate_limited_log;
mod security;
mod store;
#[cfg(test)]
mod testing;
mod traffic;
mod transform;
mod trust;

pub use log::capture::SECRET_FIELDS;
pub use observe::prometheus::{BOUNDS_MS, BucketHistogram, KINDS as LATENCIES, Totals, totals};
pub use store::counters::{hand_over as hand_over_counters, take_over as take_over_counters};
pub use store::durable::{
    failed_writes as failed_counter_writes, finish as finish_counters, refusal as counter_refusal,
    unwritten as unwritten_counters,
};
pub use traffic::proxy_cache::totals as cache_totals;
pub use traffic::proxy_mirror::tallies as mirror_tallies;
pub use traffic::sse_fanout::{StreamLimit, totals as fanout_totals};

/// Every plugin of this binary.
pub static REGISTRY: Registry = Registry::new(&[
    Entry::of::<auth::acl::Acl>(),
    Entry::of::<transform::ai_prompt_decorator::AiPromptDecorator>(),
    Entry::of::<security::ai_prompt_guard::AiPromptGuard>(),
    Entry::of::<transform::ai_prompt_template::AiPromptTemplate>(),
    Entry::of::<transform::alt_svc::AltSvc>(),
    Entry::of::<traffic::api_breaker::ApiBreaker>(),
    Entry::of::<auth::attach_consumer_label::AttachConsumerLabel>(),
    Entry::of::<auth::authz_keycloak::AuthzKeycloak>(),
    Entry::of::<traffic::aws_lambda::AwsLambda>().answering(),
    Entry::described::<traffic::azure_functions::AzureFunctions>().answering(),
    Entry::authenticating::<auth::basic_auth::BasicAuth>(),
    Entry::described::<traffic::batch_requests::BatchRequests>().answering(),
    Entry::of::<transform::body_transformer::BodyTransformer>(),
    Entry::of::<transform::brotli::Brotli>(),
    Entry::described::<log::clickhouse_logger::ClickhouseLogger>().on_streams(),
    Entry::of::<security::client_control::ClientControl>(),
    Entry::of::<auth::consumer_restriction::ConsumerRestriction>(),
    Entry::of::<security::content_filter::ContentFilter>(),
    Entry::described::<security::cors::Cors>(),
    Entry::of::<security::csrf::Csrf>(),
    Entry::of::<log::data_mask::DataMask>(),
    Entry::described::<log::datadog::Datadog>().of_node("the agent that it sends metrics to is a setting of the node"),
    Entry::of::<transform::degraphql::Degraphql>(),
    Entry::of::<transform::echo::Echo>(),
    Entry::described::<log::elasticsearch_logger::ElasticsearchLogger>().on_streams(),
    Entry::described::<transform::error_page::ErrorPage>(),
    Entry::of::<auth::ext_authz::ExtAuthz>(),
    Entry::of::<transform::ext_proc::ExtProc>().answering(),
    Entry::of::<traffic::fault_injection::FaultInjection>().answering(),
    Entry::described::<log::file_logger::FileLogger>().on_streams(),
    Entry::of::<auth::forward_auth::ForwardAuth>(),
    Entry::described::<log::google_cloud_logging::GoogleCloudLogging>(),
    Entry::described::<limit::graphql_limit_count::GraphqlLimitCount>(),
    Entry::of::<security::graphql_threat_protection::GraphqlThreatProtection>(),
    Entry::of::<transform::grpc_transcode::GrpcTranscode>(),
    Entry::of::<transform::grpc_web::GrpcWeb>(),
    Entry::of::<transform::gzip::Gzip>(),
    Entry::authenticating::<auth::hmac_auth::HmacAuth>(),
    Entry::described::<log::http_logger::HttpLogger>().on_streams(),
    Entry::of::<security::ip_restriction::IpRestriction>().on_streams(),
    Entry::of::<security::json_threat_protection::JsonThreatProtection>(),
    Entry::authenticating::<auth::jwe_decrypt::JweDecrypt>(),
    Entry::authenticating::<auth::jwt_auth::JwtAuth>(),
    Entry::described::<log::kafka_logger::KafkaLogger>().on_streams(),
    Entry::authenticating::<auth::key_auth::KeyAuth>(),
    Entry::described::<log::lago::Lago>(),
    Entry::authenticating::<auth::ldap_auth::LdapAuth>(),
    Entry::of::<limit::limit_conn::LimitConn>().on_streams(),
    Entry::described::<limit::limit_count::LimitCount>(),
    Entry::of::<limit::limit_events::LimitEvents>(),
    Entry::of::<limit::limit_rate::LimitRate>(),
    Entry::of::<limit::limit_req::LimitReq>(),
    Entry::described::<log::loggly::Loggly>()
        .of_node("the server that it sends records to is a setting of the node")
        .on_streams(),
    Entry::described::<log::loki_logger::LokiLogger>().on_streams(),
    Entry::of::<security::message_size::MessageSize>(),
    Entry::of::<traffic::mocking::Mocking>().answering(),
    Entry::of::<traffic::mqtt_proxy::MqttProxy>().only_on_streams(),
    Entry::authenticating::<auth::mtls_auth::MtlsAuth>(),
    Entry::of::<auth::multi_auth::MultiAuth>().identifying(),
    Entry::described::<security::oas_validator::OasValidator>(),
    Entry::of::<auth::opa::Opa>(),
    Entry::of::<traffic::openfunction::Openfunction>().answering(),
    Entry::of::<auth::openid_connect::OpenidConnect>().answering(),
    Entry::described::<observe::opentelemetry::Opentelemetry>()
        .of_node("where it sends traces is a setting of the node"),
    Entry::of::<traffic::openwhisk::Openwhisk>().answering(),
    Entry::described::<observe::otlp_logger::OtlpLogger>().on_streams(),
    Entry::described::<observe::prometheus::Prometheus>().on_streams(),
    Entry::of::<traffic::proxy_buffering::ProxyBuffering>(),
    Entry::described::<traffic::proxy_cache::ProxyCache>()
        .of_node("its zones are shared, and a key of one namespace could take the place of another's"),
    Entry::of::<traffic::proxy_control::ProxyControl>(),
    Entry::of::<traffic::proxy_mirror::ProxyMirror>(),
    Entry::of::<transform::proxy_rewrite::ProxyRewrite>(),
    Entry::of::<traffic::public_api::PublicApi>().answering(),
    Entry::of::<traffic::real_ip::RealIp>(),
    Entry::of::<traffic::redirect::Redirect>().answering(),
    Entry::of::<security::referer_restriction::RefererRestriction>(),
    Entry::of::<observe::request_id::RequestId>(),
    Entry::of::<security::request_validation::RequestValidation>(),
    Entry::of::<transform::response_rewrite::ResponseRewrite>().answering(),
    Entry::of::<transform::reverse_rewrite::ReverseRewrite>(),
    Entry::of::<observe::skywalking::Skywalking>(),
    Entry::described::<log::skywalking_logger::SkywalkingLogger>().on_streams(),
    Entry::described::<log::sls_logger::SlsLogger>().on_streams(),
    Entry::described::<log::splunk_hec_logging::SplunkHecLogging>().on_streams(),
    Entry::described::<traffic::sse_fanout::SseFanout>().answering(),
    Entry::of::<security::sse_policy::SsePolicy>(),
    Entry::described::<log::syslog::Syslog>().on_streams(),
    Entry::described::<log::tcp_logger::TcpLogger>().on_streams(),
    Entry::described::<log::tencent_cloud_cls::TencentCloudCls>().on_streams(),
    Entry::of::<security::time_restriction::TimeRestriction>().on_streams(),
    Entry::of::<traffic::traffic_label::TrafficLabel>(),
    Entry::of::<traffic::traffic_split::TrafficSplit>().answering().on_streams(),
    Entry::of::<security::ua_restriction::UaRestriction>(),
    Entry::of::<security::uri_blocker::UriBlocker>(),
    Entry::described::<log::udp_logger::UdpLogger>().on_streams(),
    Entry::of::<security::websocket_policy::WebsocketPolicy>(),
    Entry::of::<traffic::workflow::Workflow>().answering(),
    Entry::of::<security::xml_threat_protection::XmlThreatProtection>(),
    Entry::of::<observe::zipkin::Zipkin>(),
]);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::Value;
    use weir_plugin::{AnswersInPlace, Build, ConfigError};

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

    /// Plugins that choose an upstream, or answer in their phases, as others refuse: they do not tell it before they run.
    const IN_THEIR_PHASES: [&str; 5] =
        ["fault-injection", "openid-connect", "response-rewrite", "traffic-split", "workflow"];

    #[test]
    fn plugins_that_answer_in_place_of_the_upstream_are_marked_in_the_list() {
        let mut wrong = Vec::new();
        for entry in REGISTRY.entries() {
            let options = testing::example(entry);
            let mut build = Build::default().with_upstreams(testing::upstreams(&options));
            let built = (entry.build)(&options, &mut build).expect("examples build");
            let answers = built.answers_all() || built.answers_in_place() != AnswersInPlace::Never;
            // A cache answers with what the upstream has sent.
            let is_marked_rightly = match entry.name {
                "proxy-cache" => !entry.answers,
                name if IN_THEIR_PHASES.contains(&name) => entry.answers,
                _ => entry.answers == answers,
            };
            if !is_marked_rightly {
                wrong.push((entry.name, answers));
            }
        }
        assert_eq!(wrong, [], "plugins whose `.answering()` is missing or wrong, and whether they answer");
    }

    #[test]
    fn bounds_in_the_schemas_of_all_plugins_are_enforced() {
        let mut count = 0;
        for entry in REGISTRY.entries() {
            let schema = (entry.schema)();
            for (name, option) in schema["properties"].as_object().into_iter().flatten() {
                for wrong in beyond_bounds(option) {
                    let mut options = testing::example(entry);
                    options[name] = wrong.clone();
                    let mut build = Build::default().with_upstreams(testing::upstreams(&options));
                    let error = (entry.build)(&options, &mut build).err();
                    let mut faults = error.into_iter().flat_map(ConfigError::each);
                    assert!(faults.any(|fault| fault.path == *name), "{}: {name}: {wrong}", entry.name);
                    count += 1;
                }
            }
        }
        assert!(count > 150, "{count} bounds");
    }

    /// Values just beyond the bounds of an option: of a number, or of the length of a text or a list.
    fn beyond_bounds(option: &Value) -> Vec<Value> {
        let bound = |keyword: &str| option[keyword].as_f64();
        let numbers = [bound("minimum").map(|least| least - 1.0), bound("maximum").map(|most| most + 1.0)];
        let numbers = numbers.into_iter().flatten().chain(bound("exclusiveMinimum"));
        let texts = [bound("minLength").map(|least| least - 1.0), bound("maxLength").map(|most| most + 1.0)];
        let texts = texts.into_iter().flatten().map(|length| "a".repeat(length as usize).into());
        let lists = bound("minItems").map(|least| vec![Value::from("a"); least as usize - 1].into());
        numbers.map(Value::from).chain(texts).chain(lists).collect()
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

    /// Words in the names of options that name a server or a file.
    const REACHING_WORDS: &[&str] = &[
        "addr",
        "addrs",
        "address",
        "broker",
        "brokers",
        "ca",
        "cert",
        "certificate",
        "dir",
        "directory",
        "discovery",
        "endpoint",
        "file",
        "files",
        "folder",
        "host",
        "hosts",
        "node",
        "nodes",
        "path",
        "proxy",
        "sentinels",
        "server",
        "servers",
        "socket",
        "upstream",
        "uri",
        "url",
        "urls",
    ];

    /// Options whose names or meanings have such a word, and that name no server and no file.
    const NOT_REACHING: &[(&str, &str)] = &[
        ("authz-keycloak", "access_denied_redirect_uri"),
        ("authz-keycloak", "password_grant_token_generation_incoming_uri"),
        ("aws-lambda", "authorization.iam.service"),
        ("content-filter", "rules[].path"),
        ("error-page", "fetch.path"),
        ("ext-authz", "http_service.allowed_upstream_headers"),
        ("ext-authz", "http_service.allowed_upstream_headers_to_append"),
        ("ext-authz", "http_service.path_prefix"),
        ("ext-authz", "trusted_headers"),
        ("forward-auth", "signin_redirect_param"),
        ("forward-auth", "signin_url"),
        ("forward-auth", "upstream_headers"),
        ("google-cloud-logging", "auth_config"),
        ("google-cloud-logging", "auth_config.auth_provider_x509_cert_url"),
        ("google-cloud-logging", "auth_config.auth_uri"),
        ("google-cloud-logging", "auth_config.client_x509_cert_url"),
        ("graphql-limit-count", "redis_sentinels"),
        ("kafka-logger", "brokers"),
        ("lago", "endpoint_uri"),
        ("limit-conn", "redis_sentinels"),
        ("limit-count", "redis_sentinels"),
        ("limit-events", "redis_sentinels"),
        ("limit-req", "redis_sentinels"),
        ("loki-logger", "endpoint_uri"),
        ("mtls-auth", "san_uri"),
        ("oas-validator", "spec_url_request_headers"),
        ("opa", "send_headers_upstream"),
        ("openid-connect", "client_jwt_assertion_audience"),
        ("openid-connect", "introspection_endpoint_auth_method"),
        ("openid-connect", "logout_path"),
        ("openid-connect", "par.endpoint_auth_method"),
        ("openid-connect", "post_logout_redirect_uri"),
        ("openid-connect", "redirect_uri"),
        ("openid-connect", "session.cookie_path"),
        ("openid-connect", "token_endpoint_auth_method"),
        ("opentelemetry", "collector"),
        ("otlp-logger", "protocol"),
        ("proxy-mirror", "host_header"),
        ("proxy-mirror", "path"),
        ("proxy-mirror", "path_concat_mode"),
        ("proxy-mirror", "targets[].host_header"),
        ("proxy-mirror", "targets[].path"),
        ("proxy-mirror", "targets[].path_concat_mode"),
        ("proxy-rewrite", "host"),
        ("proxy-rewrite", "regex_uri"),
        ("proxy-rewrite", "uri"),
        ("public-api", "uri"),
        ("redirect", "regex_uri"),
        ("redirect", "uri"),
        ("reverse-rewrite", "cookie_domains[].path"),
        ("reverse-rewrite", "cookie_paths[].path"),
        ("reverse-rewrite", "redirects[].path"),
        ("splunk-hec-logging", "endpoint"),
        ("websocket-policy", "upstream"),
        ("zipkin", "server_addr"),
    ];

    /// The Admin API's guide and the reference derive from these marks what an editor can make the node connect to and write.
    #[test]
    fn options_that_name_a_server_or_a_file_are_marked_in_the_schema() {
        let (mut unmarked, mut marked) = (Vec::new(), HashSet::new());
        for entry in REGISTRY.entries() {
            let schemas =
                [Some(entry.schema), entry.credential.map(|of| of.schema), entry.metadata.map(|of| of.schema)];
            for row in schemas.into_iter().flatten().flat_map(|schema| weir_plugin::options::rows(&schema())) {
                let name = (entry.name, row.path.as_str());
                if let Some(reaches) = &row.reaches {
                    assert!(["server", "file"].contains(&&**reaches), "{name:?}: {reaches}");
                    marked.insert(format!("{} {}", name.0, name.1));
                    continue;
                }
                let last = row.path.trim_end_matches("[]").rsplit('.').next().unwrap_or_default();
                let is_text = !row.kind.starts_with("boolean") && !row.kind.starts_with("integer");
                let says_so = last.split('_').any(|word| REACHING_WORDS.contains(&word))
                    || row
                        .meaning
                        .split(|c: char| !c.is_alphanumeric())
                        .any(|word| matches!(word, "URL" | "URLs" | "file"));
                if is_text && says_so && !NOT_REACHING.contains(&name) {
                    unmarked.push(format!("{} {}: {}", name.0, name.1, row.meaning));
                }
            }
        }
        let advice = "mark it with `#[schemars(extend(\"x-weir-reaches\" = \"server\"))]`, or list it in NOT_REACHING";
        assert_eq!(unmarked, [""; 0], "{advice}");
        for wanted in [
            "file-logger path",
            "http-logger uri",
            "limit-count redis_host",
            "traffic-split rules[].weighted_upstreams[].upstream",
        ] {
            assert!(marked.contains(wanted), "{wanted} is not found: {marked:?}");
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
