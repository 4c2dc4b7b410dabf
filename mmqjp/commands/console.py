"""The console that tables are printed on, and counts with nouns."""

from __future__ import annotations

import sys

from rich.console import Console

WIDTH = 100
"""The width of the output, in columns, if standard output is not a terminal."""


def console() -> Console:
    """A console on the current standard output. Unless that is a terminal, it writes plain text of WIDTH columns."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else WIDTH, color_system="auto" if terminal else None,
                   force_terminal=terminal, highlight=False, emoji=False)  # fmt: skip


def counted(number: int, noun: str, several: str | None = None) -> str:
    """`1 feed`, `2 feeds`. `several` is an irregular plural."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
