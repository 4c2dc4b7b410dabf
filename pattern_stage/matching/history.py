"""What is learnt of the past for BUDGET: which partial matches have led to which bundles of matches.

A *bundle* is matches of one key, each within the window of the one before. The latest bundles have numbers. A partial
match, a *node*, is told by a *vector*: where it is in the expression and what it lacks, how much of the window is left,
and how long ago its last event was, both in eighths of the window. Of a vector it is known how often a node with it
leads to a new bundle (its value, learnt by TD(0)), and the bundles that nodes with it have led to (its map). What was
never seen is told by where it is and what it lacks, or by where it is.

All is a function of events in the order of time: the updates of one time go by the texts of keys, then by vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any
from zlib import crc32

from pattern_stage.matching.letters import Vector

Key = tuple[Any, ...]

Seen = tuple[Vector, int, int]
"""A vector: positions with what is left out, eighths of the window that are left, eighths since the last event."""

Level = tuple[Any, ...]
"""What a value and a map are kept of: a vector, or a part of it."""

BUNDLES, EIGHTHS, RATE, EXPLORING, MOST_SEEN = 1_024, 8, 0.1, 16, 4_096

Name = tuple[Vector, int]
"""Tells a node among those of a key: its place in the expression, and the number of its last event."""


@dataclass(slots=True)
class Node:
    """A partial match that is kept: when it begins at most and ends, its vector, those that it and the ones before it
    ever had, and whether it has gone on, or is a match."""

    start: int
    t1: int
    seen: Seen
    trace: frozenset[Seen]
    went_on: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A partial match that an event makes of others, whose names are given. If it is a match, `is_match`."""

    name: Name
    start: int
    before: tuple[Name, ...]
    is_match: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may be kept, with its rank without a history."""

    name: Name
    start: int
    t1: int
    rank: Any


@dataclass
class _Known:
    value: float = 0.0
    map: int = 0


@dataclass
class History:
    """What is learnt of one statement. `window` is the greatest span of a match; `text` orders keys."""

    window: int
    text: Callable[[Key], Any]
    bundles: int = 0
    places: int = 0
    """How many nodes were chosen among more."""
    known: dict[Level, _Known] = field(default_factory=dict)
    told: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """Of each key when its last match was, and the number of its bundle."""
    nodes: dict[Key, dict[Name, Node]] = field(default_factory=dict)
    _queue: list[tuple[int, Any, Any, int, Key, Name]] = field(default_factory=list)

    # ------------------------------------------------------------ time

    def pass_until(self, time: int) -> None:
        """Learns of nodes that can go on no more, and never have."""
        while self._queue and self._queue[0][0] + self.window < time:
            *_, key, name = heappop(self._queue)
            nodes = self.nodes.get(key, {})
            node = nodes.get(name)
            if node is None or node.start + self.window >= time:
                continue
            if not node.went_on:
                self._learn(node.seen, 0.0)
            del nodes[name]
            if not nodes:
                del self.nodes[key]

    def tidy(self, time: int) -> None:
        """Forgets what matters no more: when keys had matches, and when nodes would have ended that are gone."""
        living = sum(map(len, self.nodes.values()))
        if len(self._queue) > 2 * living + EIGHTHS:
            self._queue = [one for one in self._queue if one[-1] in self.nodes.get(one[-2], {})]
            heapify(self._queue)
        if len(self.told) > 2 * len(self.nodes) + EIGHTHS:
            self.told = {key: one for key, one in self.told.items() if time - one[0] <= self.window}

    # ------------------------------------------------------------ learning

    def learn(self, time: int, made: Iterable[tuple[Key, Made]]) -> None:
        """Learns what the events of a time made of the nodes before."""
        of_keys: dict[Key, list[Made]] = {}
        for key, one in made:
            of_keys.setdefault(key, []).append(one)
        for key in sorted(of_keys, key=self.text):
            self._learn_key(time, key, of_keys[key])

    def _learn_key(self, time: int, key: Key, made: Sequence[Made]) -> None:
        nodes = self.nodes.setdefault(key, {})
        bundle = self._bundle(time, key) if any(one.is_match for one in made) else None
        new: dict[Name, Node] = {}
        for one, before in sorted(self._with_nodes(nodes, made), key=_place):
            seen = self._seen(one.name[0], one.start, time, time)
            trace = frozenset([seen]).union(*(node.trace for node in before))
            gained = 0.0
            if one.is_match and bundle is not None:
                gained = self._lead(trace, bundle)
                self._learn(seen, gained)
            for node in before:
                self._learn(node.seen, max(gained, self.value(seen)))
                node.went_on = True
            new[one.name] = Node(one.start, time, seen, trace, one.is_match)
            heappush(self._queue, (one.start, self.text(key), one.name[0], time, key, one.name))
        nodes |= new

    def _with_nodes(self, nodes: dict[Name, Node], made: Sequence[Made]) -> Iterator[tuple[Made, list[Node]]]:
        for one in made:
            before = [nodes[name] for name in one.before if name in nodes]
            yield one, sorted(before, key=lambda node: (node.seen, node.start, node.t1))

    def _bundle(self, time: int, key: Key) -> int:
        """Returns the bundle of a match."""
        last = self.told.get(key)
        if last is not None and time - last[0] <= self.window:
            number = last[1]
        else:
            number, self.bundles = self.bundles, self.bundles + 1
            forgotten = ~(1 << number % BUNDLES)
            for one in self.known.values():
                one.map &= forgotten
        self.told[key] = time, number
        return number

    def _lead(self, trace: Iterable[Seen], bundle: int) -> float:
        """Keeps that nodes with these vectors have led to a bundle. Returns 1."""
        bit = 1 << bundle % BUNDLES
        for seen in sorted(trace):
            for level in _levels(seen):
                self._at(level).map |= bit
        return 1.0

    def _learn(self, seen: Seen, target: float) -> None:
        for level in _levels(seen):
            one = self._at(level)
            one.value += RATE * (target - one.value)

    def _at(self, level: Level) -> _Known:
        one = self.known.pop(level, None) or _Known()
        self.known[level] = one  # the latest is the last
        if len(self.known) > MOST_SEEN:
            del self.known[next(iter(self.known))]
        return one

    def _seen(self, vector: Vector, start: int, t1: int, now: int) -> Seen:
        window = max(self.window, 1)
        left = min(max(EIGHTHS * (start + window - now) // window, 0), EIGHTHS - 1)
        return vector, left, min(EIGHTHS * (now - t1) // window, EIGHTHS - 1)

    # ------------------------------------------------------------ which are kept

    def value(self, seen: Seen) -> float:
        """Returns how often nodes with a vector lead to a new bundle."""
        return self._told_of(seen).value

    def _told_of(self, seen: Seen) -> _Known:
        return next((self.known[level] for level in _levels(seen) if level in self.known), _NOTHING)

    def chosen(self, time: int, key: Key, candidates: Sequence[Candidate], most: int) -> set[Name]:
        """Returns so many of the nodes of a key: those that promise most, and some by hash."""
        ranked = sorted(candidates, key=lambda one: one.rank)
        seen = {one.name: self._seen(one.name[0], one.start, one.t1, time) for one in ranked}
        taken = set[Name]()
        if len(ranked) <= most:
            taken.update(seen)
        else:
            for one in self._promising(ranked, seen, most, taken):
                taken.add(one.name)
        self._keep(key, ranked, seen, taken)
        return taken

    def _promising(
        self, ranked: Sequence[Candidate], seen: dict[Name, Seen], most: int, taken: set[Name]
    ) -> Iterator[Candidate]:
        """Yields nodes that lead to bundles that those before do not lead to. When all are covered, it begins anew."""
        hashed, rest = iter(sorted(ranked, key=by_hash)), iter(ranked)
        alike: dict[Seen, list[Candidate]] = {}
        for one in reversed(ranked):
            alike.setdefault(seen[one.name], []).append(one)
        waiting: list[tuple[float, Any, Seen]] = []
        covered = 0
        for _ in range(most):
            self.places += 1
            if self.places % EXPLORING == 0:
                yield next(one for one in hashed if one.name not in taken)
                continue
            if not waiting or not self._first(waiting, covered, alike, taken):
                covered, waiting = 0, self._round(alike, taken)
            if waiting:
                _, _, of = heappop(waiting)
                covered |= self._told_of(of).map
                yield alike[of].pop()
            else:
                yield next(one for one in rest if one.name not in taken)

    def _first(
        self,
        waiting: list[tuple[float, Any, Seen]],
        covered: int,
        alike: dict[Seen, list[Candidate]],
        taken: set[Name],
    ) -> bool:
        """Brings the vector that promises most to the front; returns whether it promises anything more."""
        while waiting:
            promised, rank, of = waiting[0]
            gain, some = self._gain(of, covered), alike[of]
            while some and some[-1].name in taken:
                some.pop()
            if not some or gain <= 0:
                heappop(waiting)
            elif (-gain, some[-1].rank) == (promised, rank):
                return True
            else:
                heapreplace(waiting, (-gain, some[-1].rank, of))
        return False

    def _round(self, alike: dict[Seen, list[Candidate]], taken: set[Name]) -> list[tuple[float, Any, Seen]]:
        """Returns the vectors of nodes that are left, and that have led to bundles, with what they promise."""
        found = []
        for seen, some in alike.items():
            while some and some[-1].name in taken:
                some.pop()
            gain = self._gain(seen, 0)
            if some and gain > 0:
                found.append((-gain, some[-1].rank, seen))
        heapify(found)
        return found

    def _gain(self, seen: Seen, covered: int) -> float:
        one = self._told_of(seen)
        return one.value * (one.map & ~covered).bit_count()

    def _keep(self, key: Key, ranked: Sequence[Candidate], seen: dict[Name, Seen], taken: set[Name]) -> None:
        """Forgets the nodes of a key that were not chosen, and learns how the others grow older."""
        nodes = self.nodes.get(key, {})
        for name in [name for name in nodes if name not in taken]:
            del nodes[name]
        for one in sorted(ranked, key=lambda one: (seen[one.name], one.start, one.t1)):
            node = nodes.get(one.name)
            if node is not None and node.seen != seen[one.name]:
                self._learn(node.seen, self.value(seen[one.name]))
                node.seen = seen[one.name]
                node.trace |= {node.seen}

    # ------------------------------------------------------------ state

    def remembered(self) -> dict[str, Any]:
        """Returns what is saved of it beside nodes and keys."""
        return {
            "bundles": self.bundles,
            "places": self.places,
            "known": [[level, one.value, f"{one.map:x}"] for level, one in self.known.items()],
        }

    def remember(self, saved: dict[str, Any]) -> None:
        """Takes over what was saved."""
        self.bundles, self.places = saved["bundles"], saved["places"]
        self.known = {_tuples(level): _Known(value, int(bits, 16)) for level, value, bits in saved["known"]}

    def adopt(self, key: Key, name: Name, start: int, t1: int, saved: Sequence[Any]) -> None:
        """Takes over a node that was saved."""
        seen, trace, went_on = saved
        self.nodes.setdefault(key, {})[name] = Node(start, t1, _tuples(seen), frozenset(map(_tuples, trace)), went_on)
        heappush(self._queue, (start, self.text(key), name[0], t1, key, name))

    def saved_node(self, key: Key, name: Name) -> list[Any] | None:
        """Returns what is saved of a node."""
        node = self.nodes.get(key, {}).get(name)
        return None if node is None else [node.seen, sorted(node.trace), node.went_on]


_NOTHING = _Known()


@lru_cache(MOST_SEEN)
def _levels(seen: Seen) -> tuple[Level, Level, Level]:
    vector, left, since = seen
    return (vector, left, since), (vector,), ("at", *(at for at, _ in vector))


def _place(one: tuple[Made, list[Node]]) -> Any:
    made, before = one
    return made.name[0], made.start, made.is_match, [(node.seen, node.start, node.t1) for node in before]


def by_hash(one: Candidate) -> Any:
    """Orders nodes in a way that has nothing to do with what they are."""
    return crc32(repr((one.name[0], one.start, one.t1)).encode()), one.rank


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
