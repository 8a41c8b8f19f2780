//! Directives that limit, refuse, compress or change messages, as plugins.

use weir_plugin::ResponseRate;

use super::access;
use super::auth_request;
use super::compression;
use super::conditions;
use super::headers_more::{self, HeaderFieldChange};
use super::scope::seconds;
use super::scope::{BlockScope, bytes};
use super::substitution;
use super::syntax::Directive;
use super::tracing;
use super::values::{FieldValues, NOT_EDITABLE, is_editable};
use super::variables::{names, renamed, unknown_in_answer, unknown_in_request};
use super::{Conversion, LimitedBlock};
use crate::yaml::{Yaml, YamlMembers};

/// nginx's default limit of a body.
const BODY_SIZE: &str = "1m";

/// The plugins for the directives in effect at this place.
pub(super) fn plugins(conversion: &mut Conversion, scope: &BlockScope) -> YamlMembers {
    let access = access::plugins(conversion, scope);
    with_access(conversion, access, scope, scope)
}

/// The same for a location whose `try_files` leaves all requests to a named location: nginx has controlled their access, and
/// limited them, before.
pub(super) fn behind_files(
    conversion: &mut Conversion,
    location: &BlockScope,
    named: &BlockScope,
    files: &Directive,
) -> YamlMembers {
    let access = access::of_both(conversion, location, named, files);
    with_access(conversion, access, location, named)
}

/// The plugins, those for access among them. `first`: the place whose limits of requests apply if it has any.
fn with_access(
    conversion: &mut Conversion,
    access: YamlMembers,
    first: &BlockScope,
    scope: &BlockScope,
) -> YamlMembers {
    let mut plugins = access;
    let limiting = |name: &str| if first.all(name).is_empty() { scope } else { first };
    plugins.extend(body_size(conversion, scope));
    plugins.extend(rate(conversion, limiting("limit_req")));
    plugins.extend(concurrent(conversion, limiting("limit_conn")));
    plugins.extend(response_rate(conversion, scope));
    let fields = fields(conversion, scope);
    plugins.extend(substitution::with_filters(conversion, scope, fields));
    plugins.extend(compression::plugins(conversion, scope));
    plugins.extend(tracing::plugin(conversion, scope));
    plugins.extend(super::caching::plugin(conversion, scope));
    plugins.extend(super::mirroring::plugin(conversion, scope));
    plugins.extend(super::echo::plugin(conversion, scope));
    plugins.extend(super::error_pages::plugin(scope));
    plugins
}

/// The limit of the node for bodies: the largest of all servers and locations, since a route can only have a smaller one.
pub(super) fn body_size_of_node<'a>(conversion: &Conversion<'a>) -> &'a str {
    let mut sizes = vec![conversion.scope().value("client_max_body_size").unwrap_or(BODY_SIZE)];
    collect_body_sizes(conversion.http, &mut sizes);
    // 0 is no limit.
    let size = |text: &&str| bytes(text).map_or(0, |size| if size == 0 { i64::MAX } else { size });
    sizes.into_iter().max_by_key(size).unwrap_or(BODY_SIZE)
}

fn collect_body_sizes<'a>(directives: &'a [Directive], sizes: &mut Vec<&'a str>) {
    for directive in directives {
        if directive.name == "client_max_body_size" {
            sizes.push(directive.argument(0));
        }
        collect_body_sizes(directive.children(), sizes);
    }
}

/// The limit of the body, if it differs from the node's.
fn body_size(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let of_node = body_size_of_node(conversion);
    let here = scope.value("client_max_body_size").unwrap_or(BODY_SIZE);
    let size = bytes(here).filter(|_| here != of_node)?;
    Some(("client-control".to_owned(), Yaml::map([("max_body_size", Yaml::Integer(size))])))
}

/// The definition of a limit's zone, with its key and parameters.
fn zone<'a>(conversion: &Conversion<'a>, kind: &str, name: &str) -> Option<&'a Directive> {
    let is_it = |directive: &&Directive| {
        let zone = directive.arguments.iter().find_map(|argument| argument.strip_prefix("zone="));
        directive.name == kind && zone.is_some_and(|zone| zone.split(':').next() == Some(name))
    };
    conversion.http.iter().find(is_it)
}

/// What the requests of a limit are counted by.
struct ConvertedKey {
    /// The options `key_type` and `key`.
    options: [(&'static str, Yaml); 2],
    /// The limit holds for requests that meet these rules; nginx does not limit one whose key is empty.
    filter: Vec<Yaml>,
}

impl ConvertedKey {
    fn meta(self) -> Option<(&'static str, Yaml)> {
        let filter = Some(self.filter).filter(|rules| !rules.is_empty());
        filter.map(|rules| ("_meta", Yaml::map([("filter", Yaml::List(rules))])))
    }
}

/// Tells how a limit of a zone counts if another route has one, too: of another place, or of the same.
fn tell_apart(conversion: &mut Conversion, zone: &Directive, limit: &Directive, scope: &BlockScope) {
    let block = scope.innermost().as_ptr();
    let before = conversion.limited.iter().filter(|limited| limited.zone == zone.place);
    let (same, others): (Vec<_>, Vec<_>) = before.partition(|limited| limited.block == block);
    let (has_same, has_others) = (!same.is_empty(), !others.is_empty());
    if has_same {
        let text = format!(
            "`{}`: this place becomes several routes, such as one with its hosts and one without; each has the limit for itself, so a \
             client may use it in each of them",
            limit.head()
        );
        conversion.differs(&limit.place, text);
    }
    if has_others {
        let text =
            format!("`{}`: the limit holds for each route that has it; the routes do not count together", zone.head());
        conversion.differs(&zone.place, text);
    }
    conversion.limited.push(LimitedBlock { zone: zone.place.clone(), block });
}

/// The key of a limit with this zone.
fn key(conversion: &mut Conversion, zone: &Directive) -> ConvertedKey {
    let written = zone.argument(0);
    let of_map = written.strip_prefix('$').and_then(|name| conditions::only_value(conversion, name, zone));
    let (written, mut filter) = match of_map {
        Some((value, condition)) if !condition.is_never => (value, condition.rules),
        _ => (written.to_owned(), Vec::new()),
    };
    let text = written.replace("$binary_remote_addr", "$remote_addr");
    let text = text.replace("${binary_remote_addr}", "${remote_addr}");
    let unknown = unknown_in_request(&text);
    if let Some(unknown) = unknown {
        let empty = match filter.is_empty() {
            true => ", also where the key of nginx is empty, which means no limit",
            false => "",
        };
        let text = format!(
            "`{}`: Weir has no variable `${unknown}`; the limit holds for each client address{empty}",
            zone.head()
        );
        conversion.lost(&zone.place, text);
    }
    if unknown.is_none() {
        filter.extend(not_empty(&text));
    }
    let bare = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).or(text.strip_prefix('$'));
    let is_name = |name: &&str| name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
    let options = match bare.filter(is_name) {
        Some(name) => [("key_type", Yaml::text("var")), ("key", Yaml::text(name))],
        None => [("key_type", Yaml::text("var_combination")), ("key", Yaml::text(text))],
    };
    ConvertedKey { options, filter }
}

/// The rule that a text with variables is not empty; `None` if it never is.
fn not_empty(text: &str) -> Option<Yaml> {
    let names: Vec<&str> = names(text).collect();
    let of_variables: usize = names.iter().map(|name| name.len() + 1).sum();
    let has_more = text.chars().filter(|char| !['{', '}'].contains(char)).count() > of_variables;
    let has_value = |name: &&str| NEVER_EMPTY.contains(&format!("${name}").as_str());
    if names.is_empty() || has_more || names.iter().any(has_value) {
        return None;
    }
    let mut rules: Vec<Yaml> = names.iter().map(|name| Yaml::texts([*name, "~~", "."])).collect();
    if rules.len() == 1 {
        return rules.pop();
    }
    rules.insert(0, Yaml::text("OR"));
    Some(Yaml::List(rules))
}

fn rejected(scope: &BlockScope, name: &str) -> Yaml {
    Yaml::Integer(scope.value(name).and_then(|code| code.parse().ok()).unwrap_or(503))
}

fn rate(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    if scope.is_on("limit_req_dry_run") {
        return None;
    }
    let limits = scope.all("limit_req");
    let (limit, others) = limits.split_first()?;
    for other in others {
        conversion.lost(&other.place, format!("`{}`: a route can have only one limit of this kind", other.head()));
    }
    let parameter = |name: &str| limit.arguments.iter().find_map(|argument| argument.strip_prefix(name));
    let zone = zone(conversion, "limit_req_zone", parameter("zone=")?);
    let written = zone.and_then(|zone| zone.arguments.iter().find_map(|argument| argument.strip_prefix("rate=")));
    let Some((zone, rate)) = zone.zip(written.and_then(a_second)) else {
        conversion
            .lost(&limit.place, format!("`{}`: there is no `limit_req_zone` of this name with a rate", limit.head()));
        return None;
    };
    tell_apart(conversion, zone, limit, scope);
    let key = key(conversion, zone);
    let burst = parameter("burst=").and_then(|burst| burst.parse().ok()).unwrap_or(0);
    if let Some(delay) = limit.arguments.iter().find(|argument| argument.starts_with("delay=")) {
        let text = format!("`{}`: with `{delay}`, no request of the burst is delayed", limit.head());
        conversion.differs(&limit.place, text);
    }
    let is_nodelay = limit.arguments.iter().any(|argument| argument == "nodelay" || argument.starts_with("delay="));
    let mut options = vec![("rate", Yaml::number(rate)), ("burst", Yaml::Integer(burst))];
    options.extend(key.options.clone());
    if is_nodelay {
        options.push(("nodelay", Yaml::Boolean(true)));
    }
    options.push(("rejected_code", rejected(scope, "limit_req_status")));
    options.extend(key.meta());
    let options = options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Some(("limit-req".to_owned(), Yaml::Map(options)))
}

/// Requests per second of `10r/s` or `30r/m`.
fn a_second(rate: &str) -> Option<f64> {
    if let Some(rate) = rate.strip_suffix("r/s") {
        rate.parse().ok()
    } else {
        Some(rate.strip_suffix("r/m")?.parse::<f64>().ok()? / 60.0)
    }
}

fn concurrent(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    if scope.is_on("limit_conn_dry_run") {
        return None;
    }
    let limits = scope.all("limit_conn");
    let (limit, others) = limits.split_first()?;
    for other in others {
        conversion.lost(&other.place, format!("`{}`: a route can have only one limit of this kind", other.head()));
    }
    let zone = zone(conversion, "limit_conn_zone", limit.argument(0));
    let Some((zone, count)) = zone.zip(limit.argument(1).parse().ok()) else {
        conversion.lost(&limit.place, format!("`{}`: there is no `limit_conn_zone` of this name", limit.head()));
        return None;
    };
    tell_apart(conversion, zone, limit, scope);
    let key = key(conversion, zone);
    let mut options =
        vec![("conn", Yaml::Integer(count)), ("burst", Yaml::Integer(0)), ("default_conn_delay", Yaml::Decimal(0.1))];
    options.extend(key.options.clone());
    options.push(("rejected_code", rejected(scope, "limit_conn_status")));
    options.extend(key.meta());
    let options = options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Some(("limit-conn".to_owned(), Yaml::Map(options)))
}

/// The rate of a response, in bytes per second.
fn response_rate(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    const VARIABLE: &str = "`limit-rate` takes a number, and no variable";
    let limit = scope.last("limit_rate")?;
    let Some(rate) = bytes(limit.argument(0)) else {
        conversion.lost(&limit.place, format!("`{}`: {VARIABLE}", limit.head()));
        return None;
    };
    if rate <= 0 {
        return None;
    }
    // A higher rate would be refused, and limits nothing.
    let rate = rate.min(i64::try_from(ResponseRate::MOST).unwrap_or(i64::MAX));
    let mut options = vec![("rate".to_owned(), Yaml::Integer(rate))];
    match scope.last("limit_rate_after").map(|after| (after, bytes(after.argument(0)))) {
        Some((_, Some(after))) if after > 0 => options.push(("after".to_owned(), Yaml::Integer(after))),
        Some((after, None)) => {
            let text = format!("`{}`: {VARIABLE}; the rate holds from the first byte", after.head());
            conversion.lost(&after.place, text);
        }
        _ => {}
    }
    Some(("limit-rate".to_owned(), Yaml::Map(options)))
}

/// The statuses of the responses that `add_header` changes, unless it says `always`.
const ADDED_TO: [i64; 10] = [200, 201, 204, 206, 301, 302, 303, 304, 307, 308];
/// Fields that `add_header` replaces; it adds all others to those of the same name.
const REPLACED: [&str; 2] = ["last-modified", "etag"];

/// Variables that always have a value.
const NEVER_EMPTY: [&str; 8] =
    ["$host", "$scheme", "$request_id", "$remote_addr", "$request_uri", "$uri", "$request_method", "$status"];

/// Reports a value that is a variable alone, which may be without a value.
fn tell_empty(conversion: &mut Conversion, directive: &Directive, value: &str) {
    let name = value.strip_prefix('$').unwrap_or_default().trim_matches(['{', '}']);
    let is_name = !name.is_empty() && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
    if is_name && !NEVER_EMPTY.contains(&value) {
        let text = format!("`{}`: the field is sent also if the variable is empty", directive.head());
        conversion.differs(&directive.place, text);
    }
}

const CACHE_CONTROL: &str = "Cache-Control";

/// The `Cache-Control` for an `expires`; `None` for a time of day, or one that depends on the file or the response.
fn lifetime(expires: &Directive) -> Option<String> {
    match expires.argument(0) {
        "epoch" => Some("no-cache".to_owned()),
        "max" => Some("max-age=315360000".to_owned()),
        time if time.starts_with('-') => Some("no-cache".to_owned()),
        time => seconds(time).map(|seconds| format!("max-age={seconds}")),
    }
}

/// The `expires` in effect, and the `Cache-Control` for it.
fn expiry<'a>(conversion: &mut Conversion, scope: &BlockScope<'a>) -> Option<(&'a Directive, String)> {
    let expires = scope.last("expires").filter(|expires| expires.argument(0) != "off")?;
    let value = lifetime(expires);
    match value {
        Some(_) => {
            let text = format!("`{}`: `Cache-Control` is set, and `Expires` is not", expires.head());
            conversion.differs(&expires.place, text);
        }
        None => {
            let text = "write `response-rewrite` with `headers.set: { Cache-Control: ... }`";
            conversion.lost(&expires.place, format!("`{}`: {text}", expires.head()));
        }
    }
    Some((expires, value?))
}

/// `add_header`, for responses of the gateway itself.
pub(super) fn added_fields(conversion: &mut Conversion, scope: &BlockScope) -> YamlMembers {
    response_fields(conversion, scope, &[]).into_iter().collect()
}

/// `add_header` and `proxy_hide_header`.
fn fields(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let mut hidden = Vec::new();
    for directive in scope.all("proxy_hide_header") {
        match is_editable(directive.argument(0)) {
            true => hidden.push(directive.argument(0)),
            false => {
                let text = format!("`{}`: {NOT_EDITABLE}", directive.head());
                conversion.lost(&directive.place, text);
            }
        }
    }
    response_fields(conversion, scope, &hidden)
}

/// The fields that a response gets and loses, and the statuses of the responses that are changed.
#[derive(Default)]
struct ResponseFields<'a> {
    added: FieldValues,
    set: FieldValues,
    removed: Vec<String>,
    /// How many directives are for all responses.
    always: usize,
    /// The directives for the statuses of [`ADDED_TO`].
    sometimes: Vec<&'a Directive>,
}

fn response_fields(conversion: &mut Conversion, scope: &BlockScope, hidden: &[&str]) -> Option<(String, Yaml)> {
    let mut fields = ResponseFields { removed: hidden.iter().map(ToString::to_string).collect(), ..Default::default() };
    let changes = headers_more::of_responses(conversion, scope);
    let is_alone = hidden.is_empty() && scope.last("expires").is_none() && scope.last("add_header").is_none();
    let statuses = statuses_of(conversion, scope, &changes, is_alone);
    for change in changes.iter().filter(|change| statuses.is_some() || change.statuses.is_empty()) {
        fields.always += 1;
        fields.removed.retain(|name| !name.eq_ignore_ascii_case(&change.name));
        match change.value.is_empty() {
            true => {
                fields.set.remove(&change.name);
                fields.removed.push(change.name.clone());
            }
            false => fields.set.replace(&change.name, &change.value),
        }
    }
    if let Some((expires, value)) = expiry(conversion, scope) {
        fields.set.add(CACHE_CONTROL, &value);
        fields.sometimes.push(expires);
    }
    for directive in scope.all("add_header") {
        add_field(conversion, scope, directive, &mut fields);
    }
    fields.plugin(conversion, statuses.unwrap_or_default())
}

/// The statuses that all changes are for, none being all; `None` if some are for other responses than the rest, which is reported: the
/// plugin has one condition for all that it does. `is_alone`: nothing else changes fields.
fn statuses_of(
    conversion: &mut Conversion,
    scope: &BlockScope,
    changes: &[HeaderFieldChange],
    is_alone: bool,
) -> Option<Vec<i64>> {
    let first = changes.first().map(|change| change.statuses.clone()).unwrap_or_default();
    if changes.iter().all(|change| change.statuses == first) && (first.is_empty() || is_alone) {
        return Some(first);
    }
    for directive in headers_more::with_statuses(scope) {
        let text = format!("`{}`: `response-rewrite` has one condition for all fields of a route", directive.head());
        conversion.lost(&directive.place, text);
    }
    None
}

/// One `add_header`.
fn add_field<'a>(
    conversion: &mut Conversion,
    scope: &BlockScope,
    directive: &'a Directive,
    fields: &mut ResponseFields<'a>,
) {
    let (name, value) = (directive.argument(0), renamed(directive.argument(1)));
    let value = value.as_str();
    if !is_editable(name) {
        let text = format!("`{}`: {NOT_EDITABLE}", directive.head());
        conversion.lost(&directive.place, text);
        return;
    }
    if auth_request::is_sent(scope, name, value) {
        return;
    }
    if let Some(unknown) = unknown_in_answer(value) {
        conversion.lost(&directive.place, format!("`{}`: Weir has no variable `${unknown}`", directive.head()));
        return;
    }
    if value.is_empty() {
        return;
    }
    tell_empty(conversion, directive, value);
    match directive.argument(2) {
        "always" => fields.always += 1,
        _ => fields.sometimes.push(directive),
    }
    // A field of the upstream is hidden before the one of the same name is added.
    let is_removed = fields.removed.iter().any(|known| known.eq_ignore_ascii_case(name));
    let replaces = REPLACED.contains(&name.to_ascii_lowercase().as_str()) || is_removed || fields.set.has(name);
    if replaces { &mut fields.set } else { &mut fields.added }.add(name, value);
}

impl ResponseFields<'_> {
    /// `response-rewrite` with these fields. `statuses`: it is for responses with these only.
    fn plugin(self, conversion: &mut Conversion, statuses: Vec<i64>) -> Option<(String, Yaml)> {
        let ResponseFields { added, set, removed, always, sometimes } = self;
        let removed: Vec<&String> = removed.iter().filter(|name| !set.has(name)).collect();
        let has_condition = !sometimes.is_empty() && always == 0 && removed.is_empty();
        if !has_condition {
            for directive in sometimes {
                let text = format!("`{}`: the field is added to responses with any status", directive.head());
                conversion.differs(&directive.place, text);
            }
        }
        let parts = [("add", added.yaml()), ("set", set.yaml()), ("remove", Yaml::texts(removed))];
        let parts: YamlMembers = parts
            .into_iter()
            .filter(|(_, part)| !part.is_empty())
            .map(|(name, part)| (name.to_owned(), part))
            .collect();
        if parts.is_empty() {
            return None;
        }
        let mut options = vec![("headers".to_owned(), Yaml::Map(parts))];
        let statuses = if has_condition { ADDED_TO.to_vec() } else { statuses };
        if !statuses.is_empty() {
            let statuses = Yaml::List(statuses.into_iter().map(Yaml::Integer).collect());
            let rule = Yaml::List(vec![Yaml::text("status"), Yaml::text("in"), statuses]);
            options.push(("vars".to_owned(), Yaml::List(vec![rule])));
        }
        Some(("response-rewrite".to_owned(), Yaml::Map(options)))
    }
}

/// The plugins for a location that answers by itself.
pub(super) fn of_answer(conversion: &mut Conversion, scope: &BlockScope) -> YamlMembers {
    let plugins = body_size(conversion, scope).into_iter().chain(compression::plugins(conversion, scope));
    plugins.chain(tracing::plugin(conversion, scope)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// The limits of a location by a zone with this key.
    fn limits(key: &str) -> String {
        let text = format!(
            "limit_req_zone {key} zone=a:1m rate=1r/s; limit_conn_zone {key} zone=b:1m;
             server {{ location / {{ limit_req zone=a; limit_conn b 1; proxy_pass http://a; }} }}"
        );
        plain(&convert("n", &text, &|_| Ok(Vec::new())).expect("correct").yaml())
    }

    /// On one line, without the marks of maps, so that it does not matter how long they are.
    fn plain(yaml: &str) -> String {
        yaml.replace(['{', '}', ','], " ").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn requests_with_an_empty_key_are_not_limited() {
        for (key, filter) in [
            ("$http_x_key", r#"_meta: { filter: [[http_x_key, "~~", "."]] }"#),
            ("${cookie_a}", r#"_meta: { filter: [[cookie_a, "~~", "."]] }"#),
            ("$http_a$http_b", r#"[OR, [http_a, "~~", "."], [http_b, "~~", "."]]"#),
        ] {
            let yaml = limits(key);
            assert_eq!(yaml.matches(&plain(filter)).count(), 2, "{key}: {yaml}");
        }
        for key in
            ["$binary_remote_addr", "${binary_remote_addr}", "$host", "$http_a$remote_addr", "$http_a-", "$tenant"]
        {
            assert!(!limits(key).contains("_meta"), "{key}");
        }
        let told = limits("$tenant");
        assert!(told.contains("also where the key of nginx is empty"), "{told}");
        let of_map = "limit_req_zone $key zone=a:1m rate=1r/s; map $http_x $key { default ''; ~a $tenant; }
                      server { location / { limit_req zone=a; proxy_pass http://a; } }";
        let told = plain(&convert("n", of_map, &|_| Ok(Vec::new())).expect("correct").yaml());
        assert!(told.contains("holds for each client address") && !told.contains("is empty"), "{told}");
        assert!(told.contains(r#"_meta: filter: [[http_x "~~" a]]"#), "{told}");
    }
}
