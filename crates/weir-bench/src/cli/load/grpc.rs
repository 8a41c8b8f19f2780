//! The options for calls of gRPC.

use std::path::PathBuf;
use std::time::Duration;

use super::{ms, time};
use crate::engine::{GrpcCall, LoadPlan};

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "gRPC")]
pub(super) struct GrpcArguments {
    /// Calls this method of gRPC, `package.Service/Method`. --data is its message as JSON, or a list of messages if the client
    /// sends a stream; --header its metadata
    #[arg(long, value_name = "METHOD", requires = "proto", conflicts_with_all = ["plan", "method", "data_size", "form"])]
    call: Option<String>,
    /// The file that defines the method: a .proto, or descriptors that `protoc --include_imports --descriptor_set_out` writes
    #[arg(long, value_name = "FILE", requires = "call")]
    proto: Option<PathBuf>,
    /// A folder for files that the .proto imports, and in which it is itself. Can be given several times
    #[arg(long, value_name = "DIRECTORY", requires = "call")]
    import_path: Vec<PathBuf>,
    /// The time that a call may take: the server is told, and a call that takes longer ends with DEADLINE_EXCEEDED
    #[arg(long, value_name = "TIME", requires = "call", value_parser = time)]
    deadline: Option<Duration>,
}

impl GrpcArguments {
    /// Whether calls are made.
    pub(super) fn is_used(&self) -> bool {
        self.call.is_some()
    }

    /// Makes the requests of a plan calls, if the options say so.
    pub(super) fn apply(self, plan: &mut LoadPlan) {
        let (Some(call), Some(proto)) = (self.call, self.proto) else { return };
        let grpc = GrpcCall { call, proto, import_paths: self.import_path, deadline_ms: self.deadline.map(ms) };
        for request in &mut plan.requests {
            request.grpc = Some(grpc.clone());
        }
    }
}
