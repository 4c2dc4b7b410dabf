"""The kind `command`: runs a program for each message, with its JSON on standard input. Status 0 acknowledges."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from contextlib import suppress
from tempfile import TemporaryFile

from mmqjp.sinks.message import Message, Verdict, acknowledged, down, refused
from mmqjp.sinks.options import COMMAND_SECONDS, CommandOptions
from mmqjp.sinks.payload import payload
from mmqjp.sinks.secrets import Secrets
from mmqjp.text import printable_line

MOST_TOLD = 1_000
"""So many of the last bytes of standard error become the reason."""

LAST_WORDS = 1.0
"""Seconds to wait for the end of what was killed, and of standard error."""

TRY_LATER = os.EX_TEMPFAIL
"""The status by which a program says that it cannot take any message now."""


class CommandReceiver:
    """Runs a program, without a shell and in a process group of its own.

    The group is killed when the program has ended or its time is over, so that nothing runs between two messages.
    """

    def __init__(self, options: CommandOptions, secrets: Secrets, seconds: float = COMMAND_SECONDS) -> None:
        self._command, self._secrets, self._seconds = options.command, secrets, seconds

    async def send(self, message: Message) -> Verdict:
        """Runs the program. It gets no environment variables that hold secrets."""
        words = _LastWords()
        try:
            # Not pipes of asyncio: it would wait until the last process that has them open has ended.
            with TemporaryFile() as content:
                content.write(payload(message))
                content.seek(0)
                process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=content, stdout=DEVNULL, stderr=words.write_end, env=self._variables(),
                    start_new_session=True,
                )  # fmt: skip
        except (OSError, ValueError) as error:
            words.close()
            return down(f"{self._command[0]} cannot be started: {getattr(error, 'strerror', None) or error}")
        try:
            reading, ending = asyncio.create_task(words.read()), asyncio.create_task(process.wait())
            try:
                async with asyncio.timeout(self._seconds):
                    status = await asyncio.shield(ending)
            finally:
                _kill_group(process)
                await asyncio.wait([reading, ending], timeout=LAST_WORDS)
                reading.cancel()
        except TimeoutError:
            return down(f"{self._command[0]} took more than {self._seconds:g} s and was killed")
        finally:
            words.close()
        return self._verdict(status, words.text)

    def _variables(self) -> dict[str, str]:
        hidden = self._secrets.variables()
        return {name: value for name, value in os.environ.items() if name not in hidden}

    def _verdict(self, status: int, told: bytes) -> Verdict:
        if not status:
            return acknowledged()
        words = self._secrets.redacted(printable_line(told.decode("utf-8", "replace")))
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        reason = f"{self._command[0]} {ended}{': ' if words else ''}{words}"
        return down(reason) if status < 0 or status == TRY_LATER else refused(reason)

    async def close(self) -> None:
        """Does nothing: no program runs between two messages."""


class _LastWords:
    """A pipe for standard error. `text` has the last bytes that came, however many there were."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._transport: asyncio.ReadTransport | None = None
        self.text = b""

    async def read(self) -> None:
        """Reads until all who have the other end have closed it."""
        os.close(self.write_end)
        self.write_end = -1
        reader = asyncio.StreamReader()
        file = os.fdopen(self._read_end, "rb", 0)
        self._read_end = -1
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        while part := await reader.read(1 << 16):
            self.text = (self.text + part)[-MOST_TOLD:]

    def close(self) -> None:
        """Closes what is open."""
        for handle in (self._read_end, self.write_end):
            if handle >= 0:
                os.close(handle)
        if self._transport is not None:
            self._transport.close()


def _kill_group(process: Process) -> None:
    """Kills what is left of the program and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
