"""How many of the kept documents, or of their events, get past each stage of the queries of a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmqjp.explain.funnel_stage import Stage


@dataclass(frozen=True, slots=True)
class QueryFunnel:
    """How many of the kept documents get past each stage of a query. `found` is how many choices of documents pass all;
    `ties` how many only equal times keep from that (FOLLOWED BY). `unseen` documents came before the query was
    registered or while it was paused, and `left_out` are too large to search. `paused` is the reason if it is paused.
    If it is `incomplete`, there was too much to look at all. Of an event query (`of_events`) `found` are the events
    that it makes, or, of a PATTERN, those at which its matches begin."""

    text: str
    stages: tuple[Stage, ...]
    found: int = 0
    ties: int = 0
    unseen: int = 0
    left_out: int = 0
    incomplete: bool = False
    paused: str = ""
    of_events: bool = False
    of_pattern: bool = False

    @property
    def failed(self) -> Stage | None:
        """The first stage that nothing passes."""
        return next((stage for stage in self.stages if not stage.found), None)


@dataclass(frozen=True, slots=True)
class QueryFunnels:
    """What the queries of a name find in kept documents. `documents` were looked at, and `left_out` are too large for
    that. `outputs` are stored. If there is no such query, `message` and `hint` say so."""

    query: str
    documents: int = 0
    left_out: int = 0
    outputs: int = 0
    funnels: tuple[QueryFunnel, ...] = ()
    message: str = ""
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> QueryFunnels:
        """Returns what such an object says."""
        funnels = tuple(
            QueryFunnel(**one | {"stages": tuple(map(Stage.from_dict, one["stages"]))}) for one in found["funnels"]
        )
        return QueryFunnels(**dict(found) | {"funnels": funnels})
