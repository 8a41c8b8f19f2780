"""A gRPC server with the health service of other people. Says `port N`; takes lines `SERVICE STATUS`, where `-` is the server
as a whole, and says `ok`. With `none` it has no such service; with a certificate and a key it speaks TLS."""

import sys
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

server = grpc.server(futures.ThreadPoolExecutor(4))
answers = health.HealthServicer()
if "none" not in sys.argv:
    health_pb2_grpc.add_HealthServicer_to_server(answers, server)
if len(sys.argv) == 3:
    certificate, key = (open(name, "rb").read() for name in sys.argv[1:])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
else:
    port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"port {port}", flush=True)
for line in sys.stdin:
    service, status = line.split()
    answers.set("" if service == "-" else service, health_pb2.HealthCheckResponse.ServingStatus.Value(status))
    print("ok", flush=True)
