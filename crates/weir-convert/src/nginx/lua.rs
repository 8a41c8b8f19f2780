//! Blocks of Lua (OpenResty) that do what directives or plugins do. A block that is not recognised as a whole stays as it is: one that may
//! refuse requests then closes its routes.

use serde_json::{Value, json};
use weir_lua::{HIDDEN, LUA_PLUGINS, LuaReplacement, plugin_of};

use super::redirects;
use super::scope::BlockScope;
use super::syntax::{CODE, Directive};
use super::variables::{is_of_path, names};
use crate::yaml::{Yaml, YamlMembers};

/// What takes the place of a block that answers some requests: the name and the options of a plugin, as JSON.
pub(super) const LUA_ANSWER: &str = "answer of Lua";

/// The least status of an answer before access is controlled. Others could show what nginx shows to some clients only.
const LEAST_STATUS: u64 = 300;

/// Replaces the blocks in all servers.
pub(super) fn replace(http: &mut [Directive]) {
    for server in http.iter_mut().filter(|directive| directive.name == "server") {
        // Plugins see the path before a `rewrite`, and the code the one after it; a request may be led to another location by one.
        let is_rewritten = changes_path(server.children());
        replace_within(std::slice::from_mut(server), is_rewritten);
    }
}

/// Whether a block or one in it changes the path or the query of some requests.
fn changes_path(block: &[Directive]) -> bool {
    block.iter().any(|child| {
        let sets = child.name == "set" && names(child.argument(0)).any(is_of_path);
        sets || redirects::changes_path(child) || changes_path(child.children())
    })
}

fn replace_within(blocks: &mut [Directive], is_rewritten: bool) {
    for directive in blocks.iter_mut().filter(|directive| ["server", "location"].contains(&directive.name.as_str())) {
        let Some(block) = directive.block.as_mut() else { continue };
        replace_within(block, is_rewritten);
        let is_inner = |child: &Directive| ["location", "if"].contains(&child.name.as_str());
        // Of several blocks for one phase, nginx runs the innermost.
        let is_only = |name: &str| !block.iter().filter(|child| is_inner(child)).any(|inner| has(inner, name));
        let mut answers = 0;
        let mut all = Vec::with_capacity(block.len());
        for child in block.iter() {
            let parts = replaced(child).filter(|_| is_only(&child.name) || child.name.starts_with("content_by"));
            let parts = parts.filter(|parts| !is_rewritten || !reads_path(parts));
            answers += usize::from(parts.iter().flatten().any(|part| part.name == LUA_ANSWER));
            match parts {
                // A route has each plugin once.
                Some(parts) if answers < 2 => all.extend(parts),
                _ => all.push(child.clone()),
            }
        }
        *block = all;
    }
}

fn reads_path(parts: &[Directive]) -> bool {
    // Variables are in texts behind a `$`, and as words of conditions, which are JSON.
    let has = |text: &String| names(text).any(is_of_path) || text.split('"').any(is_of_path);
    parts.iter().flat_map(|part| &part.arguments).any(has)
}

/// The phase of a directive with Lua, which the code may follow in the file, in a block, or as the name of a file.
fn phase_of(name: &str) -> &str {
    name.strip_suffix("_block").or_else(|| name.strip_suffix("_file")).unwrap_or(name)
}

/// Whether a block or one in it has a directive of the same phase, or what takes its place.
fn has(block: &Directive, name: &str) -> bool {
    block.children().iter().any(|child| {
        let is_it =
            phase_of(&child.name) == phase_of(name) || child.name == LUA_ANSWER || child.name.starts_with("more_");
        is_it || ["location", "if"].contains(&child.name.as_str()) && has(child, name)
    })
}

/// The directives that do what a block of Lua does.
fn replaced(directive: &Directive) -> Option<Vec<Directive>> {
    let name = directive.name.strip_suffix("_block").unwrap_or(&directive.name);
    let (phase, is_content) = match name {
        "rewrite_by_lua" => ("rewrite", false),
        "access_by_lua" => ("access", false),
        "header_filter_by_lua" => ("header_filter", false),
        "content_by_lua" => ("access", true),
        _ => return None,
    };
    let code = match directive.children() {
        [code] if code.name == CODE => code.argument(0),
        _ => directive.argument(0),
    };
    // A response ends with the block that writes it.
    let end = if is_content && !code.contains("ngx.exit") { "return ngx.exit(200)" } else { "" };
    let function = format!("return function() {code}\n{end}\nend");
    let LuaReplacement { plugin, options, .. } =
        plugin_of(LUA_PLUGINS[0], &json!({ "phase": phase, "functions": [function] }))?.ok()?;
    // A text that may be a secret is not known.
    if options.to_string().contains(HIDDEN) {
        return None;
    }
    let is_always = options.pointer("/_meta/filter").is_none();
    match plugin {
        "fault-injection" if is_content && is_always => echoes(directive, options.get("abort")?),
        _ if is_content => None,
        "response-rewrite" if is_always && phase == "header_filter" => {
            fields(directive, &options, ["more_set_headers", "more_clear_headers"])
        }
        "proxy-rewrite" if is_always && options.get("headers").is_some() => {
            fields(directive, &options, ["more_set_input_headers", "more_clear_input_headers"])
        }
        "redirect" | "fault-injection" if is_refusal(&options) => {
            let arguments = vec![plugin.to_owned(), options.to_string()];
            Some(vec![Directive { name: LUA_ANSWER.to_owned(), arguments, block: None, ..directive.clone() }])
        }
        _ => None,
    }
}

fn is_refusal(options: &Value) -> bool {
    let status = options.pointer("/abort/http_status").or_else(|| options.get("ret_code"));
    status.and_then(Value::as_u64).is_some_and(|status| status >= LEAST_STATUS)
}

/// The changes of fields as directives of the module headers-more: for those that get a value, and for those that are removed.
fn fields(directive: &Directive, options: &Value, [set, clear]: [&str; 2]) -> Option<Vec<Directive>> {
    let headers = options.get("headers")?.as_object()?;
    let made = |name: &str, argument: String| Directive {
        name: name.to_owned(),
        arguments: vec![argument],
        block: None,
        ..directive.clone()
    };
    let mut directives = Vec::new();
    for (kind, list) in headers {
        match (kind.as_str(), list) {
            ("set", Value::Object(fields)) => {
                for (name, value) in fields {
                    directives.push(made(set, format!("{name}: {}", value.as_str()?)));
                }
            }
            ("remove", Value::Array(names)) => {
                for name in names {
                    directives.push(made(clear, name.as_str()?.to_owned()));
                }
            }
            _ => return None,
        }
    }
    Some(directives)
}

/// A response as directives of the module echo.
fn echoes(directive: &Directive, abort: &Value) -> Option<Vec<Directive>> {
    let body = abort.get("body").and_then(Value::as_str).unwrap_or_default();
    let status = abort.get("http_status")?.as_u64()?;
    let made = |name: &str, arguments: Vec<String>| Directive {
        name: name.to_owned(),
        arguments,
        block: None,
        ..directive.clone()
    };
    Some(vec![made("echo", vec!["-n".to_owned(), body.to_owned()]), made("echo_status", vec![status.to_string()])])
}

/// The plugin for the block in effect that answers some requests.
pub(super) fn plugin(scope: &BlockScope) -> Option<(String, Yaml)> {
    let answer = scope.last(LUA_ANSWER)?;
    let options: Value = serde_json::from_str(answer.argument(1)).ok()?;
    Some((answer.argument(0).to_owned(), yaml(&options)))
}

/// Whether the plugin would see changes for the upstream, which nginx makes later. `changes`: those of `proxy-rewrite`.
pub(super) fn sees(answer: &Directive, changes: &YamlMembers) -> bool {
    let options: Value = serde_json::from_str(answer.argument(1)).unwrap_or_default();
    let condition = options.pointer("/_meta/filter").map(Value::to_string).unwrap_or_default();
    let words = || condition.split('"').chain(names(answer.argument(1)));
    changes.iter().any(|(option, _)| match option.as_str() {
        "headers" => words().any(|word| word.starts_with("http_") || word.starts_with("cookie_")),
        "method" => words().any(|word| word == "request_method"),
        "uri" | "regex_uri" => words().any(is_of_path),
        _ => false,
    })
}

fn yaml(value: &Value) -> Yaml {
    match value {
        Value::Null => Yaml::Null,
        Value::Bool(value) => Yaml::Boolean(*value),
        Value::Number(number) => {
            number.as_i64().map_or(Yaml::Decimal(number.as_f64().unwrap_or_default()), Yaml::Integer)
        }
        Value::String(text) => Yaml::text(text),
        Value::Array(items) => Yaml::List(items.iter().map(yaml).collect()),
        Value::Object(members) => {
            Yaml::Map(members.iter().map(|(name, value)| (name.clone(), yaml(value))).collect::<YamlMembers>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// The plugins of the routes, on one line, and the findings.
    fn converted(location: &str) -> (String, Vec<String>) {
        let text = format!("server {{ proxy_redirect off; location / {{ {location} }} }}");
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let found = converted.findings.iter().map(ToString::to_string).collect();
        let yaml = converted.yaml().replace(['{', '}', '"'], " ").split_whitespace().collect::<Vec<_>>().join(" ");
        (yaml.split_once("plugins: ").map_or_else(String::new, |(_, plugins)| plugins.to_owned()), found)
    }

    fn plain(text: &str) -> String {
        text.replace([',', ' '], "")
    }

    #[test]
    fn blocks_that_plugins_replace_are_carried_over() {
        let pass = "proxy_pass http://a;";
        for (location, expected) in [
            (
                format!("access_by_lua_block {{ if ngx.var.arg_debug == \"1\" then return ngx.exit(403) end }} {pass}"),
                "fault-injection: abort: http_status: 403 _meta: filter: [[arg_debug ==  1 ]] priority: 1",
            ),
            (
                format!("rewrite_by_lua 'return ngx.redirect(\"/new\", 301)'; {pass}"),
                "redirect: uri: /new ret_code: 301 _meta: priority: 10000",
            ),
            (
                format!(
                    "header_filter_by_lua_block {{ ngx.header[\"X-Frame-Options\"] = \"DENY\"; ngx.header.x_powered_by = nil }} {pass}"
                ),
                "response-rewrite: headers: set: X-Frame-Options: DENY remove: [x-powered-by]",
            ),
            (
                format!("access_by_lua_block {{ ngx.req.set_header(\"X-Edge\", ngx.var.host) }} {pass}"),
                "proxy-rewrite: headers: set: X-Edge: $host",
            ),
            (
                "content_by_lua_block { ngx.say(\"hello\") }".to_owned(),
                "fault-injection: abort: http_status: 200 body: hello\\n",
            ),
        ] {
            let (plugins, found) = converted(&location);
            assert!(plain(&plugins).contains(&plain(expected)), "{location}: {plugins} {found:?}");
            assert!(!found.iter().any(|found| found.contains("not converted")), "{location}: {found:?}");
        }
    }

    #[test]
    fn blocks_that_are_not_understood_close_their_routes() {
        for block in [
            "access_by_lua_block { local ok = require(\"login\").check() if not ok then ngx.exit(401) end }",
            "access_by_lua_block { if ngx.var.http_x_api_key ~= \"a-secret\" then return ngx.exit(401) end }",
            "access_by_lua_block { ngx.say(\"open\") ngx.exit(200) }",
            "rewrite_by_lua_block { ngx.exit(403) } access_by_lua_block { ngx.exit(404) }",
            "access_by_lua_file login.lua;",
            "rewrite ^/a/(.*)$ /$1 break; access_by_lua_block { if ngx.var.uri == \"/admin\" then ngx.exit(403) end }",
            "rewrite ^/a$ /b?debug=1 break; access_by_lua_block { if ngx.var.arg_debug == \"1\" then ngx.exit(403) end }",
            "set $args debug=1; access_by_lua_block { if ngx.var.arg_debug == \"1\" then ngx.exit(403) end }",
            "if ($http_x) { access_by_lua_block { ngx.exit(403) } }",
            "access_by_lua_block { if ngx.var.http_x == \"1\" then ngx.exit(403) end } if ($http_x) { access_by_lua_file a.lua; }",
        ] {
            let (plugins, found) = converted(&format!("{block} proxy_pass http://a;"));
            assert!(plugins.contains("http_status: 503"), "{block}: {plugins}");
            assert!(found.iter().any(|found| found.contains("Lua is not run")), "{block}: {found:?}");
        }
    }

    #[test]
    fn a_block_that_an_inner_one_replaces_is_not_carried_over() {
        let text =
            "server { proxy_redirect off; access_by_lua_block { ngx.exit(403) } location / { proxy_pass http://a; }
                    location /in { access_by_lua_block { ngx.exit(404) } proxy_pass http://a; } }";
        let converted = convert("t", text, &|_| Ok(Vec::new())).expect("correct");
        let found: Vec<String> = converted.findings.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|found| found.contains("`access_by_lua_block`: Lua is not run")), "{found:?}");
        assert_eq!(converted.yaml().matches("http_status: 503").count(), 2, "{}", converted.yaml());
        for inner in ["access_by_lua_file a.lua;", "access_by_lua 'ngx.exit(ngx.OK)';"] {
            let text = text.replace("access_by_lua_block { ngx.exit(404) }", inner);
            let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
            assert_eq!(converted.yaml().matches("http_status: 503").count(), 2, "{}", converted.yaml());
        }
    }

    #[test]
    fn a_rewrite_of_an_inner_block_counts_for_the_blocks_around_it() {
        let text = "server { proxy_redirect off;
                    access_by_lua_block { if ngx.var.uri == \"/admin\" then ngx.exit(403) end }
                    location /in/ { rewrite ^/in/(.*)$ /$1 break; proxy_pass http://a; } }";
        let converted = convert("t", text, &|_| Ok(Vec::new())).expect("correct").yaml();
        assert!(converted.contains("http_status: 503"), "{converted}");
        let other = text.replace("/$1 break", "https://a.example/$1 redirect");
        let converted = convert("t", &other, &|_| Ok(Vec::new())).expect("correct").yaml();
        assert!(!converted.contains("http_status: 503"), "{converted}");
    }
}
