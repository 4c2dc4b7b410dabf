"""The tables of a configuration file that concern sinks: `[secrets]` and `[sinks.NAME]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmqjp.sinks.definition import SinkDefinition, read_sink, refuse_same_path
from mmqjp.sinks.keys import BadSink
from mmqjp.sinks.secrets import Source, read_sources

TABLES = ("secrets", "sinks")
"""The names of these tables."""


@dataclass(frozen=True, slots=True)
class SinkTables:
    """The sinks of configuration files, by name, and where the secrets are that they may name."""

    sinks: Mapping[str, SinkDefinition] = field(default_factory=dict)
    secrets: Mapping[str, Source] = field(default_factory=dict)

    def over(self, lower: SinkTables) -> SinkTables:
        """Returns both together. Of a name that both have, this one is taken."""
        return SinkTables({**lower.sinks, **self.sinks}, {**lower.secrets, **self.secrets})


def read_tables(settings: Mapping[str, Any], path: Path) -> SinkTables:
    """Returns the sinks and secrets in the settings of a configuration file. Paths in it are relative to its directory.

    Raises BadSink.
    """
    base, file = path.parent, str(path)
    tables = {name: settings.get(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise BadSink(f"the configuration {file}: {name}: write tables, as in [{name}.NAME]")
    for name, table in tables["sinks"].items():
        if not isinstance(table, Mapping):
            raise BadSink(f"the configuration {file}: sinks.{name[:60]}: write a table, as in [sinks.NAME]")
    sinks = {name: read_sink(name, table, base, file=file) for name, table in tables["sinks"].items()}
    for sink in sinks.values():
        try:
            refuse_same_path(sink, sinks.values())
        except BadSink as error:
            raise BadSink(f"the configuration {file}: {error}") from None
    return SinkTables(sinks, read_sources(tables["secrets"], base, file=file))
