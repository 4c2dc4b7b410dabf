"""A real endpoint of webhooks on loopback, which misbehaves as told."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Received:
    """A request that came whole. The names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def outputs(self) -> list[str]:
        content: dict[str, Any] = json.loads(self.body)
        return [output["id"] for output in content["outputs"]]


@dataclass
class Exchange:
    server: HookServer
    request: Received
    connection: socket.socket

    def write(self, data: bytes) -> None:
        self.connection.sendall(data)


Behaviour = Callable[[Exchange], object]


def answer(status: int, body: bytes = b"", **headers: str | int) -> Behaviour:
    """Answers as HTTP wants it. Names of headers have `_` for `-`. What is answered with 2xx counts as taken."""

    def behave(exchange: Exchange) -> None:
        fields = {"Content_Length": len(body)} | headers
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        if 200 <= status < 300:
            exchange.server.taken.append(exchange.request)
        exchange.write("\r\n".join([f"HTTP/1.1 {status} Status", *lines, "", ""]).encode() + body)

    return behave


def reset(exchange: Exchange) -> None:
    exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.connection.close()


def hang(exchange: Exchange) -> None:
    """Says nothing until the client has gone."""
    exchange.connection.recv(1)


def drip(start: bytes = b"HTTP/1.1 200 OK\r\nX: ") -> Behaviour:
    """Goes on byte by byte after a start, until the client has gone."""

    def behave(exchange: Exchange) -> None:
        exchange.write(start)
        while not exchange.server.released.wait(0.02):
            exchange.write(b"x")

    return behave


def flood(status: int) -> Behaviour:
    """Answers with a body without an end, until the client has gone or has taken it (which it should not read)."""

    def behave(exchange: Exchange) -> None:
        exchange.write(f"HTTP/1.1 {status} Status\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        while not exchange.server.released.is_set():
            exchange.server.flooded += len(chunk)
            exchange.write(chunk)

    return behave


def babble(exchange: Exchange) -> None:
    exchange.write(b"220 mail.example ESMTP\r\n\r\n")


@dataclass
class HookServer:
    """Each request gets the next of the `script`, and once that is over, 200. `received` has all requests in order,
    `taken` those that were answered with 2xx."""

    port: int
    script: list[Behaviour] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    taken: list[Received] = field(default_factory=list)
    flooded: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def note_received(self, request: Received) -> Behaviour:
        with self._lock:
            self.received.append(request)
            return self.script.pop(0) if self.script else answer(200)

    def taken_ids(self) -> list[str]:
        return [id for request in self.taken for id in request.outputs]


class _Handler(socketserver.StreamRequestHandler):
    owner: HookServer

    def handle(self) -> None:
        with suppress(OSError, ValueError):  # the client has gone, as it may
            while (request := self._read()) is not None:
                self.owner.note_received(request)(Exchange(self.owner, request, self.connection))

    def _read(self) -> Received | None:
        start = self.rfile.readline().split()
        if len(start) != 3 or start[0] != b"POST":
            return None
        headers: dict[str, str] = {}
        while line := self.rfile.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        body = self.rfile.read(length)
        return Received(start[1].decode(), headers, body) if len(body) == length else None


@contextmanager
def hook_server(*script: Behaviour) -> Iterator[HookServer]:
    server = HookServer(0, list(script))

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": server})) as listener:
        server.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            listener.shutdown()
            thread.join()
