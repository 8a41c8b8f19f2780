"""Decodes trace requests of OTLP with the official Python package: takes one in hexadecimal digits per line, and says its spans as
a line of JSON each. Fields that the package does not know are an error."""

import json
import sys

from google.protobuf import unknown_fields
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def check(message):
    assert len(unknown_fields.UnknownFieldSet(message)) == 0, f"unknown fields in {message}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
            check(part)


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(part) for part in value.array_value.values]
    return getattr(value, kind)


def members(attributes):
    names = [attribute.key for attribute in attributes]
    assert len(names) == len(set(names)), f"a name occurs twice: {names}"
    return {attribute.key: plain(attribute.value) for attribute in attributes}


for line in sys.stdin:
    request = ExportTraceServiceRequest.FromString(bytes.fromhex(line))
    check(request)
    for of_resource in request.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                said = {
                    "resource": members(of_resource.resource.attributes),
                    "scope": of_scope.scope.name,
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "name": span.name,
                    "kind": span.kind,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "status": span.status.code,
                    "flags": span.flags,
                    "attributes": members(span.attributes),
                }
                print(json.dumps(said), flush=True)
