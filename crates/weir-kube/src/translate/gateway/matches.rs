//! Which requests a rule takes, as keys of a route.

use serde_json::{Map, Value, json};

use super::super::expressions::Expressions;
use crate::objects::routes::{GrpcMatch, HttpMatch, NamedMatch};

/// A match of a rule, as keys of a route of Weir.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RouteMatch {
    uris: Vec<String>,
    method: Option<String>,
    vars: Vec<Value>,
    /// Among matches with the same host and path, the most specific has the highest number.
    priority: u32,
    /// The path that stands for the prefix in `ReplacePrefixMatch`, without a slash at its end.
    pub prefix: String,
    /// The regular expressions that the author has written.
    expressions: Vec<String>,
    /// Why one of them cannot be served. What it would match is not known, so such a match takes no requests.
    pub refused: Option<String>,
}

/// The order of the Gateway API: an exact path, then a path by its length (Weir's own order), a method, headers, query parameters.
const EXACT: u32 = 1 << 12;
const PATTERN: u32 = 1 << 11;
const METHOD: u32 = 1 << 10;
const HEADER: u32 = 1 << 5;
const MOST: usize = 31;
/// The most characters of an expression in a message.
const LONGEST_QUOTED: usize = 100;

pub(super) fn of_http(wanted: &HttpMatch) -> RouteMatch {
    let mut found = RouteMatch::default();
    let path = wanted.path.clone().unwrap_or_default();
    let value = path.value.as_deref().unwrap_or("/");
    match path.kind.as_deref().unwrap_or("PathPrefix") {
        "Exact" => found.exact(value),
        "RegularExpression" => found.pattern(value),
        _ => found.prefix(value),
    }
    found.method = wanted.method.clone();
    found.add_conditions("http", &wanted.headers);
    found.add_conditions("arg", &wanted.query_params);
    found.priority += if found.method.is_some() { METHOD } else { 0 };
    found.priority += HEADER * wanted.headers.len().min(MOST) as u32 + wanted.query_params.len().min(MOST) as u32;
    found
}

pub(super) fn of_grpc(wanted: &GrpcMatch) -> RouteMatch {
    let mut found = RouteMatch::default();
    let method = wanted.method.clone().unwrap_or_default();
    let is_pattern = method.kind.as_deref() == Some("RegularExpression");
    match (method.service.as_deref(), method.method.as_deref()) {
        (None, None) => found.prefix("/"),
        (Some(service), Some(method)) if !is_pattern => found.exact(&format!("/{service}/{method}")),
        (Some(service), None) if !is_pattern => found.prefix(&format!("/{service}")),
        (service, method) => {
            let part = |text: Option<&str>| match text {
                Some(text) if is_pattern => format!("(?:{text})"),
                Some(text) => quote(text),
                None => "[^/]+".to_owned(),
            };
            found.pattern(&format!("/{}/{}", part(service), part(method)));
        }
    }
    found.add_conditions("http", &wanted.headers);
    found.priority += HEADER * wanted.headers.len().min(MOST) as u32;
    found
}

impl RouteMatch {
    /// Adds the keys to those of a route.
    pub(super) fn write(&self, route: &mut Map<String, Value>) {
        route.insert("uris".to_owned(), json!(self.uris));
        if let Some(method) = &self.method {
            route.insert("methods".to_owned(), json!([method]));
        }
        if !self.vars.is_empty() {
            route.insert("vars".to_owned(), json!(self.vars));
        }
        if self.priority > 0 {
            route.insert("priority".to_owned(), self.priority.into());
        }
    }

    pub(super) fn has_expressions(&self) -> bool {
        !self.expressions.is_empty()
    }

    /// Sets [`RouteMatch::refused`].
    pub(super) fn check_expressions(&mut self, expressions: &mut Expressions, namespace: &str) {
        let refused = self.expressions.iter().find_map(|expression| {
            let problem = expressions.check(namespace, expression).err()?;
            let begin: String = expression.chars().take(LONGEST_QUOTED).collect();
            Some(format!("`{begin}`: {problem}; its match takes no requests"))
        });
        self.refused = refused;
    }

    fn exact(&mut self, path: &str) {
        self.priority += EXACT;
        self.prefix = path.trim_end_matches('/').to_owned();
        if is_plain(path) {
            self.uris = vec![path.to_owned()];
        } else {
            self.quoted(path, "");
        }
    }

    /// `/a` and `/a/` are the same prefix: it covers whole segments.
    fn prefix(&mut self, path: &str) {
        let path = path.trim_end_matches('/');
        self.prefix = path.to_owned();
        if path.is_empty() {
            self.uris = vec!["/*".to_owned()];
        } else if is_plain(path) {
            self.uris = vec![path.to_owned(), format!("{path}/*")];
        } else {
            self.quoted(path, "(/.*)?");
        }
    }

    /// A path that reads as a pattern of Weir is a regular expression.
    fn quoted(&mut self, path: &str, rest: &str) {
        self.uris = vec!["/*".to_owned()];
        self.vars.push(json!(["uri", "~~", format!("^{}{rest}$", quote(path))]));
    }

    /// The expression must match the whole path. Its literal beginning decides which prefixes it comes before.
    fn pattern(&mut self, expression: &str) {
        self.priority += PATTERN;
        let literal = expression.strip_prefix('^').unwrap_or(expression);
        let end = literal.find(|c: char| !(c.is_ascii_alphanumeric() || "/_-~%".contains(c))).unwrap_or(literal.len());
        let whole = literal[..end].rfind('/').unwrap_or(0);
        let alternates = expression.contains('|');
        let folder = if alternates { "" } else { &literal[..whole] };
        self.uris = vec![format!("{folder}/*")];
        if !folder.is_empty() {
            self.uris.insert(0, folder.to_owned());
        }
        self.vars.push(json!(["uri", "~~", format!("^(?:{expression})$")]));
        self.expressions.push(expression.to_owned());
    }

    /// Of several conditions with one name, only the first counts, as the Gateway API has it.
    fn add_conditions(&mut self, kind: &str, wanted: &[NamedMatch]) {
        let is_same = |one: &NamedMatch, other: &NamedMatch| match kind {
            "http" => one.name.eq_ignore_ascii_case(&other.name),
            _ => one.name == other.name,
        };
        for (index, condition) in wanted.iter().enumerate() {
            if wanted[..index].iter().any(|before| is_same(before, condition)) {
                continue;
            }
            let name = match kind {
                "http" => condition.name.to_ascii_lowercase().replace('-', "_"),
                _ => condition.name.clone(),
            };
            let variable = format!("{kind}_{name}");
            self.vars.push(match condition.kind.as_deref() {
                Some("RegularExpression") => {
                    self.expressions.push(condition.value.clone());
                    json!([variable, "~~", format!("^(?:{})$", condition.value)])
                }
                _ => json!([variable, "==", condition.value]),
            });
        }
    }
}

/// Whether a path means itself as `uri` of a route.
fn is_plain(path: &str) -> bool {
    path.split('/').all(|segment| !segment.starts_with(':') && !segment.ends_with('*'))
}

/// A text as a regular expression that matches it.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() && !"/_-".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(value: Value) -> Value {
        let mut route = Map::new();
        of_http(&serde_json::from_value(value).unwrap()).write(&mut route);
        Value::Object(route)
    }

    #[test]
    fn a_prefix_covers_whole_segments() {
        let expected = json!({ "uris": ["/a", "/a/*"] });
        assert_eq!(http(json!({ "path": { "type": "PathPrefix", "value": "/a" } })), expected);
        assert_eq!(http(json!({ "path": { "type": "PathPrefix", "value": "/a/" } })), expected);
        assert_eq!(http(json!({})), json!({ "uris": ["/*"] }));
    }

    #[test]
    fn an_exact_path_comes_before_a_prefix_and_a_method_before_headers() {
        let priority = |value: Value| http(value)["priority"].as_u64().unwrap_or(0);
        let header = |name: &str| json!({ "name": name, "value": "1" });
        let exact = priority(json!({ "path": { "type": "Exact", "value": "/a" } }));
        let method = priority(json!({ "method": "GET" }));
        let many: Vec<Value> = (0..16).map(|number| header(&number.to_string())).collect();
        let headers = priority(json!({ "headers": many, "queryParams": many }));
        let arguments = priority(json!({ "queryParams": many }));
        assert!(exact > method && method > headers && headers > arguments && arguments > 0);
        assert!(
            priority(json!({ "headers": [header("a"), header("b")] })) > priority(json!({ "headers": [header("a")] }))
        );
    }

    #[test]
    fn conditions_are_variables_and_the_first_of_a_name_counts() {
        let value = json!({
            "headers": [{ "name": "X-Tenant", "value": "a" }, { "name": "x-tenant", "value": "b" }],
            "queryParams": [{ "type": "RegularExpression", "name": "Page", "value": "[0-9]+" }],
            "method": "GET",
        });
        let found = http(value);
        assert_eq!(found["vars"], json!([["http_x_tenant", "==", "a"], ["arg_Page", "~~", "^(?:[0-9]+)$"]]));
        assert_eq!(found["methods"], json!(["GET"]));
    }

    #[test]
    fn characters_of_patterns_are_quoted() {
        let found = http(json!({ "path": { "type": "Exact", "value": "/a/:b" } }));
        assert_eq!(found["vars"], json!([["uri", "~~", "^/a/\\:b$"]]));
        let found = http(json!({ "path": { "type": "RegularExpression", "value": "/api/v[0-9]+/.*" } }));
        assert_eq!(found["uris"], json!(["/api", "/api/*"]));
        assert_eq!(found["vars"], json!([["uri", "~~", "^(?:/api/v[0-9]+/.*)$"]]));
    }

    #[test]
    fn a_grpc_method_is_a_path() {
        let uris = |value: Value| {
            let mut route = Map::new();
            of_grpc(&serde_json::from_value(value).unwrap()).write(&mut route);
            route["uris"].clone()
        };
        assert_eq!(uris(json!({ "method": { "service": "a.B", "method": "C" } })), json!(["/a.B/C"]));
        assert_eq!(uris(json!({ "method": { "service": "a.B" } })), json!(["/a.B", "/a.B/*"]));
        assert_eq!(uris(json!({ "method": { "method": "C" } })), json!(["/*"]));
    }

    #[test]
    fn expressions_that_cannot_be_served_refuse_their_match() {
        let mut expressions = Expressions::default();
        let mut refused = |value: Value| {
            let mut found = of_http(&serde_json::from_value(value).unwrap());
            found.check_expressions(&mut expressions, "shop");
            found.refused
        };
        let path = |value: &str| json!({ "path": { "type": "RegularExpression", "value": value } });
        assert_eq!(refused(path("/v[0-9]+")), None);
        assert!(refused(path("/(?!x)")).is_some_and(|why| why.starts_with("`/(?!x)`: ")));
        let header = json!({ "headers": [{ "type": "RegularExpression", "name": "a", "value": "\\p{L}{1000}" }] });
        assert!(refused(header).is_some_and(|why| why.contains("more than 1 MiB")));
        let large = |number: usize| path(&format!("/{number}/[\\p{{L}}]{{10}}"));
        assert!((0..200).any(|number| refused(large(number)).is_some_and(|why| why.contains("16 MiB together"))));
    }
}
