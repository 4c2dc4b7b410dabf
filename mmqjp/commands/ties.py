"""Tells how many pairs of documents FOLLOWED BY left out only because of equal times, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

LISTED = 3
"""The number of queries that are named."""


def told(ties: Mapping[str, int], at_least: Collection[str] = ()) -> Iterator[str]:
    """Yields a line for each of the queries with the most pairs, and one for the others. `ties` has the pairs by the
    names of queries, the most first; those of `at_least` may have more."""
    for name, count in islice(ties.items(), LISTED):
        pairs = "1 pair has" if count == 1 else f"{count:,} pairs have"
        pairs = f"at least {pairs}" if name in at_least else pairs
        yield (
            f"{name}: {pairs} equal times, so that neither document follows the other; JOIN UNORDERED matches them, too"
        )
    if len(ties) > LISTED:
        rest = list(ties.values())[LISTED:]
        more = "at least " if any(name in at_least for name in list(ties)[LISTED:]) else ""
        yield f"{more}{sum(rest):,} more pairs with equal times of {len(rest):,} other queries"
