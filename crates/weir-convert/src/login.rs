//! Security schemes of OpenAPI and AsyncAPI, as plugins that authenticate.

use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::yaml::{Yaml, YamlMembers};

/// The authentication that the definition requires cannot be converted; requests must not pass without it.
#[derive(Debug)]
pub(crate) struct NotConvertible;

pub(crate) type NamedPlugin = (String, Yaml);

/// The plugin for alternative security requirements, one of which must be met; `None` without requirements.
pub(crate) fn plugin(
    conversion: &mut DocumentConversion,
    requirements: Option<&DocumentValue>,
) -> Result<Option<NamedPlugin>, NotConvertible> {
    let Some(at) = requirements.filter(|requirements| !requirements.items().is_empty()) else { return Ok(None) };
    if at.items().iter().any(|alternative| alternative.members().is_empty()) {
        conversion.differs(at, "the login is optional; the gateway does not check it");
        return Ok(None);
    }
    let mut plugins = YamlMembers::new();
    for alternative in at.items() {
        match one(conversion, alternative) {
            Ok(plugin) if plugins.contains(&plugin) => {}
            Ok(plugin) => plugins.push(plugin),
            Err(why) => conversion.lost(alternative, format!("{why}; requests that rely on it are refused")),
        }
    }
    match plugins.len() {
        0 => Err(NotConvertible),
        1 => Ok(plugins.pop()),
        _ => {
            let plugins = plugins.into_iter().map(|plugin| Yaml::Map(vec![plugin])).collect();
            Ok(Some(("multi-auth".to_owned(), Yaml::map([("auth_plugins", Yaml::List(plugins))]))))
        }
    }
}

/// The response of a route whose authentication was not converted.
pub(crate) fn refusal() -> NamedPlugin {
    ("fault-injection".to_owned(), Yaml::map([("abort", Yaml::map([("http_status", Yaml::Integer(503))]))]))
}

/// Converts a requirement: a scheme by its name with the required scopes, or, in AsyncAPI 3, the scheme itself.
fn one(conversion: &mut DocumentConversion, alternative: &DocumentValue) -> Result<NamedPlugin, String> {
    let root = conversion.root;
    if let Some(pointer) = alternative.text("$ref") {
        let scheme = root.at_pointer(pointer).ok_or_else(|| format!("`{pointer}` is not in this document"))?;
        return of_scheme(conversion, pointer.rsplit('/').next().unwrap_or_default(), scheme);
    }
    if alternative.text("type").is_some() {
        return of_scheme(conversion, "the login", alternative);
    }
    let [(name, scopes)] = alternative.members() else {
        return Err("several logins at a time are not converted".to_owned());
    };
    let schemes = root.get("components").and_then(|components| components.get("securitySchemes"));
    let scheme = schemes.and_then(|schemes| schemes.get(name));
    let scheme = scheme.and_then(|scheme| scheme.text("$ref").map_or(Some(scheme), |to| root.at_pointer(to)));
    let scheme = scheme.ok_or_else(|| format!("`{name}` is not among `components.securitySchemes`"))?;
    if !scopes.items().is_empty() {
        conversion.lost(scopes, format!("the scopes of `{name}`: write a `consumer-restriction`"));
    }
    of_scheme(conversion, name, scheme)
}

fn of_scheme(conversion: &mut DocumentConversion, name: &str, scheme: &DocumentValue) -> Result<NamedPlugin, String> {
    // The API has checked the credential itself so far, and still does.
    let keeps = ("hide_credentials", Yaml::Boolean(false));
    let text = |member: &str| scheme.text(member).unwrap_or_default().to_ascii_lowercase();
    let (plugin, options) = match (text("type").as_str(), text("scheme").as_str(), text("in").as_str()) {
        ("apikey" | "httpapikey", _, place @ ("header" | "query")) => {
            let key = scheme.text("name").ok_or_else(|| format!("`{name}` has no `name`"))?;
            ("key-auth", Yaml::map([(place, Yaml::text(key)), keeps]))
        }
        ("http", "basic", _) | ("userpassword", ..) => ("basic-auth", Yaml::map([keeps])),
        ("http", "bearer", _) => ("jwt-auth", Yaml::map([keeps])),
        ("openidconnect" | "oauth2", ..) => {
            return Err(format!("`{name}`: write `openid-connect` with the data of your client at the provider"));
        }
        (kind, ..) => return Err(format!("`{name}`: a login of the type `{kind}` is not converted")),
    };
    conversion.lost(scheme, format!("`{name}`: a definition has no credentials; add `consumers` with `{plugin}`"));
    Ok((plugin.to_owned(), options))
}
