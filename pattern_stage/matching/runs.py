"""PATTERN without SET: the runs of all statements of one shape, each of them a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from pattern_stage.columns import Ints
from pattern_stage.flow import Flow, each_once, joined_flow, no_flow
from pattern_stage.limits import Meter
from pattern_stage.matching import saved_parts
from pattern_stage.matching.arrivals import Arrivals, Key, MakeIndex, Role
from pattern_stage.matching.bundle_table import Told, told
from pattern_stage.matching.bundles import Bundle, parted
from pattern_stage.matching.choose import Apart
from pattern_stage.matching.found import Conditions, Found
from pattern_stage.matching.keyed_state import keyed_rows, keyed_table
from pattern_stage.matching.late import LateKills
from pattern_stage.matching.masks import mask_of, rows_of
from pattern_stage.matching.match import Part, Roles
from pattern_stage.matching.order import event_order
from pattern_stage.matching.program import Edge, Program
from pattern_stage.matching.saved_parts import PartReader, PartWriter, SavedPart
from pattern_stage.matching.slots import Slots
from pattern_stage.matching.store import Store
from pattern_stage.matching.template import inputs as inputs_of
from pattern_stage.matching.template import sees_before
from pattern_stage.operators import Origins, Renumber, RowVectors
from pattern_stage.predicates import kind_of
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Pattern
from xscl.algebra.events import Kind

_NONE = np.zeros(0, np.int64)


class Running:
    """A pattern without SET and EARLIEST MAXIMAL. It has one shape.

    Rows that differ in their constants and windows alone share runs. A match does not depend on the window but by its
    span, so runs go by the greatest; but where something is known at a window's end, or depends on what was there
    before, each window has runs of its own.
    """

    def __init__(
        self,
        definitions: Sequence[Pattern],
        rows: RowVectors,
        texts: Texts,
        lineage: Origins,
        index: MakeIndex,
        meter: Meter,
        *,
        merged: bool = True,
    ) -> None:
        """Without `merged`, runs that remember the same go on apart: the paper's basic algorithm."""
        self._pattern = pattern = definitions[0]
        self._rows, self._texts, self._lineage, self._meter, self._merged = rows, texts, lineage, meter, merged
        self._schemas = [schema for _, schema in sorted(inputs_of(pattern), key=lambda one: int(one[0]))]
        slots = Slots()
        self._program = Program(pattern, texts, slots)
        self._roles, self._role_places = _roles(self._program, self._schemas, texts, index)
        conditions = Conditions(pattern, texts, slots)
        self._found = Found(pattern, texts, slots, lineage)
        self._late = LateKills(self._program, conditions)
        self._arrivals = Arrivals(
            self._schemas,
            pattern.keys,
            self._roles,
            texts,
            all_events=pattern.strategy in ("strict", "partition"),
        )
        self._arrivals.compute(slots.values)
        self._kinds = {stream: [kind_of(one) for one in some] for stream, some in slots.values.items()}
        self._settles = bool(self._late) or pattern.apart
        """Whether what is found in an epoch has to be known before the next one."""
        trailing = any(one.group > self._program.last for one in self._program.negations)
        self._by_window = sees_before(pattern) or trailing
        self._stores: dict[int, Store] = {}
        self._apart: dict[int, Apart] = {}
        self._numbers: set[int] = set()
        self._since: list[tuple[int, int]] = []

    # ------------------------------------------------------------ rows

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        self._numbers.update(new.tolist())
        for role in self._roles:
            role.add_rows(new, self._rows)
        windows = self._rows.within[new] if self._by_window else np.zeros(len(new), np.int64)
        for window in distinct(windows).tolist():
            mine = new[windows == window]
            store = self._stores.get(window)
            if store is None:
                store = self._stores[window] = self._new_store()
                if self._pattern.apart:
                    self._apart[window] = Apart(self._order, whole=self._pattern.strategy == "strict")
            store.rows |= mask_of(mine)
            store.window = max(store.window, int(self._rows.within[mine].max()))
            store.windows.follow(rows_of(store.rows))
        if sees_before(self._pattern):
            for time in distinct(self._rows.apart[new]).tolist():
                self._since.append((time, mask_of(new[self._rows.apart[new] == time])))
        self._follow()

    def _new_store(self) -> Store:
        return Store(self._program, self._role_places, 0, self._meter, self._rows, merged=self._merged)

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and what waits for them alone."""
        self._numbers.difference_update(gone.tolist())
        mask = mask_of(gone)
        for role in self._roles:
            role.remove_rows(gone)
        for window, store in list(self._stores.items()):
            store.remove_rows(mask)
            store.windows.follow(rows_of(store.rows))
            if window in self._apart:
                self._apart[window].without(mask)
            if not store.rows:
                del self._stores[window]
                self._apart.pop(window, None)
        self._since = [(time, rows & ~mask) for time, rows in self._since if rows & ~mask]
        self._follow()

    def _follow(self) -> None:
        numbers = np.array(sorted(self._numbers), np.int64)
        for edge in self._edges():
            for test in edge.by_row:
                test.follow(self._rows, numbers)

    def _edges(self) -> Iterator[Edge]:
        program = self._program
        yield from (*program.begins, *program.takes, *program.completes)
        yield from (one.edge for one in program.negations)

    # ------------------------------------------------------------ running

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the matches that become known before `until`."""
        every = mask_of(np.array(sorted(self._numbers), np.int64))
        epochs = list(self._arrivals.epochs(inputs, every, self._since))
        self._since = [(time, rows) for time, rows in self._since if time >= until]
        found: list[Told] = []
        for window, store in self._stores.items():
            store.begin()
            bundles: list[Bundle] = []
            for time, arrivals in epochs:
                bundles += store.step(time, arrivals)
                if bundles and self._settles:
                    found.append(self._settled(window, store, bundles))
                    bundles = []
            bundles += store.pass_until(until)
            if self._settles:
                found.append(self._settled(window, store, bundles))
            else:
                found += [told(some, distinct=self._distinct) for some in parted(bundles)]
        return self._results(found)

    @property
    def _distinct(self) -> bool:
        return len(self._stores) > 1

    def _settled(self, window: int, store: Store, bundles: list[Bundle]) -> Told:
        """Returns what is left of matches, as far as that is to be known before the next epoch."""
        found = self._late.left(store.window, told(bundles, distinct=self._distinct), self._rows.parameters)
        apart = self._apart.get(window)
        if apart is None:
            return found
        found = self._with_having(found)
        if not len(found.at):
            return found
        apart.forget_before(int(found.table.known.min()) - store.window)
        candidates = found.candidates()
        chosen = apart.chosen(candidates)
        for one, rows in zip(candidates, chosen, strict=True):
            if rows and not store.trailing:
                store.drop_rows(one.key, rows)
        return found.with_rows(chosen)

    def _with_having(self, found: Told) -> Told:
        if not self._found.has_having or not len(found.at):
            return found
        return found.only(self._found.having(found.table, found.at, found.rows, self._rows.parameters))

    def _order(self, numbers: Iterable[int]) -> dict[int, Any]:
        return event_order(self._lineage, numbers)

    def _results(self, all_found: Sequence[Told]) -> Flow:
        none = no_flow(self._pattern.schema, len(self._program.kleene))
        flow = joined_flow([self._flow(found) for found in all_found if len(found.at)], none)
        return each_once(flow) if self._distinct else flow

    def _flow(self, found: Told) -> Flow:
        if not self._by_window:
            spans = found.table.t1 - found.table.t0
            found = found.only(spans[found.at] <= self._rows.within[found.rows])
        if not self._pattern.apart:
            found = self._with_having(found)
        return Flow(self._found.events(found.table, found.table.t0, found.table.known), found.at, found.rows)

    # ------------------------------------------------------------ state

    def due(self) -> int | None:
        """Returns a time: nothing becomes known before without another event. None if nothing waits for time alone."""
        times = (store.due() for store in self._stores.values())
        return min((time for time in times if time is not None), default=None)

    def waiting(self) -> Ints:
        """Returns for each row how many ends of runs wait: those that remember the same and end with one event are
        one."""
        counts = np.zeros(max(self._numbers, default=-1) + 1, np.int64)
        for store in self._stores.values():
            for mask, count in store.waiting().items():
                counts[rows_of(mask)] += count
        return counts

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds."""
        for role in self._roles:
            yield from role.codes()
        found: set[int] = set()
        texts = {
            stream: [3 + place for place, kind in enumerate(kinds) if kind == "string"]
            for stream, kinds in self._kinds.items()
        }
        for store in self._stores.values():
            for trail in store.trails():
                slots = texts.get(self._program.streams[trail.component], ())
                found.update(event[slot] for slot in slots for event in trail.events)
            for key, part in store.parts.items():
                found.update(value for value in key if isinstance(value, int))
                for negation, some in zip(self._program.negations, part.absent, strict=True):
                    found.update(event[slot] for event, _ in some for slot in texts.get(negation.stream, ()))
                for layout, cells in self._cells(part):
                    for cell in cells.values():
                        for register, value in zip(layout, cell.registers, strict=True):
                            found.update(saved_parts.codes(register, value))
        for apart in self._apart.values():
            found.update(value for key in apart.ends for value in key if isinstance(value, int))
        found.discard(-1)
        yield np.array(sorted(found), np.int64)

    def _cells(self, part: Part) -> Iterator[tuple[Any, Any]]:
        yield from zip(self._program.layouts, part.cells, strict=True)
        yield self._program.layouts[-1], part.pending

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that what waits was made of."""
        found: list[int] = []
        for store in self._stores.values():
            found += [event[2] for trail in store.trails() for event in trail.events]
            found += [event[2] for part in store.parts.values() for some in part.absent for event, _ in some]
        yield np.array(found, np.int64)

    def state(self) -> pa.Table:
        """Returns what waits: a row of the table for each key, and for ends of matches that were told."""
        saved: list[tuple[Key, SavedPart]] = []
        for window, store in self._stores.items():
            for key, part in store.parts.items():
                writer = PartWriter(self._texts, self._kinds, self._program.streams)
                cells = [writer.cells(some, layout) for layout, some in self._cells(part)]
                absent = [
                    [[writer.event(negation.stream, event), writer.mask(of)] for event, of in some]
                    for negation, some in zip(self._program.negations, part.absent, strict=True)
                ]
                saved.append((key, writer.done(cells=cells, absent=absent, passed=store.passed)))
            if window in self._apart:
                for key, ends in self._apart[window].ends.items():
                    writer = PartWriter(self._texts, self._kinds, self._program.streams)
                    saved.append((key, writer.done(ends=[[end, writer.mask(of)] for end, of in ends])))
        return keyed_table(saved, self._key_kinds(), self._texts)

    def _key_kinds(self) -> list[Kind]:
        return [dict(self._schemas[0])[name] for name in self._pattern.keys]

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over a state that was saved."""
        for one in keyed_rows(table, self._key_kinds(), self._texts, renumber):
            self._restore_part(*one)

    def _restore_part(self, key: Key, data: str, numbers: list[int], rows: dict[int, int]) -> None:
        window = int(self._rows.within[next(iter(rows.values()))]) if self._by_window else 0
        reader = PartReader(
            data,
            numbers,
            rows,
            self._texts,
            self._kinds,
            self._program.streams,
            [one.stream for one in self._program.negations],
        )
        if "ends" in reader.data:
            ends = [(end, reader.mask(of)) for end, of in reader.data["ends"]]
            self._apart[window].ends[() if self._pattern.strategy == "strict" else key] = [
                (end, of) for end, of in ends if of
            ]
            return
        store = self._stores[window]
        part = Part(self._program.hashed, len(self._program.negations))
        *cells, pending = reader.data["cells"]
        tables = zip((*part.cells, part.pending), (*cells, pending), strict=True)
        for layout, (table, some) in zip((*self._program.layouts, self._program.layouts[-1]), tables, strict=True):
            for name, cell in reader.cells(some, layout).items():
                table[name] = cell
        part.absent = [
            [(reader.event(event), mask) for event, of in some if (mask := reader.mask(of))]
            for some in reader.data["absent"]
        ]
        store.adopt(key, part, reader.trails, reader.data["passed"])


def _roles(program: Program, schemas: Sequence[Any], texts: Texts, index: MakeIndex) -> tuple[list[Role], Roles]:
    """Returns what events may be, and where each of it is among these."""
    roles: list[Role] = []

    def role(stream: int, edge: Edge) -> int:
        roles.append(Role(stream, schemas[stream], edge.static, texts, index))
        return len(roles) - 1

    begins = tuple([role(stream, edge) for stream, edge in zip(program.streams, program.begins, strict=True)])
    takes = tuple(
        [
            role(stream, edge) if kleene else -1
            for stream, edge, kleene in zip(program.streams, program.takes, program.kleene, strict=True)
        ]
    )
    negations = tuple([role(one.stream, one.edge) for one in program.negations])
    return roles, Roles(begins, takes, negations)
