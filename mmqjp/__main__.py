"""The program `mmqjp`, also as `python -m mmqjp`: the command line, once its modules are loaded."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Runs the command line of this process, and ends it. Ctrl-C ends it without a traceback from the beginning, and
    what goes to standard output is UTF-8, whatever the locale."""
    before = signal.signal(signal.SIGINT, _interrupted)
    from mmqjp.cli import main as command_line

    signal.signal(signal.SIGINT, before)
    if sys.stdout is not None:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # nobody has replaced it yet
    command_line()


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ends the process at once: nothing is open that would have to be closed."""
    os.write(2, b"mmqjp: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
