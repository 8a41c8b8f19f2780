//! What responses say about the address of their service: redirects and cookies.

use serde_json::{Value, json};

use super::{
    Annotation, Given, IngressSettings, OPTIONAL, Reads, Served, With, annotation, check_expression, variables,
};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "proxy-redirect-from",
        Reads::Text,
        Served(redirect),
        OPTIONAL,
        "`reverse-rewrite.redirects`, with `proxy-redirect-to`. `off` and `default` rewrite nothing, as in ingress-nginx, where no service \
         knows the name that `default` stands for. A relative URL stays relative. `$1` to `$9` are groups of the rule's path where that is an \
         expression, and otherwise empty.",
    ),
    annotation("proxy-redirect-to", Reads::Text, With("proxy-redirect-from"), OPTIONAL, "As `proxy-redirect-from`."),
    annotation(
        "proxy-cookie-domain",
        Reads::Text,
        Served(domain),
        OPTIONAL,
        "`off`, or a domain and what takes its place: `reverse-rewrite.cookie_domains`.",
    ),
    annotation(
        "proxy-cookie-path",
        Reads::Text,
        Served(path),
        OPTIONAL,
        "`off`, or the beginning of a path and what takes its place: `reverse-rewrite.cookie_paths`.",
    ),
];

/// The plugin that these annotations become.
pub(in super::super) const PLUGIN: &str = "reverse-rewrite";

/// The option with the rules for redirects.
pub(in super::super) const REDIRECTS: &str = "redirects";

/// What is served beside letters, digits and blanks in each of the values: what ingress-nginx allows where it validates annotations.
const IN_DOMAINS: &str = "-._~/:";
const IN_PATHS: &str = "-._~/:,?&=";
const IN_REDIRECTS: &str = "-._~/:,?&=^$[](){}*+|\\<>";

/// The longest value, in bytes: the plugin takes no longer text.
const MOST_TEXT: usize = 2048;

fn redirect(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    let from = given.text("proxy-redirect-from").unwrap_or_default();
    // `off` is the default of `proxy-redirect-to`.
    let to = given.text("proxy-redirect-to").unwrap_or("off");
    if ["", "off", "default"].contains(&from) || ["", "off"].contains(&to) {
        return Ok(());
    }
    let ([from], [to]) = (words(from, IN_REDIRECTS)?, words(to, IN_REDIRECTS)?);
    settings.plugin(PLUGIN, REDIRECTS, json!([rule(from, to, REDIRECTS)?]));
    Ok(())
}

fn domain(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    cookie(given, settings, ("proxy-cookie-domain", IN_DOMAINS), "cookie_domains")
}

fn path(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    cookie(given, settings, ("proxy-cookie-path", IN_PATHS), "cookie_paths")
}

/// Rewrites an attribute of cookies, as an annotation whose value may have these characters says, by an option of the plugin.
fn cookie(
    given: &Given,
    settings: &mut IngressSettings,
    (annotation, marks): (&str, &str),
    option: &str,
) -> Result<(), String> {
    let text = given.text(annotation).unwrap_or_default();
    if ["", "off"].contains(&text) {
        return Ok(());
    }
    let [from, to] = words(text, marks)?;
    settings.plugin(PLUGIN, option, json!([rule(from, to, option)?]));
    Ok(())
}

/// The words of a value, of which nginx takes this many.
fn words<'t, const N: usize>(text: &'t str, marks: &str) -> Result<[&'t str; N], String> {
    if text.len() > MOST_TEXT {
        return Err(format!("is longer than {MOST_TEXT} bytes"));
    }
    let may_stand = |char: char| char.is_ascii_alphanumeric() || char == ' ' || marks.contains(char);
    if let Some(char) = text.chars().find(|char| !may_stand(*char)) {
        return Err(format!("`{text}` has {char:?}, which is not served there"));
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let wanted = if N == 1 { "one word" } else { "`off`, or two words" };
    words.try_into().map_err(|_| format!("`{text}` is not {wanted}"))
}

/// A rule of a list of the plugin. As in nginx, a `~` begins an expression, and `~*` one that ignores case.
fn rule(from: &str, to: &str, option: &str) -> Result<Value, String> {
    let ignores_case = option == "cookie_domains";
    let Some(expression) = from.strip_prefix('~') else {
        // The groups are those of the path, which each rule of the Ingress adds.
        let to = variables::all_known(to, option == REDIRECTS)?;
        return Ok(json!({ "from": variables::all_known(from, false)?, "to": to }));
    };
    let (regex, ignores_case) = match expression.strip_prefix('*') {
        Some(regex) if !ignores_case => (regex, true),
        _ => (expression, ignores_case),
    };
    if regex.is_empty() {
        return Err(format!("`{from}` is an empty regular expression"));
    }
    // Compiled so, it can be larger.
    let compiled = if ignores_case { format!("(?i){regex}") } else { regex.to_owned() };
    check_expression(&compiled)?;
    let mut rule = json!({ "regex": regex, "to": variables::all_known(to, true)? });
    if ignores_case {
        rule["ignore_case"] = true.into();
    }
    Ok(rule)
}
