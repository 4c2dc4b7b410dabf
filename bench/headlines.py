"""Headlines for `mmqjp bench near`: those of a file, or made ones, of which some nearly repeat others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from feeds.documents import Document

START, SECOND = 1_780_000_000_000_000, 1_000_000
A_DAY = 1_000
"""So many made headlines come a day."""

_WORDS, _ZIPF, _SHIFT = 30_000, 1.05, 2.7
"""Made words, and how often each comes: as 1 / (rank + _SHIFT) ** _ZIPF."""

_RETITLED = 0.05
"""The part of made headlines that are one of the day before, in which up to two words have changed."""

_ABOUT = "What is known so far, who has said what about it, and what may happen next, as our reporters found it today."


class Headline(NamedTuple):
    """A headline, and its time in microseconds."""

    text: str
    time: int


def read_headlines(path: Path, most: int) -> list[Headline]:
    """The first headlines of a file with lines of seconds since 1970, a tab, and a headline, in the order of time."""
    found = []
    with path.open(encoding="utf-8") as lines:
        for line in islice(lines, most):
            seconds, _, text = line.rstrip("\n").partition("\t")
            found.append(Headline(text, int(seconds) * SECOND))
    return found


def made_headlines(count: int, seed: int = 1) -> list[Headline]:
    """Headlines of 4 to 14 words, evenly spread over days."""
    rng, numbers = Random(seed), np.random.default_rng(seed)
    words = _vocabulary(rng)
    weights = 1 / (np.arange(1, len(words) + 1) + _SHIFT) ** _ZIPF
    drawn = iter(numbers.choice(len(words), size=16 * count, p=weights / weights.sum()).tolist())
    found: list[Headline] = []
    for number in range(count):
        if found and rng.random() < _RETITLED:
            text = found[-rng.randrange(1, min(number, A_DAY) + 1)].text.split()
            for _ in range(rng.choice((0, 1, 1, 2))):
                text[rng.randrange(len(text))] = words[next(drawn)]
        else:
            length = max(4, min(14, round(rng.gauss(10, 2))))
            text = [words[word] for word in islice(drawn, length)]
        found.append(Headline(" ".join(text), START + number * 86_400 * SECOND // A_DAY))
    return found


def _vocabulary(rng: Random) -> list[str]:
    """Different words of one to four syllables, the short ones mostly first."""
    syllables = [start + vowel + end for start in "bcdfghklmnprstvw" for vowel in "aeiou" for end in ("", *"nrst")]
    words: dict[str, None] = {}
    while len(words) < _WORDS:
        words["".join(rng.choices(syllables, k=rng.choice((1, 2, 2, 3, 3, 4))))] = None
    return sorted(words, key=lambda word: len(word) + rng.gauss(0, 2))


def items(headlines: list[Headline]) -> Iterator[Document]:
    """The items of a feed with these headlines."""
    for number, (text, time) in enumerate(headlines):
        link = f"https://news.example/stories/{number}"
        xml = (
            f"<item><channel_url>https://news.example/</channel_url><title>{escape(text)}</title><link>{link}</link>"
            f"<guid>{link}</guid><description>{_ABOUT}</description></item>"
        )
        yield Document(f"d{number}", xml, time=time)
