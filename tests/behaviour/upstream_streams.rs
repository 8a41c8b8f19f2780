//! What upstreams of HTTP/2 have of their own: exchanges share connections.

use weir_testkit::{Client, Gate, Gateway};

use crate::sides::{Http2, Plain, UpstreamSide};

#[test]
fn exchanges_that_begin_together_share_the_first_connection() {
    let gate = Gate::new();
    let origin = Http2::<Plain>::origin({
        let gate = gate.clone();
        move |exchange| {
            gate.wait();
            exchange.answer(200, &[], "together");
        }
    });
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, upstream: {{ http2: true, nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    let mut clients: Vec<Client> = (0..60).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    gate.wait_arrived(clients.len());
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().expect("an answer").status, 200);
    }
    assert_eq!(origin.connections(), 1);
}
