//! The page of an error from the upstream that makes such pages, in place of an answer.

use std::time::Duration;

use weir_plugin::{ClientFacts, Held, PageRequest, ReplyHead, Stop, UpstreamAnswer};
use weir_proto::{Known, RequestHead};

use crate::context::served_exchange::ServedExchange;
use crate::message::sides::{ClientSide, until_client_disconnects};

/// The upstreams that pages can be had from.
pub trait PageUpstreams {
    /// Sends a request in the name of this client, to the upstream with this number.
    fn send(&self, upstream: u32, request: RequestHead, client: ClientFacts) -> UpstreamAnswer;
}

/// The largest page.
const MOST_BYTES: usize = 1 << 20;
/// How long a client waits for a page.
const MOST_TIME: Duration = Duration::from_secs(10);

/// A page in memory, until it has been sent.
struct Page {
    head: ReplyHead,
    content: Vec<u8>,
    held: Held,
}

/// Puts a page in the place of the answer in the exchange. Without a page the answer stays. What is returned counts the page against
/// the budget of held content.
///
/// # Errors
/// The client has left.
pub async fn insert(
    upstreams: &impl PageUpstreams,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    request: PageRequest,
) -> Result<Option<Held>, Stop> {
    let answer = upstreams.send(request.upstream, request.head, exchange.client);
    let fetched = tokio::time::timeout(MOST_TIME, fetch(answer, Held::of(exchange.client.addr)));
    let waiting = Box::pin(async { Ok(fetched.await.ok().flatten()) });
    let Some(page) = until_client_disconnects(waiting, |context| client.poll_leave(context)).await? else {
        return Ok(None);
    };
    let Page { head, content, held } = page;
    exchange.body = content;
    if !request.keeps_status {
        exchange.response.set_status(head.status);
    }
    take_fields(exchange, &head);
    Ok(Some(held))
}

/// `None` if there is no page, or one that is too large.
async fn fetch(mut answer: UpstreamAnswer, mut held: Held) -> Option<Page> {
    let head = answer.head().await.ok()?;
    let mut content = Vec::new();
    while let Some(piece) = answer.next().await.ok()? {
        content.extend_from_slice(&piece);
        if content.len() > MOST_BYTES {
            return None;
        }
        held.set(content.capacity() as u64).ok()?;
    }
    Some(Page { head, content, held })
}

/// The fields of the page take the place of those of the same name.
fn take_fields(exchange: &mut ServedExchange, page: &ReplyHead) {
    let head = &mut exchange.response.head;
    let is_of_the_message = |name: &[u8]| {
        let known = Known::parse(name);
        known.is_hop_by_hop() || matches!(known, Known::ContentLength | Known::Date | Known::Server)
    };
    let fields = page.fields.iter().filter(|(name, _)| !is_of_the_message(name));
    for (name, _) in fields.clone() {
        head.remove(name);
    }
    for (name, value) in fields {
        // Cannot fail: they were read from a head.
        let _ = head.add(name, value);
    }
}
