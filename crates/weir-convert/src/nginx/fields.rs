//! `proxy_set_header`: the fields of a request that are set or removed for the upstream.

use super::Conversion;
use super::auth_request;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::values::{FieldValues, NOT_EDITABLE, is_editable};
use super::variables::unknown_in_request;
use crate::yaml::{Yaml, YamlMembers};

/// What happens with a field.
enum FieldFate {
    /// The gateway sends the same by itself.
    Same,
    Set,
    /// Set, but not exactly; why.
    Differs(&'static str),
    /// Not set, since the gateway sends nearly the same by itself; how it differs.
    Kept(&'static str),
    /// Not set; why.
    Lost(&'static str),
}

/// The option `headers` of `proxy-rewrite` for these lines.
pub(super) fn changes(conversion: &mut Conversion, scope: &BlockScope, lines: &[&Directive]) -> Option<(String, Yaml)> {
    let mut set = FieldValues::default();
    let mut removed = Vec::new();
    for directive in lines {
        let (name, value) = (directive.argument(0), directive.argument(1));
        match fate(conversion, scope, &name.to_ascii_lowercase(), value) {
            FieldFate::Same => {
                if value == "$proxy_add_x_forwarded_for" {
                    let text = format!(
                        "`{}`: what clients send in it is dropped; what load balancers send is kept if they are in \
                         `trusted_addresses`",
                        directive.head()
                    );
                    conversion.differs_here_first("X-Forwarded-For", &directive.place, text);
                }
                continue;
            }
            FieldFate::Kept(how) => {
                conversion.differs(&directive.place, format!("`{}`: {how}", directive.head()));
                continue;
            }
            FieldFate::Lost(why) => {
                conversion.lost(&directive.place, format!("`{}`: {why}", directive.head()));
                continue;
            }
            FieldFate::Differs(how) => conversion.differs(&directive.place, format!("`{}`: {how}", directive.head())),
            FieldFate::Set => {}
        }
        if auth_request::is_sent(scope, name, value) {
            continue;
        }
        if value.is_empty() {
            removed.push(name);
        } else if let Some(unknown) = unknown_in_request(value) {
            conversion.lost(&directive.place, format!("`{}`: Weir has no variable `${unknown}`", directive.head()));
        } else {
            set.add(name, value);
        }
    }
    let mut members = YamlMembers::new();
    let set = set.yaml();
    if !set.is_empty() {
        members.push(("set".to_owned(), set));
    }
    if !removed.is_empty() {
        members.push(("remove".to_owned(), Yaml::texts(removed)));
    }
    (!members.is_empty()).then(|| ("headers".to_owned(), Yaml::Map(members)))
}

fn fate(conversion: &Conversion, scope: &BlockScope, name: &str, value: &str) -> FieldFate {
    // The gateway then keeps what trusted peers send.
    let has_trusted_peers = scope.last("set_real_ip_from").is_some();
    match (name, value) {
        ("host", _) => FieldFate::Same,
        ("keep-alive" | "proxy-connection", "") => FieldFate::Same,
        ("te", "" | "trailers" | "$http_te") => FieldFate::Same,
        ("connection" | "upgrade", value) if is_usual(conversion, value) => FieldFate::Same,
        ("connection" | "upgrade", _) => FieldFate::Lost("the gateway writes the fields of its connections itself"),
        ("x-real-ip", "$remote_addr") | ("x-forwarded-proto", "$scheme") | ("x-forwarded-host", "$http_host")
            if !has_trusted_peers =>
        {
            FieldFate::Same
        }
        ("x-forwarded-for", "$proxy_add_x_forwarded_for") => FieldFate::Same,
        ("x-forwarded-for", "$remote_addr" | "$realip_remote_addr") if !has_trusted_peers => FieldFate::Same,
        ("x-forwarded-for", "$remote_addr" | "$realip_remote_addr") => {
            FieldFate::Kept("the addresses that trusted peers send are kept in it")
        }
        ("x-forwarded-for", value) if !value.is_empty() => {
            FieldFate::Differs("the gateway adds the address of the connection to it")
        }
        (name, _) if !is_editable(name) => FieldFate::Lost(NOT_EDITABLE),
        _ => FieldFate::Set,
    }
}

/// Values of `Connection` and `Upgrade` that have the same effect as what the gateway does: connections are kept open, and
/// upgrades are passed on.
fn is_usual(conversion: &Conversion, value: &str) -> bool {
    let usual = ["", "close", "keep-alive", "upgrade", "websocket", "$http_upgrade", "$http_connection"];
    let is_map = |directive: &Directive| {
        directive.name == "map"
            && directive.argument(0) == "$http_upgrade"
            && (directive.argument(1) == value
                || value == format!("${{{}}}", directive.argument(1).trim_start_matches('$')))
    };
    usual.contains(&value.to_ascii_lowercase().as_str())
        || value == "$connection_upgrade"
        || conversion.http.iter().any(is_map)
}
