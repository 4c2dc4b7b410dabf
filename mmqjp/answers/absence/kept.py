"""What the inputs of absences have matched: kept while somebody needs it, and read again from stored documents where an
engine has not seen them or has let go of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from join_stage.joiner import JoinEngine
from mmqjp.answers.absence.decided import Decided
from mmqjp.answers.absence.partners import wanted
from mmqjp.answers.absence.plans import Group, LeftPlan, Plans, RightPlan
from mmqjp.answers.absence.replay import replayed
from mmqjp.answers.absence.sightings import Sighting, Sightings
from mmqjp.answers.absence.times import decided_before, needed_from, partners_from
from mmqjp.answers.absence.waiting import Entry, Waiting
from mmqjp.answers.absence.words_in_order import WORDS, WordsInOrder
from mmqjp.answers.joint import JointBindings
from mmqjp.answers.match import Match
from mmqjp.answers.operators import value_of
from mmqjp.answers.quota import NEVER, OutOfSteps, Steps
from mmqjp.documents.record import Record
from mmqjp.documents.records import Records
from mmqjp.documents.watermarks import EARLIEST, LATEST, Watermarks
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry
from mmqjp.tables.ledger import Ledger
from templates.catalog import INFINITE
from xscl.algebra.normal import Term

WORTH_DROPPING = 64
"""Sightings are dropped when this part of the window can go."""


class KeptMatches:
    """The matches of both inputs of all absences. `plans` are those of the absences, and `order` is that of the words
    by which texts are found."""

    def __init__(
        self, store: JoinEngine, registry: Registry, records: Records, watermarks: Watermarks, ledger: Ledger
    ) -> None:
        self._store, self._registry, self._records, self._watermarks = store, registry, records, watermarks
        self._ledger, self._opened_at = ledger, ledger.next_docid
        """The number of the first document since the engine was opened."""
        self.order = WordsInOrder(ledger.setting(WORDS))
        self.plans = Plans(registry)
        self._waiting: dict[int, Waiting] = {}
        # What the running batch has changed.
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[tuple[Sightings, int, tuple[int, ...]], int] = {}

    def queries_of(self, plan: LeftPlan) -> Iterable[Subscription]:
        """Returns the queries that get what an absence gives."""
        form = plan.part.form
        return plan.owner.readers(self._registry.readers) if form is None else form

    # ------------------------------------------------------------ adding

    def wait(self, row: int, entry: Entry) -> None:
        """Adds a match of a left input, of a row of R_T."""
        self._keep(self.waiting(row).add(entry))

    def see(self, right: RightPlan, match: Match, record: Record, steps: Steps) -> int:
        """Adds a match of a right input, and returns the steps that this takes. Absences that share the sightings take
        as many, but it is done once."""
        key = right.sightings, match.docid1, tuple(match.nodes)
        known = self._seen.get(key)
        if known is None:
            allowed = steps.left
            with suppress(OutOfSteps):
                self._add_sightings(right, match, record, steps)
            known = self._seen[key] = allowed - steps.left
        return known

    def _add_sightings(self, right: RightPlan, match: Match, record: Record, steps: Steps) -> None:
        steps.take()
        for binding in JointBindings().of(right.part, (record,), match.nodes, steps):
            values = [value_of(self._records, binding, Term(var)) for var in right.kept]
            bound = tuple((value.record.docid, value.node) for value in values)
            found = wanted(self._records, self.order, binding, right.terms, steps)
            if found.words:
                self.order.see(found.words)
            one = Sighting(record.t0, record.t1, record.docid, min(record.appeared), bound, found.words)
            for key in found.keys:
                self._keep(right.sightings.add(key, one))

    def _keep(self, undo: Callable[[], None] | None) -> None:
        if undo is not None:
            self._undo.append(undo)

    # ------------------------------------------------------------ what waits

    def waiting(self, row: int) -> Waiting:
        """Returns the matches of the left input of a row of R_T, as far as they are there."""
        found = self._waiting.get(row)
        if found is None:
            found = self._waiting[row] = Waiting()
            found.is_whole = self._opened_at == 0
        return found

    def due(self, group: Group, watermark: int, decided: Decided, *, again: bool = False) -> dict[Entry, int]:
        """Returns the entries of a group that a watermark decides, in the order of time, each with the number of the
        query before which all were told. Leaves out what all were told who were there, unless it is decided `again`."""
        row, op, window, stream = group
        before = decided_before(op, window, watermark)
        if before <= EARLIEST:
            return {}
        self.load(row, decided)
        waiting = self.waiting(row)
        low = EARLIEST if again else decided_before(op, window, decided.least(stream))
        entries = [entry for entry in sorted(waiting.fresh) if entry.t0 < min(low, before)]
        entries += waiting.between(low, before)
        return {entry: decided.told_before(stream, op, window, entry) for entry in entries}

    def load(self, row: int, decided: Decided) -> None:
        """Loads what waits since before the engine was opened."""
        if self.waiting(row).is_whole:
            return
        rows, low = [], LATEST
        for one, op, window, stream in self.plans.groups:
            if not self.waiting(one).is_whole:
                rows.append(one)
                low = min(low, decided_before(op, window, decided.least(stream)))
        loaded = [self.waiting(one) for one in rows]

        def forget() -> None:
            for waiting in loaded:
                waiting.is_whole = False

        self._undo.append(forget)
        for waiting in loaded:
            waiting.is_whole = True
        for match in self._replayed(set(rows), low):
            self.wait(match.row, Entry(self._records[match.docid1].t0, match.docid1, tuple(match.nodes)))

    def _replayed(self, rows: Collection[int], low: int) -> Iterable[Match]:
        return replayed(self._store, self._registry, self._records, rows, low)

    # ------------------------------------------------------------ what was seen

    def recall(self, plan: LeftPlan, entries: Iterable[Entry]) -> None:
        """Loads the sightings that some entries need and that are not there."""
        records = [self._records[entry.docid] for entry in entries]
        need = min(partners_from(plan.op, plan.window, record.t1) for record in records)
        sees_after = min((query.sees_after for query in self.queries_of(plan) if query.active), default=LATEST)
        for right in plan.rights:
            sightings = right.sightings
            is_earlier = sees_after < self._opened_at - 1 and need < sightings.earlier_from
            if is_earlier or need < sightings.cut:
                self._reload(right, min(need, sightings.earlier_from))

    def _reload(self, right: RightPlan, low: int) -> None:
        sightings = right.sightings
        cut, earlier = sightings.cut, sightings.earlier_from

        def restore() -> None:
            sightings.cut, sightings.earlier_from = cut, earlier

        self._undo.append(restore)
        steps = Steps(NEVER)
        for match in self._replayed({right.row}, low):
            self.see(right, match, self._records[match.docid1], steps)
        sightings.cut, sightings.earlier_from = min(cut, low), min(earlier, low)

    # ------------------------------------------------------------ batches

    def save(self) -> None:
        """Writes, within the batch, the order of words, if it is learnt now."""
        if (setting := self.order.new_setting()) is not None:
            self._ledger.save_settings({WORDS: setting})

    def committed(self, decided: Decided, now: Mapping[str, int]) -> None:
        """Drops, after a batch, what nobody asks for any more. `now` has the watermarks of right streams."""
        if self.order.finish_batch(committed=True):
            for sightings, _ in self.plans.sightings():
                sightings.rekey(self.order.keys_of)
        by_row: dict[int, list[Group]] = {}
        for group in self.plans.groups:
            by_row.setdefault(group[0], []).append(group)
        for row, waiting in list(self._waiting.items()):
            if row not in by_row:
                del self._waiting[row]
                continue
            waiting.fresh.clear()
            if any(now.get(stream, EARLIEST) >= LATEST for *_, stream in by_row[row]):
                waiting.drop_before(LATEST, lambda entry: False)
            else:
                waiting.drop_before(*_needed(by_row[row], decided))
        for sightings, plans in self.plans.sightings():
            cut = min((self._cut(plan, now) for plan in plans), default=EARLIEST)
            widest = max(plan.window for plan in plans)
            if cut > EARLIEST and widest < INFINITE and cut > sightings.cut + widest // WORTH_DROPPING:
                sightings.drop_before(cut)
        self._undo.clear()
        self._seen.clear()

    def rolled_back(self) -> None:
        """Forgets what the batch has added."""
        self.order.finish_batch(committed=False)
        for undo in reversed(self._undo):
            undo()
        for waiting in self._waiting.values():
            waiting.fresh.clear()
        self._undo.clear()
        self._seen.clear()

    def _cut(self, plan: LeftPlan, now: Mapping[str, int]) -> int:
        right = now.get(plan.right_stream, EARLIEST)
        left = self._watermarks.of(self._registry.sources(plan.left_stream))
        return EARLIEST if right >= LATEST else needed_from(plan.op, plan.window, left, right)


def _needed(groups: Sequence[Group], decided: Decided) -> tuple[int, Callable[[Entry], bool]]:
    """Returns the time before which all entries may be decided for these groups, and whether one is not."""
    low = min(decided_before(op, window, decided.least(stream)) for _, op, window, stream in groups)

    def is_needed(entry: Entry) -> bool:
        return not all(decided.told_before(stream, op, window, entry) for _, op, window, stream in groups)

    return low, is_needed
