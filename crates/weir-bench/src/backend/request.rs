//! The instructions in the path of a request, the same for HTTP/1.1 and HTTP/2.

use std::time::Duration;

use super::behaviour::{parse_bytes, parse_duration};
use super::work::work;
use super::{BackendAnswer, BackendState, InjectedFailureKind};

/// The action for a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BackendRequest {
    /// Send this answer.
    Answer { status: u16, answer: BackendAnswer },
    /// Fail without an answer.
    Fail(InjectedFailureKind),
    /// Send server-sent events.
    Events(EventStream),
}

/// A stream of server-sent events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EventStream {
    /// Events per second.
    pub rate: f64,
    /// The size of one event in bytes, framing included.
    pub bytes: usize,
    /// The number of events; 0 for no limit.
    pub count: u64,
}

/// Returns the action for a request, after its delay and its work.
#[inline]
pub(super) async fn action_of(host: &BackendState, target: &str) -> BackendRequest {
    if let Some(action_of) = fixed_action(target).await {
        return action_of;
    }
    let delay = host.delay();
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if host.behaviour.work_ns > 0 {
        work(Duration::from_nanos(host.behaviour.work_ns));
    }
    match host.failure() {
        None => BackendRequest::Answer { status: 200, answer: host.behaviour.answer },
        Some(InjectedFailureKind::Status(status)) => BackendRequest::Answer { status, answer: BackendAnswer::Ok },
        Some(how) => BackendRequest::Fail(how),
    }
}

/// The action of a path with a fixed behaviour; `None` for other paths.
async fn fixed_action(target: &str) -> Option<BackendRequest> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let ok = BackendRequest::Answer { status: 200, answer: BackendAnswer::Ok };
    let (name, argument) = path.strip_prefix('/')?.split_once('/').unwrap_or((&path[1..], ""));
    match name {
        "echo" => Some(BackendRequest::Answer { status: 200, answer: BackendAnswer::Echo }),
        "bytes" => Some(BackendRequest::Answer { status: 200, answer: BackendAnswer::Sized(parse_bytes(argument)?) }),
        "status" => {
            let status = argument.parse().ok().filter(|status| (200..=999).contains(status))?;
            Some(BackendRequest::Answer { status, answer: BackendAnswer::Ok })
        }
        "delay" => {
            tokio::time::sleep(parse_duration(argument)?).await;
            Some(ok)
        }
        "cpu" => {
            work(parse_duration(argument)?);
            Some(ok)
        }
        "sse" => Some(BackendRequest::Events(events(query))),
        _ => None,
    }
}

fn events(query: &str) -> EventStream {
    let value = |name: &str| {
        query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    EventStream {
        rate: value("rate").and_then(|rate| rate.parse().ok()).filter(|rate| *rate > 0.0).unwrap_or(10.0),
        bytes: value("bytes").and_then(|bytes| bytes.parse().ok()).unwrap_or(82),
        count: value("count").and_then(|count| count.parse().ok()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(target: &str) -> Option<BackendRequest> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(fixed_action(target))
    }

    #[test]
    fn paths_say_what_they_want() {
        assert_eq!(asked("/"), None);
        assert_eq!(asked("/orders/7"), None);
        assert_eq!(asked("/bytes/x"), None);
        assert_eq!(
            asked("/bytes/5k"),
            Some(BackendRequest::Answer { status: 200, answer: BackendAnswer::Sized(5_120) })
        );
        assert_eq!(asked("/status/404"), Some(BackendRequest::Answer { status: 404, answer: BackendAnswer::Ok }));
        assert_eq!(asked("/echo?a"), Some(BackendRequest::Answer { status: 200, answer: BackendAnswer::Echo }));
        let events = EventStream { rate: 2.5, bytes: 82, count: 3 };
        assert_eq!(asked("/sse?rate=2.5&count=3"), Some(BackendRequest::Events(events)));
    }
}
