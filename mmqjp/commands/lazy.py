"""Commands that are imported when they are first used. `mmqjp --help` imports none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

import click

from mmqjp.loading import ending_when_interrupted, without_pandas


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command: where it is defined, as `module:name`, and what it does, in one line."""

    target: str
    summary: str

    def load(self) -> click.Command:
        """Imports the command."""
        module, _, name = self.target.partition(":")
        with ending_when_interrupted():
            without_pandas()
            found: click.Command = getattr(import_module(module), name)
        return found


class LazyCommands(Mapping[str, click.Command]):
    """The commands of a group by name, in the given order."""

    def __init__(self, known: Mapping[str, LazyCommand]) -> None:
        self._known = dict(known)
        self._loaded: dict[str, click.Command] = {}

    def summaries(self) -> dict[str, str]:
        """What each command does, in one line, by name."""
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
