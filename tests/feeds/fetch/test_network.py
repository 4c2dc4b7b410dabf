"""The guarded client beneath fetching and webhooks: it sends bodies whole, and only to allowed addresses."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from feeds.fetch.http import FetchError, open_client

BODY = "Grüße ".encode() * 20_000


@pytest.fixture
def server() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a server that takes what is posted, and the bodies that it got."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self._chunks() if "Transfer-Encoding" in self.headers else self._counted())
            self.send_response(204)
            self.end_headers()

        def _counted(self) -> bytes:
            return self.rfile.read(int(self.headers["Content-Length"]))

        def _chunks(self) -> bytes:
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing on standard error."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}/hook", bodies
        finally:
            http.shutdown()
            thread.join()


def post(url: str, *contents: bytes | AsyncIterator[bytes], allow_private: bool = True) -> list[int]:
    """Posts bodies over one client. Returns the statuses of the answers."""

    async def run() -> list[int]:
        async with open_client(allow_private, 2) as client:
            return [(await client.post(url, content=content)).status_code for content in contents]

    return asyncio.run(run())


def test_bodies_are_sent_whole_over_one_connection(server):
    url, bodies = server
    assert post(url, BODY, b"", b"{}") == [204] * 3
    assert bodies == [BODY, b"", b"{}"]


def test_a_body_that_comes_in_parts_is_sent_in_chunks(server):
    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(BODY), 1_000):
            yield BODY[start : start + 1_000]

    url, bodies = server
    assert post(url, parts()) == [204]
    assert bodies == [BODY]


def test_a_body_does_not_reach_a_private_address(server):
    url, bodies = server
    with pytest.raises(FetchError, match="only public addresses"):
        post(url, BODY, allow_private=False)
    assert bodies == []
