"""A synthetic feed like that of section 6.6.3: items of 418 channels with five leaves each, the same for a seed.

Channels are Zipf distributed. Now and then an item repeats the url, the title or the description of the one before it
in its channel, is described by its title, has its channel's url, or is called Untitled, as items of real feeds do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.stage2_queries import Schema

LEAVES = ("item_url", "channel_url", "title", "timestamp", "description")
FEED = Schema(tuple((leaf,) for leaf in LEAVES))
ITEMS, CHANNELS = 225_000, 418

_URL, _CHANNEL, _TITLE, _TIME, _DESCRIPTION = range(len(LEAVES))
_UNTITLED = -1
_KIND = 32
_TEXT = "stream join event query template witness node value path feed book author title data window time graph "


def feed(count: int, seed: int = 7) -> npt.NDArray[np.int64]:
    """The interned values of `count` items, a row for each, in order of time."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, CHANNELS + 1) ** 0.8
    channels = rng.choice(CHANNELS, count, p=weights / weights.sum())
    fresh = np.arange(count)
    numbers = np.stack([fresh, channels, fresh, rng.integers(0, 5 * count + 10, count), fresh], axis=1)
    values: npt.NDArray[np.int64] = numbers + (np.arange(len(LEAVES), dtype=np.int64) << _KIND)
    chance = rng.random((count, 6))
    last: dict[int, int] = {}
    for i, channel in enumerate(channels.tolist()):
        before = last.get(channel)
        if before is not None:
            for leaf, share in ((_URL, 0.03), (_TITLE, 0.08), (_DESCRIPTION, 0.02)):
                if chance[i, leaf] < share:
                    values[i, leaf] = values[before, leaf]
        if chance[i, 3] < 0.05:
            values[i, _DESCRIPTION] = values[i, _TITLE]
        if chance[i, 5] < 0.005:
            values[i, _TITLE] = _UNTITLED
        if chance[i, 1] < 0.01:
            values[i, _URL] = values[i, _CHANNEL]
        last[channel] = i
    return values


def strings(values: npt.NDArray[np.int64]) -> list[pa.Array]:
    """The items' string values, leaf by leaf."""
    return [pa.array([_string(value) for value in column.tolist()]) for column in values.T]


def _string(value: int) -> str:
    kind, number = value >> _KIND, value & (1 << _KIND) - 1
    if value == _UNTITLED:
        return "Untitled"
    if kind == _CHANNEL:
        return f"https://channel{number}.example.org/feed.xml"
    if kind == _URL:
        return f"https://news.example.org/2006/10/story-{number}.html"
    if kind == _TITLE:
        return f"{_TEXT[: 20 + number % 30]} {number}"
    if kind == _TIME:
        return f"2006-10-01T00:00:00Z+{number}"
    return f"{number} {_TEXT * 2}"


def columns(first_docid: int, leaves: Sequence[pa.Array]) -> pa.Table:
    """The items as a table with a column for each leaf."""
    docids = pa.array(range(first_docid, first_docid + len(leaves[0])), pa.int64())
    return pa.table([docids, *leaves], names=["docid", *LEAVES])
