"""The keys of texts in SQL, in the order of numbers: the longest words first."""

from __future__ import annotations

from templates.witness import MANY
from xscl.algebra.word_numbers import DIGITS, THRESHOLD

_TENTHS = "CAST(substr(strval, 1, 1) AS INTEGER) * 10 + CAST(substr(strval, 3, 1) AS INTEGER)"
_WORDS = f"(length(strval) - {THRESHOLD}) / {DIGITS}"

COUNT = f"CAST(floor((10 - ({_TENTHS})) * ({_WORDS}) / 10) AS INTEGER) + 1"
"""How many keys a text has, given its words as `strval`."""

IN_DUCKDB, IN_SPARK = f"unnest(range({COUNT}))", f"explode(sequence(0, {COUNT} - 1))"
"""A row for each key, from 0, in the SQL of each engine."""


def keyed_statement(table: str, places: str) -> str:
    """The rows of a table like R_doc, in which texts that are joined by their words have a row for each key. `places`
    is IN_DUCKDB or IN_SPARK."""
    word = f"substr(strval, {THRESHOLD + 1} + {DIGITS} * place, {DIGITS})"
    texts = f"SELECT docid, node, strval, stream, {places} AS place FROM {table} WHERE node >= {MANY} AND strval <> ''"
    return f"""SELECT docid, node, strval, stream FROM {table} WHERE node < {MANY}
UNION ALL
SELECT docid, node, concat(substr(strval, 1, {THRESHOLD}), {word}) AS strval, stream FROM ({texts}) AS texts"""
