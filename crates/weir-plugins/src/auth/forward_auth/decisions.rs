//! Decisions of the service that are used again for requests with the same key.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::Response;
use http::header::{CACHE_CONTROL, SET_COOKIE};
use hyper::body::Bytes;
use weir_plugin::{Build, Exchange, PerWorker, Template};

use crate::auth::recent::{RecentResults, SecretDigest};

/// The most decisions that each worker keeps, and their bytes, over all plugins.
const MOST: usize = 16_384;
const MOST_BYTES: usize = 16 << 20;

type KnownDecisions = RefCell<RecentResults<Rc<Response<Bytes>>>>;

pub(super) struct DecisionCache {
    key: Template,
    ttl: Duration,
    /// The plugin that asked: another one with the same key may ask another service.
    seal: Box<str>,
    known: PerWorker<KnownDecisions>,
}

impl DecisionCache {
    pub(super) fn new(key: &str, ttl: Duration, build: &mut Build) -> DecisionCache {
        DecisionCache {
            key: build.template(key, "cache_key"),
            ttl,
            seal: build.identity().into(),
            known: build.per_worker("forward-auth-decisions", "", || {
                RefCell::new(RecentResults::new(MOST).with_most_bytes(MOST_BYTES))
            }),
        }
    }

    /// The key of a request; `None` if all variables in it are missing, for example since the client has no session.
    pub(super) fn key(&self, exchange: &Exchange) -> Option<SecretDigest> {
        let (mut key, mut empty) = (Vec::new(), Vec::new());
        self.key.render(exchange, &mut key);
        self.key.render(&Nothing, &mut empty);
        (key != empty).then(|| SecretDigest::of(&[self.seal.as_bytes(), &key]))
    }

    pub(super) fn find(&self, key: SecretDigest) -> Option<Rc<Response<Bytes>>> {
        self.known.get().borrow().find(key)
    }

    /// Keeps a decision, if it may be used again.
    pub(super) fn keep(&self, key: SecretDigest, answer: &Rc<Response<Bytes>>) {
        if !may_be_kept(answer) {
            return;
        }
        let fields = answer.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
        let until = Instant::now() + self.ttl;
        self.known.get().borrow_mut().keep_sized(key, Rc::clone(answer), until, fields + answer.body().len());
    }
}

/// Whether the answer is a decision about the key alone. One that sets a cookie is for one client; an error of the service is no
/// decision.
fn may_be_kept(answer: &Response<Bytes>) -> bool {
    let is_decision = answer.status().is_success() || [401, 403].contains(&answer.status().as_u16());
    let forbids = |value: &http::HeaderValue| {
        let value = value.to_str().unwrap_or("no-store").to_ascii_lowercase();
        ["no-store", "no-cache", "private"].iter().any(|word| value.contains(word))
    };
    let fields = answer.headers();
    is_decision && !fields.contains_key(SET_COOKIE) && !fields.get_all(CACHE_CONTROL).iter().any(forbids)
}

/// A request without any value.
struct Nothing;

impl weir_plugin::Variables for Nothing {
    fn variable(&self, _: &weir_plugin::Variable) -> Option<std::borrow::Cow<'_, [u8]>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, fields: &[(&str, &str)]) -> Response<Bytes> {
        let builder = Response::builder().status(status);
        let with = fields.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
        with.body(Bytes::new()).expect("valid")
    }

    #[test]
    fn decisions_are_kept_unless_they_are_for_one_client() {
        for (status, fields, kept) in [
            (200, &[][..], true),
            (204, &[("cache-control", "max-age=5")], true),
            (401, &[], true),
            (302, &[], false),
            (500, &[], false),
            (200, &[("set-cookie", "a=b")], false),
            (200, &[("cache-control", "public"), ("cache-control", "No-Store")], false),
        ] {
            assert_eq!(may_be_kept(&answer(status, fields)), kept, "{status} {fields:?}");
        }
    }
}
