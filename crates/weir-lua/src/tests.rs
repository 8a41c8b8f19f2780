use serde_json::{Value, json};

use super::{HIDDEN, LUA_PLUGINS, LuaObstacle, plugin_of, vars_of};

/// What takes the place of a function of a plugin: `{PLUGIN: OPTIONS}`.
fn replaced_in(plugin: &str, phase: &str, function: &str) -> Result<Value, LuaObstacle> {
    let found = plugin_of(plugin, &json!({ "phase": phase, "functions": [function] })).expect("one function")?;
    Ok(json!({ found.plugin: found.options }))
}

fn replaced(phase: &str, function: &str) -> Result<Value, LuaObstacle> {
    replaced_in(LUA_PLUGINS[0], phase, function)
}

/// The line on which a function stops being understood.
fn stops(phase: &str, function: &str) -> usize {
    match replaced(phase, function) {
        Ok(found) => panic!("{function} became {found}"),
        Err(obstacle) => obstacle.line,
    }
}

#[test]
fn fields_of_requests_are_changed_by_proxy_rewrite() {
    let set = r#"return function(conf, ctx)
        local core = require("apisix.core")
        core.request.set_header(ctx, "X-Tenant", "blue")
    end"#;
    assert_eq!(replaced("access", set), Ok(json!({"proxy-rewrite": {"headers": {"set": {"X-Tenant": "blue"}}}})));
    let several = r#"
        local ngx = ngx
        return function()
            -- for the old backend
            ngx.req.set_header("X-Client", "ip=" .. ngx.var.remote_addr);
            ngx.req.set_header('X-Version', 2)
            ngx.req.clear_header("Cookie")
            return
        end"#;
    assert_eq!(
        replaced("rewrite", several),
        Ok(json!({"proxy-rewrite": {
            "headers": {"set": {"X-Client": "ip=${remote_addr}", "X-Version": "2"}, "remove": ["Cookie"]},
            "_meta": {"priority": 10_000},
        }}))
    );
    let missing = r#"local core = require "apisix.core"
        return function(_, ctx)
            if not core.request.header(ctx, "X-Request-Source") then
                core.request.set_header(ctx, "X-Request-Source", "edge")
            end
        end"#;
    assert_eq!(
        replaced("access", missing),
        Ok(json!({"proxy-rewrite": {
            "headers": {"set": {"X-Request-Source": "edge"}},
            "_meta": {"filter": [["http_x_request_source", "==", null]]},
        }}))
    );
    let cookie =
        r#"return function(conf, ctx) ngx.req.set_header("Authorization", "Bearer " .. ctx.var.cookie_token) end"#;
    assert_eq!(
        replaced("access", cookie),
        Ok(json!({"proxy-rewrite": {"headers": {"set": {"Authorization": "Bearer ${cookie_token}"}}}}))
    );
}

#[test]
fn fields_of_responses_are_changed_by_response_rewrite() {
    let removed = r#"return function() ngx.header["X-Powered-By"] = nil; ngx.header.x_frame_options = "DENY" end"#;
    assert_eq!(
        replaced("header_filter", removed),
        Ok(json!({"response-rewrite": {"headers": {"set": {"x-frame-options": "DENY"}, "remove": ["X-Powered-By"]}}}))
    );
    // Before the upstream answers, a field stands beside those of its response.
    let cookie = r#"local core = require("apisix.core")
        return function() core.response.set_header("Set-Cookie", "seen=1; Path=/", "X-Node", "a") end"#;
    assert_eq!(
        replaced("access", cookie),
        Ok(json!({"response-rewrite": {"headers": {"add": {"Set-Cookie": "seen=1; Path=/", "X-Node": "a"}}}}))
    );
}

#[test]
fn refusals_are_answered_by_fault_injection() {
    let refused = r#"return function(conf, ctx)
        local key = ngx.req.get_headers()["X-Internal"]
        if key == nil then
            return ngx.exit(ngx.HTTP_FORBIDDEN)
        end
    end"#;
    assert_eq!(
        replaced("access", refused),
        Ok(json!({"fault-injection": {
            "abort": {"http_status": 403},
            "_meta": {"filter": [["http_x_internal", "==", null]], "priority": 1},
        }}))
    );
    let method = r#"return function()
        if ngx.req.get_method() ~= "GET" and ngx.var.request_method ~= "HEAD" then
            return 405, { message = "read only" }
        end
    end"#;
    assert_eq!(
        replaced("rewrite", method),
        Ok(json!({"fault-injection": {
            "abort": {"http_status": 405, "body": "{\"message\":\"read only\"}\n"},
            "_meta": {
                "filter": [["request_method", "~=", "GET"], ["request_method", "~=", "HEAD"]],
                "priority": 10_000,
            },
        }}))
    );
    let said = r#"return function() ngx.status = 503 ngx.say("back soon") ngx.exit(503) end"#;
    assert_eq!(
        replaced("access", said),
        Ok(
            json!({"fault-injection": {"abort": {"http_status": 503, "body": "back soon\n"}, "_meta": {"priority": 1}}})
        )
    );
}

#[test]
fn paths_redirects_and_lines_of_logs_have_plugins() {
    assert_eq!(
        replaced("access", "return function() ngx.req.set_uri('/v2/items') end"),
        Ok(json!({"proxy-rewrite": {"uri": "/v2/items"}}))
    );
    let https = r#"return function()
        if ngx.var.scheme == "http" then
            return ngx.redirect("https://" .. ngx.var.host .. ngx.var.request_uri, 301)
        end
    end"#;
    assert_eq!(
        replaced("access", https),
        Ok(json!({"redirect": {
            "uri": "https://${host}${request_uri}", "ret_code": 301, "_meta": {"filter": [["scheme", "==", "http"]]},
        }}))
    );
    let log = r#"local core = require("apisix.core")
        return function(conf, ctx) core.log.warn("agent: ", ctx.var.http_user_agent) end"#;
    assert_eq!(
        replaced("log", log),
        Ok(
            json!({"file-logger": {"path": "logs/requests.log", "log_format": {"http_user_agent": "$http_user_agent"}}})
        )
    );
}

#[test]
fn functions_that_run_late_say_what_is_different() {
    let options = json!({"functions": ["return function() ngx.req.set_header('X-A', '1') end"]});
    let late = plugin_of(LUA_PLUGINS[1], &options).expect("one function").expect("it is known");
    assert_eq!(late.difference, Some("it acts before the plugins of the stage `access`"));
    let early = plugin_of(LUA_PLUGINS[0], &options).expect("one function").expect("it is known");
    assert_eq!(early.difference, None);
    assert!(plugin_of(LUA_PLUGINS[0], &json!({"functions": ["a", "b"]})).is_none());
}

#[test]
fn texts_that_may_be_secrets_are_not_shown() {
    let set = r#"return function() ngx.req.set_header("Authorization", "Basic amFjazpzZWNyZXQ=") end"#;
    assert_eq!(replaced("access", set), Ok(json!({"proxy-rewrite": {"headers": {"set": {"Authorization": HIDDEN}}}})));
    let joined = r#"return function() ngx.req.set_header("X-Api-Key", "secret" .. ngx.var.host) end"#;
    assert_eq!(
        replaced("access", joined),
        Ok(json!({"proxy-rewrite": {"headers": {"set": {"X-Api-Key": "…${host}"}}}}))
    );
    let compared = r#"return function() if ngx.var.http_x_token ~= "secret" then return 401 end end"#;
    assert_eq!(
        replaced("access", compared),
        Ok(json!({"fault-injection": {
            "abort": {"http_status": 401}, "_meta": {"filter": [["http_x_token", "~=", HIDDEN]], "priority": 1},
        }}))
    );
    assert_eq!(
        vars_of(
            "function(vars) return ngx.re.match(vars.cookie_session, 'secret') and vars.arg_apikey == 'secret' end"
        ),
        Ok(json!([["cookie_session", "~~", HIDDEN], ["arg_apikey", "==", HIDDEN]]))
    );
}

/// A statement that is understood.
const SET: &str = r#"ngx.req.set_header("X-A", "1")"#;

/// A function with these statements from its third line on.
fn in_function(body: &str) -> String {
    format!("local core = require('apisix.core')\nreturn function(conf, ctx)\n{body}\nend")
}

#[test]
fn functions_that_do_more_are_not_taken() {
    let set = SET;
    // Another effect beside the first one, of which no plugin is known.
    for body in [
        &format!("{set}\nngx.ctx.seen = true"),
        &format!("{set}\nngx.exit(403)"),
        &format!("{set}\nctx.var.upstream_uri = '/b'"),
        &format!("{set}\nngx.req.set_header('x-a', '2')"),
        // The value of the variable is that after the statement before.
        &format!("{set}\nngx.req.set_header('X-B', ngx.var.http_x_a)"),
        // Conditions whose other half, value or length is not known.
        &format!("if ngx.var.arg_a == '1' then {set} else {set} end"),
        &format!("if ngx.var.arg_a == '1' then {set} end\nngx.exit(403)"),
        &format!("if ngx.var.arg_a == '1' and ngx.now() > 5 then {set} end"),
        &format!("if #ngx.var.arg_a > 3 then {set} end"),
        &format!("if ngx.var.arg_a == '${{{{HOME}}}}' then {set} end"),
        &format!("if ngx.var.arg_a == '$env://HOME' then {set} end"),
        &format!("if ngx.var.arg_a == 1 then {set} end"),
        &format!("if ctx.var.consumer_name == 'jack' then {set} end"),
        &format!("if ngx.var.arg_a == '1' then\n{set}\nif ngx.var.arg_b then {set} end end"),
        &format!("for i = 1, 2 do {set} end"),
        &format!("while true do {set} end"),
        // Values from elsewhere.
        "ngx.req.set_header('X-A', os.getenv('A'))",
        "ngx.req.set_header('X-A', conf.a)",
        "ngx.req.set_header('X-A', string.lower(ngx.var.host))",
        "ngx.req.set_header('X-A', 'cost: $5')",
        "ngx.req.set_header('X-A', 'a\\r\\nX-B: b')",
        // Not what a client's field or the path is: nginx and the gateway write them.
        "ngx.req.set_header('Host', 'b.example')",
        "ngx.req.set_header('X-Forwarded-For', '10.0.0.1')",
        "ngx.req.set_uri('/a', true)",
        "ngx.req.set_uri('/a?b=1')",
        "ngx.redirect('/a', 200)",
        "ngx.exit(444)",
        "ngx.exit(ngx.OK)",
        "return conf.code",
        // The upstream's type of content would replace it.
        "core.response.set_header('Content-Type', 'text/plain')",
        "core.response.set_header('X-A')",
        "core.response.set_header('Content-Length', '5')",
        "ngx.req.set_header('Connection', 'close')",
        "ngx['req.set_header']('X-A', '1')",
        "local a, b = 1, 2",
        "local set = ngx.req.set_header\nset('X-A', '1')\nset('X-A')",
        "",
    ] {
        assert!(stops("access", &in_function(body)) >= 1, "{body}");
    }
}

#[test]
fn functions_of_other_phases_and_with_other_names_are_not_taken() {
    let set = SET;
    assert_eq!(stops("access", &in_function(&format!("{set}\nngx.timer.at(0, f)"))), 4);
    // Of other phases.
    assert_eq!(stops("header_filter", &in_function(set)), 3);
    assert_eq!(stops("body_filter", &in_function("ngx.header['X-A'] = '1'")), 3);
    assert_eq!(stops("header_filter", &in_function("ngx.exit(403)")), 3);
    // What stands outside of the function.
    assert_eq!(stops("access", &format!("ngx.log(ngx.ERR, 'loaded')\nreturn function() {set} end")), 1);
    assert_eq!(stops("access", &format!("return function() {set} end, 1")), 1);
    // Names that are something else in the function.
    assert_eq!(stops("access", &format!("return function(ngx) {set} end")), 1);
    assert_eq!(stops("access", &format!("local ngx = require('other')\nreturn function() {set} end")), 1);
}

#[test]
fn filter_functions_are_vars() {
    let cases = [
        ("function(vars) return vars.arg_version == \"2\" end", json!([["arg_version", "==", "2"]])),
        (
            "function(vars)\n  return vars[\"http_x_beta\"] ~= nil and vars.remote_addr == '10.0.0.1'\nend",
            json!([["http_x_beta", "~=", null], ["remote_addr", "==", "10.0.0.1"]]),
        ),
        (
            "function (v) return v.host == 'a.example' or (v.host == 'b.example' and v.cookie_beta) end",
            json!([[
                "OR",
                ["host", "==", "a.example"],
                ["AND", ["host", "==", "b.example"], ["cookie_beta", "~=", null]]
            ]]),
        ),
        (
            "function(vars) local agent = vars.http_user_agent return not ngx.re.find(agent, 'curl|wget', 'jio') end",
            json!([["http_user_agent", "!", "~*", "curl|wget"]]),
        ),
        ("function(vars) return tonumber(vars.arg_page) >= 10 end", json!([["arg_page", ">=", 10]])),
        (
            "function(vars) return not (vars.arg_a == '1' or vars.arg_b == '1') end",
            json!([["!OR", ["arg_a", "==", "1"], ["arg_b", "==", "1"]]]),
        ),
        ("function() return ngx.var.request_method == 'POST' end", json!([["request_method", "==", "POST"]])),
    ];
    for (function, expected) in cases {
        assert_eq!(vars_of(function), Ok(expected), "{function}");
    }
}

#[test]
fn filter_functions_that_do_more_are_not_taken() {
    for function in [
        "function(vars) return true end",
        "function(vars) return vars.arg_a == '1', 2 end",
        "function(vars) ngx.log(ngx.ERR, vars.uri) return vars.arg_a == '1' end",
        "function(vars) if vars.arg_a == '1' then return true end return false end",
        "function(vars) return vars.arg_a == vars.arg_b end",
        "function(vars) return vars.arg_a > '5' end",
        "function(vars) return vars.arg_a == 5 end",
        "function(vars) return string.sub(vars.uri, 1, 4) == '/api' end",
        "function(vars) return vars.uri:find('/api') end",
        "function(vars) return vars.balancer_ip == '10.0.0.1' end",
        "function(vars) return ngx.re.match(vars.uri, 'a', 'x') end",
        // Weir's expressions have no look-ahead.
        "function(vars) return ngx.re.match(vars.uri, 'a(?!b)') end",
        "function(vars, more) return vars.arg_a == '1' end",
        "function(vars) return os.time() > 5 end",
        "function(vars) return vars.arg_a == '1' end end",
        "return function(vars) return vars.arg_a == '1' end",
        "function(vars) return vars.arg_a == '1\nend",
        "function(vars)",
        "",
    ] {
        assert!(vars_of(function).is_err(), "{function} became {:?}", vars_of(function));
    }
}

#[test]
fn text_that_is_large_or_deep_is_not_read() {
    for function in [
        format!("function(v) return {}v.arg_a{} end", "(".repeat(5000), ")".repeat(5000)),
        format!("function(v) return {}v.arg_a end", "not ".repeat(900)),
        format!("function(v) return {}v.arg_a == '1' end", "v.arg_a == '1' or ".repeat(1000)),
        format!("function(v) return v{} end", ".a".repeat(500)),
        format!("function(v) {} end", "if v.arg_a then ".repeat(200)),
        format!("function(v) return v.arg_a == '{}' end", "a".repeat(9000)),
    ] {
        let obstacle = vars_of(&function).expect_err("it is too much");
        assert!(obstacle.found.chars().count() <= 80, "{obstacle:?}");
    }
}
