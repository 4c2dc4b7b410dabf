"""The sinks of a store: what they are, how far they are behind, and what they did not get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmqjp.service.sink_commands import SINKS
from mmqjp.sinks.control import SinkState
from mmqjp.web.readers import Ask


@dataclass(frozen=True, slots=True)
class SinkRow(SinkState):
    """A sink as `mmqjp sinks list` tells it: with the `queries` that it wants, as patterns, and where it delivers `to`,
    without secrets."""

    queries: Sequence[str]
    to: str


@dataclass(frozen=True, slots=True)
class Undelivered:
    """An output that a receiver refused, after so many tries."""

    seq: int
    id: str
    tries: int
    reason: str
    noted_at: int


@dataclass(frozen=True, slots=True)
class MissedOutputs:
    """Outputs that were given up, by their numbers."""

    first: int
    last: int
    count: int
    reason: str
    noted_at: int


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink with its definition, in which secrets have their names only, the configuration `file` that has it, and
    what it did not get, the newest first."""

    sink: SinkRow
    file: str | None
    definition: Mapping[str, Any]
    undelivered: Sequence[Undelivered]
    gaps: Sequence[MissedOutputs]


def sink_rows(ask: Ask) -> list[SinkRow]:
    """Returns all sinks. Raises what asking raises."""
    return [_row(one) for one in ask(SINKS, {})]


def sink_view(ask: Ask, name: str) -> SinkView:
    """Returns a sink. Raises CommandError if there is none of the name."""
    found = ask(SINKS, {"name": name})
    missed = ask("sinks-failed", {"name": name})
    return SinkView(
        _row(found),
        found["file"],
        found["definition"],
        [Undelivered(**one) for one in missed["undelivered"]],
        [MissedOutputs(**one) for one in missed["gaps"]],
    )


def _row(found: Mapping[str, Any]) -> SinkRow:
    return SinkRow(**{name: found[name] for name in SinkRow.__dataclass_fields__})
