"""A real SMTP server on loopback that keeps what it gets and misbehaves as told, and a certificate for it."""

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


@dataclass
class MailServer:
    """What a server got, and what it answers. `mails` has sender, recipients and content of each accepted mail."""

    port: int = 0
    mails: list[tuple[str, list[str], bytes]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    """What is answered to a recipient, or to `DATA`."""

    async def handle_RCPT(  # noqa: N802  # as aiosmtpd calls it
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if (answer := self.answers.get(address)) is None:
            envelope.rcpt_tos.append(address)
        return answer or "250 OK"

    async def handle_DATA(  # noqa: N802  # as aiosmtpd calls it
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        if (answer := self.answers.get("DATA")) is None:
            assert isinstance(envelope.content, bytes)
            self.mails.append((str(envelope.mail_from), list(envelope.rcpt_tos), envelope.content))
            at_once = server.transport is not None and server.transport.get_extra_info("sslcontext") is not None
            self.encrypted.append(at_once or session.ssl is not None)
        return answer or "250 OK"

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object
    ) -> AuthResult:
        """Takes the password `right`."""
        assert isinstance(data, LoginPassword)
        user, password = data.login.decode(), data.password.decode()
        self.logins.append((user, password))
        if password == "right":
            return AuthResult(success=True)
        return AuthResult(success=False, handled=False, message=f"535 no such password: {password}")


class _Controller(Controller):
    """A controller that also finds a server on a port that the system chose."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def mail_server(certificate: Path | None = None, *, at_once: bool = False, auth: bool = False) -> Iterator[MailServer]:
    """A server that runs until the end of the block. With a certificate it speaks TLS, `at_once` or after STARTTLS."""
    found = MailServer()
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    controller = _Controller(
        found,
        hostname="127.0.0.1",
        port=0,
        ssl_context=tls if at_once else None,
        tls_context=None if at_once else tls,
        require_starttls=tls is not None and not at_once,
        authenticator=found.authenticate if auth else None,
        auth_required=auth,
        auth_require_tls=tls is not None and not at_once,
        ready_timeout=60,
    )
    controller.start()
    found.port = controller.port
    try:
        yield found
    finally:
        controller.stop()


def make_certificate(openssl: str, path: Path, host: str = "DNS:localhost,IP:127.0.0.1") -> Path:
    """Makes a certificate, for localhost and 127.0.0.1 unless told otherwise, with its key, in one file."""
    names = ["-subj", "/CN=test", "-addext", f"subjectAltName={host}"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    made = subprocess.run([*command, "-keyout", "-", "-out", "-"], check=True, capture_output=True)
    path.write_bytes(made.stdout)
    return path
