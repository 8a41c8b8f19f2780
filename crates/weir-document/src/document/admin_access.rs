//! Rights in the Admin API: roles, `scopes`, and the `tokens` of an identity provider.

use std::net::IpAddr;
use std::sync::Arc;

use weir_client::ServiceUrl;

use super::RESOURCE_LISTS;
use serde_json::{Value, json};

use crate::keys;
use crate::keys::kinds::{
    Custom, Kind, List, MapOf, ParsedText, SubMap, Text, Words, custom, list, map_of, section, text, words,
};
use crate::keys::schema::Definitions;
use crate::keys::{DeclaredKey, KeyRule, MapKeys};
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::MapEntry;

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

/// `scopes`, beside `role`.
pub(super) const SCOPES: List<SubMap<AdminScope>> =
    list(section(&SCOPE, scope)).not_empty("list at least one scope, or leave `scopes` out for all resources");

const LISTS: &[(&str, &str)] = &{
    let mut lists = [("", ""); RESOURCE_LISTS.len()];
    let mut index = 0;
    while index < lists.len() {
        lists[index] = (RESOURCE_LISTS[index], RESOURCE_LISTS[index]);
        index += 1;
    }
    lists
};

keys! {
    /// A subset of the resources: those that match all of these keys.
    static SCOPE: ScopeKeys = "admin_scope",
        rules &[KeyRule::AnyOf {
            keys: &["kinds", "id_prefix", "labels"],
            problem: "is empty",
            advice: "write `kinds`, `id_prefix` or `labels`, or leave `scopes` out for all resources",
        }];

    /// Their lists.
    kinds: List<Words<&'static str>> = list(words(LISTS)), own(), absent("all"), example("[routes, upstreams]");
    /// The prefix of their ids.
    id_prefix: Text = text(1, 64), own(), absent("any"), example("shop-");
    /// Labels that they must have.
    labels: MapOf<Text> = map_of(text(1, 256)), own(), absent("any"), example("{ team: shop }");
}

/// If absent: all resources.
pub(super) fn scopes(fields: &MapReader, key: &DeclaredKey<List<SubMap<AdminScope>>>) -> Arc<[AdminScope]> {
    fields.read(key).unwrap_or_default().into()
}

fn scope(fields: &MapReader) -> Option<AdminScope> {
    let (kinds, id_prefix, labels) =
        (fields.read(&SCOPE.kinds), fields.read(&SCOPE.id_prefix), fields.read(&SCOPE.labels));
    let is_empty = !fields.has(&SCOPE.kinds) && !fields.has(&SCOPE.id_prefix) && !fields.has(&SCOPE.labels);
    (!is_empty).then(|| AdminScope {
        kinds: kinds.unwrap_or_default(),
        id_prefix: id_prefix.unwrap_or_default(),
        labels: labels.unwrap_or_default(),
    })
}

keys! {
    /// The identity provider whose tokens are accepted, and the rights they give.
    pub(super) static TOKENS: TokensKeys = "admin_tokens", rules &[KeyRule::AtMostOne("discovery", "jwks_uri")];

    /// The issuer of the tokens: their claim `iss`.
    issuer: Text = text(1, 1_024), own(), required("add `issuer: https://login.example/realms/ops`, the value of the claim `iss` in the tokens"),
        example("https://login.example/realms/ops");
    /// The recipient of the tokens: their claim `aud`.
    audience: Text = text(1, 1_024), own(), required("add the `aud` that tokens for this API have: `audience: weir-admin`"),
        example("weir-admin");
    /// The URL of the metadata of the provider (OpenID Connect Discovery).
    discovery: ParsedText<Box<str>> = URL, own(), absent("below `issuer`"),
        example("https://login.example/.well-known/openid-configuration");
    /// The URL of the keys that tokens are signed with (a JSON Web Key Set), in place of `discovery`.
    jwks_uri: ParsedText<Box<str>> = URL, own(), absent("as the metadata says"), example("https://login.example/keys");
    /// Which claim gives which rights.
    roles: SubMap<TokenRoles> = section(&ROLES_OF_TOKENS, read_roles), own(),
        required("add `roles: { claim: groups, map: { gateway-admins: admin } }`");
}

pub(super) const URL: ParsedText<Box<str>> = text(1, 2_048).pattern("^https?://").parsed(trusted_url);

keys! {
    /// The rights that a claim of a token gives.
    pub(super) static ROLES_OF_TOKENS: TokenRolesKeys = "admin_token_roles",
        rules &[KeyRule::All {
            keys: &["claim", "map"],
            problem: "needs `claim` and `map`",
            advice: "write `{ claim: groups, map: { gateway-admins: admin } }`",
        }];

    /// The claim: a member of the payload of the token, or a path such as `realm_access.roles`.
    claim: Text = text(1, 256), own(), example("groups");
    /// Values of the claim with the roles that they give; the first one that the token has applies.
    map: Custom<Vec<(Box<str>, AdminGrant)>> = custom("map: values to roles, or to maps", grants_schema, grants).with(&GRANT), own(),
        example("{ gateway-admins: admin }");
}

keys! {
    /// A role for some resources.
    static GRANT: GrantKeys = "admin_grant";

    /// What the caller may do.
    role: Words<AdminRole> = words(ROLES), own(), required("add `role: editor`"), example("editor");
    /// The resources that the role is for.
    scopes: List<SubMap<AdminScope>> = SCOPES, own(), absent("all"), guide("admin-api.md#some-resources-only");
}

fn grants_schema(definitions: &mut Definitions) -> Value {
    let role = words(ROLES).schema(definitions);
    let one = json!({ "oneOf": [role, { "$ref": definitions.reference(GRANT.table()) }] });
    json!({ "type": "object", "additionalProperties": one, "minProperties": 1 })
}

pub(super) fn tokens(fields: &MapReader) -> Option<AdminTokens> {
    let (issuer, audience) = (fields.read(&TOKENS.issuer), fields.read(&TOKENS.audience));
    let roles = fields.read(&TOKENS.roles);
    let (key_set, discovery) = (fields.read(&TOKENS.jwks_uri), fields.read(&TOKENS.discovery));
    let keys = match (fields.has(&TOKENS.jwks_uri), fields.has(&TOKENS.discovery)) {
        (true, _) => key_set.map(TokenKeys::KeySet),
        (false, true) => discovery.map(TokenKeys::Discovery),
        (false, false) => {
            let place = fields.get(&TOKENS.issuer)?;
            discovery_url(&place, issuer.as_deref()?).map(TokenKeys::Discovery)
        }
    };
    Some(AdminTokens { issuer: issuer?, audience: audience?, keys: keys?, roles: roles? })
}

pub(super) fn read_roles(fields: &MapReader) -> Option<TokenRoles> {
    let (claim, grants) = (fields.read(&ROLES_OF_TOKENS.claim), fields.read(&ROLES_OF_TOKENS.map));
    Some(TokenRoles { claim: claim?, grants: grants? })
}

fn grants(map: &NodeReader) -> Option<Vec<(Box<str>, AdminGrant)>> {
    let grant = |entry: &MapEntry| {
        let at = map.below(entry);
        let grant = if at.is_map() {
            let fields = at.keys(&GRANT)?;
            let scopes = scopes(&fields, &GRANT.scopes);
            AdminGrant { role: fields.read(&GRANT.role)?, scopes }
        } else {
            AdminGrant { role: at.choice(ROLES)?, scopes: Arc::default() }
        };
        Some((entry.key.clone(), grant))
    };
    let entries = map.entries()?;
    if entries.is_empty() {
        map.report_advising("is empty", "map values of the claim to roles: `gateway-admins: admin`");
    }
    Some(entries.iter().filter_map(grant).collect())
}

/// Where an issuer has its metadata (OpenID Connect Discovery 1.0 §4).
pub(super) fn discovery_url(at: &NodeReader, issuer: &str) -> Option<Box<str>> {
    trusted_url(at, &format!("{}{WELL_KNOWN}", issuer.trim_end_matches('/')))
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
