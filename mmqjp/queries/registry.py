"""The registered queries: their conjunctive queries placed in the catalog, their hidden streams, their readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from join_stage.batch_sql import TemplateTable
from join_stage.joiner import JoinEngine, Scope
from mmqjp.queries.model import HiddenStream, Owner, Standing, Subscription, Target, width
from mmqjp.queries.prepared import inner_join
from templates.catalog import Catalog, Change, Row
from xpath_stage.evaluator import XPathStage
from xscl.algebra.normal import Conjunct, Hidden, JoinOp
from xscl.algebra.system_names import is_hidden


class Registry:
    """Keeps stage 1 and stage 2 in step with the registered queries."""

    def __init__(self, catalog: Catalog, stage1: XPathStage, stage2: JoinEngine) -> None:
        self.catalog = catalog
        self.stage1, self._stage2 = stage1, stage2
        self.subscriptions: dict[int, Subscription] = {}
        self._by_name: dict[Any, dict[Subscription, None]] = {}
        self._by_text: dict[Any, dict[Subscription, None]] = {}
        self._by_row: dict[int, dict[Target, None]] = {}
        self._calls: Counter[int] = Counter()
        self._hidden: dict[str, HiddenStream] = {}
        self._hidden_readers: dict[str, Counter[Owner]] = {}
        self._windows: Counter[int] = Counter()
        self._joined: Counter[tuple[str, str]] = Counter()
        self._readers: Counter[str] = Counter()
        self._sources: dict[frozenset[str], frozenset[str]] = {}
        self._joined_streams: frozenset[str] | None = None
        self._outside: frozenset[str] | None = None
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

    def joined_streams(self) -> frozenset[str]:
        """The streams whose documents queries join."""
        if self._joined_streams is None:
            self._joined_streams = frozenset(stream for pair in self._joined for stream in pair)
        return self._joined_streams

    def outside(self) -> frozenset[str]:
        """The streams from outside that those are made of which queries read."""
        if self._outside is None:
            self._outside = self.sources_of(frozenset(self._readers))
        return self._outside

    def sources(self, stream: str) -> frozenset[str]:
        """The streams from outside that a stream is made of: itself, unless it is PUBLISHed or hidden."""
        one = frozenset((stream,))
        if one not in self._sources and stream not in self._readers and not self._made_of(stream):
            return one  # of streams that nobody knows there may be any number
        return self.sources_of(one)

    def sources_of(self, streams: frozenset[str]) -> frozenset[str]:
        """The streams from outside that some streams are made of, all together. Found once, until queries change."""
        if (found := self._sources.get(streams)) is None:
            made_of: dict[str, set[str]] = {}
            waiting = list(streams)
            while waiting:
                stream = waiting.pop()
                if stream not in made_of:
                    made_of[stream] = self._made_of(stream)
                    waiting += made_of[stream]
            found = self._sources[streams] = frozenset(stream for stream, made in made_of.items() if not made)
        return found

    def _forget_sources(self) -> None:
        self._sources.clear()
        self._joined_streams = self._outside = None

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
        makers: list[Owner] = [s for s in named if s.publishes and s not in without]
        if stream in self._hidden:
            makers.append(self._hidden[stream])
        return {stream for maker in makers for target in maker.targets for stream in target.streams}

    def has_readers(self, stream: str) -> bool:
        return self._readers[stream] > 0

    def hidden(self, stream: str) -> HiddenStream:
        """The hidden stream of a name, which some registered query reads."""
        return self._hidden[stream]

    def readers(self, stream: str) -> list[Subscription]:
        """The queries that read a hidden stream, also through other hidden ones, each once."""
        found: dict[Subscription, None] = {}
        for owner in self._hidden_readers.get(stream, ()):
            found |= dict.fromkeys(owner.readers(self.readers))
        return list(found)

    def publishers_behind(self, query: Subscription) -> set[Subscription]:
        """The queries whose outputs a query reads, also through others."""
        found: set[Subscription] = set()
        waiting: list[Owner] = [query]
        while waiting:
            owner = waiting.pop()
            for target in owner.targets:
                waiting += self._inner(target)
                makers = (s for stream in target.streams for s in self._by_name.get(stream, ()) if s.publishes)
                fresh = [maker for maker in makers if maker not in found]
                found.update(fresh)
                waiting += fresh
        return found

    def inner_joins(self, owner: Owner) -> list[HiddenStream]:
        """The hidden streams behind a query, each once."""
        found: dict[HiddenStream, None] = {}
        for target in owner.targets:
            for stream in self._inner(target):
                found |= dict.fromkeys([stream, *self.inner_joins(stream)])
        return list(found)

    def owners(self) -> Iterator[Owner]:
        """Everything that has subscribed to rows of R_T."""
        yield from self.subscriptions.values()
        yield from self._hidden.values()

    def of_row(self, row: int) -> Iterator[Target]:
        """The subscribers of a row of R_T."""
        yield from self._by_row.get(row, ())

    def template_of(self, row: int) -> int:
        """The template of a row that has subscribers."""
        return next(self.of_row(row)).template

    def add(self, subscription: Subscription) -> None:
        """Registers a query; if that fails nothing of it is left."""
        normal = subscription.normal
        try:
            self._place(subscription, normal.conjuncts, normal.op, normal.window, subscription.since)
        except BaseException:
            self._displace(subscription)
            raise
        self._enter(subscription)

    def restore(self, subscription: Subscription, own: Sequence[Standing], inner: Mapping[str, list[Standing]]) -> None:
        """Registers a query of an earlier run whose rows the catalog has taken up: its own conjunctive queries, and
        those of the hidden streams behind it."""

        def stand(owner: Owner, standing: Iterable[Standing]) -> None:
            for one in standing:
                row = self.catalog.subscribe(one.row, one.window, one.op == "FOLLOWED BY")
                self._stand(Target(owner, self.catalog, *one))
                self._put((row,))
                for stream in filter(is_hidden, one.streams):
                    self._open(
                        stream,
                        lambda stream=stream: inner_join(subscription.normal, stream),  # type: ignore[misc]
                        subscription.since,
                        lambda made, stream=stream: stand(made, inner[stream]),  # type: ignore[misc]
                    )

        stand(subscription, own)
        self._enter(subscription)

    def restored(self, change: Change) -> None:
        """Gives stage 1 what the rows need that the catalog has taken up."""
        self.stage1.add(change)

    def _enter(self, subscription: Subscription) -> None:
        self._forget_sources()
        self.subscriptions[subscription.qid] = subscription
        self._by_name.setdefault(subscription.name, {})[subscription] = None
        self._by_text.setdefault(subscription.key, {})[subscription] = None

    def remove(self, qid: int) -> None:
        self._forget_sources()
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
        self, owner: Owner, conjuncts: tuple[Conjunct, ...], op: JoinOp | None, window: int | None, since: int
    ) -> None:
        widest = width(op, window)
        for place, conjunct in enumerate(conjuncts):
            placement, change = self.catalog.add(conjunct, widest, op == "FOLLOWED BY")
            self.stage1.add(change)
            streams = tuple(side.stream for side in conjunct.sides())
            target = Target(owner, self.catalog, place, placement.row, placement.template, op, widest, streams)
            self._stand(target)
            self._put(change.rows)
            for side in conjunct.sides():
                if side.hidden is not None:
                    self._open_inner(side.hidden, since)

    def _open_inner(self, hidden: Hidden, since: int) -> None:
        def place(stream: HiddenStream) -> None:
            self._place(stream, hidden.conjuncts, hidden.op, hidden.window, since)

        self._open(hidden.stream, lambda: hidden, since, place)

    def _stand(self, target: Target) -> None:
        """Enters a conjunctive query that the catalog knows of."""
        self._forget_sources()
        self._calls[target.row] += 1
        target.owner.targets.append(target)
        self._by_row.setdefault(target.row, {})[target] = None
        self._windows[target.window] += 1
        for stream in target.streams:
            self._readers[stream] += 1
            if is_hidden(stream):
                self._hidden_readers.setdefault(stream, Counter())[target.owner] += 1
        if len(target.streams) > 1:
            left, right = target.streams
            self._joined[left, right] += 1

    def _inner(self, target: Target) -> Iterator[HiddenStream]:
        """The hidden streams that a conjunctive query reads."""
        return (self._hidden[stream] for stream in target.streams if is_hidden(stream))

    def deactivate(self, owner: Owner) -> None:
        """Has the rows of R_T that nobody else is answered for taken out of stage 2. What the documents have of the
        owner's patterns is found and kept as before."""
        for target in owner.targets:
            self._calls[target.row] -= 1
            if not self._calls[target.row]:
                del self._calls[target.row]
                self._withdraw(self.catalog.row(target.row))
            for stream in self._inner(target):
                stream.calls -= 1
                if not stream.active:
                    self.deactivate(stream)

    def activate(self, owner: Owner) -> None:
        """Brings back what `deactivate` took out."""
        for target in owner.targets:
            self._calls[target.row] += 1
            self._put((self.catalog.row(target.row),))
            for stream in self._inner(target):
                self._call(stream)

    def _call(self, stream: HiddenStream) -> None:
        stream.calls += 1
        if stream.calls == 1:
            self.activate(stream)

    def _withdraw(self, row: Row) -> None:
        self._pending.get(row.template, {}).pop(row.id, None)
        if row.id in self._live:
            self._live.discard(row.id)
            self._stage2.drop_rows(self._table(row.template), [row])

    def _displace(self, owner: Owner) -> None:
        self._forget_sources()
        if owner.active:
            self.deactivate(owner)
        for target in owner.targets:
            gone, changed = self.catalog.remove(target.row, target.window, target.op == "FOLLOWED BY")
            self.stage1.remove(gone)
            self._put(changed.rows)
            del self._by_row[target.row][target]
            if not self._by_row[target.row]:
                del self._by_row[target.row]
            _decrease(self._windows, target.window)
            if len(target.streams) > 1:
                _decrease(self._joined, target.streams)
            for stream in target.streams:
                _decrease(self._readers, stream)
                if is_hidden(stream):
                    _decrease(self._hidden_readers[stream], owner)
                    if not self._hidden_readers[stream]:
                        del self._hidden_readers[stream]
            for inner in list(self._inner(target)):
                self._close(inner)

    def _open(self, name: str, hidden: Callable[[], Hidden], since: int, place: Callable[[HiddenStream], None]) -> None:
        """Counts one more reader of a hidden stream; `place` registers one that is new."""
        stream = self._hidden.get(name)
        if stream is None:
            stream = self._hidden[name] = HiddenStream(name, hidden, since, calls=1)
            place(stream)
        else:
            stream.since = min(stream.since, since)
            self._call(stream)
        stream.uses += 1

    def _close(self, stream: HiddenStream) -> None:
        stream.uses -= 1
        if not stream.uses:
            del self._hidden[stream.stream]
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
