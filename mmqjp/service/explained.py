"""How queries are run, for other processes: what `explain` prints, and the picture of their join graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmqjp.explain.explanation import CostInfo, explanation_of
from mmqjp.explain.join_graph import join_graphs
from mmqjp.queries.changes import UnknownQuery
from mmqjp.queries.model import Subscription
from mmqjp.session import Session

MOST_QUERIES = 10
"""How many queries of a name are explained."""

NO_ESTIMATES = "not made while documents arrive; mmqjp explain --state makes it when no service runs"

NOTHING_KEPT = "a back-test tells what the queries cost over the documents that are kept"


@dataclass(frozen=True, slots=True)
class Explained:
    """How the queries of a name are run: the first MOST_QUERIES of `queries`.

    `text` is what `mmqjp explain` prints, without estimates; `svg` is an SVG element with their join graphs.
    """

    name: str
    queries: int
    text: str
    svg: str

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Explained:
        """Returns what such an object says."""
        return Explained(**found)


def explained_text(text: str) -> list[Explained]:
    """Returns how the queries of a text would be run by themselves, by name: the first MOST_QUERIES names.

    They are registered in an engine in memory. Raises XsclErrors, PublishCycle.
    """
    with Session("duckdb", quiet=True) as engine:
        names = list(dict.fromkeys(engine.subscribe(text)))
        return [explained(engine, name, NOTHING_KEPT) for name in names[:MOST_QUERIES]]


def explained(engine: Session, name: str, no_estimates: str = NO_ESTIMATES) -> Explained:
    """Returns how the queries of a name are run. It takes time for each row of R_T. `no_estimates` says why the text
    has no estimates. Raises UnknownQuery."""
    queries = engine.registry.named(name)
    if not queries:
        raise UnknownQuery(name)
    shown = queries[:MOST_QUERIES]
    known = CostInfo(None, engine.costs(), no_estimates)
    lines = explanation_of(engine.registry, shown, engine.plan, known)
    return Explained(name, len(queries), "\n".join(lines), _drawn(name, shown))


def _drawn(name: str, queries: Sequence[Subscription]) -> str:
    """Returns the join graphs of queries; "" if all are event queries, which have none."""
    joins = [(name, query.text) for query in queries if not query.is_events]
    return join_graphs(joins) if joins else ""
