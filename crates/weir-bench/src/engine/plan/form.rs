//! Forms in several parts (RFC 7578), as browsers send files.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One part of a form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FormPart {
    /// The name of the field.
    pub name: String,
    /// The value of the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// A file whose content is the value; its last segment is the file name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The content type; `application/octet-stream` for files.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}
