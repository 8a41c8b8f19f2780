"""gRPC through the gateway: a server and a client that share nothing with it. Says `port N`; for each line `calls ADDRESS
[CA]` or `dies ADDRESS` it calls the gateway there, and says `ok` or what went wrong; at `more -` its server goes on where it
waits. Messages are bytes, so that no code
has to be generated."""

import os
import sys
import threading
import time
from concurrent import futures

import grpc

MORE = threading.Event()


def unary(request, context):
    seen = dict(context.invocation_metadata())
    if request == b"deadline?":
        return b"%d" % int(context.time_remaining())
    if request == b"refuse":
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no: \u00fc")
    if request == b"sleep":
        time.sleep(30)
    context.set_trailing_metadata((("x-sum", str(len(request))), ("bytes-bin", b"\x00\xff")))
    return request + b" " + seen.get("x-said", "").encode()


def server_stream(request, context):
    for number in range(int(request)):
        yield b"%d" % number
        if number == 2:
            MORE.wait(20)


def client_stream(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def both(requests, context):
    for request in requests:
        if request == b"die":
            os._exit(1)
        yield request.upper()


def handlers():
    return grpc.method_handlers_generic_handler("test.Echo", {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
        "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    })


def fails(call, code):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error
    raise AssertionError(f"it should have failed with {code}")


def calls(address, authority):
    options = [("grpc.max_receive_message_length", 16 << 20), ("grpc.max_send_message_length", 16 << 20)]
    if authority:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options + [
            ("grpc.ssl_target_name_override", "t"), ("grpc.default_authority", "t")])
    else:
        channel = grpc.insecure_channel(address, options)
    call = channel.unary_unary("/test.Echo/Unary")
    answer, outcome = call.with_call(b"hello", metadata=(("x-said", "well"),), timeout=20)
    trailers = dict(outcome.trailing_metadata())
    assert answer == b"hello well" and trailers == {"x-sum": "5", "bytes-bin": b"\x00\xff"}, (answer, trailers)
    assert 5 <= int(call(b"deadline?", timeout=9)) <= 9
    refused = fails(lambda: call(b"refuse", timeout=20), grpc.StatusCode.PERMISSION_DENIED)
    assert refused.details() == "no: \u00fc", refused
    fails(lambda: call(b"sleep", timeout=0.5), grpc.StatusCode.DEADLINE_EXCEEDED)
    fails(lambda: channel.unary_unary("/test.Echo/Nothing")(b"", timeout=20), grpc.StatusCode.UNIMPLEMENTED)
    large = b"x" * (5 << 20)
    assert call(large, timeout=20) == large + b" "
    assert call(large, timeout=20, compression=grpc.Compression.Gzip) == large + b" "
    stream = channel.unary_stream("/test.Echo/ServerStream")(b"5", timeout=20)
    assert [next(stream) for _ in range(3)] == [b"0", b"1", b"2"], "messages come one by one"
    MORE.set()
    assert list(stream) == [b"3", b"4"]
    count = channel.stream_unary("/test.Echo/ClientStream")(iter([b"a", b"bc", b"def"]), timeout=20)
    assert count == b"6", count
    turn = threading.Semaphore(1)

    def words():
        for word in (b"one", b"two", b"three"):
            turn.acquire()
            yield word
    answers = []
    for answer in channel.stream_stream("/test.Echo/Both")(words(), timeout=20):
        answers.append(answer)
        turn.release()
    assert answers == [b"ONE", b"TWO", b"THREE"], "each comes before the next is asked for"
    return channel


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(16), handlers=(handlers(),),
                         options=[("grpc.max_receive_message_length", 16 << 20)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def dies(address):
    """The server ends in the middle of a call."""
    stream = grpc.insecure_channel(address).stream_stream("/test.Echo/Both")(iter([b"a", b"die"]), timeout=20)

    def drain():
        for _ in stream:
            pass
    fails(drain, grpc.StatusCode.UNAVAILABLE)


if __name__ == "__main__":
    server, port = serve()
    print(f"port {port}", flush=True)
    for line in sys.stdin:
        what, address, *rest = line.split()
        try:
            if what == "calls":
                calls(address, open(rest[0], "rb").read() if rest else None)
            elif what == "more":
                MORE.set()
            else:
                dies(address)
            print("ok", flush=True)
        except BaseException as error:
            print(f"failed: {error!r}".replace("\n", " "), flush=True)
