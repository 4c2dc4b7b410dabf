"""The command line: imports commands on first use, and reports failures as one line or a traceback. Starting
`mmqjp --help` loads this module and little else."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import click

from common.errors import MmqjpError
from mmqjp import process


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command: its location, `module:name`, and a one-line summary."""

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, name = self.target.partition(":")
        with process.ending_when_interrupted():
            process.without_pandas()
            found: click.Command = getattr(import_module(module), name)
        return found


class LazyCommands(Mapping[str, click.Command]):
    def __init__(self, known: Mapping[str, LazyCommand]) -> None:
        self.known = known

    def __getitem__(self, name: str) -> click.Command:
        return self.known[name].load()

    def __contains__(self, name: object) -> bool:
        return name in self.known

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)


FAILED, MISUSED = 1, 2


DEBUG = "mmqjp.debug"  # key in a context's `meta`, set by --debug


_ADVICE = {
    errno.ENOSPC: "free some disk space, or write elsewhere",
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

    exit_code, kind = FAILED, "error"

    def show(self, file: Any = None) -> None:
        click.echo(f"mmqjp: {self.kind}: {process.printable_line(self.message)}", file=file, err=file is None)


class ScriptFailure(Failure):
    """A script with mistakes, each shown in place. `may_lack_events`: it may be valid in a store with more events."""

    def __init__(self, rendering: str, *, may_lack_events: bool = False) -> None:
        super().__init__(rendering)
        self.may_lack_events = may_lack_events

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=file is None)


class Interrupted(Failure):
    """Ctrl-C; the message says what is saved."""

    exit_code, kind = process.INTERRUPTED, "interrupted"


CONFIG = "--config"


def _config_first(arguments: list[str]) -> list[str]:
    """Moves an option --config before the command's name.

    >>> _config_first(["serve", "--open", "--config", "a.toml", "--", "--config"])
    ['--config', 'a.toml', 'serve', '--open', '--', '--config']
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for at, one in enumerate(arguments[:end]):
        if one.startswith(f"{CONFIG}=") or (one == CONFIG and at + 1 < end):
            after = at + 1 + (one == CONFIG)
            return [*arguments[at:after], *arguments[:at], *arguments[after:]]
    return arguments


class CommandLine(click.Group):
    """A group that reports failures in one line, with a traceback only under --debug."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists commands without importing them."""
        if not isinstance(self.commands, LazyCommands):
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(sorted((name, command.summary) for name, command in self.commands.known.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accepts --config after the command's name too: no command has an option of that name."""
        if ctx.parent is None:
            args = _config_first(args)
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        process.reserve_standard_files()
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
            status = process.INTERRUPTED
        except OSError as error:  # from --help and --version, which print before a command is invoked
            Failure(describe(error)).show()
            status = FAILED
        try:
            process.flush_standard_output()
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
        return f"the fetcher's state cannot be used: {error}; free some disk space, or restore an older copy"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        advice = _ADVICE.get(error.errno or 0)
        return f"{place}{error.strerror or error}" + (f"; {advice}" if advice else "")
    if type(error).__module__.startswith(("py4j.", "pyspark.")):
        from join_stage.store.spark.session import loss

        if (lost := loss(error)) is not None:
            return str(lost)
    lines = str(error).strip().splitlines() or ["no message"]
    return f"unexpected {type(error).__name__}: {lines[0]}; run again with --debug to see where"


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def debug_option(command: Decorated) -> Decorated:
    """The option --debug, accepted before or after the command's name."""

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[DEBUG] = value or context.meta.get(DEBUG)

    text = "Print a traceback with an error."
    return click.option("--debug", is_flag=True, expose_value=False, is_eager=True, callback=note, help=text)(command)
