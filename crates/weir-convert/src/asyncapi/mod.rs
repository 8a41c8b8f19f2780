//! AsyncAPI 2 and 3: a route for each channel over WebSocket or HTTP, and a hub for channels over WebSub.
//!
//! A channel that requires authentication which cannot be converted responds to every request with 503.

mod channels;
mod hub;

use crate::conversion::DocumentConversion;
use crate::document;
use crate::login::{self, NamedPlugin, NotConvertible};
use crate::output::{Converted, ConvertedResource, id_of};
use crate::path;
use crate::schema::RequestSchema;
use crate::servers;
use crate::yaml::{Yaml, YamlMembers};
use crate::{SourcePlace, SyntaxError};
use channels::{ApiChannel, resolved};
use hub::ConvertedHub;

/// Converts a definition.
pub fn convert(file: &str, text: &str) -> Result<Converted, SyntaxError> {
    let root = document::parse(file, text)?;
    let error = |text: &str| SyntaxError {
        place: SourcePlace { file: file.to_owned(), line: root.line },
        text: text.to_owned(),
    };
    let channels = match root.text("asyncapi") {
        Some(version) if version.starts_with("2.") => channels::of_version_2(&root),
        Some(version) if version.starts_with("3.") => channels::of_version_3(&root),
        Some(_) => return Err(error("only AsyncAPI 2 and 3 are converted")),
        None => return Err(error("there is no `asyncapi`; an AsyncAPI definition begins with its version")),
    };
    let mut conversion = DocumentConversion::new(file, &root);
    let mut hub = ConvertedHub::default();
    for channel in &channels {
        carry_over(&mut conversion, channel, &mut hub);
    }
    hub.finish(&mut conversion);
    Ok(conversion.finished())
}

fn carry_over(conversion: &mut DocumentConversion, channel: &ApiChannel, hub: &mut ConvertedHub) {
    let protocol = |server: &document::DocumentValue| server.text("protocol").unwrap_or_default().to_ascii_lowercase();
    let is_known = |protocol: &str| ["ws", "wss", "http", "https", "sse", "websub"].contains(&protocol);
    let Some((_, server)) = channel.servers.iter().find(|(_, server)| is_known(&protocol(server))) else {
        let protocols: Vec<String> = channel.servers.iter().map(|(_, server)| protocol(server)).collect();
        let text = match protocols.is_empty() {
            true => format!("`{}`: the channel has no server", channel.address),
            false => format!(
                "`{}`: {} is not converted, only WebSocket, HTTP and WebSub",
                channel.address,
                protocols.join(", ")
            ),
        };
        return conversion.lost(channel.at, text);
    };
    for (name, other) in channel.servers.iter().filter(|(_, other)| !std::ptr::eq(*other, *server)) {
        conversion.lost(other, format!("server `{name}`: only one server of a channel is converted"));
    }
    let login = login::plugin(conversion, channel.security.or_else(|| server.get("security")));
    let (host, base) = channels::location(server);
    let protocol = protocol(server);
    if protocol == "websub" {
        return hub.add(conversion, channel, &format!("{host}{base}"), &base, login);
    }
    let uri = path::convert(&format!("{base}/{}", channel.address.trim_start_matches('/')));
    let mut members: YamlMembers =
        vec![("id".to_owned(), Yaml::text(id_of(&channel.address))), ("uri".to_owned(), Yaml::text(uri.uri))];
    if let Some(pattern) = uri.pattern {
        members.push(("vars".to_owned(), Yaml::List(vec![Yaml::texts(["uri", "~~", &pattern])])));
    }
    let is_websocket = protocol.starts_with("ws");
    match is_websocket {
        true => members.push(("enable_websocket".to_owned(), Yaml::Boolean(true))),
        false => members.push(("methods".to_owned(), Yaml::texts(channel.methods()))),
    }
    let mut plugins = YamlMembers::new();
    match login {
        Ok(login) => {
            let scheme = if protocol == "sse" { "https" } else { &protocol };
            let upstream = servers::upstream(conversion, server, scheme, &host);
            members.push(("upstream_id".to_owned(), Yaml::text(upstream)));
            plugins.extend(login);
            if is_websocket {
                plugins.extend(message_validation(conversion, channel));
            }
        }
        Err(NotConvertible) => plugins.push(login::refusal()),
    }
    if !plugins.is_empty() {
        members.push(("plugins".to_owned(), Yaml::Map(plugins)));
    }
    let what = format!("channel {}", channel.address);
    conversion.converted.routes.push(ConvertedResource::new(&conversion.place(channel.at), what, members));
}

/// The plugin that validates the messages of clients: each must match one of the schemas.
fn message_validation(conversion: &mut DocumentConversion, channel: &ApiChannel) -> Option<NamedPlugin> {
    let root = conversion.root;
    let default = root.text("defaultContentType").unwrap_or("application/json");
    let mut schemas = Vec::new();
    for message in &channel.from_clients {
        let kind = message.text("contentType").unwrap_or(default);
        let payload = resolved(root, message.get("payload")?);
        let format = message.text("schemaFormat").or(payload.text("schemaFormat")).unwrap_or_default();
        let is_json = kind.contains("json") && !["avro", "protobuf", "raml"].iter().any(|other| format.contains(other));
        if !is_json {
            conversion.lost(message, format!("messages of the type `{kind}` are not validated"));
            return None;
        }
        schemas.push(payload.get("schema").filter(|_| payload.text("schemaFormat").is_some()).unwrap_or(payload));
    }
    if schemas.is_empty() {
        return None;
    }
    match RequestSchema::new(conversion).convert_any(&schemas) {
        Ok(schema) => {
            let client = Yaml::map([("schema", schema)]);
            Some(("websocket-policy".to_owned(), Yaml::map([("client", client)])))
        }
        Err(why) => {
            conversion.lost(channel.at, format!("{why}; messages are not validated"));
            None
        }
    }
}

#[cfg(test)]
mod tests;
