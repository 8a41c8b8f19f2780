//! The nodes that share a store.

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{self, AdminResponse, Refused};
use super::context::AdminContext;
use crate::stores::shared::{KnownNodes, ServedContent};

/// All nodes with what they serve, and whether that is equal to this node's state.
pub(super) async fn answer(context: &AdminContext) -> Refused<AdminResponse> {
    let Some(nodes) = context.nodes().await else {
        return answer::refuse(
            "this node does not share its store with other nodes; configure a shared store with `store: { etcd: … }`",
        );
    };
    let KnownNodes { told_by, newest, list } = nodes.map_err(|failure| Box::new(answer::failed(&failure)))?;
    let own = context.live.content();
    // Such as that the store has lost all resources, so that nodes agree with each other and not with the store.
    let problem = context.live.store().shared().and_then(|shared| shared.state().problem);
    // Nodes that follow a cluster have revisions of their own, so their contents cannot be compared.
    let shown = |content: u64| newest.is_none().then(|| format!("{content:016x}"));
    let is_in_step = |served: &ServedContent| match newest {
        Some(newest) => served.revision == newest,
        None => served.content == own.content,
    };
    let list: Vec<Value> = list
        .iter()
        .map(|node| {
            json!({
                "id": node.id,
                "version": node.version,
                "started_ms": node.started_ms,
                "told_ms": node.told_ms,
                "revision": node.served.revision,
                "content": shown(node.served.content),
                "in_step": is_in_step(&node.served),
                "set_aside": node.served.set_aside,
            })
        })
        .collect();
    let revision = newest.unwrap_or(own.revision);
    let mut answer = answer::json_of(
        StatusCode::OK,
        &json!({
            "told_by": told_by, "problem": problem, "revision": revision, "content": shown(own.content),
            "total": list.len(), "list": list,
        }),
    );
    answer::at_revision(&mut answer, own.revision);
    Ok(answer)
}
