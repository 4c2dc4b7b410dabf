"""Tracks what queries use of their quotas: per step in accounts, and from batch to batch in the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from join_stage.joiner import JoinEngine
from mmqjp.answers.quota import BLOCK, NEVER, Account, Quota, Usage
from mmqjp.documents.records import Record
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.tables.spent import drop_spent, save_spent, spent

USAGE_COMPACTED_AFTER = 1_000
"""The table is compacted when it has at least this many superseded rows."""

_NOTHING = Usage()


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The arrival from which on a query gets nothing, and the account that exceeded its quota there.

    `hidden` says that the account is one for tuples of a hidden stream.
    """

    arrival: int
    account: Account
    hidden: bool

    def reason(self, quota: Quota, document: str) -> str:
        """Returns the reason to show to users. `document` is the id of the document that arrived."""
        assert self.account.reason is not None, "an account with a cutoff has a reason"
        return self.account.reason(quota, self.hidden, document)


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
    """The accounts of a step: one for each query, and one for each group of readers of a hidden stream."""

    def __init__(
        self,
        registry: Registry,
        quota: Quota,
        cutoffs: Cutoffs,
        before: Mapping[str, Usage],
        block: int,
        new: Collection[Subscription] | None = None,
    ) -> None:
        """`cutoffs` are those found by earlier attempts at the step. `before` is the usage of the block so far, by key
        of account. With `new`, the step is a backfill: only these queries are served, until `serve_all`."""
        self._registry, self._quota, self._cutoffs, self._new = registry, quota, cutoffs, new
        self._before, self._block, self._all = before, block, new is None
        self._of: dict[Subscription, Account] = {}
        self._readers: dict[HiddenStream, list[ReaderGroup]] = {}

    def of(self, query: Subscription) -> Account:
        """Returns the account of a query."""
        found = self._of.get(query)
        if found is None:
            found = self._of[query] = self._account(str(query.qid))
            if query.qid in self._cutoffs:
                found.cutoff = self._cutoffs[query.qid].arrival
        return found

    def readers(self, stream: HiddenStream) -> list[ReaderGroup]:
        """Returns the groups that read a hidden stream, directly or through other hidden streams."""
        found = self._readers.get(stream)
        if found is None:
            alike: dict[tuple[str, bool], ReaderGroup] = {}
            for query in filter(_is_active, stream.readers(self._registry.readers)):
                key = f"{stream.stream} {query.since} {query.gaps}"
                new = self._new is not None and query in self._new
                readers = alike.get((key, new))
                if readers is None:
                    readers = alike[key, new] = ReaderGroup(key, self._account(key), new)
                readers.queries.append(query)
                cutoff = self._cutoffs.get(query.qid)
                readers.cutoff = max(readers.cutoff, NEVER if cutoff is None else cutoff.arrival)
            found = self._readers[stream] = list(alike.values())
        return found if self._all else [readers for readers in found if readers.new]

    def serve_all(self) -> None:
        """Serves all queries from now on."""
        self._all = True

    def _account(self, key: str) -> Account:
        return Account(self._quota, self._block, self._before.get(key, _NOTHING))

    def is_limited(self) -> bool:
        """Returns whether any account has a cutoff."""
        readers = (one.account for found in self._readers.values() for one in found)
        return bool(self._cutoffs) or any(account.cutoff < NEVER for account in (*self._of.values(), *readers))

    def exceeded(self) -> dict[Subscription, Cutoff]:
        """Returns the queries that exceeded their quota in the step, with their cutoffs.

        Leaves out a query that reads the outputs of another one whose cutoff comes first: without those outputs it may
        stay within its quota.
        """
        found: dict[Subscription, Cutoff] = {}

        def limit(query: Subscription, account: Account, *, hidden: bool) -> None:
            known = found.get(query, self._cutoffs.get(query.qid))
            if account.cutoff < (NEVER if known is None else known.arrival):
                found[query] = Cutoff(account.cutoff, account, hidden)

        for query, account in self._of.items():
            limit(query, account, hidden=False)
        for readers in self._readers.values():
            for one in readers:
                for query in one.queries:
                    limit(query, one.account, hidden=True)
        return {
            query: own
            for query, own in found.items()
            if not any(p in found and found[p].arrival <= own.arrival for p in self._registry.publishers_behind(query))
        }

    def spent(self, block: int) -> dict[str, Usage]:
        """Returns the usage of a block by key of account; in a backfill, that of the new queries only."""
        found = {str(query.qid): a for query, a in self._of.items() if self._new is None or query in self._new}
        for readers in self._readers.values():
            found |= {one.key: one.account for one in readers if self._new is None or one.new}
        spent = {key: account.spent(block) for key, account in found.items()}
        return {key: one for key, one in spent.items() if one != _NOTHING}


def _is_active(query: Subscription) -> bool:
    return query.active


class StoredUsage:
    """The stored usage of the current block of arrivals. The caller begins and commits batches."""

    def __init__(self, store: JoinEngine, arrivals: int) -> None:
        """`arrivals` is the number of arrivals so far."""
        self._store = store
        self.block = max(arrivals - 1, 0) // BLOCK
        self._written = 0
        self._spent: dict[str, Usage] | None = None
        self._fresh: tuple[int, int, dict[str, Usage]] | None = None

    def before(self) -> Mapping[str, Usage]:
        """Returns the usage of the current block, by key of account."""
        if self._spent is None:
            self._spent = {}
            for key, arrival, outputs, work in spent(self._store):
                self._written += 1
                if arrival // BLOCK == self.block:
                    known = self._spent.get(key, _NOTHING)
                    self._spent[key] = Usage(known.outputs + outputs, known.work + work)
        return self._spent

    def save(self, accounts: Accounts, arrival: int, batch: int, anew: Collection[int]) -> None:
        """Writes the usage of a step whose last arrival is `arrival`. Resets the queries in `anew`, which are paused:
        once resumed, they may use their whole quota again."""
        block = arrival // BLOCK
        before = self.before() if block == self.block else {}
        now = accounts.spent(block)
        changed = {key: one for key, one in now.items() if one != before.get(key)}
        changed |= {str(qid): _NOTHING for qid in anew if str(qid) in before or str(qid) in changed}
        total = {**before, **changed}
        written = self._written + len(changed)
        if block != self.block or written > USAGE_COMPACTED_AFTER + 2 * len(total):
            drop_spent(self._store, batch)
            total = {key: one for key, one in total.items() if one != _NOTHING}
            changed, before, written = total, {}, len(total)
        rows = []
        for key, one in changed.items():
            known = before.get(key, _NOTHING)
            rows.append((key, arrival, one.outputs - known.outputs, one.work - known.work))
        save_spent(self._store, rows, batch)
        self._fresh = block, written, total

    def committed(self) -> None:
        """Adopts what `save` wrote: the batch was committed."""
        if self._fresh is not None:
            self.block, self._written, self._spent = self._fresh
            self._fresh = None

    def rolled_back(self) -> None:
        """Discards what `save` wrote: the batch was rolled back."""
        self._fresh = None
