"""What is learnt of the past for BUDGET: which partial matches have led to which bundles of matches.

A *bundle* is matches of one key, each within the window of the one before. The latest bundles have numbers. A partial
match, a *node*, is told by a *vector*, of which it is known how often a node with it leads to a new bundle (its value,
learnt by TD(0)), and the bundles that nodes with it have led to (its map): see `pattern_stage.matching.vectors`.

All is a function of events in the order of time: the updates of one time go by the texts of keys, then by vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from pattern_stage.matching.covering import Candidate, Cover, Name, hashed
from pattern_stage.matching.letters import Vector
from pattern_stage.matching.vectors import EIGHTHS, Seen, Vectors, tuples

Key = tuple[Any, ...]

EXPLORING = 16
"""Each so many-th place is given by hash."""

Nodes = dict[Vector, dict[int, "Node"]]
"""The nodes of a key, by their places in the expression, and the numbers of their last events."""

Before = Sequence[tuple[Vector, Sequence[int]]]
"""Nodes of a key: at each of some places those with these last events."""


@dataclass(slots=True, eq=False)
class Node:
    """A partial match that is kept: when it begins at most and ends, its vector, those that it and the ones before it
    ever had, and whether it has gone on, or is a match."""

    start: int
    t1: int
    seen: Seen
    trace: frozenset[Seen]
    went_on: bool = False
    same_until: int = 0
    """Its vector does not change before."""
    hashed: int = -1


class Made(NamedTuple):
    """A partial match that an event makes of those before it. If it is a match, `is_match`."""

    name: Name
    start: int
    before: Before
    is_match: bool


@dataclass
class History:
    """What is learnt of one statement. `window` is the greatest span of a match; `text` orders keys."""

    window: int
    text: Callable[[Key], Any]
    places: int = 0
    """How many nodes were chosen among more."""
    told: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """Of each key when its last match was, and the number of its bundle."""
    nodes: dict[Key, Nodes] = field(default_factory=dict)
    vectors: Vectors = field(default_factory=Vectors)
    _queue: list[tuple[int, Any, Vector, int, Key, int]] = field(default_factory=list)
    """When nodes begin at most, and which ones."""
    _most_queued: int = 64

    # ------------------------------------------------------------ time

    def pass_until(self, time: int) -> None:
        """Learns of nodes that can go on no more, and never have."""
        while self._queue and self._queue[0][0] + self.window < time:
            _, _, vector, _, key, number = heappop(self._queue)
            nodes = self.nodes.get(key, {})
            node = nodes.get(vector, {}).get(number)
            if node is None or node.start + self.window >= time:
                continue
            if not node.went_on:
                self.vectors.learn(node.seen, 0.0, time)
            del nodes[vector][number]
            if not nodes[vector]:
                del nodes[vector]
            if not nodes:
                del self.nodes[key]

    def tidy(self, time: int) -> None:
        """Forgets what matters no more: when keys had matches, when nodes would have ended that are gone, and what is
        known of vectors that were not seen for long."""
        if len(self._queue) > self._most_queued:
            self._queue = [one for one in self._queue if one[5] in self.nodes.get(one[4], {}).get(one[2], {})]
            heapify(self._queue)
            self._most_queued = 2 * len(self._queue) + EIGHTHS
        if len(self.told) > 2 * len(self.nodes) + EIGHTHS:
            self.told = {key: one for key, one in self.told.items() if time - one[0] <= self.window}
        self.vectors.tidy(self._in_use())

    def _in_use(self) -> Iterator[Seen]:
        for of_key in self.nodes.values():
            for some in of_key.values():
                for node in some.values():
                    yield node.seen
                    yield from node.trace

    # ------------------------------------------------------------ learning

    def learn(self, time: int, made: Iterable[tuple[Key, Made]]) -> None:
        """Learns what the events of a time made of the nodes before."""
        of_keys: dict[Key, list[Made]] = {}
        for key, one in made:
            of_keys.setdefault(key, []).append(one)
        for key in sorted(of_keys, key=self.text) if len(of_keys) > 1 else of_keys:
            self._learn_key(time, key, of_keys[key])

    def _learn_key(self, time: int, key: Key, made: Sequence[Made]) -> None:
        nodes, vectors, text = self.nodes.setdefault(key, {}), self.vectors, self.text(key)
        bundle = self._bundle(time, key) if any(one.is_match for one in made) else None
        new: list[tuple[Name, Node]] = []
        for one, before in sorted(self._with_nodes(nodes, made), key=_place):
            seen = self._seen(one.name[0], one.start, time, time)
            trace = frozenset([seen]).union(*{node.trace for node in before})
            gained = 0.0
            if one.is_match and bundle is not None:
                gained = 1.0
                vectors.lead(trace, bundle, time)
                vectors.learn(seen, gained, time)
            for node in before:
                vectors.learn(node.seen, max(gained, seen.known().value), time)
                node.went_on = True
            new.append((one.name, Node(one.start, time, seen, trace, one.is_match)))
            heappush(self._queue, (one.start, text, one.name[0], time, key, one.name[1]))
        for (vector, number), node in new:
            nodes.setdefault(vector, {})[number] = node

    def _with_nodes(self, nodes: Nodes, made: Sequence[Made]) -> Iterator[tuple[Made, list[Node]]]:
        for one in made:
            before = []
            for vector, numbers in one.before:
                some = nodes.get(vector, {})
                before += [some[number] for number in numbers if number in some]
            yield one, sorted(before, key=_like)

    def _bundle(self, time: int, key: Key) -> int:
        """Returns the bundle of a match."""
        last = self.told.get(key)
        if last is not None and time - last[0] <= self.window:
            number = last[1]
        else:
            number = self.vectors.bundles
            self.vectors.bundles += 1
        self.told[key] = time, number
        return number

    def _seen(self, vector: Vector, start: int, t1: int, now: int) -> Seen:
        window = max(self.window, 1)
        left = min(max(EIGHTHS * (start + window - now) // window, 0), EIGHTHS - 1)
        return self.vectors.seen(vector, left, min(EIGHTHS * (now - t1) // window, EIGHTHS - 1))

    # ------------------------------------------------------------ which are kept

    def chosen(self, time: int, key: Key, candidates: Sequence[Candidate], most: int) -> set[Name]:
        """Returns so many of the nodes of a key, of which there are more: those that promise most, and some by hash."""
        ranked = sorted(candidates, key=_rank)
        nodes = self.nodes.get(key, {})

        def node_of(one: Candidate) -> Node | None:
            return nodes.get(one.name[0], {}).get(one.name[1])

        def seen_of(one: Candidate) -> Seen:
            node = node_of(one)
            if node is not None and time < node.same_until:
                return node.seen
            return self._seen(one.name[0], one.start, one.t1, time)

        def hash_of(one: Candidate) -> int:
            node = node_of(one)
            if node is None:
                return hashed(one)
            if node.hashed < 0:
                node.hashed = hashed(one)
            return node.hashed

        cover = Cover(ranked, list(map(seen_of, ranked)), self.vectors.bundles, hash_of)
        taken = set()
        for _ in range(most):
            self.places += 1
            taken.add(ranked[cover.best() if self.places % EXPLORING else cover.by_hash()].name)
        return taken

    def keep(self, key: Key, kept: Mapping[Vector, set[int]]) -> None:
        """Forgets the nodes of a key that were not chosen."""
        nodes = self.nodes.get(key, {})
        for vector, some in list(nodes.items()):
            numbers = kept.get(vector, ())
            left = {number: node for number, node in some.items() if number in numbers}
            if left:
                nodes[vector] = left
            else:
                del nodes[vector]

    def age(self, time: int, key: Key) -> None:
        """Learns how the nodes of a key grow older."""
        window, older = max(self.window, 1), []
        for vector, some in self.nodes.get(key, {}).items():
            for node in some.values():
                if time < node.same_until:
                    continue
                seen = self._seen(vector, node.start, node.t1, time)
                _, left, since = seen.name
                node.same_until = min(
                    node.start + window - -(-left * window // EIGHTHS), node.t1 + (since + 1) * window // EIGHTHS
                )
                if seen is not node.seen:
                    older.append((seen, node))
        for seen, node in sorted(older, key=lambda one: (one[0].name, one[1].start, one[1].t1)):
            self.vectors.learn(node.seen, seen.known().value, time)
            node.seen = seen
            node.trace |= {seen}

    # ------------------------------------------------------------ state

    def remembered(self) -> dict[str, Any]:
        """Returns what is saved of it beside nodes and keys."""
        return {"bundles": self.vectors.bundles, "places": self.places, "known": self.vectors.remembered()}

    def remember(self, saved: dict[str, Any]) -> None:
        """Takes over what was saved."""
        self.places = saved["places"]
        self.vectors.remember(saved["bundles"], saved["known"])

    def adopt(self, key: Key, name: Name, start: int, t1: int, saved: Sequence[Any]) -> None:
        """Takes over a node that was saved."""
        vector, number = name
        own, *trace = [self.vectors.seen(*tuples(one)) for one in (saved[0], *saved[1])]
        self.nodes.setdefault(key, {}).setdefault(vector, {})[number] = Node(
            start, t1, own, frozenset(trace), went_on=saved[2]
        )
        heappush(self._queue, (start, self.text(key), vector, t1, key, number))

    def saved_node(self, key: Key, name: Name) -> list[Any] | None:
        """Returns what is saved of a node."""
        node = self.nodes.get(key, {}).get(name[0], {}).get(name[1])
        return None if node is None else [node.seen.name, sorted(one.name for one in node.trace), node.went_on]


def _rank(one: Candidate) -> Any:
    return one.rank


def _like(node: Node) -> Any:
    return node.seen.name, node.start, node.t1


def _place(one: tuple[Made, list[Node]]) -> Any:
    made, before = one
    return made.name[0], made.start, made.is_match, list(map(_like, before))
