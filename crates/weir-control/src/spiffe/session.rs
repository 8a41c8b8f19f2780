//! Streams from the Workload API, one after the other.

use std::error::Error as _;
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use weir_net::backoff::Backoff;

use super::answer::{self, X509SvidRequest, X509SvidResponse};
use super::{FailureKind, SharedWorkload};
use crate::causes::with_causes;
use crate::document::WorkloadEndpoint;

const CONNECT: Duration = Duration::from_secs(3);
/// The longest time from a request to its first answer, which the Workload API has to send at once (SPIFFE Workload API §4.3).
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// The least time from one answer to the next: each that has something new makes a new configuration of all workers.
const LEAST: Duration = Duration::from_secs(1);
/// The most bytes of an answer, which is as much as gRPC's libraries take by default.
const MOST_ANSWER: usize = 4 << 20;
/// The pauses after failures. The SPIFFE implementation restarts within seconds, and an identity lasts for minutes.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// How often a TCP peer that has vanished is looked for.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How often a process that holds the connection and does nothing is looked for (PING of HTTP/2), and how long it has to answer. More
/// often than each five minutes, servers in Go by default take it for an attack.
const PING: Duration = Duration::from_secs(6 * 60);
const PING_ANSWER: Duration = Duration::from_secs(20);
const METHOD: &str = "/SpiffeWorkloadAPI/FetchX509SVID";
/// The most characters of a message that are quoted.
const MOST_QUOTED: usize = 200;

/// Why a stream has ended.
struct WorkloadFailure {
    problem: String,
    /// The node is not entitled to an identity, as it seems.
    is_denial: bool,
    /// Another try is of no use before something is repaired.
    is_lasting: bool,
}

impl WorkloadFailure {
    fn passing(problem: impl Into<String>) -> WorkloadFailure {
        WorkloadFailure { problem: problem.into(), is_denial: false, is_lasting: false }
    }
}

impl From<Status> for WorkloadFailure {
    fn from(status: Status) -> WorkloadFailure {
        let text = match status.source() {
            Some(cause) => with_causes(cause),
            None => status.message().to_owned(),
        };
        let text: String = text.chars().take(MOST_QUOTED).collect::<String>().replace(char::is_control, " ");
        WorkloadFailure {
            problem: format!("{:?}: {text}", status.code()),
            // The node is not entitled to an identity (SPIFFE Workload API §5.2.1).
            is_denial: status.code() == Code::PermissionDenied,
            // SPIFFE Workload Endpoint, Appendix A. It is tried again all the same, but rarely: a node runs for months, and the
            // implementation may be replaced.
            is_lasting: matches!(status.code(), Code::InvalidArgument | Code::Unimplemented),
        }
    }
}

/// Keeps a stream open. Never ends.
pub(super) async fn follow(shared: &SharedWorkload) {
    let (mut failures, mut was_denied): (u32, bool) = (0, false);
    loop {
        let WorkloadFailure { problem, is_denial, is_lasting } = match connect(&shared.endpoint).await {
            Ok(channel) => receive(channel, shared, &mut failures).await,
            Err(end) => end,
        };
        // An answer came in between.
        was_denied &= failures > 0;
        shared.fail(
            problem,
            match (is_denial, is_lasting) {
                // An implementation that has just started may not know its workloads yet, so one denial alone ends nothing.
                (true, _) if was_denied => FailureKind::Denied,
                (_, true) => FailureKind::Lasting,
                _ => FailureKind::Passing,
            },
        );
        was_denied = is_denial;
        failures = failures.saturating_add(1);
        let pause = if is_lasting { PAUSES.after(u32::MAX) } else { PAUSES.after(failures) };
        sleep(pause.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
    }
}

async fn connect(to: &WorkloadEndpoint) -> Result<Channel, WorkloadFailure> {
    let url = match to {
        WorkloadEndpoint::Unix(path) => format!("unix://{path}"),
        WorkloadEndpoint::Tcp(address) => format!("http://{address}"),
    };
    let wrong = |error: tonic::transport::Error| WorkloadFailure::passing(with_causes(&error));
    let endpoint = Endpoint::from_shared(url).map_err(wrong)?;
    let endpoint = endpoint.connect_timeout(CONNECT).tcp_keepalive(Some(KEEPALIVE));
    let endpoint = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PING_ANSWER).keep_alive_while_idle(true);
    let connected = timeout(CONNECT, endpoint.connect()).await;
    connected.map_err(|_| WorkloadFailure::passing("it does not accept connections"))?.map_err(wrong)
}

/// Takes answers over, until the stream ends.
async fn receive(channel: Channel, shared: &SharedWorkload, failures: &mut u32) -> WorkloadFailure {
    let first = timeout(FIRST_ANSWER, async {
        let mut answers = open(channel).await?;
        let answer = next(&mut answers).await?;
        Ok::<_, WorkloadFailure>((answers, answer))
    });
    let (mut answers, mut message) = match first.await {
        Ok(Ok(opened)) => opened,
        Ok(Err(end)) => return end,
        Err(_) => return WorkloadFailure::passing(format!("it does not answer within {} s", FIRST_ANSWER.as_secs())),
    };
    loop {
        match answer::read(message) {
            Ok(identity) => shared.learn(identity),
            Err(problem) => return WorkloadFailure::passing(format!("its answer is not used: {problem}")),
        }
        *failures = 0;
        sleep(LEAST).await;
        message = match next(&mut answers).await {
            Ok(message) => message,
            Err(end) => return end,
        };
    }
}

async fn open(channel: Channel) -> Result<Streaming<X509SvidResponse>, WorkloadFailure> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MOST_ANSWER);
    grpc.ready().await.map_err(|error| WorkloadFailure::passing(with_causes(&error)))?;
    let mut request = Request::new(X509SvidRequest {});
    // Without it, no request is answered (SPIFFE Workload Endpoint §3).
    request.metadata_mut().insert("workload.spiffe.io", MetadataValue::from_static("true"));
    let codec = ProstCodec::<X509SvidRequest, X509SvidResponse>::default();
    Ok(grpc.server_streaming(request, PathAndQuery::from_static(METHOD), codec).await?.into_inner())
}

async fn next(answers: &mut Streaming<X509SvidResponse>) -> Result<X509SvidResponse, WorkloadFailure> {
    answers.message().await?.ok_or_else(|| WorkloadFailure::passing("it has ended the stream"))
}
