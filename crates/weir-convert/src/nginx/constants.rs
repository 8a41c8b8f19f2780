//! Variables to which `set` gives a fixed value, as in `set $backend 10.0.0.1:80; proxy_pass http://$backend`: the value is put in
//! their place. nginx users write this so that names are resolved again, which Weir always does.

use std::collections::{BTreeMap, BTreeSet};

use super::syntax::Directive;

/// Names of variables, and their values.
type FixedValues = BTreeMap<String, String>;

/// Directives that name an upstream.
const PASSES: [&str; 2] = ["proxy_pass", "grpc_pass"];

/// Replaces the variables in a server block. `has_redirects`: an outer block has a `proxy_redirect`.
pub(super) fn replace(server: &mut Directive, has_redirects: bool) {
    within(server, &FixedValues::new(), has_redirects);
}

/// `outer`: the values of the server. Those of a location do not hold in the locations in it.
fn within(block: &mut Directive, outer: &FixedValues, has_redirects: bool) {
    let is_server = block.name == "server";
    let has_redirects = has_redirects || block.children().iter().any(|child| child.name == "proxy_redirect");
    let Some(children) = block.block.as_mut() else { return };
    // What a condition sets has no fixed value, and `outer` is without it.
    let values = if block.name == "if" { outer.clone() } else { fixed(children, outer) };
    let is_used_up =
        |child: &Directive| child.name == "set" && name(child).is_some_and(|name| values.contains_key(name));
    children.retain(|child| !is_used_up(child));
    let mut needs_no_redirect = None;
    for child in children.iter_mut() {
        match child.name.as_str() {
            "location" => within(child, if is_server { &values } else { outer }, has_redirects),
            // A condition on a fixed value is reported, with the variable.
            "if" | "limit_except" => within(child, &values, has_redirects),
            pass if PASSES.contains(&pass) => {
                if replace_target(child, &values) && !has_redirects {
                    needs_no_redirect = Some(child.place.clone());
                }
            }
            _ => {
                for argument in &mut child.arguments {
                    *argument = replaced(argument, &values);
                }
            }
        }
    }
    // With a variable, nginx has no default for this directive.
    if let Some(place) = needs_no_redirect {
        let arguments = vec!["off".to_owned()];
        children.push(Directive { name: "proxy_redirect".to_owned(), arguments, block: None, place });
    }
}

/// The values that hold in a block: those of the outer block, and those that are set once, in every case.
fn fixed(block: &[Directive], outer: &FixedValues) -> FixedValues {
    let mut values = outer.clone();
    let mut seen = BTreeSet::new();
    for child in block {
        let Some(name) = name(child).filter(|_| child.name == "set") else { continue };
        let value = replaced(child.argument(1), &values);
        values.remove(name);
        if seen.insert(name) && !value.contains('$') {
            values.insert(name.to_owned(), value);
        }
    }
    let mut in_conditions = BTreeSet::new();
    block.iter().filter(|child| child.name == "if").for_each(|child| set_in(child, &mut in_conditions));
    values.retain(|name, _| !in_conditions.contains(name.as_str()));
    values
}

fn name(set: &Directive) -> Option<&str> {
    set.argument(0).strip_prefix('$')
}

fn set_in<'a>(block: &'a Directive, names: &mut BTreeSet<&'a str>) {
    for child in block.children() {
        names.extend(name(child).filter(|_| child.name == "set"));
        set_in(child, names);
    }
}

/// Replaces the variables in the target of a `proxy_pass`; whether there were any. A target whose variables are followed by a path
/// is left: nginx sends this path instead of that of the request.
fn replace_target(pass: &mut Directive, values: &FixedValues) -> bool {
    let written = replaced(pass.argument(0), values);
    let has_path =
        written.split_once("://").is_some_and(|(_, rest)| rest.find('/').is_some() && !rest.ends_with("$request_uri"));
    let is_changed = written != pass.argument(0) && !has_path;
    if is_changed {
        pass.arguments[0] = written;
    }
    is_changed
}

/// A text with a value in the place of a variable.
pub(super) fn with_value(text: &str, name: &str, value: &str) -> String {
    replaced(text, &FixedValues::from([(name.to_owned(), value.to_owned())]))
}

fn replaced(text: &str, values: &FixedValues) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let braced = after.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let end = after.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(after.len());
        let (name, behind) = braced.unwrap_or_else(|| after.split_at(end));
        match values.get(name) {
            Some(value) => {
                out.push_str(value);
                rest = behind;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    /// The block with the values in the place of the variables, on one line.
    fn told(text: &str) -> String {
        let mut server = parse("t", text).expect("correct").remove(0);
        replace(&mut server, false);
        one_line(server.children())
    }

    fn one_line(block: &[Directive]) -> String {
        let told = |directive: &Directive| match &directive.block {
            Some(block) => format!("{} {{ {} }}", directive.head(), one_line(block)),
            None => format!("{};", directive.head()),
        };
        block.iter().map(told).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn fixed_values_stand_in_the_place_of_their_variables() {
        assert_eq!(
            told(
                "server { set $h a; set $u http://$h:1; location / { set $p 2; proxy_pass $u; add_header X ${h}$p$host; } }"
            ),
            "location / { proxy_pass http://a:1; add_header X a2$host; proxy_redirect off; }"
        );
        assert_eq!(
            told(
                "server { set $h a; location / { set $h b; proxy_pass http://$h; location /in { proxy_pass http://$h; } } }"
            ),
            "location / { proxy_pass http://b; location /in { proxy_pass http://a; proxy_redirect off; } proxy_redirect off; }"
        );
    }

    #[test]
    fn values_that_depend_on_the_request_are_left() {
        for text in [
            "server { set $a 0; if ($host) { set $a 1; } add_header X $a; }",
            "server { set $a $host; add_header X $a; }",
            "server { set $a 1; set $a 2; add_header X $a; }",
            "server { if ($host) { add_header X $ab; } }",
        ] {
            let inside = text.strip_prefix("server { ").and_then(|text| text.strip_suffix(" }"));
            assert_eq!(Some(told(text).as_str()), inside);
        }
    }

    #[test]
    fn a_path_after_a_variable_is_left_because_nginx_sends_it_as_it_is() {
        assert_eq!(
            told(
                "server { set $h a; location /x/ { proxy_pass http://$h/y/; } location /z { proxy_pass http://$h$request_uri; } }"
            ),
            "location /x/ { proxy_pass http://$h/y/; } location /z { proxy_pass http://a$request_uri; proxy_redirect off; }"
        );
    }
}
