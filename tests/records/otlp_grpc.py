"""A collector of OTLP over gRPC, with the libraries of other people. Says `port N`. Takes the answers to the next exports, one per line:
the number of a gRPC status, with `retry SECONDS` after it a `RetryInfo`, or `reject COUNT`; all others are accepted. Says each export as a
line of JSON, with the status it was answered with."""

import json
import queue
import sys
import threading
from concurrent import futures

import grpc
from otlp import said
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

answers = queue.Queue()
codes = {code.value[0]: code for code in grpc.StatusCode}
output = threading.Lock()


def retry_info(seconds):
    """A `google.rpc.Status` with a `RetryInfo`; the package with these definitions is another one."""

    def field(number, value):
        return bytes([number << 3 | 2, len(value)]) + value

    info = field(1, bytes([1 << 3, seconds]))
    return bytes([1 << 3, 8]) + field(3, field(1, b"type.googleapis.com/google.rpc.RetryInfo") + field(2, info))


def export(response, partial):
    def answer(request, context):
        try:
            order = answers.get_nowait().split()
        except queue.Empty:
            order = ["0"]
        code = int(order[0]) if order[0].isdigit() else 0
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        with output:
            line = {"answer": code, "metadata": metadata, "limited": context.time_remaining() is not None, "items": list(said(request))}
            print(json.dumps(line), flush=True)
        if order[1:2] == ["retry"]:
            context.set_trailing_metadata([("grpc-status-details-bin", retry_info(int(order[2])))])
        if code != 0:
            context.abort(codes[code], "not now")
        return response(partial_success=partial(int(order[1]))) if order[0] == "reject" else response()

    return answer


def rejected(kind, field):
    return lambda count: kind(**{field: count}, error_message="too old")


class Traces(trace_service_pb2_grpc.TraceServiceServicer):
    Export = staticmethod(
        export(
            trace_service_pb2.ExportTraceServiceResponse,
            rejected(trace_service_pb2.ExportTracePartialSuccess, "rejected_spans"),
        )
    )


class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    Export = staticmethod(
        export(
            metrics_service_pb2.ExportMetricsServiceResponse,
            rejected(metrics_service_pb2.ExportMetricsPartialSuccess, "rejected_data_points"),
        )
    )


class Logs(logs_service_pb2_grpc.LogsServiceServicer):
    Export = staticmethod(
        export(
            logs_service_pb2.ExportLogsServiceResponse,
            rejected(logs_service_pb2.ExportLogsPartialSuccess, "rejected_log_records"),
        )
    )


server = grpc.server(futures.ThreadPoolExecutor(4))
trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
logs_service_pb2_grpc.add_LogsServiceServicer_to_server(Logs(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"port {port}", flush=True)
for line in sys.stdin:
    answers.put(line.strip())
