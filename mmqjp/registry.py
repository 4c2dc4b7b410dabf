"""The registered queries: their conjunctive queries placed in the catalog, their hidden streams, their readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from join_stage.engine import JoinEngine
from join_stage.plan import TemplateTable
from templates.catalog import INFINITE, Catalog, Placement, Row
from xpath_stage.evaluator import XPathStage
from xscl.normal import Conjunct, Hidden, NormalQuery
from xscl.syntax import JoinOp


@dataclass(eq=False)
class Subscription:
    """A registered query. `since` is the last document that it does not see; `occurrence` counts equal queries."""

    qid: int
    name: str
    text: str
    occurrence: int
    since: int
    normal: NormalQuery
    publishes: bool
    targets: list[Target] = field(default_factory=list)


@dataclass(eq=False)
class HiddenStream:
    """An inner join whose tuples queries read; `uses` counts the conjunctive queries that do."""

    hidden: Hidden
    since: int
    uses: int = 0
    targets: list[Target] = field(default_factory=list)


@dataclass(eq=False)
class Target:
    """A subscriber of a row of R_T: one conjunctive query of a subscription or of a hidden stream."""

    owner: Subscription | HiddenStream
    conjunct: Conjunct
    placement: Placement
    op: JoinOp | None
    window: int


class Registry:
    """Keeps stage 1 and stage 2 in step with the registered queries."""

    def __init__(self, catalog: Catalog, stage1: XPathStage, stage2: JoinEngine) -> None:
        self.catalog = catalog
        self._stage1, self._stage2 = stage1, stage2
        self.subscriptions: dict[int, Subscription] = {}
        self._by_row: dict[int, dict[Target, None]] = {}
        self._hidden: dict[str, HiddenStream] = {}
        self._windows: Counter[int] = Counter()
        self._readers: Counter[str] = Counter()
        self._pending: dict[int, dict[int, Row]] = {}
        self._live: set[int] = set()

    @property
    def window(self) -> int:
        """The largest window of any query, microseconds."""
        return max(self._windows, default=0)

    def external_streams(self) -> set[str]:
        """The streams that queries read and none makes: outputs are never late, so only these hold eviction back."""
        made = {s.name for s in self.subscriptions.values() if s.publishes}
        return {stream for stream in self._readers if stream not in made and not stream.startswith("#")}

    def has_readers(self, stream: str) -> bool:
        return self._readers[stream] > 0

    def hidden(self, stream: str) -> HiddenStream:
        """The hidden stream of a name, which some registered query reads."""
        return self._hidden[stream]

    def owners(self) -> Iterator[Subscription | HiddenStream]:
        """Everything that has subscribed to rows of R_T."""
        yield from self.subscriptions.values()
        yield from self._hidden.values()

    def of_row(self, row: int) -> Iterator[Target]:
        """The subscribers of a row of R_T."""
        yield from self._by_row.get(row, ())

    def template_of(self, row: int) -> int:
        """The template of a row that has subscribers."""
        return next(self.of_row(row)).placement.template

    def add(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.qid] = subscription
        normal = subscription.normal
        self._place(subscription, normal.conjuncts, normal.op, normal.window, subscription.since)

    def remove(self, qid: int) -> None:
        self._displace(self.subscriptions.pop(qid))

    def flush(self) -> None:
        """Brings the rows of R_T in stage 2 up to date."""
        for number, rows in self._pending.items():
            if rows:
                self._stage2.put_rows(self._table(number), list(rows.values()))
                self._live.update(rows)
        self._pending.clear()

    def _place(
        self,
        owner: Subscription | HiddenStream,
        conjuncts: tuple[Conjunct, ...],
        op: JoinOp | None,
        window: int | None,
        since: int,
    ) -> None:
        width = INFINITE if window is None and op is not None else window or 0
        for conjunct in conjuncts:
            for side in conjunct.sides():
                self._readers[side.stream] += 1
                if side.hidden is not None:
                    self._open(side.hidden, since)
            placement, change = self.catalog.add(conjunct, width, op == "FOLLOWED BY")
            self._stage1.add(change)
            self._put(change.rows)
            target = Target(owner, conjunct, placement, op, width)
            owner.targets.append(target)
            self._by_row.setdefault(placement.row, {})[target] = None
            self._windows[width] += 1

    def _displace(self, owner: Subscription | HiddenStream) -> None:
        for target in owner.targets:
            placement = target.placement
            gone, changed = self.catalog.remove(placement, target.window, target.op == "FOLLOWED BY")
            self._stage1.remove(gone)
            self._put(changed.rows)
            for row in gone.rows:
                self._pending.get(row.template, {}).pop(row.id, None)
                if row.id in self._live:
                    self._live.discard(row.id)
                    self._stage2.drop_rows(self._table(row.template), [row])
            del self._by_row[placement.row][target]
            if not self._by_row[placement.row]:
                del self._by_row[placement.row]
            _decrease(self._windows, target.window)
            for side in target.conjunct.sides():
                _decrease(self._readers, side.stream)
                if side.hidden is not None:
                    self._close(side.hidden)

    def _open(self, hidden: Hidden, since: int) -> None:
        stream = self._hidden.get(hidden.stream)
        if stream is None:
            stream = self._hidden[hidden.stream] = HiddenStream(hidden, since)
            self._place(stream, hidden.conjuncts, hidden.op, hidden.window, since)
        stream.uses += 1

    def _close(self, hidden: Hidden) -> None:
        stream = self._hidden[hidden.stream]
        stream.uses -= 1
        if not stream.uses:
            del self._hidden[hidden.stream]
            self._displace(stream)

    def _put(self, rows: tuple[Row, ...]) -> None:
        for row in rows:
            self._pending.setdefault(row.template, {})[row.id] = row

    def _table(self, number: int) -> TemplateTable:
        return TemplateTable(number, self.catalog.templates[number])


def _decrease(counter: Counter[Any], key: Any) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
