"""The kind `mail`: sends a digest to an SMTP server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import certifi
from aiosmtplib import SMTP
from aiosmtplib.errors import SMTPAuthenticationError, SMTPDataError, SMTPException, SMTPRecipientsRefused

from mmqjp.sinks.digest import digest
from mmqjp.sinks.message import Message, Verdict, acknowledged, down, refused
from mmqjp.sinks.options import MailOptions
from mmqjp.sinks.secrets import Secrets
from mmqjp.text import printable_line

SILENCE, ATTEMPT = 20.0, 120.0
"""Seconds that the server may be silent, and that an attempt may take."""

MOST_TOLD = 300
"""So many characters of what a server says are told."""

Answer = tuple[int, str]
"""The code and the text of an answer of SMTP."""


class MailReceiver:
    """Sends each message as a mail, over a connection of its own."""

    def __init__(
        self, options: MailOptions, secrets: Secrets, silence: float = SILENCE, attempt: float = ATTEMPT
    ) -> None:
        """Raises OSError if the certificates of `ca` cannot be read."""
        self._options, self._secrets, self._silence, self._attempt = options, secrets, silence, attempt
        self._tls = ssl.create_default_context(cafile=options.ca or certifi.where())

    async def send(self, message: Message) -> Verdict:
        """Hands a mail over to the server. Raises SecretError."""
        options, host = self._options, self._options.host
        password = None if options.password is None else self._secrets.value(options.password)
        content = await asyncio.to_thread(digest, message, options)
        client = SMTP(
            hostname=host,
            port=options.port,
            use_tls=options.tls == "at once",
            start_tls=options.tls == "starttls",
            tls_context=self._tls,
            timeout=self._silence,
        )
        try:
            async with asyncio.timeout(self._attempt):
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
            return down(f"{host} took too long: {str(error) or f'more than {self._attempt:g} s'}")
        except (SMTPException, OSError, ValueError) as error:
            return down(f"{host}: {self._told(' '.join(map(str, error.args)) or type(error).__name__)}")
        finally:
            client.close()
        # Somebody has it: a second attempt would give it to them twice.
        return Verdict("acknowledged", f"{self._reason(answers)}; the others have it") if answers else acknowledged()

    def _refused(self, answers: Mapping[str, Answer]) -> Verdict:
        """What comes of a mail that nobody got: servers say with a code below 500 that they may take it later."""
        reason = self._reason(answers)
        return refused(reason) if all(code >= 500 for code, _ in answers.values()) else down(reason)

    def _reason(self, answers: Mapping[str, Answer]) -> str:
        told = "; ".join(f"{what}: {code} {text}" for what, (code, text) in list(answers.items())[:5])
        return f"{self._options.host} refused {self._told(told)}"

    def _told(self, text: str) -> str:
        shown = printable_line(self._secrets.redacted(text))
        return shown if len(shown) <= MOST_TOLD else shown[: MOST_TOLD - 1] + "…"

    async def close(self) -> None:
        """Does nothing: no connection is open between two mails."""
