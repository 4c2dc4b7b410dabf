"""An index of texts by their words that finds those that are near a text: all and no others, up to numbers of words
that collide. It counts: each text has a cell, to which the postings of a text's words add their weights.

Texts are in segments, the greatest first. Postings of frequent words are read only for those texts that can be near
without them, and looked up as bits for the few texts that the other words leave. A segment numbers its texts by the
weight of their words, so a posting list is cut where what remains of the text is too little for heavier ones. Which
words are frequent, a segment tells by itself, so texts need no common order of words as they do for keys (prefix
filtering, see `near_candidates`). MaxScore (Turtle and Flood, 1995) divides the words of a query in this way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.arrays import GrowingInts, Ints, bisect_ranges, distinct, expand_ranges, group_starts

FEWEST = 256  # segments of fewer texts are merged with the next one

GROWTH = 4  # a segment has at least this many times the texts of the next one, or they are merged

FREQUENT = 64  # words that are in one of this many texts of a segment, or in more, have bits

CELLS = 1 << 17  # number of cells counted at a time, which fit into a processor's cache

_EVER = -(1 << 63)  # the time before all others

_ALL = (1 << 32) - 1  # more than all words of a text weigh

_ZERO = 1 << 15  # what a cell has before it is counted, so that it can be compared with one number

_LONG = 24  # mean length of posting lists from which copying one by one is faster


class TextWords(NamedTuple):
    """Sets of words: `numbers` and `weights` of the words by text, `start` the offsets of texts and the total."""

    numbers: Ints
    weights: Ints
    start: Ints

    @property
    def sizes(self) -> Ints:
        return np.diff(self.start)

    @property
    def masses(self) -> Ints:
        """The weights of the words of each text, added up. No text is empty."""
        return np.add.reduceat(self.weights, self.start[:-1]) if len(self.start) > 1 else np.zeros(0, np.int64)

    def at(self, chosen: Ints) -> TextWords:
        at, _ = expand_ranges(self.start[chosen], self.start[chosen + 1])
        sizes = self.sizes[chosen]
        return TextWords(self.numbers[at], self.weights[at], np.append(0, np.cumsum(sizes)))


class NearPairs(NamedTuple):
    """Texts that are near: parallel arrays of the place of the one that was looked up, the number of the other one, the
    weight of the words that they have in common, and of the words of both, counted twice."""

    place: Ints
    number: Ints
    common: Ints
    both: Ints


@dataclass(frozen=True, slots=True)
class _Segment:
    """Texts in the order of `mass`, with their `numbers`. By word, in the order of `words`: `weights`, and `start`, the
    offsets of its postings and the total. A posting is the place of a text. `bit` has the row of a frequent word in
    `bits`, which have a bit for each text, or -1."""

    numbers: Ints
    mass: Ints
    words: Ints
    weights: Ints
    start: Ints
    postings: NDArray[np.int32]
    bit: Ints
    bits: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.numbers)

    def pairs(self) -> tuple[Ints, Ints]:
        """The index of the word and the place of the text of each posting."""
        return np.arange(len(self.words)).repeat(np.diff(self.start)), self.postings.astype(np.int64)


def _segment(numbers: Ints, mass: Ints, words: Ints, weights: Ints, word: Ints, text: Ints) -> _Segment:
    """A segment of texts in any order, given the words that they have: of each, an index of `words` and of a text."""
    order = np.argsort(mass, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    both = np.sort(word << 32 | place[text])
    count = np.bincount(word, minlength=len(words))
    some = np.flatnonzero(count)
    count = count[some]
    postings = (both & 0xFFFFFFFF).astype(np.int32)
    start = np.append(0, np.cumsum(count))
    frequent = np.flatnonzero(count * FREQUENT >= len(order))
    bit = np.full(len(some), -1)
    bit[frequent] = np.arange(len(frequent))
    bits = np.zeros((len(frequent), -(-len(order) // 8)), np.uint8)
    row = np.zeros(len(order), np.bool_)
    for at, (first, end) in enumerate(zip(start[frequent].tolist(), start[frequent + 1].tolist(), strict=True)):
        row[postings[first:end]] = True
        bits[at] = np.packbits(row, bitorder="little")
        row[:] = False
    return _Segment(numbers[order], mass[order], words[some], weights[some], start, postings, bit, bits)


def _of_texts(numbers: Ints, texts: TextWords) -> _Segment:
    order = np.argsort(texts.numbers, kind="stable")
    ordered = texts.numbers[order]
    first = group_starts(ordered)
    word = np.empty_like(order)
    word[order] = np.arange(len(first)).repeat(np.diff(first, append=len(order)))
    text = np.arange(len(numbers)).repeat(texts.sizes)
    return _segment(numbers, texts.masses, ordered[first], texts.weights[order][first], word, text)


_NONE = np.zeros(0, np.int64)

_NOTHING = _of_texts(_NONE, TextWords(_NONE, _NONE, np.zeros(1, np.int64)))


def _merged(one: _Segment, other: _Segment, stays: NDArray[np.bool_]) -> _Segment:
    """Both segments in one, without the texts whose numbers do not stay."""
    words = distinct(np.append(one.words, other.words))
    weights = np.empty_like(words)
    found: list[tuple[Ints, Ints]] = []
    numbers, mass, count = list[Ints](), list[Ints](), 0
    for segment in (one, other):
        index = words.searchsorted(segment.words)
        weights[index] = segment.weights
        left = stays[segment.numbers]
        word, text = segment.pairs()
        if not left.all():
            kept = left[text]
            word, text = word[kept], text[kept]
        found.append((index[word], (np.cumsum(left) - 1)[text] + count))
        numbers.append(segment.numbers[left])
        mass.append(segment.mass[left])
        count += len(numbers[-1])
    word, text = map(np.concatenate, zip(*found, strict=True))
    return _segment(np.concatenate(numbers), np.concatenate(mass), words, weights, word, text)


class NearIndex:
    """Texts by number, equal ones once. `compared` counts the pairs whose frequent words were looked up, and `near`
    those that are near. `dropped` changes when texts are evicted."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._latest, self._before = GrowingInts(), _EVER  # when the last of equal texts came, in microseconds
        self.dropped = self.compared = self.near = 0

    @property
    def words(self) -> int:
        """The number of words of all texts. Evicted ones count until they are merged."""
        return sum(len(segment.postings) for segment in self._segments)

    def names(self, numbers: Ints) -> list[str]:
        """What texts with these numbers have in common with equal texts only."""
        return [self._names[number] for number in numbers.tolist()]

    def add(self, encoded: Sequence[str], texts: TextWords, times: Ints) -> Ints:
        """Adds texts, given the hexadecimal numbers of their words, the words, and the times. Returns their numbers."""
        times = np.maximum(times, self._before)  # what comes late is evicted as late
        found = np.zeros(len(encoded), np.int64)
        fresh: list[int] = []
        for place, text in enumerate(encoded):
            name = blake2b(text.encode(), digest_size=16).hexdigest()
            number = self._numbers.get(name)
            if number is None or self._latest.values[number] < self._before:
                number = self._numbers[name] = len(self._names)
                self._names.append(name)
                self._latest.extend(times[place : place + 1])
                fresh.append(place)
            found[place] = number
        np.maximum.at(self._latest.values, found, times)
        if fresh:
            segments = [*self._segments, _of_texts(found[fresh], texts.at(np.array(fresh)))]
            while len(segments) > 1 and len(segments[-2]) < max(GROWTH * len(segments[-1]), FEWEST):
                segments[-2:] = [_merged(segments[-2], segments[-1], self._stays)]
            self._segments = segments
        return found

    def evict(self, before: int) -> None:
        """Drops the texts of which the last one was before a time in microseconds."""
        if before <= self._before:
            return
        earlier, self._before = self._stays, before
        stays = self._stays
        if (gone := int(np.count_nonzero(earlier & ~stays))) > 0:
            self.dropped += 1
        if gone and 2 * np.count_nonzero(stays) + FEWEST < len(stays):
            new = np.cumsum(stays) - 1
            merged = [_merged(segment, _NOTHING, stays) for segment in self._segments]
            self._segments = [replace(one, numbers=new[one.numbers]) for one in merged if len(one)]
            self._numbers = {name: int(new[at]) for name, at in self._numbers.items() if stays[at]}
            self._names = [name for name, stay in zip(self._names, stays.tolist(), strict=True) if stay]
            latest, self._latest = self._latest.values[stays], GrowingInts()
            self._latest.extend(latest)

    @property
    def _stays(self) -> NDArray[np.bool_]:
        stays: NDArray[np.bool_] = self._latest.values >= self._before
        return stays

    def near_to(self, texts: TextWords, hundredths: int) -> NearPairs:
        """The texts that are near some others by a threshold in hundredths, in any order."""
        found = [NearPairs(_NONE, _NONE, _NONE, _NONE)]
        for segment in self._segments:
            found += _Search(self, segment, texts, hundredths).pairs()
        pairs = NearPairs(*map(np.concatenate, zip(*found, strict=True)))
        stays = self._stays[pairs.number]
        self.near += int(np.count_nonzero(stays))
        return pairs if stays.all() else NearPairs(*(column[stays] for column in pairs))


class _Search:
    """Finds the texts of a segment that are near others. What two such texts must have in common is a `share` of the
    weight of both; of this, less than `part` may be words whose postings are not read."""

    def __init__(self, index: NearIndex, segment: _Segment, texts: TextWords, hundredths: int) -> None:
        self._index, self._segment, self._hundredths = index, segment, hundredths
        self._share = hundredths / (100 + hundredths)
        self._part = min(0.45 + 0.006 * hundredths, 0.8)
        self._mass = texts.masses
        self._words(texts)

    def _words(self, texts: TextWords) -> None:
        """Orders the words of each text that the segment has: those first that say most about few texts."""
        segment, mass = self._segment, self._mass
        at = np.minimum(segment.words.searchsorted(texts.numbers), len(segment.words) - 1)
        met = np.flatnonzero(segment.words[at] == texts.numbers)
        at, text = at[met], np.arange(len(mass)).repeat(texts.sizes)[met]
        count = segment.start[at + 1] - segment.start[at]
        cost = count / texts.weights[met]
        order = np.argsort(text + cost / (cost.max(initial=0) + 1))
        at, text, weight = at[order], text[order], texts.weights[met[order]]
        self._first = text.searchsorted(np.arange(len(mass) + 1))
        total = np.cumsum(weight)
        rest = (np.append(0, total)[self._first[1:]])[text] - total + weight
        self._weight, self._bit = weight, segment.bit[at]
        if self._hundredths:
            # Heavier texts are not near if only these words, and those behind them, are common.
            self._most = (rest / (self._share * self._part)).astype(np.int64) + 1 - mass[text]
            least, most = mass * self._hundredths // 100, mass * 100 // self._hundredths + 1
        else:  # one word in common is enough
            self._most, least, most = np.full_like(rest, _ALL), np.zeros_like(mass), np.full_like(mass, _ALL)
        low, high = segment.mass.searchsorted(least), segment.mass.searchsorted(most, "right")
        most_read = np.minimum(segment.mass.searchsorted(self._most, "right"), high[text])
        end = np.where(self._bit < 0, high[text], most_read)
        start = segment.start[at]
        self._start = bisect_ranges(segment.postings, start, segment.start[at + 1], low[text])
        self._end = np.maximum(bisect_ranges(segment.postings, start, segment.start[at + 1], end), self._start)

    def pairs(self) -> Iterator[NearPairs]:
        rows = max(1, CELLS // max(len(self._segment), 1))
        part = self._share * (1 - self._part)
        zero = (_ZERO - (part * self._segment.mass).astype(np.int64)).astype(np.uint16)
        for first in range(0, len(self._mass), rows):
            mass = self._mass[first : first + rows]
            least = np.maximum((part * mass).astype(np.int64), 1) + _ZERO
            cells = self._counted(first, first + len(mass), zero)
            found = np.flatnonzero(cells >= least[:, None].astype(np.uint16))
            if len(found):
                text, place = np.divmod(found, len(zero))
                yield self._near(text + first, place, cells.ravel()[found].astype(np.int64) - zero[place])

    def _counted(self, first: int, end: int, zero: NDArray[np.uint16]) -> NDArray[np.uint16]:
        cells = np.tile(zero, (end - first, 1))
        words = slice(self._first[first], self._first[end])
        start, until = self._start[words], self._end[words]
        count = until - start
        total = int(count.sum())
        if total > _LONG * len(count):
            ranges = zip(start.tolist(), until.tolist(), strict=True)
            at = np.concatenate([self._segment.postings[one:other] for one, other in ranges])
        else:
            at = self._segment.postings[expand_ranges(start, until)[0]]
        if end - first > 1:
            row = np.arange(end - first).repeat(np.diff(self._first[first : end + 1]))
            at = at + (row * len(zero)).repeat(count)
        np.add.at(cells.reshape(-1), at, self._weight[words].astype(np.uint16).repeat(count))
        return cells

    def _near(self, text: Ints, place: Ints, common: Ints) -> NearPairs:
        segment, hundredths = self._segment, self._hundredths
        mass = segment.mass[place]
        both = self._mass[text] + mass
        # The words of a text whose postings were not read for a heavier one, the lightest limits first.
        words = self._unread(int(text[0]), int(text[-1]) + 1)
        limit, bit, weight, ends = words
        before = np.append(0, np.cumsum(weight))
        base = int(text[0])
        begin = ends[text - base]
        until = limit.searchsorted((text - base) << 32 | mass)
        may_be = (common + before[until] - before[begin]) * (100 + hundredths) >= hundredths * both
        text, place, common, both = text[may_be], place[may_be], common[may_be], both[may_be]
        at, pair = expand_ranges(begin[may_be], until[may_be])
        has_word = segment.bits[bit[at], place[pair] >> 3] >> (place[pair] & 7).astype(np.uint8) & 1
        common = common + np.bincount(pair, has_word * weight[at], len(common)).astype(np.int64)
        near = common * (100 + hundredths) >= hundredths * both
        self._index.compared += len(near)
        text, place, common, both = text[near], place[near], common[near], both[near]
        return NearPairs(text, segment.numbers[place], common, both)

    def _unread(self, first: int, end: int) -> tuple[Ints, Ints, Ints, Ints]:
        """The frequent words of some texts: the greatest weight of texts for which postings were read, in the low bits
        with the index of the text above, ascending; the row of bits; the weight; and the offsets by text."""
        words = np.arange(self._first[first], self._first[end])
        words = words[self._bit[words] >= 0]
        text = np.arange(end - first).repeat(np.diff(self._first[first : end + 1]))
        text = text[self._bit[self._first[first] : self._first[end]] >= 0]
        limit = text << 32 | np.maximum(self._most[words], 0)
        order = np.argsort(limit, kind="stable")
        words, limit = words[order], limit[order]
        return limit, self._bit[words], self._weight[words], text.searchsorted(np.arange(end - first + 1))
