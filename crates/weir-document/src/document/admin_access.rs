//! Rights in the Admin API: roles, `scopes`, and the `tokens` of an identity provider.

use std::net::IpAddr;
use std::sync::Arc;

use weir_client::ServiceUrl;

use super::RESOURCE_LISTS;
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::{MapEntry, NodeKind};

/// The role of a key or token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdminRole {
    /// May read, with secrets masked.
    Viewer,
    /// May read and write, except secret managers and operations on the store as a whole.
    Editor,
    Admin,
}

impl AdminRole {
    pub fn name(self) -> &'static str {
        match self {
            AdminRole::Viewer => "viewer",
            AdminRole::Editor => "editor",
            AdminRole::Admin => "admin",
        }
    }
}

/// A subset of the resources: those that match all fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminScope {
    /// Lists such as `routes`; empty: all.
    pub kinds: Vec<&'static str>,
    /// The prefix of their ids.
    pub id_prefix: Box<str>,
    /// Labels that a resource must have.
    pub labels: Vec<(Box<str>, Box<str>)>,
}

/// The rights of a caller: a role, and the resources it applies to. Without scopes, all resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminGrant {
    pub role: AdminRole,
    pub scopes: Arc<[AdminScope]>,
}

/// The identity provider whose tokens are accepted, and the rights they give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTokens {
    pub issuer: Box<str>,
    pub audience: Box<str>,
    pub keys: TokenKeys,
    pub roles: TokenRoles,
}

/// The mapping from claims of tokens to rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRoles {
    /// The claim that determines the rights: a member of the token's payload, or a path such as `realm_access.roles`.
    pub claim: Box<str>,
    /// Rights by value of the claim; the first one whose value the token has applies.
    pub grants: Vec<(Box<str>, AdminGrant)>,
}

/// Where the keys are published that tokens are signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKeys {
    /// The URL of a metadata document that names the key set (OpenID Connect Discovery).
    Discovery(Box<str>),
    /// The URL of the key set (RFC 7517).
    KeySet(Box<str>),
}

pub(super) const ROLES: &[(&str, AdminRole)] =
    &[("admin", AdminRole::Admin), ("editor", AdminRole::Editor), ("viewer", AdminRole::Viewer)];

const WELL_KNOWN: &str = "/.well-known/openid-configuration";

/// `scopes`, beside `role`. If absent: all resources.
pub(super) fn scopes(fields: &MapReader) -> Arc<[AdminScope]> {
    let Some(at) = fields.get("scopes") else { return Arc::default() };
    let scopes: Vec<AdminScope> = at.items().filter_map(|item| scope(&item)).collect();
    if at.is_list() && at.items().next().is_none() {
        at.report_advising("is empty", "list at least one scope, or leave `scopes` out for all resources");
    }
    scopes.into()
}

fn scope(at: &NodeReader) -> Option<AdminScope> {
    let fields = at.fields(&["kinds", "id_prefix", "labels"])?;
    let known: Vec<(&str, &'static str)> = RESOURCE_LISTS.iter().map(|list| (*list, *list)).collect();
    let kinds = fields.get("kinds").map(|list| list.items().filter_map(|item| item.choice(&known)).collect());
    let id_prefix = fields.get("id_prefix").and_then(|at| at.text_of(1..=64)).unwrap_or_default().into();
    let labels = fields.get("labels").map(|at| {
        let label = |entry: &MapEntry| Some((entry.key.clone(), at.below(entry).text_of(1..=256)?.into()));
        at.entries().unwrap_or_default().iter().filter_map(label).collect()
    });
    let scope = AdminScope { kinds: kinds.unwrap_or_default(), id_prefix, labels: labels.unwrap_or_default() };
    if !["kinds", "id_prefix", "labels"].iter().any(|key| fields.has(key)) {
        at.report_advising(
            "is empty",
            "write `kinds`, `id_prefix` or `labels`, or leave `scopes` out for all resources",
        );
        return None;
    }
    Some(scope)
}

pub(super) fn tokens(at: &NodeReader) -> Option<AdminTokens> {
    let fields = at.fields(&["issuer", "audience", "discovery", "jwks_uri", "roles"])?;
    fields.at_most_one("discovery", "jwks_uri");
    let required = |key: &str, advice: &str| {
        let found = fields.get(key);
        if found.is_none() {
            at.report_advising(format!("has no `{key}`"), advice);
        }
        found
    };
    let issuer = required("issuer", "add `issuer: https://login.example/realms/ops`, as tokens say it in `iss`");
    let audience = required("audience", "add the `aud` that tokens for this API have: `audience: weir-admin`");
    let roles = required("roles", "add `roles: { claim: groups, map: { gateway-admins: admin } }`");
    let (issuer, audience) = (issuer?.text_of(1..=1024)?, audience?.text_of(1..=1024)?);
    let roles = read_roles(&roles?)?;
    let keys = match (fields.get("jwks_uri"), fields.get("discovery")) {
        (Some(at), _) => TokenKeys::KeySet(url(&at)?),
        (None, Some(at)) => TokenKeys::Discovery(url(&at)?),
        (None, None) => {
            let place = fields.get("issuer")?;
            let discovery = format!("{}{WELL_KNOWN}", issuer.trim_end_matches('/'));
            TokenKeys::Discovery(trusted_url(&place, &discovery)?)
        }
    };
    Some(AdminTokens { issuer: issuer.into(), audience: audience.into(), keys, roles })
}

fn read_roles(at: &NodeReader) -> Option<TokenRoles> {
    let fields = at.fields(&["claim", "map"])?;
    let (Some(claim), Some(map)) = (fields.get("claim"), fields.get("map")) else {
        at.report_advising("needs `claim` and `map`", "write `{ claim: groups, map: { gateway-admins: admin } }`");
        return None;
    };
    let grant = |entry: &MapEntry| {
        let at = map.below(entry);
        let grant = match &at.node().kind {
            NodeKind::Map(_) => {
                let fields = at.fields(&["role", "scopes"])?;
                let Some(role) = fields.get("role") else {
                    at.report_advising("has no `role`", "add `role: editor`");
                    return None;
                };
                AdminGrant { role: role.choice(ROLES)?, scopes: scopes(&fields) }
            }
            _ => AdminGrant { role: at.choice(ROLES)?, scopes: Arc::default() },
        };
        Some((entry.key.clone(), grant))
    };
    let grants: Vec<_> = map.entries()?.iter().filter_map(grant).collect();
    if map.entries()?.is_empty() {
        map.report_advising("is empty", "map values of the claim to roles: `gateway-admins: admin`");
    }
    Some(TokenRoles { claim: claim.text_of(1..=256)?.into(), grants })
}

fn url(at: &NodeReader) -> Option<Box<str>> {
    trusted_url(at, at.text_of(1..=2048)?)
}

/// The URL must be trusted, since anyone able to replace the keys in transit could issue valid tokens.
fn trusted_url(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if !is_trusted_url(text) {
        at.report_advising(
            format!("`{}` is not an `https` URL", shortened(text)),
            "write as `https://login.example/…`; `http` is accepted for 127.0.0.1, ::1 and localhost",
        );
        return None;
    }
    Some(text.into())
}

/// Whether content read from this URL cannot be modified in transit: it is `https`, or on this machine.
pub fn is_trusted_url(text: &str) -> bool {
    let Ok(url) = ServiceUrl::parse(text) else { return false };
    let host = &*url.origin().host;
    url.origin().is_https || host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use crate::check_text;

    fn faults(of_admin: &str) -> Vec<String> {
        let text = format!("admin: {{ {of_admin} }}\n");
        check_text(&text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tokens_need_an_issuer_an_audience_and_roles() {
        let of = |tokens: &str| faults(&format!("tokens: {{ {tokens} }}"));
        let roles =
            "roles: { claim: groups, map: { ops: admin, a: { role: editor, scopes: [{ labels: { team: a } }] } } }";
        assert_eq!(of(&format!("issuer: 'https://a.example', audience: weir, {roles}")), [""; 0]);
        assert_eq!(of(&format!("issuer: a, audience: weir, jwks_uri: 'http://127.0.0.1:1/keys', {roles}")), [""; 0]);
        let open = of(&format!("issuer: 'http://a.example', audience: weir, {roles}"));
        assert!(open[0].contains("is not an `https` URL"), "{open:?}");
        let told = of("{}").concat() + &of("issuer: 'https://a.example', audience: weir").concat();
        assert!(told.contains("has no `roles`"), "{told}");
        let wrong = of("issuer: 'https://a.example', audience: weir, roles: { claim: groups, map: { ops: root } }");
        assert!(wrong[0].contains("admin.tokens.roles.map.ops: `root` is not an allowed value"), "{wrong:?}");
    }

    #[test]
    fn scopes_say_something() {
        let of = |scopes: &str| faults(&format!("keys: [{{ name: a, key: 0123456789abcdefg, scopes: {scopes} }}]"));
        assert_eq!(of("[{ kinds: [routes, upstreams], id_prefix: a- }, { labels: { team: a } }]"), [""; 0]);
        assert!(of("[]")[0].contains("keys[0].scopes: is empty"));
        assert!(of("[{}]")[0].contains("keys[0].scopes[0]: is empty"));
        assert!(of("[{ kinds: [route] }]")[0].contains("`route` is not an allowed value"));
    }
}
