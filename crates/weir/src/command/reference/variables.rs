//! docs/reference/variables.md: the variables for conditions and text templates.

use std::fmt::Write as _;

use weir_plugin::variable::FIXED;

const HEAD: &str = "\
# Variables

Written by `cargo xtask docs` from the program. Conditions (`vars` of routes and plugins, `_meta.filter`) use the names as
listed here. Text templates (`enable_access_log`, `log_format`, many options of plugins) use the names with a dollar sign:
`$remote_addr`, `${remote_addr}`, `${arg_a ?? none}`; `\\$` is a literal dollar sign. The names are the same as in nginx and
Apache APISIX; `error_cause` exists only in Weir.

A variable without a value is empty in text templates, `-` in lines of the access log, and `null` in conditions. The request
body has not been read when routes and plugins are selected, so a condition with a variable of the request body is rejected.

| variable | value |
|---|---|
";

/// Variables with a prefix and a free name.
const PREFIXED: [(&str, &str); 7] = [
    ("arg_NAME", "The first value of a query argument, decoded. The name is case-sensitive."),
    ("http_NAME", "A request header; the name in lower case and with `_` instead of `-`: `http_user_agent`."),
    ("cookie_NAME", "The value of a cookie."),
    ("sent_http_NAME", "A response header."),
    ("upstream_http_NAME", "The same as `sent_http_NAME`, including changes that plugins made to the header."),
    ("post_arg_NAME", "The first value of a form field, if the request body was read; for log records."),
    ("1`, `2", "A capture group of the regular expression that the plugin has matched."),
];

/// Variables of Apache APISIX that never have a value here, since they come from the body.
const NEVER: [&str; 3] = ["graphql_name", "graphql_operation", "graphql_root_fields"];

/// The page in Markdown.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for (names, meaning) in FIXED.iter().filter(|(names, _)| !NEVER.contains(&names[0])) {
        row(&names.join("`, `"), meaning.trim(), &mut page);
    }
    for (name, meaning) in PREFIXED {
        row(name, meaning, &mut page);
    }
    page
}

fn row(name: &str, meaning: &str, page: &mut String) {
    let _ = writeln!(page, "| `{name}` | {meaning} |");
}
