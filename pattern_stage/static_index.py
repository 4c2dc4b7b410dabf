"""The static index of a stream of events: which rows of operators an event may concern, by its values alone.

Clauses are grouped by shape. Rows with equalities are found by hashing, others through their tightest bound; only
these candidates are then tested for the rest, for many events at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from common.distinct import distinct
from pattern_stage.clauses import Clauses
from pattern_stage.columns import Column, Columns, Floats, Ints, Mask
from pattern_stage.predicates import Pairs, compile_condition, compile_value, kind_of, single_events
from pattern_stage.static_runs import Ranges, Run, sorted_run
from pattern_stage.static_shape import ClauseForm, Rows, as_key, form_of, joined_rows, rows_of
from pattern_stage.values import Texts
from xscl.algebra.events import AllOf, Schema, Value

_BLOCK = 1 << 18
"""How many candidates are tested at once."""

_SAMPLE = 256
"""How many events tell which bounds keep out most."""

_MANY_REMOVED = 1000
"""With so many more targets removed than there are, what is left of them is cleared away."""

_TARGET_BITS = 32


class StaticIndex:
    """Targets with clauses of atoms about a single event. An event hits a target if one of its clauses holds.

    Targets are numbers that are not negative, given densely. Adding and removing one costs what the row does, but for
    merging, which is put off until there is as much new as old. Without `hashed`, nothing is looked up: each event is
    tested for each row.
    """

    def __init__(self, schema: Schema, texts: Texts, *, hashed: bool = True) -> None:
        self._schema, self._texts, self._hashed = schema, texts, hashed
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._keys: dict[Value, Callable[[Pairs], Column]] = {}
        self._numbers: dict[Value, tuple[int, Callable[[Pairs], Column]]] = {}
        self._sample: Floats = np.zeros((0, 0))
        # Rows know targets by entries, which are not used again: a target that is removed and added is another entry.
        self._entry_of = np.full(0, -1, np.int64)
        self._target_of = np.zeros(0, np.int64)
        self._entries = self._removed = 0

    def __len__(self) -> int:
        """How many targets there are."""
        return self._entries - self._removed

    # ------------------------------------------------------------ what is indexed

    def add(self, targets: Ints, clauses: Clauses, parameters: tuple[Column, ...]) -> None:
        """Adds clauses, of which any must hold, for targets with these parameters. A target may be given again, for
        further clauses."""
        entries = self._entries_of(targets)
        for clause in clauses:
            form = form_of(clause)
            places = [self._place_of(limit.operand) * 2 + (not limit.least) for limit in form.limits]
            rows = rows_of(form, entries, places, parameters, self._texts)
            if not len(rows):
                continue
            identity = (form.keys, len(form.limits), form.common, form.varying)
            shape = self._shapes.get(identity)
            if shape is None:
                shape = self._shapes[identity] = _Shape(form, self._schema, self._texts)
                for key in form.keys:
                    self._keys.setdefault(key, compile_value(key, self._schema, None, self._texts))
            shape.fresh.append(rows)

    def settle(self) -> None:
        """Sorts what was added, so that the events that come next need not wait for it. What is sorted by a sample of
        events waits for them."""
        for shape in self._shapes.values():
            if shape.fresh and shape.form.keys:
                shape.runs_over(self._sample, self._target_of, self._hashed)

    def remove(self, targets: Ints) -> None:
        """Removes targets with all their clauses. Those that are not there are passed over."""
        targets = distinct(targets[targets < len(self._entry_of)])
        entries = self._entry_of[targets]
        entries = entries[entries >= 0]
        self._entry_of[targets] = -1
        self._target_of[entries] = -1
        self._removed += len(entries)
        if self._removed > len(self) + _MANY_REMOVED:
            self._purge()

    def used(self) -> Iterator[Ints]:
        """Yields the codes of texts that targets have, which `Texts.keep` must not forget. Rows of targets that were
        removed may have others: nothing is found through them."""
        for shape in self._shapes.values():
            for every in shape.all_rows():
                rows = every.take(self._target_of[every.entries] >= 0)
                for key, codes in zip(shape.form.keys, rows.keys, strict=True):
                    if kind_of(key) == "string":
                        yield codes
                for source, column in zip(shape.form.sources, rows.parameters, strict=True):
                    if source.kind == "string":
                        yield column  # type: ignore[misc]  # codes

    # ------------------------------------------------------------ what events hit

    def hits(self, events: Columns, active: Mask | None = None) -> tuple[Ints, Ints]:
        """Returns the places of events and the targets that they hit, distinct, ordered by place and target.

        With `active`, a flag for each target, only those that are active.
        """
        found = [np.zeros(0, np.int64)]
        if len(events) and self._shapes:
            probe = self._probe(events)
            self._sample = probe.numbers[:_SAMPLE]
            for shape in self._shapes.values():
                found.extend(self._hits_of(shape, probe, active))
        hits = np.concatenate(found)
        hits.sort()
        repeated = hits[1:] == hits[:-1]
        if repeated.any():
            hits = hits[np.append(True, ~repeated)]
        return hits >> _TARGET_BITS, hits & ((1 << _TARGET_BITS) - 1)

    def _hits_of(self, shape: _Shape, probe: _Probe, active: Mask | None) -> Iterator[Ints]:
        chosen = np.arange(len(probe.events))
        if shape.common is not None:
            chosen = np.flatnonzero(shape.common(single_events(probe.events, chosen, chosen, ())))
        keys = [probe.keys[key] for key in shape.form.keys]
        for run in shape.runs_over(self._sample, self._target_of, self._hashed):
            for at, rows in _blocks(run.candidates(keys, probe.numbers, chosen)):
                yield self._tested(shape, run, probe, active, at, rows)

    def _tested(self, shape: _Shape, run: Run, probe: _Probe, active: Mask | None, at: Ints, rows: Ints) -> Ints:
        """The hits among candidates: events, and rows of a run."""
        targets = self._target_of[run.rows.entries[rows]]
        if active is not None:
            kept = np.flatnonzero(active[targets] & (targets >= 0))
            at, rows, targets = at[kept], rows[kept], targets[kept]
        if not run.keys_tested:
            for key, stored in zip(shape.form.keys, run.rows.keys, strict=True):
                kept = np.flatnonzero(probe.keys[key][at] == stored[rows])
                at, rows, targets = at[kept], rows[kept], targets[kept]
        width = probe.numbers.shape[1]
        flat = probe.numbers.reshape(-1)
        for columns, bounds in list(zip(run.rows.columns, run.rows.bounds, strict=True))[run.bounds_tested :]:
            kept = np.flatnonzero(flat[at * width + columns[rows]] >= bounds[rows])
            at, rows, targets = at[kept], rows[kept], targets[kept]
        if active is None:
            kept = np.flatnonzero(targets >= 0)
            at, rows, targets = at[kept], rows[kept], targets[kept]
        if shape.varying is not None and len(at):
            kept = np.flatnonzero(shape.varying(single_events(probe.events, at, rows, run.rows.parameters)))
            at, targets = at[kept], targets[kept]
        return at << _TARGET_BITS | targets

    # ------------------------------------------------------------ upkeep

    def _probe(self, events: Columns) -> _Probe:
        at = np.arange(len(events))
        singles = single_events(events, at, at, ())
        numbers = np.empty((len(events), 2 * len(self._numbers)))
        for place, number in self._numbers.values():
            numbers[:, 2 * place] = number(singles)
            np.negative(numbers[:, 2 * place], out=numbers[:, 2 * place + 1])
        return _Probe(events, {key: as_key(values(singles)) for key, values in self._keys.items()}, numbers)

    def _place_of(self, operand: Value) -> int:
        found = self._numbers.get(operand)
        if found is None:
            found = len(self._numbers), compile_value(operand, self._schema, None, self._texts)
            self._numbers[operand] = found
        return found[0]

    def _entries_of(self, targets: Ints) -> Ints:
        """The entries of targets; new ones for those that have none."""
        self._entry_of = _grown(self._entry_of, int(targets.max(initial=-1)) + 1)
        new = distinct(targets[self._entry_of[targets] < 0])
        end = self._entries + len(new)
        self._target_of = _grown(self._target_of, end)
        self._entry_of[new] = np.arange(self._entries, end)
        self._target_of[self._entries : end] = new
        self._entries = end
        return self._entry_of[targets]

    def _purge(self) -> None:
        """Forgets what has been removed, and numbers the entries anew."""
        alive = self._target_of[: self._entries] >= 0
        number = np.cumsum(alive) - 1
        self._target_of = self._target_of[: self._entries][alive]
        self._entry_of[self._target_of] = np.arange(len(self._target_of))
        self._entries, self._removed = len(self._target_of), 0
        for identity, shape in list(self._shapes.items()):
            if not shape.purge(alive, number):
                del self._shapes[identity]
        compared = [column for shape in self._shapes.values() for rows in shape.fresh for column in rows.columns]
        places = distinct(np.concatenate([*compared, np.zeros(0, np.int64)]) >> 1)
        for column in compared:
            column[:] = np.searchsorted(places, column >> 1) << 1 | column & 1
        operands = [(operand, compute) for operand, (_, compute) in self._numbers.items()]
        self._numbers = {operands[old][0]: (new, operands[old][1]) for new, old in enumerate(places.tolist())}
        self._sample = np.zeros((0, 0))
        keys = {key for shape in self._shapes.values() for key in shape.form.keys}
        self._keys = {key: values for key, values in self._keys.items() if key in keys}


@dataclass(frozen=True, slots=True)
class _Probe:
    """Events as the index sees them: what is hashed, and what is compared, each value beside its negative."""

    events: Columns
    keys: dict[Value, Ints]
    numbers: Floats


@dataclass
class _Shape:
    """The rows of clauses that differ in constants and parameters alone: those that are new, and sorted runs, each at
    least twice as long as the next."""

    form: ClauseForm
    schema: Schema
    texts: Texts
    fresh: list[Rows] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.common = self._compiled(self.form.common)
        self.varying = self._compiled(self.form.varying)

    def runs_over(self, sample: Floats, target_of: Ints, hashed: bool) -> list[Run]:
        """Returns the runs of all rows, after what is new has been sorted. What is merged loses removed rows."""
        if self.fresh:
            rows = joined_rows(self.fresh)
            self.fresh.clear()
            while self.runs and len(self.runs[-1].rows) < 2 * len(rows):
                rows = joined_rows([self.runs.pop().rows, rows])
                rows = rows.take(target_of[rows.entries] >= 0)
            if len(rows):
                self.runs.append(sorted_run(rows, sample) if hashed else Run(rows))
        return self.runs

    def all_rows(self) -> list[Rows]:
        """Returns all rows."""
        return [run.rows for run in self.runs] + self.fresh

    def purge(self, alive: Mask, number: Ints) -> bool:
        """Keeps the rows of entries that are alive, which have new numbers. Returns whether there are any."""
        rows = joined_rows(self.all_rows())
        rows = rows.take(alive[rows.entries])
        self.runs.clear()
        self.fresh = [Rows(number[rows.entries], rows.keys, rows.columns, rows.bounds, rows.parameters)]
        return len(rows) > 0

    def _compiled(self, atoms: tuple[object, ...]) -> Callable[[Pairs], Mask] | None:
        if not atoms:
            return None
        return compile_condition(AllOf(atoms), self.schema, None, self.texts)  # type: ignore[arg-type]  # atoms


def _blocks(ranges: Ranges) -> Iterator[tuple[Ints, Ints]]:
    """Yields the places of events and the rows of ranges, some ranges at a time."""
    at, begins, counts = ranges
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(at):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _BLOCK, side="right")))
        here = counts[begin:end]
        rows = np.arange(int(ends[end - 1]) - done)
        rows += np.repeat(begins[begin:end] - (ends[begin:end] - here - done), here)
        yield np.repeat(at[begin:end], here), rows
        begin = end


def _grown(values: Ints, size: int) -> Ints:
    """An array with room for `size` numbers, and for more in time."""
    if size <= len(values):
        return values
    grown = np.full(max(size, 2 * len(values)), -1, np.int64)
    grown[: len(values)] = values
    return grown
