//! Translates placeholders in braces to variables with a dollar sign.

/// The translation of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlaceholderText {
    /// A template of Weir, with dollar signs of the text escaped by a backslash.
    Template(String),
    /// The text contains this placeholder, which has no counterpart.
    Unknown(String),
}

/// Placeholders and the equivalent variables.
const SAME: &[(&str, &str)] = &[
    ("host", "$host"),
    ("http.request.host", "$host"),
    ("hostport", "$http_host"),
    ("http.request.hostport", "$http_host"),
    ("port", "$server_port"),
    ("http.request.port", "$server_port"),
    ("uri", "$request_uri"),
    ("http.request.uri", "$request_uri"),
    ("http.request.orig_uri", "$request_uri"),
    ("path", "$uri"),
    ("http.request.uri.path", "$uri"),
    ("query", "$args"),
    ("http.request.uri.query", "$args"),
    ("?query", "$is_args$args"),
    ("http.request.uri.prefixed_query", "$is_args$args"),
    ("method", "$request_method"),
    ("http.request.method", "$request_method"),
    ("scheme", "$scheme"),
    ("http.request.scheme", "$scheme"),
    ("http.request.proto", "$server_protocol"),
    ("remote", "$realip_remote_addr:$realip_remote_port"),
    ("http.request.remote", "$realip_remote_addr:$realip_remote_port"),
    ("remote_host", "$realip_remote_addr"),
    ("http.request.remote.host", "$realip_remote_addr"),
    ("client_ip", "$remote_addr"),
    ("remote_port", "$realip_remote_port"),
    ("http.request.remote.port", "$realip_remote_port"),
    ("http.request.uuid", "$request_id"),
    ("http.auth.user.id", "$remote_user"),
    ("tls_version", "$ssl_protocol"),
    ("http.request.tls.version", "$ssl_protocol"),
    ("tls_cipher", "$ssl_cipher"),
    ("http.request.tls.cipher_suite", "$ssl_cipher"),
    ("http.request.tls.server_name", "$ssl_server_name"),
    ("tls_client_subject", "$ssl_client_s_dn"),
    ("http.request.tls.client.subject", "$ssl_client_s_dn"),
    ("tls_client_issuer", "$ssl_client_i_dn"),
    ("http.request.tls.client.issuer", "$ssl_client_i_dn"),
    ("upstream_hostport", "$upstream_addr"),
    ("http.reverse_proxy.upstream.hostport", "$upstream_addr"),
    ("http.reverse_proxy.upstream.address", "$upstream_addr"),
    ("system.hostname", "$hostname"),
];

/// Prefixes of placeholders that contain a name from the request.
const NAMED: &[(&str, &str)] = &[
    ("header.", "$http_"),
    ("http.request.header.", "$http_"),
    ("query.", "$arg_"),
    ("http.request.uri.query.", "$arg_"),
    ("cookie.", "$cookie_"),
    ("http.request.cookie.", "$cookie_"),
];

/// Prefixes of the other placeholders of Caddy. Anything else in braces is plain text.
const KNOWN: &[&str] = &[
    "http.",
    "re.",
    "path.",
    "labels.",
    "vars.",
    "time.",
    "system.",
    "file.",
    "rp.",
    "err.",
    "tls_client_",
    "args",
    "block",
    "dir",
    "file",
    "%",
    "host.",
    "upstream",
];

/// Translates a text with placeholders.
pub(super) fn template(text: &str) -> PlaceholderText {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '$', '\\']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        if let Some(after) = from.strip_prefix("${{") {
            let end = after.find("}}").map_or(after.len(), |end| end + 2);
            out.push_str("${{");
            out.push_str(&after[..end]);
            rest = &after[end..];
        } else if let Some(after) = from.strip_prefix("\\{") {
            out.push('{');
            rest = after;
        } else if let Some(after) = from.strip_prefix('$') {
            out.push_str("\\$");
            rest = after;
        } else if let Some(after) = from.strip_prefix('\\') {
            out.push('\\');
            rest = after;
        } else {
            let after = &from[1..];
            let name = after.split('}').next().filter(|name| name.len() < after.len()).unwrap_or_default();
            match variable(name) {
                Some(Ok(variable)) => {
                    out.push_str(&delimited(variable, &after[name.len() + 1..]));
                    rest = &after[name.len() + 1..];
                }
                Some(Err(())) => return PlaceholderText::Unknown(name.to_owned()),
                None => {
                    out.push('{');
                    rest = after;
                }
            }
        }
    }
    PlaceholderText::Template(out + rest)
}

/// A template that yields the text itself.
pub(super) fn literal(text: &str) -> String {
    text.split("${{").map(|part| part.replace('$', "\\$")).collect::<Vec<_>>().join("${{")
}

/// Adds braces to a variable if the following text would be read as a part of its name.
fn delimited(variable: String, after: &str) -> String {
    let goes_on = after.starts_with(|char: char| char.is_ascii_alphanumeric() || char == '_');
    match variable.rfind('$') {
        Some(at) if goes_on => format!("{}${{{}}}", &variable[..at], &variable[at + 1..]),
        _ => variable,
    }
}

/// The variable of a placeholder; `None` if this is no placeholder, an error if it has no counterpart.
fn variable(name: &str) -> Option<Result<String, ()>> {
    if let Some((_, variable)) = SAME.iter().find(|(theirs, _)| *theirs == name) {
        return Some(Ok((*variable).to_owned()));
    }
    if let Some(name) = name.strip_prefix("env.") {
        return Some(Ok(format!("${{{{{name}}}}}")));
    }
    for (begin, ours) in NAMED {
        if let Some(field) = name.strip_prefix(begin) {
            let is_argument = *ours == "$arg_" || *ours == "$cookie_";
            let field = if is_argument { field.to_owned() } else { field_variable(field) };
            let is_name = field.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
            return Some(if is_name && !field.is_empty() { Ok(format!("{ours}{field}")) } else { Err(()) });
        }
    }
    let is_word = name.chars().all(|char| char.is_ascii_alphanumeric() || "._-[]:%".contains(char)) && !name.is_empty();
    (is_word && KNOWN.iter().any(|begin| name.starts_with(begin))).then_some(Err(()))
}

/// A header name as part of a variable's name.
pub(super) fn field_variable(field: &str) -> String {
    field.to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_variables() {
        for (text, template_text) in [
            ("https://{host}{uri}", "https://$host$request_uri"),
            ("{header.X-Tenant}-{http.request.uri.query.a}", "$http_x_tenant-$arg_a"),
            ("{host}s cost 5$", "${host}s cost 5\\$"),
            ("{\"ok\": true} \\{host}", "{\"ok\": true} {host}"),
            ("${{NAME:=a}}/{path}", "${{NAME:=a}}/$uri"),
            ("{env.NAME}", "${{NAME}}"),
            ("{", "{"),
        ] {
            assert_eq!(template(text), PlaceholderText::Template(template_text.to_owned()));
        }
        assert_eq!(template("a {labels.1}"), PlaceholderText::Unknown("labels.1".to_owned()));
    }
}
