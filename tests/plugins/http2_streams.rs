//! Streams of HTTP/2 that the client of the testkit does not have: WebSockets, and responses that are read piece by piece.

use bytes::Bytes;
use h2::client::SendRequest;
use weir_testkit::{DEADLINE, Gateway};

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(DEADLINE, work).await.expect("in time") })
}

async fn connected(gateway: &Gateway) -> SendRequest<Bytes> {
    let tcp = tokio::net::TcpStream::connect(gateway.addr()).await.expect("it listens");
    let (requests, connection) = h2::client::handshake(tcp).await.expect("HTTP/2 is spoken");
    tokio::spawn(connection);
    requests
}

/// The status of the answer to a WebSocket's handshake in a stream of HTTP/2 (RFC 8441), after a GET of `first`: the gateway says in
/// its settings, which have come then, that it has such streams.
pub(crate) fn websocket(gateway: &Gateway, first: &str, path: &str) -> u16 {
    run(async {
        let mut requests = connected(gateway).await;
        let get = http::Request::get(format!("http://t{first}")).body(()).expect("a request");
        first_status(&mut requests, get, true).await;
        let connect = http::Request::builder().method(http::Method::CONNECT).uri(format!("http://t{path}"));
        let connect = connect.extension(h2::ext::Protocol::from_static("websocket"));
        let connect = connect.header("sec-websocket-version", "13").body(()).expect("a request");
        first_status(&mut requests, connect, false).await
    })
}

async fn first_status(requests: &mut SendRequest<Bytes>, request: http::Request<()>, ends: bool) -> u16 {
    let (answer, _sending) = requests.send_request(request, ends).expect("the connection stands");
    answer.await.expect("an answer").status().as_u16()
}

/// GETs `path`, and gives each piece of the content to `take` as it comes.
pub(crate) fn pieces(gateway: &Gateway, path: &str, mut take: impl FnMut(&[u8])) {
    run(async {
        let get = http::Request::get(format!("http://t{path}")).body(()).expect("a request");
        let (answer, _) = connected(gateway).await.send_request(get, true).expect("the connection stands");
        let mut content = answer.await.expect("an answer").into_body();
        while let Some(piece) = content.data().await {
            let piece = piece.expect("content");
            content.flow_control().release_capacity(piece.len()).expect("it was received");
            if !piece.is_empty() {
                take(&piece);
            }
        }
    });
}
