"""An authorization service with Envoy's public protocol, whose messages come from the package `xds-protos`.

Without arguments, or with a certificate and a key for TLS, it is a server: says `port N`, and takes lines of JSON, each of which it answers with a line:
{"answer": {...}} sets the CheckResponse (in JSON form) that each check gets, {"fail": "UNAVAILABLE"} a status of gRPC in place of
one, {"raw": "0aff"} the bytes of a message, {"hold": true} lets checks wait until there is another order; {} changes nothing. The
answer to each is the list of checks since the last order, with their metadata.

With `call ADDRESS` it is a client: makes one check of that address and prints the code and the content of the answer."""

import json
import sys
import threading
from concurrent import futures

import grpc
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

lock = threading.Condition()
order = {"answer": {}}
asked = []


def check(request, context):
    with lock:
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        asked.append({"check": json_format.MessageToDict(request), "metadata": metadata})
        lock.notify_all()
        lock.wait_for(lambda: "hold" not in order, timeout=60)
        now = dict(order)
    if "fail" in now:
        context.abort(grpc.StatusCode[now["fail"]], "on purpose")
    if "raw" in now:
        return bytes.fromhex(now["raw"])
    return json_format.ParseDict(now["answer"], auth.CheckResponse()).SerializeToString()


handler = grpc.unary_unary_rpc_method_handler(check, auth.CheckRequest.FromString, lambda message: message)
server = grpc.server(futures.ThreadPoolExecutor(8))
server.add_generic_rpc_handlers(
    [grpc.method_handlers_generic_handler("envoy.service.auth.v3.Authorization", {"Check": handler})]
)
if len(sys.argv) == 3:
    certificate, key = (open(name, "rb").read() for name in sys.argv[1:])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"port {port}", flush=True)
for line in sys.stdin:
    told = json.loads(line)
    with lock:
        if told:
            order = told
        since, asked = asked, []
        lock.notify_all()
    print(json.dumps(since), flush=True)
