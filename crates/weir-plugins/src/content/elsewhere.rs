//! Work on long contents of requests, which is done on other threads than the workers', so that other requests do not wait for it.

use std::net::IpAddr;
use std::num::NonZero;
use std::sync::{Arc, LazyLock};

use weir_plugin::Stop;
use weir_plugin::proto::Head;

use crate::fair_turns::FairTurns;

/// Longer contents are worked on elsewhere.
pub(crate) const MOST_AT_ONCE: usize = 16 << 10;

/// The most contents that wait for their turn, a quarter of them of one client. They are held content as well.
const MOST_WAITING: usize = 4096;

/// Limits concurrent work to half of the processors, over all workers, which need processors as well.
static AT_A_TIME: LazyLock<Arc<FairTurns>> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    Arc::new(FairTurns::new((processors / 2).max(1), MOST_WAITING))
});

/// Whether work on the content of a message belongs elsewhere. The size of compressed content is not known in advance.
pub(crate) fn is_long(head: &Head, content: &[u8]) -> bool {
    content.len() > MOST_AT_ONCE || head.value(b"content-encoding").is_some()
}

/// Runs `work` on another thread, once it has a turn. The turn belongs to the work, which continues even if its
/// request has been cancelled.
pub(crate) async fn elsewhere<T: Send + 'static>(
    client: IpAddr,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stop> {
    let turn = AT_A_TIME.take(client).await.ok_or(Stop::Respond(503))?;
    let run = move || {
        let done = work();
        drop(turn);
        done
    };
    tokio::task::spawn_blocking(run).await.map_err(|_| Stop::Internal)
}
