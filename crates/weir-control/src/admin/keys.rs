//! Authentication by keys, and the rights of roles.

use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use http::header::{AUTHORIZATION, COOKIE, HeaderMap};

use super::query::Query;
use crate::document::{AdminKey, AdminRole, AdminScope, kinds};

/// Why a request has no valid key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyFault {
    Missing,
    Wrong,
}

/// The sender of a request, authenticated by a key or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) name: Box<str>,
    pub(super) role: AdminRole,
    /// The resources that it may access; empty: all.
    pub(super) scopes: Arc<[AdminScope]>,
}

impl Caller {
    pub(super) fn of_key(key: &AdminKey) -> Caller {
        Caller { name: key.name.clone(), role: key.role, scopes: Arc::clone(&key.scopes) }
    }

    /// A client of the Unix socket of a node without keys.
    pub(super) fn of_socket() -> Caller {
        Caller { name: "socket".into(), role: AdminRole::Admin, scopes: Arc::default() }
    }
}

/// The keys of a node.
#[derive(Clone, Debug)]
pub struct AdminKeys(Arc<[AdminKey]>);

impl AdminKeys {
    pub fn new(keys: Vec<AdminKey>) -> AdminKeys {
        AdminKeys(keys.into())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key of a request. Its hash is compared with that of every key, in constant time, so that the duration reveals nothing
    /// about any key.
    pub(super) fn of_request(&self, query: &Query, headers: &HeaderMap) -> Result<&AdminKey, KeyFault> {
        let brought = brought(query, headers).ok_or(KeyFault::Missing)?;
        self.of_text(brought).ok_or(KeyFault::Wrong)
    }

    /// The key with this text.
    pub(super) fn of_text(&self, text: &str) -> Option<&AdminKey> {
        let hash = digest(&SHA256, text.as_bytes());
        let mut found = None;
        for key in &*self.0 {
            if verify_slices_are_equal(hash.as_ref(), &key.hash).is_ok() {
                found = Some(key);
            }
        }
        found
    }

    /// The key with this name, if it still has this hash.
    pub(super) fn find(&self, name: &str, hash: &[u8; 32]) -> Option<&AdminKey> {
        self.0.iter().find(|key| *key.name == *name && key.hash == *hash)
    }
}

/// The token of `Authorization: Bearer …` (RFC 6750 §2.1).
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// The key in the query, a header field or a cookie, in the order of Apache APISIX.
fn brought<'r>(query: &'r Query, headers: &'r HeaderMap) -> Option<&'r str> {
    let field = || headers.get("x-api-key").and_then(|value| value.to_str().ok());
    let cookie = || {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == "x_api_key").map(|(_, value)| value)
    };
    query.get("api_key").or_else(field).or_else(cookie).filter(|key| !key.is_empty())
}

/// Whether a role may change resources of a list.
pub(super) fn may_write(role: AdminRole, list: &str) -> bool {
    match role {
        AdminRole::Viewer => false,
        AdminRole::Editor => kinds::find(list).is_none_or(|kind| !kind.only_admins),
        AdminRole::Admin => true,
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use weir_testkit::timing::assert_same_time;

    use super::*;

    fn keys() -> AdminKeys {
        let key = |name: &str, role| AdminKey {
            name: name.into(),
            hash: digest(&SHA256, name.as_bytes()).as_ref().try_into().expect("32 bytes"),
            role,
            scopes: Arc::default(),
        };
        AdminKeys::new(vec![key("one", AdminRole::Admin), key("two", AdminRole::Viewer)])
    }

    #[test]
    fn a_key_comes_in_the_query_a_field_or_a_cookie() {
        let (keys, none) = (keys(), HeaderMap::new());
        let name = |query: &str, headers: &HeaderMap| {
            keys.of_request(&Query::parse(query), headers).map(|key| key.name.to_string())
        };
        assert_eq!(name("", &none), Err(KeyFault::Missing));
        assert_eq!(name("api_key=", &none), Err(KeyFault::Missing));
        assert_eq!(name("api_key=one", &none), Ok("one".to_owned()));
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, "a=b; x_api_key=two".parse().expect("a value"));
        assert_eq!(name("", &headers), Ok("two".to_owned()));
        headers.insert("x-api-key", "three".parse().expect("a value"));
        assert_eq!(name("", &headers), Err(KeyFault::Wrong));
        assert_eq!(name("api_key=one", &headers), Ok("one".to_owned()), "the query comes first");
    }

    #[test]
    fn the_time_of_a_check_tells_nothing_about_a_key() {
        const KEY: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
        let hash = digest(&SHA256, KEY).as_ref().try_into().expect("32 bytes");
        let key = AdminKey { name: "one".into(), hash, role: AdminRole::Admin, scopes: Arc::default() };
        let keys = AdminKeys::new(vec![key]);
        let input = |near: bool, random: &mut weir_testkit::timing::Random| {
            if near { random.beginning_as(KEY) } else { random.text::<32>() }
        };
        assert_same_time("keys of the Admin API", input, |brought: &[u8; 32]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-api-key", http::HeaderValue::from_bytes(brought).expect("letters and digits"));
            let _ = black_box(keys.of_request(&Query::default(), &headers));
        });
    }
}
