"""The program `mmqjp`, also as `python -m mmqjp`: the command line, once its modules are loaded."""

from __future__ import annotations

import sys

from mmqjp.loading import end_past_questions, ending_when_interrupted


def main() -> None:
    """Runs the command line of this process, and ends it. Ctrl-C ends it without a traceback from the beginning, and
    what goes to standard output is UTF-8, whatever the locale."""
    with ending_when_interrupted():
        from mmqjp.cli import main as command_line

    if sys.stdout is not None:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # nobody has replaced it yet
    try:
        command_line()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            end_past_questions(ended.code)
        raise


if __name__ == "__main__":
    main()
