//! Definitions of gRPC services, which `grpc-transcode` refers to (APISIX `proto`).

use std::sync::Arc;

use weir_plugin::{ProtoDefinitions, protos};

use super::resource::{self, COMMON, ReferringPlugin};
use crate::keys;
use crate::keys::kinds::{ParsedText, text};
use crate::text::read::NodeReader;

/// The plugin that refers to definitions.
pub const TRANSCODING: ReferringPlugin = ReferringPlugin { plugin: "grpc-transcode", option: "proto_id" };

/// APISIX `proto`.
#[derive(Clone, Debug)]
pub struct ProtoSpec {
    pub id: Box<str>,
    /// None if they have a fault, which has been reported.
    pub definitions: Option<Arc<ProtoDefinitions>>,
}

keys! {
    /// Definitions of messages and gRPC services, for the plugin `grpc-transcode`.
    pub(super) static PROTO: ProtoKeys = "proto", shared COMMON;

    /// The text of a `.proto`, or a `FileDescriptorSet` in base64, as `protoc --include_imports --descriptor_set_out` writes it. Of
    /// imports in a text, `google/protobuf/*.proto` and `google/api/annotations.proto` are known.
    content: ParsedText<Arc<ProtoDefinitions>> = text(1, protos::MOST_BYTES).parsed(definitions), required("add `content`"),
        example(r#"syntax = "proto3"; message Name { string name = 1; }"#);
}

fn definitions(at: &NodeReader, content: &str) -> Option<Arc<ProtoDefinitions>> {
    ProtoDefinitions::parse(content).map_err(|fault| at.report(format!("invalid content: {fault}"))).ok()
}

pub(super) fn read(at: &NodeReader, index: usize) -> Option<ProtoSpec> {
    let fields = at.keys(&PROTO)?;
    resource::common(&fields);
    Some(ProtoSpec { id: resource::id(&fields, index), definitions: fields.read(&PROTO.content) })
}
