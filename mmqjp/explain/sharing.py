"""What the queries of a store share: which templates they have, with how many rows of R_T, and what these cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from itertools import islice
from typing import Any

from join_stage.costs import Cost
from mmqjp.explain.terms import structure_text
from mmqjp.queries.model import HiddenStream
from mmqjp.session import Session

MOST_TEMPLATES, MOST_ROWS, MOST_NAMES = 20, 10, 10
"""How many templates are shown, of each the rows with the most subscribers, and of each of these the names."""

FEW_READERS = 100
"""The queries behind an inner join are named if it has no more readers."""


@dataclass(frozen=True, slots=True)
class SharedRowUse:
    """A row of R_T: its number, how many conjunctive queries subscribe to it, and names of some of their queries."""

    row: int
    subscribers: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedTemplate:
    """A template: its number and structure, the rows of R_T that it has, and how many conjunctive queries subscribe to
    them; the rows with the most subscribers.

    `milliseconds` and `matches` are those of the last batch that it was answered in, together with the templates
    `together`; None if that is not known. `one_more` is what one more row would take in such a batch, in milliseconds:
    an average. One more query of a row that is there takes nothing but its outputs.
    """

    template: int
    structure: str
    rows: int
    subscribers: int
    most_shared: tuple[SharedRowUse, ...]
    milliseconds: float | None = None
    matches: int | None = None
    together: tuple[int, ...] = ()
    one_more: float | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the queries of a store share. `shown` has the costliest of its `templates`.

    `queries` counts the registered queries, `forms` the different ones among them but for names and windows, `patterns`
    the shared steps of tree patterns, `rows` and `subscribers` those of all templates. `plan` is what was measured.
    """

    queries: int
    forms: int
    patterns: int
    rows: int
    subscribers: int
    templates: int
    shown: tuple[SharedTemplate, ...]
    plan: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Sharing:
        """Returns what such an object says."""
        shown = (
            SharedTemplate(
                **one
                | {
                    "most_shared": tuple(
                        SharedRowUse(row["row"], row["subscribers"], tuple(row["names"])) for row in one["most_shared"]
                    ),
                    "together": tuple(one["together"]),
                }
            )
            for one in found["shown"]
        )
        return Sharing(**{**found, "shown": tuple(shown)})


@dataclass(slots=True)
class _Tally:
    """What was counted of a template: its rows, as the number of subscribers and the negated number of the row."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    subscribers: int = 0


def sharing(engine: Session) -> Sharing:
    """Returns what the registered queries share. It takes time for each row of R_T, not for each query of a row."""
    registry, catalog = engine.registry, engine.catalog
    tallies: dict[int, _Tally] = {}
    for row, targets in registry.rows.items():
        template, count = targets.template_and_count()
        if (tally := tallies.get(template)) is None:
            tally = tallies[template] = _Tally()
        tally.rows.append((count, -row))
        tally.subscribers += count
    plan, costs = engine.costs() or (None, {})

    def order(template: int) -> tuple[float, int, int]:
        tally = tallies[template]
        return costs[template].seconds if template in costs else -1.0, len(tally.rows), tally.subscribers

    def shown(template: int) -> SharedTemplate:
        tally, cost = tallies[template], costs.get(template)
        most = nlargest(MOST_ROWS, tally.rows)
        return SharedTemplate(
            template,
            structure_text(catalog.templates[template]),
            len(tally.rows),
            tally.subscribers,
            tuple(SharedRowUse(-row, count, _names(engine, -row)) for count, row in most),
            *_measured(cost, tallies),
        )

    return Sharing(
        queries=len(registry.subscriptions),
        forms=len({query.form_id for query in registry.subscriptions.values()}),
        patterns=len(catalog.steps),
        rows=len(registry.rows),
        subscribers=sum(tally.subscribers for tally in tallies.values()),
        templates=len(tallies),
        shown=tuple(map(shown, nlargest(MOST_TEMPLATES, tallies, key=order))),
        plan=plan,
    )


def _measured(
    cost: Cost | None, tallies: Mapping[int, _Tally]
) -> tuple[float | None, int | None, tuple[int, ...], float | None]:
    """The milliseconds, the matches, the templates that were measured together, and what one more row would take."""
    if cost is None:
        return None, None, (), None
    milliseconds = cost.seconds * 1e3
    rows = sum(len(tallies[template].rows) for template in cost.templates if template in tallies)
    return milliseconds, cost.matches, cost.templates, milliseconds / rows if rows else None


def _names(engine: Session, row: int) -> tuple[str, ...]:
    """Some names of queries that subscribe to a row, directly or through inner joins that they read."""

    def names() -> Iterator[str]:
        for target in islice(engine.registry.of_row(row), 10 * MOST_NAMES):
            owner = target.owner
            if isinstance(owner, HiddenStream) and owner.reader_count <= FEW_READERS:
                yield from (query.name for query in owner.readers(engine.registry.readers))
            else:
                yield owner.label

    return tuple(islice(dict.fromkeys(names()), MOST_NAMES))
