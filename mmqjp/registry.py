"""The registered queries: their conjunctive queries placed in the catalog, their hidden streams, their readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from join_stage.engine import JoinEngine, Scope
from join_stage.plan import TemplateTable
from templates.catalog import INFINITE, Catalog, Placement, Row
from xpath_stage.evaluator import XPathStage
from xscl.normal import Conjunct, Hidden, NormalQuery
from xscl.syntax import JoinOp


@dataclass(eq=False)
class Subscription:
    """A registered query. `since` is the last document that it does not see; `occurrence` counts equal queries.

    `paused` says why it rests, if it does. Nor does it see the documents of `gaps`, which came while it was paused: a
    gap is the last one before it and the last one of it.
    """

    qid: int
    name: str
    text: str
    occurrence: int
    since: int
    normal: NormalQuery
    publishes: bool
    paused: str | None = None
    gaps: list[tuple[int, int | None]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether it is answered."""
        return self.paused is None

    def sees(self, docids: Iterable[int]) -> bool:
        """Whether all these documents are among those that it is answered for."""
        if not self.gaps:
            return min(docids) > self.since
        return all(
            docid > self.since and not any(low < docid <= (docid if high is None else high) for low, high in self.gaps)
            for docid in docids
        )

    def pause(self, docid: int, reason: str) -> None:
        """Notes that it rests from behind a document on."""
        self.paused = reason
        self.gaps.append((docid, None))

    def resume(self, docid: int) -> None:
        """Notes that it rested up to a document."""
        self.paused = None
        self.gaps.append((self.gaps.pop()[0], docid))

    @property
    def key(self) -> tuple[str | None, str]:
        """PUBLISH name, if it has one, and text: what makes two queries the same one."""
        return (self.name if self.publishes else None), self.text


@dataclass(eq=False)
class HiddenStream:
    """An inner join whose tuples queries read; `uses` counts the conjunctive queries that do, `calls` those of them
    that are answered."""

    hidden: Hidden
    since: int
    uses: int = 0
    calls: int = 0
    targets: list[Target] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether its tuples are wanted."""
        return self.calls > 0

    def sees(self, docids: Iterable[int]) -> bool:
        """Whether all these documents are among those that it is made of."""
        return min(docids) > self.since


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
        self._by_name: dict[Any, dict[Subscription, None]] = {}
        self._by_text: dict[Any, dict[Subscription, None]] = {}
        self._by_row: dict[int, dict[Target, None]] = {}
        self._calls: Counter[int] = Counter()
        self._hidden: dict[str, HiddenStream] = {}
        self._windows: Counter[int] = Counter()
        self._joined: Counter[tuple[str, str]] = Counter()
        self._readers: Counter[str] = Counter()
        self._pending: dict[int, dict[int, Row]] = {}
        self._live: set[int] = set()

    @property
    def window(self) -> int:
        """The largest window of any query, microseconds."""
        return max(self._windows, default=0)

    @property
    def scope(self) -> Scope:
        """What any query joins at the most."""
        return Scope(self.window, frozenset(self._joined))

    def streams(self) -> set[str]:
        """The streams that queries read."""
        return set(self._readers)

    def sources(self, stream: str) -> set[str]:
        """The streams from outside that a stream is made of: itself, unless it is PUBLISHed or hidden."""
        met, waiting = {stream}, [stream]
        while waiting:
            fresh = self._made_of(waiting.pop()) - met
            met |= fresh
            waiting += fresh
        return {name for name in met if not self._made_of(name)}

    def cycle_of(self, name: str, without: Container[Subscription] = frozenset()) -> list[str]:
        """The streams on a way of data from a PUBLISHed stream back to itself; empty if there is none, but for the
        queries in `without`."""
        ways, met = [[name]], set()
        while ways:
            way = ways.pop()
            for stream in self._made_of(way[0], without):
                if stream == name:
                    return [name, *way]
                if stream not in met:
                    met.add(stream)
                    ways.append([stream, *way])
        return []

    def named(self, name: str) -> list[Subscription]:
        """The queries of a name, in the order of their registration."""
        return list(self._by_name.get(name, ()))

    def equal(self, published: str | None, text: str) -> Collection[Subscription]:
        """The queries of a PUBLISH name (None: without one) and text, in the order of their registration."""
        found: Collection[Subscription] = self._by_text.get((published, text), ())
        return found

    def _made_of(self, stream: str, without: Container[Subscription] = frozenset()) -> set[str]:
        """The streams that the makers of a stream read; none for one that only comes from outside."""
        named = self._by_name.get(stream, ())
        makers: list[Subscription | HiddenStream] = [s for s in named if s.publishes and s not in without]
        if stream in self._hidden:
            makers.append(self._hidden[stream])
        return {side.stream for maker in makers for target in maker.targets for side in target.conjunct.sides()}

    def has_readers(self, stream: str) -> bool:
        return self._readers[stream] > 0

    def hidden(self, stream: str) -> HiddenStream:
        """The hidden stream of a name, which some registered query reads."""
        return self._hidden[stream]

    def inner_joins(self, owner: Subscription | HiddenStream) -> list[HiddenStream]:
        """The hidden streams behind a query, each once."""
        found: dict[HiddenStream, None] = {}
        for target in owner.targets:
            for side in target.conjunct.sides():
                if side.hidden is not None:
                    inner = self._hidden[side.hidden.stream]
                    found |= dict.fromkeys([inner, *self.inner_joins(inner)])
        return list(found)

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
        """Registers a query; if that fails nothing of it is left."""
        normal = subscription.normal
        try:
            self._place(subscription, normal.conjuncts, normal.op, normal.window, subscription.since)
        except BaseException:
            self._displace(subscription)
            raise
        self.subscriptions[subscription.qid] = subscription
        self._by_name.setdefault(subscription.name, {})[subscription] = None
        self._by_text.setdefault(subscription.key, {})[subscription] = None

    def remove(self, qid: int) -> None:
        subscription = self.subscriptions.pop(qid)
        for index, key in ((self._by_name, subscription.name), (self._by_text, subscription.key)):
            del index[key][subscription]
            if not index[key]:
                del index[key]
        self._displace(subscription)

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
            placement, change = self.catalog.add(conjunct, width, op == "FOLLOWED BY")
            self._stage1.add(change)
            for side in conjunct.sides():
                self._readers[side.stream] += 1
                if side.hidden is not None:
                    self._open(side.hidden, since)
            self._calls[placement.row] += 1
            self._put(change.rows)
            target = Target(owner, conjunct, placement, op, width)
            owner.targets.append(target)
            self._by_row.setdefault(placement.row, {})[target] = None
            self._windows[width] += 1
            if conjunct.right is not None:
                self._joined[conjunct.left.stream, conjunct.right.stream] += 1

    def deactivate(self, owner: Subscription | HiddenStream) -> None:
        """Has the rows of R_T that nobody else is answered for taken out of stage 2. What the documents have of the
        owner's patterns is found and kept as before."""
        for target in owner.targets:
            row = target.placement.row
            self._calls[row] -= 1
            if not self._calls[row]:
                del self._calls[row]
                self._withdraw(self.catalog.row(row))
            for side in target.conjunct.sides():
                if side.hidden is not None:
                    stream = self._hidden[side.hidden.stream]
                    stream.calls -= 1
                    if not stream.active:
                        self.deactivate(stream)

    def activate(self, owner: Subscription | HiddenStream) -> None:
        """Brings back what `deactivate` took out."""
        for target in owner.targets:
            row = target.placement.row
            self._calls[row] += 1
            self._put((self.catalog.row(row),))
            for side in target.conjunct.sides():
                if side.hidden is not None:
                    self._call(self._hidden[side.hidden.stream])

    def _call(self, stream: HiddenStream) -> None:
        stream.calls += 1
        if stream.calls == 1:
            self.activate(stream)

    def _withdraw(self, row: Row) -> None:
        self._pending.get(row.template, {}).pop(row.id, None)
        if row.id in self._live:
            self._live.discard(row.id)
            self._stage2.drop_rows(self._table(row.template), [row])

    def _displace(self, owner: Subscription | HiddenStream) -> None:
        if owner.active:
            self.deactivate(owner)
        for target in owner.targets:
            placement = target.placement
            gone, changed = self.catalog.remove(placement, target.window, target.op == "FOLLOWED BY")
            self._stage1.remove(gone)
            self._put(changed.rows)
            del self._by_row[placement.row][target]
            if not self._by_row[placement.row]:
                del self._by_row[placement.row]
            _decrease(self._windows, target.window)
            if target.conjunct.right is not None:
                _decrease(self._joined, (target.conjunct.left.stream, target.conjunct.right.stream))
            for side in target.conjunct.sides():
                _decrease(self._readers, side.stream)
                if side.hidden is not None:
                    self._close(side.hidden)

    def _open(self, hidden: Hidden, since: int) -> None:
        stream = self._hidden.get(hidden.stream)
        if stream is None:
            stream = self._hidden[hidden.stream] = HiddenStream(hidden, since, calls=1)
            self._place(stream, hidden.conjuncts, hidden.op, hidden.window, since)
        else:
            stream.since = min(stream.since, since)
            self._call(stream)
        stream.uses += 1

    def _close(self, hidden: Hidden) -> None:
        stream = self._hidden[hidden.stream]
        stream.uses -= 1
        if not stream.uses:
            del self._hidden[hidden.stream]
            self._displace(stream)

    def _put(self, rows: tuple[Row, ...]) -> None:
        """Has rows put into stage 2, but for those that nobody is answered for."""
        for row in rows:
            if row.id in self._calls:
                self._pending.setdefault(row.template, {})[row.id] = row

    def _table(self, number: int) -> TemplateTable:
        return TemplateTable(number, self.catalog.templates[number])


def _decrease(counter: Counter[Any], key: Any) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
