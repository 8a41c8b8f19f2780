//! What controls access: lists of addresses as `ip-restriction`. A route with a control that cannot be converted is closed.

use std::collections::BTreeSet;

use super::scope::BlockScope;
use super::survey::{self, DirectiveFate};
use super::syntax::Directive;
use super::{Conversion, addresses};
use crate::login::refusal;
use crate::yaml::YamlMembers;

/// The plugins that control access at this place. One of them refuses all requests if a control could not be converted.
pub fn plugins(conversion: &mut Conversion, scope: &BlockScope) -> YamlMembers {
    let mut plugins = YamlMembers::new();
    let mut is_closed = is_closed(scope);
    match addresses::options(&scope.all_of(&["allow", "deny"])) {
        Ok(options) => plugins.extend(options.map(|options| ("ip-restriction".to_owned(), options))),
        Err(addresses::WrongRule(rule, why)) => {
            conversion.lost(&rule.place, format!("`{}`: {why}; {}", rule.head(), survey::CLOSED));
            is_closed = true;
        }
    }
    if is_closed {
        plugins.push(refusal());
    }
    plugins
}

/// Whether a directive in effect controls access, or may do so, and is not converted. The survey reports it.
fn is_closed(scope: &BlockScope) -> bool {
    let names: BTreeSet<&str> =
        scope.every().filter(|directive| may_restrict(directive)).map(|directive| directive.name.as_str()).collect();
    let is_in_effect = |name: &str| scope.last(name).is_some_and(|directive| !is_off(directive));
    names.into_iter().any(is_in_effect)
}

fn may_restrict(directive: &Directive) -> bool {
    matches!(survey::fate(&directive.name), DirectiveFate::Closes(_))
}

/// Whether a directive says that what an outer block demands is not demanded here.
pub fn is_off(directive: &Directive) -> bool {
    directive.argument(0) == "off"
}
