//! `enable_access_log`: the file of the access log, and the format of its lines.

use std::path::PathBuf;

use weir_plugin::{ExchangePhase, Template, Variable, WrittenName};

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
            let fields = at.fields(&["path", "format"])?;
            let Some(path) = fields.get("path") else {
                at.report_advising("has no `path`", "add `path: logs/access.log`");
                return None;
            };
            let format = fields.get("format").map_or(Some(AccessLogFormat::Combined), |at| format(&at));
            Some(AccessLogSpec { path: path.written_name(WrittenName::File)?.into(), format: format? })
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
