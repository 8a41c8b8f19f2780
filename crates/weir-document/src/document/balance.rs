//! APISIX `type`, `hash_on` and `key` of an upstream.

use weir_gateway::snapshot::HashKey;
use weir_plugin::Variable;
use weir_plugin::template::Template;

use crate::text::read::{MapReader, NodeReader, shortened};

/// How endpoints are chosen, as written. `random`, `least_time` and `ip_hash` are not in APISIX.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BalanceSpec {
    #[default]
    RoundRobin,
    Random,
    LeastConn,
    LeastTime,
    Ewma,
    Hash(HashKey),
}

/// APISIX `type`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum BalanceType {
    RoundRobin,
    Random,
    LeastConn,
    LeastTime,
    Ewma,
    Chash,
    IpHash,
}

pub(super) const TYPES: &[(&str, BalanceType)] = &[
    ("roundrobin", BalanceType::RoundRobin),
    ("chash", BalanceType::Chash),
    ("ewma", BalanceType::Ewma),
    ("least_conn", BalanceType::LeastConn),
    ("least_time", BalanceType::LeastTime),
    ("random", BalanceType::Random),
    ("ip_hash", BalanceType::IpHash),
];

/// APISIX `hash_on`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum HashOn {
    Vars,
    Header,
    Cookie,
    Consumer,
    Combination,
}

pub(super) const HASH_ON: &[(&str, HashOn)] = &[
    ("vars", HashOn::Vars),
    ("header", HashOn::Header),
    ("cookie", HashOn::Cookie),
    ("consumer", HashOn::Consumer),
    ("vars_combinations", HashOn::Combination),
];

/// The variables that APISIX allows with `hash_on: vars`, besides `arg_…`.
const VARS: &[&str] = &[
    "uri",
    "server_name",
    "server_addr",
    "request_uri",
    "remote_port",
    "remote_addr",
    "query_string",
    "host",
    "hostname",
    "mqtt_client_id",
];

/// `key` is the value of the key `key`, and `fields` are those of the upstream.
pub(super) fn of(
    kind: BalanceType,
    hash_on: HashOn,
    key: Option<(NodeReader, Option<Box<str>>)>,
    fields: &MapReader,
) -> BalanceSpec {
    match kind {
        BalanceType::RoundRobin => BalanceSpec::RoundRobin,
        BalanceType::Random => BalanceSpec::Random,
        BalanceType::LeastConn => BalanceSpec::LeastConn,
        BalanceType::LeastTime => BalanceSpec::LeastTime,
        BalanceType::Ewma => BalanceSpec::Ewma,
        BalanceType::IpHash => BalanceSpec::Hash(HashKey::ClientAddr),
        BalanceType::Chash => {
            if key.is_none() && hash_on != HashOn::Consumer {
                fields.at().report_advising("`type: chash` needs a `key`", "add `key: remote_addr`");
            }
            let key = key.and_then(|(at, key)| Some(hash_key(hash_on, &key?, &at))).unwrap_or(HashKey::ClientAddr);
            BalanceSpec::Hash(if hash_on == HashOn::Consumer { HashKey::Variable(Variable::ConsumerName) } else { key })
        }
    }
}

fn hash_key(hash_on: HashOn, key: &str, at: &NodeReader) -> HashKey {
    let is_name =
        !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    match hash_on {
        HashOn::Vars if key == "remote_addr" => HashKey::ClientAddr,
        HashOn::Vars if VARS.contains(&key) || (key.starts_with("arg_") && is_name) => {
            HashKey::Variable(Variable::named(key))
        }
        HashOn::Vars => {
            let problem = format!("`{}` is not a variable to hash on", shortened(key));
            at.report_advising(problem, format!("use `arg_NAME`, or one of {}", VARS.join(", ")));
            HashKey::ClientAddr
        }
        HashOn::Header | HashOn::Cookie if !is_name => {
            at.report_advising(format!("`{}` is not a name", shortened(key)), "use letters, digits, `-` and `_`");
            HashKey::ClientAddr
        }
        HashOn::Header => {
            // As in APISIX, the name may also be written as a variable, with the prefix `http_`.
            let name = key.strip_prefix("http_").unwrap_or(key);
            HashKey::Variable(Variable::Header(name.to_ascii_lowercase().replace('_', "-").into()))
        }
        HashOn::Cookie => HashKey::Variable(Variable::Cookie(key.strip_prefix("cookie_").unwrap_or(key).into())),
        HashOn::Combination => {
            let template = Template::compile(key);
            for variable in template.variables().filter(|variable| matches!(variable, Variable::Unknown(_))) {
                at.report_advising(format!("`{variable}` is not a variable"), "write as `$remote_addr$arg_user`");
            }
            if template.variables().next().is_none() {
                at.report_advising("contains no variable", "write as `$remote_addr$arg_user`");
            }
            HashKey::Combination(template)
        }
        HashOn::Consumer => HashKey::Variable(Variable::ConsumerName),
    }
}
