"""A client of HTTP/3 by aioquic: see README.md."""

import asyncio
import hashlib
import json
import os
import sys
from dataclasses import replace

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StopSendingReceived, StreamReset
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilderStop
from aioquic.tls import Epoch

NAME = "a.test"
# What a ticket for early data in QUIC allows (RFC 9001 section 4.6.1).
EARLY_DATA = 0xFFFFFFFF
SECONDS = 600


class Answer:
    def __init__(self):
        self.heads = []
        self.body = bytearray()
        self.stopped = None
        self.ended = asyncio.get_running_loop().create_future()
        self.more = asyncio.Event()

    @property
    def status(self):
        return int(self.heads[0][":status"])

    @property
    def trailers(self):
        return self.heads[1] if len(self.heads) > 1 else {}


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = H3Connection(self._quic)
        self.answers = {}
        self.handshake = None

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            self.handshake = event
        elif isinstance(event, ConnectionTerminated):
            for answer in self.answers.values():
                self.fail(answer, f"the connection ended: {event.error_code:#x} {event.reason_phrase}")
        elif isinstance(event, StreamReset) and event.stream_id in self.answers:
            self.fail(self.answers[event.stream_id], f"the stream was reset: {event.error_code:#x}")
        elif isinstance(event, StopSendingReceived) and event.stream_id in self.answers:
            self.answers[event.stream_id].stopped = event.error_code
        for part in self.http.handle_event(event):
            self.received(part)

    def received(self, part):
        answer = self.answers[part.stream_id]
        if isinstance(part, HeadersReceived):
            answer.heads.append({name.decode(): value.decode() for name, value in part.headers})
        elif isinstance(part, DataReceived):
            answer.body += part.data
        answer.more.set()
        if part.stream_ended and not answer.ended.done():
            answer.ended.set_result(None)

    @staticmethod
    def fail(answer, why):
        if not answer.ended.done():
            answer.ended.set_exception(ConnectionError(why))

    def begin(self, method, path, fields=(), ended=False):
        stream = self._quic.get_next_available_stream_id()
        head = {":method": method, ":scheme": "https", ":authority": NAME, ":path": path, **dict(fields)}
        # A pseudo-header field stands before all others.
        head = sorted(head.items(), key=lambda field: not field[0].startswith(":"))
        self.answers[stream] = Answer()
        self.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in head], ended)
        self.transmit()
        return stream

    def send(self, stream, content, ended=False):
        self.http.send_data(stream, content, ended)
        self.transmit()

    async def end(self, stream):
        answer = self.answers[stream]
        await answer.ended
        return answer

    async def get(self, path):
        return await self.end(self.begin("GET", path, ended=True))


def settings(authority, ticket=None):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name=NAME, session_ticket=ticket)
    configuration.load_verify_locations(authority)
    return configuration


def opened(port, configuration, **named):
    return connect("127.0.0.1", port, configuration=configuration, create_protocol=Client, **named)


async def objects(client, count):
    answers = await asyncio.gather(*(client.get(f"/object/{number}") for number in range(int(count))))
    return {"bodies": [answer.body.decode() for answer in answers]}


async def download(client, path):
    answer = await client.get(path)
    return {"status": answer.status, "length": len(answer.body), "sum": hashlib.sha256(answer.body).hexdigest()}


async def upload(client, path, count):
    content = os.urandom(int(count))
    stream = client.begin("POST", path, {"content-length": count})
    client.send(stream, content, ended=True)
    answer = await client.end(stream)
    return {"status": answer.status, "sum": hashlib.sha256(content).hexdigest(), "body": answer.body.decode()}


async def early(client, path, count):
    """An upload that is answered before its end, which never comes; then another request."""
    stream = client.begin("POST", path)
    client.send(stream, bytes(int(count)))
    answer = await client.end(stream)
    # STOP_SENDING may come after the end of the response.
    while answer.stopped is None:
        await client.ping()
    after = await client.get("/object/1")
    return {"status": answer.status, "stopped": answer.stopped, "after": after.body.decode()}


async def trailers(client, path):
    stream = client.begin("POST", path, {"te": "trailers"})
    client.send(stream, b"abc")
    client.http.send_headers(stream, [(b"x-check", b"9")], True)
    client.transmit()
    answer = await client.end(stream)
    return {"status": answer.status, "body": answer.body.decode(), "trailers": answer.trailers}


async def changes(client, count):
    """Requests, with new keys and another connection id before each."""
    bodies, phases, ids = [], [], []
    for number in range(int(count)):
        client.request_key_update()
        client.change_connection_id()
        bodies.append((await client.get(f"/object/{number}")).body.decode())
        phases.append(client._quic._cryptos[Epoch.ONE_RTT].key_phase)
        ids.append(client._quic._peer_cid.cid.hex())
    return {"bodies": bodies, "phases": phases, "ids": ids}


async def challenges(client, count):
    """Packets full of PATH_CHALLENGE frames, then a request."""
    quic, sent = client._quic, 0

    def fill(builder, uids=(), comment=""):
        nonlocal sent
        try:
            while True:
                builder.start_frame(QuicFrameType.PATH_CHALLENGE, capacity=9).push_bytes(os.urandom(8))
                sent += 1
        except QuicPacketBuilderStop:
            pass

    # In the place of each PING.
    quic._write_ping_frame = fill
    while sent < int(count):
        quic.send_ping(0)
        client.transmit()
        # Acknowledgements are handled, and make room for more.
        await asyncio.sleep(0)
    del quic._write_ping_frame
    return {"sent": sent, "after": (await client.get("/object/1")).body.decode()}


async def websocket(client, path):
    fields = {":protocol": "websocket", "sec-websocket-version": "13"}
    stream = client.begin("CONNECT", path, fields)
    answer, echoes = client.answers[stream], []
    for word in [b"one", b"two", b"x" * 100]:
        # A text frame, masked with zeros.
        frame = bytes([0x81, 0x80 | len(word), 0, 0, 0, 0]) + word
        client.send(stream, frame)
        while len(answer.body) < len(frame):
            answer.more.clear()
            await answer.more.wait()
        echoes.append(bytes(answer.body) == frame)
        answer.body.clear()
    client.send(stream, b"", ended=True)
    await client.end(stream)
    settings = client.http.received_settings
    return {"status": answer.status, "echoes": echoes, "setting": settings.get(8)}


async def grpc(client, path, word):
    fields = {"content-type": "application/grpc", "te": "trailers", "x-said": "hello"}
    stream = client.begin("POST", path, fields)
    message = word.encode()
    client.send(stream, b"\0" + len(message).to_bytes(4, "big") + message, ended=True)
    answer = await client.end(stream)
    is_whole = answer.body[:5] == b"\0" + (len(answer.body) - 5).to_bytes(4, "big", signed=True)
    message = answer.body[5:].decode() if is_whole else None
    # A call that fails at once may end with its head.
    return {"status": answer.status, "message": message, "trailers": answer.trailers or answer.heads[0]}


async def resume(port, authority):
    """A connection with the session of another one, which is forced to send early data though the ticket forbids it."""
    tickets, told = asyncio.Queue(), []
    async with opened(port, settings(authority), session_ticket_handler=tickets.put_nowait) as client:
        told.append((await client.get("/object/1"), client.handshake))
        ticket = await tickets.get()
    forged = replace(ticket, max_early_data_size=EARLY_DATA)
    for ticket, waits in [(ticket, True), (forged, False)]:
        async with opened(port, settings(authority, ticket), wait_connected=waits) as client:
            told.append((await client.get("/object/1"), client.handshake))
    handshakes = [
        {"body": answer.body.decode(), "resumed": handshake.session_resumed, "early": handshake.early_data_accepted}
        for answer, handshake in told
    ]
    return {"allowed": ticket.max_early_data_size if ticket is not forged else None, "handshakes": handshakes}


async def main(port, authority, order, *arguments):
    if order == "resume":
        return await resume(int(port), authority)
    orders = [objects, download, upload, early, trailers, changes, challenges, websocket, grpc]
    orders = {function.__name__: function for function in orders}
    async with opened(int(port), settings(authority)) as client:
        return await orders[order](client, *arguments)


print(json.dumps(asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), SECONDS))))
