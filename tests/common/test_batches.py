"""Batches that a number and a size bound."""

from __future__ import annotations

import pytest

from common.tools import in_batches


@pytest.mark.parametrize(
    ("most", "most_bytes", "expected"),
    [
        (2, 99, [["a", "bcd"], ["e", None, "f"], ["g", None]]),
        (99, 3, [["a", "bcd"], ["e", None, "f", "g"], [None]]),
        (1, 1, [["a"], ["bcd"], ["e"], [None, "f"], ["g"], [None]]),
    ],
)
def test_a_batch_ends_with_the_item_that_fills_it(most, most_bytes, expected):
    items = ["a", "bcd", "e", None, "f", "g", None]
    assert list(in_batches(items, most, most_bytes, lambda item: None if item is None else len(item))) == expected


def test_no_item_is_taken_beyond_the_batch_that_is_given():
    items = iter("abcde")
    assert next(in_batches(items, 2, 99, len)) == ["a", "b"]
    assert list(items) == ["c", "d", "e"]
