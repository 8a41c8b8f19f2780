//! The HTTP endpoint of a hub, for subscribers, publishers and readers of topics.

use std::sync::Arc;

use weir_hub::Refusal;
use weir_plugin::{Content, Reply, Responder, ResponderRequest, Responding};
use weir_proto::Method;

use super::call::{HubCall, refuse};
use super::listening;
use super::posting;
use super::slot::HubSlot;

/// The responder of one hub.
pub(crate) struct HubResponder {
    slot: Arc<HubSlot>,
}

impl HubResponder {
    pub(crate) fn new(slot: Arc<HubSlot>) -> HubResponder {
        HubResponder { slot }
    }
}

impl Responder for HubResponder {
    fn respond(self: Arc<Self>, request: ResponderRequest, content: Content, mut reply: Reply) -> Responding {
        Box::pin(async move {
            let _in_progress = self.slot.begin();
            let Some(hub) = self.slot.hub().await else {
                let refusal = Refusal::new(503, "the hub is not open: it is being opened or handed over, try again");
                return refuse(&mut reply, &refusal).await;
            };
            let mut call = HubCall::new(&self.slot, hub, request);
            match call.request.head.method {
                Method::Get | Method::Head => listening::answer(&mut call, content, &mut reply).await,
                Method::Post => posting::answer(&call, content, &mut reply).await,
                _ => {
                    reply.begin(405, &[("Allow", "GET, HEAD, POST"), ("Content-Length", "0")]);
                    Ok(())
                }
            }
        })
    }
}
