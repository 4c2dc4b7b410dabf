"""What a BUDGET leaves, step by step: the history, and which nodes are kept (docs/semantics.md, section 27).

Of words of plain letters only. A node is all chains that end with one event and stand at the same places of the word,
with as many letters left out. Decided where the page leaves it open: the order of what is learnt at one time, which is
that of keys, then of nodes by where they stand, their begin and whether they are matches; and the hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from zlib import crc32

from tests.oracle.events import Event, before
from tests.oracle.pattern_syntax import Letter, Near

Place = tuple[tuple[int, int], ...]
Seen = tuple[Place, int, int]


@dataclass(eq=False)
class Node:
    place: Place
    event: Event
    start: int
    chains: list[tuple[Event, ...]]
    letters: tuple[str, ...]
    seen: Seen
    trace: set[Seen]
    went_on: bool = False


@dataclass
class Budget:
    near: Near
    streams: Mapping[str, Sequence[Event]]
    order: Any
    values: dict[Any, float] = field(default_factory=dict)
    maps: dict[Any, set[int]] = field(default_factory=dict)
    bundles: int = 0
    given_places: int = 0
    told: dict[Any, tuple[int, int]] = field(default_factory=dict)
    nodes: dict[Any, list[Node]] = field(default_factory=dict)

    def matches(self) -> set[frozenset[Event]]:
        assert self.near.within is not None and self.near.budget is not None
        found = set()
        events = [(name, one) for name in sorted(self.near.streams) for one in self.streams[name]]
        for time in sorted({one.t1 for _, one in events}):
            self.expire(time)
            made: dict[Any, list[tuple[Node, list[Node]]]] = {}
            for name, one in events:
                key = tuple(one.values[key] for key in self.near.keys)
                if one.t1 == time and None not in key:
                    made.setdefault(key, []).extend(self.made(name, one, self.nodes.get(key, [])))
            for key in sorted(made):
                found |= set(self.learn(time, key, made[key]))
            for key in sorted(key for key in made if made[key]):
                self.thin(time, key)
        return found

    @property
    def window(self) -> int:
        assert self.near.within is not None
        return self.near.within.us

    # ---- chains

    def places(self, letters: tuple[str, ...]) -> Place:
        """Where in the word these letters may end, with how many left out before at least."""
        word = [one for one in self.near.word if isinstance(one, Letter)]
        least: dict[int, int] = {}
        for at in combinations(range(len(word)), len(letters)):
            left = [word[place] for place in range(at[-1]) if place not in at]
            fits = all(word[place].stream == letter for place, letter in zip(at, letters, strict=True))
            if fits and not any(one.needed for one in left) and len(left) <= self.near.errors:
                least[at[-1]] = min(len(left), least.get(at[-1], len(left)))
        return tuple(sorted(least.items()))

    def is_match(self, place: Place) -> bool:
        word = [one for one in self.near.word if isinstance(one, Letter)]
        return any(
            cost + len(word) - 1 - at <= self.near.errors and not any(one.needed for one in word[at + 1 :])
            for at, cost in place
        )

    def made(self, name: str, one: Event, nodes: Sequence[Node]) -> Iterator[tuple[Node, list[Node]]]:
        groups: dict[Place, list[tuple[tuple[str, ...], list[Node]]]] = {}
        for node in nodes:
            if before(node.event, one) and node.start >= one.t1 - self.window:
                groups.setdefault(self.places((*node.letters, name)), []).append(((*node.letters, name), [node]))
        if one.t1 - one.t0 <= self.window:
            groups.setdefault(self.places((name,)), []).append(((name,), []))
        for place, some in groups.items():
            if place:
                begins = any(not nodes for _, nodes in some)
                earlier = [node for _, nodes in some for node in nodes]
                chains = [(*chain, one) for node in earlier for chain in node.chains] + ([(one,)] if begins else [])
                start = one.t0 if begins else max(node.start for node in earlier)
                yield Node(place, one, start, chains, some[0][0], (place, 0, 0), set()), earlier

    # ---- history

    def levels(self, seen: Seen) -> list[Any]:
        return [seen, ("place", seen[0]), ("at", tuple(at for at, _ in seen[0]))]

    def known(self, seen: Seen) -> tuple[float, set[int]]:
        for level in self.levels(seen):
            if level in self.values:
                alive = {one for one in self.maps.get(level, ()) if one >= self.bundles - 1_024}
                return self.values[level], alive
        return 0.0, set()

    def update(self, seen: Seen, target: float) -> None:
        for level in self.levels(seen):
            value = self.values.get(level, 0.0)
            self.values[level] = value + 0.1 * (target - value)

    def vector(self, node: Node, now: int) -> Seen:
        left = min(max(8 * (node.start + self.window - now) // self.window, 0), 7)
        return node.place, left, min(8 * (now - node.event.t1) // self.window, 7)

    def expire(self, time: int) -> None:
        gone = [(node.start, key, node) for key, nodes in self.nodes.items() for node in nodes]
        gone = [one for one in gone if one[0] + self.window < time]
        for _, key, node in sorted(gone, key=lambda one: (one[0], one[1], one[2].place, one[2].event.t1)):
            if not node.went_on:
                self.update(node.seen, 0.0)
            self.nodes[key].remove(node)

    def learn(self, time: int, key: Any, made: list[tuple[Node, list[Node]]]) -> Iterator[frozenset[Event]]:
        def alike(node: Node) -> Any:
            return node.seen, node.start, node.event.t1

        bundle = None
        if any(self.is_match(node.place) for node, _ in made):
            last, bundle = self.told.get(key, (-(10**18), -1))
            if time - last > self.window:
                bundle, self.bundles = self.bundles, self.bundles + 1
            self.told[key] = time, bundle
        made = [(node, sorted(earlier, key=alike)) for node, earlier in made]
        for node, earlier in sorted(
            made, key=lambda one: (one[0].place, one[0].start, self.is_match(one[0].place), list(map(alike, one[1])))
        ):
            node.seen = self.vector(node, time)
            node.trace = {node.seen}.union(*(one.trace for one in earlier))
            gained = 0.0
            if self.is_match(node.place) and bundle is not None:
                for seen in node.trace:
                    for level in self.levels(seen):
                        self.maps.setdefault(level, set()).add(bundle)
                        self.values.setdefault(level, 0.0)
                gained = 1.0
                self.update(node.seen, gained)
                for chain in node.chains:
                    if time - chain[0].t0 <= self.window:
                        yield frozenset(chain)
            node.went_on = self.is_match(node.place)
            for one in earlier:
                self.update(one.seen, max(gained, self.known(node.seen)[0]))
                one.went_on = True
        self.nodes.setdefault(key, []).extend(node for node, _ in made)

    # ---- which are kept

    def thin(self, time: int, key: Any) -> None:
        assert self.near.budget is not None
        ranked = sorted(self.nodes[key], key=self.rank)
        seen = {id(node): self.vector(node, time) for node in ranked}
        kept: list[Node] = []
        covered: set[int] = set()
        while len(kept) < min(self.near.budget, len(ranked)):
            rest = [node for node in ranked if node not in kept]
            self.given_places += len(ranked) > self.near.budget
            if len(ranked) > self.near.budget and self.given_places % 16 == 0:
                kept.append(min(rest, key=lambda node: (self.hash(node), self.rank(node))))
                continue
            known = [self.known(seen[id(node)]) for node in rest]
            if not any(value * len(led - covered) > 0 for value, led in known):
                covered = set()
            gains = [value * len(led - covered) for value, led in known]
            best = rest[gains.index(max(gains))]
            if max(gains) > 0:
                covered |= self.known(seen[id(best)])[1]
            kept.append(best)
        for node in sorted(kept, key=lambda node: (seen[id(node)], node.start, node.event.t1)):
            if node.seen != seen[id(node)]:
                self.update(node.seen, self.known(seen[id(node)])[0])
                node.seen = seen[id(node)]
                node.trace |= {node.seen}
        self.nodes[key] = kept

    def rank(self, node: Node) -> Any:
        return min(cost for _, cost in node.place), -node.event.t1, self.order(node.event), node.place, node.start

    def hash(self, node: Node) -> int:
        return crc32(repr((node.place, node.start, node.event.t1)).encode())
