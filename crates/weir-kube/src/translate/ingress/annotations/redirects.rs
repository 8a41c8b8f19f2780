//! Redirects.

use serde_json::json;

use super::super::settings::ToHttps;
use super::{
    Annotation, Given, IngressSettings, NEEDED, Nothing, OPTIONAL, Reads, Served, With, annotation, variables,
};

pub(super) const TABLE: &[Annotation] = &[
    annotation(
        "ssl-redirect",
        Reads::Flag,
        Served(to_https),
        NEEDED,
        "`redirect.http_to_https` with 308, for hosts that have a certificate. `true` is the default.",
    ),
    annotation(
        "force-ssl-redirect",
        Reads::Flag,
        Served(to_https),
        NEEDED,
        "The same for all hosts of the Ingress: TLS ends before the gateway, which must be one of `trusted_addresses`.",
    ),
    annotation(
        "permanent-redirect",
        Reads::Text,
        Served(permanent),
        NEEDED,
        "`redirect`, 301 unless `permanent-redirect-code` says otherwise.",
    ),
    annotation("permanent-redirect-code", Reads::Number, With("permanent-redirect"), OPTIONAL, "`redirect.ret_code`."),
    annotation(
        "temporal-redirect",
        Reads::Text,
        Served(temporal),
        NEEDED,
        "`redirect`, 302 unless `temporal-redirect-code` says otherwise. It wins over `permanent-redirect`.",
    ),
    annotation("temporal-redirect-code", Reads::Number, With("temporal-redirect"), OPTIONAL, "`redirect.ret_code`."),
    annotation(
        "from-to-www-redirect",
        Reads::Flag,
        Served(www),
        OPTIONAL,
        "A route for `www.HOST`, or for the host without `www.`, with `redirect`, 308.",
    ),
    annotation(
        "relative-redirects",
        Reads::Flag,
        Nothing,
        OPTIONAL,
        "`Location` is passed on as the upstream sends it.",
    ),
    annotation("preserve-trailing-slash", Reads::Flag, Nothing, OPTIONAL, "A slash at the end is always kept."),
];

fn to_https(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    settings.to_https = match (given.flag("force-ssl-redirect", false), given.flag("ssl-redirect", true)) {
        (true, _) => ToHttps::All,
        (false, true) => ToHttps::WithCertificate,
        (false, false) => ToHttps::None,
    };
    Ok(())
}

fn permanent(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    redirect(given, settings, "permanent-redirect", 301)
}

fn temporal(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    redirect(given, settings, "temporal-redirect", 302)
}

fn redirect(given: &Given, settings: &mut IngressSettings, name: &str, code: u64) -> Result<(), String> {
    let uri = given.text(name).unwrap_or_default();
    if uri.is_empty() {
        return Err("the URL is empty".to_owned());
    }
    let stated = given.number(&format!("{name}-code"));
    let code = stated.filter(|code| (300..=308).contains(code)).unwrap_or(code);
    settings.plugins.insert("redirect".to_owned(), json!({ "uri": variables::renamed(uri), "ret_code": code }));
    Ok(())
}

fn www(given: &Given, settings: &mut IngressSettings) -> Result<(), String> {
    settings.from_to_www = given.flag("from-to-www-redirect", false);
    Ok(())
}
