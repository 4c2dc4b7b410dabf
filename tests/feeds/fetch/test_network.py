"""The guarded client beneath fetching and webhooks: it sends bodies whole, and only to allowed addresses. TLS goes by
the name although the address is connected to: what is asked for, and whose certificate is taken."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from feeds.fetch.http import FetchError, open_client
from tests.support.feed_server import outcomes, rss, running_server

BODY = "Grüße ".encode() * 20_000
OPENSSL = shutil.which("openssl")


@pytest.fixture
def hook(server):
    server.routes["/hook"] = lambda request: request.answer(204, Connection="keep-alive")
    return server.url("/hook")


def post(url: str, *contents: bytes | AsyncIterator[bytes], allow_private: bool = True) -> list[int]:
    """Posts bodies over one client. Returns the statuses of the answers."""

    async def run() -> list[int]:
        async with open_client(allow_private, 2) as client:
            return [(await client.post(url, content=content)).status_code for content in contents]

    return asyncio.run(run())


def test_bodies_are_sent_whole_over_one_connection_and_in_chunks_if_they_come_in_parts(server, hook):
    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(BODY), 1_000):
            yield BODY[start : start + 1_000]

    assert post(hook, BODY, b"", b"{}", parts()) == [204] * 4
    assert [request.body for request in server.log] == [BODY, b"", b"{}", BODY]


def test_a_body_does_not_reach_a_private_address(server, hook):
    with pytest.raises(FetchError, match="only public addresses"):
        post(hook, BODY, allow_private=False)
    assert server.log == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own making for pub.test, and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    names = ["-subj", "/CN=pub.test", "-addext", "subjectAltName=DNS:pub.test"]
    command = [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    made = subprocess.run([*command, "-keyout", "-", "-out", "-"], check=True, capture_output=True)
    path.write_bytes(made.stdout)
    return path


@pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificate")
@pytest.mark.parametrize(
    ("host", "trusted", "cause"),
    [
        *(("pub.test", True, ""), ("pub.test", False, "self-signed certificate")),
        ("other.test", True, "Hostname mismatch"),
    ],
)
def test_tls_goes_by_the_name(certificate, fetching, monkeypatch, host, trusted, cause):
    names: list[str] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    tls.sni_callback = lambda connection, name, context: names.append(name or "")
    if trusted:
        monkeypatch.setattr("certifi.where", lambda: str(certificate))
    with running_server(tls) as server:
        server.serve("/feed", rss("a"))
        url = f"https://{host}:{server.port}/feed"
        assert outcomes(fetching.run(url)) == {"failed" if cause else "new": 1}
        assert cause in fetching.feed(url).last_error
        assert names == [host]
        assert [request.host for request in server.log] == ([] if cause else [f"{host}:{server.port}"])
