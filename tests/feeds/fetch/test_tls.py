"""TLS goes by the name although the address is connected to: what is asked for, and whose certificate is taken."""

import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeds.fetch.fetcher import Outcome
from tests.support.feed_server import Fetching, rss

OPENSSL = shutil.which("openssl")

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own making for pub.test, and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    names = ["-subj", "/CN=pub.test", "-addext", "subjectAltName=DNS:pub.test"]
    command = [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    made = subprocess.run([*command, "-keyout", "-", "-out", "-"], check=True, capture_output=True)
    path.write_bytes(made.stdout)
    return path


@pytest.fixture
def server(certificate: Path) -> Iterator[tuple[int, list[str]]]:
    """The port of a server with that certificate, and the names that it was asked for, by TLS and by HTTP."""
    names: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            names.append(self.headers["Host"])
            body = rss("a").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing on standard error."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that refuses us says nothing on standard error."""

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    tls.sni_callback = lambda connection, name, context: names.append(name or "")
    with Server(("127.0.0.1", 0), Handler) as http_server:
        http_server.socket = tls.wrap_socket(http_server.socket, server_side=True)
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield http_server.server_address[1], names
        http_server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("host", "trusted", "cause"),
    [
        ("pub.test", True, ""),
        ("pub.test", False, "self-signed certificate"),
        ("other.test", True, "Hostname mismatch"),
    ],
)
def test_tls_goes_by_the_name(server, certificate, tmp_path, monkeypatch, host, trusted, cause):
    port, names = server
    if trusted:
        monkeypatch.setattr("certifi.where", lambda: str(certificate))
    fetching = Fetching(tmp_path)
    url = f"https://{host}:{port}/feed"
    report = fetching.run(url)
    assert report.counts == {Outcome.FAILED if cause else Outcome.NEW: 1}
    assert cause in fetching.feed(url).last_error
    assert names == ([host] if cause else [host, f"{host}:{port}"])
