//! The keys that limits count by: a variable, text with several variables, or one constant for all requests.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_plugin::{Build, ConfigError, Exchange, ExchangePhase, Template, Variable, Variables, suggest};

use crate::store::counters::{CounterKey, CounterTable, PackedCounter};

/// How the option `key` is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeyType {
    /// `key` is the name of one variable, such as `remote_addr`.
    #[default]
    Var,
    /// `key` is text with variables, such as `$remote_addr $http_x_tenant`.
    VarCombination,
    /// `key` is a fixed text; all requests share one counter.
    Constant,
}

/// A compiled key. A request that has none of its variables is counted by the client's address.
#[derive(Debug)]
pub(crate) enum LimitKey {
    /// The client's address: by far the most common key, so it is hashed as bytes rather than printed.
    Address,
    Variable(Variable),
    Combination(Template),
    Constant(Box<[u8]>),
}

impl LimitKey {
    pub(crate) fn compile(text: &str, kind: KeyType, path: &str, build: &mut Build) -> Result<LimitKey, ConfigError> {
        let check =
            |variable: &Variable| Some(ConfigError::new(path, suggest::absence(variable, ExchangePhase::Request)?));
        match kind {
            KeyType::Constant => Ok(LimitKey::Constant(text.as_bytes().into())),
            KeyType::Var => match Variable::named(text.strip_prefix('$').unwrap_or(text)) {
                Variable::RemoteAddr => Ok(LimitKey::Address),
                variable => {
                    build.warnings.extend(check(&variable));
                    Ok(LimitKey::Variable(variable))
                }
            },
            KeyType::VarCombination => {
                let template = Template::compile(text);
                if template.constant().is_some() {
                    return Err(ConfigError::new(path, "has no variable; write as `$remote_addr $http_x_tenant`"));
                }
                build.warnings.extend(template.variables().filter_map(check));
                Ok(LimitKey::Combination(template))
            }
        }
    }

    /// Whether the request has a value for at least one variable of the key.
    pub(crate) fn is_present(&self, exchange: &Exchange) -> bool {
        match self {
            LimitKey::Address | LimitKey::Constant(_) => true,
            LimitKey::Variable(variable) => exchange.variable(variable).is_some(),
            LimitKey::Combination(template) => template.variables().any(|name| exchange.variable(name).is_some()),
        }
    }

    /// The key in a local counter table, for the limit `name`.
    pub(crate) fn in_table<C: PackedCounter>(
        &self,
        table: &CounterTable<C>,
        name: u64,
        exchange: &Exchange,
    ) -> CounterKey {
        match self {
            LimitKey::Address => of_address(table, name, exchange.client.addr),
            LimitKey::Constant(text) => table.key(name, text),
            LimitKey::Variable(variable) => match exchange.variable(variable) {
                Some(value) => table.key(name, &value),
                // Under the complement of `name`: a value may consist of the bytes of an address, and must not share its counter.
                None => of_address(table, !name, exchange.client.addr),
            },
            LimitKey::Combination(template) => {
                if !self.is_present(exchange) {
                    return of_address(table, !name, exchange.client.addr);
                }
                let mut value = Vec::new();
                template.render(exchange, &mut value);
                table.key(name, &value)
            }
        }
    }
}

/// Rejects a key that two rules share: they would count the same, and only the stricter would have an effect.
pub(crate) fn unique_keys<'a>(keys: impl Iterator<Item = &'a str>) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    for (index, key) in keys.enumerate() {
        if !seen.insert(key) {
            return Err(ConfigError::new(format!("rules[{index}].key"), format!("`{key}` is the key of another rule")));
        }
    }
    Ok(())
}

/// The most bytes of a value in a server's key; longer values are replaced by their digest.
const MAX_VALUE: usize = 128;

impl LimitKey {
    /// The key in a Redis server, which several gateways share, for the limit `title`.
    pub(crate) fn in_redis(&self, title: &str, exchange: &Exchange) -> Vec<u8> {
        let mut key = format!("{title}:").into_bytes();
        let start = key.len() + 1;
        match self {
            LimitKey::Constant(text) => {
                key.push(b'=');
                key.extend_from_slice(text);
            }
            LimitKey::Variable(variable) if let Some(value) = exchange.variable(variable) => {
                key.push(b'=');
                key.extend_from_slice(&value);
            }
            LimitKey::Combination(template) if self.is_present(exchange) => {
                key.push(b'=');
                template.render(exchange, &mut key);
            }
            // Marked with `@` instead of `=`: a value may read like an address, and must not share its counter.
            _ => key.extend_from_slice(format!("@{}", exchange.client.addr.to_canonical()).as_bytes()),
        }
        if key.len() - start > MAX_VALUE {
            let digest = digest(&key[start..]);
            key.truncate(start - 1);
            key.push(b'#');
            key.extend_from_slice(digest.as_bytes());
        }
        key
    }
}

/// The first half of the SHA-256 in hexadecimal: the same in all processes and versions.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    hex::encode(&digest.as_ref()[..16])
}

fn of_address<C: PackedCounter>(table: &CounterTable<C>, name: u64, address: IpAddr) -> CounterKey {
    match address.to_canonical() {
        IpAddr::V4(address) => table.key(name, &address.octets()),
        IpAddr::V6(address) => table.key(name, &address.octets()),
    }
}

/// A number in options: fixed, or text with variables that renders to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Fixed(u64),
    Rendered(Template),
}

impl Amount {
    /// The number, if it is the same for all requests.
    pub(crate) fn fixed(&self) -> Option<u64> {
        match self {
            Amount::Fixed(number) => Some(*number),
            Amount::Rendered(_) => None,
        }
    }

    /// From an integer, or from text: `"100"`, `"$http_x_limit"` or `"${http_x_limit ?? 100}"`.
    pub(crate) fn compile(value: &Value, range: RangeInclusive<u64>, path: &str) -> Result<Amount, ConfigError> {
        let number = match value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => match Template::compile(text) {
                template if template.constant().is_none() => return Amount::rendered(template, range, path),
                _ => text.parse().ok(),
            },
            _ => None,
        };
        number.filter(|number| range.contains(number)).map(Amount::Fixed).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            ConfigError::new(
                path,
                format!("must be a whole number from {least} to {most}, or a `$variable` that holds one"),
            )
        })
    }

    fn rendered(template: Template, range: RangeInclusive<u64>, path: &str) -> Result<Amount, ConfigError> {
        if let Some(problem) =
            template.variables().find_map(|variable| suggest::absence(variable, ExchangePhase::Request))
        {
            return Err(ConfigError::new(path, problem));
        }
        // The value for a request that has none of the variables; checked only if the template has defaults.
        let fallback = rendered(&template, &NoVariables);
        if template.has_defaults() && number_in(&fallback, &range).is_none() {
            let (least, most) = (range.start(), range.end());
            let fallback = String::from_utf8_lossy(&fallback);
            let problem = format!("has the default `{fallback}`, which is not a whole number from {least} to {most}");
            return Err(ConfigError::new(path, problem));
        }
        Ok(Amount::Rendered(template))
    }

    /// The number; `None` if the variables do not render to one within the range.
    #[inline]
    pub(crate) fn of(&self, exchange: &Exchange, range: RangeInclusive<u64>) -> Option<u64> {
        match self {
            Amount::Fixed(number) => Some(*number),
            Amount::Rendered(template) => number_in(&rendered(template, exchange), &range),
        }
    }
}

/// Variables of which none has a value.
struct NoVariables;

impl Variables for NoVariables {
    fn variable(&self, _: &Variable) -> Option<Cow<'_, [u8]>> {
        None
    }
}

fn rendered(template: &Template, variables: &impl Variables) -> Vec<u8> {
    let mut text = Vec::new();
    template.render(variables, &mut text);
    text
}

fn number_in(text: &[u8], range: &RangeInclusive<u64>) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok().filter(|number| range.contains(number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::limit::limit_count::Fixed;
    use crate::testing::get;

    #[test]
    fn keys_fall_back_to_the_address() {
        let table = CounterTable::<Fixed>::new(0);
        let key = |text: &str, kind, target: &str| {
            let key = LimitKey::compile(text, kind, "key", &mut Build::default()).expect("valid");
            key.in_table(&table, 1, &get(target))
        };
        let address = key("remote_addr", KeyType::Var, "/");
        assert_eq!(address, key("$remote_addr", KeyType::Var, "/?a=1"));
        assert_ne!(key("arg_a", KeyType::Var, "/?a=1"), key("arg_a", KeyType::Var, "/?a=2"));
        assert_eq!(key("arg_a", KeyType::Var, "/"), key("$arg_b$arg_c", KeyType::VarCombination, "/"));
        // The value has the same four bytes as the client's address.
        assert_ne!(key("arg_a", KeyType::Var, "/?a=%C0%00%02%07"), key("arg_a", KeyType::Var, "/"));
        assert_ne!(
            key("$arg_a-$arg_b", KeyType::VarCombination, "/?a=1"),
            key("$arg_a-$arg_b", KeyType::VarCombination, "/?b=1")
        );
        assert_eq!(key("all", KeyType::Constant, "/?a=1"), key("all", KeyType::Constant, "/?a=2"));
    }

    #[test]
    fn keys_elsewhere_say_what_they_are() {
        let key = |text: &str, kind, target: &str| {
            let key = LimitKey::compile(text, kind, "key", &mut Build::default()).expect("valid");
            String::from_utf8(key.in_redis("t", &get(target))).expect("text")
        };
        assert_eq!(key("remote_addr", KeyType::Var, "/"), "t:@192.0.2.7");
        assert_eq!(key("arg_a", KeyType::Var, "/?a=192.0.2.7"), "t:=192.0.2.7");
        assert_eq!(key("arg_a", KeyType::Var, "/"), "t:@192.0.2.7");
        assert_eq!(key("$arg_a-$arg_b", KeyType::VarCombination, "/?a=1"), "t:=1-");
        assert_eq!(key("all", KeyType::Constant, "/"), "t:=all");
        let long = key("arg_a", KeyType::Var, &format!("/?a={}", "x".repeat(1000)));
        assert!(long.starts_with("t:#") && long.len() == 35, "{long}");
    }

    #[test]
    fn key_without_a_variable_is_refused_and_an_unknown_one_warned_of() {
        let mut build = Build::default();
        LimitKey::compile("consumer", KeyType::Var, "key", &mut build).expect("accepted");
        assert!(build.warnings[0].to_string().starts_with("key: names the variable `consumer`"));
        let error = LimitKey::compile("all", KeyType::VarCombination, "key", &mut build).expect_err("refused");
        assert!(error.to_string().starts_with("key: has no variable"), "{error}");
    }

    #[test]
    fn u18_amounts_have_defaults() {
        let compile = |text: &str| Amount::compile(&json!(text), 1..=10, "count");
        let amount = compile("${arg_n ?? 5}").expect("valid");
        for (target, want) in [("/?n=7", Some(7)), ("/?n=11", None), ("/?n=x", None), ("/", Some(5))] {
            assert_eq!(amount.of(&get(target), 1..=10), want, "{target}");
        }
        for wrong in ["${arg_n ?? 11}", "${arg_n ?? many}", "${arg_n ?? }"] {
            let error = compile(wrong).expect_err("refused").to_string();
            assert!(error.starts_with("count: has the default `"), "{error}");
        }
    }

    #[test]
    fn amounts_are_numbers_or_variables() {
        let compile = |value: Value| Amount::compile(&value, 1..=10, "count");
        assert_eq!(compile(json!(10)), Ok(Amount::Fixed(10)));
        assert_eq!(compile(json!("3")), Ok(Amount::Fixed(3)));
        let variable = compile(json!("${arg_n}")).expect("valid");
        for (target, want) in [("/?n=7", Some(7)), ("/?n=11", None), ("/?n=0", None), ("/?n=x", None), ("/", None)] {
            assert_eq!(variable.of(&get(target), 1..=10), want, "{target}");
        }
        for wrong in [json!(0), json!(11), json!(1.5), json!("x"), json!("$"), json!(null), json!(-1)] {
            let error = compile(wrong).expect_err("refused").to_string();
            assert!(error.starts_with("count: must be a whole number from 1 to 10"), "{error}");
        }
    }
}
