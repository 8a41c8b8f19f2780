//! `proxy_cache` and the directives with it, as `proxy-cache`.

use super::Conversion;
use super::scope::{BlockScope, seconds};
use super::syntax::Directive;
use crate::yaml::Yaml;

/// For how long nginx keeps what is not used, unless `inactive` of the zone says otherwise: the limit of `proxy_cache_use_stale`.
const INACTIVE: f64 = 600.0;
/// The statuses of an upstream for which `stale_if_error` holds.
const STALE_FOR: [&str; 4] = ["500", "502", "503", "504"];
/// The statuses of `proxy_cache_valid` without statuses.
const VALID: [i64; 3] = [200, 301, 302];

/// The plugin for the directives in effect at this place.
pub(super) fn plugin(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let cache = scope.last("proxy_cache").filter(|cache| cache.argument(0) != "off")?;
    if cache.argument(0).contains('$') {
        conversion.lost(&cache.place, format!("`{}`: the name of a zone cannot have variables", cache.head()));
        return None;
    }
    if let Some(path) = path_of(conversion, cache.argument(0)) {
        let text = format!(
            "`{}`: responses are kept in memory; `plugin_metadata` of `proxy-cache` has the sizes of zones",
            path.head()
        );
        conversion.differs(&path.place, text);
    }
    let mut options = vec![("cache_zone".to_owned(), Yaml::text(cache.argument(0)))];
    options.extend(lifetime(conversion, scope, cache));
    for (name, option) in
        [("proxy_cache_key", "cache_key"), ("proxy_cache_bypass", "cache_bypass"), ("proxy_no_cache", "no_cache")]
    {
        match texts(conversion, scope, name) {
            Ok(texts) => options.extend(texts.map(|texts| (option.to_owned(), texts))),
            Err(UnknownVariable) => return None,
        }
    }
    methods(conversion, scope);
    options.extend(stale(conversion, scope, cache.argument(0)));
    if let Some(timeout) = scope.value("proxy_cache_lock_timeout").and_then(whole_seconds) {
        options.push(("cache_lock_timeout".to_owned(), Yaml::Integer(timeout)));
    }
    Some(("proxy-cache".to_owned(), Yaml::Map(options)))
}

fn whole_seconds(time: &str) -> Option<i64> {
    seconds(time).map(|seconds| seconds.ceil() as i64)
}

/// `proxy_cache_valid`: statuses, and a time for each. The plugin has one time for all.
fn lifetime(conversion: &mut Conversion, scope: &BlockScope, cache: &Directive) -> Vec<(String, Yaml)> {
    let valid = scope.all("proxy_cache_valid");
    let (mut statuses, mut times) = (Vec::new(), Vec::new());
    for directive in &valid {
        let Some((time, codes)) = directive.arguments.split_last() else { continue };
        times.extend(whole_seconds(time).filter(|time| *time > 0));
        if codes.is_empty() {
            statuses.extend(VALID);
        }
        for code in codes {
            match code.parse() {
                Ok(code) if whole_seconds(time) != Some(0) => statuses.push(code),
                Ok(_) => {}
                Err(_) => {
                    let text = format!("`{}`: name the statuses in `cache_http_status`", directive.head());
                    conversion.lost(&directive.place, text);
                }
            }
        }
    }
    times.sort_unstable();
    times.dedup();
    let mut options = Vec::new();
    match &*times {
        [] => {
            let text =
                "responses that say nothing about their lifetime are kept for a second; nginx does not keep them";
            conversion.differs(&cache.place, text);
            options.push(("cache_ttl".to_owned(), Yaml::Integer(1)));
        }
        [shortest, others @ ..] => {
            if !others.is_empty() {
                let text =
                    format!("`proxy_cache_valid`: one lifetime holds for all statuses, the shortest: {shortest} s");
                conversion.differs(&valid[0].place, text);
            }
            options.push(("cache_ttl".to_owned(), Yaml::Integer(*shortest)));
        }
    }
    statuses.sort_unstable();
    statuses.dedup();
    if !statuses.is_empty() {
        let statuses = statuses.into_iter().map(Yaml::Integer).collect();
        options.push(("cache_http_status".to_owned(), Yaml::List(statuses)));
    }
    options
}

/// A text has a variable that Weir has not. Without it, responses could be kept that are not for all clients.
struct UnknownVariable;

/// The arguments of a directive as texts with variables.
fn texts(conversion: &mut Conversion, scope: &BlockScope, name: &str) -> Result<Option<Yaml>, UnknownVariable> {
    let Some(directive) = scope.last(name) else { return Ok(None) };
    // The upstream follows from the request.
    let texts: Vec<String> = directive.arguments.iter().map(|text| text.replace("$proxy_host", "$host")).collect();
    for text in &texts {
        if let Some(unknown) = super::variables::unknown_in_answer(text) {
            let lost = format!("`{}`: Weir has no variable `${unknown}`; nothing is kept in a cache", directive.head());
            conversion.lost(&directive.place, lost);
            return Err(UnknownVariable);
        }
    }
    Ok(Some(Yaml::texts(texts)))
}

/// `proxy_cache_methods`: nginx adds GET and HEAD, which are the plugin's own, to every list.
fn methods(conversion: &mut Conversion, scope: &BlockScope) {
    let Some(directive) = scope.last("proxy_cache_methods") else { return };
    if directive.arguments.iter().any(|method| !["GET", "HEAD"].contains(&method.as_str())) {
        let text = format!("`{}`: only responses to GET and HEAD are kept", directive.head());
        conversion.lost(&directive.place, text);
    }
}

/// The `proxy_cache_path` of a zone.
fn path_of<'a>(conversion: &Conversion<'a>, zone: &str) -> Option<&'a Directive> {
    let is_zone =
        |argument: &String| argument.strip_prefix("keys_zone=").and_then(|zone| zone.split(':').next()) == Some(zone);
    let mut paths = conversion.http.iter().filter(|directive| directive.name == "proxy_cache_path");
    paths.find(|path| path.arguments.iter().any(is_zone))
}

/// `proxy_cache_use_stale`: in the plugin, a time for each use.
fn stale(conversion: &mut Conversion, scope: &BlockScope, zone: &str) -> Vec<(String, Yaml)> {
    let Some(directive) = scope.last("proxy_cache_use_stale") else { return Vec::new() };
    let has = |names: &[&str]| directive.arguments.iter().any(|argument| names.contains(&argument.as_str()));
    let inactive = path_of(conversion, zone)
        .and_then(|path| path.arguments.iter().find_map(|argument| argument.strip_prefix("inactive=")))
        .and_then(seconds);
    let time = Yaml::Integer(inactive.unwrap_or(INACTIVE).ceil() as i64);
    let mut options = Vec::new();
    if has(&["error", "timeout", "invalid_header", "http_500", "http_502", "http_503", "http_504"]) {
        options.push(("stale_if_error".to_owned(), time.clone()));
        let more: Vec<&str> = STALE_FOR.into_iter().filter(|status| !has(&[&format!("http_{status}")])).collect();
        if !more.is_empty() {
            let text = format!(
                "`{}`: old responses are also used if the upstream answers with {}",
                directive.head(),
                more.join(", ")
            );
            conversion.lost(&directive.place, text);
        }
    }
    if has(&["updating"]) {
        options.push(("stale_while_revalidate".to_owned(), time));
    }
    if has(&["http_403", "http_404", "http_429"]) {
        let text = format!("`{}`: old responses are used for 500, 502, 503 and 504 only", directive.head());
        conversion.lost(&directive.place, text);
    }
    options
}
