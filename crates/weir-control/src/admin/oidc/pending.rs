//! Log-ins that have begun. The node stores none of them: each is in a cookie of its browser, which the node signs. So clients cannot
//! fill the node's memory with log-ins, nor remove those of others. The node remembers only the states that were used.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;

use super::super::sessions::{SessionRefusal, secret};

/// How long a log-in may take.
pub(super) const LONGEST: Duration = Duration::from_mins(10);
/// The most log-ins that one browser has at a time; another one takes the place of its oldest.
const MOST_OF_BROWSER: usize = 4;
/// The most used states that are remembered. Beyond that, the oldest is forgotten: only its own browser could use it again, and the
/// provider takes a code once.
const MOST_USED: usize = 4_096;
/// Between the parts of a log-in in the cookie, and between log-ins.
const PART: char = '-';
const NEXT: char = '.';

/// The log-ins of a process, whose key is lost with it.
pub(super) struct PendingLogIns {
    key: hmac::Key,
    begun: Instant,
    used: Mutex<VecDeque<Box<str>>>,
}

/// A log-in that has begun in a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingLogIn {
    pub(super) state: String,
    /// When it began, in seconds since the process has.
    at_s: u64,
    /// The SHA-256 hash, in hexadecimal digits, of what the page of the console keeps.
    pub(super) page: String,
}

impl PendingLogIns {
    pub(super) fn new() -> Result<PendingLogIns, SessionRefusal> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret()?.as_bytes());
        Ok(PendingLogIns { key, begun: Instant::now(), used: Mutex::default() })
    }

    pub(super) fn begin(&self, page: &str) -> Result<PendingLogIn, SessionRefusal> {
        Ok(PendingLogIn { state: secret()?, at_s: self.begun.elapsed().as_secs(), page: page.to_owned() })
    }

    /// The nonce and the code verifier of a log-in. Who knows the state does not know them.
    pub(super) fn secrets(&self, log_in: &PendingLogIn) -> (String, String) {
        let of = |purpose: &str| hex_of(&hmac::sign(&self.key, format!("{purpose} {}", log_in.state).as_bytes()));
        (of("nonce"), of("verifier"))
    }

    /// The cookie with these log-ins, the oldest first, as far as a browser may have them.
    pub(super) fn cookie(&self, log_ins: &[PendingLogIn]) -> String {
        let from = log_ins.len().saturating_sub(MOST_OF_BROWSER);
        let texts: Vec<String> = log_ins[from..].iter().map(|log_in| self.written(log_in)).collect();
        texts.join(&NEXT.to_string())
    }

    /// The log-ins of a cookie that this process has begun and that may still end.
    pub(super) fn of_cookie(&self, cookie: Option<&str>) -> Vec<PendingLogIn> {
        let texts = cookie.unwrap_or_default().split(NEXT).take(MOST_OF_BROWSER);
        texts.filter_map(|text| self.read(text)).collect()
    }

    /// Marks a state as used; `false` if it is already.
    pub(super) fn take(&self, state: &str) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.iter().any(|own| **own == *state) {
            return false;
        }
        if used.len() >= MOST_USED {
            used.pop_front();
        }
        used.push_back(state.into());
        true
    }

    fn written(&self, PendingLogIn { state, at_s, page }: &PendingLogIn) -> String {
        let text = format!("{state}{PART}{at_s}{PART}{page}");
        let tag = hex_of(&hmac::sign(&self.key, format!("cookie {text}").as_bytes()));
        format!("{text}{PART}{tag}")
    }

    fn read(&self, text: &str) -> Option<PendingLogIn> {
        let [state, at_s, page, _] = text.split(PART).collect::<Vec<_>>().try_into().ok()?;
        let log_in = PendingLogIn { state: state.to_owned(), at_s: at_s.parse().ok()?, page: page.to_owned() };
        let own = self.written(&log_in);
        aws_lc_rs::constant_time::verify_slices_are_equal(own.as_bytes(), text.as_bytes()).ok()?;
        (self.begun.elapsed().as_secs() < log_in.at_s + LONGEST.as_secs()).then_some(log_in)
    }
}

fn hex_of(tag: &hmac::Tag) -> String {
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_ins() -> PendingLogIns {
        PendingLogIns::new().expect("random numbers")
    }

    #[test]
    fn a_cookie_has_the_last_log_ins_of_its_browser() {
        let own = log_ins();
        let all: Vec<PendingLogIn> = (0..6).map(|at| own.begin(&format!("{at}")).expect("begun")).collect();
        let cookie = own.cookie(&all);
        assert_eq!(own.of_cookie(Some(&cookie)), all[2..]);
        assert!(cookie.len() < 1_024, "{} bytes", cookie.len());
        assert_eq!(own.of_cookie(None), []);
        let (nonce, verifier) = own.secrets(&all[0]);
        assert!(nonce != verifier && verifier.len() == 64 && own.secrets(&all[1]).1 != verifier);
    }

    #[test]
    fn a_cookie_that_another_process_or_a_reader_made_counts_for_nothing() {
        let (own, other) = (log_ins(), log_ins());
        let log_in = own.begin("a").expect("begun");
        let cookie = own.cookie(std::slice::from_ref(&log_in));
        assert_eq!(other.of_cookie(Some(&cookie)), []);
        for changed in [
            cookie.replacen("-a-", "-b-", 1),
            cookie.replacen("-0-", "-00-", 1),
            cookie[1..].to_owned(),
            format!("{cookie}0"),
            cookie.replace('-', "."),
            String::new(),
        ] {
            assert_eq!(own.of_cookie(Some(&changed)), [], "{changed}");
        }
    }

    #[test]
    fn a_log_in_ends_in_time() {
        let mut own = log_ins();
        let cookie = own.cookie(&[own.begin("a").expect("begun")]);
        own.begun -= LONGEST - Duration::from_secs(2);
        assert_eq!(own.of_cookie(Some(&cookie)).len(), 1);
        own.begun -= Duration::from_secs(3);
        assert_eq!(own.of_cookie(Some(&cookie)), []);
    }

    #[test]
    fn a_state_is_used_once_and_used_states_are_bounded() {
        let own = log_ins();
        assert!(own.take("a") && !own.take("a"));
        for number in 0..2 * MOST_USED {
            assert!(own.take(&number.to_string()));
        }
        assert_eq!(own.used.lock().expect("no test panics here").len(), MOST_USED);
    }
}
