"""Receivers: what endpoints, servers of mail and programs get, and what comes of their answers."""

import asyncio
import base64
import email.policy
import json
import os
import select
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lxml import html
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from mmqjp.sinks.definition import CommandOptions, MailOptions, WebhookOptions
from mmqjp.sinks.deliverer import Deliverer
from mmqjp.sinks.secrets import EnvSecret, FileSecret, SecretError, SecretName, Secrets, signing_key
from mmqjp.sinks.sink import MOST_BYTES, DeliveryResult, Message, Receiver, payload
from mmqjp.sinks.webhook import CommandReceiver, MailReceiver, WebhookReceiver, render_mail
from tests.mmqjp.present.test_formats import HOSTILE, HOSTILE_MATCHES, PAGE_ELEMENTS
from tests.support.fake_sinks import Clock, FakeStore, definition, manager
from tests.support.feed_server import (
    Behaviour,
    FeedServer,
    answer,
    babble,
    closed_port,
    drip,
    flood,
    hang,
    hook_server,
    reset,
)
from tests.support.mail_server import MailServer, mail_server, make_certificate
from tests.support.messages import match, message, story
from tests.support.service import Events

MESSAGE = message(match(1), match(2))
NO_SECRETS = Secrets()


def result_of(made: Callable[[], Receiver], given: Message = MESSAGE) -> DeliveryResult:
    """What comes of a message. The receiver is made within the loop that it needs."""

    async def run() -> DeliveryResult:
        receiver = made()
        try:
            return await receiver.send(given)
        finally:
            await receiver.close()

    return asyncio.run(run())


class Impatient(WebhookReceiver):
    silence, attempt = 0.3, 0.6


def sent(
    *script: Behaviour, given: Message = MESSAGE, secrets: Secrets = NO_SECRETS, **options: object
) -> tuple[DeliveryResult, FeedServer]:
    with hook_server(*script) as server:
        chosen: Any = {"url": server.url("/hook"), "allow_private": True} | options
        made = partial(Impatient, WebhookOptions(**chosen), secrets)
        return result_of(made, given), server


def key_file(path: Path, value: str) -> FileSecret:
    path.write_text(value)
    path.chmod(0o600)
    return FileSecret(path)


def new_key() -> str:
    return "whsec_" + base64.b64encode(os.urandom(32)).decode()


def test_every_secret_signs_as_standard_webhooks_has_it(tmp_path: Path):
    old, new = new_key(), new_key()
    secrets = Secrets({"old": key_file(tmp_path / "old", old), "new": key_file(tmp_path / "new", new)})
    verdict, server = sent(secrets=secrets, secret=(SecretName("old"), SecretName("new")))
    assert verdict.kind == "acknowledged"
    (request,) = server.log
    assert request.path == "/hook" and request.headers["Content-Type"] == "application/json"
    for key in (old, new):
        assert Webhook(key).verify(request.body, request.headers) == json.loads(request.body)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_key()).verify(request.body, request.headers)
    assert request.headers["webhook-id"] == MESSAGE.id and request.body == payload(MESSAGE)


ANSWERS = {
    **dict.fromkeys((200, 204, 299), "acknowledged"),
    **dict.fromkeys((301, 302, 307, 308, 408, 425, 429, 500, 502, 503, 504), "down"),
    **dict.fromkeys((400, 401, 403, 404, 405, 413, 422), "refused"),
    410: "gone",
}
WAITS = {"17": 17, "0": 0, "soon": None, "Thu, 01 Jan 1970 00:00:00 GMT": 0, "-5": None}


def test_each_answer_has_its_consequence_and_redirects_are_not_followed():
    with hook_server() as other:
        script = [answer(status, b"not today\r\n", Location=other.url("/hook")) for status in ANSWERS]
        script += [answer(503, Retry_After=header) for header in WAITS]

        async def verdicts(url: str) -> list[DeliveryResult]:
            receiver = WebhookReceiver(WebhookOptions(url, allow_private=True), Secrets())
            found = [await receiver.send(MESSAGE) for _ in script]
            await receiver.close()
            return found

        with hook_server(*script) as server:
            found = asyncio.run(verdicts(server.url("/hook")))
    for (status, kind), verdict in zip(ANSWERS.items(), found, strict=False):
        assert (verdict.kind, verdict.reason) == (kind, "" if status < 300 else f"HTTP {status}: not today")
    waits = [None if seconds is None else seconds * 1_000_000 for seconds in WAITS.values()]
    assert [verdict.retry_after for verdict in found[len(ANSWERS) :]] == waits and not other.log


@pytest.mark.parametrize(
    ("behaviour", "kind", "reason"),
    [
        (hang, "down", "no answer in 0.3 s"),
        (drip(b"HTTP/1.1 200 "), "down", "no whole answer in 0.6 s"),
        (drip(b"HTTP/1.1 400 No\r\n\r\n"), "down", "no whole answer in 0.6 s"),
        (drip(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"), "acknowledged", ""),
        (flood(200), "acknowledged", ""),
        (flood(400), "refused", "HTTP 400: " + "x" * 189 + "…"),
        (babble, "down", "no answer in HTTP"),
        (lambda request: request.write(b"\x00\x01 what is this\r\n\r\n"), "down", "no answer in HTTP"),
        (reset, "down", "no "),
        (answer(200, X="y" * 2_000_000), "down", "no answer in HTTP"),
        (answer(400, "<\x1b[31m\x00>\n\u202e".encode()), "refused", "HTTP 400: <\ufffd[31m\ufffd>"),
        (answer(400, b"not gzip", Content_Encoding="gzip"), "refused", "HTTP 400"),
    ],
)
def test_a_hostile_endpoint_is_no_more_than_down(behaviour: Behaviour, kind: str, reason: str):
    verdict, server = sent(behaviour)
    assert verdict.kind == kind and verdict.reason.startswith(reason) and len(verdict.reason) <= 200
    assert server.log[0].sent < 32 << 20 and "gzip" not in verdict.reason


FAULTS = {
    "hangs": (hang, 5),
    "drips": (drip(), 5),
    "resets": (reset, 5),
    "babbles": (babble, 5),
    "500": (answer(500), 5),
    "503 for an hour": (answer(503, Retry_After=3600), 3_600),
    "429 for a minute": (answer(429, b"slow down", Retry_After=60), 60),
    "400 once": (answer(400, b"what?"), 5),
}
"""What is wrong once, and after how many seconds the service tries again."""


def test_each_output_comes_once_after_each_fault(tmp_path: Path):
    key = new_key()
    secrets = Secrets({"hook": key_file(tmp_path / "hook", key)})
    store, events, deliverer = FakeStore(Clock()), Events(), Deliverer()
    with hook_server(*[one for fault, _ in FAULTS.values() for one in (fault, answer(200))]) as server:
        options = WebhookOptions(server.url("/hook"), (SecretName("hook"),), allow_private=True)
        hook = Impatient(options, secrets)
        # The deliverer and the receiver are the real ones, where `manager` is typed for its own.
        sinks = manager(store, {"s": hook}, [definition("s")], deliverer, events)  # type: ignore[dict-item, arg-type]
        sinks.committed(store.commit(["a"] * len(FAULTS)))
        while (state := sinks.list()[0]).behind:
            store.clock.time = max(store.clock.time, state.next or 0)
            sinks.turn()
            deliverer.wait(0.05)
        sinks.close()
    taken = [output["id"] for request in server.taken() for output in json.loads(request.body)["outputs"]]
    assert taken == [f"id{number}" for number in range(len(FAULTS))]
    tries = [(request.headers["webhook-id"], request.body) for request in server.log]
    assert tries[::2] == tries[1::2]
    for request in server.log:
        assert Webhook(key).verify(request.body, request.headers)
    waits = [event["again_in_seconds"] for event in events.named("sink") if "again_in_seconds" in event]
    assert waits == [pytest.approx(wait, rel=0.1) for _, wait in FAULTS.values()]


@pytest.mark.parametrize("host", ["[::1]", "name.example"])
def test_private_addresses_are_reached_only_if_the_file_allows_it(host: str):
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    with hook_server() as server:
        options = WebhookOptions(server.url("/hook", host))
        verdict = result_of(lambda: WebhookReceiver(options, Secrets(), resolve))
    assert verdict.kind == "down" and "only public addresses" in verdict.reason and not server.log


def test_a_secret_address_is_read_when_it_is_used_and_nobody_may_listen_there(tmp_path: Path):
    secrets = Secrets({"where": FileSecret(tmp_path / "where")})
    verdict, _ = sent(secrets=secrets, url=SecretName("where"))
    assert verdict.kind == "down" and "where" in verdict.reason
    verdict, _ = sent(url=f"http://127.0.0.1:{closed_port()}/")
    assert verdict.kind == "down" and verdict.reason


def test_what_is_no_key_is_told_by_its_name(tmp_path: Path):
    secrets = Secrets({"hook": key_file(tmp_path / "hook", "not base64!")})
    verdict, server = sent(secrets=secrets, secret=(SecretName("hook"),))
    assert verdict.kind == "down" and "hook" in verdict.reason and "not base64" not in verdict.reason
    assert not server.log
    assert signing_key("whsec_") is None and signing_key("whsec_QUJD") == signing_key("QUJD") == b"ABC"


def test_plain_text_for_receivers_like_ntfy():
    given = message(match(1, "One"), match(2, "Two\nlines"), more=3)
    (request,) = sent(given=given, format="text")[1].log
    assert request.headers["Content-Type"] == "text/plain; charset=utf-8"
    lines = request.body.decode().splitlines()
    assert lines[0] == "q1:" and lines[1] == "One (A feed) https://a.example/1" and lines[-1] == "and 3 more"
    (request,) = sent(given=message(story(1, "a" * 32, 20)), format="text")[1].log
    assert request.body.decode().splitlines() == ["q1:", "Tram 0 on FIRE (Feed 0) https://a.example/d0", "and 19 more"]
    (request,) = sent(given=message(), format="text")[1].log
    assert request.body == b"This is a test of the sink alerts."


# ------------------------------------------------------------ the JSON of a message


def read_json(given: Message):
    text = payload(given)
    assert text.endswith(b"\n") and text.count(b"\n") == 1 and text == payload(given)
    return json.loads(text)


def test_a_message_has_output_lines_and_their_items():
    one, noon = match(7, "Grüße \u2028 <b>"), "2026-05-06T12:00:00Z"
    item = {"id": "d7", "stream": "S", "time": noon, "title": "Grüße \u2028 <b>"}
    item |= {"url": "https://a.example/7", "feed": "A feed"}
    outputs = [json.loads(one.output.to_line()) | {"items": [item]}]
    expected = {"type": "mmqjp.outputs", "timestamp": noon, "sink": "alerts", "more": 3, "outputs": outputs}
    assert read_json(message(one, more=3)) == expected
    (told,) = read_json(message(story(1, "a" * 32, 3)))["outputs"]
    assert (told["story"], told["change"], len(told["items"])) == ("a" * 32, "grew", 3)
    test = read_json(message())
    assert (test["type"], test["outputs"]) == ("mmqjp.test", [])


def test_xml_that_would_make_it_too_large_is_left_out():
    large = "é" * (MOST_BYTES // 2)
    found = read_json(message(match(0), match(1, xml=large), match(2), match(3, xml=large)))["outputs"]
    assert ["xml" in one for one in found] == [True, False, True, False]
    assert [one.get("xml_bytes") for one in found] == [None, MOST_BYTES, None, MOST_BYTES]
    many = payload(message(*(match(seq, xml="x" * 1_000) for seq in range(40))))
    assert len(many) < 2 * MOST_BYTES and len(json.loads(many)["outputs"]) == 40


def test_bodies_may_be_json_with_numbers_as_they_are_written():
    given = message(
        match(0, xml=f'<match query="q"><n type="number">{"7" * 400}</n></match>'), match(1, xml="x" * MOST_BYTES)
    )
    text = payload(given, "json")
    one, large = json.loads(text)["outputs"]
    assert one["json"] == {"match": {"@query": "q", "n": int("7" * 400)}} and "xml" not in one
    assert large.keys() == json.loads(payload(given))["outputs"][1].keys() and "xml_bytes" in large


# ------------------------------------------------------------ programs


def ended(*command: str, given: Message = MESSAGE) -> DeliveryResult:
    return result_of(partial(CommandReceiver, CommandOptions(command), NO_SECRETS), given)


def python(program: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", program, *map(str, arguments))


def has_ended(pid: int) -> bool:
    """Waits until a process has ended, also one that its parent does not know of yet."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    return True


def test_a_program_gets_the_json_which_it_need_not_read_and_no_shell_its_arguments(tmp_path):
    path = tmp_path / "got"
    program = "import sys; open(sys.argv[1], 'wb').write(sys.argv[2].encode() + b'\\n' + sys.stdin.buffer.read())"
    assert ended(*python(program, path, "$(id) ; `id` *")) == DeliveryResult("acknowledged")
    assert path.read_bytes() == b"$(id) ; `id` *\n" + payload(MESSAGE)
    large = message(*(match(seq, "t" * 300) for seq in range(1_000)))
    assert len(payload(large)) > 300_000
    assert ended("true", given=large) == DeliveryResult("acknowledged")


@pytest.mark.parametrize(
    ("program", "kind", "reason"),
    [
        ("raise SystemExit(1)", "refused", "ended with status 1"),
        ("import sys; sys.exit('no such list\\nreally')", "refused", "ended with status 1: no such list really"),
        ("raise SystemExit(75)", "down", "ended with status 75"),
        ("import os; os.kill(os.getpid(), 9)", "down", "was killed by signal 9"),
        ("import sys; sys.stderr.buffer.write(b'\\xff\\x1b[2J' * 1000000); sys.exit(3)", "refused", "status 3: "),
    ],
)
def test_how_a_program_ends_decides(program, kind, reason):
    verdict = ended(*python(program))
    assert verdict.kind == kind and reason in verdict.reason and sys.executable in verdict.reason
    assert len(verdict.reason) < 1_200 and verdict.reason.isprintable()


@pytest.mark.parametrize("command", ["/nowhere/to/be/found", "/", "/etc/hostname"])
def test_a_program_that_cannot_be_started(command):
    verdict = ended(command)
    assert verdict.kind == "down" and verdict.reason.startswith(f"{command} cannot be started: ")


CHILD = "import subprocess, sys; c = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])"


def stopped(path: Path, seconds: float, *, cancelled: bool) -> DeliveryResult | None:
    """What comes of a program that never ends. It and its child must have ended by then."""
    os.mkfifo(path)
    program = f"import os; {CHILD}; open(sys.argv[1], 'w').write(f'{{os.getpid()}} {{c.pid}}'); c.wait()"

    async def run() -> tuple[list[int], DeliveryResult | None]:
        receiver = CommandReceiver(CommandOptions(python(program, path)), Secrets())
        receiver.seconds = seconds
        sending = asyncio.create_task(receiver.send(MESSAGE))
        pids = list(map(int, (await asyncio.to_thread(path.read_text)).split()))
        if not cancelled:
            return pids, await sending
        sending.cancel()  # as the deliverer does when the service stops
        with pytest.raises(asyncio.CancelledError):
            await sending
        return pids, None

    pids, verdict = asyncio.run(run())
    assert len(pids) == 2 and all(map(has_ended, pids))
    return verdict


def test_a_program_is_killed_with_its_children_when_it_takes_too_long_or_the_service_stops(tmp_path):
    too_long = DeliveryResult("down", f"{sys.executable} took more than 3 s and was killed")
    assert stopped(tmp_path / "a", 3, cancelled=False) == too_long
    assert stopped(tmp_path / "b", 3600, cancelled=True) is None


def test_what_a_program_leaves_running_is_killed_and_does_not_hold_us_up(tmp_path):
    path = tmp_path / "pid"
    assert ended(*python(f"{CHILD}; open(sys.argv[1], 'w').write(str(c.pid))", path)) == DeliveryResult("acknowledged")
    assert has_ended(int(path.read_text()))


# ------------------------------------------------------------ mails

# The server warns that it takes passwords before STARTTLS, which is what one test is about.
pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")

OPENSSL = shutil.which("openssl")
ANN, BOB = "ann@example.org", "bob@example.org"
DIGEST = message(match(3), match(5), sink="morning", more=2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if OPENSSL is None:
        pytest.skip("openssl makes the certificate")
    return make_certificate(OPENSSL, tmp_path_factory.mktemp("tls") / "both.pem")


def options(port: int = 0, **more: Any) -> MailOptions:
    given: dict[str, Any] = {"host": "127.0.0.1", "tls": "none", "sender": "mmqjp@example.org", "to": (ANN,)}
    return MailOptions(port=port, **(given | more))


def mailed(server: MailServer, given: Message = DIGEST, secrets: Secrets = NO_SECRETS, **more: Any) -> DeliveryResult:
    return result_of(partial(MailReceiver, options(server.port, **more), secrets), given)


def read_mail(content: bytes) -> EmailMessage:
    """A mail, as Python's parser reads it. It must have no defects."""
    mail = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(mail, EmailMessage)
    assert not any(part.defects for part in mail.walk())
    return mail


def parts(mail: EmailMessage) -> tuple[str, str]:
    text, page = mail.get_body(("plain",)), mail.get_body(("html",))
    return "" if text is None else text.get_content(), "" if page is None else page.get_content()


# ------------------------------------------------------------ what a mail says


def test_a_server_gets_the_digest():
    with mail_server() as server:
        assert mailed(server, to=(ANN, BOB)) == DeliveryResult("acknowledged")
    ((sender, recipients, content),) = server.mails
    assert (sender, recipients) == ("mmqjp@example.org", [ANN, BOB])
    mail = read_mail(content)
    headers = {key: str(value) for key, value in mail.items()}
    assert headers["Subject"] == "morning: 4 matches" and headers["To"] == f"{ANN}, {BOB}"
    assert headers["From"] == "mmqjp@example.org" and headers["Date"] == "Wed, 06 May 2026 12:00:00 +0000"
    assert headers["Message-ID"] == f"<morning.3-5.{DIGEST.id}@example.org>"
    text, page = parts(mail)
    for shown in (text, page):
        assert "the first 2 of 4 matches" in shown and "https://a.example/5" in shown and "A title" in shown
        assert "A feed, a.example" in shown and "2026-05-06 12:00" in shown
    assert "<script" not in page and html.document_fromstring(page).xpath("count(//li[@class='match'])") == 2
    ranked = message(match(5, "Second in time"), match(3, "First in time"), more=2)
    for shown in parts(read_mail(render_mail(ranked, options(by="n")))):
        assert "the top 2 of 4 matches by n" in shown
        assert shown.index("Second in time") < shown.index("First in time")
    stories = message(story(5, "b" * 32, 20, "merged"), story(4, "c" * 32, 3), more=1)
    assert read_mail(render_mail(stories, options(by="members")))["Subject"] == "alerts: 3 stories"
    test = read_mail(render_mail(message(sink="morning"), options()))
    assert test["Subject"] == "morning: a test" and test.get_content_type() == "text/plain"
    assert test.get_content().strip() == "This is a test: the mails of this sink arrive here."


def test_every_attempt_is_the_same_bytes_and_any_server_takes_them():
    long = message(*(match(seq, "ä" * 300) for seq in range(20)))
    content = render_mail(long, options())
    assert content == render_mail(long, options()) and content.isascii()
    lines = content.split(b"\r\n")
    assert max(map(len, lines)) <= 78 and not any(b"\n" in line or b"\r" in line for line in lines)
    given = (DIGEST, message(match(3), match(6), sink="morning"), message(match(3), match(5), sink="evening"))
    assert len({read_mail(render_mail(one, options()))["Message-ID"] for one in given}) == 3


def test_nothing_in_a_title_becomes_a_header_or_markup():
    lines = "a\r\nBcc: eve@example.org\r\n\r\nx", ".\r\nMAIL FROM:<eve@example.org>", "\r\n.\r\n", "=?utf-8?q?x?="
    titles = enumerate((*HOSTILE, *lines))
    given = message(*HOSTILE_MATCHES, *(match(100 + place, title) for place, title in titles))
    with mail_server() as server:
        assert mailed(server, given) == DeliveryResult("acknowledged")
    ((_, recipients, content),) = server.mails
    mail = read_mail(content)
    assert recipients == [ANN] and mail["Bcc"] is None and len(mail.items()) == 8
    text, page = parts(mail)
    assert {str(one.tag) for one in html.document_fromstring(page).iter("*")} <= PAGE_ELEMENTS | {"details", "summary"}
    assert "عنوان من اليمين" in text and "عنوان من اليمين" in page
    assert mail.get_content_type() == "multipart/alternative" and len(list(mail.iter_parts())) == 2


# ------------------------------------------------------------ how it is handed over


@pytest.mark.parametrize("tls", ["at once", "starttls"])
def test_tls_and_a_password(certificate, monkeypatch, tls):
    monkeypatch.setenv("MAIL_PASSWORD", "right")
    secrets = Secrets({"mail": EnvSecret("MAIL_PASSWORD")})
    given: dict[str, Any] = {"secrets": secrets, "tls": tls, "user": "ann", "password": "mail", "ca": certificate}
    with mail_server(certificate, at_once=tls == "at once", auth=True) as server:
        for host in ("127.0.0.1", "localhost"):
            assert mailed(server, **given, host=host) == DeliveryResult("acknowledged")
        assert server.encrypted == [True, True] and server.logins == [("ann", "right")] * 2
        monkeypatch.setenv("MAIL_PASSWORD", "hunter2")
        refused = DeliveryResult("down", "127.0.0.1 refused the user or the password with 535")
        assert mailed(server, **given) == refused
        monkeypatch.delenv("MAIL_PASSWORD")
        with pytest.raises(SecretError, match="the secret mail is not there"):
            mailed(server, **given)
        assert len(server.mails) == 2
    with mail_server(certificate, at_once=tls == "at once") as server:
        verdict = mailed(server, tls=tls)  # nobody knows this certificate
    assert verdict.kind == "down" and "certificate" in verdict.reason.lower() and not server.mails


def test_without_starttls_nothing_is_sent(monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", "hunter2")
    with mail_server(auth=True) as server:
        secrets = Secrets({"mail": EnvSecret("MAIL_PASSWORD")})
        verdict = mailed(server, secrets=secrets, tls="starttls", user="ann", password="mail")
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
        found = mailed(server, to=(ANN, BOB))
    text = next(iter(answers.values()))
    assert found.kind == verdict and text in found.reason and "127.0.0.1" in found.reason
    assert len(server.mails) == (verdict == "acknowledged")


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
def test_servers_that_are_none(says, cause, monkeypatch):
    with strange_server(*says) as server:
        monkeypatch.setattr(MailReceiver, "silence", 1.0)
        verdict = mailed(server)
    assert verdict.kind == "down" and cause in verdict.reason.lower() and len(verdict.reason) < 400


def test_servers_that_drip_or_do_not_listen(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(MailReceiver, "silence", 3600.0)
        monkeypatch.setattr(MailReceiver, "attempt", 0.2)
        verdict = mailed(MailServer(port))
    assert verdict == DeliveryResult("down", "127.0.0.1 took too long: more than 0.2 s")
    verdict = mailed(MailServer(port))  # which is closed now
    assert verdict.kind == "down" and "127.0.0.1" in verdict.reason
