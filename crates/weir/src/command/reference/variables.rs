//! docs/reference/variables.md: the names that conditions and texts may use.

use std::fmt::Write as _;

use weir_plugin::variable::FIXED;

const HEAD: &str = "\
# Variables

Written by `cargo xtask docs` from the program. Conditions (`vars` of routes and plugins, `_meta.filter`) use the names as they
stand here, and texts (`enable_access_log`, `log_format`, many options of plugins) with a dollar sign: `$remote_addr`,
`${remote_addr}`, `${arg_a ?? none}`; `\\$` is a dollar sign. The names are those of nginx and Apache APISIX; `error_cause` is
ours.

A variable that has no value is missing: empty in texts, `-` in lines of the access log, `null` for conditions. What lies within
the body of a request is not known where routes and plugins are chosen by it, so a condition that asks for it is refused.

| variable | value |
|---|---|
";

/// Those that are made of a prefix and a name.
const PREFIXED: [(&str, &str); 7] = [
    ("arg_NAME", "The first value of a query argument, decoded. Upper and lower case differ."),
    ("http_NAME", "A field of the request, in lower case and with `_` for `-`: `http_user_agent`."),
    ("cookie_NAME", "The value of a cookie."),
    ("sent_http_NAME", "A field of the response."),
    ("upstream_http_NAME", "The same; what plugins have changed since is not told apart."),
    ("post_arg_NAME", "The first value of a field of a form, where the body was read: in records."),
    ("1`, `2", "A group of the regular expression that the plugin has matched."),
];

/// What Apache APISIX has besides, always within a body.
const NEVER: [&str; 3] = ["graphql_name", "graphql_operation", "graphql_root_fields"];

/// The page.
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
