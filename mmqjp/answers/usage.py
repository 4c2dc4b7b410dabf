"""Tracks what queries use of their quotas: per step in accounts, and from batch to batch in the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from join_stage.joiner import JoinEngine
from mmqjp.answers.charges import ChargeKey
from mmqjp.answers.form_account import FormAccount
from mmqjp.answers.quota import NEVER, Account, Bound, Quota, Usage, block_of
from mmqjp.documents.records import Record
from mmqjp.queries.forms import Form
from mmqjp.queries.lineage import publishers_behind
from mmqjp.queries.members import Members
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.tables.spent import NO_FORM, UsageKey, drop_spent, save_spent, spent

USAGE_COMPACTED_AFTER = 1_000
"""The table is compacted when it has at least this many superseded rows."""

_NOTHING = Usage()


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The arrival from which on a query gets nothing, and the bound that was exceeded there.

    `hidden` says that tuples of a hidden stream were counted.
    """

    arrival: int
    bound: Bound
    hidden: bool

    def reason(self, quota: Quota, document: str) -> str:
        """Returns the reason to show to users. `document` is the id of the document that arrived."""
        return self.bound.reason(quota, document, hidden=self.hidden)


Cutoffs = Mapping[int, Cutoff]
"""Cutoffs by qid."""


@dataclass(eq=False, slots=True)
class ReaderGroup:
    """Queries that read a hidden stream and see the same documents. They share one account for its tuples."""

    key: str
    account: Account
    new: bool
    queries: list[Subscription] = field(default_factory=list)
    cutoff: int = -NEVER
    """The arrival from which on none of them gets anything, for reasons other than their shared account."""

    def want(self, inputs: Iterable[Record], arrival: int) -> bool:
        """Returns whether a tuple of these documents is for them."""
        if arrival >= self.cutoff or arrival >= self.account.cutoff:
            return False
        return all(self.queries[0].sees(record.appeared) for record in inputs)


class Accounts:
    """The accounts of a step: one for each form, and one for each group of readers of a hidden stream."""

    def __init__(
        self,
        registry: Registry,
        quota: Quota,
        cutoffs: Cutoffs,
        before: Before,
        block: int,
        first_new: int = 0,
    ) -> None:
        """`cutoffs` are those found by earlier attempts at the step. `before` is the usage of the block so far. With
        `first_new`, the step is a backfill of the queries with at least this qid: only they are served, until
        `serve_all`."""
        self._registry, self._quota, self._cutoffs = registry, quota, cutoffs
        self._before, self._block, self._first_new, self._all = before, block, first_new, first_new == 0
        self._forms: dict[str, FormAccount] = {}
        self._readers: dict[HiddenStream, list[ReaderGroup]] = {}
        self._form_cutoffs: dict[str, dict[int, int]] = {}
        for qid, cutoff in cutoffs.items():
            self._form_cutoffs.setdefault(registry.subscriptions[qid].form_id, {})[qid] = cutoff.arrival

    def of(self, form: Form) -> FormAccount:
        """Returns the account of a form."""
        found = self._forms.get(form.id)
        if found is None:
            before, audience = self._before, form.audience
            own = self._own(form)
            found = self._forms[form.id] = FormAccount(
                self._quota, audience, self._block, before.forms.get(form.id, {}),
                before.totals.get(form.id, _NOTHING), own,
                self._form_cutoffs.get(form.id, {}),
            )  # fmt: skip
        return found

    def _own(self, form: Form) -> dict[int, Usage]:
        """Returns what is to be added for single members of a form, by qid."""
        own, known, queries = self._before.own, self._registry.subscriptions, form.audience.queries
        if len(own) < len(queries):
            queries = [known[qid] for qid, _ in own if qid in known and known[qid].form_id == form.id]
        return {query.qid: own[query.qid, query.begun] for query in queries if (query.qid, query.begun) in own}

    def members(self, forms: Iterable[str], batch: int) -> dict[str, Members]:
        """Returns the members of forms, by id, as the batch answers them. A form that nobody has any more is left
        out."""
        found = {id: self._registry.form(id) for id in forms}
        return {id: self.of(form).members(batch) for id, form in found.items() if form is not None}

    def readers(self, stream: HiddenStream) -> list[ReaderGroup]:
        """Returns the groups that read a hidden stream, directly or through other hidden streams."""
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
        """The least qid of the queries that are served."""
        return 0 if self._all else self._first_new

    def serve_all(self) -> None:
        """Serves all queries from now on."""
        self._all = True

    def is_limited(self) -> bool:
        """Returns whether any account has a cutoff."""
        readers = (one.account for found in self._readers.values() for one in found)
        return (
            bool(self._cutoffs)
            or any(account.is_limited for account in self._forms.values())
            or any(account.cutoff < NEVER for account in readers)
        )

    def exceeded(self) -> dict[Subscription, Cutoff]:
        """Returns the queries that exceeded their quota in the step, with their cutoffs.

        Leaves out a query that reads the outputs of another one whose cutoff comes first: without those outputs it may
        stay within its quota.
        """
        found: dict[Subscription, Cutoff] = {}

        def limit(query: Subscription, cutoff: Cutoff) -> None:
            known = found.get(query, self._cutoffs.get(query.qid))
            if known is None or cutoff.arrival < known.arrival:
                found[query] = cutoff

        for form in self._forms.values():
            for query, excess in form.exceeded().items():
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

    def spent(self, block: int) -> dict[UsageKey, Usage]:
        """Returns the usage of a block by key; in a backfill, that of the new queries only."""
        found: dict[UsageKey, Usage] = {}
        for form, account in self._forms.items():
            for key, usage in account.spent(block).items():
                if self._first_new:
                    key = key._replace(first_qid=max(key.first_qid, self._first_new))
                    known = found.get((form, *key), _NOTHING)
                    usage = Usage(known.outputs + usage.outputs, known.work + usage.work)
                found[form, *key] = usage
            for qid, usage in account.own(block).items():
                if not self._first_new or qid >= self._first_new:
                    found[_own_key(self._registry.subscriptions[qid])] = usage
        for readers in self._readers.values():
            found |= {
                (one.key, *NO_FORM): one.account.spent(block) for one in readers if not self._first_new or one.new
            }
        return {key: one for key, one in found.items() if one != _NOTHING}


def _own_key(query: Subscription) -> UsageKey:
    return str(query.qid), *NO_FORM[:-1], query.begun


def _is_active(query: Subscription) -> bool:
    return query.active


@dataclass(frozen=True, slots=True)
class Before:
    """The usage of a block before a step: of the members of each form, with its `totals`; of single queries, which
    is to be added to that, by qid and the batch in which they began; and of groups of readers."""

    forms: dict[str, dict[ChargeKey, Usage]] = field(default_factory=dict)
    totals: dict[str, Usage] = field(default_factory=dict)
    own: dict[tuple[int, int], Usage] = field(default_factory=dict)
    readers: dict[str, Usage] = field(default_factory=dict)

    def update(self, rows: Mapping[UsageKey, Usage]) -> None:
        """Adds or replaces usage by key."""
        for (owner, *key), usage in rows.items():
            charge = ChargeKey(*key)
            if charge.width >= 0:
                known, total = self.forms.setdefault(owner, {}), self.totals.get(owner, _NOTHING)
                before = known.get(charge, _NOTHING)
                more = usage.outputs - before.outputs, usage.work - before.work
                self.totals[owner] = Usage(total.outputs + more[0], total.work + more[1])
                known[charge] = usage
            elif owner.isdecimal():
                self.own[int(owner), charge.begun] = usage
            else:
                self.readers[owner] = usage


@dataclass(frozen=True, slots=True)
class _Saved:
    """What was written in a batch: the block, the number of rows since, and usage by key. With `anew`, that is all."""

    block: int
    written: int
    rows: dict[UsageKey, Usage]
    anew: bool


class StoredUsage:
    """The stored usage of the current block of arrivals. The caller begins and commits batches."""

    def __init__(self, store: JoinEngine, arrivals: int) -> None:
        """`arrivals` is the number of arrivals so far."""
        self._store = store
        self.block = block_of(max(arrivals - 1, 0))
        self._written = 0
        self._known: dict[UsageKey, Usage] | None = None
        self._before = Before()
        self._saved: _Saved | None = None

    def _rows(self) -> dict[UsageKey, Usage]:
        """Returns the usage of the current block, by key."""
        if self._known is None:
            self._known = {}
            for key, arrival, outputs, work in spent(self._store):
                self._written += 1
                if block_of(arrival) == self.block:
                    known = self._known.get(key, _NOTHING)
                    self._known[key] = Usage(known.outputs + outputs, known.work + work)
            self._before.update(self._known)
        return self._known

    def before(self) -> Before:
        """Returns the usage of the current block."""
        self._rows()
        return self._before

    def save(self, accounts: Accounts, arrival: int, batch: int) -> None:
        """Writes the usage of a step whose last arrival is `arrival`."""
        block = block_of(arrival)
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
        """Adopts what `save` wrote: the batch was committed."""
        saved, self._saved = self._saved, None
        if saved is None:
            return
        self.block, self._written = saved.block, saved.written
        if saved.anew or self._known is None:
            self._known, self._before = {}, Before()
        self._known.update(saved.rows)
        self._before.update(saved.rows)

    def rolled_back(self) -> None:
        """Discards what `save` wrote: the batch was rolled back."""
        self._saved = None
