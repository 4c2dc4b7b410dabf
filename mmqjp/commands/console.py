"""What the commands share: console, lazy loading, errors, signals, progress. Commands are imported on first use, so
`mmqjp --help` imports none. A failure is one line on standard error with cause and remedy, and an exit status; --debug
prints the traceback. Ctrl-C, SIGTERM and SIGHUP interrupt a call, request a stop, or reopen files."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.errors import MmqjpError
from common.tools import observed
from mmqjp.process import INTERRUPTED, ending_when_interrupted, printable_line, without_pandas
from mmqjp.sinks.files import flush_standard_output, reserve_standard_files

if TYPE_CHECKING:
    from xscl.problems import XsclErrors


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command: its location, `module:name`, and a one-line summary."""

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, name = self.target.partition(":")
        with ending_when_interrupted():
            without_pandas()
            found: click.Command = getattr(import_module(module), name)
        return found


class LazyCommands(Mapping[str, click.Command]):
    def __init__(self, known: Mapping[str, LazyCommand]) -> None:
        self._known = dict(known)
        self._loaded: dict[str, click.Command] = {}

    def summaries(self) -> dict[str, str]:
        return {name: command.summary for name, command in self._known.items()}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = self._known[name].load()
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


WIDTH = 100
"""Output columns if standard output is no terminal and COLUMNS is unset."""


def console() -> Console:
    """Console on the current standard output; plain text of `width()` columns if it is no terminal."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else width(), color_system="auto" if terminal else None,
                   force_terminal=terminal, highlight=False, emoji=False)  # fmt: skip


def width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return max(int(columns[:6]), 20) if columns.isascii() and columns.isdecimal() and int(columns[:6]) else WIDTH


def pluralise(number: int, noun: str, several: str | None = None) -> str:
    """`1 feed`, `2 feeds`; `several` is an irregular plural."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


FAILED, MISUSED = 1, 2

DEBUG = "mmqjp.debug"
"""Key in a context's `meta`, set by --debug."""

_ADVICE = {
    errno.ENOSPC: "make room on the disk, or write elsewhere",
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
    errno.EROFS: "write elsewhere",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EBADF: "open it, or redirect it",
}


class Failure(click.ClickException):
    """The work failed. The message says why and what to do."""

    exit_code = FAILED

    def show(self, file: Any = None) -> None:
        click.echo(f"mmqjp: error: {printable_line(self.message)}", file=file, err=file is None)


class ScriptFailure(Failure):
    """A script with mistakes, each shown in place. `lacks_events`: it only reads undefined events."""

    def __init__(self, path: Path, errors: XsclErrors) -> None:
        super().__init__(errors.render(str(path)))
        self.lacks_events = errors.lacks_events

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=file is None)


class Interrupted(Failure):
    """Ctrl-C; the message says what is saved."""

    exit_code = INTERRUPTED

    def show(self, file: Any = None) -> None:
        click.echo(f"mmqjp: interrupted: {printable_line(self.message)}", file=file, err=file is None)


class CommandLine(click.Group):
    """A group that reports failures in one line, with a traceback only under --debug."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists commands without importing them."""
        if not isinstance(self.commands, LazyCommands):
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.commands.summaries().items()))

    def main(self, *args: Any, **options: Any) -> Any:
        reserve_standard_files()
        try:
            status = super().main(*args, **(options | {"standalone_mode": False}))
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "mmqjp"
            Failure(f"{error.format_message()} (see {path} --help)").show()
            status = error.exit_code
        except click.ClickException as error:
            error.show()
            status = error.exit_code
        except click.Abort:
            click.echo("mmqjp: interrupted", err=True)
            status = INTERRUPTED
        except OSError as error:  # from --help and --version, which print before a command is invoked
            Failure(describe(error)).show()
            status = FAILED
        try:
            flush_standard_output()
        except OSError as error:
            if not status and not isinstance(error, BrokenPipeError):
                Failure(describe(error)).show()
            status = status or FAILED
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.UsageError, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.meta.get(DEBUG):
                traceback.print_exception(error)
            if isinstance(error, click.ClickException):
                raise
            raise Failure(describe(error)) from error


def describe(error: Exception) -> str:
    """Describes an error in one sentence, with a remedy if known. Our own errors include both."""
    import sqlite3  # only needed after a failure

    if isinstance(error, MmqjpError):
        return str(error)
    if isinstance(error, sqlite3.Error):
        return f"the fetcher's state cannot be used: {error}; make room on the disk, or restore an older copy of it"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        advice = _ADVICE.get(error.errno or 0)
        return f"{place}{error.strerror or error}" + (f"; {advice}" if advice else "")
    if type(error).__module__.startswith(("py4j.", "pyspark.")):
        from join_stage.store.spark.java import loss

        if (lost := loss(error)) is not None:
            return str(lost)
    lines = str(error).strip().splitlines() or ["no message"]
    return f"unexpected {type(error).__name__}: {lines[0]}; run again with --debug to see where"


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def debug_option(command: Decorated) -> Decorated:
    """The option --debug, accepted before or after the command's name."""

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            context.meta[DEBUG] = True

    text = "Print a traceback with an error."
    return click.option("--debug", is_flag=True, expose_value=False, is_eager=True, callback=note, help=text)(command)


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
    before = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, note)
    except ValueError:  # not the main thread: it receives no signals
        yield
        return
    try:
        yield
    except Exception as error:
        if seen:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is note:  # Spark may have set its own handler
                signal.signal(number, handler)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C or SIGTERM sets; a second signal ends the process as usual."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    try:
        for number in before:
            signal.signal(number, note)
    except ValueError:  # not the main thread: it receives no signals
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hangups(stop: threading.Event) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether SIGHUP arrived since its last call.

    If the process's terminal was closed, sets `stop`. An ignored SIGHUP, as under nohup, stays ignored.
    """
    terminal = next((number for number in range(3) if os.isatty(number)), None)
    before = signal.getsignal(signal.SIGHUP)
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

    try:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, note)
    except ValueError:  # not the main thread: it receives no signals
        before = signal.SIG_IGN
    try:
        yield has_arrived
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, before)


DELAY, INTERVAL = 1.0, 0.1
"""Seconds before the bar appears, and between redraws."""


@contextmanager
def progress_shown(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Shows the progress of loops inside on standard error: only on a terminal, after a second, and removed at the
    end."""
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


class _Bar:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._next = clock, clock() + DELAY
        self._shown: Progress | None = None

    def advance(self, what: str, done: int, total: int) -> None:
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
        if self._shown is not None:
            self._shown.stop()
