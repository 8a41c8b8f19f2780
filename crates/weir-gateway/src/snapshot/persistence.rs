//! How clients stay with their endpoint: by a cookie of the gateway, or by one that the application sets.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use weir_plugin::Variable;

use super::endpoint::Endpoint;

/// The session persistence of an upstream.
#[derive(Debug)]
pub struct Persistence {
    pub(crate) cookie: Variable,
    pub(crate) name: Box<str>,
    pub(crate) kind: PersistenceKind,
    pub when_gone: WhenEndpointGone,
}

/// What happens to a client whose endpoint is out of rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenEndpointGone {
    /// Another endpoint serves it from then on.
    #[default]
    Another,
    /// It is refused (503) until its endpoint is back.
    Refuse,
}

#[derive(Debug)]
pub(crate) enum PersistenceKind {
    /// A cookie that the gateway sets. Its value is a code for the endpoint, which cannot be made or decoded without the
    /// secret.
    Own { endpoints: HashMap<Box<[u8]>, usize>, codes: Vec<Box<str>>, attributes: Box<str> },
    /// A cookie that the application sets. The gateway remembers which endpoint set it.
    Learnt { idle: Duration },
}

impl Persistence {
    /// A cookie of this name that the gateway sets. `attributes` follow its value, as in `; Path=/; HttpOnly`. Without a
    /// secret, a random one is used that lasts as long as the process.
    pub fn gateway_cookie(
        name: &str,
        attributes: &str,
        secret: Option<&str>,
        when_gone: WhenEndpointGone,
        endpoints: &[Endpoint],
    ) -> Persistence {
        let given = secret.map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        let key = given.as_ref().unwrap_or(&MADE_UP);
        let codes: Vec<Box<str>> = endpoints.iter().map(|endpoint| code(key, endpoint)).collect();
        let endpoints = codes.iter().enumerate().map(|(index, code)| (code.as_bytes().into(), index)).collect();
        Persistence {
            cookie: Variable::Cookie(name.into()),
            name: name.into(),
            kind: PersistenceKind::Own { endpoints, codes, attributes: attributes.into() },
            when_gone,
        }
    }

    /// The application's cookie of this name. An endpoint is forgotten when the cookie has not been seen for `idle`.
    pub fn application_cookie(name: &str, idle: Duration, when_gone: WhenEndpointGone) -> Persistence {
        let kind = PersistenceKind::Learnt { idle };
        Persistence { cookie: Variable::Cookie(name.into()), name: name.into(), kind, when_gone }
    }
}

static MADE_UP: LazyLock<hmac::Key> = LazyLock::new(|| {
    let random = aws_lc_rs::rand::SystemRandom::new();
    hmac::Key::generate(hmac::HMAC_SHA256, &random).expect("the system has random numbers")
});

/// The code of an endpoint: 128 bits of a MAC, which neither reveals the address nor can be forged.
fn code(key: &hmac::Key, endpoint: &Endpoint) -> Box<str> {
    let tag = hmac::sign(key, format!("{} {}", endpoint.name, endpoint.addr).as_bytes());
    URL_SAFE_NO_PAD.encode(&tag.as_ref()[..16]).into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn endpoint(port: u16) -> Endpoint {
        let addr = ([127, 0, 0, 1], port).into();
        Endpoint { name: "node:1".into(), addr, weight: 1, priority: 0, host: "".into(), checks: None }
    }

    #[test]
    fn a_code_shows_nothing_and_needs_the_secret() {
        let codes = |secret| {
            let persistence = Persistence::gateway_cookie(
                "c",
                "",
                secret,
                WhenEndpointGone::Another,
                &[endpoint(8001), endpoint(8002)],
            );
            let PersistenceKind::Own { codes, .. } = persistence.kind else { panic!("it is our own") };
            codes
        };
        let (a, b, made_up) = (codes(Some("a")), codes(Some("b")), codes(None));
        assert_eq!(a, codes(Some("a")), "the same on every node and after a restart");
        assert_eq!(made_up, codes(None), "the same as long as the process lives");
        assert!(a != b && a != made_up && a[0] != a[1]);
        assert!(a.iter().all(|code| code.len() == 22 && !code.contains("8001") && !code.contains("node")));
    }
}
