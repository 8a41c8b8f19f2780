//! `healthCheck` of an ApisixUpstream as `checks` of an upstream.

use serde_json::{Map, Value, json};

use super::durations::seconds;
use super::within;
use crate::objects::apisix::{ApisixActiveCheck, ApisixCheckLimits, ApisixHealthCheck, ApisixPassiveCheck};

/// The longest time of a check, in nanoseconds.
const LONGEST_CHECK: i64 = 3_600_000_000_000;
/// The most results in a row that are counted.
const MOST_IN_A_ROW: i64 = 254;

/// `checks`.
///
/// # Errors
/// Which field is wrong.
pub(super) fn checks(wanted: &ApisixHealthCheck) -> Result<Value, String> {
    let mut checks = Map::new();
    if let Some(active) = &wanted.active {
        checks.insert("active".to_owned(), of_requests(active)?);
    }
    if let Some(passive) = &wanted.passive {
        checks.insert("passive".to_owned(), of_traffic(passive)?);
    }
    Ok(Value::Object(checks))
}

fn of_requests(wanted: &ApisixActiveCheck) -> Result<Value, String> {
    let mut active = json!({
        "type": kind("active", &wanted.kind)?,
        "https_verify_certificate": wanted.strict_tls.unwrap_or(true),
    });
    let number =
        |field: &str, number: i64, most: i64| within(&format!("healthCheck.active.{field}"), number, (0, most));
    // In active checks, 0 stands for the default.
    if let Some(nanoseconds) = wanted.timeout.filter(|time| *time != 0) {
        active["timeout"] = json!(number("timeout", nanoseconds, LONGEST_CHECK)? as f64 / 1e9);
    }
    if let Some(concurrency) = wanted.concurrency.filter(|count| *count != 0) {
        active["concurrency"] = number("concurrency", concurrency, 1_000)?.into();
    }
    if wanted.port != 0 {
        active["port"] = number("port", wanted.port, 65_535)?.into();
    }
    for (key, text) in [("host", &wanted.host), ("http_path", &wanted.http_path)] {
        if !text.is_empty() {
            active[key] = text.clone().into();
        }
    }
    if !wanted.request_headers.is_empty() {
        active["req_headers"] = json!(wanted.request_headers);
    }
    for (name, wanted) in [("healthy", &wanted.healthy), ("unhealthy", &wanted.unhealthy)] {
        if let Some(wanted) = wanted {
            let place = format!("healthCheck.active.{name}");
            let mut limits = limits(&place, wanted, |number| number != 0)?;
            if !wanted.interval.is_empty() {
                let interval = seconds(&wanted.interval).map_err(|problem| format!("{place}.interval: {problem}"))?;
                if interval < 1.0 {
                    return Err(format!("{place}.interval: is shorter than a second"));
                }
                limits.insert("interval".to_owned(), json!(interval));
            }
            active[name] = Value::Object(limits);
        }
    }
    Ok(active)
}

fn of_traffic(wanted: &ApisixPassiveCheck) -> Result<Value, String> {
    let mut passive = json!({ "type": kind("passive", &wanted.kind)? });
    for (name, wanted) in [("healthy", &wanted.healthy), ("unhealthy", &wanted.unhealthy)] {
        if let Some(wanted) = wanted {
            passive[name] = Value::Object(limits(&format!("healthCheck.passive.{name}"), wanted, |_| true)?);
        }
    }
    Ok(passive)
}

fn kind<'w>(check: &str, wanted: &'w str) -> Result<&'w str, String> {
    match wanted {
        "" => Ok("http"),
        "http" | "https" | "tcp" => Ok(wanted),
        _ => Err(format!("healthCheck.{check}.type: `{wanted}` is none of http, https and tcp")),
    }
}

fn limits(
    place: &str,
    wanted: &ApisixCheckLimits,
    is_meant: impl Fn(i64) -> bool,
) -> Result<Map<String, Value>, String> {
    let mut limits = Map::new();
    for code in &wanted.http_codes {
        within(&format!("{place}.httpCodes"), *code, (200, 599))?;
    }
    if !wanted.http_codes.is_empty() {
        limits.insert("http_statuses".to_owned(), json!(wanted.http_codes));
    }
    for (key, field, number) in [
        ("successes", "successes", wanted.successes),
        ("http_failures", "httpFailures", wanted.http_failures),
        ("tcp_failures", "tcpFailures", wanted.tcp_failures),
        ("timeouts", "timeout", wanted.timeouts),
    ] {
        if let Some(number) = number.filter(|number| is_meant(*number)) {
            limits.insert(key.to_owned(), within(&format!("{place}.{field}"), number, (0, MOST_IN_A_ROW))?.into());
        }
    }
    Ok(limits)
}
