"""The process that serves the page beside a service: python -m mmqjp.web.child OPTIONS SOCKET PIPE

It ends on SIGTERM, and when the service has ended. Ctrl-C is for the service.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread

from common.errors import MmqjpError
from mmqjp.garbage import gc_frozen
from mmqjp.loading import end_without_freeing
from mmqjp.service.client import Client
from mmqjp.service.log import SharedLog, standard_log
from mmqjp.session import Session
from mmqjp.state.choice import SPARK, stored_engine
from mmqjp.text import printable_line
from mmqjp.web.asking import asking
from mmqjp.web.questions import Gone, PipeReader
from mmqjp.web.readers import FilesReader
from mmqjp.web.serve_page import PageOptions, page_served
from mmqjp.web.steady import SteadyReader

NICE = 5
"""How much the engine goes first, where both want the same processor."""

TAKE_TURNS = 0.001
"""Seconds after which a thread that makes a page lets another one run: many small steps follow each other in each."""


def main(text: str, listening: str, pipe: str) -> int:
    """Serves until it is told to stop. Returns the exit status."""
    stop = Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    os.nice(NICE)
    sys.setswitchinterval(TAKE_TURNS)
    options = PageOptions.from_dict(json.loads(text))
    state = Path(options.state)
    questions = PipeReader(Connection(int(pipe)))

    def end() -> None:
        questions.wait()
        stop.set()

    Thread(target=end, name="mmqjp end", daemon=True).start()

    def nobody() -> Session:
        raise Gone

    reader = SteadyReader(FilesReader(state) if stored_engine(state) == SPARK else questions)
    log = SharedLog(standard_log(options.log_form))
    asks = asking(lambda wait: Client(state, nobody, wait))
    with (
        socket.socket(fileno=int(listening)) as opened,
        page_served(options, opened, reader, asks, log, stop, holds=True),
        gc_frozen(),
    ):
        stop.wait()
    return 0


if __name__ == "__main__":
    try:
        status = main(*sys.argv[1:])
    except (MmqjpError, OSError) as error:
        sys.exit(f"mmqjp: error: the page cannot be served: {printable_line(str(error))}")
    end_without_freeing(status)  # the service waits for this process, and to free its memory takes half a second
    sys.exit(status)
