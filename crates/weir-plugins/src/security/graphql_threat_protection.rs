use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop, form};

use crate::content::graphql::request::{GraphqlBody, is_in_target, is_request};
use crate::content::graphql::{self, GraphqlDocument, GraphqlFault};
use crate::content::{coding, content_type};
use crate::security::threat;

/// Refuses GraphQL queries that could cost the upstream too much: nested too deep, with too many fields, aliases or directives.
///
/// A query counts with its fragments, and fields in a list as often as the list may be long. It stands in the body, as JSON or
/// `application/graphql`, or in the query string; a request with both is refused, since its readers may differ in which counts. A body of
/// another type is answered with 415, and a list of queries in one body is refused. The refusal is a GraphQL response:
/// `{"errors": [{"message": ...}]}`. The schema is not known, so a query that passes is not necessarily valid.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GraphqlThreatProtection {
    /// The maximum nesting depth of fields.
    #[serde(default = "default_max_depth")]
    #[schemars(range(min = 1, max = 200))]
    max_depth: u64,
    /// The maximum number of fields, where those in a list count as often as the list may be long.
    #[serde(default = "default_max_cost")]
    #[schemars(range(min = 1))]
    max_cost: u64,
    /// The names of arguments that say how long a list may be, as a number or as a variable. Members of an input object do not count.
    #[serde(default = "graphql::default_list_arguments")]
    list_arguments: Vec<String>,
    /// The maximum number of aliases.
    #[serde(default = "default_max_aliases")]
    max_aliases: usize,
    /// The maximum number of directives.
    #[serde(default = "default_max_directives")]
    max_directives: usize,
    /// Lets queries ask for the schema (`__schema`, `__type`).
    #[serde(default = "default_introspection")]
    introspection: bool,
    /// Lets requests pass that have `extensions` in place of a query: the server knows the query by a hash (persisted queries).
    #[serde(default)]
    persisted_queries: bool,
    /// Lets WebSockets pass, over which no query is checked.
    #[serde(default)]
    websocket: bool,
    /// The largest body, in bytes after decoding. A larger body is refused with 413.
    #[serde(default = "threat::default_max_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_body_size: u64,
    /// The status of a refusal, 400 to 599.
    #[serde(default = "threat::default_rejected_code")]
    #[schemars(range(min = 400, max = 599))]
    rejected_code: u16,
}

fn default_max_depth() -> u64 {
    15
}

fn default_max_cost() -> u64 {
    1000
}

fn default_max_aliases() -> usize {
    30
}

fn default_max_directives() -> usize {
    50
}

fn default_introspection() -> bool {
    true
}

impl Definition for GraphqlThreatProtection {
    const NAME: &'static str = "graphql-threat-protection";
    const PRIORITY: i32 = 2818;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "graphql-threat-protection: { max_depth: 8, max_cost: 500, introspection: false }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self))
    }
}

impl GraphqlThreatProtection {
    fn refuse(&self, exchange: &mut Exchange, problem: &str) -> Stop {
        let body = format!("{}\n", json!({ "errors": [{ "message": problem }] }));
        exchange.respond(self.rejected_code, "application/json", body.as_bytes())
    }

    /// Checks a query.
    ///
    /// # Errors
    /// Why it is refused.
    fn judge(&self, query: &str, variables: &Map<String, Value>) -> Result<(), String> {
        let told = |fault: GraphqlFault| format!("The query {}", fault.text());
        let document = GraphqlDocument::parse(query).map_err(told)?;
        let cost = graphql::cost(&document, variables, &self.list_arguments).map_err(told)?;
        let most = |what: &str, found: u64, most: u64| match found > most {
            true => Err(format!("The {what} of the query is {found}, and at most {most} is allowed")),
            false => Ok(()),
        };
        most("depth", cost.depth, self.max_depth)?;
        most("cost", cost.fields, self.max_cost)?;
        most("number of aliases", document.aliases as u64, self.max_aliases as u64)?;
        most("number of directives", document.directives as u64, self.max_directives as u64)?;
        if document.introspects && !self.introspection {
            return Err("The query asks for the schema, which is not allowed".to_owned());
        }
        Ok(())
    }

    /// Checks the queries in a query string. Of several arguments of a name, some servers take the first, and some the last.
    fn judge_target(&self, query: &[u8]) -> Result<(), String> {
        let text = |value: &[u8], what: &str| {
            String::from_utf8(value.to_vec()).map_err(|_| format!("The {what} in the query string is not UTF-8"))
        };
        let named = |wanted: &'static str| form::pairs(query).filter(move |(name, _)| **name == *wanted.as_bytes());
        let mut variables = Map::new();
        let mut given = named("variables");
        if let Some((_, value)) = given.next() {
            let Ok(read) = serde_json::from_slice::<Option<Map<String, Value>>>(&value) else {
                return Err("The variables in the query string are not a JSON object".to_owned());
            };
            variables = read.unwrap_or_default();
        }
        if given.next().is_some() {
            return Err("The query string has variables twice".to_owned());
        }
        if !self.persisted_queries && named("query").next().is_none() && named("extensions").next().is_some() {
            return Err("The query string has no query".to_owned());
        }
        named("query").try_for_each(|(_, value)| self.judge(&text(&value, "query")?, &variables))
    }

    /// Checks the query in a body.
    fn judge_body(&self, is_json: bool, body: &[u8]) -> Result<(), String> {
        let GraphqlBody { query, variables, .. } = GraphqlBody::read(is_json, body)?;
        match query {
            Some(query) => self.judge(&query, &variables.unwrap_or_default()),
            None if self.persisted_queries => Ok(()),
            None => Err("The body has no query".to_owned()),
        }
    }
}

impl Plugin for GraphqlThreatProtection {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let request = &exchange.request;
        let in_target = request.query().unwrap_or_default();
        let judged = if request.upgrade && !self.websocket {
            Err("WebSockets are not allowed".to_owned())
        } else if request.framing.has_body() && is_in_target(exchange) {
            Err("A request with a body has no query in its query string".to_owned())
        } else {
            self.judge_target(in_target)
        };
        judged.map_err(|problem| self.refuse(exchange, &problem))?;
        Ok(Flow::Continue)
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let content_type = content_type::of_request(exchange)?;
        match content_type.is_some_and(is_request) {
            true => Ok(Some(self.max_body_size)),
            false => Err(Stop::Respond(415)),
        }
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        let is_json = content_type::of_request(exchange)?.is_some_and(content_type::is_json);
        let plain = coding::plain(&exchange.request.head, body, self.max_body_size);
        let plain = plain.map_err(|opaque| Stop::Respond(opaque.status()))?;
        let judged = self.judge_body(is_json, &plain);
        judged.map_err(|problem| self.refuse(exchange, &problem))?;
        Ok(Flow::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, on_request_body, refused};

    fn step() -> Arc<dyn Plugin> {
        build::<GraphqlThreatProtection>(
            json!({"max_depth": 3, "max_cost": 50, "max_aliases": 2, "max_directives": 1, "introspection": false}),
        )
    }

    /// The message of the refusal; `None` if the request passes.
    fn message(end: Result<(), Stop>, exchange: &Exchange) -> Option<String> {
        end.err()?;
        let told: Value = serde_json::from_str(body(exchange)).expect("JSON");
        Some(told["errors"][0]["message"].as_str().expect("a message").to_owned())
    }

    fn posted(step: &Arc<dyn Plugin>, content_type: &str, content: &str) -> Option<String> {
        let mut exchange = exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Type: {content_type}"));
        assert!(matches!(step.whole_request(&mut exchange), Ok(Some(_))));
        message(on_request_body(step, &mut exchange, content), &exchange)
    }

    #[test]
    fn queries_in_bodies_are_bounded() {
        for (query, want) in [
            ("{a {b {c}}}", None),
            ("{a {b {c {d}}}}", Some("The depth of the query is 4, and at most 3 is allowed")),
            ("{a(first: 49) {b}}", None),
            ("query ($n: Int) {a(first: $n) {b}}", Some("The cost of the query is 61, and at most 50 is allowed")),
            ("{a: x b: x c: x}", Some("The number of aliases of the query is 3, and at most 2 is allowed")),
            ("{a @b @c}", Some("The number of directives of the query is 2, and at most 1 is allowed")),
            ("{__schema {types}}", Some("The query asks for the schema, which is not allowed")),
            ("{__typename}", None),
            ("{a", Some("The query is not GraphQL at byte 2")),
            ("{...A} fragment A on T {...A}", Some("The query has a fragment that contains itself")),
        ] {
            let content = json!({"query": query, "variables": {"n": 60}, "operationName": null}).to_string();
            assert_eq!(posted(&step(), "application/json", &content).as_deref(), want, "{query}");
        }
        assert_eq!(posted(&step(), "application/graphql; charset=utf-8", "{a {b}}"), None);
        let deep = posted(&step(), "application/graphql", "{a {b {c {d}}}}").expect("refused");
        assert!(deep.starts_with("The depth"), "{deep}");
    }

    #[test]
    fn bodies_that_readers_may_read_in_another_way_are_refused() {
        for (content, want) in [
            (r#"{"query": "{a}", "query": "{b}"}"#, "The body is no GraphQL request: duplicate field"),
            (r#"[{"query": "{a}"}]"#, "A list of queries is not allowed"),
            (r#" ["{a}", null]"#, "A list of queries is not allowed"),
            (r#"{"variables": {}}"#, "The body has no query"),
            (r#"{"query": "{a}", "Query": "{b}"}"#, "The member Query of the body is not allowed"),
            (r#"{"query": "{a}", "variableſ": {}}"#, "The member variableſ of the body is not allowed"),
            ("", "The body is no GraphQL request"),
        ] {
            let told = posted(&step(), "application/json", content).expect(content);
            assert!(told.starts_with(want), "{content}: {told}");
        }
        let lenient = build::<GraphqlThreatProtection>(json!({"persisted_queries": true}));
        assert_eq!(posted(&lenient, "application/json", r#"{"extensions": {"persistedQuery": {}}}"#), None);
        for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"] {
            let mut exchange = exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Type: {content_type}"));
            assert_eq!(step().whole_request(&mut exchange), Err(Stop::Respond(415)), "{content_type}");
        }
    }

    #[test]
    fn queries_in_query_strings_are_bounded() {
        for (target, want) in [
            ("/graphql", None),
            ("/graphql?query=%7Ba%7D&other=1", None),
            ("/graphql?query=%7Ba%7D&query=%7B", Some("The query is not GraphQL at byte 1")),
            ("/graphql?qu%65ry={a{b{c{d}}}}", Some("The depth of the query is 4, and at most 3 is allowed")),
            (
                "/graphql?query={a(first:$n){b}}&variables={%22n%22:99}",
                Some("The cost of the query is 100, and at most 50 is allowed"),
            ),
            ("/graphql?query={a}&variables=null", None),
            ("/graphql?query={a}&variables=1", Some("The variables in the query string are not a JSON object")),
            ("/graphql?query={a}&variables={}&variables={}", Some("The query string has variables twice")),
            ("/graphql?extensions={}", Some("The query string has no query")),
            ("/graphql?query=%ff", Some("The query in the query string is not UTF-8")),
        ] {
            let mut exchange = get("/");
            let query = target.split_once('?').map_or("", |(_, query)| query);
            exchange.request.set_query(query.replace('{', "%7B").replace('}', "%7D").as_bytes()).expect("valid");
            let end = on_request(&step(), &mut exchange);
            assert_eq!(message(end, &exchange).as_deref(), want, "{target}");
        }
    }

    #[test]
    fn queries_beside_a_body_and_over_websockets_are_refused() {
        for (head, want) in [
            ("POST /?other=1 HTTP/1.1\nHost: h\nContent-Length: 2", None),
            (
                "POST /?variables=%7B%7D HTTP/1.1\nHost: h\nContent-Length: 2",
                Some("A request with a body has no query in its query string"),
            ),
            (
                "GET / HTTP/1.1\nHost: h\nConnection: upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                Some("WebSockets are not allowed"),
            ),
        ] {
            let mut exchange = exchange(head);
            let end = on_request(&step(), &mut exchange);
            assert_eq!(message(end, &exchange).as_deref(), want, "{head}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"max_depth": 0}), "max_depth: expected a whole number from 1 to 200"),
            (json!({"max_fields": 1}), "max_fields: the option `max_fields` is not known"),
        ] {
            let error = refused::<GraphqlThreatProtection>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
