//! Authentication: by credentials of consumers, tokens, directories, and external auth services.

pub mod acl;
pub mod attach_consumer_label;
pub mod basic_auth;
pub mod consumer_restriction;
pub mod credentials;
pub mod ext_authz;
pub mod forward_auth;
pub mod hmac_auth;
mod json_bytes;
pub mod jwe_decrypt;
pub mod jwt_auth;
pub mod key_auth;
pub mod ldap_auth;
pub mod mtls_auth;
pub mod multi_auth;
pub mod opa;
pub mod openid_connect;
pub mod recent;
