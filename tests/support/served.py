"""A `mmqjp serve` of its own process, as a context manager: its link, its token, and a client that is logged in."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from unittest.mock import patch

import httpx

from tests.processes import nursery
from tests.processes.nursery import Program
from tests.processes.programs import command

START_SECONDS = 120


@dataclass(frozen=True)
class Served:
    """A page that is served: the process, the link that was printed, and the state. `said` is printed after the link.
    A thread reads it: a process that nobody listens to would wait."""

    process: Program
    link: str
    state: Path
    said: list[str]
    listener: Thread

    @property
    def url(self) -> str:
        return self.link.split("/login")[0].rstrip("/")

    def client(self) -> httpx.Client:
        token = (self.state / "secrets" / "token").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Sends a signal, and returns the exit status and what was printed after the link."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        status = self.process.wait(START_SECONDS)
        self.listener.join(START_SECONDS)
        return status, "".join(self.said)


@contextmanager
def served(state: Path, *arguments: object, **environment: str) -> Iterator[Served]:
    """Serves a state at any free port, until the end of the block."""
    with patch.dict(os.environ, environment):
        process = nursery.start(command, "serve", "--state", state, "--address", "127.0.0.1:0", *arguments)
    try:
        assert process.stderr is not None
        seen = ""
        for line in process.stderr:
            seen += line
            if (found := re.search(r"mmqjp: open (\S+)", line)) is not None:
                said: list[str] = []
                listener = Thread(target=said.extend, args=(process.stderr,), daemon=True)
                listener.start()
                yield Served(process, found[1], state, said, listener)
                break
        else:
            raise AssertionError(f"it was not served: {seen}")
    finally:
        process.kill()
        process.wait()
