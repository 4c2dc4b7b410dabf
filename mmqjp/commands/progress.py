"""How commands show what they do: the progress bar of reading or registering many queries, and a line of counts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.progress import observed

DELAY, INTERVAL = 1.0, 0.1
"""Seconds before the bar appears, and between two drawings of it."""


@contextmanager
def progress_shown(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Shows how far the followed loops inside are, on standard error. Only a terminal gets anything, and only if the
    work takes longer than a second. The bar is gone at the end."""
    if not sys.stderr.isatty():
        yield
        return
    bar = _Bar(clock)
    try:
        with observed(bar.advance):
            yield
    finally:
        bar.close()


@contextmanager
def live_line(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a text, in place of the one before, on standard error. Only a terminal gets
    anything. The text is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    following, is_shown = clock(), False

    def show(text: str) -> None:
        nonlocal following, is_shown
        if (now := clock()) >= following:
            following, is_shown = now + INTERVAL, True
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    try:
        yield show
    finally:
        if is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)


class _Bar:
    """A bar that is drawn by whoever advances it: there is no thread, which would slow the work down."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._next = clock, clock() + DELAY
        self._shown: Progress | None = None

    def advance(self, what: str, done: int, total: int) -> None:
        """Shows that `done` of `total` queries are done."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + INTERVAL
        if self._shown is None:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            console = Console(file=sys.stderr, force_terminal=True)
            self._shown = Progress(*columns, console=console, transient=True, auto_refresh=False)
            self._shown.add_task(what)
            self._shown.start()
        self._shown.update(self._shown.task_ids[0], description=what, completed=done, total=total)
        self._shown.refresh()

    def close(self) -> None:
        """Removes the bar."""
        if self._shown is not None:
            self._shown.stop()
