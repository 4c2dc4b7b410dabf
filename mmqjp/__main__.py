"""The program `mmqjp`, also run by `python -m mmqjp`: loads and runs the command line."""

from __future__ import annotations

import sys

from common.tools import in_own_process
from mmqjp.process import end_past_questions, end_without_freeing, ending_when_interrupted


def main() -> None:
    """Runs the command line and ends the process. Ctrl-C never prints a traceback, even during imports."""
    in_own_process()
    with ending_when_interrupted():
        from mmqjp.cli import main as command_line

    if sys.stdout is not None:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # still the original text stream
    try:
        command_line()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            end_past_questions(ended.code)
            end_without_freeing(ended.code)
        raise


if __name__ == "__main__":
    main()
