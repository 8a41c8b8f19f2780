use std::str::Utf8Error;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::proto::Method;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop, form};

use crate::answer::RefusalResponse;
use crate::content::graphql::{GraphqlDocument, GraphqlOperation};
use crate::content::{coding, forget_request_content};

/// Turns requests of a REST API into queries of a GraphQL upstream.
///
/// A GET becomes a GET whose query string has the document, and a POST becomes a POST with the document in its body. The values of the
/// variables are those of the query string of a GET, and those of the JSON object in the body of a POST. In a query string, a value
/// of a variable of the type `Int`, `Float` or `Boolean` becomes a number or a boolean. The query string of a POST is not forwarded, and a GET
/// with a body is refused: some servers would run a query that stands there. Other methods are answered with 405. The path is not changed:
/// see `proxy-rewrite`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Degraphql {
    /// The GraphQL document.
    #[schemars(length(min = 1, max = 65_536))]
    query: String,
    /// The names of the variables of the document whose values are taken from the request.
    #[schemars(length(min = 1))]
    variables: Option<Vec<String>>,
    /// The operation to run, required if the document has several.
    #[schemars(length(min = 1, max = 1024))]
    operation_name: Option<String>,
    /// The largest body of a POST, in bytes after decoding. A larger body is answered with 413.
    #[serde(default = "default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
}

fn default_max_req_body_size() -> u64 {
    1 << 20
}

impl Definition for Degraphql {
    const NAME: &'static str = "degraphql";
    const PRIORITY: i32 = 509;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        r#"degraphql: { query: "query ($id: Int!) { person(id: $id) { name } }", variables: [id] }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let variables = self.compile_variables(build)?;
        Ok(Arc::new(GraphqlRequests {
            query: self.query.into(),
            variables,
            operation_name: self.operation_name.map(Into::into),
            limit: self.max_req_body_size,
        }))
    }
}

impl Degraphql {
    /// Reads the document, and finds the variables in it.
    fn compile_variables(&self, build: &mut Build) -> Result<Box<[QueryVariable]>, ConfigError> {
        let document = GraphqlDocument::parse(&self.query).map_err(|fault| ConfigError::new("query", fault.text()))?;
        let operation = operation(&document, self.operation_name.as_deref())?;
        let variable = |(index, name): (usize, &String)| {
            let defined = operation.variables.iter().find(|variable| variable.name == name);
            if defined.is_none() {
                let problem = format!("`{name}` is no variable of the operation, which has no use for its value");
                build.warnings.push(ConfigError::new(format!("variables[{index}]"), problem));
            }
            let type_name = defined.filter(|variable| !variable.is_list).map_or("", |variable| variable.type_name);
            QueryVariable { name: name.as_str().into(), kind: ArgumentKind::of_type(type_name) }
        };
        Ok(self.variables.iter().flatten().enumerate().map(variable).collect())
    }
}

/// The operation that is run.
fn operation<'d, 't>(
    document: &'d GraphqlDocument<'t>,
    name: Option<&str>,
) -> Result<&'d GraphqlOperation<'t>, ConfigError> {
    let operations = &document.operations;
    match name {
        None if operations.len() > 1 => {
            Err(ConfigError::new("operation_name", "is missing; the document has several operations"))
        }
        None => Ok(&operations[0]),
        Some(name) => operations
            .iter()
            .find(|operation| operation.name == Some(name))
            .ok_or_else(|| ConfigError::new("operation_name", format!("the document has no operation `{name}`"))),
    }
}

struct GraphqlRequests {
    query: Box<str>,
    variables: Box<[QueryVariable]>,
    operation_name: Option<Box<str>>,
    limit: u64,
}

struct QueryVariable {
    name: Box<str>,
    kind: ArgumentKind,
}

/// What an argument of a query string stands for.
#[derive(Clone, Copy)]
enum ArgumentKind {
    Text,
    Number,
    Boolean,
}

impl ArgumentKind {
    fn of_type(name: &str) -> ArgumentKind {
        match name {
            "Int" | "Float" => ArgumentKind::Number,
            "Boolean" => ArgumentKind::Boolean,
            _ => ArgumentKind::Text,
        }
    }

    /// The value; a text that is none of this type stays a text, which the upstream refuses.
    fn value(self, text: &str) -> Value {
        let parsed = match self {
            ArgumentKind::Text => None,
            ArgumentKind::Number => serde_json::from_str(text).ok().filter(Value::is_number),
            ArgumentKind::Boolean => text.parse().ok().map(Value::Bool),
        };
        parsed.unwrap_or_else(|| text.into())
    }
}

fn bad_request(exchange: &mut Exchange, text: &str) -> Stop {
    RefusalResponse::new(400, "message", text).send(exchange)
}

impl GraphqlRequests {
    /// The values of the variables in a query string. Of several arguments of a name, the first counts.
    fn arguments(&self, query: &[u8]) -> Result<Map<String, Value>, Utf8Error> {
        let mut values = Map::new();
        for (name, value) in form::pairs(query) {
            let Some(variable) = self.variables.iter().find(|variable| *variable.name.as_bytes() == *name) else {
                continue;
            };
            let value = variable.kind.value(str::from_utf8(&value)?);
            values.entry(&*variable.name).or_insert(value);
        }
        Ok(values)
    }

    /// Makes a query string of the document, with the values of the variables from the request's own.
    fn rewrite_query(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Ok(values) = self.arguments(exchange.request.query().unwrap_or_default()) else {
            return Err(bad_request(exchange, "The query string is not UTF-8"));
        };
        let mut query = b"query=".to_vec();
        form::write_encoded(self.query.as_bytes(), &mut query);
        if !self.variables.is_empty() {
            query.extend_from_slice(b"&variables=");
            form::write_encoded(Value::from(values).to_string().as_bytes(), &mut query);
        }
        if let Some(name) = &self.operation_name {
            query.extend_from_slice(b"&operationName=");
            form::write_encoded(name.as_bytes(), &mut query);
        }
        exchange.request.set_query(&query).map_err(|_| Stop::Internal)
    }

    /// The body for the upstream.
    fn body(&self, values: Option<Map<String, Value>>) -> Vec<u8> {
        let mut body = Map::new();
        body.insert("query".to_owned(), (&*self.query).into());
        if let Some(values) = values {
            body.insert("variables".to_owned(), values.into());
        }
        if let Some(name) = &self.operation_name {
            body.insert("operationName".to_owned(), (&**name).into());
        }
        Value::from(body).to_string().into_bytes()
    }

    /// The values of the variables in the body of a request; `None` if there are no variables.
    fn values(&self, exchange: &mut Exchange, body: &[u8]) -> Result<Option<Map<String, Value>>, Stop> {
        if self.variables.is_empty() {
            return Ok(None);
        }
        let plain = coding::plain(&exchange.request.head, body, self.limit);
        let plain = plain.map_err(|opaque| Stop::Respond(opaque.status()))?;
        let Ok(mut sent) = serde_json::from_slice::<Map<String, Value>>(&plain) else {
            return Err(bad_request(exchange, "The body is not a JSON object"));
        };
        let names = self.variables.iter().map(|variable| &*variable.name);
        Ok(Some(names.filter_map(|name| Some((name.to_owned(), sent.remove(name)?))).collect()))
    }
}

/// Describes a body that the plugin has made.
fn describe_body(exchange: &mut Exchange) -> Result<(), Stop> {
    forget_request_content(exchange);
    exchange.request.head.set(b"Content-Type", b"application/json").map_err(|_| Stop::Internal)
}

impl Plugin for GraphqlRequests {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let has_body = exchange.request.framing.has_body();
        if exchange.request.method == Method::Post && exchange.request.query().is_some() {
            // Some servers prefer a query that stands there.
            exchange.request.set_query(b"").map_err(|_| Stop::Internal)?;
        }
        match exchange.request.method {
            Method::Get if has_body => return Err(bad_request(exchange, "A GET has no body here")),
            Method::Get => self.rewrite_query(exchange)?,
            Method::Post if has_body => {}
            Method::Post if !self.variables.is_empty() => return Err(bad_request(exchange, "The body is missing")),
            Method::Post => {
                exchange.set_request_body(self.body(None));
                describe_body(exchange)?;
            }
            _ => {
                let stop = RefusalResponse::error(405, Some("only GET and POST are allowed")).send(exchange);
                exchange.response.head.add(b"Allow", b"GET, POST").expect("constant and valid");
                return Err(stop);
            }
        }
        Ok(Flow::Continue)
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let is_made_here = exchange.request_body().is_some();
        Ok((exchange.request.method == Method::Post && !is_made_here).then_some(self.limit))
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        let values = self.values(exchange, body)?;
        *body = self.body(values);
        describe_body(exchange)?;
        Ok(Flow::Continue)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, get, on_request, refused, sent};

    const QUERY: &str = "query Q($name: String!, $id: Int, $old: Boolean) { a(b: $name, c: $id, d: $old) { e } }";

    fn step() -> Arc<dyn Plugin> {
        build::<Degraphql>(json!({"query": QUERY, "variables": ["name", "id", "old"], "operation_name": "Q"}))
    }

    /// The arguments of the query string for the upstream.
    fn arguments(exchange: &Exchange) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        form::pairs(exchange.request.query().expect("a query"))
            .map(|(name, value)| (text(&name), text(&value)))
            .collect()
    }

    #[test]
    fn a_get_has_the_document_in_its_query_string() {
        let mut exchange = get("/people?id=7&name=ann+b&old=true&name=second&other=1");
        on_request(&step(), &mut exchange).expect("let through");
        let pairs = arguments(&exchange);
        assert_eq!(pairs[0], ("query".to_owned(), QUERY.to_owned()));
        let values: Value = serde_json::from_str(&pairs[1].1).expect("JSON");
        assert_eq!((pairs[1].0.as_str(), values), ("variables", json!({"id": 7, "name": "ann b", "old": true})));
        assert_eq!(pairs[2], ("operationName".to_owned(), "Q".to_owned()));
        assert_eq!(pairs.len(), 3);
        let mut wrong = get("/people?id=x&old=yes");
        on_request(&step(), &mut wrong).expect("let through");
        assert_eq!(arguments(&wrong)[1].1, json!({"id": "x", "old": "yes"}).to_string());
        let mut bytes = get("/people?name=%ff");
        assert_eq!(on_request(&step(), &mut bytes), Err(Stop::Answered));
    }

    #[test]
    fn a_post_has_the_document_in_its_body() {
        let post =
            || exchange("POST /people HTTP/1.1\nHost: h\nContent-Type: text/plain\nContent-Length: 2\nDigest: x");
        let made = |step: &Arc<dyn Plugin>, content: &str| {
            let mut exchange = post();
            on_request(step, &mut exchange).expect("let through");
            assert_eq!(step.whole_request(&mut exchange), Ok(Some(1 << 20)));
            let mut body = content.as_bytes().to_vec();
            let end = step.on_request_body(&mut exchange, &mut body).map(|_| ());
            let head = &exchange.request.head;
            let types = (head.value(b"content-type").map(<[u8]>::to_vec), head.value(b"digest").is_some());
            end.map(|()| (serde_json::from_slice::<Value>(&body).expect("JSON"), types))
        };
        let json_type = (Some(b"application/json".to_vec()), false);
        let values = json!({"name": "ann", "id": [1]});
        let want = json!({"query": QUERY, "variables": values, "operationName": "Q"});
        assert_eq!(made(&step(), r#"{"id": [1], "name": "ann", "other": 2}"#), Ok((want, json_type.clone())));
        for content in ["", "[1]", "{"] {
            assert_eq!(made(&step(), content), Err(Stop::Answered), "{content}");
        }
        let plain = build::<Degraphql>(json!({"query": "{a}"}));
        assert_eq!(made(&plain, "anything"), Ok((json!({"query": "{a}"}), json_type)));
    }

    #[test]
    fn a_post_without_content_gets_some() {
        let post = || exchange("POST /people HTTP/1.1\nHost: h");
        let plain = build::<Degraphql>(json!({"query": "{a}"}));
        let mut made = post();
        on_request(&plain, &mut made).expect("let through");
        assert_eq!(made.request_body(), Some(&br#"{"query":"{a}"}"#[..]));
        assert_eq!(plain.whole_request(&mut made), Ok(None));
        assert_eq!(on_request(&step(), &mut post()), Err(Stop::Answered), "the values are missing");
        let mut put = exchange("PUT /people HTTP/1.1\nHost: h");
        assert_eq!(on_request(&plain, &mut put), Err(Stop::Answered));
        assert_eq!((put.response.status, sent(&put, "allow")), (405, Some("GET, POST")));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `query` is missing"),
            (json!({"query": "{"}), "query: is not GraphQL at byte 1"),
            (json!({"query": "query A {a} query B {b}"}), "operation_name: is missing; the document has several"),
            (
                json!({"query": "query A {a}", "operation_name": "C"}),
                "operation_name: the document has no operation `C`",
            ),
            (json!({"query": "{a}", "variables": []}), "variables: is empty"),
        ] {
            let error = refused::<Degraphql>(options);
            assert!(error.starts_with(want), "{error}");
        }
        let mut build = Build::default();
        let options: Degraphql = serde_json::from_value(json!({"query": "{a}", "variables": ["b"]})).expect("valid");
        assert!(options.build(&mut build).is_ok());
        assert_eq!(build.warnings.len(), 1);
    }
}
