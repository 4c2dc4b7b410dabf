"""Near-equal and similar texts in the join state: join keys of texts, and the check of the candidate pairs. Prefix
filtering (Chaudhuri, Ganti and Kaushik, 2006): if weighted Jaccard similarity J of two texts is at least a threshold,
they share one of the first words of both, in any common order of words: those for which they and all later words weigh
at least the threshold's fraction of their text. These words are the keys; putting rare words first gives the fewest
candidates. Candidates are verified before anything else. In near() each word weighs 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.arrays import (
    GrowingInts,
    Ints,
    Mask,
    bisect_ranges,
    dictionary_encode,
    distinct,
    equal_ranges,
    expand_ranges,
    group_starts,
)
from join_stage.near_index import NearIndex, TextWords
from templates.witness import MANY, R_DOC, Witnesses
from xscl.algebra.near import DIGITS, HIGHEST, LEVEL, WEIGHED_HEAD, head_length, is_weighed, level_hundredths
from xscl.algebra.weights import DIGEST_BITS, HEAVIEST

_IS_WEIGHED = "substr(strval, 1, 1) = 'w'"
_TENTHS = "CAST(substr(strval, 1, 1) AS INTEGER) * 10 + CAST(substr(strval, 3, 1) AS INTEGER)"
_WORDS = f"(length(strval) - {LEVEL}) / {DIGITS}"
_HEAD = f"CASE WHEN {_IS_WEIGHED} THEN {WEIGHED_HEAD} ELSE {LEVEL} END"

COUNT = f"""CASE WHEN {_IS_WEIGHED} THEN CAST(substr(strval, {LEVEL + 1}, {WEIGHED_HEAD - LEVEL}) AS INTEGER)
ELSE CAST(floor((10 - ({_TENTHS})) * ({_WORDS}) / 10) AS INTEGER) + 1 END"""
"""The number of keys of a text, given its words as `strval`, in SQL."""

IN_DUCKDB, IN_SPARK = f"unnest(range({COUNT}))", f"explode(sequence(0, {COUNT} - 1))"
"""One row per key, from 0, in the SQL of each engine."""


def keyed_statement(table: str, places: str) -> str:
    """The rows of a table like R_doc, with a row for each key of a text. `places` is IN_DUCKDB or IN_SPARK."""
    word = f"substr(strval, 1 + {_HEAD} + {DIGITS} * place, {DIGITS})"
    texts = f"SELECT docid, node, strval, stream, {places} AS place FROM {table} WHERE node >= {MANY} AND strval <> ''"
    return f"""SELECT docid, node, strval, stream FROM {table} WHERE node < {MANY}
UNION ALL
SELECT docid, node, concat(substr(strval, 1, {LEVEL}), {word}) AS strval, stream FROM ({texts}) AS texts"""


class NumberedTexts(NamedTuple):
    """Texts as word numbers: `hundredths` of thresholds; `weighed` is 1 for texts of similar(), else 0; `numbers`
    ascending by text; `start`: offsets and the total."""

    hundredths: Ints
    weighed: Ints
    numbers: Ints
    start: Ints

    @property
    def sizes(self) -> Ints:
        return np.diff(self.start)

    @property
    def sets(self) -> TextWords:
        return TextWords(self.numbers, self.weights(), self.start)

    def weights(self) -> Ints:
        """The weights of the words."""
        weighed = self.weighed.repeat(self.sizes)
        return np.where(weighed, HIGHEST - (self.numbers >> DIGEST_BITS), 1) if weighed.any() else 1 - weighed


def numbered_texts(values: Sequence[str]) -> NumberedTexts:
    """Parses what `xscl.algebra.near.encode_words` writes, for texts that have words."""
    heads = list(map(head_length, values))
    digits = bytes.fromhex("".join([value[head:] for value, head in zip(values, heads, strict=True)]))
    sizes = [(len(value) - head) // DIGITS for value, head in zip(values, heads, strict=True)]
    return NumberedTexts(
        np.array(list(map(level_hundredths, values)), np.int64),
        np.array(list(map(is_weighed, values)), np.int64),
        np.frombuffer(digits, ">i8").astype(np.int64),
        np.append(0, np.cumsum(sizes, dtype=np.int64)),
    )


MOST_LEARNT = 100_000  # maximum number of words, the most frequent ones, in an order

_FREQUENT = np.uint64(1 << 63)  # added to the ranks of frequent words; word numbers are less


@dataclass(frozen=True)
class WordOrder:
    """An order of words by number, with the words in `frequent` behind all others, the most frequent at the end."""

    frequent: Ints

    def ranks(self, numbers: Ints) -> NDArray[np.uint64]:
        ranks = numbers.astype(np.uint64)
        known, place = self._known
        if len(known):
            at = np.minimum(known.searchsorted(numbers), len(known) - 1)
            met = known[at] == numbers
            ranks[met] = _FREQUENT + place[at[met]].astype(np.uint64)
        return ranks

    @cached_property
    def _known(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.frequent, kind="stable")
        return self.frequent[order], order


LONGEST_FIRST = WordOrder(np.zeros(0, np.int64))  # numeric order: longest or heaviest words first


def learnt(texts: Iterable[str]) -> WordOrder:
    """Learns an order from encoded texts: rarer words first, those of a single text like unseen ones."""
    words = np.sort(numbered_texts(list(texts)).numbers)
    numbers = distinct(words)
    counts = np.diff(np.append(words.searchsorted(numbers), len(words)))
    some = np.flatnonzero(counts > 1)
    return WordOrder(numbers[some[np.lexsort((numbers[some], counts[some]))]][-MOST_LEARNT:])


_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)


def keyed(r_doc: pa.Table, order: WordOrder) -> pa.Table:
    """Rows of R_doc, with a row for each key of a text."""
    others, texts = split_text_rows(r_doc)
    return pa.concat_tables([others, with_text_keys(texts, numbered_texts(texts["strval"].to_pylist()), order)])


def split_text_rows(r_doc: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Splits rows of R_doc into others and word-joined texts. A text without words is in neither."""
    many = pc.greater_equal(r_doc["node"], MANY)
    texts = r_doc.filter(many)
    return r_doc.filter(pc.invert(many)), texts.filter(pc.not_equal(texts["strval"], ""))


def with_text_keys(rows: pa.Table, texts: NumberedTexts, order: WordOrder) -> pa.Table:
    """Rows of R_doc with the keys of texts; `rows` are the texts, `texts` their words."""
    place, word = first_words(texts, order)
    keys = _written(texts.hundredths[place], texts.weighed[place], texts.numbers[word])
    others = rows.drop_columns(["strval"]).take(pa.array(place))  # texts of words are long
    return others.add_column(R_DOC.get_field_index("strval"), "strval", pa.chunked_array([keys]))


def first_words(texts: NumberedTexts, order: WordOrder) -> tuple[Ints, Ints]:
    """For each key, the index of its text and of its word: of each text the prefix that its threshold requires."""
    sizes, first = texts.sizes, texts.start[:-1]
    text = np.arange(len(sizes)).repeat(sizes)
    by_rank = np.lexsort((order.ranks(texts.numbers), text))
    weights = texts.weights()[by_rank]
    before = np.cumsum(weights) - weights
    total = np.add.reduceat(weights, first) if len(first) else first
    rest = (total + before[first]).repeat(sizes) - before
    is_key = rest * 100 >= (texts.hundredths * total).repeat(sizes)
    text, word = text[is_key], by_rank[is_key]
    numbers = texts.numbers[word]
    fresh = np.ones(len(text), np.bool_)
    fresh[1:] = (text[1:] != text[:-1]) | (numbers[1:] != numbers[:-1])
    return text[fresh], word[fresh]


def _written(hundredths: Ints, weighed: Ints, numbers: Ints) -> pa.StringArray:
    width = LEVEL + DIGITS
    text = np.empty((len(numbers), width), np.uint8)
    tenths, zero = hundredths // 10, ord("0")
    text[:, 0] = np.where(weighed, ord("w"), zero + tenths // 10)
    text[:, 1] = np.where(weighed, zero + tenths, ord("."))
    text[:, 2] = zero + np.where(weighed, hundredths, tenths) % 10
    digits = numbers.astype(">i8").view(np.uint8).reshape(-1, DIGITS // 2)
    text[:, LEVEL::2], text[:, LEVEL + 1 :: 2] = _HEXADECIMAL[digits >> 4], _HEXADECIMAL[digits & 15]
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))


Find = Callable[[pa.Array], pa.Table]  # returns the rows of R_doc of some documents, by id


MOST_HELD = 2_000_000
"""Approximate maximum number of words held in each of two generations; others are reloaded on demand."""

MOST_COMPARED = 1_000_000  # number of words looked up at a time

_MOST_LEFT = 64  # maximum number of left texts of pairs compared at a time


class TextIds(NamedTuple):
    """The documents and nodes of texts, which may repeat."""

    docids: Ints
    nodes: Ints

    def at(self, chosen: Ints | Mask) -> TextIds:
        return TextIds(self.docids[chosen], self.nodes[chosen])


class WordSets:
    """Caches the words of texts; without `find`, of all. `pairs` counts the pairs compared, `near` the near ones."""

    def __init__(self, find: Find | None = None) -> None:
        self._find = find
        self._held, self._earlier = _Held(), _Held()
        self.pairs = self.near = 0

    def forget(self) -> None:
        self._held, self._earlier = _Held(), _Held()

    def add(self, rows: pa.Table, texts: NumberedTexts) -> None:
        self._make_room()
        self._held.add(rows, texts)

    def are_near(self, one: TextIds, other: TextIds, *, by_keys: bool = False) -> Mask:
        """Whether J of each pair is at least its threshold. May be true for a pair that is not near if words share a
        number, and is true for texts without words. `by_keys`: a pair is there once for each key that it shares."""
        self._make_room()
        left, right = self._places(one), self._places(other)
        near = (left < 0) | (right < 0)
        known = np.flatnonzero(~near)
        known = known[self._held.may_be_near(left[known], right[known])]
        pair, pairs = dictionary_encode(left[known] << 32 | right[known])
        one_at, other_at, found = pairs >> 32, pairs & 0xFFFFFFFF, np.ones(len(pairs), np.bool_)
        if by_keys:
            found = self._held.share_enough_keys(one_at, other_at, np.bincount(pair, minlength=len(pairs)))
        compared = np.flatnonzero(found)
        found[compared] = self._held.are_near(one_at[compared], other_at[compared])
        self.pairs += len(compared)
        self.near += int(np.count_nonzero(found))
        near[known] = found[pair]
        return near

    def checked(self, found: pa.Table) -> pa.Table:
        """The rows of RESULT without those whose word-joined texts are not near."""
        nodes = found["nodes"].combine_chunks()
        flat, row = nodes.flatten().to_numpy(), pc.list_parent_indices(nodes).to_numpy()
        at = np.flatnonzero(flat & MANY)
        if not len(at):
            return found
        # Such a row has no other join, so these are the nodes of this one, left before right.
        row = row[at[::2]]
        docids = (found[name].take(pa.array(row)).to_numpy() for name in ("docid1", "docid2"))
        one, other = map(TextIds, docids, (flat[at[::2]], flat[at[1::2]]))
        stays = np.ones(len(found), np.bool_)
        stays[row] = self.are_near(one, other)
        return found.filter(pa.array(stays))

    def _places(self, texts: TextIds) -> Ints:
        places = self._held.places(texts)
        if len(missing := np.flatnonzero(places < 0)):
            self._recall(texts.at(missing))
            places = self._held.places(texts)
        return places

    def _recall(self, texts: TextIds) -> None:
        self._held.take(self._earlier, texts)
        missing = self._held.places(texts) < 0
        if missing.any() and self._find is not None:
            _, rows = split_text_rows(self._find(pa.array(distinct(texts.docids[missing]))))
            rows = rows.filter(pa.array(self._held.places(_ids(rows)) < 0))
            self._held.add(rows, numbered_texts(rows["strval"].to_pylist()))

    def _make_room(self) -> None:
        if len(self._held.numbers) > MOST_HELD and self._find is not None:
            self._held, self._earlier = _Held(), self._held


def _ids(rows: pa.Table) -> TextIds:
    return TextIds(rows["docid"].to_numpy(), rows["node"].to_numpy())


class _Held:
    """Texts in memory. `place` indexes the columns: `hundredths` has the threshold, `weighed` if words have weights,
    `start` and `size` the range in `numbers`, `mass` the weight of the words, `bits` a bit for each word modulo 64,
    `spare` the number of words beyond the bits. It is parallel to `docids` and `nodes`, which are sorted."""

    def __init__(self) -> None:
        self.docids, self.nodes, self.place = GrowingInts(), GrowingInts(), GrowingInts()
        self.hundredths, self.weighed, self.numbers = GrowingInts(), GrowingInts(), GrowingInts()
        self.start, self.size, self.mass = GrowingInts(), GrowingInts(), GrowingInts()
        self.bits, self.spare = GrowingInts(), GrowingInts()

    def places(self, texts: TextIds) -> Ints:
        at, known = self._at(texts)
        places = np.full(len(at), -1)
        places[known] = self.place.values[at[known]]
        return places

    def _at(self, texts: TextIds) -> tuple[Ints, Mask]:
        """The positions of texts in the sorted columns, or where they would be, and a mask of those that are there."""
        docids, nodes = self.docids.values, self.nodes.values
        at = docids.searchsorted(texts.docids)
        if not len(docids):
            return at, np.zeros(len(at), np.bool_)
        last = len(docids) - 1
        others = (nodes[np.minimum(at, last)] != texts.nodes).nonzero()[0]
        if len(others):  # a document rarely has several texts
            end = docids.searchsorted(texts.docids[others], "right")
            at[others] = bisect_ranges(nodes, at[others], end, texts.nodes[others])
        found = np.minimum(at, last)
        return at, (docids[found] == texts.docids) & (nodes[found] == texts.nodes)

    def add(self, rows: pa.Table, texts: NumberedTexts) -> None:
        self._extend(_ids(rows), texts)

    def take(self, other: _Held, texts: TextIds) -> None:
        at, known = other._at(texts)
        at = distinct(at[known])
        ids, place = TextIds(other.docids.values[at], other.nodes.values[at]), other.place.values[at]
        start, size = other.start.values[place], other.size.values[place]
        words, _ = expand_ranges(start, start + size)
        columns = other.hundredths.values[place], other.weighed.values[place], other.numbers.values[words]
        self._extend(ids, NumberedTexts(*columns, np.append(0, np.cumsum(size))))

    def _extend(self, ids: TextIds, texts: NumberedTexts) -> None:
        if not len(texts.hundredths):
            return
        order = np.lexsort((ids.nodes, ids.docids))
        ids, place = ids.at(order), order + len(self.hundredths)
        at, known = self._at(ids)
        self.place.values[at[known]] = place[known]
        fresh = ~known
        for column, values in ((self.docids, ids.docids), (self.nodes, ids.nodes), (self.place, place)):
            column.insert(at[fresh], values[fresh])
        first, size = texts.start[:-1], texts.sizes
        bits = np.bitwise_or.reduceat(1 << (texts.numbers & 63), first)
        self.hundredths.extend(texts.hundredths)
        self.weighed.extend(texts.weighed)
        self.start.extend(first + len(self.numbers))
        self.size.extend(size)
        self.mass.extend(np.add.reduceat(texts.weights(), first))
        self.numbers.extend(texts.numbers)
        self.bits.extend(bits)
        self.spare.extend(size - np.bitwise_count(bits.view(np.uint64)))

    def may_be_near(self, one: Ints, other: Ints) -> Mask:
        """Bitmap filter (Sandes, Teodoro and Melo, 2017): whether the texts at these places share enough bits to be
        near. A shared word implies a shared bit unless other words of the text have this bit, too. Bits have no
        weights, so texts with weights may always be near."""
        bits, spare, size, hundredths = self.bits.values, self.spare.values, self.size.values, self.hundredths.values
        common = np.bitwise_count((bits[one] & bits[other]).view(np.uint64)) + np.minimum(spare[one], spare[other])
        least = hundredths[one] * (size[one] + size[other])
        may_be: Mask = (common * (100 + hundredths[one]) >= least) | (self.weighed.values[one] > 0)
        return may_be

    def share_enough_keys(self, one: Ints, other: Ints, count: Ints) -> Mask:
        """Whether texts that share this number of keys may be near: in the text whose keys end first, the words after
        its keys weigh less than the threshold's fraction, and all other shared words are keys (the positional filter of
        PPJoin, by Xiao, Wang, Lin and Yu, 2008)."""
        hundredths, ours, theirs = self.hundredths.values[one], self.mass.values[one], self.mass.values[other]
        keys = count * np.where(self.weighed.values[one], HEAVIEST, 1)
        most = np.minimum(100 * keys + hundredths * np.maximum(ours, theirs), 100 * np.minimum(ours, theirs))
        found: Mask = most * (100 + hundredths) >= 100 * hundredths * (ours + theirs)
        return found

    def are_near(self, one: Ints, other: Ints) -> Mask:
        order = one.argsort(kind="stable")
        one, other = one[order], other[order]
        size, mass, hundredths = self.size.values, self.mass.values, self.hundredths.values[one]
        is_first = np.append(True, one[1:] != one[:-1])[: len(one)]
        enough = hundredths * (mass[one] + mass[other])
        found = np.zeros(len(one), np.bool_)
        for part in weight_slices(size[other] + is_first * (MOST_COMPARED // _MOST_LEFT), MOST_COMPARED):
            found[part] = self._in_common(one[part], other[part]) * (100 + hundredths[part]) >= enough[part]
        near = np.empty_like(found)
        near[order] = found
        return near

    def _in_common(self, one: Ints, other: Ints) -> Ints:
        """The weight of the words that each pair of texts has in common. The words of right texts are looked up in a
        table of the weight of each word in each left text, 0 if it is missing."""
        start, size, numbers = self.start.values, self.size.values, self.numbers.values
        lefts, left = np.unique(one, return_inverse=True)
        rights, right = np.unique(other, return_inverse=True)
        word, of = expand_ranges(start[lefts], start[lefts] + size[lefts])
        known = np.unique(numbers[word])
        width = len(known) + 1  # the last word is none of them
        table = np.zeros(len(lefts) * width, np.uint8)
        weights = np.where(self.weighed.values[lefts][of], HIGHEST - (numbers[word] >> DIGEST_BITS), 1)
        table[of * width + known.searchsorted(numbers[word])] = weights
        word, _ = expand_ranges(start[rights], start[rights] + size[rights])
        column = known.searchsorted(numbers[word])
        column[known[np.minimum(column, width - 2)] != numbers[word]] = width - 1
        end = np.cumsum(size[rights])[right]
        at, pair = expand_ranges(end - size[other], end)
        found = table[(left * width)[pair] + column[at]]
        return np.add.reduceat(found, np.cumsum(size[other]) - size[other], dtype=np.int64)


def weight_slices(weights: Ints, most: int, together: Ints | None = None) -> Iterator[slice]:
    """Slices of weights that sum to at most `most`, or of one; equal numbers in the sorted `together` stay together."""
    total = np.cumsum(weights)
    start = 0
    while start < len(weights):
        before = total[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(total, before + most, "right")))
        if together is not None:
            end = int(np.searchsorted(together, together[end - 1], "right"))
        yield slice(start, end)
        start = end


ENOUGH = 2_000  # minimum number of different texts from which the word order is learnt

AGAIN = 200  # with too many duplicates to reach ENOUGH, number of texts until learning is tried again

MOST_READ = 50_000  # maximum number of texts, the latest ones, from which the order is learnt


MOST_INDEXED = 1 << 26
"""Maximum number of words of texts in an index, of four bytes and more each. Of more texts, postings have keys."""


def _no_indexes() -> tuple[NearIndex, NearIndex, NearIndex]:
    """For near(), for similar(), and for texts of several values."""
    return NearIndex(), NearIndex(), NearIndex()


class NearTexts:
    """Assigns texts the values of their postings, and the values that they look up. If `is_indexed`, a text has one
    value, and looks up the values of all texts near it. Otherwise, if an index would be too large or executors look up
    postings, it has a value for each key, in an `order` of words, and `sets` holds the words. Words are ordered by
    length until ENOUGH texts have been seen; then the order is learnt, once. `find` is that of `WordSets`."""

    def __init__(self, find: Find | None = None, *, is_indexed: bool = True) -> None:
        self.order = LONGEST_FIRST
        self.sets = WordSets(find)
        self.is_indexed = is_indexed
        self._seen = 0
        self._indexes = _no_indexes()
        self._last: tuple[pa.Table, pa.Table, NumberedTexts, Ints] | None = None

    def begin(self, frequent: Sequence[int] | None) -> None:
        """Restores the learnt order, None if none was, before stored texts get their values."""
        self.order = LONGEST_FIRST if frequent is None else WordOrder(np.array(frequent, np.int64))
        self._seen = 0
        self._indexes = _no_indexes()

    def learnt(self, latest: Callable[[int], Sequence[str]]) -> list[int] | None:
        """Returns the words that come last in the order, or None if there are too few texts to learn it from. `latest`
        returns the latest texts, given their maximum number."""
        if self.order is not LONGEST_FIRST or self._seen < ENOUGH:
            return None
        different = {text[head_length(text) :]: text for text in latest(MOST_READ)}
        if len(different) < ENOUGH:
            self._seen = min(len(different), ENOUGH - AGAIN)
            return None
        return list(map(int, learnt(different.values()).frequent))

    @property
    def is_full(self) -> bool:
        """Whether the index is too large to be held."""
        return self.is_indexed and sum(index.words for index in self._indexes) > MOST_INDEXED

    @property
    def compared(self) -> int:
        """The number of pairs of texts whose frequent words the index looked up."""
        return sum(index.compared for index in self._indexes)

    @property
    def evicted(self) -> int:
        """Changes when texts are evicted from the index."""
        return sum(index.dropped for index in self._indexes)

    def evict(self, before: int) -> None:
        for index in self._indexes:
            index.evict(before)

    def add(self, rows: pa.Table, times: Ints) -> tuple[NumberedTexts, Ints]:
        """Adds rows of R_doc with texts that have words to the index. Returns the words, and the numbers of texts."""
        values = rows["strval"].to_pylist()
        texts = numbered_texts(values)
        numbers, words = np.zeros(len(values), np.int64), texts.sets
        for index, some in self._by_index(texts):
            encoded = [values[place][head_length(values[place]) :] for place in some.tolist()]
            numbers[some] = index.add(encoded, words.at(some), times[some])
        return texts, numbers

    def _by_index(self, texts: NumberedTexts) -> Iterator[tuple[NearIndex, Ints]]:
        kind = texts.weighed + (texts.hundredths == 0)
        for number, index in enumerate(self._indexes):
            if len(some := np.flatnonzero(kind == number)):
                yield index, some

    def keyed(self, witnesses: Witnesses) -> Witnesses:
        """Witnesses with a row of R_doc for each value of a text, after adding the texts."""
        others, rows = split_text_rows(witnesses.r_doc)
        if not len(rows):
            return replace(witnesses, r_doc=others)
        if self.is_indexed:
            docids, begin = (witnesses.r_docts[name] for name in ("docid", "t0"))
            times = begin.to_numpy()[pc.index_in(rows["docid"], docids.combine_chunks()).to_numpy()]
            texts, numbers = self.add(rows, times)
            self._last = witnesses.r_doc, rows, texts, numbers
            valued = [self._valued(rows, index, some, numbers[some]) for index, some in self._by_index(texts)]
            return replace(witnesses, r_doc=pa.concat_tables([others, *valued]))
        texts = numbered_texts(rows["strval"].to_pylist())
        self.sets.add(rows, texts)
        self._seen += len(rows)
        return replace(witnesses, r_doc=pa.concat_tables([others, with_text_keys(rows, texts, self.order)]))

    def asked(self, witnesses: Witnesses) -> Witnesses | None:
        """Witnesses with a row of R_doc for each value that a text looks up; None if they equal those that the
        preceding call of `keyed` returned."""
        if self._last is None or self._last[0] is not witnesses.r_doc:
            return None
        _, rows, texts, numbers = self._last
        asked, words = [split_text_rows(witnesses.r_doc)[0]], texts.sets
        for index, some in self._by_index(texts):
            # Equal texts are looked up once, by the least of their thresholds.
            some = some[np.lexsort((texts.hundredths[some], numbers[some]))]
            first = some[group_starts(numbers[some])]
            for least in distinct(texts.hundredths[first]).tolist():
                looked_up = first[texts.hundredths[first] == least]
                pairs = index.near_to(words.at(looked_up), least)
                at, pair = expand_ranges(*equal_ranges(numbers[looked_up][pairs.place], numbers[some]))
                hundredths, common, both = texts.hundredths[some[at]], pairs.common[pair], pairs.both[pair]
                near = common * (100 + hundredths) >= hundredths * both
                asked.append(self._valued(rows, index, some[at][near], pairs.number[pair][near]))
        return replace(witnesses, r_doc=pa.concat_tables(asked))

    def _valued(self, rows: pa.Table, index: NearIndex, places: Ints, numbers: Ints) -> pa.Table:
        """Rows of the texts at some places, with their values: the level and an identifier that equal texts share."""
        code, known = dictionary_encode(numbers)
        names = pa.array(index.names(known), pa.string()).take(pa.array(code))
        levels = pc.utf8_slice_codeunits(rows["strval"], 0, LEVEL)  # texts of words are long
        rows = rows.set_column(R_DOC.get_field_index("strval"), "strval", levels).take(pa.array(places))
        values = pc.binary_join_element_wise(rows["strval"], pa.chunked_array([names]), "")
        return rows.set_column(R_DOC.get_field_index("strval"), "strval", values)
