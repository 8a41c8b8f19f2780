//! JSON Web Tokens (RFC 7519): their signatures, what is expected of their claims, and the keys of their issuers.
//!
//! [`WebToken`] is a token as it was sent, [`SignedToken`] one whose algorithm is accepted, and [`TokenRules`] what its claims
//! have to say. [`TokenIssuer`] verifies the tokens of one issuer outside of exchanges, for the Admin API. [`OpenidClient`] is a client at a
//! provider, and [`openid_login`] what each log-in there has to prove; [`OpenidProvider`] is one at which people log in to the console.

#![forbid(unsafe_code)]

mod json_web_token;
mod openid_client;
pub mod openid_login;
mod openid_provider;
mod provider_metadata;
mod signed_token;
mod token_issuer;

pub use json_web_token::{Claims, WebToken};
pub use openid_client::{AssertionSigner, ClientAuthMethod, OpenidClient};
pub use openid_provider::{LoginError, LoginSecrets, LoginTerms, OpenidProvider, ReturnedCode};
pub use provider_metadata::ProviderMetadata;
pub use signed_token::{SignedToken, SigningKey, TokenRules, accepted_until_s, now_s};
pub use token_issuer::{IssuerKeys, TokenError, TokenIssuer};
