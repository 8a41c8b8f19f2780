//! The page of an error from the upstream that makes such pages, in place of an answer.

use std::rc::Rc;
use std::time::Duration;

use weir_plugin::{ClientFacts, Held, PageRequest, ReplyHead, Stop, UpstreamAnswer};
use weir_proto::{Known, RequestHead};

use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;
use crate::message::sides::{ClientSide, until_client_disconnects};

/// The upstreams that pages can be had from.
pub(crate) trait PageUpstreams {
    /// Sends a request in the name of this client, to the upstream with this number.
    fn send(&self, upstream: u32, request: RequestHead, client: ClientFacts) -> UpstreamAnswer;
}

/// The largest page.
const MOST_BYTES: usize = 1 << 20;
/// How long a client waits for a page.
const MOST_TIME: Duration = Duration::from_secs(10);
/// For how many pages a worker waits at once.
const MOST_AT_ONCE: u32 = 1024;

/// Fields that describe content, besides those that any change of content removes.
const OF_CONTENT: [&[u8]; 4] = [b"Content-Type", b"Content-Language", b"Content-Disposition", b"Content-Location"];
/// Fields of the page that take the place of those of the answer. Of any other name, the answer's fields stay: they are of plugins.
const REPLACED: [&[u8]; 2] = [b"Cache-Control", b"Expires"];

/// A page in memory, until it has been sent.
struct FetchedPage {
    head: ReplyHead,
    content: Vec<u8>,
    held: Held,
}

/// A place among the exchanges of a worker that wait for a page.
struct PagePlace(Rc<WorkerContext>);

impl PagePlace {
    fn take(worker: Rc<WorkerContext>) -> Option<PagePlace> {
        let taken = worker.pages.get();
        (taken < MOST_AT_ONCE).then(|| {
            worker.pages.set(taken + 1);
            PagePlace(worker)
        })
    }
}

impl Drop for PagePlace {
    fn drop(&mut self) {
        self.0.pages.set(self.0.pages.get() - 1);
    }
}

/// Puts a page in the place of the answer in the exchange. Without a page the answer stays. What is returned counts the page against
/// the budget of held content.
///
/// # Errors
/// The client has left.
pub(crate) async fn insert(
    upstreams: &impl PageUpstreams,
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
    request: PageRequest,
) -> Result<Option<Held>, Stop> {
    let Some(place) = PagePlace::take(client.context()) else { return Ok(None) };
    let answer = upstreams.send(request.upstream, request.head, exchange.client);
    let fetched = tokio::time::timeout(MOST_TIME, fetch(answer, Held::of(exchange.client.addr)));
    let waiting = Box::pin(async { Ok(fetched.await.ok().flatten()) });
    let page = until_client_disconnects(waiting, |context| client.poll_leave(context)).await;
    drop(place);
    let page = match page {
        Err(stop @ (Stop::ClientGone | Stop::ClientStalled)) => return Err(stop),
        // The answer is there, whatever keeps the page.
        Err(_) | Ok(None) => return Ok(None),
        Ok(Some(page)) => page,
    };
    exchange.body = page.content;
    if !request.keeps_status {
        exchange.response.set_status(page.head.status);
    }
    exchange.forget_response_content();
    take_fields(exchange, &page.head);
    Ok(Some(page.held))
}

/// `None` if there is no page, or one that is too large.
async fn fetch(mut answer: UpstreamAnswer, mut held: Held) -> Option<FetchedPage> {
    let head = answer.head().await.ok()?;
    // A part, or a response that has no content.
    if matches!(head.status, 0..=199 | 204..=206 | 304 | 416) {
        return None;
    }
    let mut content = Vec::new();
    while let Some(piece) = answer.next().await.ok()? {
        content.extend_from_slice(&piece);
        if content.len() > MOST_BYTES {
            return None;
        }
        held.set(content.capacity() as u64).ok()?;
    }
    Some(FetchedPage { head, content, held })
}

/// The fields that describe the page take the place of those of the answer; others are added where the answer has none of the name.
/// Cookies are not taken: they could end a session of the client.
fn take_fields(exchange: &mut ServedExchange, page: &ReplyHead) {
    let head = &mut exchange.response.head;
    for name in OF_CONTENT {
        head.remove(name);
    }
    let of_page = |name: &[u8]| page.fields.iter().any(|(of_page, _)| of_page.eq_ignore_ascii_case(name));
    for name in REPLACED.into_iter().filter(|name| of_page(name)) {
        head.remove(name);
    }
    let mut present: Vec<Box<[u8]>> = head.fields().map(|(name, _)| name.into()).collect();
    present.retain(|name| !name.eq_ignore_ascii_case(b"vary"));
    for (name, value) in &page.fields {
        let known = Known::parse(name);
        let is_of_the_message =
            known.is_hop_by_hop() || matches!(known, Known::ContentLength | Known::Date | Known::Server);
        let is_taken = !is_of_the_message
            && !name.eq_ignore_ascii_case(b"set-cookie")
            && !present.iter().any(|present| present.eq_ignore_ascii_case(name));
        if is_taken {
            // Cannot fail: it was read from a head.
            let _ = head.add(name, value);
        }
    }
}
