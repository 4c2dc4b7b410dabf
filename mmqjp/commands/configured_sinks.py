"""The sinks and secrets of the configuration files, for the commands that deliver to sinks."""

from __future__ import annotations

from pathlib import Path

import click

from mmqjp.commands.configuration import read_configurations
from mmqjp.sinks.tables import SinkTables, read_tables


def configured_sinks(context: click.Context) -> SinkTables:
    """Returns the sinks and secrets of the configuration that a command was called with, as its files have them now.

    Raises BadSink, and UsageError for a file that cannot be read.
    """
    return sinks_of(context.find_root().params.get("config"))


def sinks_of(chosen: Path | None) -> SinkTables:
    """Returns the sinks and secrets of a configuration file, or else of the default files. An earlier file takes
    precedence."""
    found = SinkTables()
    for path, settings in read_configurations(chosen):
        found = found.over(read_tables(settings, path))
    return found
