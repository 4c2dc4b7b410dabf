"""The static index of a stream of events: finds, by the values of single events, the operator rows that they may
concern. Clauses that differ only in constants and parameters have one shape, and a row of a shape has what differs.
Rows with equalities are found by hashing, others by their tightest bound; the candidates are then tested for the rest,
vectorised over events. Rows that differ only in left input and window form one class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np

from common.arrays import Ints, Mask, distinct, group_starts
from pattern_stage import columns as cols
from pattern_stage.clauses import TURNED, Clauses, Conjunction, has_parameters, numeric, on_left, shape
from pattern_stage.fan_out import Interned, grow_array
from pattern_stage.plan import Rows
from pattern_stage.values import Pairs, Texts, compile_condition, compile_value, every_event
from xscl.algebra import events as algebra


class RowClasses(Interned):
    """Classes of an m-op's rows; an event is evaluated once per class. This is sharing by channels, of Cayuga and
    RUMOR: the rows of a class that have an event are its membership."""

    right: Ints
    shape: Ints
    made: Ints

    def __init__(self, rows: Rows) -> None:
        super().__init__(("right", "shape", "made"))
        self._rows = rows
        self.of_row = np.full(16, -1, np.int64)  # the class of each row; -1 for none
        self.within = np.zeros(0, np.int64)  # by class, the greatest window that its rows have had
        self._row_count = 0

    def add(self, new: Ints) -> Ints:
        """Adds rows; returns the new classes."""
        rows, within = self._rows, self._rows.within[new]
        self.add_parameters(column.dtype for column in rows.parameters[len(self.parameters) :])
        columns = [rows.right[new], rows.shape[new], rows.made[new]]
        classes, fresh, first = self.intern(columns, [column[new] for column in rows.parameters])
        if len(fresh):
            self.within = cols.scatter(self.within, fresh, within[first], self.end)
        wider = np.flatnonzero(within > self.within[classes])
        if len(wider):
            if not self.within.flags.writeable:
                self.within = self.within.copy()
            np.maximum.at(self.within, classes[wider], within[wider])
        self.of_row = grow_array(self.of_row, int(new.max(initial=-1)) + 1, -1)
        self.of_row[new] = classes
        self._row_count += len(new)
        return fresh

    def remove(self, gone: Ints) -> Ints:
        """Removes rows; returns the classes left empty."""
        emptied = self.release(self.of_row[gone])
        self.of_row[gone] = -1
        self._row_count -= len(gone)
        self.free(emptied)
        return emptied

    @property
    def single(self) -> bool:
        """Whether each class has exactly one row."""
        return len(self) == self._row_count

    def marked(self, classes: Ints) -> Mask:
        """Returns the mask of these classes over all class numbers."""
        result = np.zeros(self.end, np.bool_)
        result[classes] = True
        return result


def each_shape(shapes: Ints) -> Iterator[tuple[int, Ints | slice]]:
    """Yields the distinct shapes, each with its places."""
    if len(shapes) == 0:
        return
    if np.all(shapes == shapes[0]):
        yield int(shapes[0]), slice(None)
        return
    # Short integers are sorted by their digits, in linear time.
    order = np.argsort(shapes.astype(np.uint16) if int(shapes.max()) < 1 << 16 else shapes, kind="stable")
    starts = group_starts(shapes[order])
    yield from zip(shapes[order[starts]].tolist(), np.split(order, starts[1:]), strict=True)


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on a value of an event by a row's constant: lower if `least`, else upper; exclusive if `strict`."""

    operand: algebra.Value
    constant: algebra.Value
    least: bool
    strict: bool


@dataclass(frozen=True, slots=True)
class ClauseForm:
    """The atoms of a clause. `keys` are equal to constants of the row. `common` atoms depend on the event alone,
    `varying` ones also on the row's parameters, `sources`."""

    keys: tuple[tuple[algebra.Value, algebra.Value], ...]
    limits: tuple[Limit, ...]
    common: tuple[algebra.Atom, ...]
    varying: tuple[algebra.Atom, ...]
    sources: tuple[algebra.Parameter, ...]


@lru_cache(maxsize=4096)
def clause_form(clause: Conjunction) -> ClauseForm:
    """Splits a clause's atoms by how they are tested. All attributes become `left`."""
    keys: list[tuple[algebra.Value, algebra.Value]] = []
    limits: list[Limit] = []
    common, varying = list[algebra.Atom](), list[algebra.Atom]()
    for atom in sorted(map(on_left, clause), key=shape):
        turned = _turned(atom)
        if turned is None:
            (varying if has_parameters(atom) else common).append(atom)
        elif turned.op == "=":
            keys.append((turned.left, turned.right))
        else:
            limits.append(Limit(turned.left, turned.right, turned.op in (">", ">="), turned.op in ("<", ">")))
    keys.sort(key=lambda pair: shape(pair[0]))
    order: dict[algebra.Parameter, algebra.Parameter] = {}

    def renumbered(leaf: algebra.Value) -> algebra.Value:
        if not isinstance(leaf, algebra.Parameter):
            return leaf
        return order.setdefault(leaf, algebra.Parameter(len(order), leaf.kind))

    varying = [algebra.map_leaves(atom, renumbered) for atom in varying]
    return ClauseForm(tuple(keys), tuple(limits), tuple(common), tuple(varying), tuple(order))


@dataclass(frozen=True, slots=True)
class ShapeRows(cols.ColumnRecord):
    """Rows of one shape. Row i, of target `entries[i]`, holds for events with its keys, whose value in column
    `columns[j][i]` is at least `bounds[j][i]` for each j, and for which the varying atoms hold with its `parameters`.
    """

    entries: Ints
    keys: tuple[Ints, ...]
    columns: tuple[Ints, ...]
    bounds: tuple[cols.Floats, ...]
    parameters: tuple[cols.Column, ...]

    def __len__(self) -> int:
        return len(self.entries)


def clause_rows(
    form: ClauseForm, entries: Ints, limit_places: Sequence[int], given: tuple[cols.Column, ...], texts: Texts
) -> ShapeRows:
    """Returns the rows of a clause for parameter vectors, without those that never hold because a constant is NULL.
    `limit_places` has the column of each limit; upper limits are negated."""
    nothing = every_event(cols.bare_columns((), len(entries)), given)

    def column(source: algebra.Value) -> cols.Column:
        if isinstance(source, algebra.Parameter):
            return given[source.index]
        return compile_value(source, (), None, texts)(nothing)

    known = np.ones(len(entries), np.bool_)
    keys = []
    for key, constant in form.keys:
        values = column(constant)
        known &= values >= 0 if algebra.value_kind(key) == "string" else np.isfinite(values)
        keys.append(cols.same(values))
    bounds = []
    for limit in form.limits:
        bound = cast(cols.Floats, column(limit.constant) if limit.least else -column(limit.constant))
        known &= np.isfinite(bound)
        bounds.append(np.nextafter(bound, np.inf) if limit.strict else bound)
    columns = tuple(np.full(len(entries), place, np.int64) for place in limit_places)
    parameters = tuple(given[source.index] for source in form.sources)
    rows = ShapeRows(entries, tuple(keys), columns, tuple(bounds), parameters)
    return rows if known.all() else rows.take(known)


def _turned(atom: algebra.Atom) -> algebra.Comparison | None:
    if not isinstance(atom, algebra.Comparison) or atom.op == "!=":
        return None
    for op, one, other in ((atom.op, atom.left, atom.right), (TURNED[atom.op], atom.right, atom.left)):
        if _of_event(one) and not has_parameters(one) and not _of_event(other):
            if op == "=" and algebra.value_kind(one) == algebra.value_kind(other) == "string":
                return algebra.Comparison("=", one, other)
            return algebra.Comparison(op, numeric(one), numeric(other))
    return None


def _of_event(value: algebra.Value) -> bool:
    return any(isinstance(leaf, algebra.Attribute | algebra.Duration) for leaf in algebra.leaves(value))


Ranges = tuple[Ints, Ints, Ints]  # places of events, and for each the first row and number of rows in a run


class StaticRun:
    """Immutable sorted rows. Candidates have the event's keys if `keys_tested`, and satisfy `bounds_tested` bounds."""

    keys_tested = False
    bounds_tested = 0

    def __init__(self, rows: ShapeRows) -> None:
        self.rows = rows

    def candidates(self, keys: list[Ints], numbers: cols.Floats, chosen: Ints) -> Ranges:
        """Returns the rows that the chosen events, with these keys and values to compare, may satisfy."""
        return chosen, np.zeros(len(chosen), np.int64), np.full(len(chosen), len(self.rows))


class HashedRun(StaticRun):
    """Rows sorted by a hash of their keys, distinct for each stored key."""

    keys_tested = True

    def __init__(self, rows: ShapeRows) -> None:
        seed = 0
        while True:
            hashes = cols.mixed(rows.keys, seed)
            order = np.argsort(hashes, kind="stable")
            hashes, ordered = hashes[order], rows.take(order)
            begins = group_starts(hashes)
            if len(begins) == len(group_starts(hashes, *ordered.keys)):
                break
            seed += 1  # two keys have one hash
        super().__init__(ordered)
        self._seed = seed
        self._hashes = hashes[begins]
        self._keys = [key[begins] for key in ordered.keys]
        self._begins = np.append(begins, len(hashes))

    def candidates(self, keys: list[Ints], numbers: cols.Floats, chosen: Ints) -> Ranges:
        keys = [key[chosen] for key in keys]
        at = np.searchsorted(self._hashes, cols.mixed(keys, self._seed))
        at[at == len(self._hashes)] = 0
        found: Mask = np.ones(len(chosen), np.bool_)
        for key, stored in zip(keys, self._keys, strict=True):
            found &= stored[at] == key
        at = at[found]
        begins = self._begins[at]
        return chosen[found], begins, self._begins[at + 1] - begins


class BoundedRun(StaticRun):
    """Rows without keys, sorted by the most selective bound, by a sample of events or by the bounds."""

    bounds_tested = 1

    def __init__(self, rows: ShapeRows, sample: cols.Floats) -> None:
        columns, bounds = np.array(rows.columns), np.array(rows.bounds)
        kept = np.empty(bounds.shape)
        for column in distinct(columns.ravel()).tolist():
            here = columns == column
            values = np.sort(sample[:, column] if column < sample.shape[1] and len(sample) else bounds[here])
            kept[here] = 1 - np.searchsorted(values, bounds[here]) / len(values)
        tightest = np.argsort(kept, axis=0, kind="stable")
        columns, bounds = np.take_along_axis(columns, tightest, 0), np.take_along_axis(bounds, tightest, 0)
        rows = replace(rows, columns=tuple(columns), bounds=tuple(bounds))
        rows = rows.take(np.lexsort((rows.bounds[0], rows.columns[0])))
        super().__init__(rows)
        begins = group_starts(rows.columns[0])
        ends = np.append(begins[1:], len(rows))
        self._parts = list(zip(rows.columns[0][begins].tolist(), begins.tolist(), ends.tolist(), strict=True))

    def candidates(self, keys: list[Ints], numbers: cols.Floats, chosen: Ints) -> Ranges:
        counts = []
        for column, begin, end in self._parts:
            values = numbers[chosen, column]
            count = np.searchsorted(self.rows.bounds[0][begin:end], values, side="right")
            counts.append(np.where(np.isnan(values), 0, count))
        begins = np.array([begin for _, begin, _ in self._parts], np.int64)
        return np.tile(chosen, len(self._parts)), np.repeat(begins, len(chosen)), np.concatenate(counts)


_BLOCK = 1 << 18  # number of candidates tested at once

_SAMPLE = 256  # number of events from which selectivity is estimated

_MANY_REMOVED = 1000  # once removed targets exceed live ones by this, the index is compacted

_TARGET_BITS = 32

_Probe = tuple[cols.Columns, list[Ints], cols.Floats]
"""Events, the keys that a shape compares, and all compared values, each beside its negative."""


class StaticIndex:
    """Targets with clauses of atoms about a single event; an event hits a target if one of its clauses holds. Targets
    are dense, non-negative numbers. Updates cost time in the row alone, apart from merges, which wait until there is as
    much new as old. Without `hashed`, each event is tested against each row."""

    def __init__(self, schema: algebra.Schema, texts: Texts, *, hashed: bool = True) -> None:
        self._schema, self._texts, self._hashed = schema, texts, hashed
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._keys: dict[algebra.Value, Callable[[Pairs], cols.Column]] = {}
        self._numbers: dict[algebra.Value, tuple[int, Callable[[Pairs], cols.Column]]] = {}
        self._sample: cols.Floats = np.zeros((0, 0))
        # Rows know targets by entries, which are not used again: a target that is removed and added is another entry.
        self._entry_of = np.full(0, -1, np.int64)
        self._target_of = np.zeros(0, np.int64)
        self._entries = self._removed = 0

    def __len__(self) -> int:
        return self._entries - self._removed

    # ------------------------------------------------------------ what is indexed

    def add(self, targets: Ints, clauses: Clauses, parameters: tuple[cols.Column, ...]) -> None:
        """Adds clauses, any of which must hold, for targets with these parameters; a target may be given again."""
        self._entry_of = grow_array(self._entry_of, int(targets.max(initial=-1)) + 1, -1)
        new = distinct(targets[self._entry_of[targets] < 0])
        end = self._entries + len(new)
        self._target_of = grow_array(self._target_of, end, -1)
        self._entry_of[new] = np.arange(self._entries, end)
        self._target_of[self._entries : end] = new
        self._entries, entries = end, self._entry_of[targets]
        for clause in clauses:
            form = clause_form(clause)
            places = [self._place_of(limit.operand) * 2 + (not limit.least) for limit in form.limits]
            rows = clause_rows(form, entries, places, parameters, self._texts)
            if not len(rows):
                continue
            keys = tuple(key for key, _ in form.keys)
            identity = (keys, len(form.limits), form.common, form.varying)
            if (kind := self._shapes.get(identity)) is None:
                kind = self._shapes[identity] = _Shape(keys, form, self._schema, self._texts)
                for key in keys:
                    self._keys.setdefault(key, compile_value(key, self._schema, None, self._texts))
            kind.fresh.append(rows)

    def settle(self) -> None:
        """Sorts additions ahead of the next events, except those that are sorted by a sample of events."""
        for kind in self._shapes.values():
            if kind.fresh and kind.keys:
                kind.runs_over(self._sample, self._target_of, self._hashed)

    def remove(self, targets: Ints) -> None:
        """Removes targets with all their clauses; unknown ones are ignored."""
        targets = distinct(targets[targets < len(self._entry_of)])
        entries = self._entry_of[targets]
        entries = entries[entries >= 0]
        self._entry_of[targets] = -1
        self._target_of[entries] = -1
        self._removed += len(entries)
        if self._removed > len(self) + _MANY_REMOVED:
            self._purge()

    def used(self) -> Iterator[Ints]:
        """Yields the text codes of targets, for `Texts.keep`; codes of removed targets need not be kept."""
        for kind in self._shapes.values():
            for every in kind.all_rows():
                rows = every.take(self._target_of[every.entries] >= 0)
                for key, codes in zip(kind.keys, rows.keys, strict=True):
                    if algebra.value_kind(key) == "string":
                        yield codes
                for source, column in zip(kind.sources, rows.parameters, strict=True):
                    if source.kind == "string":
                        yield column  # type: ignore[misc]  # codes

    # ------------------------------------------------------------ what events hit

    def hits(self, events: cols.Columns, active: Mask | None = None) -> tuple[Ints, Ints]:
        """Returns distinct pairs of event place and target, sorted. `active` is a mask of targets to consider."""
        found = [np.zeros(0, np.int64)]
        if len(events) and self._shapes:
            singles = every_event(events)
            numbers = np.empty((len(events), 2 * len(self._numbers)))  # compared values, each beside its negative
            for place, number in self._numbers.values():
                numbers[:, 2 * place] = number(singles)
                np.negative(numbers[:, 2 * place], out=numbers[:, 2 * place + 1])
            self._sample = numbers[:_SAMPLE]
            keys_of = {key: cols.same(values(singles)) for key, values in self._keys.items()}
            for kind in self._shapes.values():
                chosen = singles.left_at if kind.common is None else np.flatnonzero(kind.common(singles))
                keys = [keys_of[key] for key in kind.keys]
                for run in kind.runs_over(self._sample, self._target_of, self._hashed):
                    for at, rows in _blocks(run.candidates(keys, numbers, chosen)):
                        found.append(self._tested(kind, run, (events, keys, numbers), active, at, rows))
        hits = distinct(np.concatenate(found))
        return hits >> _TARGET_BITS, hits & ((1 << _TARGET_BITS) - 1)

    def _tested(self, kind: _Shape, run: StaticRun, probe: _Probe, active: Mask | None, at: Ints, rows: Ints) -> Ints:
        events, keys, numbers = probe
        targets = self._target_of[run.rows.entries[rows]]

        def keep(held: Mask) -> None:
            nonlocal at, rows, targets
            kept = np.flatnonzero(held)
            at, rows, targets = at[kept], rows[kept], targets[kept]

        if active is not None:
            keep(active[targets] & (targets >= 0))
        if not run.keys_tested:
            for key, stored in zip(keys, run.rows.keys, strict=True):
                keep(key[at] == stored[rows])
        width, flat = numbers.shape[1], numbers.reshape(-1)
        for columns, bounds in list(zip(run.rows.columns, run.rows.bounds, strict=True))[run.bounds_tested :]:
            keep(flat[at * width + columns[rows]] >= bounds[rows])
        if active is None:
            keep(targets >= 0)
        if kind.varying is not None and len(at):
            keep(kind.varying(Pairs(events, at, rows, run.rows.parameters)))
        return at << _TARGET_BITS | targets

    # ------------------------------------------------------------ upkeep

    def _place_of(self, operand: algebra.Value) -> int:
        if (found := self._numbers.get(operand)) is None:
            found = len(self._numbers), compile_value(operand, self._schema, None, self._texts)
            self._numbers[operand] = found
        return found[0]

    def _purge(self) -> None:
        alive = self._target_of[: self._entries] >= 0
        number = np.cumsum(alive) - 1
        self._target_of = self._target_of[: self._entries][alive]
        self._entry_of[self._target_of] = np.arange(len(self._target_of))
        self._entries, self._removed = len(self._target_of), 0
        for identity, kind in list(self._shapes.items()):
            if not kind.purge(alive, number):
                del self._shapes[identity]
        compared = [column for kind in self._shapes.values() for rows in kind.fresh for column in rows.columns]
        places = distinct(np.concatenate([*compared, np.zeros(0, np.int64)]) >> 1)
        for column in compared:
            column[:] = np.searchsorted(places, column >> 1) << 1 | column & 1
        operands = [(operand, compute) for operand, (_, compute) in self._numbers.items()]
        self._numbers = {operands[old][0]: (new, operands[old][1]) for new, old in enumerate(places.tolist())}
        self._sample = np.zeros((0, 0))
        keys = {key for kind in self._shapes.values() for key in kind.keys}
        self._keys = {key: values for key, values in self._keys.items() if key in keys}


class _Shape:
    """The rows of a shape: new ones, and sorted runs, each at least twice as long as the next."""

    def __init__(self, keys: tuple[algebra.Value, ...], form: ClauseForm, schema: algebra.Schema, texts: Texts) -> None:
        self.keys, self.sources = keys, form.sources
        self.fresh: list[ShapeRows] = []
        self.runs: list[StaticRun] = []
        self.common, self.varying = (
            compile_condition(algebra.AllOf(atoms), schema, None, texts) if atoms else None
            for atoms in (form.common, form.varying)
        )

    def runs_over(self, sample: cols.Floats, target_of: Ints, hashed: bool) -> list[StaticRun]:
        """Returns the runs of all rows after sorting new ones. Merging drops removed rows."""
        if self.fresh:
            rows = cols.joined(self.fresh)
            self.fresh.clear()
            while self.runs and len(self.runs[-1].rows) < 2 * len(rows):
                rows = cols.joined([self.runs.pop().rows, rows])
                rows = rows.take(target_of[rows.entries] >= 0)
            if len(rows):
                if rows.keys and hashed:
                    self.runs.append(HashedRun(rows))
                else:
                    self.runs.append(BoundedRun(rows, sample) if rows.bounds and hashed else StaticRun(rows))
        return self.runs

    def all_rows(self) -> list[ShapeRows]:
        return [run.rows for run in self.runs] + self.fresh

    def purge(self, alive: Mask, number: Ints) -> bool:
        """Keeps and renumbers the rows of live entries. Returns whether any are left."""
        rows = cols.joined(self.all_rows())
        rows = rows.take(alive[rows.entries])
        self.runs.clear()
        self.fresh = [replace(rows, entries=number[rows.entries])]
        return len(rows) > 0


def _blocks(ranges: Ranges) -> Iterator[tuple[Ints, Ints]]:
    at, begins, counts = ranges
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(at):
        done = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _BLOCK, side="right")))
        rows, of = cols.spread(begins[begin:end], counts[begin:end])
        yield at[begin:end][of], rows
        begin = end
