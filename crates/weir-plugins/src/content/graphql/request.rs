//! A GraphQL request in a body, as JSON or as the query alone.

use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::Exchange;
use weir_plugin::form;

use crate::content::content_type;

/// The members of a request. In a body, one that is there twice is refused, since its readers may differ in which counts.
const MEMBERS: [&str; 4] = ["query", "variables", "operationName", "extensions"];

/// The members of a body that matter.
#[derive(Debug, Deserialize)]
pub(crate) struct GraphqlBody {
    pub(crate) query: Option<String>,
    pub(crate) variables: Option<Map<String, Value>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl GraphqlBody {
    /// # Errors
    /// Why the body is refused, as a sentence.
    pub(crate) fn read(is_json: bool, body: &[u8]) -> Result<GraphqlBody, String> {
        if !is_json {
            let query = str::from_utf8(body).map_err(|_| "The body is not UTF-8")?.to_owned();
            return Ok(GraphqlBody { query: Some(query), variables: None, others: Map::new() });
        }
        if body.trim_ascii_start().first() == Some(&b'[') {
            return Err("A list of queries is not allowed".to_owned());
        }
        let read = serde_json::from_slice(body);
        let body: GraphqlBody = read.map_err(|error| format!("The body is no GraphQL request: {error}"))?;
        match body.ambiguous() {
            Some(name) => Err(format!("The member {name} of the body is not allowed")),
            None => Ok(body),
        }
    }

    /// A member that some readers take for another one: they do not tell upper and lower case apart.
    fn ambiguous(&self) -> Option<&str> {
        let is_like = |name: &str| MEMBERS.iter().any(|member| member.eq_ignore_ascii_case(name) && *member != name);
        self.others.keys().map(String::as_str).find(|name| !name.is_ascii() || is_like(name))
    }
}

/// Whether the query string of a request has members of a GraphQL request.
pub(crate) fn is_in_target(exchange: &Exchange) -> bool {
    let is_member = |name: &[u8]| MEMBERS.iter().any(|member| member.as_bytes() == name);
    form::pairs(exchange.request.query().unwrap_or_default()).any(|(name, _)| is_member(&name))
}

/// Whether a body of this type can be a GraphQL request.
pub(crate) fn is_request(content_type: &[u8]) -> bool {
    content_type::is_json(content_type) || content_type::is(content_type, "application/graphql")
}
