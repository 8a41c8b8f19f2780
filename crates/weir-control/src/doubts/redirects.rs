//! Finds redirects to HTTPS at a node to which no client comes over HTTPS.

use weir_gateway::snapshot::ListenerProtocol;

use super::Doubts;
use crate::document::PluginSpec;
use crate::text::read::join;
use crate::text::tree::TextPosition;

const PLUGIN: &str = "redirect";

/// Once for a document: there is one list of listeners. Nothing is found where a proxy in front may say that clients come over HTTPS
/// (`trusted_addresses`), and where the file leaves out where it listens, as one with resources for a store does.
pub(super) fn to_nowhere(doubts: &Doubts) {
    let document = doubts.document;
    let is_written = |key: &str| document.place_at(key) != TextPosition::default();
    let knows_listeners = is_written("listen") && !is_written("resource_listeners");
    let has_https = document.listens().any(|listen| listen.settings.protocol == ListenerProtocol::Https);
    if has_https || !knows_listeners || !document.settings.clients.trusted_addresses.is_empty() {
        return;
    }
    let redirects = |plugin: &PluginSpec| &*plugin.name == PLUGIN && plugin.options["http_to_https"] == true;
    let found = doubts.enabled_plugins().find(|(_, plugin)| redirects(plugin));
    if let Some((origin, plugin)) = found {
        let path = join(&origin.path, &format!("plugins.{PLUGIN}"));
        let problem = "sends clients to HTTPS, and no `listen` address uses TLS".to_owned();
        let advice = "add one with its certificate: `listen: [{ address: \":443\", tls: true }]` and `ssls`; name a proxy in front that \
                      ends TLS in `trusted_addresses`; or take `http_to_https` out";
        doubts.report(&path, plugin.place, problem, advice.to_owned());
    }
}
