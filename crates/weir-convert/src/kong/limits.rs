//! `rate-limiting`, as `limit-count`.

use crate::document::DocumentValue;
use crate::yaml::{Yaml, YamlMembers};

/// The options of `rate-limiting` that are converted.
pub(super) const OPTIONS: [&str; 17] = [
    "second",
    "minute",
    "hour",
    "day",
    "month",
    "year",
    "limit_by",
    "header_name",
    "policy",
    "fault_tolerant",
    "redis",
    "redis_host",
    "redis_port",
    "redis_username",
    "redis_password",
    "redis_database",
    "redis_ssl",
];

const WINDOWS: [(&str, i64); 6] =
    [("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400), ("month", 2_592_000), ("year", 31_536_000)];

/// The options of `limit-count`. `has_consumer`: all requests have one; otherwise none has.
pub(super) fn options(config: &DocumentValue, has_consumer: bool) -> Result<Yaml, &'static str> {
    let window = |(name, seconds): &(&'static str, i64)| Some((*name, config.number(name)?, *seconds));
    let limits: Vec<(&str, i64, i64)> = WINDOWS.iter().filter_map(window).collect();
    let key = key(config)?;
    let mut options = match limits[..] {
        [] => return Err("it has no limit for a second, minute, hour, day, month or year"),
        [(_, count, seconds)] => vec![
            ("count".to_owned(), Yaml::Integer(count)),
            ("time_window".to_owned(), Yaml::Integer(seconds)),
            ("key".to_owned(), Yaml::text(key)),
        ],
        // A rule does not hold for a request without its variables.
        _ if key.starts_with("http_") => return Err("several windows by a header field; see `rules` of `limit-count`"),
        _ => {
            let key = if has_consumer || key != "consumer_name" { key } else { "remote_addr".to_owned() };
            let rule = |(name, count, seconds): &(&str, i64, i64)| {
                // Each rule counts by a text of its own.
                let key = Yaml::text(format!("{name} ${key}"));
                Yaml::map([("count", Yaml::Integer(*count)), ("time_window", Yaml::Integer(*seconds)), ("key", key)])
            };
            vec![("rules".to_owned(), Yaml::List(limits.iter().map(rule).collect()))]
        }
    };
    options.push(("rejected_code".to_owned(), Yaml::Integer(429)));
    if config.text("policy") == Some("redis") {
        options.extend(redis(config)?);
    }
    Ok(Yaml::Map(options))
}

/// The variable that requests are counted by. Where it is missing, the address is used, as in Kong.
fn key(config: &DocumentValue) -> Result<String, &'static str> {
    match config.text("limit_by").unwrap_or("consumer") {
        "consumer" => Ok("consumer_name".to_owned()),
        "ip" => Ok("remote_addr".to_owned()),
        "header" => {
            let name = config.text("header_name").ok_or("it has no `header_name`")?;
            Ok(format!("http_{}", name.to_ascii_lowercase().replace('-', "_")))
        }
        _ => Err("what it counts by"),
    }
}

/// The server of Redis, in a map of its own or, in older files, in options of the plugin.
fn redis(config: &DocumentValue) -> Result<YamlMembers, &'static str> {
    let inner = config.get("redis");
    let older = |name: &str| format!("redis_{name}");
    let text = |name: &str| inner.and_then(|redis| redis.text(name)).or_else(|| config.text(&older(name)));
    let number = |name: &str| inner.and_then(|redis| redis.number(name)).or_else(|| config.number(&older(name)));
    let has = |name: &str| inner.and_then(|redis| redis.get(name)).is_some_and(|value| !value.items().is_empty());
    if has("sentinel_nodes") || has("cluster_nodes") {
        return Err("several servers of Redis; see the policies of `limit-count`");
    }
    let read = ["host", "port", "username", "password", "database", "ssl", "ssl_verify"];
    if read.iter().any(|name| text(name).is_some_and(|value| value.starts_with("{vault"))) {
        return Err(
            "its server of Redis has options from a vault; write `redis_password` of `limit-count` with a secret",
        );
    }
    let host = text("host").ok_or("it has no server of Redis")?;
    let mut options = vec![("policy".to_owned(), Yaml::text("redis")), (older("host"), Yaml::text(host))];
    options.extend(number("port").map(|port| (older("port"), Yaml::Integer(port))));
    for name in ["username", "password"] {
        options.extend(text(name).map(|value| (older(name), Yaml::text(value))));
    }
    options.extend(number("database").map(|database| (older("database"), Yaml::Integer(database))));
    if text("ssl") == Some("true") {
        options.push((older("ssl"), Yaml::Boolean(true)));
        options.push((older("ssl_verify"), Yaml::Boolean(text("ssl_verify") == Some("true"))));
    }
    options.push(("allow_degradation".to_owned(), Yaml::Boolean(config.is_true("fault_tolerant", true))));
    Ok(options)
}
