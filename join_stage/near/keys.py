"""The keys by which a value join finds texts that may be near: the first few words of each.

If J of two texts is at least a threshold, one of the first `n - ceil(threshold * n) + 1` of the n words of one text is
one of those of the other, in whatever order of all words. (This is prefix filtering, of Chaudhuri, Ganti and Kaushik,
2006.) So equal keys find all that are near, and some more.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from join_stage.arrays import Ints
from join_stage.near.numbered_texts import NumberedTexts, numbered_texts
from join_stage.near.word_order import WordOrder
from templates.witness import MANY, R_DOC
from xscl.algebra.word_numbers import DIGITS, THRESHOLD

_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)


def keyed(r_doc: pa.Table, order: WordOrder) -> pa.Table:
    """Rows of R_doc, in which texts that are joined by their words have a row for each key."""
    others, texts = parted(r_doc)
    return pa.concat_tables([others, keys_of(texts, numbered_texts(texts["strval"].to_pylist()), order)])


def parted(r_doc: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows of R_doc: all others, and those of texts that are joined by their words. A text without words is in
    neither."""
    many = pc.greater_equal(r_doc["node"], MANY)
    texts = r_doc.filter(many)
    return r_doc.filter(pc.invert(many)), texts.filter(pc.not_equal(texts["strval"], ""))


def keys_of(rows: pa.Table, texts: NumberedTexts, order: WordOrder) -> pa.Table:
    """Rows of R_doc with the keys of texts, given those with their words, and these."""
    place, word = first_words(texts, order)
    keys = _written(texts.tenths[place], texts.numbers[word])
    others = rows.drop_columns(["strval"]).take(pa.array(place))  # the words of a text are long
    return others.add_column(R_DOC.get_field_index("strval"), "strval", pa.chunked_array([keys]))


def first_words(texts: NumberedTexts, order: WordOrder) -> tuple[Ints, Ints]:
    """Which text each key is one of, and the index of its word: as many of the first words of each text as its
    threshold asks for, each number once."""
    sizes = texts.sizes
    text = np.arange(len(sizes)).repeat(sizes)
    by_rank = np.lexsort((order.ranks(texts.numbers), text))
    wanted = -(-texts.tenths * sizes // 10)
    first = np.arange(len(text)) - texts.start[:-1].repeat(sizes) < (sizes - wanted + 1).repeat(sizes)
    text, word = text[first], by_rank[first]
    numbers = texts.numbers[word]
    fresh = np.ones(len(text), np.bool_)
    fresh[1:] = (text[1:] != text[:-1]) | (numbers[1:] != numbers[:-1])
    return text[fresh], word[fresh]


def _written(tenths: Ints, numbers: Ints) -> pa.StringArray:
    """Keys as texts of one width: the threshold, and the number of the word."""
    width = THRESHOLD + DIGITS
    text = np.empty((len(numbers), width), np.uint8)
    text[:, 0], text[:, 1], text[:, 2] = ord("0") + tenths // 10, ord("."), ord("0") + tenths % 10
    digits = numbers.astype(">i8").view(np.uint8).reshape(-1, DIGITS // 2)
    text[:, THRESHOLD::2], text[:, THRESHOLD + 1 :: 2] = _HEXADECIMAL[digits >> 4], _HEXADECIMAL[digits & 15]
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))
