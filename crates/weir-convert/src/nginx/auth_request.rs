//! `auth_request`, as `forward-auth`: a service is asked whether a request may pass.

use super::Conversion;
use super::directives::is_off;
use super::scope::{BlockScope, seconds};
use super::sign_in;
use super::subrequest;
use super::syntax::Directive;
use super::target::PassTarget;
use super::values::is_editable;
use super::variables::{is_of_path, names, unknown_in_request};
use crate::yaml::{Yaml, YamlMembers};

pub(super) const AUTH_REQUEST: &str = "auth_request";

/// The longest time-out of `forward-auth`, in seconds.
const MOST_TIMEOUT: f64 = 60.0;

/// A directive whose service cannot be asked: how it is reached cannot be converted.
pub(super) struct NotAsked<'a>(pub &'a Directive);

/// The plugin for the directive in effect.
pub(super) fn plugin<'a>(
    conversion: &mut Conversion,
    scope: &BlockScope<'a>,
) -> Result<Option<(String, Yaml)>, NotAsked<'a>> {
    let Some(directive) = in_effect(scope) else { return Ok(None) };
    let asked = subrequest::location(scope.server(), directive.argument(0)).ok_or(NotAsked(directive))?;
    let (uri, is_https) = url(conversion, asked, directive.argument(0)).ok_or(NotAsked(directive))?;
    let inside = scope.of_server().inside(asked.children());
    let extra = extra_fields(conversion, &inside).ok_or(NotAsked(directive))?;
    let text = format!(
        "`{}`: every status of the service from 300 on is a refusal, and is answered with the body of the service; nginx \
         answers with 500 to all but 401 and 403",
        directive.head()
    );
    conversion.differs(&directive.place, text);
    let timeout =
        inside.value("proxy_read_timeout").and_then(seconds).unwrap_or(MOST_TIMEOUT).clamp(0.001, MOST_TIMEOUT);
    let mut options = vec![
        ("uri".to_owned(), Yaml::text(uri)),
        ("request_headers".to_owned(), Yaml::texts(["*"])),
        ("client_headers".to_owned(), Yaml::texts(["WWW-Authenticate"])),
        ("timeout".to_owned(), Yaml::number(timeout * 1_000.0)),
        ("status_on_error".to_owned(), Yaml::Integer(500)),
    ];
    let lists = [
        ("extra_headers", Yaml::Map(extra)),
        ("upstream_headers", Yaml::texts(sent(scope, "proxy_set_header"))),
        ("client_headers_on_success", Yaml::texts(sent(scope, "add_header"))),
    ];
    options.extend(lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| (name.to_owned(), list)));
    options.extend(sign_in::options(conversion, scope));
    if is_https {
        options.push(("ssl_verify".to_owned(), Yaml::Boolean(inside.is_on("proxy_ssl_verify"))));
    }
    Ok(Some(("forward-auth".to_owned(), Yaml::Map(options))))
}

fn in_effect<'a>(scope: &BlockScope<'a>) -> Option<&'a Directive> {
    scope.last(AUTH_REQUEST).filter(|directive| !is_off(directive))
}

/// The URL that the location asks, and whether it is an `https` one.
fn url(conversion: &Conversion, location: &Directive, uri: &str) -> Option<(String, bool)> {
    let pass = location.children().iter().find(|child| child.name == "proxy_pass")?;
    let target =
        PassTarget::of(pass).filter(|target| target.scheme.starts_with("http") && !pass.argument(0).contains('$'))?;
    let path = subrequest::path(&target, location, uri);
    let authority = subrequest::authority(conversion, &target)?;
    Some((format!("{}://{authority}{path}", target.scheme), target.scheme == "https"))
}

/// What the location sets for the service, without what the gateway sends anyway. `None` if the service would get a field of the client
/// that nginx removes or replaces: it could let in what it would refuse.
fn extra_fields(conversion: &mut Conversion, inside: &BlockScope) -> Option<YamlMembers> {
    let mut fields = YamlMembers::new();
    for directive in inside.all("proxy_set_header") {
        let (name, value) = (directive.argument(0), directive.argument(1));
        let sent_anyway = [
            ("host", "$proxy_host"),
            ("x-forwarded-for", "$proxy_add_x_forwarded_for"),
            ("x-forwarded-proto", "$scheme"),
        ];
        if !is_editable(name) || sent_anyway.contains(&(name.to_ascii_lowercase().as_str(), value)) {
            continue;
        }
        let is_host = name.eq_ignore_ascii_case("host");
        if is_host || value.is_empty() || unknown_in_request(value).is_some() {
            let text = format!("`{}`: `forward-auth` cannot send it so to the service", directive.head());
            conversion.lost(&directive.place, text);
            match is_host {
                true => continue,
                false => return None,
            }
        }
        fields.push((name.to_owned(), Yaml::text(value)));
    }
    Some(fields)
}

/// Fields that `forward-auth` writes itself, after all others.
const WRITTEN: [&str; 5] =
    ["x-forwarded-for", "x-forwarded-host", "x-forwarded-method", "x-forwarded-proto", "x-forwarded-uri"];

/// Whether the service would see changes for the upstream, which nginx makes after it has asked. `options`: those of `forward-auth`;
/// `changes`: those of `proxy-rewrite`.
pub(super) fn sees(options: &Yaml, changes: &YamlMembers) -> bool {
    let extra = options.member("extra_headers").map(Yaml::members).unwrap_or_default();
    let own: Vec<String> = extra.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let uses = |is_it: &dyn Fn(&str) -> bool| {
        extra.iter().any(|(_, value)| matches!(value, Yaml::Text(text) if names(text).any(is_it)))
    };
    changes.iter().any(|(option, value)| match option.as_str() {
        "headers" => changed_fields(value).into_iter().any(|name| {
            let name = name.to_ascii_lowercase();
            let variable = format!("http_{}", name.replace('-', "_"));
            let is_own = own.contains(&name) || WRITTEN.contains(&name.as_str());
            !is_own || uses(&|used| used == variable || name == "cookie" && used.starts_with("cookie_"))
        }),
        "method" => uses(&|used| used == "request_method"),
        "uri" | "regex_uri" => uses(&is_of_path),
        _ => false,
    })
}

/// The names of the fields that `headers` of `proxy-rewrite` sets or removes.
fn changed_fields(headers: &Yaml) -> Vec<&str> {
    let set = headers.member("set").map(Yaml::members).unwrap_or_default().iter().map(|(name, _)| name.as_str());
    let removed = headers.member("remove").map(Yaml::items).unwrap_or_default().iter();
    set.chain(removed.filter_map(|name| if let Yaml::Text(name) = name { Some(name.as_str()) } else { None })).collect()
}

/// The names of fields that directives of a kind take from the service's response, under the same name.
fn sent<'a>(scope: &BlockScope<'a>, kind: &str) -> Vec<&'a str> {
    let lines = scope.all(kind).into_iter();
    lines.filter(|line| is_sent(scope, line.argument(0), line.argument(1))).map(|line| line.argument(0)).collect()
}

/// Whether the value of a field is that of the service's field of the same name, which `forward-auth` sends.
pub(super) fn is_sent(scope: &BlockScope, name: &str, value: &str) -> bool {
    let variable = format!("$upstream_http_{}", name.to_ascii_lowercase().replace('-', "_"));
    let sets = |directive: &&Directive| directive.argument(0) == value && directive.argument(1) == variable;
    value.starts_with('$') && in_effect(scope).is_some() && scope.all("auth_request_set").iter().any(sets)
}

/// Whether a location is asked by one of the blocks of a server.
pub(super) fn is_asked(server: &[Directive], location: &Directive) -> bool {
    subrequest::is_named(server, location, AUTH_REQUEST)
}
