//! `transport http` of a `reverse_proxy`: time-outs, TLS and connections.

use super::checks::number;
use super::units::seconds;
use super::upstream::ProxyTarget;
use crate::directive::Directive;
use crate::output::Converted;
use crate::yaml::Yaml;

/// Options that need no counterpart, or whose absence only affects performance.
const NEEDLESS: [&str; 12] = [
    "compression",
    "read_buffer",
    "write_buffer",
    "max_response_header",
    "dial_fallback_delay",
    "expect_continue_timeout",
    "tls_timeout",
    "tls_renegotiation",
    "max_conns_per_host",
    "keepalive_interval",
    "keepalive_idle_conns_per_host",
    "resolvers",
];

pub(super) fn read(converted: &mut Converted, target: &mut ProxyTarget, transport: &Directive) {
    for line in transport.children() {
        let value = line.argument(0);
        let time = seconds(value).map(number);
        let mut tls = |name: &str, value: Yaml| {
            target.is_tls = true;
            target.tls.push((name.to_owned(), value));
        };
        match line.name.as_str() {
            name if NEEDLESS.contains(&name) => {}
            "tls" => target.is_tls = true,
            "tls_insecure_skip_verify" => {
                converted.differs(
                    &line.place,
                    "the certificate of this upstream is not verified; remove `tls.verify: false` to verify it",
                );
                tls("verify", Yaml::Boolean(false));
            }
            "tls_trusted_ca_certs" => tls("ca", Yaml::text(value)),
            "tls_client_auth" if line.arguments.len() == 2 => {
                tls("client_cert", Yaml::text(value));
                tls("client_key", Yaml::text(line.argument(1)));
            }
            "tls_server_name" => {
                target.is_tls = true;
                let text =
                    format!("`tls_server_name {value}`: write `pass_host: rewrite` and `upstream_host: {value}`");
                converted.lost(&line.place, text);
            }
            "dial_timeout" => target.timeout.extend(time.map(|time| ("connect".to_owned(), time))),
            "write_timeout" => target.timeout.extend(time.map(|time| ("send".to_owned(), time))),
            "read_timeout" | "response_header_timeout" => {
                target.timeout.retain(|(name, _)| name != "read");
                target.timeout.extend(time.map(|time| ("read".to_owned(), time)));
            }
            "keepalive" if value == "off" => {
                target.members.push(("keepalive_pool".to_owned(), Yaml::map([("size", Yaml::Integer(0))])));
            }
            "keepalive" => {
                let pool = time.map(|time| Yaml::map([("idle_timeout", time)]));
                target.members.extend(pool.map(|pool| ("keepalive_pool".to_owned(), pool)));
            }
            "keepalive_idle_conns" => {}
            "versions" => {
                let has = |version: &str| line.arguments.iter().any(|argument| argument == version);
                target.is_http2 |= has("h2c") || has("2") && !has("1.1");
            }
            "proxy_protocol" => target.members.push(("proxy_protocol".to_owned(), Yaml::text(value))),
            _ => converted.lost(&line.place, format!("`{}` in `transport http`", line.head())),
        }
    }
}
