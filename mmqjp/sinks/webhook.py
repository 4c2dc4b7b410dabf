"""The push kinds of sinks: `webhook`, `command` and `mail`. A webhook gets messages as in Standard Webhooks 1.0, a
program as JSON on standard input (status 0 acknowledges), and an SMTP server as digests in plain text and HTML."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import ssl
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, timedelta
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from tempfile import TemporaryFile

import certifi
import httpcore
import httpx
from aiosmtplib import SMTP
from aiosmtplib.errors import SMTPAuthenticationError, SMTPDataError, SMTPException, SMTPRecipientsRefused
from rich.console import Console

from common.dates import EPOCH
from feeds.documents import now_us
from feeds.fetch.http import FetchError, Resolve, open_client, resolve_host, retry_after
from mmqjp.present.item import MatchSpool, Report, TimeFormat, and_more
from mmqjp.present.terminal import print_report, write_page
from mmqjp.process import printable_line
from mmqjp.sinks.definition import CommandOptions, MailOptions, WebhookOptions
from mmqjp.sinks.secrets import SecretError, Secrets, signature, signing_key
from mmqjp.sinks.sink import ACKNOWLEDGED, DeliveryResult, Message, Receiver, down, payload, refused

MAX_STDERR_BYTES = 1_000  # number of last bytes of standard error used as the reason
LAST_WORDS = 1.0  # seconds to wait for killed processes and the end of standard error
TRY_LATER = os.EX_TEMPFAIL  # the exit status by which a program says that it takes no messages now


class CommandReceiver(Receiver):
    """Runs a program without a shell in its own process group, which is killed when the program ends or times out."""

    seconds = 60.0  # time limit of the program

    def __init__(self, options: CommandOptions, secrets: Secrets) -> None:
        self._command, self._body, self._secrets = options.command, options.body, secrets

    async def send(self, message: Message) -> DeliveryResult:
        """Environment variables with secrets are withheld."""
        words, hidden = _LastWords(), self._secrets.variables()
        try:
            # Not pipes of asyncio: it would wait until the last process that has them open has ended.
            with TemporaryFile() as content:
                content.write(payload(message, self._body))
                content.seek(0)
                process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=content, stdout=DEVNULL, stderr=words.write_end, start_new_session=True,
                    env={name: value for name, value in os.environ.items() if name not in hidden},
                )  # fmt: skip
        except (OSError, ValueError) as error:
            words.close()
            return down(f"{self._command[0]} cannot be started: {getattr(error, 'strerror', None) or error}")
        try:
            reading, ending = asyncio.create_task(words.read()), asyncio.create_task(process.wait())
            try:
                async with asyncio.timeout(self.seconds):
                    status = await asyncio.shield(ending)
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait([reading, ending], timeout=LAST_WORDS)
                reading.cancel()
        except TimeoutError:
            return down(f"{self._command[0]} took more than {self.seconds:g} s and was killed")
        finally:
            words.close()
        return self._verdict(status, words.text)

    def _verdict(self, status: int, reply: bytes) -> DeliveryResult:
        if not status:
            return ACKNOWLEDGED
        words = self._secrets.redacted(printable_line(reply.decode("utf-8", "replace")))
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        reason = f"{self._command[0]} {ended}{': ' if words else ''}{words}"
        return down(reason) if status < 0 or status == TRY_LATER else refused(reason)


class _LastWords:
    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._transport: asyncio.ReadTransport | None = None
        self.text = b""

    async def read(self) -> None:
        os.close(self.write_end)
        self.write_end = -1
        reader = asyncio.StreamReader()
        file = os.fdopen(self._read_end, "rb", 0)
        self._read_end = -1
        loop, protocol = asyncio.get_running_loop(), asyncio.StreamReaderProtocol(reader)
        self._transport, _ = await loop.connect_read_pipe(lambda: protocol, file)
        while part := await reader.read(1 << 16):
            self.text = (self.text + part)[-MAX_STDERR_BYTES:]

    def close(self) -> None:
        for handle in (self._read_end, self.write_end):
            if handle >= 0:
                os.close(handle)
        if self._transport is not None:
            self._transport.close()


WIDTH = 76  # columns of plain text

# Lines of at most 76 bytes, in ASCII, so that any server takes them.
_POLICY = policy.SMTP.clone(max_line_length=76, cte_type="7bit")


def render_mail(message: Message, options: MailOptions) -> bytes:
    """Returns a message as a mail with CRLF line ends; the same bytes in every attempt."""
    total, page = len(message.matches) + message.more, io.BytesIO()
    text = "This is a test: the mails of this sink arrive here.\n"
    with MatchSpool(ranked=bool(options.by)).add(message.matches) as spool:
        report = Report(spool.groups(), total, TimeFormat(options.zone or UTC), which="first", by=options.by)
        if total:
            out = io.StringIO()
            print_report(report, Console(file=out, width=WIDTH, color_system=None, highlight=False, emoji=False))
            text = out.getvalue()
            write_page(report, page)
    mail = EmailMessage(_POLICY)
    mail["From"] = Address(addr_spec=options.sender)
    mail["To"] = [Address(addr_spec=one) for one in options.to]
    mail["Subject"] = f"{message.sink}: {report.count_text if total else 'a test'}"
    mail["Date"] = format_datetime(EPOCH + timedelta(microseconds=message.committed_at))
    domain = options.sender.rpartition("@")[2]
    mail["Message-ID"] = f"<{message.sink}.{message.first}-{message.last}.{message.id}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text, cte="quoted-printable")
    if total:
        mail.add_alternative(page.getvalue().decode(), subtype="html", cte="quoted-printable")
        mail.set_boundary(f"={message.id}=")
    return mail.as_bytes()


MAX_REPLY_CHARACTERS = 300  # maximum characters of a server's reply reported

_SmtpReply = tuple[int, str]  # code and text of an SMTP reply


class MailReceiver(Receiver):
    """Sends each message as a mail, over its own connection."""

    silence, attempt = 20.0, 120.0  # seconds that the server may be silent, and that an attempt may take

    def __init__(self, options: MailOptions, secrets: Secrets) -> None:
        """Raises OSError if the certificates of `ca` cannot be read."""
        self._options, self._secrets = options, secrets
        self._tls = ssl.create_default_context(cafile=options.ca or certifi.where())

    async def send(self, message: Message) -> DeliveryResult:
        """Raises SecretError."""
        options, host = self._options, self._options.host
        password = None if options.password is None else self._secrets.value(options.password)
        content = await asyncio.to_thread(render_mail, message, options)
        client = SMTP(
            hostname=host, port=options.port, use_tls=options.tls == "at once", start_tls=options.tls == "starttls",
            tls_context=self._tls, timeout=self.silence,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self.attempt):
                await client.connect()
                if password is not None:
                    await client.login(options.user, password)
                answers, _ = await client.sendmail(options.sender, options.to, content)
        except SMTPAuthenticationError as error:
            # What the server says is not told: it may repeat what it was given.
            return down(f"{host} refused the user or the password with {error.code}")
        except SMTPRecipientsRefused as error:
            return self._refused({one.recipient: (one.code, one.message) for one in error.recipients})
        except SMTPDataError as error:
            return self._refused({"the mail": (error.code, error.message)})
        except TimeoutError as error:
            return down(f"{host} took too long: {str(error) or f'more than {self.attempt:g} s'}")
        except (SMTPException, OSError, ValueError) as error:
            said = " ".join(map(str, error.args)) or type(error).__name__
            return down(f"{host}: {self._secrets.shown(said, MAX_REPLY_CHARACTERS)}")
        finally:
            client.close()
        # Somebody has it: a second attempt would give it to them twice.
        return DeliveryResult("acknowledged", f"{self._reason(answers)}; the others have it" if answers else "")

    def _refused(self, answers: Mapping[str, _SmtpReply]) -> DeliveryResult:
        """The result of a mail that no recipient got: a code below 500 allows a retry."""
        reason = self._reason(answers)
        return refused(reason) if all(code >= 500 for code, _ in answers.values()) else down(reason)

    def _reason(self, answers: Mapping[str, _SmtpReply]) -> str:
        refusals = "; ".join(f"{what}: {code} {text}" for what, (code, text) in list(answers.items())[:5])
        return f"{self._options.host} refused {self._secrets.shown(refusals, MAX_REPLY_CHARACTERS)}"


MOST_READ = 2_000  # bytes read of a reply, which may say why a message was refused
MAX_REASON_CHARACTERS = 200

ASKED_TO_WAIT = frozenset((408, 425, 429))  # the 4xx statuses that concern the receiver and not the message


class WebhookReceiver(Receiver):
    silence, attempt = 20.0, 60.0
    """Seconds until a silent connection times out, and limit of an attempt, however slowly bytes come."""

    def __init__(self, options: WebhookOptions, secrets: Secrets, resolve: Resolve = resolve_host) -> None:
        self._options, self._secrets, self._resolve = options, secrets, resolve
        self._client: httpx.AsyncClient | None = None

    async def send(self, message: Message) -> DeliveryResult:
        """Makes one attempt. Follows no redirects."""
        body = _message_text(message) if self._options.format == "text" else payload(message, self._options.body)
        try:
            url, headers = self._secrets.address(self._options.url), self._headers(message, body)
        except SecretError as error:
            return down(str(error))
        if self._client is None:
            self._client = open_client(self._options.allow_private, 2, self._resolve)
        try:
            async with asyncio.timeout(self.attempt):
                return await self._post(self._client, url, body, headers)
        except (httpx.TimeoutException, httpcore.TimeoutException):
            return down(f"no answer in {self.silence:g} s")
        except TimeoutError:
            return down(f"no whole answer in {self.attempt:g} s")
        except FetchError as error:
            return down(self._told(str(error)))
        except (httpx.HTTPError, httpx.InvalidURL, httpcore.ConnectError, httpcore.NetworkError) as error:
            return down(self._told(f"no connection: {error or type(error).__name__}"))
        except (httpcore.ProtocolError, httpcore.ProxyError, httpcore.UnsupportedProtocol, OSError) as error:
            return down(self._told(f"no answer in HTTP: {error or type(error).__name__}"))

    async def _post(self, client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str]) -> DeliveryResult:
        async with client.stream("POST", url, content=body, headers=headers, timeout=self.silence) as response:
            status = response.status_code
            if 200 <= status < 300:
                return ACKNOWLEDGED
            after = retry_after(response.headers, now := now_us())
            reason = self._told(f"HTTP {status}{await _beginning(response)}")
        if status == 410:
            return DeliveryResult("gone", reason)
        if 400 <= status < 500 and status not in ASKED_TO_WAIT:
            return refused(reason)
        return down(reason, None if after is None else max(after - now, 0))

    def _headers(self, message: Message, body: bytes) -> dict[str, str]:
        """Raises SecretError."""
        seconds = now_us() // 1_000_000
        kind = "text/plain; charset=utf-8" if self._options.format == "text" else "application/json"
        headers = {"Content-Type": kind, "User-Agent": "mmqjp"}
        headers |= {"webhook-id": message.id, "webhook-timestamp": str(seconds)}
        keys = []
        for name in self._options.secret:
            if (key := signing_key(self._secrets.value(name))) is None:
                raise SecretError(f"the secret {name.name} is no Base64, as Standard Webhooks wants it")
            keys.append(key)
        if keys:
            headers["webhook-signature"] = signature(keys, message.id, seconds, body)
        return headers

    def _told(self, reason: str) -> str:
        return self._secrets.shown(reason, MAX_REASON_CHARACTERS)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _beginning(response: httpx.Response) -> str:
    found = b""
    if "content-encoding" not in response.headers:
        async for part in response.aiter_raw():
            found += part[:MOST_READ]
            if len(found) >= MOST_READ:
                break
    text = printable_line(found[:MOST_READ].decode("utf-8", "replace"))
    return f": {text}" if text else ""


def _message_text(message: Message) -> bytes:
    lines = []
    for match in message.matches:
        lines.append(f"{match.output.query}:")
        for item in match.items if match.story is None else match.items[:1]:
            of = item.feed or item.site
            lines.append(" ".join(filter(None, (item.title, f"({of})" if of else "", item.link))))
        lines += [] if match.story is None else [and_more(match.story)]
    if message.more:
        lines.append(f"and {message.more:,} more")
    if not message.matches:
        lines.append(f"This is a test of the sink {message.sink}.")
    return "\n".join(lines).encode()
