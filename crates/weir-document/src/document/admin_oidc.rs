//! `admin.oidc`: the identity provider at which people log in to the console.

use std::fmt;
use std::time::Duration;

use weir_client::ServiceUrl;

use super::admin_access::{ROLES_OF_TOKENS, TokenRoles, URL, discovery_url, is_trusted_url, read_roles};
use super::reference_text::literal_secret;
use crate::keys;
use crate::keys::kinds::{Flag, Or, ParsedText, SubMap, Text, Time, Words, flag, section, text, time, words};
use crate::text::read::{MapReader, NodeReader, shortened};

/// The identity provider at which people log in to the console, and the rights they get.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminOidc {
    pub issuer: Box<str>,
    /// The URL of its metadata.
    pub discovery: Box<str>,
    pub client_id: Box<str>,
    /// `None` for a client that has no secret: PKCE alone proves that it began the log-in.
    pub client_secret: Option<Box<str>>,
    pub client_proof: SecretProof,
    /// Where the provider sends browsers back to: an address of this node, with the path [`OIDC_CALLBACK`].
    pub redirect_uri: Box<str>,
    /// What is asked of the provider, as the parameter `scope`.
    pub scope: Box<str>,
    /// What the log-in page calls the provider.
    pub name: Box<str>,
    pub session_lifetime: Duration,
    /// Whether a log-out leads to the provider, to log out there.
    pub end_session: bool,
    pub roles: TokenRoles,
}

/// Without the secret.
impl fmt::Debug for AdminOidc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminOidc").field("issuer", &self.issuer).field("name", &self.name).finish_non_exhaustive()
    }
}

/// How a client shows its secret at the token endpoint (OpenID Connect Core 1.0 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretProof {
    /// In `Authorization`.
    Basic,
    /// In the form.
    Post,
}

/// The path that the provider sends browsers back to.
pub const OIDC_CALLBACK: &str = "/weir/v1/session/oidc/callback";

const PROOFS: &[(&str, SecretProof)] =
    &[("client_secret_basic", SecretProof::Basic), ("client_secret_post", SecretProof::Post)];
/// The longest session, which is that of a session with a key, too.
const LONGEST_SESSION: Duration = Duration::from_hours(8);
const SHORTEST_SESSION: Duration = Duration::from_mins(1);

keys! {
    /// The identity provider at which people log in to the console, by OpenID Connect (authorization code flow with PKCE).
    pub(super) static OIDC: OidcKeys = "admin_oidc";

    /// The issuer of the ID tokens: their claim `iss`.
    issuer: Text = text(1, 1_024), own(), required("add `issuer: https://login.example/realms/ops`, the `issuer` in the metadata of the provider"),
        example("https://login.example/realms/ops");
    /// The URL of the metadata of the provider (OpenID Connect Discovery).
    discovery: ParsedText<Box<str>> = URL, own(), absent("below `issuer`"),
        example("https://login.example/.well-known/openid-configuration");
    /// The id of the console as a client of the provider.
    client_id: Text = text(1, 256), own(), required("add the id that the provider has for the console: `client_id: weir-console`"),
        example("weir-console");
    /// The secret of the client. Without it, the console is a public client, which PKCE alone protects.
    client_secret: ParsedText<Box<str>> = text(1, 1_024).parsed(secret_text), own(), secret(), absent("a public client"),
        example("7Fd2kXq0b1Zc8s");
    /// How the secret is shown at the token endpoint.
    client_auth: Or<Words<SecretProof>> = words(PROOFS).or(SecretProof::Basic), own();
    /// Where the provider sends browsers back to: the address of the console as browsers have it, with the path
    /// `/weir/v1/session/oidc/callback`. The provider has to know this URL.
    redirect_uri: ParsedText<Box<str>> = text(1, 1_024).pattern("^https?://[^/?#]+/weir/v1/session/oidc/callback$").parsed(redirect_uri), own(),
        required("add `redirect_uri: https://HOST/weir/v1/session/oidc/callback`, with the host and port of the console"),
        example("https://admin.example:9180/weir/v1/session/oidc/callback");
    /// What is asked of the provider: the parameter `scope`, with spaces between the values. `openid` must be among them.
    scope: Or<Text> = text(1, 1_024).or("openid"), own(), example("openid groups");
    /// What the log-in page calls the provider: `Log in with NAME`.
    name: Text = text(1, 64), own(), absent("the host of `issuer`"), example("Example SSO");
    /// How long a session lasts at most.
    session_lifetime: Or<Time> = time().between(SHORTEST_SESSION, LONGEST_SESSION).or(LONGEST_SESSION), own();
    /// Whether the log-out leads to the provider as well, to log out there (`end_session_endpoint`). The provider has to know the address
    /// of the console, as `https://HOST/console/`, as one that it may lead to after that.
    end_session: Or<Flag> = flag().or(false), own();
    /// Which claim of the ID token gives which rights. If the ID token does not have the claim, the user information of the provider does.
    roles: SubMap<TokenRoles> = section(&ROLES_OF_TOKENS, read_roles), own(),
        required("add `roles: { claim: groups, map: { gateway-admins: admin } }`");
}

pub(super) fn read(fields: &MapReader) -> Option<AdminOidc> {
    let (issuer, client_id) = (fields.read(&OIDC.issuer), fields.read(&OIDC.client_id));
    let client_secret = fields.read(&OIDC.client_secret);
    let (redirect_uri, roles, name) =
        (fields.read(&OIDC.redirect_uri), fields.read(&OIDC.roles), fields.read(&OIDC.name));
    let scope = fields.value(&OIDC.scope);
    if !scope.split(' ').any(|value| value == "openid")
        && let Some(at) = fields.get(&OIDC.scope)
    {
        at.report_advising("does not contain `openid`", "write `scope: openid groups`");
    }
    let discovery = match fields.has(&OIDC.discovery) {
        true => fields.read(&OIDC.discovery),
        false => fields.get(&OIDC.issuer).and_then(|at| discovery_url(&at, issuer.as_deref()?)),
    };
    // A secret that cannot be read is a fault of its own.
    let (issuer, discovery) = (issuer?, discovery?);
    Some(AdminOidc {
        client_id: client_id?,
        client_secret,
        client_proof: fields.value(&OIDC.client_auth),
        redirect_uri: redirect_uri?,
        scope,
        name: name.unwrap_or_else(|| host_of(&discovery)),
        session_lifetime: fields.value(&OIDC.session_lifetime),
        end_session: fields.value(&OIDC.end_session),
        roles: roles?,
        issuer,
        discovery,
    })
}

/// The address that browsers have to reach.
pub(super) struct ConsoleAddress<'a> {
    pub is_socket: bool,
    pub has_tls: bool,
    pub has_console: bool,
    pub hosts: &'a [Box<str>],
}

/// Reports what keeps browsers from the log-in, whatever the provider says.
pub(super) fn check(at: &NodeReader, oidc: &AdminOidc, address: &ConsoleAddress) {
    if address.is_socket {
        at.report_advising(
            "is not possible on a Unix socket, which browsers cannot connect to",
            "listen on an IP address, or remove `oidc`",
        );
    }
    if !address.has_console {
        at.report_advising("is the log-in to the console, which is switched off", "remove `console: false`, or `oidc`");
    }
    let is_https = oidc.redirect_uri.starts_with("https:");
    if is_https != address.has_tls && !address.is_socket {
        let (problem, advice) = match is_https {
            true => ("`redirect_uri` is an `https` URL, and the address has no TLS", "add `tls: { cert: …, key: … }`"),
            false => ("`redirect_uri` is an `http` URL, and the address has TLS", "write `https://…`"),
        };
        at.report_advising(problem, advice);
    }
    let host = host_of(&oidc.redirect_uri);
    if !is_local_name(&host) && !address.hosts.contains(&host) {
        let problem = format!("`{}` of `redirect_uri` is none of the names of this node", shortened(&host));
        at.report_advising(problem, format!("add the name to `admin.hosts`: `hosts: [{}]`", shortened(&host)));
    }
}

/// Whether a host is an address, or a name that public DNS does not have: it needs no entry in `hosts`.
pub fn is_local_name(host: &str) -> bool {
    let is_address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    is_address || !host.contains('.') || host.ends_with(".localhost")
}

fn secret_text(at: &NodeReader, text: &str) -> Option<Box<str>> {
    literal_secret(at, text).map(Box::from)
}

fn redirect_uri(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let is_own_path = ServiceUrl::parse(text).is_ok_and(|url| url.target() == OIDC_CALLBACK);
    if !is_own_path || text.contains('#') {
        at.report_advising(
            format!("`{}` is no URL with the path `{OIDC_CALLBACK}`", shortened(text)),
            format!("write as `https://admin.example:9180{OIDC_CALLBACK}`"),
        );
        return None;
    }
    if !is_trusted_url(text) {
        at.report_advising(
            format!("`{}` is not an `https` URL, and a log-in would cross the network in the clear", shortened(text)),
            "configure `admin.tls` and write `https://…`; `http` is accepted for 127.0.0.1, ::1 and localhost",
        );
        return None;
    }
    Some(text.into())
}

fn host_of(url: &str) -> Box<str> {
    ServiceUrl::parse(url).map(|url| url.origin().host.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::check_text;

    const CALLBACK: &str = "redirect_uri: 'http://127.0.0.1:9180/weir/v1/session/oidc/callback'";
    const REST: &str =
        "issuer: 'https://login.example', client_id: weir, roles: { claim: groups, map: { ops: admin } }";

    fn faults(oidc: &str, admin: &str) -> Vec<String> {
        let text = format!("admin: {{ oidc: {{ {oidc} }}{admin} }}\n");
        check_text(&text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_provider_needs_an_issuer_a_client_a_way_back_and_roles() {
        assert_eq!(faults(&format!("{REST}, {CALLBACK}"), ""), [""; 0]);
        let told = faults("{}".trim_matches(['{', '}']), "").concat();
        for key in ["issuer", "client_id", "redirect_uri", "roles"] {
            assert!(told.contains(&format!("has no `{key}`")), "{key}: {told}");
        }
        let open = faults(&format!("{}, {CALLBACK}", REST.replace("https:", "http:")), "");
        assert!(open[0].contains("is not an `https` URL"), "{open:?}");
        let scope = faults(&format!("{REST}, {CALLBACK}, scope: email"), "");
        assert!(scope[0].contains("admin.oidc.scope: does not contain `openid`"), "{scope:?}");
        let long = faults(&format!("{REST}, {CALLBACK}, session_lifetime: 9h"), "");
        assert!(long[0].contains("admin.oidc.session_lifetime"), "{long:?}");
        let reference = faults(&format!("{REST}, {CALLBACK}, client_secret: $env://A"), "");
        assert!(reference[0].contains("admin.oidc.client_secret: is a reference"), "{reference:?}");
    }

    #[test]
    fn the_way_back_is_an_address_of_the_console() {
        let of = |uri: &str, admin: &str| faults(&format!("{REST}, redirect_uri: '{uri}'"), admin);
        let path = "/weir/v1/session/oidc/callback";
        for wrong in ["/console/", &format!("{path}?a=b"), &format!("{path}/"), &format!("{path}#a")] {
            let told = of(&format!("http://127.0.0.1:9180{wrong}"), "");
            assert!(told[0].contains("admin.oidc.redirect_uri: "), "{wrong}: {told:?}");
        }
        assert!(of(&format!("http://admin.example{path}"), "")[0].contains("is not an `https` URL"));
        let tls = ", tls: { cert: a.crt, key: a.key }";
        assert!(of(&format!("https://127.0.0.1{path}"), "")[0].contains("the address has no TLS"));
        assert!(of(&format!("http://127.0.0.1{path}"), tls)[0].contains("the address has TLS"));
        let named = of(&format!("https://admin.example{path}"), tls);
        assert!(named[0].contains("add the name to `admin.hosts`"), "{named:?}");
        assert_eq!(of(&format!("https://Admin.example{path}"), &format!("{tls}, hosts: [admin.example]")), [""; 0]);
    }

    #[test]
    fn browsers_can_reach_the_log_in() {
        let of = |admin: &str| faults(&format!("{REST}, {CALLBACK}"), admin);
        assert!(of(", listen: 'unix:/a'")[0].contains("admin.oidc: is not possible on a Unix socket"));
        assert!(of(", console: false")[0].contains("admin.oidc: is the log-in to the console"));
    }
}
