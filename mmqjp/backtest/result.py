"""The result of a back-test, as commands, pages and other processes get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from mmqjp.present.match import Match

DAY_US = 86_400_000_000
"""Microseconds of a day."""

RECENT_DAYS = 30
"""Over so many days the outputs of a day are averaged."""

FEWEST_TIMED = 500
"""Fewer documents do not tell what a thousand take: most of their time is that of beginning."""


def day_text(number: int) -> str:
    """Returns a day, counted from 1970, as `2026-01-31`. Days that no calendar has are the first or the last one."""
    first, last = date.min.toordinal(), date.max.toordinal()
    return date.fromordinal(min(max(number + _EPOCH, first), last)).isoformat()


_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What the queries of a name found. `paused` is the reason if their outputs would have been too many.

    `pairs` is the number of pairs of nodes that a new document is expected to bring for the rarest value join of each
    of their rows of R_T; None if that is not known.
    """

    name: str
    outputs: int = 0
    paused: str | None = None
    pairs: float | None = None


@dataclass(frozen=True, slots=True)
class Novelty:
    """What a script needs, and how much of that no registered query needs yet: patterns of stage 1, templates, and rows
    of R_T; definitions of events, and event queries, but once of those that differ in name only.

    `same_event_queries` are registered, too, but what they find depends on since when they see events: they are run for
    the script alone, and are counted neither as new nor as shared.
    """

    patterns: int = 0
    new_patterns: int = 0
    templates: int = 0
    new_templates: int = 0
    rows: int = 0
    new_rows: int = 0
    definitions: int = 0
    new_definitions: int = 0
    event_queries: int = 0
    new_event_queries: int = 0
    same_event_queries: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether everything is there already, so that the script costs its outputs only."""
        joins = self.new_patterns or self.new_templates or self.new_rows
        return not (joins or self.new_definitions or self.new_event_queries or self.same_event_queries)


@dataclass(frozen=True, slots=True)
class Backtest:
    """The result of a back-test.

    - `documents` were tried, of `kept` that there are on the streams that the script reads; `refused` could not be
      read. They begin from `since` to `until`, in microseconds.
    - `queries` has the result of each name in the script, and `days` the outputs of each day (UTC, as `2026-01-31`) on
      which there are some, by the end of their time.
    - `latest` has the last outputs, the newest first.
    - `seconds` is what the engine took for the documents.
    - `publishers` are the names of registered queries that were run with the script because it reads them.
    - `cut_short` says why not all documents were tried; None if they were.
    """

    documents: int = 0
    kept: int = 0
    refused: int = 0
    since: int | None = None
    until: int | None = None
    queries: tuple[QueryResult, ...] = ()
    days: tuple[tuple[str, int], ...] = ()
    latest: tuple[Match, ...] = ()
    seconds: float = 0.0
    publishers: tuple[str, ...] = ()
    novelty: Novelty = field(default_factory=Novelty)
    cut_short: str | None = None

    @property
    def outputs(self) -> int:
        """How many outputs there were."""
        return sum(query.outputs for query in self.queries)

    @property
    def recent_days(self) -> int:
        """The number of days at the end of the documents' time that `outputs_a_day` is about: at most RECENT_DAYS.
        Many documents, such as the entries of feeds, are far older than the others."""
        if self.since is None or self.until is None:
            return 0
        return min(self.until // DAY_US - self.since // DAY_US + 1, RECENT_DAYS)

    @property
    def outputs_a_day(self) -> float:
        """The outputs of a day: an average over the `recent_days`."""
        if self.until is None:
            return 0.0
        first = day_text(self.until // DAY_US - self.recent_days + 1)
        return sum(count for day, count in self.days if day >= first) / self.recent_days

    @property
    def milliseconds(self) -> float | None:
        """What 1,000 documents take, in milliseconds; None if too few were tried to tell."""
        return 1_000_000 * self.seconds / self.documents if self.documents >= FEWEST_TIMED else None

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object: the fields, and `outputs`, `outputs_a_day`, `recent_days`, `milliseconds`."""
        return {
            "documents": self.documents,
            "kept": self.kept,
            "refused": self.refused,
            "since": self.since,
            "until": self.until,
            "outputs": self.outputs,
            "outputs_a_day": self.outputs_a_day,
            "recent_days": self.recent_days,
            "milliseconds": self.milliseconds,
            "seconds": self.seconds,
            "queries": [asdict(query) for query in self.queries],
            "days": [{"day": day, "outputs": count} for day, count in self.days],
            "novelty": asdict(self.novelty) | {"is_shared": self.novelty.is_shared},
            "publishers": list(self.publishers),
            "latest": [match.to_dict() for match in self.latest],
            "cut_short": self.cut_short,
        }

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Backtest:
        """Returns the result of such an object."""
        plain = ("documents", "kept", "refused", "since", "until", "seconds", "cut_short")
        novelty = {key: value for key, value in found["novelty"].items() if key != "is_shared"}
        return Backtest(
            **{key: found[key] for key in plain},
            queries=tuple(QueryResult(**query) for query in found["queries"]),
            days=tuple((one["day"], one["outputs"]) for one in found["days"]),
            latest=tuple(map(Match.from_dict, found["latest"])),
            publishers=tuple(found["publishers"]),
            novelty=Novelty(**novelty),
        )
