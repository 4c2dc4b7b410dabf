"""Quota usage of queries: accounts within a step, and the stored usage that carries over between batches. A step has
one account per form, per group of literals, and per group of readers of a hidden stream; from these follow the queries
that exceeded their quota, and their cutoffs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from join_stage.protocol import JoinEngine
from mmqjp.answers.quota import (
    NEVER,
    Account,
    Book,
    ChargeKey,
    Quota,
    QuotaBound,
    SharedAccount,
    TieCounts,
    Usage,
    arrival_block,
)
from mmqjp.documents.record import Record
from mmqjp.queries.forms import PREFIX, Form, LiteralGroup
from mmqjp.queries.model import HiddenStream, Members, QuerySet, Subscription
from mmqjp.queries.registry import KnownQueries, publishers_behind
from mmqjp.tables.schema import NO_FORM, UsageKey, drop_spent, save_spent, spent

USAGE_COMPACTED_AFTER = 1_000
"""Number of superseded rows at which the table is compacted."""

_NOTHING = Usage()


class SpentInStep(Protocol):
    def spent(self, block: int) -> dict[UsageKey, Usage]: ...


@dataclass(slots=True)
class EarlierUsage:
    """A block's usage before a step: of forms and literal groups, with `totals`; of single queries, added to that, by
    qid and the batch in which they began; and of reader groups. `most_work` is the maximum over forms, `literal_work`
    that of all literal groups."""

    shared: dict[str, dict[ChargeKey, Usage]] = field(default_factory=dict)
    totals: dict[str, Usage] = field(default_factory=dict)
    own: dict[tuple[int, int], Usage] = field(default_factory=dict)
    readers: dict[str, Usage] = field(default_factory=dict)
    most_work: int = 0
    literal_work: int = 0

    def update(self, rows: Mapping[UsageKey, Usage]) -> None:
        for (owner, *key), usage in rows.items():
            charge = ChargeKey(*key)
            if charge.width >= 0:
                known, total = self.shared.setdefault(owner, {}), self.totals.get(owner, _NOTHING)
                before = known.get(charge, _NOTHING)
                more = usage.outputs - before.outputs, usage.work - before.work
                self.totals[owner] = total = Usage(total.outputs + more[0], total.work + more[1])
                known[charge] = usage
                if owner.startswith(PREFIX):
                    self.literal_work += more[1]
                else:
                    self.most_work = max(self.most_work, total.work)
            elif owner.isdecimal():
                self.own[int(owner), charge.begun] = usage
            else:
                self.readers[owner] = usage


@dataclass(frozen=True, slots=True)
class _Saved:
    block: int
    written: int
    rows: dict[UsageKey, Usage]
    anew: bool


class StoredUsage:
    def __init__(self, store: JoinEngine, arrivals: int) -> None:
        self._store = store
        self.block = arrival_block(max(arrivals - 1, 0))
        self._written = 0
        self._known: dict[UsageKey, Usage] | None = None
        self._before = EarlierUsage()
        self._saved: _Saved | None = None

    def _rows(self) -> dict[UsageKey, Usage]:
        if self._known is None:
            self._known = {}
            for key, arrival, outputs, work in spent(self._store):
                self._written += 1
                if arrival_block(arrival) == self.block:
                    known = self._known.get(key, _NOTHING)
                    self._known[key] = Usage(known.outputs + outputs, known.work + work)
            self._before.update(self._known)
        return self._known

    def before(self) -> EarlierUsage:
        self._rows()
        return self._before

    def save(self, accounts: SpentInStep, arrival: int, batch: int) -> None:
        block = arrival_block(arrival)
        before = self._rows() if block == self.block else {}
        now = accounts.spent(block)
        changed = {key: one for key, one in now.items() if one != before.get(key)}
        written, rewritten = self._written + len(changed), block != self.block
        if not rewritten and written > USAGE_COMPACTED_AFTER:
            rewritten = written > USAGE_COMPACTED_AFTER + 2 * (len(before) + len(changed))
        if rewritten:
            drop_spent(self._store, batch)
            changed = {key: one for key, one in {**before, **changed}.items() if one != _NOTHING}
            before, written = {}, len(changed)
        rows = []
        for key, one in changed.items():
            known = before.get(key, _NOTHING)
            rows.append((key, arrival, one.outputs - known.outputs, one.work - known.work))
        save_spent(self._store, rows, batch)
        self._saved = _Saved(block, written, changed, rewritten)

    def committed(self) -> None:
        saved, self._saved = self._saved, None
        if saved is None:
            return
        self.block, self._written = saved.block, saved.written
        if saved.anew or self._known is None:
            self._known, self._before = {}, EarlierUsage()
        self._known.update(saved.rows)
        self._before.update(saved.rows)

    def rolled_back(self) -> None:
        self._saved = None


NOTHING_LOOKED_AT: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Arrival from which a query gets nothing, and the bound exceeded. `hidden`: tuples of a hidden stream were
    counted."""

    arrival: int
    bound: QuotaBound
    hidden: bool

    def reason(self, quota: Quota, document: str) -> str:
        return self.bound.reason(quota, document, hidden=self.hidden)


Cutoffs = Mapping[int, Cutoff]


@dataclass(eq=False, slots=True)
class ReaderGroup:
    """Readers of a hidden stream that see the same documents and share one account for its tuples."""

    key: str
    account: Account
    new: bool
    queries: list[Subscription] = field(default_factory=list)
    cutoff: int = -NEVER
    """Arrival from which no reader gets anything, for reasons other than the shared account."""

    def want(self, inputs: Iterable[Record], arrival: int) -> bool:
        """Whether any reader gets a tuple of these documents."""
        if arrival >= self.cutoff or arrival >= self.account.cutoff:
            return False
        return all(self.queries[0].sees(record.appeared) for record in inputs)


class Accounts:
    """A step's accounts: one per form, per group of literals whose queries try the same bindings, and per group of
    readers of a hidden stream."""

    def __init__(
        self,
        registry: KnownQueries,
        quota: Quota,
        cutoffs: Cutoffs,
        before: EarlierUsage,
        block: int,
        first_new: int = 0,
        looked: Mapping[str, int] = NOTHING_LOOKED_AT,
    ) -> None:
        """`cutoffs` come from earlier attempts at the step; `before` is the block's usage so far. With `first_new`, the
        step is a backfill: only queries from this qid on are served, until `serve_all`. `looked` counts equal-time
        pairs examined before, by owner."""
        self._registry, self._quota, self._cutoffs = registry, quota, cutoffs
        self._before, self._block, self._first_new, self._all = before, block, first_new, first_new == 0
        self._looked = looked
        self._books: dict[str, Book] = {}
        self._forms: dict[str, SharedAccount] = {}
        self._literals: dict[LiteralGroup, SharedAccount] = {}
        self._readers: dict[HiddenStream, list[ReaderGroup]] = {}
        self._form_cutoffs: dict[str, dict[int, int]] = {}
        for qid, cutoff in cutoffs.items():
            self._form_cutoffs.setdefault(registry.subscriptions[qid].form_id, {})[qid] = cutoff.arrival

    def of(self, form: Form) -> SharedAccount:
        found = self._forms.get(form.id)
        if found is None:
            others = [(self._book(id), times) for id, times in form.shared.items()]
            cutoffs = self._form_cutoffs.get(form.id, {})
            found = self._forms[form.id] = SharedAccount(
                self._quota, form.audience, self._block, self._book(form.id), others, self._own(form), cutoffs
            )
        return found

    def of_literals(self, group: LiteralGroup) -> SharedAccount:
        """Returns the account of a literal group, charged for bindings tried; forms are charged for the results."""
        found = self._literals.get(group)
        if found is None:
            cutoffs = {qid: cutoff.arrival for qid, cutoff in self._cutoffs.items()}
            book, queries = self._book(group.queries.id), group.queries
            found = self._literals[group] = SharedAccount(
                self._quota, queries.audience, self._block, book, (), self._own(queries), cutoffs
            )
        return found

    def _book(self, id: str) -> Book:
        found = self._books.get(id)
        if found is None:
            before = self._before
            found = self._books[id] = Book(
                before.shared.get(id, {}), before.totals.get(id, _NOTHING), self._looked.get(id, 0)
            )
        return found

    def _own(self, among: QuerySet) -> dict[int, Usage]:
        own, known, queries = self._before.own, self._registry.subscriptions, among.audience.queries
        if len(own) < len(queries):
            queries = [known[qid] for qid, _ in own if qid in known and known[qid] in among]
        return {query.qid: own[query.qid, query.begun] for query in queries if (query.qid, query.begun) in own}

    def members(self, forms: Iterable[str], batch: int) -> dict[str, Members]:
        """Returns the members of forms, by id, as the batch answers them; omits forms without queries."""
        found = {id: self._registry.form(id) for id in forms}
        return {id: self.of(form).members(batch) for id, form in found.items() if form is not None}

    def charges(self) -> Iterator[tuple[str, Book]]:
        return ((id, book) for id, book in self._books.items() if book.step or book.ties or book.looking.is_used)

    def ties(self) -> dict[str, TieCounts]:
        found = {}
        for id, book in list(self._books.items()):
            form = self._registry.form(id)
            bounds = [book.looking, *(self._book(shared).looking for shared in (form.shared if form else ()))]
            if book.ties or book.looking.is_used or any(one.is_used for one in bounds):
                found[id] = TieCounts.of(book, bounds)
        return found

    def charged_literals(self) -> Iterator[LiteralGroup]:
        return iter(self._literals)

    def add_charges(self, charged: Iterable[tuple[str, Book]], literals: Iterable[LiteralGroup]) -> None:
        """Merges charges made elsewhere to forms and literal groups."""
        for group in literals:
            self.of_literals(group)
        for id, book in charged:
            if (form := self._registry.form(id)) is not None:
                self.of(form)
            self._book(id).add(book)

    def readers(self, stream: HiddenStream) -> list[ReaderGroup]:
        """Returns the groups that read a hidden stream, directly or through others."""
        found = self._readers.get(stream)
        if found is None:
            alike: dict[tuple[str, bool], ReaderGroup] = {}
            for query in filter(_is_active, stream.readers(self._registry.readers)):
                key = f"{stream.stream} {query.since} {query.gaps}"
                new = self._is_new(query)
                readers = alike.get((key, new))
                if readers is None:
                    account = Account(self._quota, self._block, self._before.readers.get(key, _NOTHING))
                    readers = alike[key, new] = ReaderGroup(key, account, new)
                readers.queries.append(query)
                cutoff = self._cutoffs.get(query.qid)
                readers.cutoff = max(readers.cutoff, NEVER if cutoff is None else cutoff.arrival)
            found = self._readers[stream] = list(alike.values())
        return found if self._all else [readers for readers in found if readers.new]

    def _is_new(self, query: Subscription) -> bool:
        return 0 < self._first_new <= query.qid

    @property
    def first_qid(self) -> int:
        return 0 if self._all else self._first_new

    def serve_all(self) -> None:
        self._all = True

    def is_limited(self) -> bool:
        readers = (one.account for found in self._readers.values() for one in found)
        return (
            bool(self._cutoffs)
            or any(account.is_limited for account in self._shared())
            or any(account.cutoff < NEVER for account in readers)
        )

    def exceeded(self) -> dict[Subscription, Cutoff]:
        """Returns the queries over their quota in the step, with cutoffs. Omits a query that reads one whose cutoff
        comes first: without those outputs it may stay within its quota."""
        found: dict[Subscription, Cutoff] = {}

        def limit(query: Subscription, cutoff: Cutoff) -> None:
            known = found.get(query, self._cutoffs.get(query.qid))
            if known is None or cutoff.arrival < known.arrival:
                found[query] = cutoff

        for form in self._in_doubt():
            self.of(form)
        for account in self._shared():
            for query, excess in account.exceeded().items():
                limit(query, Cutoff(excess.arrival, excess.bound, hidden=False))
        for readers in self._readers.values():
            for one in readers:
                if one.account.cutoff < NEVER:
                    for query in one.queries:
                        limit(query, Cutoff(one.account.cutoff, one.account.bound, hidden=True))
        return {
            query: own
            for query, own in found.items()
            if not any(p in found and found[p].arrival <= own.arrival for p in publishers_behind(self._registry, query))
        }

    def _shared(self) -> Iterator[SharedAccount]:
        yield from self._forms.values()
        yield from self._literals.values()

    def _in_doubt(self) -> list[Form]:
        """Returns forms without an account whose members may exceed their quota by charges to literal groups alone."""
        step = sum(self._book(group.queries.id).work for group in self._literals)
        in_block = self._before.literal_work + step
        own = self._before.most_work + self._most_own
        return [
            form
            for group in self._literals
            if self._is_over(group.most_times * step, own + group.most_times * in_block)
            for form in group.forms()
            if self._is_over(*self._work_of(form))
        ]

    def _work_of(self, form: Form) -> tuple[int, int]:
        """Upper bound of the work, in the step and in the block, of a member of a form without an account."""
        books = [(self._book(id), times) for id, times in form.shared.items()]
        step = sum(times * book.work for book, times in books)
        before = self._book(form.id).total.work + sum(times * book.total.work for book, times in books)
        return step, before + step + self._most_own

    @property
    def _most_own(self) -> int:
        return max((used.work for used in self._before.own.values()), default=0)

    def _is_over(self, step: int, in_block: int) -> bool:
        return step > self._quota.most_work or in_block > self._quota.most_work_of_block

    def spent(self, block: int) -> dict[UsageKey, Usage]:
        """Returns a block's usage by key; in a backfill, only the new queries'."""
        found: dict[UsageKey, Usage] = {}
        shared = {**self._forms, **{group.queries.id: account for group, account in self._literals.items()}}
        for id, account in shared.items():
            for key, usage in account.spent(block).items():
                if self._first_new:
                    key = key._replace(first_qid=max(key.first_qid, self._first_new))
                    known = found.get((id, *key), _NOTHING)
                    usage = Usage(known.outputs + usage.outputs, known.work + usage.work)
                found[id, *key] = usage
        found |= self._spent_alone(block)
        for readers in self._readers.values():
            found |= {
                (one.key, *NO_FORM): one.account.spent(block) for one in readers if not self._first_new or one.new
            }
        return {key: one for key, one in found.items() if one != _NOTHING}

    def _spent_alone(self, block: int) -> dict[UsageKey, Usage]:
        found: dict[UsageKey, Usage] = {}
        for id, book in self._books.items():
            for (arrival, qid), (outputs, work) in book.less.items():
                if arrival_block(arrival) == block and (not self._first_new or qid >= self._first_new):
                    query = self._registry.subscriptions[qid]
                    before = self._before.own.get((qid, query.begun), _NOTHING) if block == self._block else _NOTHING
                    known = found.get(key := _own_key(query), before)
                    times = self._times(query, id)
                    found[key] = Usage(known.outputs - times * outputs, known.work - times * work)
        return found

    def _times(self, query: Subscription, id: str) -> int:
        form = self._registry.form(query.form_id)
        return 1 if form is None or form.id == id else form.shared[id]


def _own_key(query: Subscription) -> UsageKey:
    return str(query.qid), *NO_FORM[:-1], query.begun


def _is_active(query: Subscription) -> bool:
    return query.active
