"""What a BUDGET leaves of the chains of a key, and the history that says so, as it is saved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.history import Candidate, History, Name
from pattern_stage.matching.letters import Vector
from pattern_stage.matching.near_store import NearStore
from pattern_stage.matching.saved_parts import PartReader, PartWriter, SavedPart


def thin(
    store: NearStore,
    history: History,
    key: Key,
    most: int,
    time: int,
    order_of: Callable[[Iterable[int]], dict[int, Any]],
) -> None:
    """Keeps at most so many ends of chains of a key: those that promise most by what was learnt, then those that lack
    least, then the latest ones."""
    cells = store.cells.get(key, {})
    for vector, cell in list(cells.items()):
        cell.drop_before(store.low)
        if not cell.entries:
            del cells[vector]
    ends = [(name, one) for vector, cell in cells.items() for name, one in _named(vector, cell)]
    tied = {(_cost(name), one.t1): name[1] for name, one in ends}
    is_tied = len(ends) > most and any(tied[_cost(name), one.t1] != name[1] for name, one in ends)
    order = order_of(number for (_, number), _ in ends) if is_tied else defaultdict(int)
    candidates = [
        Candidate(name, one.start, one.t1, (_cost(name), -one.t1, order[name[1]], name[0], one.start))
        for name, one in ends
    ]
    kept = history.chosen(time, key, candidates, most)
    if len(kept) == len(ends):
        return
    for vector, cell in list(cells.items()):
        cell.only({at for at, (name, _) in enumerate(_named(vector, cell)) if name in kept})
        if not cell.entries:
            del cells[vector]


def _named(vector: Vector, cell: Cell) -> list[tuple[Name, Any]]:
    return [((vector, one.trail.event(one.place)[2]), one) for one in cell.entries]


def _cost(name: Name) -> int:
    return min(cost for _, cost in name[0])


def saved_history(
    store: NearStore, history: History, writer_of: Callable[[], PartWriter]
) -> Iterator[tuple[Key, SavedPart]]:
    """Yields what was learnt, with the key that it is of; one without values has what is of all."""
    for key in {**history.nodes, **history.told}:
        writer = writer_of()
        nodes = [
            [vector, writer.entries(cell.entries), [history.saved_node(key, name) for name, _ in _named(vector, cell)]]
            for vector, cell in store.cells.get(key, {}).items()
        ]
        rows = writer.mask(store.rows)
        yield key, writer.done(learnt=nodes, told=history.told.get(key), of=rows)
    writer = writer_of()
    rows = writer.mask(store.rows)
    yield (), writer.done(history=history.remembered(), of=rows)


def restore_history(history: History, key: Key, reader: PartReader) -> None:
    """Takes over what was learnt, or what was learnt of a key."""
    if "history" in reader.data:
        history.remember(reader.data["history"])
        return
    if reader.data["told"] is not None:
        time, bundle = reader.data["told"]
        history.told[key] = time, bundle
    for written, entries, nodes in reader.data["learnt"]:
        vector: Vector = tuple((at, cost) for at, cost in written)
        for one, node in zip(reader.lists[entries], nodes, strict=True):
            if node is not None:
                event = one.trail.event(one.place)
                history.adopt(key, (vector, event[2]), one.start, one.t1, node)
