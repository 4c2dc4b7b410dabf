"""What commands share: console, tables, signals, progress. Ctrl-C, SIGTERM and SIGHUP interrupt a call, request a stop,
or reopen files."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from common.tools import observed
from mmqjp.process import handling

WIDTH = 100  # output columns if standard output is not a terminal and COLUMNS is unset


def console() -> Console:
    """Console on the current standard output; plain text of `width()` columns if it is not a terminal."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else width(), color_system="auto" if terminal else None,
                   force_terminal=terminal, highlight=False, emoji=False)  # fmt: skip


def text_table(columns: Iterable[str], rows: Iterable[Iterable[str]], right: Container[str] = ()) -> Table:
    """Returns a table of rows of texts. The columns `right` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return max(int(columns[:6]), 20) if columns.isascii() and columns.isdecimal() and int(columns[:6]) else WIDTH


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt on Ctrl-C or SIGTERM in the block, and in place of any error that follows (DuckDB raises
    a RuntimeError if interrupted). Signals keep their handlers if Ctrl-C is ignored or not handled by Python."""
    seen = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        with handling(note, signal.SIGINT, signal.SIGTERM):
            yield
    except Exception as error:
        if seen:
            raise KeyboardInterrupt from error
        raise


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C or SIGTERM sets; a second signal ends the process as usual."""
    stop = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    with handling(note, signal.SIGINT, signal.SIGTERM):
        yield stop


@contextmanager
def hangups(stop: threading.Event) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether SIGHUP arrived since its last call. If the process's terminal was closed,
    sets `stop`. An ignored SIGHUP, as under nohup, stays ignored."""
    terminal = next((number for number in range(3) if os.isatty(number)), None)
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    arrived = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        arrived = True
        if terminal is not None and not os.isatty(terminal):
            stop.set()

    def has_arrived() -> bool:
        nonlocal arrived
        result, arrived = arrived, False
        return result

    with nullcontext() if is_ignored else handling(note, signal.SIGHUP):
        yield has_arrived


DELAY, INTERVAL = 1.0, 0.1  # seconds before the bar appears, and between redraws


@contextmanager
def progress_shown(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Shows the progress of loops inside, on a terminal, after a second, and removes it at the end."""
    if not sys.stderr.isatty():
        yield
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    out = Console(file=sys.stderr, force_terminal=True)
    bar, following = Progress(*columns, console=out, transient=True, auto_refresh=False), clock() + DELAY

    def advance(what: str, done: int, total: int) -> None:
        nonlocal following
        now = clock()
        if now < following:
            return
        following = now + INTERVAL
        if not bar.task_ids:
            bar.add_task(what)
            bar.start()
        bar.update(bar.task_ids[0], description=what, completed=done, total=total)
        bar.refresh()

    try:
        with observed(advance):
            yield
    finally:
        if bar.task_ids:
            bar.stop()


@contextmanager
def live_line(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str], None]]:
    """Yields a function that replaces a line of text on standard error: only on a terminal, removed at the end."""
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
