"""Which matches are wanted: of which query, since when, and how many of the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mmqjp.answers.output import Output

Select = Callable[[str], list[dict[str, Any]]]
"""Returns the rows of an SQL query over a store."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Matches of the query `name` with t1 >= `since`, in microseconds; of all queries and times by default. The newest
    `most` of them, by seq, if it is not None."""

    name: str | None = None
    since: int | None = None
    most: int | None = None

    def has(self, output: Output) -> bool:
        """Returns whether an output is of the query and the time."""
        return self.name in (None, output.query) and (self.since is None or output.t1 >= self.since)

    def among(self, outputs: Iterable[Output]) -> Iterator[Output]:
        """Yields those of the query and the time."""
        return filter(self.has, outputs)

    def count(self, select: Select) -> int:
        """Returns how many there are in a store, without the limit."""
        (row,) = select(f"SELECT count(*) AS n FROM outputs{self._condition()}")
        return int(row["n"])

    def start(self, select: Select) -> int:
        """Returns the number after which the newest `most` of them follow."""
        if self.most is None:
            return -1
        newest = f"SELECT seq FROM outputs{self._condition()} ORDER BY seq DESC LIMIT {self.most}"
        (row,) = select(f"SELECT min(seq) AS least FROM ({newest}) AS newest")
        return -1 if row["least"] is None else int(row["least"]) - 1

    def _condition(self) -> str:
        """The WHERE of SQL. The name is one of a query, so it has no quotes."""
        parts = [] if self.name is None else [f"query = '{self.name}'"]
        parts += [] if self.since is None else [f"t1 >= {self.since}"]
        return f" WHERE {' AND '.join(parts)}" if parts else ""
