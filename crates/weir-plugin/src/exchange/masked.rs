//! A copy of an exchange for records, in which plugins mask secrets. The exchange itself is unchanged: plugins such as
//! `proxy-mirror` still need it after it has ended.

use std::fmt;
use std::sync::Arc;

use super::{Exchange, RareParts};

/// Masks the content of requests in records.
pub trait BodyMask: fmt::Debug + Send + Sync {
    /// The part of a body a record may show; the end of the body is missing if it `is_cut`. `None` if secrets in it cannot be
    /// located, so nothing of it may be shown.
    fn masked(&self, shown: &Exchange, body: Vec<u8>, is_cut: bool) -> Option<Vec<u8>>;

    /// The size of the largest body that can be masked, in bytes. Nothing of a larger one is shown.
    fn most_bytes(&self) -> usize;
}

impl Exchange {
    /// The exchange as records show it: the masked copy if there is one.
    pub fn shown(&self) -> &Exchange {
        self.rare.as_ref().and_then(|rare| rare.shown.as_deref()).unwrap_or(self)
    }

    /// Creates the copy that records show from now on, and lets plugins mask it. If masking fails, records show an empty
    /// exchange.
    pub fn mask_copy_for_records<E>(&mut self, mask: impl FnOnce(&Exchange, &mut Exchange) -> Result<(), E>) {
        let mut shown = self.copy_for_records();
        if mask(self, &mut shown).is_err() {
            shown = Exchange::default();
            shown.mask_body(Arc::new(HideBody));
        }
        let body = shown.rare.as_mut().and_then(|rare| rare.request_body.take());
        if let Some(body) = body.and_then(|body| shown.masked_body(body, false)) {
            shown.set_request_body(body);
        }
        self.rare.get_or_insert_default().shown = Some(Box::new(shown));
    }

    /// Adds a mask that content of the request must pass before records show it.
    pub fn mask_body(&mut self, mask: Arc<dyn BodyMask>) {
        self.rare.get_or_insert_default().body_masks.push(mask);
    }

    /// Whether content of the request must pass a mask before records show it.
    pub fn masks_body(&self) -> bool {
        !self.body_masks().is_empty()
    }

    /// The request's content after all masks; see [`BodyMask::masked`].
    pub fn masked_body(&self, body: Vec<u8>, is_cut: bool) -> Option<Vec<u8>> {
        self.body_masks().iter().try_fold(body, |body, mask| mask.masked(self, body, is_cut))
    }

    /// The size of the largest content that all masks can mask, in bytes.
    pub fn most_masked_bytes(&self) -> usize {
        self.body_masks().iter().map(|mask| mask.most_bytes()).min().unwrap_or(usize::MAX)
    }

    fn body_masks(&self) -> &[Arc<dyn BodyMask>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.body_masks)
    }

    fn copy_for_records(&self) -> Exchange {
        let rare = self.rare.as_ref().map(|rare| {
            Box::new(RareParts {
                earlier: rare.earlier.clone(),
                request_body: rare.request_body.clone(),
                remote_user: rare.remote_user.clone(),
                request_id: rare.request_id.clone(),
                secret_arguments: rare.secret_arguments.clone(),
                identity_ends_at: rare.identity_ends_at,
                authorization_metadata: rare.authorization_metadata.clone(),
                processor_metadata: rare.processor_metadata.clone(),
                refused_by: rare.refused_by,
                ..RareParts::default()
            })
        });
        Exchange {
            request: self.request.clone(),
            response: self.response.clone(),
            body: Vec::new(),
            client: self.client,
            tls: self.tls.clone(),
            route: self.route.clone(),
            uri_parameters: self.uri_parameters.clone(),
            diverted: self.diverted,
            upstream: self.upstream,
            started_ns: self.started_ns,
            ended_ns: self.ended_ns,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            body_bytes: self.body_bytes,
            body_limit: self.body_limit,
            responded_locally: self.responded_locally,
            client_is_proved: self.client_is_proved,
            stop: self.stop,
            identity: self.identity.clone(),
            notes: self.notes.clone(),
            rare,
        }
    }
}

/// Hides all content.
#[derive(Debug)]
struct HideBody;

impl BodyMask for HideBody {
    fn masked(&self, _: &Exchange, _: Vec<u8>, _: bool) -> Option<Vec<u8>> {
        None
    }

    fn most_bytes(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use weir_proto::h1::{Limits, parse_request};

    use super::*;

    #[test]
    fn p28_where_masking_fails_records_show_nothing() {
        let mut exchange = Exchange::default();
        let head = "GET /a?b=secret HTTP/1.1\r\nHost: h\r\nX: secret\r\n\r\n";
        parse_request(head.as_bytes(), &Limits::default(), &mut exchange.request).expect("valid").expect("complete");
        exchange.set_request_body(b"secret".to_vec());
        assert_eq!(exchange.shown().request.target(), b"/a?b=secret");
        exchange.mask_copy_for_records(|_, _| Err(()));
        assert_eq!(exchange.request.target(), b"/a?b=secret", "the exchange itself stays");
        let shown = exchange.shown();
        assert_eq!(
            (shown.request.target(), shown.request.head.bytes(), shown.request_body()),
            (&b""[..], &b""[..], None)
        );
        assert_eq!(shown.masked_body(b"secret".to_vec(), false), None);
        exchange.clear();
        assert!(std::ptr::eq(exchange.shown(), &exchange), "the next exchange has no masks");
    }
}
