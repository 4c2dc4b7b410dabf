"""The console that tables are printed on, and counts with nouns."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDTH = 100
"""The width of the output, in columns, if standard output is not a terminal and COLUMNS is not set."""


def console() -> Console:
    """A console on the current standard output. If that is no terminal, it writes plain text of `width()` columns."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else width(), color_system="auto" if terminal else None,
                   force_terminal=terminal, highlight=False, emoji=False)  # fmt: skip


def width() -> int:
    """The width of what goes to no terminal: COLUMNS, or WIDTH."""
    columns = os.environ.get("COLUMNS", "")
    return max(int(columns[:6]), 20) if columns.isascii() and columns.isdecimal() and int(columns[:6]) else WIDTH


def counted(number: int, noun: str, several: str | None = None) -> str:
    """`1 feed`, `2 feeds`. `several` is an irregular plural."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
