"""What queries have spent of their bounds: kept from batch to batch for the block of arrivals that is under way, and
counted anew in each step in accounts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from join_stage.joiner import JoinEngine
from mmqjp.answers.allowance import BLOCK, NEVER, Account, Allowance, Spent
from mmqjp.documents.records import Record
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.tables.spent import drop_spent, save_spent, spent

SUPERSEDED = 1_000
"""So many rows, at the least, are written before those that count are written anew and the others dropped."""

_NOTHING = Spent()


@dataclass(frozen=True, slots=True)
class Cut:
    """From which arrival on a query gets nothing; who passed which bound there."""

    arrival: int
    account: Account
    hidden: bool

    def reason(self, allowance: Allowance, document: str) -> str:
        """What is to be said of it; `document` is that which arrived."""
        assert self.account.reason is not None, "an account that is cut knows why"
        return self.account.reason(allowance, self.hidden, document)


Cuts = Mapping[int, Cut]
"""By queries' numbers."""


@dataclass(eq=False, slots=True)
class Readers:
    """Queries that read a hidden stream and see the same documents, with one account for the tuples that they see."""

    key: str
    account: Account
    new: bool
    queries: list[Subscription] = field(default_factory=list)
    until: int = -NEVER
    """From which arrival on none of them gets anything, for other reasons than their account's."""

    def want(self, inputs: Iterable[Record], arrival: int) -> bool:
        """Whether a tuple of these documents is for them."""
        if arrival >= self.until or arrival >= self.account.cut:
            return False
        return all(self.queries[0].sees(record.appeared) for record in inputs)


class Accounts:
    """What is counted in a step, for each query and for the readers of each hidden stream."""

    def __init__(
        self,
        registry: Registry,
        allowance: Allowance,
        cuts: Cuts,
        before: Mapping[str, Spent],
        block: int,
        new: Collection[Subscription] | None = None,
    ) -> None:
        """`cuts` are those that are known, `before` is what was spent of the block before. With `new` queries it is a
        backfill: they are served alone, till all are."""
        self._registry, self._allowance, self._cuts, self._new = registry, allowance, cuts, new
        self._before, self._block, self._all = before, block, new is None
        self._of: dict[Subscription, Account] = {}
        self._readers: dict[HiddenStream, list[Readers]] = {}

    def of(self, query: Subscription) -> Account:
        """A query's account."""
        found = self._of.get(query)
        if found is None:
            found = self._of[query] = self._account(str(query.qid))
            if query.qid in self._cuts:
                found.cut = self._cuts[query.qid].arrival
        return found

    def readers(self, stream: HiddenStream) -> list[Readers]:
        """Those that read a hidden stream, also through others."""
        found = self._readers.get(stream)
        if found is None:
            alike: dict[tuple[str, bool], Readers] = {}
            for query in filter(_is_active, stream.readers(self._registry.readers)):
                key = f"{stream.stream} {query.since} {query.gaps}"
                new = self._new is not None and query in self._new
                readers = alike.get((key, new))
                if readers is None:
                    readers = alike[key, new] = Readers(key, self._account(key), new)
                readers.queries.append(query)
                cut = self._cuts.get(query.qid)
                readers.until = max(readers.until, NEVER if cut is None else cut.arrival)
            found = self._readers[stream] = list(alike.values())
        return found if self._all else [readers for readers in found if readers.new]

    def serve_all(self) -> None:
        """From now on all queries are served."""
        self._all = True

    def _account(self, key: str) -> Account:
        return Account(self._allowance, self._block, self._before.get(key, _NOTHING))

    def is_cut(self) -> bool:
        """Whether somebody is cut."""
        readers = (one.account for found in self._readers.values() for one in found)
        return bool(self._cuts) or any(account.cut < NEVER for account in (*self._of.values(), *readers))

    def passed(self) -> dict[Subscription, Cut]:
        """The queries that passed a bound in the step, and where for sure: not those that read what another publishes
        that is cut before, which may not pass it then."""
        found: dict[Subscription, Cut] = {}

        def cut(query: Subscription, account: Account, *, hidden: bool) -> None:
            known = found.get(query, self._cuts.get(query.qid))
            if account.cut < (NEVER if known is None else known.arrival):
                found[query] = Cut(account.cut, account, hidden)

        for query, account in self._of.items():
            cut(query, account, hidden=False)
        for readers in self._readers.values():
            for one in readers:
                for query in one.queries:
                    cut(query, one.account, hidden=True)
        return {
            query: own
            for query, own in found.items()
            if not any(p in found and found[p].arrival <= own.arrival for p in self._registry.publishers_behind(query))
        }

    def spent(self, block: int) -> dict[str, Spent]:
        """What was spent of a block in all, by those that were counted; in a backfill by the new ones."""
        found = {str(query.qid): a for query, a in self._of.items() if self._new is None or query in self._new}
        for readers in self._readers.values():
            found |= {one.key: one.account for one in readers if self._new is None or one.new}
        spent = {key: account.spent(block) for key, account in found.items()}
        return {key: one for key, one in spent.items() if one != _NOTHING}


def _is_active(query: Subscription) -> bool:
    return query.active


class Spending:
    """What was spent of the block of arrivals under way. Callers begin and commit batches."""

    def __init__(self, store: JoinEngine, arrivals: int) -> None:
        """`arrivals` is how many there were so far."""
        self._store = store
        self.block = max(arrivals - 1, 0) // BLOCK
        self._written = 0
        self._spent: dict[str, Spent] | None = None
        self._fresh: tuple[int, int, dict[str, Spent]] | None = None

    def before(self) -> Mapping[str, Spent]:
        """What was spent of the block, by keys of accounts."""
        if self._spent is None:
            self._spent = {}
            for key, arrival, outputs, work in spent(self._store):
                self._written += 1
                if arrival // BLOCK == self.block:
                    known = self._spent.get(key, _NOTHING)
                    self._spent[key] = Spent(known.outputs + outputs, known.work + work)
        return self._spent

    def save(self, accounts: Accounts, arrival: int, batch: int, anew: Collection[int]) -> None:
        """Writes what was spent in a step up to an arrival, the last there is; what the queries `anew` spent is
        forgotten: once they go on they may spend it all again."""
        block = arrival // BLOCK
        before = self.before() if block == self.block else {}
        now = accounts.spent(block)
        changed = {key: one for key, one in now.items() if one != before.get(key)}
        changed |= {str(qid): _NOTHING for qid in anew if str(qid) in before or str(qid) in changed}
        total = {**before, **changed}
        written = self._written + len(changed)
        if block != self.block or written > SUPERSEDED + 2 * len(total):
            drop_spent(self._store, batch)
            total = {key: one for key, one in total.items() if one != _NOTHING}
            changed, before, written = total, {}, len(total)
        rows = []
        for key, one in changed.items():
            known = before.get(key, _NOTHING)
            rows.append((key, arrival, one.outputs - known.outputs, one.work - known.work))
        save_spent(self._store, rows, batch)
        self._fresh = block, written, total

    def saved(self) -> None:
        """Takes note that what `save` wrote is committed."""
        if self._fresh is not None:
            self.block, self._written, self._spent = self._fresh
            self._fresh = None

    def dropped(self) -> None:
        """Takes note that what `save` wrote is not."""
        self._fresh = None
