//! Whether a response may be stored, and for how long it can be used (RFC 9111 §3 and §4.2).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_plugin::ReplyHead;

use super::directives::{CacheDirectives, delta_seconds};

/// What the options say about storing.
#[derive(Clone, Debug)]
pub(super) struct StorageRules {
    /// The statuses of responses that are stored.
    pub statuses: Box<[u16]>,
    /// How long a response is fresh that says nothing about it.
    pub default_fresh: Duration,
    pub set_cookie: bool,
    /// Used for responses that say nothing of their own about it.
    pub stale_while_revalidate: Duration,
    /// Used for responses that say nothing of their own about it.
    pub stale_if_error: Duration,
}

/// How long a stored response can be used, counted from its age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub fresh: Duration,
    /// After `fresh`: how long it is used while a newer one is requested.
    pub stale_while_revalidate: Duration,
    /// After `fresh`: how long it is used if the upstream fails.
    pub stale_if_error: Duration,
    /// It is never used stale, even if a client would accept it.
    pub must_revalidate: bool,
}

/// When a response was requested and received. Times are durations since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrivalTimes {
    pub asked: Duration,
    pub received: Duration,
    /// The system's time when it was received, which is compared with the dates of the upstream. The others are from a clock
    /// that a change of the system's time does not move.
    pub system: Duration,
}

impl ArrivalTimes {
    /// The times of a response that is received now.
    pub(super) fn of_request(asked: Duration) -> ArrivalTimes {
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ArrivalTimes { asked, received: crate::clock::now(), system }
    }
}

/// The age of a stored response (RFC 9111 §4.2.3). Times are durations since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredAge {
    /// When the response was received.
    pub received: Duration,
    /// Its age when it was received.
    pub initial: Duration,
}

impl StoredAge {
    /// The age of a response. The `Age` that earlier caches tell is that at the time of the request. Of a list, the first counts
    /// (RFC 9111 §5.1).
    pub(super) fn of(head: &ReplyHead, times: ArrivalTimes) -> StoredAge {
        let first = value(head, b"age").and_then(|age| age.split(|byte| *byte == b',').next());
        let told = first.and_then(|age| delta_seconds(age.trim_ascii()));
        let corrected = told.map(|age| Duration::from_secs(age) + times.received.saturating_sub(times.asked));
        let date = date(head, b"date").flatten();
        let apparent = date.map_or(Duration::ZERO, |date| times.system.saturating_sub(date));
        StoredAge { received: times.received, initial: apparent.max(corrected.unwrap_or_default()) }
    }

    pub(super) fn at(self, now: Duration) -> Duration {
        self.initial + now.saturating_sub(self.received)
    }
}

/// The first value of a field of the head; `name` is in lower case.
pub(super) fn value<'a>(head: &'a ReplyHead, name: &[u8]) -> Option<&'a [u8]> {
    head.fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
}

/// The value of a date field since 1970: `None` without the field, `Some(None)` if it is not a date.
pub(super) fn date(head: &ReplyHead, name: &[u8]) -> Option<Option<Duration>> {
    value(head, name).map(parse_date)
}

pub(super) fn parse_date(text: &[u8]) -> Option<Duration> {
    let date = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok()
}

/// What `Vary` names if each client may get another response: anything, or its address, which the gateway tells the upstream in
/// these fields.
const OF_CLIENT: [&[u8]; 3] = [b"*", b"x-forwarded-for", b"x-real-ip"];

impl StorageRules {
    /// How long the response to a request can be used; `None` if it must not, or need not, be stored. The request has an
    /// `Authorization` field if `is_authorized`.
    pub(super) fn lifetime(&self, head: &ReplyHead, is_authorized: bool) -> Option<Lifetime> {
        let said = CacheDirectives::read(head.values(b"cache-control"));
        let is_shared = said.public || said.s_maxage.is_some() || said.must_revalidate;
        let names_client = |name: &[u8]| OF_CLIENT.iter().any(|field| name.trim_ascii().eq_ignore_ascii_case(field));
        let has_cookie = value(head, b"set-cookie").is_some() && !self.set_cookie;
        let varies_always = head.values(b"vary").any(|vary| vary.split(|byte| *byte == b',').any(names_client));
        let kind = value(head, b"content-type").unwrap_or_default();
        let is_stream = kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"));
        let is_refused = said.no_store || said.private || has_cookie || varies_always || is_stream;
        // RFC 9111 §3.5.
        if is_refused || is_authorized && !is_shared || !self.statuses.contains(&head.status) {
            return None;
        }
        let is_strict = said.must_revalidate || said.proxy_revalidate || said.no_cache;
        // `s-maxage` forbids the use of stale responses (RFC 9111 §5.2.2.10), unless the response itself allows it.
        let must_revalidate = is_strict || said.s_maxage.is_some();
        let stale = |told: Option<u64>, default: Duration| match (is_strict, told) {
            (true, _) => Duration::ZERO,
            (false, Some(seconds)) => Duration::from_secs(seconds),
            (false, None) if must_revalidate => Duration::ZERO,
            (false, None) => default,
        };
        let lifetime = Lifetime {
            fresh: if said.no_cache { Duration::ZERO } else { self.fresh(&said, head) },
            stale_while_revalidate: stale(said.stale_while_revalidate, self.stale_while_revalidate),
            stale_if_error: stale(said.stale_if_error, self.stale_if_error),
            must_revalidate,
        };
        let has_validator = value(head, b"etag").is_some() || value(head, b"last-modified").is_some();
        let longest = lifetime.fresh + lifetime.stale_while_revalidate.max(lifetime.stale_if_error);
        (has_validator || !longest.is_zero()).then_some(lifetime)
    }

    fn fresh(&self, said: &CacheDirectives, head: &ReplyHead) -> Duration {
        if let Some(seconds) = said.s_maxage.or(said.max_age) {
            return Duration::from_secs(seconds);
        }
        match date(head, b"expires") {
            // An invalid date is in the past (RFC 9111 §5.3).
            Some(None) => Duration::ZERO,
            Some(Some(expires)) => {
                let date = date(head, b"date").flatten().unwrap_or_else(crate::clock::now);
                expires.saturating_sub(date)
            }
            None => self.default_fresh,
        }
    }
}

/// What a stored response can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredUse {
    Fresh,
    /// It is sent, and a newer one is requested at the same time.
    WhileRevalidating,
    /// The client accepts its staleness.
    Accepted,
    /// Only after the upstream has confirmed it, or if the upstream fails.
    AfterValidation,
}

impl Lifetime {
    /// What a response of this age can be used for. `wanted` is what the client's `Cache-Control` asks for.
    pub(super) fn use_at(&self, age: Duration, wanted: &CacheDirectives) -> StoredUse {
        let seconds = |told: Option<u64>| told.map(Duration::from_secs);
        let is_too_old = wanted.no_cache || seconds(wanted.max_age).is_some_and(|most| age > most);
        if is_too_old {
            return StoredUse::AfterValidation;
        }
        if age + seconds(wanted.min_fresh).unwrap_or_default() < self.fresh {
            return StoredUse::Fresh;
        }
        let staleness = age.saturating_sub(self.fresh);
        if wanted.min_fresh.is_none() && staleness < self.stale_while_revalidate {
            return StoredUse::WhileRevalidating;
        }
        let accepts = seconds(wanted.max_stale).is_some_and(|most| staleness <= most);
        if accepts && !self.must_revalidate { StoredUse::Accepted } else { StoredUse::AfterValidation }
    }

    /// Whether a response of this age may be sent because the upstream has failed.
    pub(super) fn covers_errors(&self, age: Duration) -> bool {
        age.saturating_sub(self.fresh) < self.stale_if_error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, fields: &[(&str, &str)]) -> ReplyHead {
        let field = |(name, value): &(&str, &str)| (name.as_bytes().into(), value.as_bytes().into());
        ReplyHead { status, fields: fields.iter().map(field).collect() }
    }

    fn rules() -> StorageRules {
        StorageRules {
            statuses: [200, 404].into(),
            default_fresh: Duration::from_secs(300),
            set_cookie: false,
            stale_while_revalidate: Duration::ZERO,
            stale_if_error: Duration::from_secs(9),
        }
    }

    fn fresh(fields: &[(&str, &str)]) -> Option<u64> {
        rules().lifetime(&head(200, fields), false).map(|lifetime| lifetime.fresh.as_secs())
    }

    #[test]
    fn the_most_specific_lifetime_counts() {
        let date = ("Date", "Tue, 15 Nov 1994 12:00:00 GMT");
        for (fields, want) in [
            (&[][..], 300),
            (&[("Cache-Control", "max-age=5")], 5),
            (&[("Cache-Control", "max-age=5, s-maxage=7"), ("Expires", "0")], 7),
            (&[date, ("Expires", "Tue, 15 Nov 1994 12:01:00 GMT")], 60),
            (&[date, ("Expires", "Tue, 15 Nov 1994 11:01:00 GMT"), ("ETag", "x")], 0),
            (&[("Expires", "0"), ("ETag", "x")], 0),
            (&[("Cache-Control", "no-cache"), ("ETag", "x")], 0),
        ] {
            assert_eq!(fresh(fields), Some(want), "{fields:?}");
        }
    }

    #[test]
    fn private_and_unusable_responses_are_not_stored() {
        for fields in [
            [("Cache-Control", "no-store")],
            [("Cache-Control", "private, max-age=60")],
            [("Set-Cookie", "a=b")],
            [("Vary", "Accept, *")],
            [("Vary", "Accept, X-Forwarded-For")],
            [("Vary", "x-real-ip")],
            [("Content-Type", "text/event-stream; charset=utf-8")],
        ] {
            assert_eq!(fresh(&fields), None, "{fields:?}");
        }
        let rules = StorageRules { stale_if_error: Duration::ZERO, ..rules() };
        assert_eq!(rules.lifetime(&head(200, &[("Cache-Control", "max-age=0")]), false), None);
        assert_eq!(rules.lifetime(&head(500, &[]), false), None);
    }

    #[test]
    fn answers_to_authorized_requests_need_leave() {
        for (control, is_stored) in [
            ("max-age=5", false),
            ("public", true),
            ("s-maxage=5", true),
            ("must-revalidate, max-age=5", true),
            ("proxy-revalidate, max-age=5", false),
        ] {
            let lifetime = rules().lifetime(&head(200, &[("Cache-Control", control)]), true);
            assert_eq!(lifetime.is_some(), is_stored, "{control}");
        }
    }

    #[test]
    fn the_age_is_the_larger_of_what_is_told_and_what_is_seen() {
        let system = parse_date(b"Tue, 15 Nov 1994 12:00:30 GMT").expect("a date");
        // The other clock is wrong, and the response has come after three seconds.
        let now = Duration::from_secs(1000);
        let times = ArrivalTimes { asked: now - Duration::from_secs(3), received: now, system };
        for (fields, want) in [
            (&[][..], 0),
            (&[("Age", "7")], 10),
            (&[("Age", "7, 99")], 10),
            (&[("Age", "99999999999999999999")], (1 << 31) + 3),
            (&[("Age", "+7")], 0),
            (&[("Date", "Tue, 15 Nov 1994 12:00:00 GMT"), ("Age", "7")], 30),
            (&[("Date", "Tue, 15 Nov 1994 12:01:00 GMT"), ("Age", "x")], 0),
        ] {
            let age = StoredAge::of(&head(200, fields), times);
            assert_eq!(age.at(now + Duration::from_secs(2)).as_secs(), want + 2, "{fields:?}");
        }
    }

    #[test]
    fn a_stored_response_is_used_as_its_age_and_the_client_allow() {
        use StoredUse::{Accepted, AfterValidation, Fresh, WhileRevalidating};
        let lifetime = |control: &str| {
            let head = head(200, &[("Cache-Control", control), ("ETag", "x")]);
            rules().lifetime(&head, false).expect("it is stored")
        };
        let relaxed = "max-age=10, stale-while-revalidate=5";
        for (control, age, wanted, want) in [
            (relaxed, 9, "", Fresh),
            (relaxed, 10, "", WhileRevalidating),
            (relaxed, 15, "", AfterValidation),
            (relaxed, 9, "no-cache", AfterValidation),
            (relaxed, 9, "max-age=8", AfterValidation),
            (relaxed, 8, "min-fresh=2", AfterValidation),
            (relaxed, 20, "max-stale=10", Accepted),
            (relaxed, 21, "max-stale=10", AfterValidation),
            ("max-age=10, must-revalidate, stale-while-revalidate=5", 11, "max-stale", AfterValidation),
            ("max-age=10, proxy-revalidate", 11, "max-stale", AfterValidation),
            ("no-cache, max-age=10", 1, "max-stale", AfterValidation),
        ] {
            let wanted_directives = CacheDirectives::read([wanted.as_bytes()].into_iter());
            let got = lifetime(control).use_at(Duration::from_secs(age), &wanted_directives);
            assert_eq!(got, want, "{control}, {age} s, {wanted:?}");
        }
        let errors = |control, age| lifetime(control).covers_errors(Duration::from_secs(age));
        assert!(errors("max-age=10", 18) && !errors("max-age=10", 19) && errors("max-age=1, stale-if-error=99", 50));
        assert!(!errors("max-age=10, must-revalidate", 11) && !errors("s-maxage=10", 11));
        assert!(errors("s-maxage=10, stale-if-error=5", 11));
    }
}
