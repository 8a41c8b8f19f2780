//! The filters of a rule as plugins of a route.

use serde_json::{Map, Value, json};

use super::super::conditions::Problem;
use super::matches::{RouteMatch, quote};
use crate::objects::routes::{
    CorsFilter, HeaderModifier, HttpHeader, PathModifier, RequestRedirect, RouteFilter, UrlRewrite,
};

/// Adds the plugins that stand for filters.
///
/// # Errors
/// If a filter is not supported. The rule must then answer with an error: a filter must never be skipped.
pub(super) fn write(
    filters: &[RouteFilter],
    found: &RouteMatch,
    plugins: &mut Map<String, Value>,
) -> Result<(), Problem> {
    let mut rewrite = Map::new();
    for filter in filters {
        match filter.kind.as_str() {
            "RequestHeaderModifier" => {
                let modifier = filter.request_header_modifier.clone().unwrap_or_default();
                rewrite.insert("headers".to_owned(), headers(&modifier));
            }
            "ResponseHeaderModifier" => {
                let modifier = filter.response_header_modifier.clone().unwrap_or_default();
                plugins.insert("response-rewrite".to_owned(), json!({ "headers": headers(&modifier) }));
            }
            "RequestRedirect" => {
                let wanted = filter.request_redirect.clone().unwrap_or_default();
                plugins.insert("redirect".to_owned(), redirect(&wanted, found));
            }
            "URLRewrite" => url_rewrite(&filter.url_rewrite.clone().unwrap_or_default(), found, &mut rewrite),
            "CORS" => {
                plugins.insert("cors".to_owned(), cors(&filter.cors.clone().unwrap_or_default()));
            }
            // Needs backends: see `mirrors`.
            "RequestMirror" => {}
            // Plugins of their own: see `routes`.
            "ExtensionRef" => {}
            other => {
                let message = format!("filter {other} is not supported; the requests of its rule get 500");
                return Err(Problem::new("UnsupportedValue", message));
            }
        }
    }
    if !rewrite.is_empty() {
        plugins.insert("proxy-rewrite".to_owned(), Value::Object(rewrite));
    }
    Ok(())
}

/// The filters of one backend, as keys of an entry of `traffic-split`.
///
/// # Errors
/// If a filter is not supported.
pub(super) fn of_backend(filters: &[RouteFilter]) -> Result<Map<String, Value>, Problem> {
    let mut edits = Map::new();
    for filter in filters {
        let (key, modifier) = match filter.kind.as_str() {
            "RequestHeaderModifier" => ("headers", &filter.request_header_modifier),
            "ResponseHeaderModifier" => ("response_headers", &filter.response_header_modifier),
            other => {
                let message = format!("filter {other} of a backend is not supported; its requests get 500");
                return Err(Problem::new("UnsupportedValue", message));
            }
        };
        edits.insert(key.to_owned(), headers(&modifier.clone().unwrap_or_default()));
    }
    Ok(edits)
}

pub(super) fn redirects(filters: &[RouteFilter]) -> bool {
    filters.iter().any(|filter| filter.kind == "RequestRedirect")
}

fn headers(modifier: &HeaderModifier) -> Value {
    let fields = |list: &[HttpHeader]| {
        let mut fields = Map::new();
        for HttpHeader { name, value } in list {
            fields.entry(name.clone()).or_insert_with(|| literal(value).into());
        }
        fields
    };
    let mut all = Map::new();
    let parts = [("set", fields(&modifier.set)), ("add", fields(&modifier.add))];
    all.extend(parts.into_iter().filter(|(_, part)| !part.is_empty()).map(|(key, part)| (key.to_owned(), part.into())));
    if !modifier.remove.is_empty() {
        all.insert("remove".to_owned(), json!(modifier.remove));
    }
    Value::Object(all)
}

fn url_rewrite(wanted: &UrlRewrite, found: &RouteMatch, rewrite: &mut Map<String, Value>) {
    if let Some(host) = &wanted.hostname {
        rewrite.insert("host".to_owned(), host.clone().into());
    }
    let Some(path) = &wanted.path else { return };
    if let Some(full) = full_path(path) {
        rewrite.insert("uri".to_owned(), literal(full).into());
    } else {
        let new = literal(path.replace_prefix_match.as_deref().unwrap_or("/"));
        let (old, rest) = (quote(&found.prefix), format!("{}/$1", new.trim_end_matches('/')));
        let mut pairs = vec![format!("^{old}/(.*)$"), rest];
        if !found.prefix.is_empty() {
            let whole = if new.is_empty() { "/".to_owned() } else { new };
            pairs.splice(0..0, [format!("^{old}$"), whole]);
        }
        rewrite.insert("regex_uri".to_owned(), json!(pairs));
    }
}

fn full_path(path: &PathModifier) -> Option<&str> {
    (path.kind == "ReplaceFullPath").then(|| path.replace_full_path.as_deref().unwrap_or("/"))
}

fn redirect(wanted: &RequestRedirect, found: &RouteMatch) -> Value {
    let scheme = wanted.scheme.as_deref().unwrap_or("$scheme");
    let host = wanted.hostname.as_deref().unwrap_or("$host");
    let port = match (wanted.port, wanted.scheme.as_deref()) {
        // Without a scheme, the listener decides: its port is the one that would be left out.
        (Some(80), None | Some("http")) | (Some(443), None | Some("https")) | (None, Some(_)) => String::new(),
        (Some(port), _) => format!(":{port}"),
        (None, None) => "$public_port_suffix".to_owned(),
    };
    let origin = format!("{scheme}://{host}{port}");
    let status = wanted.status_code.unwrap_or(302);
    let Some(path) = &wanted.path else {
        return json!({ "uri": format!("{origin}$request_uri"), "ret_code": status });
    };
    if let Some(full) = full_path(path) {
        return json!({ "uri": format!("{origin}{}", literal(full)), "ret_code": status, "append_query_string": true });
    }
    let new = literal(path.replace_prefix_match.as_deref().unwrap_or("/"));
    let (old, new) = (quote(&found.prefix), new.trim_end_matches('/'));
    let pair = match new.is_empty() {
        true => [format!("^{old}/?(.*)$"), format!("{origin}/$1")],
        false => [format!("^{old}(/.*)?$"), format!("{origin}{new}$1")],
    };
    json!({ "regex_uri": pair, "ret_code": status, "append_query_string": true })
}

fn cors(wanted: &CorsFilter) -> Value {
    let credentials = wanted.allow_credentials.unwrap_or(false);
    let list = |items: &[String]| match items.iter().any(|item| item == "*") {
        true if credentials => "**".to_owned(),
        true => "*".to_owned(),
        false => items.join(","),
    };
    let mut options = Map::from_iter([("allow_credential".to_owned(), credentials.into())]);
    let is_pattern = |origin: &String| origin.contains('*') && origin != "*";
    if wanted.allow_origins.iter().any(is_pattern) && !wanted.allow_origins.iter().any(|origin| origin == "*") {
        let pattern = |origin: &String| format!("^{}$", quote(origin).replace("\\*", "[^/]+"));
        let patterns: Vec<String> = wanted.allow_origins.iter().map(pattern).collect();
        options.insert("allow_origins_by_regex".to_owned(), json!(patterns));
    } else {
        options.insert("allow_origins".to_owned(), list(&wanted.allow_origins).into());
    }
    let lists = [("allow_methods", &wanted.allow_methods), ("allow_headers", &wanted.allow_headers)];
    options.extend(lists.into_iter().map(|(key, items)| (key.to_owned(), list(items).into())));
    // With credentials, an asterisk is a name like any other (Fetch §4.9), which no field has.
    let exposed = wanted.expose_headers.iter().filter(|name| !(credentials && *name == "*")).cloned();
    let exposed = exposed.collect::<Vec<_>>().join(",");
    if !exposed.is_empty() {
        options.insert("expose_headers".to_owned(), exposed.into());
    }
    options.insert("max_age".to_owned(), wanted.max_age.unwrap_or(5).into());
    Value::Object(options)
}

/// A text in which a dollar sign is no variable.
fn literal(text: &str) -> String {
    text.replace('$', "\\$")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::gateway::matches::of_http;

    fn plugins(filters: Value, prefix: &str) -> Result<Value, Problem> {
        let path = json!({ "path": { "type": "PathPrefix", "value": prefix } });
        let found = of_http(&serde_json::from_value(path).unwrap());
        let filters: Vec<RouteFilter> = serde_json::from_value(filters).unwrap();
        let mut plugins = Map::new();
        write(&filters, &found, &mut plugins).map(|()| Value::Object(plugins))
    }

    #[test]
    fn headers_and_path_are_one_rewrite() {
        let filters = json!([
            { "type": "RequestHeaderModifier", "requestHeaderModifier": {
                "set": [{ "name": "A", "value": "$1" }], "add": [{ "name": "B", "value": "b" }], "remove": ["C"] } },
            { "type": "URLRewrite", "urlRewrite": { "hostname": "h.example",
                "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/new" } } },
        ]);
        let expected = json!({ "proxy-rewrite": {
            "headers": { "set": { "A": "\\$1" }, "add": { "B": "b" }, "remove": ["C"] },
            "host": "h.example",
            "regex_uri": ["^/old$", "/new", "^/old/(.*)$", "/new/$1"],
        } });
        assert_eq!(plugins(filters, "/old"), Ok(expected));
    }

    #[test]
    fn a_redirect_has_the_port_that_its_scheme_and_listener_say() {
        let uri = |redirect: Value| {
            let filters = json!([{ "type": "RequestRedirect", "requestRedirect": redirect }]);
            plugins(filters, "/").unwrap()["redirect"]["uri"].as_str().unwrap().to_owned()
        };
        assert_eq!(uri(json!({})), "$scheme://$host$public_port_suffix$request_uri");
        assert_eq!(uri(json!({ "scheme": "https" })), "https://$host$request_uri");
        assert_eq!(uri(json!({ "scheme": "https", "port": 443 })), "https://$host$request_uri");
        assert_eq!(uri(json!({ "scheme": "http", "port": 8080, "hostname": "a" })), "http://a:8080$request_uri");
    }

    #[test]
    fn an_unknown_filter_is_a_problem() {
        let problem = plugins(json!([{ "type": "Unknown" }]), "/").unwrap_err();
        assert_eq!(problem.reason, "UnsupportedValue");
    }
}
