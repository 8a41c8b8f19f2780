"""A gRPC service with messages of every kind, made without generated code. It says its port, and a set with the descriptors of its
messages in base64. Each line that it reads lets one held stream go on.

`Say` answers with what it has received, and with the JSON of it as this library writes it; what else it does is said by `text`:

refuse   ends with NOT_FOUND, with details
code     ends with the status `number`
newer    answers with a field more, which is not in the descriptors
wait     waits until the call is over
large    answers with a text of `number` bytes
compress compresses the answer, for which it was not asked
empty    has an answer without a field
die      ends the process

`List` answers with `number` messages. With the text `fail` it then fails, with `die` it ends the process, and with `hold` it waits for a
line before each message."""

import base64
import json
import os
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, json_format, message_factory
from google.protobuf import field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = "double float int64 uint64 int32 fixed64 fixed32 bool string _group _message bytes uint32 _enum sfixed32 sfixed64 sint32 sint64"

file = descriptor_pb2.FileDescriptorProto(name="kinds.proto", package="kinds", syntax="proto3")
KNOWN = (any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
file.dependency.extend(module.DESCRIPTOR.name for module in KNOWN)
colour = file.enum_type.add(name="Colour")
for number, name in enumerate(["COLOUR_NONE", "RED", "BLUE"]):
    colour.value.add(name=name, number=number)
kinds = file.message_type.add(name="All")


def field(name, number, kind, **others):
    number_of_kind = SCALARS.split().index(kind) + 1 if kind in SCALARS.split() else 11
    label = FIELD.LABEL_REPEATED if others.pop("repeated", False) else FIELD.LABEL_OPTIONAL
    if kind not in SCALARS.split():
        others["type_name"] = kind
    if kind == ".kinds.Colour":
        number_of_kind = 14
    kinds.field.add(name=name, number=number, type=number_of_kind, label=label, **others)


for number, kind in enumerate([kind for kind in SCALARS.split() if kind[0] != "_"]):
    field(f"a_{kind}", 20 + number, kind)
field("text", 1, "string")
field("number", 2, "int32")
field("inner", 3, ".kinds.All")
field("list", 4, ".kinds.All", repeated=True)
field("numbers", 5, "int64", repeated=True)
field("colour", 6, ".kinds.Colour")
field("colours", 7, ".kinds.Colour", repeated=True)
kinds.oneof_decl.add(name="choice")
field("one", 8, "string", oneof_index=0)
field("other", 9, "int32", oneof_index=0)
field("at", 10, ".google.protobuf.Timestamp")
field("lasts", 11, ".google.protobuf.Duration")
field("tree", 12, ".google.protobuf.Struct")
field("maybe", 13, ".google.protobuf.Int64Value")
field("any", 14, ".google.protobuf.Any")
field("seen", 15, "string")
field("metadata", 16, "string")


def mapping(name, number, key, value, **others):
    entry = kinds.nested_type.add(name=f"{name.title()}Entry", options={"map_entry": True})
    entry.field.add(name="key", number=1, type=key, label=FIELD.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=value, label=FIELD.LABEL_OPTIONAL, **others)
    field(name, number, f".kinds.All.{name.title()}Entry", repeated=True)


mapping("texts", 17, FIELD.TYPE_STRING, FIELD.TYPE_STRING)
mapping("numbered", 37, FIELD.TYPE_INT64, FIELD.TYPE_MESSAGE, type_name=".kinds.All")
mapping("switches", 38, FIELD.TYPE_BOOL, FIELD.TYPE_ENUM, type_name=".kinds.Colour")
field("user_name", 18, "string")
kinds.oneof_decl.add(name="_perhaps")
field("perhaps", 36, "int32", oneof_index=1, proto3_optional=True)
field("mask", 39, ".google.protobuf.FieldMask")
detail = file.message_type.add(name="Detail")
detail.field.add(name="reason", number=1, type=9, label=FIELD.LABEL_OPTIONAL)
service = file.service.add(name="Kinds")
service.method.add(name="Say", input_type=".kinds.All", output_type=".kinds.All")
service.method.add(name="List", input_type=".kinds.All", output_type=".kinds.All", server_streaming=True)
service.method.add(name="Take", input_type=".kinds.All", output_type=".kinds.All", client_streaming=True)

pool = descriptor_pool.Default()
pool.Add(file)
All, Detail = (message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kinds.{name}")) for name in ("All", "Detail"))
everything = descriptor_pb2.FileDescriptorSet()
for module in KNOWN:
    module.DESCRIPTOR.CopyToProto(everything.file.add())
everything.file.append(file)

lines = threading.Semaphore(0)
CODES = {code.value[0]: code for code in grpc.StatusCode}


def status(reason):
    """google.rpc.Status with two details."""
    one, other = any_pb2.Any(), any_pb2.Any()
    one.Pack(Detail(reason=reason))
    other.Pack(duration_pb2.Duration(seconds=1))
    length = lambda content: bytes([len(content)])
    parts = [b"\x08\x05", b"\x12\x02no"] + [b"\x1a" + length(it) + it for it in (one.SerializeToString(), other.SerializeToString())]
    return b"".join(parts)


def say(request, context):
    if request.text == "refuse":
        context.set_trailing_metadata((("grpc-status-details-bin", status("gone")),))
        context.abort(grpc.StatusCode.NOT_FOUND, 'no such "thing" ü')
    if request.text == "code":
        context.abort(CODES[request.number], "as asked")
    if request.text == "wait":
        over = threading.Event()
        context.add_callback(over.set)
        over.wait(60)
    if request.text == "large":
        return All(text="x" * request.number)
    if request.text == "compress":
        context.set_compression(grpc.Compression.Gzip)
    if request.text == "empty":
        return All()
    if request.text == "die":
        os._exit(1)
    answer = All()
    answer.CopyFrom(request)
    if request.text == "newer":
        # Field 99, with a text.
        answer.MergeFromString(b"\x9a\x06\x12of a later version")
    answer.seen = json_format.MessageToJson(request, preserving_proto_field_name=True, indent=None)
    remaining = context.time_remaining()
    metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
    answer.metadata = json.dumps({"remaining": remaining, **metadata})
    return answer


def list_all(request, context):
    for number in range(request.number):
        if request.text == "hold":
            lines.acquire(timeout=60)
        yield All(number=number, user_name=request.user_name)
    if request.text == "die":
        os._exit(1)
    if request.text == "fail":
        context.set_trailing_metadata((("grpc-status-details-bin", status("late")),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")


def serializer(message):
    return message.SerializeToString()


handlers = {
    "Say": grpc.unary_unary_rpc_method_handler(say, All.FromString, serializer),
    "List": grpc.unary_stream_rpc_method_handler(list_all, All.FromString, serializer),
}
server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", 1 << 26)])
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("kinds.Kinds", handlers)])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"port {port}", flush=True)
print(base64.b64encode(everything.SerializeToString()).decode(), flush=True)
for line in sys.stdin:
    lines.release()
    print("done", flush=True)
