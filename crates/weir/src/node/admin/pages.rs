//! What the status address tells, and the console's figures, below `/weir/v1` of the admin address.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use weir_control::admin::{NodePage, NodePages, NodeStream, SentRequest, TracedRequest};

use super::test_record::OwnTestRecords;
use super::trace::OwnTraces;
use crate::node::figures::{FigureRange, Figures};
use crate::node::lab::LabFolder;
use crate::node::state::NodeState;
use crate::node::{status, tail};

/// The pages of this node.
pub(super) struct OwnPages {
    pub state: Arc<NodeState>,
    /// `None` without the console.
    pub figures: Option<Arc<Figures>>,
    pub traces: OwnTraces,
    pub test_records: OwnTestRecords,
    /// The results of the lab, if the node shows some.
    pub lab: Option<LabFolder>,
}

impl NodePages for OwnPages {
    fn page(&self, path: &[&str], query: &str, accept: Option<&str>) -> Option<NodePage> {
        Some(match path {
            [name @ ("status" | "policies" | "records" | "metrics")] => {
                NodePage::Whole(status::page(&format!("/{name}"), query, accept, &self.state)?)
            }
            ["certificates"] => NodePage::Whole(status::json(StatusCode::OK, &self.certificates())),
            ["tail"] => match tail::filter(query) {
                Ok(_) => NodePage::Stream(NodeStream::Tail(query.to_owned())),
                Err(problem) => wrong(&problem),
            },
            ["events"] if self.figures.is_some() => NodePage::Stream(NodeStream::Events),
            ["metrics", "history"] => self.history(self.figures.as_ref()?, query),
            _ => return None,
        })
    }

    fn send(&self, request: TracedRequest) -> SentRequest<'_> {
        Box::pin(self.traces.send(request))
    }

    fn test_record(&self, sink: String) -> SentRequest<'_> {
        Box::pin(self.test_records.send(sink))
    }

    fn lab(&self, name: Option<String>, other: Option<String>) -> Option<SentRequest<'_>> {
        let lab = self.lab.as_ref()?;
        Some(Box::pin(lab.answer(name, other)))
    }
}

impl OwnPages {
    fn history(&self, figures: &Figures, query: &str) -> NodePage {
        let pairs: Vec<(Vec<u8>, Vec<u8>)> = weir_plugin::form::pairs(query.as_bytes())
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        let argument = |wanted: &str| {
            let found = pairs.iter().find(|(name, _)| name == wanted.as_bytes());
            found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        let told = match (argument("by").as_deref(), argument("range").as_deref()) {
            (Some("route"), None) => figures.history_of_routes(argument("route").as_deref()),
            (None, None | Some("10m")) => figures.history_of(FigureRange::TenMinutes),
            (None, Some("1h")) => figures.history_of(FigureRange::Hour),
            _ => return wrong("write `range=10m`, `range=1h`, `by=route` or `by=route&route=ID`"),
        };
        NodePage::Whole(status::json(StatusCode::OK, &told))
    }

    /// The certificates in use, those first that expire first.
    fn certificates(&self) -> Value {
        let status = self.state.publisher.status();
        let mut list: Vec<(i64, Value)> = status
            .listed_certificates
            .iter()
            .map(|one| (one.until, json!({ "names": one.names, "not_after_ms": one.until * 1_000, "origin": "ssls" })))
            .collect();
        for host in self.state.acme().map(|report| report.hosts).unwrap_or_default() {
            if let Some(expires) = host.expires {
                let told = json!({ "names": [host.host], "not_after_ms": expires * 1_000, "origin": "acme" });
                list.push((i64::try_from(expires).unwrap_or(i64::MAX), told));
            }
        }
        for svid in self.state.spiffe().map(|report| report.svids).unwrap_or_default() {
            let told = json!({ "names": [svid.spiffe_id], "not_after_ms": svid.expires * 1_000, "origin": "spiffe" });
            list.push((svid.expires, told));
        }
        list.sort_by_key(|(at, _)| *at);
        json!({ "list": list.into_iter().map(|(_, told)| told).collect::<Vec<_>>() })
    }
}

fn wrong(problem: &str) -> NodePage {
    let answer: Response<Bytes> = status::json(StatusCode::BAD_REQUEST, &json!({ "error_msg": problem }));
    NodePage::Whole(answer)
}
