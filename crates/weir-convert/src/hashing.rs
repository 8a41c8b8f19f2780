//! Consistent hashing, as members of an upstream.

use crate::yaml::{Yaml, YamlMembers};

/// Variables that `hash_on: vars` accepts, besides `arg_NAME`.
const VARIABLES: [&str; 9] = [
    "uri",
    "server_name",
    "server_addr",
    "request_uri",
    "remote_port",
    "remote_addr",
    "query_string",
    "host",
    "hostname",
];

/// `chash` by a variable, given without its dollar sign.
pub(crate) fn hashed(variable: &str) -> YamlMembers {
    let header = variable.strip_prefix("http_").map(|name| name.replace('_', "-"));
    let (kind, key) = match (header, variable.strip_prefix("cookie_"), variable) {
        (Some(header), ..) => ("header", Some(header)),
        (_, Some(cookie), _) => ("cookie", Some(cookie.to_owned())),
        (.., "consumer_name") => ("consumer", None),
        (.., "binary_remote_addr") => ("vars", Some("remote_addr".to_owned())),
        _ if VARIABLES.contains(&variable) || variable.starts_with("arg_") => ("vars", Some(variable.to_owned())),
        _ => ("vars_combinations", Some(format!("${variable}"))),
    };
    let mut members = vec![("type".to_owned(), Yaml::text("chash")), ("hash_on".to_owned(), Yaml::text(kind))];
    members.extend(key.map(|key| ("key".to_owned(), Yaml::Text(key))));
    members
}

/// `chash` by a text with variables.
pub(crate) fn hashed_text(text: &str) -> YamlMembers {
    let members = [("type", "chash"), ("hash_on", "vars_combinations"), ("key", text)];
    members.map(|(name, value)| (name.to_owned(), Yaml::text(value))).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_variable_has_its_kind_of_key() {
        let told = |variable| match hashed(variable).as_slice() {
            [_, (_, Yaml::Text(kind)), (_, Yaml::Text(key))] => format!("{kind} {key}"),
            [_, (_, Yaml::Text(kind))] => kind.clone(),
            _ => String::new(),
        };
        let variables = ["remote_addr", "arg_user", "http_x_user", "cookie_id", "consumer_name", "scheme"];
        let kinds = [
            "vars remote_addr",
            "vars arg_user",
            "header x-user",
            "cookie id",
            "consumer",
            "vars_combinations $scheme",
        ];
        assert_eq!(variables.map(told), kinds);
    }
}
