//! Checks the listeners that are resources.

use weir_gateway::snapshot::ListenerProtocol;

use super::Compiler;
use crate::document::Listen;

/// What to do if a resource may not listen on an address.
const RESOURCE_LISTENERS: &str = "add the address to `resource_listeners` in the configuration file of the node";

impl Compiler<'_> {
    /// Refuses listeners of resources that the node's file does not allow, that are there twice, or that cannot be used with the
    /// settings of the node.
    pub(super) fn check_listeners(&self) {
        let document = self.document;
        let report = |listen: &Listen, problem: String, advice: &str| {
            self.report(&listen.origin.path, listen.origin.place, problem, Some(advice.to_owned()));
        };
        let mut others: Vec<&Listen> = document.settings.listen.iter().collect();
        for listener in &document.listeners {
            let listen = &listener.listen;
            let addr = listen.address.socket_addr();
            if document.access.as_ref().is_some_and(|access| !access.may_listen(listen.address)) {
                report(listen, format!("resources may not listen on {addr}"), RESOURCE_LISTENERS);
            }
            if let Some(other) = others.iter().find(|other| other.address.is_same(listen.address)) {
                let problem = format!("{addr} is listened on already, by `{}`", other.origin.path);
                report(listen, problem, "use another address, or remove one of the two");
            }
            if listen.settings.proxy_protocol && document.settings.clients.trusted_addresses.is_empty() {
                let problem = "expects the PROXY protocol, but `trusted_addresses` names no sender".to_owned();
                report(listen, problem, "add the addresses of the load balancers to the configuration file of the node");
            }
            if listen.settings.protocol == ListenerProtocol::Http2 && !document.settings.clients.http2 {
                let problem = "speaks only HTTP/2, and `enable_http2` is off".to_owned();
                report(listen, problem, "remove `h2c`, or remove `enable_http2` from the configuration file of the node");
            }
            others.push(listen);
        }
    }
}
