"""The kind `mail`: digests that a real SMTP server gets, and what comes of its answers."""

import asyncio
import email.policy
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path

import pytest
from lxml import html

from mmqjp.present.item import ShownMatch
from mmqjp.sinks.definition import MailOptions
from mmqjp.sinks.secrets import EnvSecret, SecretError, Secrets
from mmqjp.sinks.sink import DeliveryResult, Message
from mmqjp.sinks.webhook import MailReceiver, render_mail
from tests.mmqjp.present.test_formats import HOSTILE, HOSTILE_MATCHES, PAGE_ELEMENTS
from tests.support.mail_server import MailServer, mail_server, make_certificate
from tests.support.messages import match, message

# The server warns that it takes passwords before STARTTLS, which is what one test is about.
pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")

OPENSSL = shutil.which("openssl")
ANN, BOB = "ann@example.org", "bob@example.org"
MESSAGE = message(match(3), match(5), sink="morning", more=2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if OPENSSL is None:
        pytest.skip("openssl makes the certificate")
    return make_certificate(OPENSSL, tmp_path_factory.mktemp("tls") / "both.pem")


def options(port: int = 0, tls: str = "none", **more: object) -> MailOptions:
    given = {"host": "127.0.0.1", "port": port, "tls": tls, "sender": "mmqjp@example.org", "to": (ANN,)}
    return MailOptions(**(given | more))  # type: ignore[arg-type]  # the tests choose names and types


def sent(
    server: MailServer, given: Message = MESSAGE, secrets: Secrets | None = None, **more: object
) -> DeliveryResult:
    """What comes of one message."""

    async def run() -> DeliveryResult:
        receiver = MailReceiver(options(server.port, **more), secrets or Secrets())  # type: ignore[arg-type]
        return await receiver.send(given)

    return asyncio.run(run())


def read(content: bytes) -> EmailMessage:
    """A mail, as Python's parser reads it. It must have no defects."""
    mail = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(mail, EmailMessage)
    assert not any(part.defects for part in mail.walk())
    return mail


def parts(mail: EmailMessage) -> tuple[str, str]:
    """The plain text and the HTML."""
    text, page = mail.get_body(("plain",)), mail.get_body(("html",))
    return "" if text is None else text.get_content(), "" if page is None else page.get_content()


# ------------------------------------------------------------ what a mail says


def test_a_server_gets_the_digest():
    with mail_server() as server:
        assert sent(server, to=(ANN, BOB)) == DeliveryResult("acknowledged")
    ((sender, recipients, content),) = server.mails
    assert (sender, recipients) == ("mmqjp@example.org", [ANN, BOB])
    mail = read(content)
    headers = {key: str(value) for key, value in mail.items()}
    assert headers["Subject"] == "morning: 4 matches" and headers["To"] == f"{ANN}, {BOB}"
    assert headers["From"] == "mmqjp@example.org" and headers["Date"] == "Wed, 06 May 2026 12:00:00 +0000"
    assert headers["Message-ID"] == f"<morning.3-5.{MESSAGE.id}@example.org>"
    text, page = parts(mail)
    for shown in (text, page):
        assert "the first 2 of 4 matches" in shown and "https://a.example/5" in shown and "A title" in shown
        assert "A feed, a.example" in shown and "2026-05-06 12:00" in shown
    assert "<script" not in page and html.document_fromstring(page).xpath("count(//li[@class='match'])") == 2


def test_every_attempt_is_the_same_bytes_and_any_server_takes_them():
    long = message(*(match(seq, "ä" * 300) for seq in range(100)))
    content = render_mail(long, options())
    assert content == render_mail(long, options()) and content.isascii()
    lines = content.split(b"\r\n")
    assert max(map(len, lines)) <= 78 and not any(b"\n" in line or b"\r" in line for line in lines)


def test_messages_have_ids_of_their_own():
    given = (MESSAGE, message(match(3), match(6), sink="morning"), message(match(3), match(5), sink="evening"))
    assert len({read(render_mail(one, options()))["Message-ID"] for one in given}) == 3


def test_nothing_in_a_title_becomes_a_header_or_markup():
    titles = (
        *HOSTILE,
        "a\r\nBcc: eve@example.org\r\n\r\nx",
        ".\r\nMAIL FROM:<eve@example.org>",
        "\r\n.\r\n",
        "=?utf-8?q?x?=",
    )
    given = message(*HOSTILE_MATCHES, *(match(100 + place, title) for place, title in enumerate(titles)))
    with mail_server() as server:
        assert sent(server, given) == DeliveryResult("acknowledged")
    ((_, recipients, content),) = server.mails
    mail = read(content)
    assert recipients == [ANN] and mail["Bcc"] is None and len(mail.items()) == 8
    text, page = parts(mail)
    assert {str(one.tag) for one in html.document_fromstring(page).iter("*")} <= PAGE_ELEMENTS | {"details", "summary"}
    assert "عنوان من اليمين" in text and "عنوان من اليمين" in page
    assert mail.get_content_type() == "multipart/alternative" and len(list(mail.iter_parts())) == 2


def test_a_test_is_plain_text():
    with mail_server() as server:
        assert sent(server, message(sink="morning")) == DeliveryResult("acknowledged")
    mail = read(server.mails[0][2])
    assert mail["Subject"] == "morning: a test" and mail.get_content_type() == "text/plain"
    assert mail.get_content().strip() == "This is a test: the mails of this sink arrive here."


# ------------------------------------------------------------ how it is handed over


@pytest.mark.parametrize("tls", ["at once", "starttls"])
def test_tls_and_a_password(certificate, monkeypatch, tls):
    monkeypatch.setenv("MAIL_PASSWORD", "right")
    secrets = Secrets({"mail": EnvSecret("MAIL_PASSWORD")})
    with mail_server(certificate, at_once=tls == "at once", auth=True) as server:
        given = {"tls": tls, "user": "ann", "password": "mail"}
        assert sent(server, secrets=secrets, **given, ca=certificate) == DeliveryResult("acknowledged")
        assert sent(server, secrets=secrets, **given, ca=certificate, host="localhost") == DeliveryResult(
            "acknowledged"
        )
        assert server.encrypted == [True, True] and server.logins == [("ann", "right")] * 2
        monkeypatch.setenv("MAIL_PASSWORD", "hunter2")
        refused = sent(server, secrets=secrets, **given, ca=certificate)
        assert refused == DeliveryResult("down", "127.0.0.1 refused the user or the password with 535")
        monkeypatch.delenv("MAIL_PASSWORD")
        with pytest.raises(SecretError, match="the secret mail is not there"):
            sent(server, secrets=secrets, **given, ca=certificate)
        assert len(server.mails) == 2


@pytest.mark.parametrize("tls", ["at once", "starttls"])
def test_a_certificate_that_nobody_knows_is_refused(certificate, tls):
    with mail_server(certificate, at_once=tls == "at once") as server:
        verdict = sent(server, tls=tls)
    assert verdict.kind == "down" and "certificate" in verdict.reason.lower() and not server.mails


def test_without_starttls_nothing_is_sent(monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", "hunter2")
    with mail_server(auth=True) as server:
        secrets = Secrets({"mail": EnvSecret("MAIL_PASSWORD")})
        verdict = sent(server, secrets=secrets, tls="starttls", user="ann", password="mail")
    assert verdict.kind == "down" and "STARTTLS" in verdict.reason and not server.logins and not server.mails


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ({ANN: "550 no such user", BOB: "551 gone"}, "refused"),
        ({ANN: "451 greylisted", BOB: "550 no"}, "down"),
        ({ANN: "450 busy", BOB: "450 busy"}, "down"),
        ({"DATA": "554 spam"}, "refused"),
        ({"DATA": "452 full"}, "down"),
        ({"DATA": "421 going away"}, "down"),
        ({ANN: "550 no such user"}, "acknowledged"),  # since Bob has it
    ],
)
def test_what_the_server_answers_decides(answers, verdict):
    with mail_server() as server:
        server.answers = answers
        found = sent(server, to=(ANN, BOB))
    text = next(iter(answers.values()))
    assert found.kind == verdict and text in found.reason and "127.0.0.1" in found.reason
    assert len(server.mails) == (verdict == "acknowledged")


def test_what_a_server_repeats_is_not_told(monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", "hunter2")
    with mail_server() as server:
        server.answers = {"DATA": "554 your password is hunter2\x1b[2J " + "x" * 400}
        found = sent(server, secrets=Secrets({"mail": EnvSecret("MAIL_PASSWORD")}))
    assert "[secret mail]" in found.reason and "hunter2" not in found.reason
    assert found.reason.isprintable() and len(found.reason) < 400


@contextmanager
def strange_server(*says: bytes) -> Iterator[MailServer]:
    """A server that says something as soon as somebody connects, and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            listener.settimeout(60)
            connection, _ = listener.accept()
            with connection:
                for one in says:
                    connection.sendall(one)
                if says:
                    over.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield MailServer(listener.getsockname()[1])
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    ("says", "cause"),
    [
        ((), "unexpected eof"),
        ((b"",), "took too long"),
        ((b"220-a\r\n" * 10_000,), "too long"),
        ((b"220 " + b"a" * 100_000 + b"\r\n",), "too long"),
        ((b"HTTP/1.1 400 Bad Request\r\n",), "malformed"),
        ((b"554 go away\r\n",), "554 go away"),
    ],
)
def test_servers_that_are_none(says, cause):
    with strange_server(*says) as server:

        async def run() -> DeliveryResult:
            return await MailReceiver(options(server.port), Secrets(), silence=1.0).send(MESSAGE)

        verdict = asyncio.run(run())
    assert verdict.kind == "down" and cause in verdict.reason.lower() and len(verdict.reason) < 400


def test_a_server_that_drips_does_not_hold_us_for_ever():
    """The time of an attempt ends it, however often the server says something."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def run() -> DeliveryResult:
            receiver = MailReceiver(options(listener.getsockname()[1]), Secrets(), silence=3600.0, attempt=0.2)
            return await receiver.send(MESSAGE)

        verdict = asyncio.run(run())
    assert verdict == DeliveryResult("down", "127.0.0.1 took too long: more than 0.2 s")


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    verdict = sent(MailServer(port))
    assert verdict.kind == "down" and "127.0.0.1" in verdict.reason


def test_matches_of_several_queries_stand_under_their_names():
    given: tuple[ShownMatch, ...] = (match(1, query="beta"), match(2, query="alpha"), match(3, query="beta"))
    text, page = parts(read(render_mail(message(*given), options())))
    assert text.index("alpha") < text.index("beta  2 matches")
    assert html.document_fromstring(page).xpath("//h2/text()") == ["alpha ", "beta "]
