"""The console that tables are printed on, and counts in words."""

from __future__ import annotations

import sys

from rich.console import Console

WIDTH = 100
"""How wide the text is where the width is not a terminal's own."""


def console() -> Console:
    """Standard output as it is now; plain text of WIDTH columns unless it is a terminal."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else WIDTH, color_system="auto" if terminal else None,
                   force_terminal=terminal, highlight=False, emoji=False)  # fmt: skip


def counted(number: int, noun: str, several: str | None = None) -> str:
    """`1 feed`, `2 feeds`; `several` is a plural that is made otherwise."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
