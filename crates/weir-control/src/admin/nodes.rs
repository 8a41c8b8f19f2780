//! The nodes that share a store.

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{self, AdminResponse, Refused};
use super::context::AdminContext;

/// All nodes with what they serve, and whether that is equal to this node's state.
pub(super) async fn answer(context: &AdminContext) -> Refused<AdminResponse> {
    let Some(nodes) = context.nodes().await else {
        return answer::refuse(
            "this node does not share its store with other nodes; configure a shared store with `store: { etcd: … }`",
        );
    };
    let nodes = nodes.map_err(|failure| Box::new(answer::failed(&failure)))?;
    let own = context.live.content();
    let list: Vec<Value> = nodes
        .iter()
        .map(|node| {
            json!({
                "id": node.id,
                "version": node.version,
                "started_ms": node.started_ms,
                "told_ms": node.told_ms,
                "revision": node.served.revision,
                "content": format!("{:016x}", node.served.content),
                "in_step": node.served.content == own.content,
                "set_aside": node.served.set_aside,
            })
        })
        .collect();
    let mut answer = answer::json_of(
        StatusCode::OK,
        &json!({ "revision": own.revision, "content": format!("{:016x}", own.content), "total": list.len(), "list": list }),
    );
    answer::at_revision(&mut answer, own.revision);
    Ok(answer)
}
