"""Decodes requests of OTLP with the official Python package: takes one per line, as `traces`, `metrics` or `logs` and hexadecimal digits,
and says its spans, metrics or log records as a line of JSON each. Fields that the package does not know are an error."""

import json
import sys

from google.protobuf import unknown_fields
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
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


def of_exemplar(exemplar):
    return {
        "time": exemplar.time_unix_nano,
        "value": exemplar.as_double,
        "trace": exemplar.trace_id.hex(),
        "span": exemplar.span_id.hex(),
    }


def of_point(kind, point):
    said = {"labels": members(point.attributes), "start": point.start_time_unix_nano, "time": point.time_unix_nano}
    if kind == "histogram":
        buckets = {"bounds": list(point.explicit_bounds), "counts": list(point.bucket_counts)}
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1 and sum(point.bucket_counts) == point.count
        return {**said, **buckets, "count": point.count, "sum": point.sum, "exemplars": list(map(of_exemplar, point.exemplars))}
    return {**said, "value": getattr(point, point.WhichOneof("value"))}


def of_metric(metric):
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    said = {"name": metric.name, "description": metric.description, "unit": metric.unit, "kind": kind}
    if kind != "gauge":
        said["temporality"] = data.aggregation_temporality
    if kind == "sum":
        said["monotonic"] = data.is_monotonic
    return {**said, "points": [of_point(kind, point) for point in data.data_points]}


REQUESTS = {"traces": ExportTraceServiceRequest, "metrics": ExportMetricsServiceRequest, "logs": ExportLogsServiceRequest}


def said(request):
    check(request)
    if isinstance(request, ExportTraceServiceRequest):
        parts = [(part, part.scope_spans, "spans", of_span) for part in request.resource_spans]
    elif isinstance(request, ExportMetricsServiceRequest):
        parts = [(part, part.scope_metrics, "metrics", of_metric) for part in request.resource_metrics]
    else:
        parts = [(part, part.scope_logs, "log_records", of_log) for part in request.resource_logs]
    for part, scopes, name, said in parts:
        for scope in scopes:
            for item in getattr(scope, name):
                yield {"resource": members(part.resource.attributes), "scope": scope.scope.name, **said(item)}


if __name__ == "__main__":
    for line in sys.stdin:
        kind, digits = line.split()
        for item in said(REQUESTS[kind].FromString(bytes.fromhex(digits))):
            print(json.dumps(item), flush=True)
