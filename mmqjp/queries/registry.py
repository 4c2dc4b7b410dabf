"""The registry: all registered queries, their targets in the catalog, their hidden streams, and who reads what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from operator import attrgetter

from join_stage.batch_sql import TemplateTable
from join_stage.joiner import JoinEngine, Scope
from mmqjp.documents.watermarks import EVENT_TIME
from mmqjp.queries.by_key import ByKey
from mmqjp.queries.compile import inner_join, place
from mmqjp.queries.counts import decrease
from mmqjp.queries.event_statements import EventStatements
from mmqjp.queries.forms import Form, Forms
from mmqjp.queries.model import HiddenStream, Owner, StoredTarget, Subscription, Target
from mmqjp.queries.row_targets import RowPart, RowTargets
from mmqjp.queries.sources import Sources
from templates.catalog import Catalog, Row
from xpath_stage.evaluator import XPathStage
from xscl.algebra.normal import NEGATED, Conjunct, Hidden, JoinOp
from xscl.algebra.system_names import is_hidden


class Registry:
    """Registers queries, and keeps stage 1 and stage 2 in step with them."""

    def __init__(self, catalog: Catalog, stage1: XPathStage, stage2: JoinEngine) -> None:
        self.catalog = catalog
        self.stage1, self._stage2, self.events = stage1, stage2, EventStatements(catalog, stage1)
        self.subscriptions: dict[int, Subscription] = {}  # by qid, in ascending order
        self.version = 0  # changes with every change of the queries
        self._by_name, self._by_text = ByKey(), ByKey()
        self.rows, self._forms = dict[int, RowTargets](), Forms()  # `rows` has the targets of each row of R_T
        self._active_targets: Counter[int] = Counter()
        self.absent: Counter[int] = Counter()  # by row of R_T, the targets that find inputs of absences
        self._hidden, self._hidden_readers = dict[str, HiddenStream](), dict[str, Counter[Owner]]()
        self._windows: Counter[int] = Counter()
        self._joined: Counter[tuple[str, str]] = Counter()
        self._readers: Counter[str] = Counter()
        self._sources = Sources(self.made_of)
        self._joined_streams: frozenset[str] | None = None
        self._read: dict[str, list[Subscription]] | None = None
        self._pending, self._live = dict[int, dict[int, Row]](), set[int]()

    @property
    def window(self) -> int:
        """The widest window of any query, in microseconds."""
        return max(self._windows, default=0)

    @property
    def scope(self) -> Scope:
        """The widest window and the pairs of streams that any query joins."""
        return Scope(self.window, frozenset(self._joined))

    def joined_streams(self) -> frozenset[str]:
        """Returns the streams that queries join, and of absences."""
        if self._joined_streams is None:
            of_absences = (one.streams for row in self.absent for one in self.rows[row] if one.op in NEGATED)
            self._joined_streams = frozenset().union(*self._joined, *of_absences)
        return self._joined_streams

    def outside(self) -> frozenset[str]:
        """Returns the external streams behind all streams that queries read."""
        return self._sources.of(frozenset(self._readers))

    def sources(self, stream: str) -> frozenset[str]:
        """Returns the external streams behind a stream: itself, unless it is PUBLISHed or hidden."""
        one = frozenset((stream,))
        if not self._sources.knows(stream) and stream not in self._readers and not self.made_of(stream):
            return one  # not cached: there may be any number of unknown streams
        return self._sources.of(one)

    def sources_of(self, streams: frozenset[str]) -> frozenset[str]:
        """Returns the external streams behind any of these streams. Cached until queries change."""
        return self._sources.of(streams)

    def _forget_sources(self) -> None:
        self.version += 1
        self._sources.forget()
        self._joined_streams = self._read = None

    def named(self, name: str) -> list[Subscription]:
        """Returns the queries of a name, in the order of their registration."""
        return list(self._by_name.get(name))

    def equal(self, published: str | None, text: str) -> Collection[Subscription]:
        """Returns the queries with a PUBLISH name (None for none) and text, in the order of their registration."""
        return self._by_text.get((published, text))

    def is_read(self, stream: str) -> bool:
        """Returns whether a query or an inner join reads a stream."""
        return stream in self._readers

    def made_of(self, stream: str, without: Container[Subscription] = frozenset()) -> set[str]:
        """Returns the streams that the producers of a stream read. An external stream has none. What event queries
        publish also waits for the horizon of events."""
        makers = [s for s in self._by_name.get(stream) if s.is_events and s.publishes and s not in without]
        made_of_events = {stream for maker in makers for stream in (*self.events.behind(maker), EVENT_TIME)}
        return made_of_events or self.joined_of(stream, without)

    def joined_of(self, stream: str, without: Container[Subscription] = frozenset()) -> set[str]:
        """Returns the streams that queries over documents and inner joins make a stream of."""
        makers: list[Owner] = [s for s in self._by_name.get(stream) if s.publishes and s not in without]
        if stream in self._hidden:
            makers.append(self._hidden[stream])
        return {stream for maker in makers for target in maker.targets for stream in target.streams}

    def read_of(self, form_id: str) -> list[Subscription]:
        """Returns the queries of a form whose streams are read, in the order of their names and qids."""
        if self._read is None:
            self._read = {}
            read = (s for stream in self._readers for s in self.named(stream) if s.publishes)
            for subscription in sorted(read, key=attrgetter("name", "qid")):
                self._read.setdefault(subscription.form_id, []).append(subscription)
        return self._read.get(form_id, [])

    def hidden(self, stream: str) -> HiddenStream:
        """Returns the hidden stream of a name, which some registered query reads."""
        return self._hidden[stream]

    def readers(self, stream: str) -> list[Subscription]:
        """Returns the queries that read a hidden stream, directly or through other hidden streams, each once."""
        found: dict[Subscription, None] = {}
        for owner in self._hidden_readers.get(stream, ()):
            found |= dict.fromkeys(owner.readers(self.readers))
        return list(found)

    def inner_joins(self, owner: Owner) -> list[HiddenStream]:
        """Returns the hidden streams behind a plan node, each once."""
        found: dict[HiddenStream, None] = {}
        for target in owner.targets:
            for stream in self.inner(target):
                found |= dict.fromkeys([stream, *self.inner_joins(stream)])
        return list(found)

    def owners(self) -> Iterator[Owner]:
        """Yields all plan nodes."""
        yield from self.subscriptions.values()
        yield from self._hidden.values()

    def of_row(self, row: int) -> Iterator[Target]:
        """Yields the targets of a row of R_T."""
        yield from self.rows.get(row, ())

    def parts_of_row(self, row: int) -> Collection[RowPart]:
        """Returns the targets of a row of R_T in groups, and groups of groups, that are answered together."""
        return self.rows[row].parts if row in self.rows else ()

    def form(self, id: str) -> Form | None:
        """Returns the form of an id, if a registered query has it."""
        return self._forms.get(id)

    def template_of(self, row: int) -> int:
        """Returns the template of a row that has targets."""
        return self.rows[row].template

    def add(self, subscription: Subscription) -> None:
        """Registers a query. If that fails, nothing of it remains."""
        normal = subscription.normal
        try:
            self._add_targets(subscription, normal.conjuncts, normal.op, normal.window, subscription.since)
        except BaseException:
            self._remove_targets(subscription)
            self._forms.forget(subscription)
            raise
        self._index(subscription)

    def restore(self, query: Subscription, own: Sequence[StoredTarget], inner: dict[str, list[StoredTarget]]) -> None:
        """Registers a query of an earlier run. Its targets, and those of its hidden streams, are in the catalog."""

        def add_targets(owner: Owner, stored: Iterable[StoredTarget]) -> None:
            for one in stored:
                row = self.catalog.subscribe(one.row, one.window, one.op == "FOLLOWED BY")
                self._add_target(Target(owner, self.catalog, *one))
                self._queue_rows((row,))
                for stream in filter(is_hidden, one.streams):
                    self._attach(
                        stream,
                        lambda stream=stream: inner_join(query.normal, stream),  # type: ignore[misc]  # no inference with a default
                        query.since,
                        lambda made, stream=stream: add_targets(made, inner[stream]),  # type: ignore[misc]  # no inference with a default
                    )

        add_targets(query, own)
        self._index(query)

    def _index(self, subscription: Subscription) -> None:
        self._forget_sources()
        self.subscriptions[subscription.qid] = subscription
        self._by_name.add(subscription.name, subscription)
        self._by_text.add(subscription.key, subscription)
        self._forms.add(subscription)
        if subscription.is_events:
            self._readers.update(self.events.add(subscription))

    def remove(self, qid: int) -> None:
        """Removes a query."""
        self._forget_sources()
        subscription = self.subscriptions.pop(qid)
        self._forms.remove(subscription)
        self._by_name.remove(subscription.name, subscription)
        self._by_text.remove(subscription.key, subscription)
        self._remove_targets(subscription)
        self._forms.forget(subscription)
        if subscription.is_events:
            for stream in self.events.remove(subscription):
                decrease(self._readers, stream)

    def flush(self) -> None:
        """Writes pending rows of R_T to stage 2, and prepares what documents need."""
        self._forms.settle()
        self.events.settle()
        for number, rows in self._pending.items():
            if rows:
                self._stage2.put_rows(self._table(number), list(rows.values()))
                self._live.update(rows)
        self._pending.clear()

    def _add_targets(
        self, owner: Owner, conjuncts: tuple[Conjunct, ...], op: JoinOp | None, window: int | None, since: int
    ) -> None:
        for target, change in place(owner, self.catalog, conjuncts, op, window):
            self.stage1.add(change)
            self._add_target(target)
            self._queue_rows(change.rows)
            for side in target.conjunct.sides():
                if side.hidden is not None:
                    self._attach_inner(side.hidden, side.stream, since)

    def _attach_inner(self, hidden: Hidden, name: str, since: int) -> None:
        def add_targets(stream: HiddenStream) -> None:
            self._add_targets(stream, hidden.conjuncts, hidden.op, hidden.window, since)

        self._attach(name, lambda: hidden, since, add_targets)

    def _add_target(self, target: Target) -> None:
        """Registers a target that the catalog has."""
        self._forget_sources()
        row = target.row
        self._active_targets[row] = self._active_targets.get(row, 0) + 1  # `+=` is slow for the first
        target.owner.targets.append(target)
        of_row = self.rows.get(row)
        if of_row is None:
            of_row = self.rows[row] = RowTargets()
        of_row.add(target, self._forms)
        self._windows[target.reach] += 1
        if target.op in NEGATED:
            self.absent[row] += 1
        for stream in target.streams:
            self._readers[stream] += 1
            if is_hidden(stream):
                self._hidden_readers.setdefault(stream, Counter())[target.owner] += 1
        if len(target.streams) > 1:
            left, right = target.streams
            self._joined[left, right] += 1

    def inner(self, target: Target) -> Iterator[HiddenStream]:
        """Yields the hidden streams that a target reads."""
        return (self._hidden[stream] for stream in target.streams if is_hidden(stream))

    def deactivate(self, owner: Owner) -> None:
        """Drops from stage 2 the rows of R_T that no other active plan node needs. Stage 1 still evaluates the
        patterns, and their witnesses are stored."""
        self.version += 1
        self._forms.note(owner)
        self.events.leave(owner)
        for target in owner.targets:
            self._active_targets[target.row] -= 1
            if not self._active_targets[target.row]:
                del self._active_targets[target.row]
                self._drop_row(self.catalog.row(target.row))
            for stream in self.inner(target):
                stream.active_reader_count -= 1
                if not stream.active:
                    self.deactivate(stream)

    def activate(self, owner: Owner) -> None:
        """Undoes `deactivate`."""
        self.version += 1
        self._forms.note(owner)
        self.events.join(owner)
        for target in owner.targets:
            self._active_targets[target.row] += 1
            self._queue_rows((self.catalog.row(target.row),))
            for stream in self.inner(target):
                self._activate_stream(stream)

    def _activate_stream(self, stream: HiddenStream) -> None:
        stream.active_reader_count += 1
        if stream.active_reader_count == 1:
            self.activate(stream)

    def _drop_row(self, row: Row) -> None:
        self._pending.get(row.template, {}).pop(row.id, None)
        if row.id in self._live:
            self._live.discard(row.id)
            self._stage2.drop_rows(self._table(row.template), [row])

    def _remove_targets(self, owner: Owner) -> None:
        self._forget_sources()
        if owner.active:
            self.deactivate(owner)
        for target in owner.targets:
            gone, changed = self.catalog.remove(target.row, target.window, target.op == "FOLLOWED BY")
            self.stage1.remove(gone)
            self._queue_rows(changed.rows)
            self.rows[target.row].remove(target, self._forms)
            if not self.rows[target.row]:
                del self.rows[target.row]
            decrease(self._windows, target.reach)
            if target.op in NEGATED:
                decrease(self.absent, target.row)
            if len(target.streams) > 1:
                decrease(self._joined, target.streams)
            for stream in target.streams:
                decrease(self._readers, stream)
                if is_hidden(stream):
                    decrease(self._hidden_readers[stream], owner)
                    if not self._hidden_readers[stream]:
                        del self._hidden_readers[stream]
            for inner in list(self.inner(target)):
                self._detach(inner)

    def _attach(self, name: str, find: Callable[[], Hidden], since: int, add: Callable[[HiddenStream], None]) -> None:
        """Counts one more reader of a hidden stream. `add` registers the targets of a new one."""
        stream = self._hidden.get(name)
        if stream is None:
            stream = self._hidden[name] = HiddenStream(name, find, since, active_reader_count=1)
            add(stream)
        else:
            stream.since = min(stream.since, since)
            self._activate_stream(stream)
        stream.reader_count += 1

    def _detach(self, stream: HiddenStream) -> None:
        stream.reader_count -= 1
        if not stream.reader_count:
            del self._hidden[stream.stream]
            self._remove_targets(stream)

    def _queue_rows(self, rows: tuple[Row, ...]) -> None:
        """Queues rows for stage 2, except those that only paused queries need."""
        for row in rows:
            if row.id in self._active_targets:
                self._pending.setdefault(row.template, {})[row.id] = row

    def _table(self, number: int) -> TemplateTable:
        return TemplateTable(number, self.catalog.templates[number])
