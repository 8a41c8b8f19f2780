"""Decodes requests of OTLP with the official Python package: takes one per line, as `traces` or `logs` and hexadecimal digits, and says
its spans or log records as a line of JSON each. Fields that the package does not know are an error."""

import json
import sys

from google.protobuf import unknown_fields
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
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
    if kind is None:
        return None
    if kind == "array_value":
        return [plain(part) for part in value.array_value.values]
    if kind == "kvlist_value":
        return members(value.kvlist_value.values)
    return getattr(value, kind)


def members(attributes):
    names = [attribute.key for attribute in attributes]
    assert len(names) == len(set(names)), f"a name occurs twice: {names}"
    return {attribute.key: plain(attribute.value) for attribute in attributes}


def of_span(span):
    return {
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


def of_log(record):
    return {
        "time": record.time_unix_nano,
        "severity": [record.severity_number, record.severity_text],
        "body": plain(record.body),
        "attributes": members(record.attributes),
        "trace": record.trace_id.hex(),
        "span": record.span_id.hex(),
        "flags": record.flags,
    }


def items(kind, message):
    if kind == "traces":
        request = ExportTraceServiceRequest.FromString(message)
        parts = [(part, part.scope_spans, "spans", of_span) for part in request.resource_spans]
    else:
        request = ExportLogsServiceRequest.FromString(message)
        parts = [(part, part.scope_logs, "log_records", of_log) for part in request.resource_logs]
    check(request)
    for part, scopes, name, said in parts:
        for scope in scopes:
            for item in getattr(scope, name):
                yield {"resource": members(part.resource.attributes), "scope": scope.scope.name, **said(item)}


for line in sys.stdin:
    kind, digits = line.split()
    for item in items(kind, bytes.fromhex(digits)):
        print(json.dumps(item), flush=True)
