//! Messages that several services of Envoy's public API have in common, with their field numbers there. Written by hand, since
//! generating them would need `protoc` at every build.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

/// `envoy.type.v3.HttpStatus`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// `envoy.config.core.v3.HeaderValueOption`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// A `google.protobuf.BoolValue`.
    #[prost(message, optional, tag = "2")]
    pub append: Option<bool>,
    #[prost(int32, tag = "3")]
    pub append_action: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, StructValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StructValue {
    #[prost(oneof = "StructKind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<StructKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum StructKind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(ListValue),
}

#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<StructValue>,
}

impl From<StructValue> for serde_json::Value {
    fn from(value: StructValue) -> serde_json::Value {
        match value.kind {
            None | Some(StructKind::Null(_)) => serde_json::Value::Null,
            // Numbers are doubles: those without a fraction are written as integers.
            Some(StructKind::Number(number)) if number.fract() == 0.0 && number.abs() < 9e15 => (number as i64).into(),
            Some(StructKind::Number(number)) => number.into(),
            Some(StructKind::Text(text)) => text.into(),
            Some(StructKind::Bool(bool)) => bool.into(),
            Some(StructKind::Struct(of)) => of
                .fields
                .into_iter()
                .map(|(name, value)| (name, value.into()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Some(StructKind::List(of)) => of.values.into_iter().map(serde_json::Value::from).collect(),
        }
    }
}
