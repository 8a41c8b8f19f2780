//! Tickets of browsers that have come back from the provider: with a ticket, and with what the page of the console has kept, a session
//! begins.
//!
//! A ticket is worth nothing without the text whose hash the page has sent when it began the log-in, and the text nothing without the
//! ticket: who begins a log-in need not be who completes it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;

use super::super::sessions::{SecretHash, SessionRefusal, hash, secret};
use super::super::tokens::TokenCaller;

/// How long a page has to begin its session.
const LIFETIME: Duration = Duration::from_mins(1);
/// The most tickets at a time, each of a user with a role; a further one replaces the oldest.
const MOST: usize = 256;

/// The tickets that have not been used.
#[derive(Default)]
pub(super) struct LogInTickets(Mutex<VecDeque<LogInTicket>>);

struct LogInTicket {
    hash: SecretHash,
    /// The hash of what the page keeps, in hexadecimal digits.
    page: String,
    caller: TokenCaller,
    given: Instant,
}

impl LogInTickets {
    pub(super) fn give(&self, page: &str, caller: TokenCaller) -> Result<String, SessionRefusal> {
        let ticket = secret()?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.given.elapsed() < LIFETIME);
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(LogInTicket { hash: hash(&ticket), page: page.to_owned(), caller, given: Instant::now() });
        Ok(ticket)
    }

    /// Whose ticket this is, if the page is the one that began the log-in. A ticket is gone whatever comes with it.
    pub(super) fn take(&self, ticket: &str, kept: &str) -> Option<TokenCaller> {
        let ticket = hash(ticket);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|one| one.hash == ticket)?;
        let LogInTicket { page, caller, given, .. } = all.remove(at)?;
        let kept: String = hash(kept).iter().map(|byte| format!("{byte:02x}")).collect();
        let is_own = verify_slices_are_equal(page.as_bytes(), kept.as_bytes()).is_ok();
        (is_own && given.elapsed() < LIFETIME).then_some(caller)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::keys::Caller;
    use super::*;
    use crate::document::AdminRole;

    fn alice() -> TokenCaller {
        let caller = Caller { name: "oidc:alice".into(), role: AdminRole::Viewer, scopes: [].into() };
        TokenCaller { caller, until_ms: 1 }
    }

    fn page_of(kept: &str) -> String {
        hash(kept).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_ticket_is_for_one_page_and_for_one_time() {
        let tickets = LogInTickets::default();
        let ticket = tickets.give(&page_of("kept"), alice()).expect("a ticket");
        assert_eq!(tickets.take("other", "kept"), None);
        assert_eq!(tickets.take(&ticket, "kept"), Some(alice()));
        assert_eq!(tickets.take(&ticket, "kept"), None, "it was used");
        let ticket = tickets.give(&page_of("kept"), alice()).expect("a ticket");
        assert_eq!(tickets.take(&ticket, "guessed"), None);
        assert_eq!(tickets.take(&ticket, "kept"), None, "a guess costs the ticket");
    }

    #[test]
    fn tickets_are_bounded_in_number_and_time() {
        let tickets = LogInTickets::default();
        let first = tickets.give(&page_of("kept"), alice()).expect("a ticket");
        let others: Vec<String> =
            (0..MOST).map(|_| tickets.give(&page_of("kept"), alice()).expect("a ticket")).collect();
        assert_eq!(tickets.take(&first, "kept"), None, "the oldest gives way");
        tickets.0.lock().expect("no test panics here").iter_mut().for_each(|one| one.given -= LIFETIME);
        assert_eq!(tickets.take(&others[0], "kept"), None, "it is too old");
        tickets.give(&page_of("kept"), alice()).expect("a ticket");
        assert_eq!(tickets.0.lock().expect("no test panics here").len(), 1);
    }
}
