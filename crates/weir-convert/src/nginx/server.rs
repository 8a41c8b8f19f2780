//! `server` blocks: the addresses of the node, certificates, and the routes for each server.

use super::Conversion;
use super::client_address;
use super::listening::{ListenSetting, ListenSettingItem, Listening, listened};
use super::routes;
use super::scope::BlockScope;
use super::selector::{ServerBlock, default_of, selectors};
use crate::output::ConvertedResource;
use crate::yaml::Yaml;

pub(super) fn carry_over(conversion: &mut Conversion, addresses: &mut ListenSetting) {
    let http = conversion.scope();
    let blocks = conversion.http.iter().filter(|directive| directive.name == "server");
    let mut servers = Vec::new();
    for directive in blocks {
        let scope = http.inside(directive.children());
        let own = || directive.children().iter();
        let names = own().filter(|name| name.name == "server_name").flat_map(|name| name.arguments.iter());
        let names = names.map(String::as_str).filter(|name| !name.is_empty() && *name != "_").collect();
        let mut listening = Vec::new();
        for listen in own().filter(|listen| listen.name == "listen") {
            listening.extend(listened(conversion, listen, &scope, addresses));
        }
        if own().all(|listen| listen.name != "listen") {
            listening.push(Listening { host: String::new(), port: 80, is_default: false, is_tls: scope.is_on("ssl") });
            addresses.add(ListenSettingItem { tls: scope.is_on("ssl"), ..ListenSettingItem::at(":80") });
        }
        servers.push(ServerBlock { directive, names, listening, scope });
    }
    addresses.add_http3(conversion);
    let paths: Vec<Vec<String>> = servers.iter().map(|server| routes::paths(&server.scope)).collect();
    for index in 0..servers.len() {
        let server = &servers[index];
        certificates(conversion, server, is_default_of_tls(&servers, index));
        let wants = client_certificates(conversion, server);
        for mut selector in selectors(conversion, &servers, index) {
            if selector.priority > 0 {
                let others = paths.iter().enumerate().filter(|(other, _)| *other != index);
                selector.elsewhere = others.flat_map(|(_, paths)| paths.iter().cloned()).collect();
            }
            selector.plugins = client_address::plugin(conversion, &server.scope);
            match wants {
                ClientCertificates::NotChecked => {
                    routes::refuse(conversion, server, &selector);
                    continue;
                }
                ClientCertificates::Required if selector.hosts.is_empty() => selector.vars.push(has_certificate()),
                ClientCertificates::Required | ClientCertificates::NotRequired => {}
            }
            routes::carry_over(conversion, server, &selector);
        }
    }
}

/// The certificate of a server, as an entry of `ssls`. `for_others`: it is also that of the names that no server has, and of clients
/// that send none.
pub(super) fn certificates(conversion: &mut Conversion, server: &ServerBlock, for_others: bool) {
    let scope = &server.scope;
    let Some((cert, key)) = scope.value("ssl_certificate").zip(scope.value("ssl_certificate_key")) else { return };
    for other in scope.all("ssl_certificate").iter().rev().skip(1) {
        conversion.lost(&other.place, format!("`{}`: an entry of `ssls` has one certificate", other.head()));
    }
    let names: Vec<_> = server.names.iter().filter(|name| !name.starts_with('~') && !name.ends_with(".*")).collect();
    let is_given = conversion.converted.ssls.iter().any(|ssl| ssl.members[0].1.has_text(FOR_OTHERS));
    if for_others && is_given {
        let text = "a second certificate for names that no server has: write an entry of `ssls` with `listeners`";
        conversion.lost(&server.directive.place, text);
    }
    let for_others = for_others && !is_given;
    if names.is_empty() && !for_others {
        conversion.lost(
            &server.directive.place,
            "`ssl_certificate` of a server without names: an entry of `ssls` needs `snis`",
        );
        return;
    }
    let snis = names.iter().flat_map(|name| match name.strip_prefix('.') {
        Some(domain) => vec![domain.to_ascii_lowercase(), format!("*.{domain}").to_ascii_lowercase()],
        None => vec![name.to_ascii_lowercase()],
    });
    let snis = snis.chain(for_others.then(|| FOR_OTHERS.to_owned()));
    let mut members = vec![
        ("snis".to_owned(), Yaml::texts(snis)),
        ("cert".to_owned(), Yaml::text(cert)),
        ("key".to_owned(), Yaml::text(key)),
    ];
    if let Some(protocols) = scope.last("ssl_protocols") {
        let known = protocols.arguments.iter().filter(|version| ["TLSv1.2", "TLSv1.3"].contains(&version.as_str()));
        let known = Yaml::texts(known);
        if !known.is_empty() {
            members.push(("ssl_protocols".to_owned(), known));
        }
        if protocols.arguments.iter().any(|version| ["TLSv1", "TLSv1.1"].contains(&version.as_str())) {
            conversion
                .lost(&protocols.place, format!("`{}`: TLS 1.2 is the oldest supported version", protocols.head()));
        }
    }
    let is_optional = scope.value("ssl_verify_client") == Some("optional");
    if let Some(ca) = client_authority(scope).filter(|_| is_optional || scope.is_on("ssl_verify_client")) {
        let mut client = vec![("ca".to_owned(), Yaml::text(ca))];
        client.extend(is_optional.then(|| ("mode".to_owned(), Yaml::text("optional"))));
        let depth = scope.value("ssl_verify_depth").and_then(|depth| depth.parse().ok());
        client.extend(depth.map(|depth| ("depth".to_owned(), Yaml::Integer(depth))));
        members.push(("client".to_owned(), Yaml::Map(client)));
    }
    conversion.converted.ssls.push(ConvertedResource::new(&server.directive.place, "ssl_certificate", members));
}

/// The entry of `snis` for all names that no other entry has, and for clients that send none.
pub(super) const FOR_OTHERS: &str = "*";

/// Whether connections for names that no server has get the certificate of this server at one of its addresses.
fn is_default_of_tls(servers: &[ServerBlock], index: usize) -> bool {
    let tls = servers[index].listening.iter().filter(|listen| listen.is_tls);
    tls.into_iter().any(|listen| default_of(servers, listen) == Some(index))
}

/// Whether clients of a server have to show certificates.
#[derive(Clone, Copy)]
enum ClientCertificates {
    NotRequired,
    Required,
    /// The authority that they have to be of is not known.
    NotChecked,
}

/// The file with the authorities of clients' certificates.
pub(super) fn client_authority<'a>(scope: &BlockScope<'a>) -> Option<&'a str> {
    scope.value("ssl_client_certificate").or_else(|| scope.value("ssl_trusted_certificate"))
}

fn client_certificates(conversion: &mut Conversion, server: &ServerBlock) -> ClientCertificates {
    let scope = &server.scope;
    let Some(verify) = scope.last("ssl_verify_client").filter(|_| scope.last("ssl_certificate").is_some()) else {
        return ClientCertificates::NotRequired;
    };
    match verify.argument(0) {
        "on" if client_authority(scope).is_some() => ClientCertificates::Required,
        "on" => {
            let text =
                format!("`{}`: there is no `ssl_client_certificate`; the server answers with 503", verify.head());
            conversion.lost(&verify.place, text);
            ClientCertificates::NotChecked
        }
        "off" => ClientCertificates::NotRequired,
        "optional" if client_authority(scope).is_some() => ClientCertificates::NotRequired,
        _ => {
            let text = format!(
                "`{}`: clients are not asked for certificates; `$ssl_client_verify` is always `NONE`",
                verify.head()
            );
            conversion.lost(&verify.place, text);
            ClientCertificates::NotRequired
        }
    }
}

/// Routes without a host are reached by requests on connections for any name. Those of a server that demands certificates are not
/// for connections on which none was shown.
fn has_certificate() -> Yaml {
    let rule = |name, value| Yaml::texts([name, "==", value]);
    Yaml::List(vec![Yaml::text("OR"), rule("ssl_client_verify", "SUCCESS"), rule("scheme", "http")])
}
