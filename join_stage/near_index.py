"""An index of texts by their words. It finds exactly the texts that are near a given text, unless word numbers collide.
It counts: each indexed text has a cell, to which the postings of the given text's words add their weights.

Texts are in segments, the largest first. The postings of a frequent word are read only for texts light enough for this
word and less selective ones to suffice; for the few heavier candidates that the other words leave, bits record which
frequent words they have. Where that would still be very many postings, bits are added up instead. A segment numbers its
texts by the weight of their words, so light texts come first in each posting list. Each segment has its own frequent
words, so texts need no common order of words, as they do for keys (prefix filtering, see `near_candidates`). MaxScore
(Turtle and Flood, 1995) divides the words of a query in this way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.arrays import GrowingInts, Ints, Mask, bisect_ranges, distinct, expand_ranges, group_starts, merge_sorted

FEWEST = 256  # segments of fewer texts are merged with the next one

GROWTH = 4  # a segment has at least this many times the texts of the next one, or they are merged

FREQUENT = 64  # words in at least one of this many texts of a segment have bits

CELLS = 1 << 17  # number of cells counted at a time, which fit into a processor's cache

MANY_POSTINGS = 12_000  # mean number of postings of a text's frequent words above which bits are added up

BLOCKS = 16  # number of parts of a segment that then have a threshold each

LEVELS = 4  # number of levels to which weights of frequent words are then rounded up

MOST_ADDED = 255 // LEVELS  # number of words whose levels always add up to at most a byte

_EVER = -(1 << 63)  # before all other times

_ALL = (1 << 32) - 1  # greater than the weight of any text

_ZERO = 1 << 15  # initial value of a cell, less what depends on its text, so that all compare with one number

_LONG = 24  # mean length of posting lists above which copying them one by one is faster

_NO_POSTINGS = np.zeros(0, np.int32)


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
        """The sum of the weights of each text's words. No text is empty."""
        return np.add.reduceat(self.weights, self.start[:-1]) if len(self.start) > 1 else np.zeros(0, np.int64)

    def at(self, chosen: Ints) -> TextWords:
        at, _ = expand_ranges(self.start[chosen], self.start[chosen + 1])
        sizes = self.sizes[chosen]
        return TextWords(self.numbers[at], self.weights[at], np.append(0, np.cumsum(sizes)))


class NearPairs(NamedTuple):
    """Texts that are near, as parallel arrays: the place of the text that was looked up, the number of the other one,
    the weight of the words that they have in common, and the sum of both texts' weights."""

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
    """A segment of texts in any order. `word` and `text` are parallel: indices of a word and of a text that has it."""
    order = np.argsort(mass, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    both = np.sort(word << 32 | place[text], kind="stable")  # stable: it merges sorted runs, in a hundredth of the time
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
    by_mass = np.argsort(texts.masses, kind="stable")
    numbers, texts = numbers[by_mass], texts.at(by_mass)
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
    """Merges two segments, without the texts whose numbers do not stay."""
    words = distinct(merge_sorted(one.words, other.words))
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
    """Numbered texts, equal ones once. `compared` counts the pairs whose frequent words were looked up, and `near` the
    pairs that were found. `dropped` changes when texts are evicted."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._latest, self._before = GrowingInts(), _EVER  # when each text last occurred, in microseconds
        self.dropped = self.compared = self.near = 0

    @property
    def words(self) -> int:
        """The number of words of all texts. Evicted texts count until their segment is merged."""
        return sum(len(segment.postings) for segment in self._segments)

    def names(self, numbers: Ints) -> list[str]:
        """Names of texts by number. Only equal texts have equal names."""
        return [self._names[number] for number in numbers.tolist()]

    def add(self, encoded: Sequence[str], texts: TextWords, times: Ints) -> Ints:
        """Adds texts, given the hexadecimal numbers of their words, the words, and the times. Returns their numbers."""
        times = np.maximum(times, self._before)  # late texts are evicted late
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
        """Drops texts that last occurred before a time in microseconds."""
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
        """Finds the texts that are near some texts by a threshold in hundredths, in any order."""
        found = [NearPairs(_NONE, _NONE, _NONE, _NONE)]
        for segment in self._segments:
            found += _Search(self, segment, texts, hundredths).pairs()
        pairs = NearPairs(*map(np.concatenate, zip(*found, strict=True)))
        stays = self._stays[pairs.number]
        self.near += int(np.count_nonzero(stays))
        return pairs if stays.all() else NearPairs(*(column[stays] for column in pairs))


class _Words:
    """The words of texts that a segment has, text by text. `at` are their indices there, `first` offsets by text."""

    def __init__(self, text: Ints, at: Ints, weight: Ints, texts: int) -> None:
        self.text, self.at, self.weight = text, at, weight
        self.first = text.searchsorted(np.arange(texts + 1))

    def slices(self) -> list[slice]:
        return list(map(slice, self.first[:-1].tolist(), self.first[1:].tolist()))


class _Search:
    """Finds the texts of a segment that are near given texts. Two texts are near if they have at least a `share` of the
    sum of their weights in common. For heavy texts, frequent words below a `part` of it are not counted."""

    def __init__(self, index: NearIndex, segment: _Segment, texts: TextWords, hundredths: int) -> None:
        self._index, self._segment, self._hundredths = index, segment, hundredths
        self._share = hundredths / (100 + hundredths)
        self._part = min(0.45 + 0.006 * hundredths, 0.6)
        self._mass = texts.masses
        # Texts outside these bounds are not near.
        self._lightest, self._heaviest = np.zeros_like(self._mass), np.full_like(self._mass, _ALL)
        if hundredths:
            self._lightest, self._heaviest = self._mass * hundredths // 100, self._mass * 100 // hundredths + 1
        self._words(texts)

    def _words(self, texts: TextWords) -> None:
        """The words of each text that the segment has: rare ones, and frequent ones, the most selective first."""
        segment, mass = self._segment, self._mass
        at = np.minimum(segment.words.searchsorted(texts.numbers), len(segment.words) - 1)
        met = np.flatnonzero(segment.words[at] == texts.numbers)
        at, text, weight = at[met], np.arange(len(mass)).repeat(texts.sizes)[met], texts.weights[met]
        is_rare = segment.bit[at] < 0
        self._rare = _Words(text[is_rare], at[is_rare], weight[is_rare], len(mass))
        at, text, weight = at[~is_rare], text[~is_rare], weight[~is_rare]
        cost = (segment.start[at + 1] - segment.start[at]) / weight
        order = np.argsort(text + cost / (cost.max(initial=0) + 1))
        self._frequent = words = _Words(text[order], at[order], weight[order], len(mass))
        self._bit = segment.bit[words.at]
        if self._hundredths:
            # Heavier texts are not near if they only have this word and those after it in common.
            total = np.cumsum(words.weight)
            rest = np.append(0, total)[words.first[1:]][words.text] - total + words.weight
            self._most = (rest / (self._share * self._part)).astype(np.int64) + 1 - mass[words.text]
        else:  # one word in common is enough
            self._most = np.full_like(words.weight, _ALL)

    def pairs(self) -> Iterator[NearPairs]:
        words = self._frequent
        is_read = self._most >= self._mass[words.text]
        count = (self._segment.start[words.at + 1] - self._segment.start[words.at]) @ is_read
        return self._by_bits() if count > MANY_POSTINGS * len(self._mass) else self._by_postings()

    # ------------------------------------------------------------ several texts at a time

    def _by_postings(self) -> Iterator[NearPairs]:
        segment, rare, frequent = self._segment, self._rare, self._frequent
        start, end = segment.start[frequent.at], segment.start[frequent.at + 1]
        high = segment.mass.searchsorted(np.minimum(self._most, self._heaviest[frequent.text]), "right")
        end = bisect_ranges(segment.postings, start, end, high)
        text = np.append(rare.text, frequent.text)
        order = np.argsort(text, kind="stable")
        start = np.append(segment.start[rare.at], start)[order]
        end = np.append(segment.start[rare.at + 1], end)[order]
        weight = np.append(rare.weight, frequent.weight)[order].astype(np.uint16)
        first = text[order].searchsorted(np.arange(len(self._mass) + 1))
        rows = max(1, CELLS // max(len(segment), 1))
        part = self._share * (1 - self._part)
        zero = (_ZERO - (part * segment.mass).astype(np.int64)).astype(np.uint16)
        for base in range(0, len(self._mass), rows):
            mass = self._mass[base : base + rows]
            words = slice(first[base], first[base + len(mass)])
            count = end[words] - start[words]
            if count.sum() > _LONG * len(count):
                ranges = zip(start[words].tolist(), end[words].tolist(), strict=True)
                at = np.concatenate([segment.postings[some:more] for some, more in ranges])
            else:
                at = segment.postings[expand_ranges(start[words], end[words])[0]]
            if len(mass) > 1:
                row = np.arange(len(mass)).repeat(np.diff(first[base : base + len(mass) + 1]))
                at = at + (row * len(zero)).repeat(count)
            cells = np.tile(zero, (len(mass), 1))
            np.add.at(cells.reshape(-1), at, weight[words].repeat(count))
            least = (np.maximum((part * mass).astype(np.int64), 1) + _ZERO).astype(np.uint16)
            found = np.flatnonzero(cells >= least[:, None])
            if len(found):
                text, place = np.divmod(found, len(zero))
                yield self._near(text + base, place, cells.ravel()[found].astype(np.int64) - zero[place])

    def _near(self, text: Ints, place: Ints, common: Ints) -> NearPairs:
        """The pairs that are near. `common` lacks the last frequent words of each text, which were not counted."""
        segment, words = self._segment, self._frequent
        mass = segment.mass[place]
        both = self._mass[text] + mass
        end = words.first[text + 1]
        begin = bisect_ranges(-self._most, words.first[text], end, 1 - mass)
        before = np.append(0, np.cumsum(words.weight))
        may_be = self._is_enough(common + before[end] - before[begin], both)
        text, place, common, both = text[may_be], place[may_be], common[may_be], both[may_be]
        at, pair = expand_ranges(begin[may_be], end[may_be])
        has_word = segment.bits[self._bit[at], place[pair] >> 3] >> (place[pair] & 7).astype(np.uint8) & 1
        common = common + np.bincount(pair, has_word * words.weight[at], len(common)).astype(np.int64)
        return self._checked(text, place, common, both)

    def _is_enough(self, common: Ints, both: Ints) -> Mask:
        found: Mask = common * (100 + self._hundredths) >= self._hundredths * both
        return found

    def _checked(self, text: Ints, place: Ints, common: Ints, both: Ints) -> NearPairs:
        self._index.compared += len(common)
        near = self._is_enough(common, both)
        return NearPairs(text[near], self._segment.numbers[place[near]], common[near], both[near])

    # ------------------------------------------------------------ one text at a time

    def _by_bits(self) -> Iterator[NearPairs]:
        segment, rare, frequent = self._segment, self._rare, self._frequent
        width = -(-len(segment) // (8 * BLOCKS)) * 8
        lightest = segment.mass[np.minimum(np.arange(BLOCKS) * width, len(segment) - 1)]
        low = np.maximum(lightest.searchsorted(self._lightest) - 1, 0)
        high = lightest.searchsorted(self._heaviest, "right")
        end = lightest.searchsorted(self._most, "right")  # of the blocks for which a word is counted
        unit = -(-int(frequent.weight.max(initial=1)) // LEVELS)
        least = self._least(lightest, end, unit)
        level = -(-frequent.weight // unit)
        some = np.flatnonzero(end > low[frequent.text])
        some = some[np.argsort(frequent.text[some] * (LEVELS + 1) - level[some], kind="stable")]
        sums = _Sums(segment, width)
        words = list(zip(self._bit[some].tolist(), level[some].tolist(), (end[some] * width).tolist(), strict=True))
        ends = frequent.text[some].searchsorted(np.arange(len(self._mass) + 1)).tolist()
        counted, weights = np.zeros(width * BLOCKS, np.uint16), rare.weight.astype(np.uint16)
        count = segment.start[rare.at + 1] - segment.start[rare.at]
        postings = list(map(slice, segment.start[rare.at].tolist(), segment.start[rare.at + 1].tolist()))
        firsts = rare.slices(), frequent.slices(), low.tolist(), high.tolist()
        for text, (rares, frequents, one, other) in enumerate(zip(*firsts, strict=True)):
            cells = sums.of(words[ends[text] : ends[text + 1]], one * width, other * width)
            most = 255 if cells.dtype == np.uint8 else 65_535
            at = np.concatenate([_NO_POSTINGS, *map(segment.postings.__getitem__, postings[rares])]).astype(np.intp)
            np.add.at(counted, at, weights[rares].repeat(count[rares]))
            cells[at] = np.minimum((counted[at] + (unit - 1)) // unit + cells[at], most).astype(cells.dtype)
            limits = np.minimum(least[text, one:other, None], most).astype(cells.dtype)
            found = (cells[one * width : other * width].reshape(-1, width) >= limits).ravel().nonzero()[0]
            place = found + one * width
            common = counted[place].astype(np.int64)
            counted[at] = 0
            if len(place):
                has_word = segment.bits[self._bit[frequents, None], place >> 3] >> (place & 7).astype(np.uint8) & 1
                common += (frequent.weight[frequents].astype(np.float32) @ has_word.astype(np.float32)).astype(np.int64)
                yield self._checked(np.full(len(place), text), place, common, self._mass[text] + segment.mass[place])

    def _least(self, lightest: Ints, end: Ints, unit: int) -> Ints:
        """Returns how many units of counted words the texts of each block must share with each text, at least."""
        mass, words = self._mass, self._frequent
        if not self._hundredths:
            return np.ones((len(mass), BLOCKS), np.int64)
        rest = np.zeros((len(mass), BLOCKS + 1), np.int64)
        np.add.at(rest, (words.text, end), words.weight)
        needed = -(-self._hundredths * (mass[:, None] + lightest) // (100 + self._hundredths))
        least: Ints = np.maximum(-((rest.cumsum(axis=1)[:, :-1] - needed) // unit), 1)
        return least


class _Sums:
    """Adds up the levels of frequent words for each text of a segment, in bytes where they fit."""

    def __init__(self, segment: _Segment, width: int) -> None:
        self._bits = segment.bits
        self._count, self._total = np.zeros((2, width * BLOCKS), np.uint8)

    def of(self, words: list[tuple[int, int, int]], first: int, end: int) -> NDArray[np.unsignedinteger]:
        """Returns the sums of the texts between two places. Each word has a row of bits, a level, and the end of the
        texts for which it is added; the greatest level comes first. Counts of words are added once for each level."""
        if len(words) > MOST_ADDED:
            sums: NDArray[np.unsignedinteger] = np.zeros(len(self._total), np.uint16)
            for at in range(0, len(words), MOST_ADDED):
                sums += self.of(words[at : at + MOST_ADDED], first, end)
            return sums
        count, total = self._count[first:end], self._total[first:end]
        count[:], total[:], level = 0, 0, LEVELS
        for bits, of_word, until in words:
            while level > of_word:
                total += count
                level -= 1
            last = min(until, end, 8 * self._bits.shape[1])
            count[: last - first] += np.unpackbits(self._bits[bits, first >> 3 : last >> 3], bitorder="little")
        for _ in range(level):
            total += count
        return self._total
