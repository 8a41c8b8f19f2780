//! Requests that a responder has served in the name of its client: whole exchanges, whose responses go to the responder.

use std::rc::Rc;

use weir_plugin::{AnswerWriter, ClientGateway, Exchange, InnerRequest, Stop, UpstreamAnswer};
use weir_proto::h2::{PseudoField, request_head};
use weir_proto::{Known, RequestHead};

use super::serve;
use super::subrequest::SubrequestClient;
use crate::context::frame::boxed;
use crate::context::served_exchange::ServedExchange;
use crate::message::AfterExchange;
use crate::worker::Worker;

/// The gateway for the responder of an exchange; `None` if the exchange is itself one of a responder.
pub(super) fn gateway(worker: &Rc<Worker>, exchange: &Exchange) -> Option<Rc<dyn ClientGateway>> {
    if exchange.carrier().is_some() {
        return None;
    }
    let mut carrier = Exchange::default();
    carrier.request = exchange.request.as_sent();
    carrier.tls.clone_from(&exchange.tls);
    carrier.client = exchange.client.of_another_connection(exchange.client.connection);
    carrier.client.trusted = exchange.client.trusted;
    Some(Rc::new(InnerGateway { worker: Rc::clone(worker), carrier: Rc::new(carrier) }))
}

struct InnerGateway {
    worker: Rc<Worker>,
    /// The exchange that the responder answers, as its client began it.
    carrier: Rc<Exchange>,
}

impl ClientGateway for InnerGateway {
    fn carrier(&self) -> &RequestHead {
        &self.carrier.request
    }

    fn serve(&self, request: InnerRequest) -> UpstreamAnswer {
        let (writer, answer) = AnswerWriter::new();
        let mut exchange = self.worker.buffers.take_exchange();
        self.describe(&mut exchange, &request);
        let worker = Rc::clone(&self.worker);
        let mut client = SubrequestClient::new(worker.context(), writer, request.content);
        // Boxed, because the runtime moves the future several times before it is polled.
        tokio::task::spawn_local(boxed(|| async move {
            client.watch().await;
            let end = match serve(&worker, &mut client, exchange).await {
                AfterExchange::Abort | AfterExchange::Reset => Err(Stop::UpstreamAborted),
                AfterExchange::KeepAlive | AfterExchange::Close | AfterExchange::Finish => Ok(()),
            };
            client.end(end);
        }));
        answer
    }
}

impl InnerGateway {
    /// Makes the exchange of a request. It is read as one of HTTP/2, whose content has no framing.
    fn describe(&self, exchange: &mut ServedExchange, request: &InnerRequest) {
        exchange.started_ns = self.worker.now_ns();
        // A connection of its own, so that its id differs from those of the others.
        exchange.client = self.carrier.client.of_another_connection(self.worker.number_connection());
        exchange.tls.clone_from(&self.carrier.tls);
        exchange.set_carrier(Rc::clone(&self.carrier));
        let scheme = exchange.scheme().as_bytes();
        let length = request.content.len().to_string();
        let has_content = !request.content.is_empty();
        let pseudo = PseudoField {
            method: &request.method,
            scheme: Some(scheme),
            authority: Some(&request.authority),
            path: Some(&request.target),
            protocol: None,
            ended: !has_content,
        };
        let own = request.fields.iter().filter(|(name, _)| !Known::parse(name).is_forwarding());
        let told = told_by_proxies(&self.carrier.request);
        let fields = own.map(|(name, value)| (&**name, &**value));
        let fields = fields.chain(told.iter().map(|(name, value)| (&**name, *value)));
        let fields = fields.chain(has_content.then_some((&b"content-length"[..], length.as_bytes())));
        let limits = self.worker.current().snapshot.clients.limits;
        if let Err(reject) = request_head(&pseudo, fields, &limits, &mut exchange.request) {
            exchange.end_by(Stop::Rejected(reject));
        }
        exchange.request_bytes = exchange.request.head.bytes().len() as u64;
    }
}

/// The fields of the carrier in which proxies tell about the client, with names in lower case.
fn told_by_proxies(carrier: &RequestHead) -> Vec<(Vec<u8>, &[u8])> {
    let told = carrier.head.fields().filter(|(name, _)| Known::parse(name).is_forwarding());
    told.map(|(name, value)| (name.to_ascii_lowercase(), value)).collect()
}
