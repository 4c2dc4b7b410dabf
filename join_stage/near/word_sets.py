"""Checks whether texts that have a key in common are near, before anything else is done for their documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from join_stage.arrays import GrowingInts, Ints, dictionary_encode, expand_ranges
from join_stage.near.keys import parted
from join_stage.near.numbered_texts import NumberedTexts, numbered_texts
from templates.witness import MANY

Find = Callable[[pa.Array], pa.Table]
"""Returns the rows of R_doc of some documents, given by their ids."""

Mask = NDArray[np.bool_]

Text = tuple[int, int]
"""A text: its document and its node."""

MOST_HELD = 2_000_000
"""About so many words of texts are held in memory, and as many that were held before. Others are found when they are
asked for."""

MOST_COMPARED = 1_000_000
"""So many words of pairs of texts are compared at a time."""

_PAIR_SHIFT = 43
"""The shift of a pair where it is packed with a word. The words of fewer than 2^20 pairs are compared at a time."""


class OneOfEach(NamedTuple):
    """One text of each of some pairs: its index in `docids` and `nodes`, which have the documents and nodes of
    texts."""

    docids: Ints
    nodes: Ints
    place: Ints


class WordSets:
    """The words of texts that are joined by them. Without `find`, all that were added are held in memory.

    `pairs` counts the pairs of texts whose words were compared, and `near` those that are near.
    """

    def __init__(self, find: Find | None = None) -> None:
        self._find = find
        self._held, self._earlier = _Held(), _Held()
        self.pairs = self.near = 0

    def forget(self) -> None:
        """Lets go of all texts: other documents may get the ids of some."""
        self._held, self._earlier = _Held(), _Held()

    def add(self, rows: pa.Table, texts: NumberedTexts) -> None:
        """Takes in texts, as rows of R_DOC and with their words. They replace what was held with their ids."""
        self._make_room()
        self._held.add(rows, texts)

    def are_near(self, one: OneOfEach, other: OneOfEach) -> Mask:
        """Whether J of pairs of texts is at least their threshold in tenths. Words with one number count as one word,
        so some pairs may be taken for near that are not; and so is what has no words, of which nobody can tell."""
        self._make_room()
        left, right = self._places(one), self._places(other)
        near = (left < 0) | (right < 0)
        known = np.flatnonzero(~near)
        known = known[self._held.may_be_near(left[known], right[known])]
        pair, pairs = dictionary_encode(left[known] << 32 | right[known])
        found = self._held.are_near(pairs >> 32, pairs & 0xFFFFFFFF)
        self.pairs += len(found)
        self.near += int(np.count_nonzero(found))
        near[known] = found[pair]
        return near

    def checked(self, found: pa.Table) -> pa.Table:
        """The rows of RESULT without those whose texts are joined by their words and are not near."""
        nodes = found["nodes"].combine_chunks()
        flat, row = nodes.flatten().to_numpy(), pc.list_parent_indices(nodes).to_numpy()
        at = np.flatnonzero(flat & MANY)
        if not len(at):
            return found
        # Such a row has no other join, so these nodes are the ends of this one: the left one first.
        place, row = np.arange(len(at) // 2), row[at[::2]]
        docids = (found[name].take(pa.array(row)).to_numpy() for name in ("docid1", "docid2"))
        one, other = (OneOfEach(*both, place) for both in zip(docids, (flat[at[::2]], flat[at[1::2]]), strict=True))
        stays = np.ones(len(found), np.bool_)
        stays[row] = self.are_near(one, other)
        return found.filter(pa.array(stays))

    def _places(self, texts: OneOfEach) -> Ints:
        """Where the text of each pair is held, -1 if there are no words."""
        distinct = list(zip(texts.docids.tolist(), texts.nodes.tolist(), strict=True))
        places = self._held.places(distinct)
        if (places < 0).any():
            self._recall({distinct[at] for at in np.flatnonzero(places < 0).tolist()})
            places = self._held.places(distinct)
        return places[texts.place]

    def _recall(self, missing: set[Text]) -> None:
        """Has some texts held that were held before, or are found."""
        self._held.take(self._earlier, missing)
        missing -= self._held.place.keys()
        if missing and self._find is not None:
            _, rows = parted(self._find(pa.array(sorted({docid for docid, _ in missing}))))
            asked = [text in missing for text in zip(rows["docid"].to_pylist(), rows["node"].to_pylist(), strict=True)]
            rows = rows.filter(pa.array(asked, pa.bool_()))
            self._held.add(rows, numbered_texts(rows["strval"].to_pylist()))

    def _make_room(self) -> None:
        """Lets go of what was not asked for recently, if much is held. Places change."""
        if len(self._held.numbers) > MOST_HELD and self._find is not None:
            self._held, self._earlier = _Held(), self._held


class _Held:
    """Texts in memory. `place` tells where each is in the columns: `tenths` has its threshold, and `start` and `size`
    the range of its words in `numbers`. `bits` has a bit for each word, one of 64, and `spare` tells how many more
    words there are than bits."""

    def __init__(self) -> None:
        self.place: dict[Text, int] = {}
        self.tenths, self.start, self.size, self.numbers = GrowingInts(), GrowingInts(), GrowingInts(), GrowingInts()
        self.bits, self.spare = GrowingInts(), GrowingInts()

    def places(self, texts: Sequence[Text]) -> Ints:
        """Where texts are, -1 for those that are not held."""
        return np.fromiter(map(self.place.get, texts, repeat(-1)), np.int64, len(texts))

    def add(self, rows: pa.Table, texts: NumberedTexts) -> None:
        """Adds texts, as rows of R_DOC and with their words. They replace those with their ids."""
        self._extend(zip(rows["docid"].to_pylist(), rows["node"].to_pylist(), strict=True), *texts)

    def take(self, other: _Held, texts: Iterable[Text]) -> None:
        """Adds those of some texts that another one holds."""
        some = [text for text in texts if text in other.place]
        at = other.places(some)
        start, size = other.start.values[at], other.size.values[at]
        words, _ = expand_ranges(start, start + size)
        self._extend(some, other.tenths.values[at], other.numbers.values[words], np.append(0, np.cumsum(size)))

    def _extend(self, texts: Iterable[Text], tenths: Ints, numbers: Ints, start: Ints) -> None:
        if not len(tenths):
            return
        self.place.update(zip(texts, range(len(self.tenths), len(self.tenths) + len(tenths)), strict=True))
        bits, size = np.bitwise_or.reduceat(1 << (numbers & 63), start[:-1]), np.diff(start)
        self.tenths.extend(tenths)
        self.start.extend(start[:-1] + len(self.numbers))
        self.size.extend(size)
        self.numbers.extend(numbers)
        self.bits.extend(bits)
        self.spare.extend(size - np.bitwise_count(bits.view(np.uint64)))

    def may_be_near(self, one: Ints, other: Ints) -> Mask:
        """Whether texts, given by place, can be near: whether they have bits enough in common. (This is the bitmap
        filter of Sandes, Teodoro and Melo, 2017.) A word that both have is a bit that both have, unless others of their
        words have this bit, too."""
        bits, spare, size, tenths = self.bits.values, self.spare.values, self.size.values, self.tenths.values[one]
        common = np.bitwise_count((bits[one] & bits[other]).view(np.uint64)) + np.minimum(spare[one], spare[other])
        may_be: Mask = common * (10 + tenths) >= tenths * (size[one] + size[other])
        return may_be

    def are_near(self, one: Ints, other: Ints) -> Mask:
        """Whether texts, given by place, are near."""
        sizes, tenths = self.size.values, self.tenths.values[one]
        both = sizes[one] + sizes[other]
        near = np.zeros(len(one), np.bool_)
        for part in _parts(both):
            common = self._in_common(one[part], other[part])
            near[part] = common * (10 + tenths[part]) >= tenths[part] * both[part]
        return near

    def _in_common(self, one: Ints, other: Ints) -> Ints:
        """The number of words that texts have in common."""
        texts = np.append(one, other)
        start = self.start.values[texts]
        word, at = expand_ranges(start, start + self.size.values[texts])
        pair = np.tile(np.arange(len(one)), 2)[at]
        words = pair << _PAIR_SHIFT | self.numbers.values[word] & (1 << _PAIR_SHIFT) - 1
        words.sort()
        twice = words[1:][words[1:] == words[:-1]]
        return np.bincount(twice >> _PAIR_SHIFT, minlength=len(one))


def _parts(sizes: Ints) -> Iterator[slice]:
    """Slices of consecutive pairs with about MOST_COMPARED words."""
    total = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = total[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(total, before + MOST_COMPARED, "right")))
        yield slice(start, end)
        start = end
