//! A call of gRPC, in the place of a request of HTTP.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A call of gRPC. Its messages are the body of the request, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrpcCall {
    /// The method, as `package.Service/Method`.
    pub call: String,
    /// The file that defines the service: a `.proto`, or the descriptors that `protoc --include_imports --descriptor_set_out`
    /// writes.
    pub proto: PathBuf,
    /// The folders in which files that the `.proto` imports are looked for. Without any, its own folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub import_paths: Vec<PathBuf>,
    /// The time that a call may take, in milliseconds. The server is told (`grpc-timeout`), and a call that takes longer ends with
    /// the status DEADLINE_EXCEEDED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}
