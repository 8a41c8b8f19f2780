//! The results of delivery attempts, and the record of the latest ones.

use std::fmt;

use weir_client::CallError;

/// The result of a delivery attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryOutcome {
    /// 2xx (W3C WebSub §7).
    Delivered,
    /// 410: the subscription ends.
    Gone,
    /// Any other answer; `wait_ms` is its `Retry-After`.
    Refused {
        status: u16,
        wait_ms: Option<u64>,
    },
    NoAnswer(NoAnswerReason),
    /// The content no longer exists: retention removed it before the attempt.
    ContentGone,
}

/// Why a delivery got no answer. The numbers are written to the state's journal, and are below all statuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum NoAnswerReason {
    #[default]
    Unknown = 0,
    NameLookup = 1,
    AddressDenied = 2,
    Connect = 3,
    Tls = 4,
    /// The connection was open, and no answer came in time.
    TimedOut = 5,
    Broken = 6,
    /// The connection was not open in time, the lookup of the name and the TLS handshake included.
    ConnectTimedOut = 7,
}

/// Why a delivery failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryFailure {
    Status(u16),
    NoAnswer(NoAnswerReason),
}

/// One attempt at a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryAttempt {
    pub at_ms: u64,
    pub event: u64,
    pub took_ms: u32,
    /// The delivered event was a dead letter.
    pub is_replay: bool,
    pub failure: Option<DeliveryFailure>,
}

impl NoAnswerReason {
    const ALL: [NoAnswerReason; 8] = [
        NoAnswerReason::Unknown,
        NoAnswerReason::NameLookup,
        NoAnswerReason::AddressDenied,
        NoAnswerReason::Connect,
        NoAnswerReason::Tls,
        NoAnswerReason::TimedOut,
        NoAnswerReason::Broken,
        NoAnswerReason::ConnectTimedOut,
    ];

    pub(crate) fn of(error: &CallError) -> NoAnswerReason {
        match error {
            CallError::AnswerTimedOut { .. } => NoAnswerReason::TimedOut,
            error if error.is_timeout() => NoAnswerReason::ConnectTimedOut,
            CallError::NameLookup { .. } => NoAnswerReason::NameLookup,
            CallError::AddressDenied { .. } => NoAnswerReason::AddressDenied,
            CallError::Connect { .. } => NoAnswerReason::Connect,
            CallError::Tls { .. } => NoAnswerReason::Tls,
            CallError::Broken { .. } | CallError::Excess { .. } => NoAnswerReason::Broken,
            _ => NoAnswerReason::Unknown,
        }
    }

    /// Whether this shows that the host is down. All callbacks of a host share its name, addresses and certificate. A connection that
    /// is open and gives no answer shows nothing of the other callbacks: whoever subscribes one that stays silent would stop them.
    pub(crate) fn is_of_host(self) -> bool {
        match self {
            NoAnswerReason::NameLookup
            | NoAnswerReason::AddressDenied
            | NoAnswerReason::Connect
            | NoAnswerReason::Tls
            | NoAnswerReason::ConnectTimedOut => true,
            NoAnswerReason::Unknown | NoAnswerReason::TimedOut | NoAnswerReason::Broken => false,
        }
    }
}

impl DeliveryOutcome {
    /// `None` if the delivery succeeded.
    pub(crate) fn failure(self) -> Option<DeliveryFailure> {
        match self {
            DeliveryOutcome::Delivered => None,
            DeliveryOutcome::Gone => Some(DeliveryFailure::Status(410)),
            DeliveryOutcome::Refused { status, .. } => Some(DeliveryFailure::Status(status)),
            DeliveryOutcome::NoAnswer(reason) => Some(DeliveryFailure::NoAnswer(reason)),
            DeliveryOutcome::ContentGone => Some(DeliveryFailure::NoAnswer(NoAnswerReason::Unknown)),
        }
    }
}

impl DeliveryFailure {
    /// Whether this shows that the host is down.
    pub(crate) fn is_of_host(self) -> bool {
        matches!(self, DeliveryFailure::NoAnswer(reason) if reason.is_of_host())
    }

    /// The status, or the number of a reason, which is below all statuses.
    pub(crate) fn code(self) -> u16 {
        match self {
            DeliveryFailure::Status(status) => status,
            DeliveryFailure::NoAnswer(reason) => reason as u16,
        }
    }

    pub(crate) fn from_code(code: u16) -> DeliveryFailure {
        match code {
            100.. => DeliveryFailure::Status(code),
            code => {
                let reason = NoAnswerReason::ALL.into_iter().find(|reason| *reason as u16 == code);
                DeliveryFailure::NoAnswer(reason.unwrap_or_default())
            }
        }
    }
}

impl fmt::Display for DeliveryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self {
            DeliveryFailure::Status(status) => return write!(f, "status {status}"),
            DeliveryFailure::NoAnswer(reason) => reason,
        };
        f.write_str(match reason {
            NoAnswerReason::Unknown => "no answer",
            NoAnswerReason::NameLookup => "the name of the host could not be resolved",
            NoAnswerReason::AddressDenied => {
                "callbacks at the address of the host are not allowed by `subscribe.callbacks`"
            }
            NoAnswerReason::Connect => "the connection could not be opened",
            NoAnswerReason::Tls => "the TLS handshake failed",
            NoAnswerReason::TimedOut => "timed out",
            NoAnswerReason::ConnectTimedOut => "connecting timed out",
            NoAnswerReason::Broken => "the connection ended before the answer",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_codes() {
        let reasons = NoAnswerReason::ALL.map(DeliveryFailure::NoAnswer);
        for failure in reasons.into_iter().chain([DeliveryFailure::Status(503)]) {
            assert_eq!(DeliveryFailure::from_code(failure.code()), failure);
        }
        assert_eq!(DeliveryFailure::from_code(99), DeliveryFailure::NoAnswer(NoAnswerReason::Unknown));
    }
}
