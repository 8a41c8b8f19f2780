"""What the services of the tests have in common: each says its port, and takes orders from the test, lines of JSON that it answers with
what it was asked since the last one."""

import json
import sys
import threading
from concurrent import futures

import grpc

changed = threading.Condition()
order = {}
seen = []


def note(what):
    """Notes what the service was asked, and returns the order that holds now."""
    with changed:
        seen.append(what)
        changed.notify_all()
        return dict(order)


def wait_while(holds):
    """Waits until the order is one for which this is not so."""
    with changed:
        changed.wait_for(lambda: not holds(order), timeout=60)
        return dict(order)


def metadata(context):
    return {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}


def serve(service, handlers, files=()):
    """Serves until the test closes the orders, with a certificate and a key if there are such files."""
    global order, seen
    server = grpc.server(futures.ThreadPoolExecutor(32))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    if files:
        certificate, key = (open(name, "rb").read() for name in files)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"port {port}", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        with changed:
            if told:
                order = told
            since, seen = seen, []
            changed.notify_all()
        print(json.dumps(since), flush=True)
