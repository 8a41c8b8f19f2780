//! Limits of requests: their number, size and time.

use serde_json::json;

use super::super::settings::IngressTimeouts;
use super::{Annotation, Given, IngressSettings, NEEDED, Nothing, OPTIONAL, Reads, Refused, Served, With, annotation};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "proxy-body-size",
        Reads::Size,
        Served(body_size),
        OPTIONAL,
        "`client-control.max_body_size`. 1 MiB without the annotation, as in ingress-nginx; `0` is no limit.",
    ),
    annotation(
        "proxy-connect-timeout",
        Reads::Seconds,
        Served(timeouts),
        OPTIONAL,
        "`timeout.connect` of the route, 5 s without the annotation.",
    ),
    annotation("proxy-send-timeout", Reads::Seconds, Served(timeouts), OPTIONAL, "`timeout.send`, 60 s."),
    annotation("proxy-read-timeout", Reads::Seconds, Served(timeouts), OPTIONAL, "`timeout.read`, 60 s."),
    annotation(
        "limit-rps",
        Reads::Number,
        Served(per_second),
        NEEDED,
        "`limit-req` for each client address, with 503 for requests beyond it. The limit is exact over all workers of a node.",
    ),
    annotation(
        "limit-rpm",
        Reads::Number,
        Served(per_minute),
        NEEDED,
        "The same for a minute. Together with `limit-rps`, `limit-count` over windows of a minute.",
    ),
    annotation(
        "limit-burst-multiplier",
        Reads::Number,
        With("limit-rps"),
        OPTIONAL,
        "`limit-req.burst`: 5 times the rate without it.",
    ),
    annotation(
        "limit-whitelist",
        Reads::Networks,
        With("limit-rps"),
        OPTIONAL,
        "`_meta.filter` of the limits: these addresses are not limited.",
    ),
    annotation(
        "limit-connections",
        Reads::Number,
        Served(connections),
        NEEDED,
        "`limit-conn` for each client address, with 503.",
    ),
    annotation(
        "limit-rate",
        Reads::Number,
        Served(response_rate),
        OPTIONAL,
        "`limit-rate` with so many KiB in a second for each response; `0` is no limit.",
    ),
    annotation("limit-rate-after", Reads::Number, With("limit-rate"), OPTIONAL, "`limit-rate.after`, in KiB."),
    annotation("global-rate-limit", Reads::Number, Refused, NEEDED, "Use `limit-count` with `policy: redis`."),
    annotation("global-rate-limit-window", Reads::Text, With("global-rate-limit"), OPTIONAL, "As `global-rate-limit`."),
    annotation("global-rate-limit-key", Reads::Text, With("global-rate-limit"), OPTIONAL, "As `global-rate-limit`."),
    annotation(
        "global-rate-limit-ignored-cidrs",
        Reads::List,
        With("global-rate-limit"),
        OPTIONAL,
        "As `global-rate-limit`.",
    ),
    annotation("client-body-buffer-size", Reads::Size, Nothing, OPTIONAL, "Bodies are passed on as they arrive."),
    annotation(
        "client-body-timeout",
        Reads::Seconds,
        Nothing,
        OPTIONAL,
        "`client_body_min_rate` and `client_body_grace` of the node hold.",
    ),
];

fn body_size(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let size = given.size("proxy-body-size").unwrap_or_default();
    settings.plugin("client-control", "max_body_size", json!(size));
    if size == 0 {
        settings.plugins.remove("client-control");
    }
    Ok(())
}

fn timeouts(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let time = |name: &str, default| given.seconds(name).filter(|seconds| *seconds > 0.0).unwrap_or(default);
    settings.timeout = Some(IngressTimeouts {
        connect: time("proxy-connect-timeout", 5.0),
        send: time("proxy-send-timeout", 60.0),
        read: time("proxy-read-timeout", 60.0),
    });
    Ok(())
}

fn multiplier(given: &Given) -> u64 {
    given.number("limit-burst-multiplier").filter(|number| *number > 0).unwrap_or(5)
}

/// Exempts the addresses of `limit-whitelist` from a plugin.
fn exempt(given: &Given, settings: &mut IngressSettings, plugin: &str) {
    let addresses = given.list("limit-whitelist");
    if !addresses.is_empty() {
        settings.plugin(plugin, "_meta", json!({ "filter": [["remote_addr", "!", "ipmatch", addresses]] }));
    }
}

fn rate(given: &Given, settings: &mut IngressSettings, rate: f64, burst: u64) {
    let options = json!({ "rate": rate, "burst": burst, "key": "remote_addr", "rejected_code": 503, "nodelay": true });
    settings.plugins.insert("limit-req".to_owned(), options);
    exempt(given, settings, "limit-req");
}

fn per_second(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if let Some(number) = given.number("limit-rps").filter(|number| *number > 0) {
        rate(given, settings, number as f64, number * multiplier(given));
    }
    Ok(())
}

fn per_minute(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let Some(number) = given.number("limit-rpm").filter(|number| *number > 0) else { return Ok(()) };
    if !settings.plugins.contains_key("limit-req") {
        rate(given, settings, number as f64 / 60.0, number * multiplier(given));
        return Ok(());
    }
    let options =
        json!({ "count": number * multiplier(given), "time_window": 60, "key": "remote_addr", "rejected_code": 503 });
    settings.plugins.insert("limit-count".to_owned(), options);
    exempt(given, settings, "limit-count");
    Ok(())
}

/// The most that `limit-rate` takes.
const MOST_RATE: u64 = 1_000_000_000_000;

fn response_rate(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let bytes = |name: &str| {
        let kib = given.number(name).unwrap_or_default();
        kib.checked_mul(1024).ok_or_else(|| format!("`{kib}` of `{name}` is too large: it is a number of KiB"))
    };
    let rate = bytes("limit-rate")?;
    if rate > 0 {
        // A higher rate would be refused, and limits nothing.
        let options = json!({ "rate": rate.min(MOST_RATE), "after": bytes("limit-rate-after")? });
        settings.plugins.insert("limit-rate".to_owned(), options);
    }
    Ok(())
}

fn connections(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    if let Some(number) = given.number("limit-connections").filter(|number| *number > 0) {
        let options = json!({
            "conn": number, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr", "rejected_code": 503,
        });
        settings.plugins.insert("limit-conn".to_owned(), options);
        exempt(given, settings, "limit-conn");
    }
    Ok(())
}
