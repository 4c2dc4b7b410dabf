"""What a BUDGET leaves of the chains of a key, and the history that says so, as it is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.covering import Candidate, Name
from pattern_stage.matching.history import History
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
    if sum(len(cell.entries) for cell in cells.values()) > most:
        kept = _of_vectors(history.chosen(time, key, _candidates(cells, order_of), most))
        for vector, cell in list(cells.items()):
            numbers = kept.get(vector, ())
            cell.only({at for at, one in enumerate(cell.entries) if one.trail.event(one.place)[2] in numbers})
            if not cell.entries:
                del cells[vector]
        history.keep(key, kept)
    history.age(time, key)


def _candidates(cells: Mapping[Vector, Cell], order_of: Callable[[Iterable[int]], dict[int, Any]]) -> list[Candidate]:
    ends = [
        (cost, vector, one.trail.event(one.place)[2], one)
        for vector, cell in cells.items()
        for cost in [min(cost for _, cost in vector)]
        for one in cell.entries
    ]
    first: dict[tuple[int, int], int] = {}
    is_tied = any(first.setdefault((cost, one.t1), number) != number for cost, _, number, one in ends)
    order = order_of(number for _, _, number, _ in ends) if is_tied else None
    return [
        Candidate((vector, number), one.start, one.t1, (cost, -one.t1, order and order[number], vector, one.start))
        for cost, vector, number, one in ends
    ]


def _of_vectors(names: Iterable[Name]) -> dict[Vector, set[int]]:
    found: dict[Vector, set[int]] = {}
    for vector, number in names:
        found.setdefault(vector, set()).add(number)
    return found


def saved_history(
    store: NearStore, history: History, writer_of: Callable[[], PartWriter]
) -> Iterator[tuple[Key, SavedPart]]:
    """Yields what was learnt, with the key that it is of; one without values has what is of all."""
    for key in {**history.nodes, **history.told}:
        writer = writer_of()
        nodes = [
            [
                vector,
                writer.entries(cell.entries),
                [history.saved_node(key, (vector, one.trail.event(one.place)[2])) for one in cell.entries],
            ]
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
