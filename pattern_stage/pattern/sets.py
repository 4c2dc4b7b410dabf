"""PATTERN with SET or EARLIEST MAXIMAL: events wait by key, and are tried when a match may be complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop

import numpy as np
import pyarrow as pa

from common.arrays import Ints, distinct
from pattern_stage.columns import Flow, each_once, sorted_flow
from pattern_stage.operators import Renumber
from pattern_stage.pattern.masks import mask_to_rows, rows_to_mask
from pattern_stage.pattern.match import Apart, MatchTable, SetMatch
from pattern_stage.pattern.rows import Arrival, KeyValues
from pattern_stage.pattern.set_search import KeptSets, SetFinder, together
from pattern_stage.pattern.state import PartReader, PartWriter, SavedPart, keyed_rows, keyed_table
from xscl.algebra.events import Kind


class SetMatching(SetFinder):
    """A pattern with SET, or with EARLIEST MAXIMAL. It has one shape; each window has events of its own.

    Events are kept only if some variable may have them by what they are alone, and by key; and nothing is tried before
    each variable has candidates in the order of the groups (phase 1 of match windows).
    """

    # ------------------------------------------------------------ rows

    def add_rows(self, new: Ints) -> None:
        """Takes in rows that were added."""
        self._numbers.update(new.tolist())
        for role in self._roles:
            role.add_rows(new, self._rows)
        windows = self._rows.within[new]
        for window in distinct(windows).tolist():
            store = self._stores.get(window)
            if store is None:
                store = self._stores[window] = KeptSets(window, self._wait(window), self._meter)
                if self._pattern.apart:
                    self._apart[window] = Apart(self._order, whole=False)
            store.rows |= rows_to_mask(new[windows == window])
        for time in distinct(self._rows.apart[new]).tolist():
            self._since.append((time, rows_to_mask(new[self._rows.apart[new] == time])))

    def remove_rows(self, gone: Ints) -> None:
        """Forgets rows and what waits for them alone."""
        self._numbers.difference_update(gone.tolist())
        mask = rows_to_mask(gone)
        for role in self._roles:
            role.remove_rows(gone)
        for window, store in list(self._stores.items()):
            store.remove_rows(mask)
            if not store.rows:
                del self._stores[window]
                self._apart.pop(window, None)
                continue
            if window in self._apart:
                self._apart[window].without(mask)
        self._since = [(time, rows & ~mask) for time, rows in self._since if rows & ~mask]

    # ------------------------------------------------------------ running

    def run(self, inputs: Sequence[Flow], until: int) -> Flow:
        """Returns the matches that become known before `until`."""
        every = rows_to_mask(np.array(sorted(self._numbers), np.int64))
        epochs = list(self._arrivals.epochs(inputs, every, self._since))
        self._since = [(time, rows) for time, rows in self._since if time >= until]
        told: list[SetMatch] = []
        for window, store in self._stores.items():
            apart = self._apart.get(window)
            for found in self._of_store(store, epochs, until):
                if apart is not None:
                    apart.forget_before(found[0].known - 2 * window)
                    chosen = apart.chosen([match.candidate() for match in found])
                    found = [match._replace(rows=rows) for match, rows in zip(found, chosen, strict=True) if rows]
                told += found
        table = MatchTable(told, len(self._positive))
        events = self._found.events(table, table.t0, table.known)
        return each_once(sorted_flow(events, table.at, table.rows).compact())

    def _of_store(
        self, store: KeptSets, epochs: Sequence[tuple[int, Sequence[Arrival]]], until: int
    ) -> Iterator[list[SetMatch]]:
        """Yields the matches that become known at one time, in the order of time; not those without any."""
        for time, arrivals in epochs:
            yield from self._pass(store, time)
            by_key: dict[KeyValues, list[Arrival]] = {}
            for one in arrivals:
                if one.key is not None:
                    by_key.setdefault(one.key, []).append(one)
            found: list[SetMatch] = []
            for key, some in by_key.items():
                for one in some:
                    masks = tuple([of & store.rows for of in one.masks])
                    if not any(masks) or one.event[1] - one.event[0] > store.window:
                        continue
                    store.keep(key, (one.event, masks, one.stream))
                    if self._is_late and self._begins(masks):
                        store.await_window(one.event[0], key)
                if key in store.kept and not self._is_late:
                    found += self._matches(store, key, store.kept[key], end=time)
            store.end_epoch(time)
            if found:
                yield found
        yield from self._pass(store, until)

    def _begins(self, masks: Sequence[int]) -> bool:
        return any(masks[at] for at, group in enumerate(self._form.groups) if group == 0)

    def _pass(self, store: KeptSets, time: int) -> Iterator[list[SetMatch]]:
        """Yields what becomes known before a time, as its window is over."""
        store.passed = time
        while store.starts and store.starts[0] + store.window < time:
            start = heappop(store.starts)
            found: list[SetMatch] = []
            for key in store.keys_at.pop(start):
                found += self._matches(store, key, store.kept.get(key, []), start=start)
            store.end_found()
            if found:
                yield found

    def _wait(self, window: int) -> int:
        """Returns how long events are kept: with matches that are late, as long as an event that began before it."""
        return 2 * window if self._is_late else window

    # ------------------------------------------------------------ state

    def due(self) -> int | None:
        """Returns a time: nothing becomes known before without another event. None if nothing waits for time alone."""
        times = (store.due() for store in self._stores.values())
        return min((time for time in times if time is not None), default=None)

    def waiting(self) -> Ints:
        """Returns how many events wait for each row."""
        counts = np.zeros(max(self._numbers, default=-1) + 1, np.int64)
        for store in self._stores.values():
            for some in store.kept.values():
                for _, masks, _ in some:
                    counts[mask_to_rows(together(masks))] += 1
        return counts

    def codes(self) -> Iterable[Ints]:
        """Returns the codes of all texts that it holds."""
        for role in self._roles:
            yield from role.codes()
        found: set[int] = {-1}
        texts = {
            stream: [3 + place for place, kind in enumerate(kinds) if kind == "string"]
            for stream, kinds in self._kinds.items()
        }
        for store in self._stores.values():
            for key, some in store.kept.items():
                found.update(value for value in key if isinstance(value, int))
                for event, _, stream in some:
                    found.update(event[slot] for slot in texts.get(stream, ()))
        for apart in self._apart.values():
            found.update(value for key in apart.ends for value in key if isinstance(value, int))
        found.discard(-1)
        yield np.array(sorted(found), np.int64)

    def parts(self) -> Iterable[Ints]:
        """Returns the numbers of the events that wait."""
        stores = self._stores.values()
        yield np.array([event[2] for store in stores for some in store.kept.values() for event, _, _ in some], np.int64)

    def state(self) -> pa.Table:
        """Returns what waits."""
        saved: list[tuple[KeyValues, SavedPart]] = []
        for window, store in self._stores.items():
            for key, some in store.kept.items():
                writer = self._writer()
                kept = [
                    [writer.event(stream, event), [writer.mask(of) for of in masks], stream]
                    for event, masks, stream in some
                ]
                saved.append((key, writer.done(kept=kept, passed=store.passed)))
            if window in self._apart:
                for key, ends in self._apart[window].ends.items():
                    writer = self._writer()
                    saved.append((key, writer.done(ends=[[end, writer.mask(of)] for end, of in ends])))
        return keyed_table(saved, self._key_kinds(), self._texts)

    def _writer(self) -> PartWriter:
        return PartWriter(self._texts, self._kinds, ())

    def _key_kinds(self) -> list[Kind]:
        return [dict(self._schemas[0])[name] for name in self._pattern.keys]

    def restore(self, table: pa.Table, renumber: Renumber) -> None:
        """Takes over a state that was saved."""
        for key, data, numbers, rows in keyed_rows(table, self._key_kinds(), self._texts, renumber):
            window = int(self._rows.within[next(iter(rows.values()))])
            reader = PartReader(data, numbers, rows, self._texts, self._kinds, (), ())
            if "ends" in reader.data:
                ends = [(end, reader.mask(of)) for end, of in reader.data["ends"]]
                self._apart[window].ends[key] = [(end, of) for end, of in ends if of]
                continue
            store, passed = self._stores[window], reader.data["passed"]
            store.passed = max(store.passed, passed)
            for event, masks, stream in reader.data["kept"]:
                made = reader.event_of(event, stream)
                here = tuple([reader.mask(of) for of in masks])
                if any(here):
                    store.keep(key, (made, here, stream))
                    if self._is_late and self._begins(here) and made[0] + window >= passed:
                        store.await_window(made[0], key)
