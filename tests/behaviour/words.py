"""A gRPC server that describes itself (reflection), with methods of all four kinds. Says `port N`."""

import sys
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection

FILE = descriptor_pb2.FileDescriptorProto(name="words.proto", package="test", syntax="proto3")
WORD = FILE.message_type.add(name="Word")
FIELD = descriptor_pb2.FieldDescriptorProto
WORD.field.add(name="text", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
WORD.field.add(name="times", number=2, type=FIELD.TYPE_INT32, label=FIELD.LABEL_OPTIONAL)
SERVICE = FILE.service.add(name="Words")
for name, streams, answers in (("Say", False, False), ("Repeat", False, True), ("Join", True, False), ("Echo", True, True)):
    SERVICE.method.add(name=name, input_type=".test.Word", output_type=".test.Word",
                       client_streaming=streams, server_streaming=answers)
POOL = descriptor_pool.Default()
POOL.Add(FILE)
Word = message_factory.GetMessageClass(POOL.FindMessageTypeByName("test.Word"))


def say(word, context):
    if not word.text:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "say something")
    return Word(text=word.text)


def repeat(word, context):
    for number in range(word.times):
        yield Word(text=word.text, times=number + 1)


def join(words, context):
    return Word(text="".join(word.text for word in words))


def echo(words, context):
    for word in words:
        yield Word(text=word.text.upper())


def method(kind, function):
    return kind(function, request_deserializer=Word.FromString, response_serializer=Word.SerializeToString)


server = grpc.server(futures.ThreadPoolExecutor(8), handlers=(grpc.method_handlers_generic_handler("test.Words", {
    "Say": method(grpc.unary_unary_rpc_method_handler, say),
    "Repeat": method(grpc.unary_stream_rpc_method_handler, repeat),
    "Join": method(grpc.stream_unary_rpc_method_handler, join),
    "Echo": method(grpc.stream_stream_rpc_method_handler, echo),
}),))
reflection.enable_server_reflection(("test.Words", reflection.SERVICE_NAME), server, pool=POOL)
print(f"port {server.add_insecure_port('127.0.0.1:0')}", flush=True)
server.start()
sys.stdin.read()
