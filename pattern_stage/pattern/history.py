"""Learning for BUDGET: which partial matches lead to new bundles of matches, and the choice of those to keep. A
*bundle* is matches of one key, each within the window of the one before. A partial match, a *node*, is described by a
*vector*: its place in the expression, what it lacks, and, in eighths of the window, what is left and the time since its
last event. Per vector, TD(0) learns its value, how often its nodes lead to a new bundle, and its map has those bundles
(`Vectors`); unseen vectors fall back to coarser levels. The choice is greedy maximum coverage.
Updates of one time are ordered by the texts of keys, then by vector, so results are deterministic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from heapq import heapify, heappop, heappush, heapreplace
from itertools import compress
from operator import attrgetter, or_
from typing import Any, NamedTuple
from zlib import crc32

from pattern_stage.pattern.program import Vector

BUNDLES, EIGHTHS, RATE, MOST_SEEN = 1_024, 8, 0.1, 4_096

SeenName = tuple[Vector, int, int]
"""Positions with letters left out, eighths of the window left, eighths since the last event."""

Level = tuple[Any, ...]  # a vector, or a part of it, with a value and a map


class LevelOutcomes:
    """The value and bundles of a level. `used` is when it last learnt; None if never, or forgotten."""

    __slots__ = ("begun", "bits", "level", "used", "value")

    def __init__(self, level: Level) -> None:
        self.level = level
        self.used: int | None
        self.forget()

    def forget(self) -> None:
        self.value, self.bits, self.begun, self.used = 0.0, 0, 0, None

    def map(self, begun: int) -> int:
        """Returns the latest bundles that it led to, given the number of bundles begun."""
        if self.begun < begun:
            new = begun - self.begun
            if new >= BUNDLES:
                self.bits = 0
            elif self.bits:  # those whose bits the new ones have
                bits = ((1 << new) - 1) << self.begun % BUNDLES
                self.bits &= ~(bits | bits >> BUNDLES)
            self.begun = begun
        return self.bits

    def lead(self, bundle: int, begun: int) -> None:
        """Records that it led to a bundle."""
        self.bits = self.map(begun) | 1 << bundle % BUNDLES


@dataclass(frozen=True, slots=True, eq=False)
class InternedVector:
    """An interned vector, compared by identity."""

    name: SeenName
    levels: tuple[LevelOutcomes, LevelOutcomes, LevelOutcomes]

    def known(self) -> LevelOutcomes:
        """Returns its outcomes, or those of its most specific known part."""
        whole, lacking, place = self.levels
        if whole.used is not None:
            return whole
        return lacking if lacking.used is not None else place


class Vectors:
    """All seen vectors, and their outcomes."""

    def __init__(self) -> None:
        self.bundles = 0  # number of bundles begun
        self._levels: dict[Level, LevelOutcomes] = {}
        self._seen: dict[SeenName, InternedVector] = {}
        self._count = 0
        self._sweep_at = 4 * MOST_SEEN

    def __len__(self) -> int:
        """Number of levels with outcomes."""
        return self._count

    def known(self) -> list[LevelOutcomes]:
        """Returns the known outcomes, least recently updated first."""
        known = [one for one in self._levels.values() if one.used is not None]
        # What was learnt at one time is in an order that is the same in every process.
        return sorted(known, key=lambda one: (one.used, repr(one.level)))

    def seen(self, vector: Vector, left: int, since: int) -> InternedVector:
        name = vector, left, since
        if (found := self._seen.get(name)) is None:
            whole, lacking, place = map(self._level, (name, (vector,), ("at", *(at for at, _ in vector))))
            found = self._seen[name] = InternedVector(name, (whole, lacking, place))
        return found

    def _level(self, level: Level) -> LevelOutcomes:
        return self._levels.get(level) or self._levels.setdefault(level, LevelOutcomes(level))

    def learn(self, seen: InternedVector, target: float, time: int) -> None:
        """Moves the value of a vector towards a target."""
        for one in seen.levels:  # this and `lead` are most of the work: no call for each level
            one.value += RATE * (target - one.value)
            if one.used is None:
                self._count += 1
            one.used = time

    def lead(self, trace: Iterable[InternedVector], bundle: int, time: int) -> None:
        """Records that partial matches with these vectors led to a bundle."""
        for seen in trace:
            for one in seen.levels:
                one.lead(bundle, self.bundles)
                if one.used is None:
                    self._count += 1
                one.used = time

    def tidy(self, living: Iterable[InternedVector]) -> None:
        """Evicts the least recently updated outcomes, if there are too many. `living` are the vectors in use."""
        if self._count > MOST_SEEN:
            known = self.known()
            for one in known[: self._count - MOST_SEEN + MOST_SEEN // EIGHTHS]:
                one.forget()
                self._count -= 1
        if len(self._levels) > self._sweep_at:
            self._seen = {seen.name: seen for seen in living}
            used = {id(one) for seen in self._seen.values() for one in seen.levels}
            self._levels = {of: one for of, one in self._levels.items() if one.used is not None or id(one) in used}
            self._sweep_at = 2 * len(self._levels) + 4 * MOST_SEEN

    def remembered(self) -> list[list[Any]]:
        return [[one.level, one.value, f"{one.map(self.bundles):x}"] for one in self.known()]

    def remember(self, bundles: int, saved: Sequence[Sequence[Any]]) -> None:
        self.bundles = bundles
        for place, (level, value, bits) in enumerate(saved):
            one = self._level(lists_to_tuples(level))
            one.value, one.bits, one.begun, one.used = value, int(bits, 16), bundles, place - _BEFORE
        self._count = len(saved)


_BEFORE = 1 << 62  # negated, less than any time


def lists_to_tuples(value: Any) -> Any:
    return tuple(map(lists_to_tuples, value)) if isinstance(value, list) else value


PartialName = tuple[Vector, int]
"""Identifies a partial match of a key: place in the expression, and number of the last event."""


class PartialCandidate(NamedTuple):
    """A candidate: its latest begin, its end, and its rank where nothing is known."""

    name: PartialName
    start: int
    t1: int
    rank: Any


class Cover:
    """A greedy choice among ranked candidates with vectors."""

    def __init__(
        self,
        ranked: Sequence[PartialCandidate],
        seen: Sequence[InternedVector],
        bundles: int,
        hash_of: Callable[[PartialCandidate], int],
    ) -> None:
        """`bundles` is the number begun."""
        self._ranked, self._hash_of = ranked, hash_of
        self.taken = [False] * len(ranked)  # set by the caller
        self._next = 0
        self._hashed: list[int] | None = None
        self._alike: dict[InternedVector, list[int]] = {}  # candidates by vector, the first one last
        for at in range(len(ranked) - 1, -1, -1):
            self._alike.setdefault(seen[at], []).append(at)
        known = {one: one.known() for one in self._alike}
        promises = {one: (what.value, what.map(bundles)) for one, what in known.items() if what.value > 0}
        self._promises = {one: promise for one, promise in promises.items() if promise[1]}
        self._every = reduce(or_, (leads for _, leads in self._promises.values()), 0)
        self._waiting: list[tuple[float, int, InternedVector]] = []
        """Heap of vectors: upper bound of gain, and first candidate."""
        self._covered = 0

    def by_hash(self) -> int:
        """Returns a candidate independent of what was learnt."""
        if self._hashed is None:
            hashes = list(map(self._hash_of, self._ranked))
            self._hashed = sorted(range(len(hashes)), key=lambda at: (hashes[at], at), reverse=True)
        while self.taken[self._hashed[-1]]:
            self._hashed.pop()
        return self._hashed.pop()

    def best(self) -> int:
        """Returns the candidate with the greatest gain. Once all bundles are covered, coverage restarts."""
        if self._covered == self._every or not self._has_more():
            self._covered = 0
            self._waiting = [
                (-value * leads.bit_count(), at, seen)
                for seen, (value, leads) in self._promises.items()
                if (at := self._first(seen)) is not None
            ]
            heapify(self._waiting)
        if self._waiting:
            _, at, seen = heappop(self._waiting)
            self._covered |= self._promises[seen][1]
            return at
        while self.taken[self._next]:
            self._next += 1
        return self._next

    def _has_more(self) -> bool:
        while self._waiting:
            promised, first, seen = self._waiting[0]
            value, leads = self._promises[seen]
            gain, at = value * (leads & ~self._covered).bit_count(), self._first(seen)
            if at is None or not gain:
                heappop(self._waiting)
            elif (-gain, at) == (promised, first):
                return True
            else:
                heapreplace(self._waiting, (-gain, at, seen))
        return False

    def _first(self, seen: InternedVector) -> int | None:
        some = self._alike[seen]
        while some and self.taken[some[-1]]:
            some.pop()
        return some[-1] if some else None


def hashed(one: PartialCandidate) -> int:
    return crc32(repr((one.name[0], one.start, one.t1)).encode())


KeyTuple = tuple[Any, ...]

EXPLORING = 16  # every EXPLORING-th place is given by hash


@dataclass(slots=True, eq=False)
class PartialNode:
    """A kept partial match: latest begin, end, vector, all vectors up to it, and whether it was extended or matches."""

    start: int
    t1: int
    seen: InternedVector
    trace: frozenset[InternedVector]
    went_on: bool = False
    same_until: int = 0  # its vector is constant until then
    hashed: int = -1

    def rank(self) -> Any:
        return self.seen.name, self.start, self.t1


class Extension(NamedTuple):
    """A partial match that an event builds from previous ones."""

    name: PartialName
    start: int
    before: Sequence[PartialName]
    is_match: bool


@dataclass
class NearHistory:
    """What was learnt for a statement. `window` is the maximum span of a match; `text` orders keys."""

    window: int
    text: Callable[[KeyTuple], Any]
    places: int = 0  # number of nodes chosen among more
    reported: dict[KeyTuple, tuple[int, int]] = field(default_factory=dict)
    """By key, the time of the last match and the number of its bundle."""
    nodes: dict[KeyTuple, dict[PartialName, PartialNode]] = field(default_factory=dict)
    vectors: Vectors = field(default_factory=Vectors)
    _queue: list[tuple[int, Any, Vector, int, KeyTuple, int]] = field(default_factory=list)
    """Heap of nodes by latest begin."""
    _most_queued: int = 64

    def pass_until(self, time: int) -> None:
        """Learns from nodes that have expired without being extended."""
        while self._queue and self._queue[0][0] + self.window < time:
            _, _, vector, _, key, number = heappop(self._queue)
            nodes = self.nodes.get(key, {})
            node = nodes.get((vector, number))
            if node is None or node.start + self.window >= time:
                continue
            if not node.went_on:
                self.vectors.learn(node.seen, 0.0, time)
            del nodes[vector, number]
            if not nodes:
                del self.nodes[key]

    def tidy(self, time: int) -> None:
        """Drops outdated matches of keys, ends of removed nodes, and vectors not seen for long."""
        if len(self._queue) > self._most_queued:
            self._queue = [one for one in self._queue if (one[2], one[5]) in self.nodes.get(one[4], {})]
            heapify(self._queue)
            self._most_queued = 2 * len(self._queue) + EIGHTHS
        if len(self.reported) > 2 * len(self.nodes) + EIGHTHS:
            self.reported = {key: one for key, one in self.reported.items() if time - one[0] <= self.window}
        living = (node for nodes in self.nodes.values() for node in nodes.values())
        self.vectors.tidy(seen for node in living for seen in (node.seen, *node.trace))

    def learn(self, time: int, made: Iterable[tuple[KeyTuple, Extension]]) -> None:
        """Learns from the extensions that the events of a time made."""
        of_keys = defaultdict[KeyTuple, list[Extension]](list)
        for key, one in made:
            of_keys[key].append(one)
        for key in sorted(of_keys, key=self.text) if len(of_keys) > 1 else of_keys:
            self._learn_key(time, key, of_keys[key])

    def _learn_key(self, time: int, key: KeyTuple, made: Sequence[Extension]) -> None:
        nodes, vectors, text = self.nodes.setdefault(key, {}), self.vectors, self.text(key)
        bundle = self._bundle(time, key) if any(one.is_match for one in made) else -1
        new: list[tuple[PartialName, PartialNode]] = []
        paired = ((one, sorted((nodes[of] for of in one.before if of in nodes), key=PartialNode.rank)) for one in made)
        for one, before in sorted(paired, key=_place):
            seen = self._seen(one.name[0], one.start, time, time)
            trace = frozenset([seen]).union(*{node.trace for node in before})
            gained = float(one.is_match)
            if one.is_match:
                vectors.lead(trace, bundle, time)
                vectors.learn(seen, gained, time)
            for node in before:
                vectors.learn(node.seen, max(gained, seen.known().value), time)
                node.went_on = True
            new.append((one.name, PartialNode(one.start, time, seen, trace, one.is_match)))
            heappush(self._queue, (one.start, text, one.name[0], time, key, one.name[1]))
        nodes.update(new)

    def _bundle(self, time: int, key: KeyTuple) -> int:
        last = self.reported.get(key)
        if last is None or time - last[0] > self.window:
            last = time, self.vectors.bundles
            self.vectors.bundles += 1
        self.reported[key] = time, last[1]
        return last[1]

    def _seen(self, vector: Vector, start: int, t1: int, now: int) -> InternedVector:
        window = max(self.window, 1)
        left = min(max(EIGHTHS * (start + window - now) // window, 0), EIGHTHS - 1)
        return self.vectors.seen(vector, left, min(EIGHTHS * (now - t1) // window, EIGHTHS - 1))

    def chosen(self, time: int, key: KeyTuple, candidates: Sequence[PartialCandidate], most: int) -> set[PartialName]:
        """Returns `most` nodes of a key: those with the greatest gain, and some by hash."""
        ranked = sorted(candidates, key=attrgetter("rank"))
        nodes = self.nodes.get(key, {})

        def seen_of(one: PartialCandidate) -> InternedVector:
            node = nodes.get(one.name)
            if node is not None and time < node.same_until:
                return node.seen
            return self._seen(one.name[0], one.start, one.t1, time)

        def hash_of(one: PartialCandidate) -> int:
            if (node := nodes.get(one.name)) is None:
                return hashed(one)
            if node.hashed < 0:
                node.hashed = hashed(one)
            return node.hashed

        cover = Cover(ranked, list(map(seen_of, ranked)), self.vectors.bundles, hash_of)
        for _ in range(most):
            self.places += 1
            cover.taken[cover.best() if self.places % EXPLORING else cover.by_hash()] = True
        return {one.name for one in compress(ranked, cover.taken)}

    def keep(self, key: KeyTuple, kept: Collection[PartialName]) -> None:
        """Drops the nodes of a key that were not chosen."""
        if key in self.nodes:
            self.nodes[key] = {name: node for name, node in self.nodes[key].items() if name in kept}

    def age(self, time: int, key: KeyTuple) -> None:
        """Learns how the nodes of a key age."""
        window, older = max(self.window, 1), []
        for (vector, _), node in self.nodes.get(key, {}).items():
            if time < node.same_until:
                continue
            seen = self._seen(vector, node.start, node.t1, time)
            _, left, since = seen.name
            less_left = node.start + window - -(-left * window // EIGHTHS)
            node.same_until = min(less_left, node.t1 + (since + 1) * window // EIGHTHS)
            if seen is not node.seen:
                older.append((seen, node))
        for seen, node in sorted(older, key=lambda one: (one[0].name, one[1].start, one[1].t1)):
            self.vectors.learn(node.seen, seen.known().value, time)
            node.seen = seen
            node.trace |= {seen}

    def remembered(self) -> dict[str, Any]:
        """Returns the saved state, except nodes and keys."""
        return {"bundles": self.vectors.bundles, "places": self.places, "known": self.vectors.remembered()}

    def remember(self, saved: dict[str, Any]) -> None:
        self.places = saved["places"]
        self.vectors.remember(saved["bundles"], saved["known"])

    def adopt(self, key: KeyTuple, name: PartialName, start: int, t1: int, saved: Sequence[Any]) -> None:
        own, *trace = [self.vectors.seen(*lists_to_tuples(one)) for one in (saved[0], *saved[1])]
        self.nodes.setdefault(key, {})[name] = PartialNode(start, t1, own, frozenset(trace), went_on=saved[2])
        heappush(self._queue, (start, self.text(key), name[0], t1, key, name[1]))

    def saved_node(self, key: KeyTuple, name: PartialName) -> list[Any] | None:
        node = self.nodes.get(key, {}).get(name)
        return None if node is None else [node.seen.name, sorted(one.name for one in node.trace), node.went_on]


def _place(one: tuple[Extension, list[PartialNode]]) -> Any:
    made, before = one
    return made.name[0], made.start, made.is_match, list(map(PartialNode.rank, before))
