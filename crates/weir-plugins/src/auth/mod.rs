//! Authentication: by credentials of consumers, tokens, directories, and external auth services.

pub(crate) mod acl;
pub(crate) mod attach_consumer_label;
pub(crate) mod authz_keycloak;
pub(crate) mod basic_auth;
pub(crate) mod consumer_restriction;
pub(crate) mod credentials;
pub(crate) mod ext_authz;
pub(crate) mod forward_auth;
pub(crate) mod hmac_auth;
mod json_bytes;
pub(crate) mod jwe_decrypt;
pub(crate) mod jwt_auth;
pub(crate) mod key_auth;
pub(crate) mod ldap_auth;
pub(crate) mod mtls_auth;
pub(crate) mod multi_auth;
pub(crate) mod opa;
pub(crate) mod openid_connect;
pub(crate) mod recent;
