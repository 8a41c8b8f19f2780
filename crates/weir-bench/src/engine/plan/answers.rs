//! What a plan expects of answers, and what it takes from them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A check of an answer. Without `status`, `field` and `json` it is one of the body.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AnswerCheck {
    /// The answer has one of these statuses: a number, a class such as `2xx`, or a status of gRPC such as `NOT_FOUND`. Replaces
    /// `expect_status`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<StatusPattern>,
    /// The value of this header field is checked. Without a comparison, the answer has to contain the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The value at this place of the JSON body is checked, a JSON pointer such as `/user/name`. Without a comparison, the
    /// place has to exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// The value is this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equals: Option<String>,
    /// The value contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
    /// A part of the value matches this regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// The opposite has to be true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub not: bool,
}

/// A status, or a class of statuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum StatusPattern {
    /// A status.
    Code(u16),
    /// A class such as `2xx`, a status of gRPC such as `NOT_FOUND`, or a status as a text.
    Class(String),
}

/// A value that is taken from an answer, for later requests of the same client. Without `field` and `json` it is taken from
/// the body.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Take {
    /// The value of this header field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The value at this place of the JSON body, a JSON pointer such as `/access_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// Only the part of the value that matches this regular expression: its first group, or all of the match without groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// The value if the answer has none. Without it, the client begins again with the first request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}
