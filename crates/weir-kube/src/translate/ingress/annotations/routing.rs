//! Paths and hosts.

use super::{Annotation, Given, IngressSettings, NEEDED, OPTIONAL, Reads, Refused, Served, annotation};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "use-regex",
        Reads::Flag,
        Served(use_regex),
        NEEDED,
        "PathConditions on the path: all paths of the host are regular expressions, which ignore case and begin at the start of the \
         path; the longest is tried first. Look-around and back-references are refused.",
    ),
    annotation(
        "rewrite-target",
        Reads::Text,
        Served(rewrite_target),
        NEEDED,
        "`proxy-rewrite.regex_uri` with the path of the rule as the expression. The whole path is replaced. All paths of the host \
         become regular expressions, as with `use-regex`.",
    ),
    annotation(
        "server-alias",
        Reads::List,
        Served(server_alias),
        OPTIONAL,
        "Further `hosts`, with all paths of the host. Those of the oldest Ingress of the host that has any are used.",
    ),
    annotation("app-root", Reads::Text, Served(app_root), OPTIONAL, "A route for `/` with `redirect`, 302."),
    annotation(
        "ssl-passthrough",
        Reads::Flag,
        Refused,
        NEEDED,
        "TLS of an Ingress ends at the gateway. Use a TLSRoute, or a stream route.",
    ),
];

fn use_regex(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    settings.is_regex |= given.flag("use-regex", false);
    Ok(())
}

fn rewrite_target(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let target = given.text("rewrite-target").unwrap_or_default();
    if target.is_empty() {
        return Ok(());
    }
    if !target.starts_with('/') && !target.starts_with('$') {
        return Err(format!("`{target}` is not a path"));
    }
    settings.is_regex = true;
    settings.rewrite_target = Some(target.to_owned());
    Ok(())
}

fn server_alias(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let text = given.text("server-alias").unwrap_or_default();
    let names = text.split([',', ' ']).filter(|name| !name.is_empty());
    settings.aliases = names.map(str::to_ascii_lowercase).collect();
    match settings.aliases.iter().find(|name| name.starts_with('~')) {
        Some(name) => {
            let name = name.clone();
            settings.aliases.retain(|alias| *alias != name);
            Err(format!("`{name}`: a host cannot be a regular expression"))
        }
        None => Ok(()),
    }
}

fn app_root(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let root = given.text("app-root").unwrap_or_default();
    if !root.starts_with('/') {
        return Err(format!("`{root}` is not a path"));
    }
    settings.app_root = Some(root.to_owned());
    Ok(())
}
