//! `enable_access_log`: the file of the access log, and the format of its lines.

use std::path::PathBuf;

use serde_json::{Value, json};
use weir_plugin::{ExchangePhase, Template, Variable, WrittenName};

use crate::keys;
use crate::keys::MapKeys;
use crate::keys::kinds::{Custom, WrittenPath, custom, written};
use crate::keys::schema::Definitions;
use crate::text::read::{NodeReader, shortened};
use crate::text::tree::{MapEntry, NodeKind};
use weir_plugin::suggest::meant;

/// The file of the access log, and the format of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogSpec {
    pub path: PathBuf,
    pub format: AccessLogFormat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// nginx's `combined`.
    Combined,
    /// One JSON object per line, with the usual fields.
    Json,
    /// A line with `$variables`.
    Template(String),
    /// One JSON object per line, with these fields; values are templates.
    Fields(Vec<(String, String)>),
}

keys! {
    /// The access log.
    pub(super) static ACCESS_LOG: AccessLogKeys = "access_log";

    /// The path of the file.
    path: WrittenPath = written(WrittenName::File), required("add `path: logs/access.log`"), example("logs/access.log");
    /// The format of a line: `combined` (that of nginx), `json`, a text with variables, or a map from field names to such texts, which
    /// makes JSON.
    format: Custom<AccessLogFormat> = custom("text, or map: names to text", format_schema, format), own(), absent("`combined`"),
        example("{ host: $host, status: $status }"), guide("observing.md#the-access-log");
}

fn format_schema(_: &mut Definitions) -> Value {
    json!({ "oneOf": [{ "type": "string", "pattern": "^(combined|json)$|\\$" },
        { "type": "object", "additionalProperties": { "type": "string" } }] })
}

pub(super) fn schema(definitions: &mut Definitions) -> Value {
    let map = json!({ "$ref": definitions.reference(ACCESS_LOG.table()) });
    json!({ "oneOf": [{ "type": "string", "minLength": 1 }, { "const": false }, map] })
}

/// `enable_access_log`: a path, or a map.
pub(super) fn read(at: &NodeReader) -> Option<AccessLogSpec> {
    match &at.node().kind {
        NodeKind::Bool(false) => None,
        NodeKind::Bool(true) => {
            at.report_advising(
                "does not name a file",
                "write the path of the file: `enable_access_log: logs/access.log`",
            );
            None
        }
        NodeKind::Map(_) => {
            let fields = at.keys(&ACCESS_LOG)?;
            let path = fields.read(&ACCESS_LOG.path);
            let format = match fields.has(&ACCESS_LOG.format) {
                true => fields.read(&ACCESS_LOG.format)?,
                false => AccessLogFormat::Combined,
            };
            Some(AccessLogSpec { path: path?.into_string().into(), format })
        }
        _ => {
            Some(AccessLogSpec { path: at.written_name(WrittenName::File)?.into(), format: AccessLogFormat::Combined })
        }
    }
}

fn format(at: &NodeReader) -> Option<AccessLogFormat> {
    if at.is_map() {
        let entries = at.entries()?.iter();
        let field = |entry: &MapEntry| {
            let at = at.below(entry);
            Some((entry.key.to_string(), template_of(&at, at.text()?)?))
        };
        return entries.map(field).collect::<Option<_>>().map(AccessLogFormat::Fields);
    }
    match at.text()? {
        "combined" => Some(AccessLogFormat::Combined),
        "json" => Some(AccessLogFormat::Json),
        template if template.contains('$') => template_of(at, template).map(AccessLogFormat::Template),
        other => {
            let problem = format!("`{}` is not a format", shortened(other));
            at.report_advising(problem, "write `combined`, `json`, a text with `$variables`, or a map of fields");
            None
        }
    }
}

/// Checks a template: each of its variables must exist, and be available when a record is written.
fn template_of(at: &NodeReader, text: &str) -> Option<String> {
    let template = Template::compile(text);
    let absent = |variable: &Variable| Some((variable.absence(ExchangePhase::Record)?, meant(variable)));
    let Some((problem, meant)) = template.variables().find_map(absent) else { return Some(text.to_owned()) };
    at.report_advising(
        problem,
        match meant {
            Some(known) => format!("did you mean `${known}`?"),
            None => "see the reference of variables; a literal dollar sign is written `\\$`".to_owned(),
        },
    );
    None
}
