//! OpenAPI 3.0 and 3.1: a route for each operation, with the validation that the gateway supports.
//!
//! An operation that requires authentication which cannot be converted responds to every request with 503.

mod body;
mod servers;

use std::collections::HashSet;

use crate::conversion::DocumentConversion;
use crate::document::{self, DocumentValue};
use crate::login::{self, NotConvertible};
use crate::output::{Converted, ConvertedResource};
use crate::path;
use crate::yaml::{Yaml, YamlMembers};
use crate::{SourcePlace, SyntaxError};

const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// Converts a definition.
pub fn convert(file: &str, text: &str) -> Result<Converted, SyntaxError> {
    let root = document::parse(file, text)?;
    let error = |text: &str| SyntaxError {
        place: SourcePlace { file: file.to_owned(), line: root.line },
        text: text.to_owned(),
    };
    match root.text("openapi") {
        Some(version) if version.starts_with("3.") => {}
        Some(_) => return Err(error("only OpenAPI 3 is converted")),
        None if root.text("swagger").is_some() => {
            return Err(error("OpenAPI 2 (Swagger) is not converted; convert it to OpenAPI 3 first"));
        }
        None => return Err(error("there is no `openapi`; an OpenAPI definition begins with its version")),
    }
    let mut conversion = DocumentConversion::new(file, &root);
    let mut ids = HashSet::new();
    for (path, item) in root.get("paths").map_or(&[][..], DocumentValue::members) {
        if let Some(reference) = item.text("$ref") {
            conversion.lost(item, format!("`{path}`: the path stands elsewhere, in `{reference}`"));
        }
        for (method, operation) in item.members().iter().filter(|(name, _)| METHODS.contains(&name.as_str())) {
            ApiOperation { path, method, item, operation }.carry_over(&mut conversion, &mut ids);
        }
    }
    if let Some(value) = root.get("webhooks") {
        conversion.lost(value, "`webhooks`: requests that the API sends do not pass the gateway");
    }
    Ok(conversion.finished())
}

/// An operation: one method of one path.
struct ApiOperation<'a> {
    path: &'a str,
    method: &'a str,
    item: &'a DocumentValue,
    operation: &'a DocumentValue,
}

impl ApiOperation<'_> {
    fn carry_over(&self, conversion: &mut DocumentConversion, ids: &mut HashSet<String>) {
        let ApiOperation { path, method, item, operation } = *self;
        let verb = method.to_ascii_uppercase();
        let (upstream, base) = servers::upstream_of(conversion, &[operation, item]);
        let uri = path::convert(&format!("{base}{path}"));
        let mut members: YamlMembers = vec![
            ("id".to_owned(), Yaml::text(self.id(ids))),
            ("uri".to_owned(), Yaml::text(uri.uri)),
            ("methods".to_owned(), Yaml::texts([&verb])),
        ];
        if let Some(pattern) = uri.pattern {
            members.push(("vars".to_owned(), Yaml::List(vec![Yaml::texts(["uri", "~~", &pattern])])));
        }
        let security = operation.get("security").or_else(|| conversion.root.get("security"));
        let plugins = match login::plugin(conversion, security) {
            Ok(login) => {
                members.push(("upstream_id".to_owned(), Yaml::text(upstream)));
                login.into_iter().chain(body::validation(conversion, item, operation)).collect()
            }
            Err(NotConvertible) => vec![login::refusal()],
        };
        if !plugins.is_empty() {
            members.push(("plugins".to_owned(), Yaml::Map(plugins)));
        }
        let what = [Some(verb.as_str()), Some(path), operation.text("summary")];
        let what = what.into_iter().flatten().collect::<Vec<_>>().join(" ");
        conversion.converted.routes.push(ConvertedResource::new(&conversion.place(operation), what, members));
    }

    /// The `operationId`, or an id from the method and path; made unique by a number.
    fn id(&self, ids: &mut HashSet<String>) -> String {
        let name = match self.operation.text("operationId") {
            Some(name) => name.to_owned(),
            None => format!("{}{}", self.method, self.path),
        };
        let is_allowed = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        let mut id = String::new();
        for char in name.chars().map(|char| if is_allowed(char) { char } else { '-' }) {
            if !(char == '-' && id.ends_with('-')) && id.len() < MAX_ID {
                id.push(char);
            }
        }
        let id = id.trim_end_matches('-').to_owned();
        let mut numbered = id.clone();
        let mut number = 1;
        while !ids.insert(numbered.clone()) {
            number += 1;
            numbered = format!("{id}-{number}");
        }
        numbered
    }
}

/// The most characters of an id without its number; an id may have 64.
const MAX_ID: usize = 58;

#[cfg(test)]
mod tests;
