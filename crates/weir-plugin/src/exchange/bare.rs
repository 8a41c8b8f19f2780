//! An exchange without its messages.

use std::rc::Rc;
use std::sync::Arc;

use super::{AttemptRecord, ClientFacts, Exchange, MatchedRoute, Notes, RareParts};
use crate::consumer::Credential;
use crate::stop::Stop;
use crate::tls::Tls;

/// An exchange whose request and response are empty, as those of a stream are: less than half the size of an [`Exchange`].
#[derive(Debug)]
pub struct BareExchange {
    pub client: ClientFacts,
    pub upstream: AttemptRecord,
    tls: Option<Rc<Tls>>,
    route: Option<MatchedRoute>,
    diverted: Option<u32>,
    started_ns: u64,
    responded_locally: bool,
    client_is_proved: bool,
    stop: Option<Stop>,
    identity: Option<Arc<Credential>>,
    notes: Notes,
    rare: Option<Box<RareParts>>,
}

impl Exchange {
    /// Takes everything but the messages, which are empty, and the numbers of bytes, which are not known yet.
    pub fn take_bare(&mut self) -> BareExchange {
        // All fields are named, so that a new one is not forgotten.
        let Exchange {
            request,
            response,
            body,
            client,
            tls,
            route,
            uri_parameters,
            diverted,
            upstream,
            started_ns,
            ended_ns: _,
            request_bytes: _,
            response_bytes: _,
            body_bytes: _,
            body_limit: _,
            responded_locally,
            client_is_proved,
            stop,
            identity,
            notes,
            rare,
        } = self;
        debug_assert!(request.head.entries().is_empty() && response.head.entries().is_empty());
        debug_assert!(body.is_empty() && uri_parameters.is_none());
        BareExchange {
            client: *client,
            upstream: *upstream,
            tls: tls.take(),
            route: route.take(),
            diverted: *diverted,
            started_ns: *started_ns,
            responded_locally: *responded_locally,
            client_is_proved: *client_is_proved,
            stop: *stop,
            identity: identity.take(),
            notes: std::mem::take(notes),
            rare: rare.take(),
        }
    }

    /// Puts back what was taken, into any empty exchange.
    pub fn put_back(&mut self, bare: BareExchange) {
        let BareExchange {
            client,
            upstream,
            tls,
            route,
            diverted,
            started_ns,
            responded_locally,
            client_is_proved,
            stop,
            identity,
            notes,
            rare,
        } = bare;
        (self.client, self.upstream, self.tls, self.route) = (client, upstream, tls, route);
        (self.diverted, self.started_ns) = (diverted, started_ns);
        (self.responded_locally, self.client_is_proved) = (responded_locally, client_is_proved);
        (self.stop, self.identity, self.notes) = (stop, identity, notes);
        if rare.is_some() {
            self.rare = rare;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::NoteKey;

    #[test]
    fn an_exchange_that_was_bare_is_what_it_was() {
        let mut before = Exchange { started_ns: 7, client_is_proved: true, ..Exchange::default() };
        before.client.connection = 3;
        before.upstream.attempts = 2;
        before.notes.write(NoteKey::SAMPLED_TRACE, [1, 2, 3]);
        before.set_remote_user(b"ann".to_vec());
        before.divert_to(5);
        before.end_by(Stop::IdleTimeout);
        let shown = format!("{before:?}");
        let mut after = Exchange::default();
        let mut bare = before.take_bare();
        bare.upstream.header_ns = 9;
        after.put_back(bare);
        assert_eq!(std::mem::take(&mut after.upstream.header_ns), 9);
        assert_eq!(format!("{after:?}"), shown);
    }

    #[test]
    fn a_bare_exchange_takes_less_than_half_the_memory() {
        let (bare, whole) = (size_of::<BareExchange>(), size_of::<Exchange>());
        assert!(2 * bare < whole, "{bare} of {whole}");
    }
}
