use serde_json::json;
use std::rc::Rc;
use weir_plugin::{BuildContext, Entry, Plugin};

use super::*;
use crate::testing::{body, build, get, on_request, refused, sent};

#[test]
fn a_client_is_told_what_is_left() {
    let step = build::<LimitCount>(json!({"count": 1, "time_window": 60}));
    let mut exchange = get("/");
    assert_eq!(on_request(&step, &mut exchange), Ok(()));
    step.on_response(&mut exchange).expect("let through");
    let told = |exchange: &Exchange| {
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"]
            .map(|name| sent(exchange, name).map(str::to_owned))
    };
    assert_eq!(told(&exchange), [Some("1".into()), Some("0".into()), Some("60".into()), None]);
    let mut again = get("/");
    assert_eq!(on_request(&step, &mut again), Err(Stop::Respond(503)));
    step.on_response(&mut again).expect("let through");
    let [limit, remaining, reset, retry_after] = told(&again);
    assert_eq!((limit.as_deref(), remaining.as_deref()), (Some("1"), Some("0")));
    let reset: f64 = reset.expect("told").parse().expect("a number");
    assert!(reset > 0.0 && reset <= 60.0 && retry_after.expect("told").parse::<u64>().expect("whole") <= 60);
}

#[test]
fn keys_have_counters_of_their_own() {
    let options = json!({"count": 1, "time_window": 60, "key": "http_x", "rejected_code": 429,
        "rejected_msg": "too many", "window_type": "sliding", "ietf_headers": true});
    let step = build::<LimitCount>(options);
    let with = |value: &str| crate::testing::exchange(&format!("GET / HTTP/1.1\nHost: h\nX: {value}"));
    assert_eq!(on_request(&step, &mut with("a")), Ok(()));
    assert_eq!(on_request(&step, &mut with("b")), Ok(()));
    let mut refused = with("a");
    assert_eq!(on_request(&step, &mut refused), Err(Stop::Answered));
    assert_eq!((refused.response.status, body(&refused)), (429, "{\"error_msg\":\"too many\"}\n"));
    step.on_response(&mut refused).expect("let through");
    assert_eq!(sent(&refused, "ratelimit-policy"), Some("\"default\";q=1;w=60"));
    assert!(sent(&refused, "ratelimit").expect("told").starts_with("\"default\";r=0;t="));
}

#[test]
fn several_rules_have_fields_of_their_own() {
    let rules = json!([{"count": 1, "time_window": 60, "key": "$arg_user", "header_prefix": "User"},
        {"count": "$arg_most", "time_window": 60, "key": "$remote_addr"}]);
    let step = build::<LimitCount>(json!({"rules": rules}));
    let mut exchange = get("/?user=jack&most=5");
    assert_eq!(on_request(&step, &mut exchange), Ok(()));
    step.on_response(&mut exchange).expect("let through");
    assert_eq!(sent(&exchange, "x-user-ratelimit-limit"), Some("1"));
    assert_eq!(sent(&exchange, "x-2-ratelimit-remaining"), Some("4"));
    assert_eq!(on_request(&step, &mut get("/?user=jack&most=5")), Err(Stop::Respond(503)));
    assert_eq!(on_request(&step, &mut get("/?most=5")), Ok(()), "no user, no rule");
    assert_eq!(on_request(&step, &mut get("/?user=jill&most=none")), Err(Stop::Respond(500)));
}

fn build_for(owner: &str, options: Value, shared: &Rc<BuildContext>) -> Result<Arc<dyn Plugin>, ConfigError> {
    (Entry::of::<LimitCount>().build)(&options, &mut Build::of(owner.to_owned(), shared))
}

#[test]
fn counters_survive_a_reload_that_changes_nothing_about_them() {
    let build = |options| build_for("route/reload", options, &Rc::default()).expect("valid");
    let options = json!({"count": 1, "time_window": 60, "key_type": "constant", "key": "reload"});
    // The plugin of the old configuration is dropped once the new one serves.
    let before = build(options.clone());
    assert_eq!(on_request(&before, &mut get("/")), Ok(()));
    let after = build(options);
    drop(before);
    assert_eq!(on_request(&after, &mut get("/")), Err(Stop::Respond(503)));
    let changed = json!({"count": 2, "time_window": 60, "key_type": "constant", "key": "reload"});
    assert_eq!(on_request(&build(changed), &mut get("/")), Ok(()));
}

#[test]
fn fields_have_the_names_that_hold_everywhere() {
    let mut shared = BuildContext::default();
    shared.metadata.insert("limit-count".into(), json!({"remaining_header": "X-Left"}));
    let options = json!({"count": 2, "time_window": 60, "key_type": "constant", "key": "named"});
    let step = build_for("route/named", options, &Rc::new(shared)).expect("valid");
    let mut exchange = get("/");
    assert_eq!(on_request(&step, &mut exchange), Ok(()));
    step.on_response(&mut exchange).expect("let through");
    assert_eq!((sent(&exchange, "x-left"), sent(&exchange, "x-ratelimit-limit")), (Some("1"), Some("2")));
    let wrong = LimitCountMetadata { reset_header: "a b".to_owned(), ..LimitCountMetadata::default() };
    assert!(wrong.check().is_err_and(|error| error.path == "reset_header"));
}

#[test]
fn a_group_shares_its_counters_and_must_agree() {
    let shared = Rc::default();
    let options = json!({"count": 1, "time_window": 60, "group": "g1"});
    let first = build_for("route/1", options.clone(), &shared).expect("valid");
    let second = build_for("route/2", options, &shared).expect("valid");
    assert_eq!(on_request(&first, &mut get("/")), Ok(()));
    assert_eq!(on_request(&second, &mut get("/")), Err(Stop::Respond(503)));
    let other = json!({"count": 2, "time_window": 60, "group": "g1"});
    let error = build_for("route/3", other, &shared).err().expect("refused").to_string();
    assert!(error.starts_with("group: `g1` is used by another plugin with different options"), "{error}");
}

#[test]
fn wrong_options_are_refused_with_their_place() {
    for (options, want) in [
        (json!({}), "needs `count`, or `rules`"),
        (json!({"count": 1}), "needs `time_window`, or `rules`"),
        (json!({"count": 0, "time_window": 1}), "count: must be a whole number from 1"),
        (json!({"count": 1, "time_window": "soon"}), "time_window: must be a whole number"),
        (
            json!({"rules": [{"count": 1, "time_window": 1, "key": "x"}, {"count": -1, "time_window": 1, "key": "y"}]}),
            "rules[1].count: must be",
        ),
        (
            json!({"rules": [{"count": 1, "time_window": 1, "key": "x"}, {"count": 2, "time_window": 9, "key": "x"}]}),
            "rules[1].key: `x` is the key of another rule",
        ),
        (json!({"count": 300_000_000, "time_window": 1, "window_type": "sliding"}), "count: must be a whole number"),
        (json!({"count": 1, "time_window": 1, "policy": "redis"}), "redis_host: is needed with the policy `redis`"),
        (
            json!({"count": 1, "time_window": 1, "policy": "redis-cluster", "redis_cluster_nodes": ["h:1", "h"]}),
            "redis_cluster_nodes[1]: `h` is not `host:port`",
        ),
        (json!({"count": 1, "time_window": 1, "policy": "redis-sentinel"}), "redis_sentinels: is needed"),
        (
            json!({"count": 1, "time_window": 1, "policy": "redis", "redis_host": "redis", "sync_interval": 1}),
            "sync_interval: must be less than",
        ),
        (
            json!({"count": 1, "time_window": 9, "policy": "redis", "redis_host": "redis", "sync_interval": 0.01}),
            "sync_interval: must be from 0.1",
        ),
        (json!({"count": 1, "time_window": 1, "sync_interval": 2}), "sync_interval: has no meaning"),
        (json!({"count": 1, "time_window": 1, "key_type": "header"}), "key_type: `header` is not an allowed value"),
    ] {
        let error = refused::<LimitCount>(options);
        assert!(error.starts_with(want), "{error}");
    }
}
