//! A test record for a destination of log records, and what became of it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use weir_records::{SinkRegister, TestFault, TestOutcome};

use crate::node::status;

/// How long the node waits for the outcome.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most test records at a time.
const MOST_TESTS: usize = 4;

/// Sends test records to the sinks of this process.
pub(super) struct OwnTestRecords {
    turn: Semaphore,
}

impl Default for OwnTestRecords {
    fn default() -> OwnTestRecords {
        OwnTestRecords { turn: Semaphore::new(MOST_TESTS) }
    }
}

impl OwnTestRecords {
    /// Sends one to the sink of this name, and answers with its outcome. Sinks with the same name, such as those with different tokens,
    /// get one each.
    pub(super) async fn send(&self, sink: String) -> Response<Bytes> {
        let problem = |status: StatusCode, text: String| status::json(status, &json!({ "error_msg": text }));
        let Ok(_turn) = self.turn.try_acquire() else {
            let text = format!("the node waits for the outcomes of {MOST_TESTS} test records; try again later");
            return problem(StatusCode::TOO_MANY_REQUESTS, text);
        };
        let mut random = [0; 16];
        if aws_lc_rs::rand::fill(&mut random).is_err() {
            return problem(StatusCode::INTERNAL_SERVER_ERROR, "the random number generator failed".to_owned());
        }
        let id = hex::encode(random);
        let sent = match SinkRegister::of_process().send_test(&sink, &id) {
            Ok(sent) => sent,
            Err(TestFault::NoSink) => {
                let text = "no logger that is in use has this destination; `GET /weir/v1/records` lists the names";
                return problem(StatusCode::NOT_FOUND, text.to_owned());
            }
            Err(TestFault::NoTests) => {
                let text = "what this plugin sends has no place for the mark of a test record; send a request through \
                            one of its routes instead";
                return problem(StatusCode::BAD_REQUEST, text.to_owned());
            }
            Err(TestFault::TooMany) => {
                let text = "many test records for this destination wait already; try again when they are sent";
                return problem(StatusCode::TOO_MANY_REQUESTS, text.to_owned());
            }
        };
        let (deadline, mut outcomes) = (Instant::now() + PATIENCE, Vec::new());
        for test in sent {
            outcomes.push(told(test.outcome(deadline.saturating_duration_since(Instant::now())).await));
        }
        status::json(StatusCode::OK, &json!({ "id": id, "outcomes": outcomes }))
    }
}

fn told(outcome: TestOutcome) -> Value {
    match outcome {
        TestOutcome::Delivered => json!({ "outcome": "delivered" }),
        TestOutcome::Rejected { reason, error } => {
            json!({ "outcome": "rejected", "reason": reason.name(), "error": error })
        }
        TestOutcome::Dropped { reason, error } => {
            json!({ "outcome": "dropped", "reason": reason.name(), "error": error })
        }
        TestOutcome::Pending { error } => json!({ "outcome": "pending", "error": error }),
    }
}
