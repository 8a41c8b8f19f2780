//! Functions in Lua are refused with the plugin that does the same, which then does it.

use serde_json::{Value, json};
use weir_testkit::Fields;

use crate::{Rig, refused};

/// The plugins that the refusal of a function names.
fn advised(plugin: &str, phase: &str, function: &str) -> String {
    let said = refused(&json!({ plugin: { "phase": phase, "functions": [function] } }).to_string());
    let advice = said.split_once("; write `").unwrap_or_else(|| panic!("{said}")).1;
    let (plugins, after) = advice.split_once("` instead, which does what the function does").expect("an advice");
    assert!(said.contains(&format!("this version has no plugin `{plugin}`")), "{after}");
    format!("{{ {plugins} }}")
}

/// A request, and what is expected of the request at the upstream, if it gets there, and of the response.
struct Trial {
    request: &'static str,
    expected: (u16, &'static str, &'static str),
}

/// Asks for each request, and compares the status and one field: of the request at the upstream, or of the response.
fn tried(phase: &str, function: &str, is_of_request: bool, field: &str, trials: &[Trial]) {
    let plugins = advised("serverless-pre-function", phase, function);
    let rig = Rig::with(&plugins);
    for Trial { request, expected: (status, value, body) } in trials {
        let (target, fields) = request.split_once('\n').unwrap_or((request, ""));
        let answer = rig.gateway.client().ask(format!("{target} HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n"));
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, *status, "{plugins} {request}");
        let of = |headers: &Fields| headers.get(field).unwrap_or("none").to_owned();
        let seen = if is_of_request {
            of(&rig.origin.requests().last().expect("a request").headers)
        } else {
            of(&answer.headers)
        };
        assert_eq!(seen, *value, "{plugins} {request}");
        assert_eq!(answer.text(), *body, "{plugins} {request}");
    }
}

#[test]
fn functions_that_change_requests_are_replaced() {
    let function = r#"local core = require("apisix.core")
        return function(conf, ctx)
            if core.request.header(ctx, "X-Source") == nil then
                core.request.set_header(ctx, "X-Source", "edge of " .. ctx.var.host)
            end
        end"#;
    let trials = [
        Trial { request: "GET /a", expected: (200, "edge of shop.example", "GET /a") },
        Trial { request: "GET /a\nX-Source: own\r\n", expected: (200, "own", "GET /a") },
    ];
    tried("access", function, true, "x-source", &trials);
    let function = r#"return function() ngx.req.clear_header("X-Debug") end"#;
    let trials = [Trial { request: "GET /a\nX-Debug: 1\r\n", expected: (200, "none", "GET /a") }];
    tried("rewrite", function, true, "x-debug", &trials);
    let function = r#"return function() ngx.req.set_uri("/v2/items") end"#;
    let trials = [Trial { request: "GET /a?b=1", expected: (200, "shop.example", "GET /v2/items?b=1") }];
    tried("access", function, true, "host", &trials);
}

#[test]
fn functions_that_change_responses_are_replaced() {
    let function = r#"return function() ngx.header["ETag"] = nil; ngx.header.x_frame_options = "DENY" end"#;
    let trials = [Trial { request: "GET /a", expected: (200, "DENY", "GET /a") }];
    tried("header_filter", function, false, "x-frame-options", &trials);
    let trials = [Trial { request: "GET /a", expected: (200, "none", "GET /a") }];
    tried("header_filter", function, false, "etag", &trials);
    let function = r#"local core = require("apisix.core")
        return function() core.response.set_header("Set-Cookie", "seen=1; Path=/") end"#;
    let trials = [Trial { request: "GET /a", expected: (200, "seen=1; Path=/", "GET /a") }];
    tried("access", function, false, "set-cookie", &trials);
}

#[test]
fn functions_that_answer_are_replaced() {
    let function = r#"return function(conf, ctx)
        local key = ngx.req.get_headers()["X-Internal"]
        if not key then return 403, { message = "internal only" } end
    end"#;
    let trials = [
        Trial { request: "GET /a", expected: (403, "none", "{\"message\":\"internal only\"}\n") },
        Trial { request: "GET /a\nX-Internal: 1\r\n", expected: (200, "none", "GET /a") },
    ];
    tried("access", function, false, "x-internal", &trials);
    let function = r#"return function()
        if ngx.req.get_method() ~= "GET" then ngx.exit(ngx.HTTP_NOT_ALLOWED) end
    end"#;
    let trials = [
        Trial { request: "DELETE /a", expected: (405, "none", "") },
        Trial { request: "GET /a", expected: (200, "none", "GET /a") },
    ];
    tried("rewrite", function, false, "x-none", &trials);
    let function = r#"return function()
        if ngx.var.cookie_old then
            return ngx.redirect("https://old.example" .. ngx.var.request_uri, 301)
        end
    end"#;
    let trials = [
        Trial {
            request: "GET /a?b=1\nCookie: old=1\r\n",
            expected: (301, "https://old.example/a?b=1", "301 Moved Permanently\n"),
        },
        Trial { request: "GET /a?b=1", expected: (200, "none", "GET /a?b=1") },
    ];
    tried("access", function, false, "location", &trials);
}

#[test]
fn functions_that_are_not_understood_are_refused_with_the_line() {
    for (function, expected) in [
        ("return function()\n ngx.req.set_header('X-A', '1')\n ngx.timer.at(0, f)\nend", "because of line 3: `f`"),
        ("return function(conf, ctx)\n ctx.seen = 1\nend", "because of line 2: `ctx.seen =`"),
        ("return 1", "because of line 1: `1`"),
    ] {
        let options: Value = json!({ "serverless-post-function": { "functions": [function] } });
        let said = refused(&options.to_string());
        assert!(said.contains("no plugin is known that does the same") && said.contains(expected), "{said}");
    }
    let two = "return function() end";
    let said = refused(&json!({ "serverless-pre-function": { "functions": [two, two] } }).to_string());
    assert!(said.contains("for a single function only"), "{said}");
}

#[test]
fn functions_with_secrets_are_refused_without_showing_them() {
    for body in [
        "ngx.req.set_header('Authorization', 'Basic amFjaw==')",
        "if ngx.var.http_x_key ~= 'amFjaw==' then return 401 end",
        "local key = 'amFjaw==' == ngx.var.uri",
        "ngx.req.set_header('Authorization', 'amFjaw==' 'amFjaw==')",
    ] {
        let function = format!("return function()\n{body}\nend");
        let said = refused(&json!({ "serverless-pre-function": { "functions": [function] } }).to_string());
        assert!(said.contains('…') && !said.contains("amFjaw"), "{said}");
        assert_eq!(said.contains("; write `"), said.contains("a text of the function that is not shown"), "{said}");
    }
}

#[test]
fn exit_transformer_is_refused_with_plugins_that_do_the_same() {
    let function =
        "return (function(code, body, header) if code == 403 then return 404 end return code, body, header end)(...)";
    let said = refused(&json!({ "exit-transformer": { "functions": [function] } }).to_string());
    let named: Vec<&str> = said.split('`').filter(|part| part.contains(": { ")).collect();
    let [page, rewrite] = named[..] else { panic!("{said}") };
    assert!(said.contains("this version has no plugin `exit-transformer`"), "{said}");
    let refusal = "request-validation: { header_schema: { required: [X-Key] }, rejected_code: 403 }";
    let rig = Rig::with(&format!("{{ {page}, {rewrite}, {refusal} }}"));
    let with_key = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: t\r\nX-Key: 1\r\n\r\n");
    let of_gateway = rig.gateway.get("/a");
    assert_eq!((of_gateway.status, of_gateway.headers.get("x-a")), (404, Some("b")));
    assert_eq!(of_gateway.text(), "{\"message\": \"none\"}");
    let of_upstream = rig.gateway.client().ask(with_key("/status/403")).expect("an answer");
    assert_eq!((of_upstream.status, of_upstream.headers.get("x-a")), (403, None));
}
