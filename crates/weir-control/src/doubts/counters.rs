//! Finds limits with the address of a Redis or Valkey server that count in this process, since they have no `policy`.

use super::Doubts;
use crate::text::read::join;

/// The options that say where a server is, with the `policy` that uses each.
const SERVERS: [(&str, &str); 3] =
    [("redis_host", "redis"), ("redis_cluster_nodes", "redis-cluster"), ("redis_sentinels", "redis-sentinel")];

pub(super) fn with_an_unused_server(doubts: &Doubts) {
    for (origin, plugin) in doubts.enabled_plugins() {
        let is_local = plugin.options["policy"].as_str().is_none_or(|policy| policy == "local");
        let written = SERVERS.iter().find(|(option, _)| !plugin.options[*option].is_null());
        if let Some((option, policy)) = written.filter(|_| is_local) {
            let path = join(&origin.path, &format!("plugins.{}.{option}", plugin.name));
            let problem = "has no effect: without `policy`, each process counts by itself".to_owned();
            let advice = format!("write `policy: {policy}`, or leave the options of Redis out");
            doubts.report(&path, doubts.document.place_at(&path), problem, advice);
        }
    }
}
