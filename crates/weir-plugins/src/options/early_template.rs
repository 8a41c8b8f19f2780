//! Templates whose values are needed before the content of a request is read.

use weir_plugin::{ConfigError, Template};

/// A service is asked before the content of the request is read, so a value of the content would always be empty.
///
/// # Errors
/// The template has such a value.
pub(crate) fn needs_no_content(template: &Template, path: &str) -> Result<(), ConfigError> {
    let is_of_content = |name: &String| name.starts_with("post_arg") || name.starts_with("graphql_");
    match template.variables().map(ToString::to_string).find(is_of_content) {
        None => Ok(()),
        Some(name) => Err(ConfigError::new(
            path,
            format!(
                "uses `${name}`, and the content of the request cannot be in it when the service is asked; \
                 let the service get the content itself"
            ),
        )),
    }
}
