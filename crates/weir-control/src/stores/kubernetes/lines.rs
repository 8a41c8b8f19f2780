//! What a controller tells its nodes: JSON, a line for each thing, so that a person can read along with curl.
//!
//! ```text
//! {"state":17,"stream":"9f0c…","leader":true,"writer":"a-1"}     all resources at revision 17 follow
//! {"put":"upstreams/shop_orders_80","value":{…}}
//! {"put":"routes/shop_orders_0_0","value":{…}}
//! {"end":17}                                      they are complete
//! {"delete":"routes/shop_orders_0_0"}             a change
//! {"end":18}                                      the change is complete
//! {"beat":18,"leader":true,"writer":"a-1"}        nothing has changed
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stores::resources::ResourceKey;

/// How often a controller says something when nothing changes.
pub(super) const BEAT: Duration = Duration::from_secs(2);
/// After this silence, a node gives the controller up.
pub(super) const SILENCE: Duration = Duration::from_secs(7);
/// How long nodes take at most to find the controller that writes the statuses, as long as they can reach it: after it has been elected, and
/// after a node has lost its connection to it. That is a silence, a round of connections and some looks.
pub(super) const FINDING: Duration = Duration::from_secs(10);
/// The most bytes of a line. An object of Kubernetes has at most 1.5 MiB.
pub(super) const MOST_LINE: usize = 16 << 20;
/// The most bytes of one whole state.
pub(super) const MOST_STATE: usize = 1 << 30;
/// The most bytes of a report: a resource that is set aside takes some hundred.
pub const MOST_REPORT: usize = 4 << 20;
/// The most resources that are set aside in a report, and the most bytes of what is said about each.
pub(super) const MOST_SET_ASIDE: usize = 1_000;
pub(super) const MOST_PROBLEM: usize = 1_000;

/// A line. Keys that a version does not know are ignored, so that later ones may add some.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StateLine {
    /// The state of this revision follows. `stream` is the name of the stream in reports.
    State {
        revision: u64,
        stream: String,
        statuses: StatusWriting,
    },
    Put(ResourceKey, Value),
    Delete(ResourceKey),
    /// The state, or a change, of this revision is complete.
    End(u64),
    Beat(StatusWriting),
    /// The controller ends the stream, with this reason.
    Ended(String),
    Unknown,
}

/// Which controller writes the statuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StatusWriting {
    /// Whether it is this one.
    pub(super) is_here: bool,
    /// Its name; empty if it is not known.
    pub(super) writer: String,
}

#[derive(Deserialize)]
struct LineText {
    state: Option<u64>,
    stream: Option<String>,
    leader: Option<bool>,
    writer: Option<String>,
    put: Option<String>,
    value: Option<Value>,
    delete: Option<String>,
    end: Option<u64>,
    beat: Option<u64>,
    ended: Option<String>,
}

impl StateLine {
    /// # Errors
    /// What is wrong with the line.
    pub(super) fn parse(line: &[u8]) -> Result<StateLine, String> {
        let text: LineText =
            serde_json::from_slice(line).map_err(|error| format!("a line is not as agreed: {error}"))?;
        let key = |text: &str| ResourceKey::parse(text).ok_or_else(|| format!("`{text}` is not the key of a resource"));
        let statuses = |leader: Option<bool>, writer: Option<String>| StatusWriting {
            is_here: leader.unwrap_or(true),
            writer: writer.unwrap_or_default(),
        };
        Ok(match text {
            LineText { state: Some(revision), stream, leader, writer, .. } => {
                let (stream, statuses) = (stream.unwrap_or_default(), statuses(leader, writer));
                StateLine::State { revision, stream, statuses }
            }
            LineText { put: Some(put), value: Some(value @ Value::Object(_)), .. } => StateLine::Put(key(&put)?, value),
            LineText { put: Some(put), .. } => return Err(format!("`{put}` has no value")),
            LineText { delete: Some(deleted), .. } => StateLine::Delete(key(&deleted)?),
            LineText { end: Some(revision), .. } => StateLine::End(revision),
            LineText { beat: Some(_), leader, writer, .. } => StateLine::Beat(statuses(leader, writer)),
            LineText { ended: Some(reason), .. } => StateLine::Ended(reason),
            _ => StateLine::Unknown,
        })
    }
}

/// Appends the line of a resource as it is now; `None`: it is gone.
pub(super) fn write_change(out: &mut Vec<u8>, key: &ResourceKey, json: Option<&str>) {
    let name = Value::from(key.as_str());
    let line = match json {
        Some(json) => format!("{{\"put\":{name},\"value\":{json}}}\n"),
        None => format!("{{\"delete\":{name}}}\n"),
    };
    out.extend_from_slice(line.as_bytes());
}

/// What a node reports: the revision of the controller that it serves, and what of it is set aside. One that `leaves` ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ServedReport {
    pub(super) stream: String,
    pub(super) revision: u64,
    #[serde(default)]
    pub(super) set_aside: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    pub(super) leaves: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let key = ResourceKey::new("routes", "a");
        let mut out = Vec::new();
        write_change(&mut out, &key, Some(r#"{"uri":"/a"}"#));
        write_change(&mut out, &key, None);
        let lines: Vec<StateLine> =
            out.split_inclusive(|byte| *byte == b'\n').map(|line| StateLine::parse(line).expect("a line")).collect();
        let value = serde_json::json!({ "uri": "/a" });
        assert_eq!(lines, [StateLine::Put(key.clone(), value), StateLine::Delete(key)]);
    }

    #[test]
    fn lines_that_are_not_as_agreed_are_refused() {
        for wrong in ["", "{", "[]", r#"{"put":"routes/a"}"#, r#"{"put":"a","value":{}}"#, r#"{"delete":"a/"}"#] {
            assert!(StateLine::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(StateLine::parse(br#"{"later":1}"#), Ok(StateLine::Unknown));
    }
}
