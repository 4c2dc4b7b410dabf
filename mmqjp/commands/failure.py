"""How commands fail: one line on standard error with the cause and what to do, and an exit status."""

from __future__ import annotations

import errno
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.errors import MmqjpError
from mmqjp.commands.lazy import LazyCommands
from mmqjp.sinks.standard_output import flush_standard_output, reserve_standard_files
from mmqjp.text import printable_line

if TYPE_CHECKING:
    from xscl import XsclErrors

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

DEBUG = "mmqjp.debug"
"""The key in a context's `meta` that is set if --debug was given."""

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
    """A script has mistakes. Each is shown in its place. `lacks_events` if it only reads events that it does not
    have."""

    def __init__(self, path: Path, errors: XsclErrors) -> None:
        super().__init__(errors.render(str(path)))
        self.lacks_events = errors.lacks_events

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=file is None)


class Interrupted(Failure):
    """The command was interrupted by Ctrl-C. The message says what is kept."""

    exit_code = INTERRUPTED

    def show(self, file: Any = None) -> None:
        click.echo(f"mmqjp: interrupted: {printable_line(self.message)}", file=file, err=file is None)


class CommandLine(click.Group):
    """A group whose commands report failures in one line, and print a traceback only with --debug."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the names and summaries of the commands without importing them."""
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
    """An error in one sentence, with what to do about it if we know. Our own errors say that in their messages."""
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
        from join_stage.store.spark.loss import loss  # which needs Spark

        if (lost := loss(error)) is not None:
            return str(lost)
    lines = str(error).strip().splitlines() or ["no message"]
    return f"unexpected {type(error).__name__}: {lines[0]}; run again with --debug to see where"
