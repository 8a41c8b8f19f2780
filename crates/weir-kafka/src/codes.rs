//! The error codes of brokers, and what each means for the messages of a produce request.
//!
//! Names, numbers and what a client may try again are from <https://kafka.apache.org/protocol.html#protocol_error_codes> (Kafka 4.4).
//! Where that page calls a code retriable, it is [`ProduceVerdict::Later`] or [`ProduceVerdict::Unknown`], except `CORRUPT_MESSAGE`:
//! damage on the way is detected by TCP and TLS, and brokers answer so to a message without a key in a compacted topic.

/// What a broker's answer means for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProduceVerdict {
    Stored,
    /// It is not stored; smaller batches may be.
    TooLarge,
    /// It is not stored, since the broker refuses one of its messages for good; the others may be stored without that one.
    Message,
    /// It is not stored because of the time of a message. If that holds for all messages, the clock of the sender or the broker is wrong.
    Time,
    /// It is not stored, and nothing is until somebody changes the topic, the rights or the broker.
    Topic,
    /// It is not stored with this producer id or these sequence numbers, which the broker does not know any more.
    Producer,
    /// It is not stored, and may be later.
    Later,
    /// It may be stored, or may be later.
    Unknown,
}

/// An error code.
struct BrokerCode {
    code: i16,
    /// The official name.
    name: &'static str,
    verdict: ProduceVerdict,
    /// What it means.
    about: &'static str,
}

const fn code(code: i16, name: &'static str, verdict: ProduceVerdict, about: &'static str) -> BrokerCode {
    BrokerCode { code, name, verdict, about }
}

#[rustfmt::skip]
static CODES: &[BrokerCode] = {
    use ProduceVerdict::{Later, Message, Producer, Stored, Time, TooLarge, Topic, Unknown};
    &[
        code(-1, "UNKNOWN_SERVER_ERROR", Unknown, "the broker had an unexpected error; its log says which"),
        code(0, "NONE", Stored, "no error"),
        code(1, "OFFSET_OUT_OF_RANGE", Unknown, "the offset is not there any more"),
        code(2, "CORRUPT_MESSAGE", Message, "a message is damaged, or has no key in a compacted topic"),
        code(3, "UNKNOWN_TOPIC_OR_PARTITION", Unknown, "there is no such topic or partition"),
        code(5, "LEADER_NOT_AVAILABLE", Unknown, "the partition has no leader"),
        code(6, "NOT_LEADER_OR_FOLLOWER", Unknown, "another broker leads the partition"),
        code(7, "REQUEST_TIMED_OUT", Unknown, "the replicas did not answer in time"),
        code(10, "MESSAGE_TOO_LARGE", TooLarge, "the batch is larger than `max.message.bytes` of the topic"),
        code(17, "INVALID_TOPIC_EXCEPTION", Topic, "the topic cannot be written to by clients"),
        code(18, "RECORD_LIST_TOO_LARGE", TooLarge, "the batch is larger than `segment.bytes` of the topic"),
        code(19, "NOT_ENOUGH_REPLICAS", Later, "too few replicas are in sync"),
        code(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", Unknown, "too few replicas are in sync"),
        code(21, "INVALID_REQUIRED_ACKS", Topic, "the broker does not know this value of `acks`"),
        code(29, "TOPIC_AUTHORIZATION_FAILED", Topic, "the gateway is not authorized for the topic"),
        code(30, "GROUP_AUTHORIZATION_FAILED", Topic, "the gateway is not authorized"),
        code(31, "CLUSTER_AUTHORIZATION_FAILED", Topic, "the gateway is not authorized for the cluster"),
        code(32, "INVALID_TIMESTAMP", Time, "the time of a message is further from the broker's than `message.timestamp.*.max.ms` of the topic; a clock may be wrong"),
        code(35, "UNSUPPORTED_VERSION", Topic, "the broker does not support this version of the request"),
        code(38, "INVALID_REPLICATION_FACTOR", Topic, "the cluster has fewer brokers than `replication_factor`"),
        code(42, "INVALID_REQUEST", Topic, "the broker does not accept such requests"),
        code(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", Topic, "the topic has an old message format"),
        code(44, "POLICY_VIOLATION", Topic, "a policy of the cluster forbids it"),
        code(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", Producer, "the broker no longer knows the sequence numbers of this producer"),
        code(46, "DUPLICATE_SEQUENCE_NUMBER", Stored, "the batch is a duplicate of one that is stored"),
        code(47, "INVALID_PRODUCER_EPOCH", Producer, "the broker no longer knows this producer id"),
        code(56, "KAFKA_STORAGE_ERROR", Unknown, "the broker's disk failed"),
        code(59, "UNKNOWN_PRODUCER_ID", Producer, "the broker no longer knows this producer id"),
        code(76, "UNSUPPORTED_COMPRESSION_TYPE", Topic, "the topic does not accept this compression"),
        code(87, "INVALID_RECORD", Message, "the topic does not accept a message; a compacted topic needs a key"),
        code(89, "THROTTLING_QUOTA_EXCEEDED", Later, "a quota of the cluster is used up"),
        code(90, "PRODUCER_FENCED", Producer, "another producer has this id"),
    ]
};

fn find(code: i16) -> Option<&'static BrokerCode> {
    CODES.binary_search_by_key(&code, |known| known.code).ok().map(|index| &CODES[index])
}

impl ProduceVerdict {
    /// A code that is not known may be of a later version; nothing is lost for it.
    pub fn of(code: i16) -> ProduceVerdict {
        find(code).map_or(ProduceVerdict::Unknown, |known| known.verdict)
    }
}

/// What a code means, with its name and number.
pub fn describe(code: i16) -> String {
    match find(code) {
        Some(BrokerCode { name, about, .. }) => format!("{about} (error {code}, {name})"),
        None => format!("the broker refused it (error {code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_and_found() {
        assert!(CODES.is_sorted_by(|one, other| one.code < other.code));
        assert_eq!(ProduceVerdict::of(87), ProduceVerdict::Message);
        assert_eq!(ProduceVerdict::of(999), ProduceVerdict::Unknown);
        assert_eq!(describe(19), "too few replicas are in sync (error 19, NOT_ENOUGH_REPLICAS)");
        assert_eq!(describe(999), "the broker refused it (error 999)");
    }

    /// Retriable in Kafka's own clients (4.4), of the codes that an answer to a produce request can have.
    #[test]
    fn codes_that_kafka_calls_retriable_lose_nothing() {
        for code in [3, 5, 6, 7, 19, 20, 56, 89] {
            let verdict = ProduceVerdict::of(code);
            assert!(matches!(verdict, ProduceVerdict::Later | ProduceVerdict::Unknown), "{code} {verdict:?}");
        }
    }
}
