"""Tracks what queries have used of their quotas from batch to batch, in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from join_stage.joiner import JoinEngine
from mmqjp.answers.charges import ChargeKey
from mmqjp.answers.quota import Usage, block_of
from mmqjp.queries.literals import PREFIX
from mmqjp.tables.spent import UsageKey, drop_spent, save_spent, spent

USAGE_COMPACTED_AFTER = 1_000
"""The table is compacted when it has at least this many superseded rows."""

_NOTHING = Usage()


class SpentInStep(Protocol):
    """The accounts of a step."""

    def spent(self, block: int) -> dict[UsageKey, Usage]:
        """Returns the usage of a block by key."""


@dataclass(slots=True)
class Before:
    """The usage of a block before a step: that of forms and groups of literals, with its `totals`; of single queries,
    which is to be added to that, by qid and the batch in which they began; and of groups of readers. `most_work` is the
    most of any form, and `literal_work` that of all groups of literals."""

    shared: dict[str, dict[ChargeKey, Usage]] = field(default_factory=dict)
    totals: dict[str, Usage] = field(default_factory=dict)
    own: dict[tuple[int, int], Usage] = field(default_factory=dict)
    readers: dict[str, Usage] = field(default_factory=dict)
    most_work: int = 0
    literal_work: int = 0

    def update(self, rows: Mapping[UsageKey, Usage]) -> None:
        """Adds or replaces usage by key."""
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

    def save(self, accounts: SpentInStep, arrival: int, batch: int) -> None:
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
