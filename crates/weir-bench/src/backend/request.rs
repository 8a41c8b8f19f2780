//! What a request asks of the backend: read from its path, the same for HTTP/1.1 and HTTP/2.

use std::time::Duration;

use super::behaviour::{parse_bytes, parse_duration};
use super::work::work;
use super::{Answer, FailureKind, Host};

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wish {
    /// Answer.
    Answer { status: u16, answer: Answer },
    /// Fail in a way that is not an answer.
    Fail(FailureKind),
    /// Send events.
    Events(Events),
}

/// A stream of server-sent events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Events {
    /// Events per second.
    pub rate: f64,
    /// Bytes of one event, its framing included.
    pub bytes: usize,
    /// How many; 0 is for ever.
    pub count: u64,
}

/// Decides on a request, after the waiting and the work it costs.
#[inline]
pub(super) async fn wish(host: &Host, target: &str) -> Wish {
    if let Some(wish) = special(target).await {
        return wish;
    }
    let delay = host.delay();
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if host.behaviour.work_ns > 0 {
        work(Duration::from_nanos(host.behaviour.work_ns));
    }
    match host.failure() {
        None => Wish::Answer { status: 200, answer: host.behaviour.answer },
        Some(FailureKind::Status(status)) => Wish::Answer { status, answer: Answer::Ok },
        Some(how) => Wish::Fail(how),
    }
}

/// The paths that always do the same.
async fn special(target: &str) -> Option<Wish> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let ok = Wish::Answer { status: 200, answer: Answer::Ok };
    let (name, argument) = path.strip_prefix('/')?.split_once('/').unwrap_or((&path[1..], ""));
    match name {
        "echo" => Some(Wish::Answer { status: 200, answer: Answer::Echo }),
        "bytes" => Some(Wish::Answer { status: 200, answer: Answer::Sized(parse_bytes(argument)?) }),
        "status" => {
            let status = argument.parse().ok().filter(|status| (200..=999).contains(status))?;
            Some(Wish::Answer { status, answer: Answer::Ok })
        }
        "delay" => {
            tokio::time::sleep(parse_duration(argument)?).await;
            Some(ok)
        }
        "cpu" => {
            work(parse_duration(argument)?);
            Some(ok)
        }
        "sse" => Some(Wish::Events(events(query))),
        _ => None,
    }
}

fn events(query: &str) -> Events {
    let value = |name: &str| {
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    Events {
        rate: value("rate").and_then(|rate| rate.parse().ok()).filter(|rate| *rate > 0.0).unwrap_or(10.0),
        bytes: value("bytes").and_then(|bytes| bytes.parse().ok()).unwrap_or(82),
        count: value("count").and_then(|count| count.parse().ok()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(target: &str) -> Option<Wish> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(special(target))
    }

    #[test]
    fn paths_say_what_they_want() {
        assert_eq!(asked("/"), None);
        assert_eq!(asked("/orders/7"), None);
        assert_eq!(asked("/bytes/x"), None);
        assert_eq!(asked("/bytes/5k"), Some(Wish::Answer { status: 200, answer: Answer::Sized(5_120) }));
        assert_eq!(asked("/status/404"), Some(Wish::Answer { status: 404, answer: Answer::Ok }));
        assert_eq!(asked("/echo?a"), Some(Wish::Answer { status: 200, answer: Answer::Echo }));
        let events = Events { rate: 2.5, bytes: 82, count: 3 };
        assert_eq!(asked("/sse?rate=2.5&count=3"), Some(Wish::Events(events)));
    }
}
