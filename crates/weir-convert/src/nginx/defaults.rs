//! Maps that only give an absent field a value, as in `map $http_x_tenant $tenant { default $http_x_tenant; "" shared; }`: their
//! variable is written as `${http_x_tenant ?? shared}`.

use super::syntax::Directive;

/// Directives whose values are texts with variables.
const TEXTS: [&str; 3] = ["proxy_set_header", "grpc_set_header", "add_header"];

/// Whether a directive is a map whose variable is replaced.
pub(super) fn is_default(directive: &Directive) -> bool {
    template(directive).is_some()
}

/// Replaces the variables of such maps in all texts of the servers.
pub(super) fn replace(http: &mut [Directive]) {
    let found: Vec<(String, String)> = http.iter().filter_map(template).collect();
    if !found.is_empty() {
        within(http, &found);
    }
}

fn within(block: &mut [Directive], found: &[(String, String)]) {
    for directive in block {
        if TEXTS.contains(&directive.name.as_str()) {
            for (variable, template) in found {
                let is_it = |value: &&mut String| {
                    **value == *variable
                        || value.strip_prefix("${").and_then(|value| value.strip_suffix('}')) == variable.get(1..)
                };
                directive.arguments.iter_mut().skip(1).filter(is_it).for_each(|value| value.clone_from(template));
            }
        }
        within(directive.block.as_deref_mut().unwrap_or_default(), found);
    }
}

/// The variable of a map, and what it is written as.
fn template(map: &Directive) -> Option<(String, String)> {
    let [source, variable] = map.arguments.as_slice() else { return None };
    let [one, other] = map.children() else { return None };
    let (default, absent) = if one.name == "default" { (one, other) } else { (other, one) };
    let value = absent.argument(0);
    let is_plain = !value.is_empty() && value.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char));
    let is_it = map.name == "map"
        && default.name == "default"
        && default.argument(0) == source
        && absent.name.is_empty()
        && is_plain;
    let name = source.strip_prefix('$')?;
    is_it.then(|| (variable.clone(), format!("${{{name} ?? {value}}}")))
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    #[test]
    fn only_maps_from_a_variable_to_itself_with_one_default_are_replaced() {
        for (map, want) in [
            ("map $http_t $t { default $http_t; '' shared; }", "${http_t ?? shared}"),
            ("map $http_t $t { \"\" shared; default $http_t; }", "${http_t ?? shared}"),
            ("map $http_t $t { default $http_t; '' $scheme; }", "$t"),
            ("map $http_t $t { default a; '' b; }", "$t"),
            ("map $http_t $t { default $http_t; x b; }", "$t"),
        ] {
            let mut http = parse("t", &format!("{map} server {{ proxy_set_header X $t; }}")).expect("correct");
            assert_eq!(is_default(&http[0]), want != "$t");
            replace(&mut http);
            assert_eq!(http[1].children()[0].argument(1), want, "{map}");
        }
    }
}
