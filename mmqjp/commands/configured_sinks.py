"""The sinks and secrets of the configuration files, for the commands that deliver to sinks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from mmqjp.commands.configuration import read_configurations
from mmqjp.sinks.keys import BadSink
from mmqjp.sinks.tables import SinkTables, read_tables


def tables_of(context: click.Context) -> Callable[[], SinkTables]:
    """Returns what reads the sinks and secrets of the configuration that a command was called with, as its files have
    them now."""
    return partial(sinks_of, context.find_root().params.get("config"))


def sinks_of(chosen: Path | None) -> SinkTables:
    """Returns the sinks and secrets of a configuration file, or else of the default files. An earlier file takes
    precedence. Raises BadSink, also for a file that cannot be read."""
    found = SinkTables()
    try:
        for path, settings in read_configurations(chosen):
            found = found.over(read_tables(settings, path))
    except click.UsageError as error:
        raise BadSink(error.format_message()) from None
    return found
