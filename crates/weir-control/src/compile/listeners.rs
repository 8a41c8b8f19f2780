//! Compiles listeners, and checks those that are resources.

use weir_gateway::snapshot::{ListenerConflict, ListenerProtocol, ListenerRule, ListenerTable, Transport};

use super::Compiler;
use crate::document::{Listen, ListenerSpec, Reference, ResourceOrigin};
use crate::text::read::join;

/// What to do if a resource may not listen on an address.
const RESOURCE_LISTENERS: &str = "add the address to `resource_listeners` in the configuration file of the node";

impl Compiler<'_> {
    /// Which listener a request belongs to. Refuses listeners of resources that the node's file does not allow, that cannot share
    /// their address with another, or that cannot be used with the settings of the node.
    pub(super) fn listeners(&self) -> ListenerTable {
        let mut table = ListenerTable::default();
        let document = self.document;
        if document.listeners.is_empty() {
            return table;
        }
        let mut others: Vec<&Listen> = Vec::new();
        for listen in &document.settings.listen {
            // Two with one address have been reported.
            let _ = add(&mut table, None, &[], listen);
            others.push(listen);
        }
        for ListenerSpec { id, hosts, listen } in &document.listeners {
            self.check_listener(listen);
            let is_other = |other: &&&Listen| other.is_beside(listen) && other.settings != listen.settings;
            if let Some(other) = others.iter().find(is_other) {
                let addr = listen.address.socket_addr();
                let problem = format!("`{}` listens on {addr} with other settings", other.origin.path);
                self.report_listener(
                    listen,
                    problem,
                    "give both the same `tls`, `h2c` and `proxy_protocol`, or two addresses",
                );
            }
            if listen.settings.protocol.transport() == Transport::Udp {
                if others.iter().any(|other| other.is_beside(listen)) {
                    self.report_conflict(listen, ListenerConflict::SameHost("".into()));
                }
            } else if let Err(conflict) = add(&mut table, Some(id), hosts, listen) {
                self.report_conflict(listen, conflict);
            }
            others.push(listen);
        }
        table
    }

    fn check_listener(&self, listen: &Listen) {
        let document = self.document;
        let addr = listen.address.socket_addr();
        if document.access().is_some_and(|access| !access.may_listen(listen.address)) {
            self.report_listener(listen, format!("resources may not listen on {addr}"), RESOURCE_LISTENERS);
        }
        if addr.port() == 0 {
            let problem = "has port 0, so that no client could know the port".to_owned();
            self.report_listener(listen, problem, "choose a port, or use `listen`");
        }
        if listen.settings.proxy_protocol && document.settings.clients.trusted_addresses.is_empty() {
            let problem = "expects the PROXY protocol, but `trusted_addresses` names no sender".to_owned();
            let advice = "add the addresses of the load balancers to the configuration file of the node";
            self.report_listener(listen, problem, advice);
        }
        if listen.settings.protocol == ListenerProtocol::Http2 && !document.settings.clients.http2 {
            let problem = "speaks only HTTP/2, and `enable_http2` is off".to_owned();
            let advice = "remove `h2c`, or remove `enable_http2` from the configuration file of the node";
            self.report_listener(listen, problem, advice);
        }
    }

    fn report_conflict(&self, listen: &Listen, conflict: ListenerConflict) {
        let addr = listen.address.socket_addr();
        match conflict {
            ListenerConflict::SameHost(host) if host.is_empty() => {
                let problem = format!("{addr} is listened on already, for any host");
                self.report_listener(listen, problem, "add `hosts` to one of the two, or use another address");
            }
            ListenerConflict::SameHost(host) => {
                let problem = format!("another listener of {addr} has the host `{host}`");
                self.report_listener(listen, problem, "name each host in one listener of an address");
            }
            ListenerConflict::Host(index, reason) => {
                let path = join(&listen.origin.path, &format!("hosts[{index}]"));
                self.report(&path, self.document.place_at(&path), reason, None);
            }
        }
    }

    fn report_listener(&self, listen: &Listen, problem: String, advice: &str) {
        self.report(&listen.origin.path, listen.origin.place, problem, Some(advice.to_owned()));
    }

    /// Warns of listeners that are not there. It is no fault, since a listener whose port a node cannot open must not take the routes
    /// of other listeners with it.
    pub(super) fn warn_of_missing_listeners(&self, origin: &ResourceOrigin, named: &[Reference]) {
        let is_there = |id: &str| self.document.listeners.iter().any(|listener| *listener.id == *id);
        for Reference { id, place } in named.iter().filter(|named| !is_there(&named.id)) {
            let problem = format!("`listeners` has no `{id}`");
            let advice = "without it, no request belongs to it; add it, or correct the name".to_owned();
            self.warnings.report_text(&join(&origin.path, "listeners"), *place, problem, Some(advice));
        }
    }
}

/// A port that the system chooses is not known here; requests on it belong to no listener that routes can name. Nor do datagrams.
fn add(table: &mut ListenerTable, id: Option<&str>, hosts: &[String], listen: &Listen) -> Result<(), ListenerConflict> {
    if listen.address.port() == 0 || listen.settings.protocol.transport() == Transport::Udp {
        return Ok(());
    }
    table.add(ListenerRule {
        id: id.map(Box::from),
        addr: listen.address.socket_addr(),
        hosts: hosts.to_vec(),
        public_port: listen.public_port.unwrap_or_default(),
    })
}
