"""Sightings: what the right input of an absence has matched, by the values that a partner must have.

Whether a left document has a partner takes the nearest sighting of its values, not all pairs of documents. Without
other conditions than equalities, the first one in time decides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mmqjp.answers.telling import Key
from mmqjp.documents.watermarks import EARLIEST, LATEST
from templates.catalog import INFINITE
from xpath_stage.binder import Node
from xscl.algebra.normal import JoinOp


class Sighting(NamedTuple):
    """A document that matched the right input, and when it appeared (see `mmqjp.documents.record.Record`). `bound` has
    the document and node of each variable that other conditions than equalities need. `words` are those by which it is
    found, if it is found by near()."""

    t0: int
    t1: int
    docid: int
    appeared: int
    bound: tuple[tuple[int, Node], ...] = ()
    words: str = ""


class Sightings:
    """The sightings of one right input, in the order of their times."""

    def __init__(self) -> None:
        self._by_key: dict[Key, list[Sighting]] = {}
        self._latest: dict[Key, int] = {}
        self.cut = EARLIEST
        """Sightings that begin before it may have been dropped."""
        self.earlier_from = LATEST
        """Of documents from before the engine was opened, those that begin at this time or later are there."""

    def add(self, key: Key, one: Sighting) -> Callable[[], None] | None:
        """Adds a sighting. Returns what undoes that; None if it was there."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = []
        if not found or found[-1] < one:
            found.append(one)
        else:
            place = bisect_left(found, one)
            if place < len(found) and found[place] == one:
                return None
            found.insert(place, one)
        self._latest[key] = max(self._latest.get(key, -1), one.appeared)
        return lambda: self._remove(key, one)

    def _remove(self, key: Key, one: Sighting) -> None:
        found = self._by_key[key]
        del found[bisect_left(found, one)]

    def partners(self, key: Key, op: JoinOp, window: int, left: tuple[int, int, int], after: int) -> Iterator[Sighting]:
        """Yields the sightings with a key that are partners in time of the `left` document, given by t0, t1 and docid,
        and appeared after a document. The nearest ones come first, as far as the operator looks one way."""
        if self._latest.get(key, -1) <= after:
            return
        found = self._by_key[key]
        t0, t1, docid = left
        if op == "NOT PRECEDED BY":
            least = EARLIEST if window == INFINITE else t1 - window
            for place in range(bisect_left(found, (t0,)) - 1, -1, -1):
                one = found[place]
                if one.t0 < least:
                    return
                if one.t1 < t0 and one.appeared > after:
                    yield one
            return
        begin = bisect_right(found, (t1, LATEST)) if op == "NOT FOLLOWED BY" else bisect_left(found, (t1 - window,))
        for place in range(begin, len(found)):
            one = found[place]
            if one.t0 > t0 + window:
                return
            if op == "NOT JOIN" and (one.docid == docid or max(t1, one.t1) - min(t0, one.t0) > window):
                continue
            if one.t1 <= t0 + window and one.appeared > after:
                yield one

    def drop_before(self, cut: int) -> None:
        """Drops what begins before a time."""
        for key, found in list(self._by_key.items()):
            place = bisect_left(found, (cut,))
            if place == len(found):
                del self._by_key[key], self._latest[key]
            elif place:
                del found[:place]
        self.cut = cut
        self.earlier_from = max(self.earlier_from, cut)

    def rekey(self, keys_of: Callable[[str], Sequence[Key]]) -> None:
        """Has sightings that are found by words found by other ones from now on."""
        found = {one for some in self._by_key.values() for one in some if one.words}
        if not found:
            return
        self._by_key, self._latest = {}, {}
        for one in sorted(found):
            for key in keys_of(one.words):
                self.add(key, one)

    def __len__(self) -> int:
        """Returns how many sightings there are."""
        return sum(map(len, self._by_key.values()))
