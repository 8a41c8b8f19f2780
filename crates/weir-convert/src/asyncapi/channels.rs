//! Channels of AsyncAPI 2 and 3, in a common form.

use crate::document::DocumentValue;
use crate::servers::{base_path, with_defaults};

/// A channel, from the clients' point of view.
pub(super) struct ApiChannel<'a> {
    pub address: String,
    pub at: &'a DocumentValue,
    pub servers: Vec<(&'a str, &'a DocumentValue)>,
    /// The messages that clients send; may be empty although they send some.
    pub from_clients: Vec<&'a DocumentValue>,
    clients_send: bool,
    clients_receive: bool,
    /// The method in a binding, if there is one.
    method: Option<&'a str>,
    pub security: Option<&'a DocumentValue>,
}

impl ApiChannel<'_> {
    /// The methods of a channel over HTTP.
    pub(super) fn methods(&self) -> Vec<String> {
        if let Some(method) = self.method {
            return vec![method.to_ascii_uppercase()];
        }
        let by_use = [(self.clients_receive || !self.clients_send, "GET"), (self.clients_send, "POST")];
        by_use.into_iter().filter(|(is_used, _)| *is_used).map(|(_, method)| method.to_owned()).collect()
    }
}

/// The target of a reference, or the value itself.
pub(super) fn resolved<'a>(root: &'a DocumentValue, value: &'a DocumentValue) -> &'a DocumentValue {
    let mut value = value;
    for _ in 0..8 {
        match value.text("$ref").and_then(|pointer| root.at_pointer(pointer)) {
            Some(target) => value = target,
            None => break,
        }
    }
    value
}

fn servers(root: &DocumentValue, wanted: impl Fn(&str) -> bool) -> Vec<(&str, &DocumentValue)> {
    let all = root.get("servers").map_or(&[][..], DocumentValue::members).iter();
    all.filter(|(name, _)| wanted(name)).map(|(name, server)| (name.as_str(), resolved(root, server))).collect()
}

/// The channels of version 2, whose operations describe what clients do.
pub(super) fn of_version_2(root: &DocumentValue) -> Vec<ApiChannel<'_>> {
    let channels = root.get("channels").map_or(&[][..], DocumentValue::members).iter();
    channels.map(|(address, at)| channel_of_version_2(root, address, at)).collect()
}

fn channel_of_version_2<'a>(root: &'a DocumentValue, address: &str, at: &'a DocumentValue) -> ApiChannel<'a> {
    let at = resolved(root, at);
    let names = at.texts("servers");
    let (publish, subscribe) = (at.get("publish"), at.get("subscribe"));
    let message = publish.and_then(|publish| publish.get("message"));
    let from_clients = message.map_or_else(Vec::new, |message| match message.list("oneOf") {
        [] => vec![resolved(root, message)],
        several => several.iter().map(|message| resolved(root, message)).collect(),
    });
    let operations = [publish, subscribe].into_iter().flatten();
    ApiChannel {
        address: address.to_owned(),
        at,
        servers: servers(root, |name| names.is_empty() || names.contains(&name)),
        from_clients,
        clients_send: publish.is_some(),
        clients_receive: subscribe.is_some(),
        method: operations.clone().find_map(http_method).or_else(|| http_method(at)),
        security: operations.filter_map(|operation| operation.get("security")).next(),
    }
}

/// The channels of version 3, whose operations describe what the API does, and refer to their channel.
pub(super) fn of_version_3(root: &DocumentValue) -> Vec<ApiChannel<'_>> {
    let channels = root.get("channels").map_or(&[][..], DocumentValue::members).iter();
    channels.map(|(name, at)| channel_of_version_3(root, name, at)).collect()
}

fn channel_of_version_3<'a>(root: &'a DocumentValue, name: &str, at: &'a DocumentValue) -> ApiChannel<'a> {
    let at = resolved(root, at);
    let pointers: Vec<&str> = at.list("servers").iter().filter_map(|server| server.text("$ref")).collect();
    let is_wanted = |name: &str| pointers.is_empty() || pointers.contains(&format!("#/servers/{name}").as_str());
    let own = format!("#/channels/{}", name.replace('~', "~0").replace('/', "~1"));
    let operations = root.get("operations").map_or(&[][..], DocumentValue::members).iter();
    let operations = operations.map(|(_, operation)| resolved(root, operation));
    let operations: Vec<&DocumentValue> = operations
        .filter(|operation| operation.get("channel").and_then(|channel| channel.text("$ref")) == Some(own.as_str()))
        .collect();
    let does =
        |action: &'static str| operations.iter().filter(move |operation| operation.text("action") == Some(action));
    let mut from_clients = Vec::new();
    for operation in does("receive") {
        let named = operation.list("messages").iter();
        let of_channel = at.get("messages").filter(|_| operation.list("messages").is_empty());
        let of_channel = of_channel.map_or(&[][..], DocumentValue::members).iter().map(|(_, message)| message);
        from_clients.extend(named.chain(of_channel).map(|message| resolved(root, message)));
    }
    ApiChannel {
        address: at.text("address").unwrap_or(name).to_owned(),
        at,
        servers: servers(root, is_wanted),
        from_clients,
        clients_send: does("receive").next().is_some(),
        clients_receive: does("send").next().is_some(),
        method: operations.iter().find_map(|operation| http_method(operation)),
        security: operations.iter().find_map(|operation| operation.get("security")),
    }
}

/// The method in the HTTP binding.
fn http_method(at: &DocumentValue) -> Option<&str> {
    at.get("bindings")?.get("http")?.text("method")
}

/// Host and path of a server. Version 2 has both in `url`.
pub(super) fn location(server: &DocumentValue) -> (String, String) {
    if server.text("host").is_some() {
        return (with_defaults(server, "host"), base_path(&with_defaults(server, "pathname")));
    }
    let url = with_defaults(server, "url");
    let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (host.to_owned(), base_path(path))
}
