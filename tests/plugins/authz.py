"""An authorization service with Envoy's public protocol, whose messages come from the package `xds-protos`.

Without arguments, or with a certificate and a key for TLS, it is a server: says `port N`, and takes lines of JSON, each of which it answers with a line:
{"answer": {...}} sets the CheckResponse (in JSON form) that each check gets, {"fail": "UNAVAILABLE"} a status of gRPC in place of
one, {"raw": "0aff"} the bytes of a message, {"hold": true} lets checks wait until there is another order; {} changes nothing. The
answer to each is the list of checks since the last order, with their metadata.

With `call ADDRESS` it is a client: makes one check of that address and prints the code and the content of the answer."""

import sys

import grpc
import orders
from envoy.service.auth.v3 import external_auth_pb2 as auth
from google.protobuf import json_format

METHOD = "/envoy.service.auth.v3.Authorization/Check"

if sys.argv[1:2] == ["call"]:
    with grpc.insecure_channel(sys.argv[2]) as channel:
        call = channel.unary_unary(METHOD, auth.CheckRequest.SerializeToString, auth.CheckResponse.FromString)
        try:
            print("OK", call(auth.CheckRequest(), timeout=30, metadata=[("x-user", "root")]).status.code)
        except grpc.RpcError as error:
            print(error.code().name)
    sys.exit()

orders.order = {"answer": {}}


def check(request, context):
    orders.note({"check": json_format.MessageToDict(request), "metadata": orders.metadata(context)})
    now = orders.wait_while(lambda order: "hold" in order)
    if "fail" in now:
        context.abort(grpc.StatusCode[now["fail"]], "on purpose")
    if "raw" in now:
        return bytes.fromhex(now["raw"])
    return json_format.ParseDict(now["answer"], auth.CheckResponse()).SerializeToString()


handler = grpc.unary_unary_rpc_method_handler(check, auth.CheckRequest.FromString, lambda message: message)
orders.serve("envoy.service.auth.v3.Authorization", {"Check": handler}, sys.argv[1:3])
