"""What WSO2's publication stood behind its gateway: WebSocket messages come back reversed. Also a fixed answer over HTTP, and
server-sent events at a rate, with the time each was due (ns), as the lab's own backend sends them."""

import asyncio
import json
import ssl
import sys
import time

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler


class Fixed(RequestHandler):
    def initialize(self, body):
        self.body = body

    def get(self):
        self.set_header("Content-Type", "text/plain")
        self.finish(self.body)

    post = put = get


class Reverse(WebSocketHandler):
    def check_origin(self, origin):
        return True

    def open(self):
        self.set_nodelay(True)

    def on_message(self, message):
        self.write_message(message[::-1], binary=isinstance(message, bytes))


class Events(RequestHandler):
    async def get(self):
        rate = float(self.get_query_argument("rate", "10"))
        size = int(self.get_query_argument("bytes", "82"))
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        clock = asyncio.get_running_loop().time
        start, start_unix = clock(), time.time_ns()
        number = 0
        try:
            # The head goes out at once.
            await self.flush()
            while True:
                after = (number + 1) / rate
                await asyncio.sleep(start + after - clock())
                content = f"id: {number}\ndata: {start_unix + int(after * 1e9)} "
                self.write(content + "x" * (size - len(content) - 2) + "\n\n")
                await self.flush()
                number += 1
        except StreamClosedError:
            pass


def certificate(files):
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


async def main(settings):
    application = Application(
        [(r".*/reverse", Reverse), (r".*/sse", Events), (r".*", Fixed, {"body": settings["body"].encode()})],
        log_function=lambda handler: None,
    )
    server = HTTPServer(application, ssl_options=certificate(settings["certificate"]))
    for port in settings["ports"]:
        server.add_sockets(bind_sockets(port, settings["host"], backlog=65535))
    await asyncio.Event().wait()


with open(sys.argv[1], encoding="utf-8") as file:
    asyncio.run(main(json.load(file)))
